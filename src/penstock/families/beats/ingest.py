"""A spool's events as tasks of a node: which queue each goes to, under which key, with which payload.

``read_requests`` numbers what is sent to a node so that a repeated import is recognised: a request is known by the
segment and the index of its first frame. Where requests are cut follows from all frames of a segment, acknowledged ones
included, so none changes its number because the position moved; it holds fewer tasks then, which the node notices.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.client.batches import BATCH_COUNT_MAX, BATCH_SIZE_MAX
from penstock.client.producer import producer_id
from penstock.errors import CannotConvert, InvalidQueueName, PathRefused
from penstock.families.beats.damage import NO_KEY, TOO_LARGE, WRONG_KEY
from penstock.families.beats.location import Location
from penstock.families.beats.read import (
    Waiting,
    frame_damage,
    read_segment,
    read_waiting,
    refuse_state,
)
from penstock.families.damage import Damage, Report
from penstock.families.family import Progress, no_progress
from penstock.families.rabbitmq.location import target_name
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.task_event import SpooledTask, task_of
from penstock.model import RESERVED_PREFIX, QueueName
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.protocol.version2 import Enqueue, Producer

FRAMES_MAX: Final = 2**32
"""Frames of a segment, and segments of a spool, that have numbers; a header counts no more frames."""


@dataclass(slots=True)
class Left:
    """How many events were left out."""

    too_large: int = 0  # for a node


class NewTask(NamedTuple):
    """An event as a task."""

    queue: QueueName
    key: int
    payload: bytes
    delay_ms: int | None
    ttl_ms: int | None

    @property
    def has_terms(self) -> bool:
        return (self.delay_ms, self.ttl_ms) != (None, None)


def queue_name(text: str) -> QueueName:
    """Return the queue that a name in a spool means; what a queue may not be called is escaped.

    Raises ``CannotConvert`` if that makes it too long.
    """
    try:
        if not text.startswith(RESERVED_PREFIX):
            return QueueName(text)
    except InvalidQueueName:
        pass
    return target_name(None, text.encode("utf-8", "surrogateescape"))


def refusing_locked(report: Report) -> Report:
    """Return a report that refuses a segment without its key: a caller who wants all tasks cannot use the rest alone."""

    def report_or_refuse(damage: Damage) -> None:
        if damage.status in (NO_KEY, WRONG_KEY):
            raise PathRefused(f"{damage.path}: {damage.reason}")
        report(damage)

    return report_or_refuse


def read_tasks(
    location: Location,
    *,
    key: bytes | None,
    report: Report,
    otherwise: QueueName | None,
    left: Left,
    progress: Progress = no_progress,
) -> Iterator[NewTask]:
    """Yield what waits, in order. Raises ``PathRefused`` where a key is missing or wrong, and ``CannotConvert``."""
    names = _Names(location, otherwise)
    report = refusing_locked(report)
    for waiting in read_waiting(location, key=key, report=report, progress=progress):
        task = names.task(waiting)
        if _is_taken(task, waiting, report):
            yield task
        else:
            left.too_large += 1


class _Names:
    """Makes tasks of events."""

    def __init__(self, location: Location, otherwise: QueueName | None) -> None:
        self._otherwise = queue_name(location.name) if otherwise is None else otherwise
        self._known: dict[str, QueueName] = {}

    def task(self, waiting: Waiting) -> NewTask:
        event = waiting.event
        task = None if isinstance(event, Damage) else task_of(event)
        if task is None:
            return NewTask(self._otherwise, 0, waiting.frame.payload, None, None)
        return NewTask(self._name(task), task.key, task.payload, task.delay_ms, task.ttl_ms)

    def _name(self, task: SpooledTask) -> QueueName:
        name = self._known.get(task.queue)
        if name is None:
            name = self._known[task.queue] = queue_name(task.queue)
        return name


def _is_taken(task: NewTask, waiting: Waiting, report: Report) -> bool:
    if len(task.payload) <= PAYLOAD_SIZE_MAX:
        return True
    frame, segment = waiting.frame, waiting.segment
    reason = f"a payload of {len(task.payload)} bytes; a node takes at most {PAYLOAD_SIZE_MAX}"
    report(frame_damage(segment, frame, TOO_LARGE, reason))
    return False


# --- requests to a node --------------------------------------------------------------------------


def read_requests(
    location: Location,
    *,
    key: bytes | None,
    report: Report,
    otherwise: QueueName | None,
    too_large: Counter[QueueName],
    producer: str | None = None,
    progress: Progress = no_progress,
) -> Iterator[Enqueue]:
    """Yield the requests that put in what waits, numbered alike in every run over the same files.

    The numbers grow, and within a queue tasks stay in order. ``too_large`` counts what is left out. Raises as
    ``read_tasks``, as far as possible before anything is yielded.
    """
    refuse_state(location)
    names = _Names(location, otherwise)
    report = refusing_locked(report)
    identity = _producer_name(location, key, report, producer)
    if identity is None:
        return iter(())
    return _requests(location, key, identity, names, report, too_large, progress)


def _requests(
    location: Location,
    key: bytes | None,
    identity: str,
    names: _Names,
    report: Report,
    too_large: Counter[QueueName],
    progress: Progress,
) -> Iterator[Enqueue]:
    name = producer_id(identity)
    for part in _parts(
        read_waiting(location, key=key, report=report, progress=progress, whole=True)
    ):
        for batch in _batches(part, names, report, too_large):
            if batch.payloads:
                number = Producer(name, batch.number)
                queue, delay_ms, ttl_ms = batch.queue, batch.delay_ms, batch.ttl_ms
                yield Enqueue(queue, batch.keys, batch.payloads, delay_ms, ttl_ms, number)


def _producer_name(
    location: Location, key: bytes | None, report: Report, producer: str | None
) -> str | None:
    """Return a name that is the same in each run over the same files, wherever they lie; ``None``: there is no frame.

    The oldest frame tells one spool from another.
    """
    unread: list[Damage] = []
    for segment in location.segments:
        for piece in read_segment(segment, key=key):
            if isinstance(piece, Frame):
                digest = hashlib.sha256(piece.payload).digest()
                facts = (producer or "", segment.number, piece.offset, digest)
                return f"spool/{hashlib.sha256(repr(facts).encode()).hexdigest()}"
            if isinstance(piece, Damage):
                unread.append(piece)
    for damage in unread:  # else they are reported when their segments are read again
        report(damage)
    return None


def _parts(found: Iterator[Waiting]) -> Iterator[list[Waiting]]:
    """Cut frames by segments, by ranges of indexes, and within those by size."""
    part: list[Waiting] = []
    at, size = (-1, -1), 0
    for waiting in found:
        frame = waiting.frame
        place = waiting.segment.number, frame.index // BATCH_COUNT_MAX
        if place != at or size + frame.size > BATCH_SIZE_MAX:
            if part:
                yield part
            part, at, size = [], place, 0
        part.append(waiting)
        size += frame.size
    if part:
        yield part


@dataclass(slots=True)
class _Batch:
    """Tasks of one queue and one set of terms, and the number of their request."""

    queue: QueueName
    delay_ms: int | None
    ttl_ms: int | None
    number: int
    keys: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)


def _batches(
    part: list[Waiting], names: _Names, report: Report, too_large: Counter[QueueName]
) -> list[_Batch]:
    """Group by queue what was cut; where terms change, the queue goes on in another batch, for the sake of order."""
    batches: list[_Batch] = []
    latest: dict[QueueName, _Batch] = {}
    for waiting in part:
        task = names.task(waiting)
        batch = latest.get(task.queue)
        if batch is None or (batch.delay_ms, batch.ttl_ms) != (task.delay_ms, task.ttl_ms):
            batch = _Batch(task.queue, task.delay_ms, task.ttl_ms, _number(waiting))
            latest[task.queue] = batch
            batches.append(batch)
        if waiting.is_acknowledged:
            continue
        if _is_taken(task, waiting, report):
            batch.keys.append(task.key)
            batch.payloads.append(task.payload)
        else:
            too_large[task.queue] += 1
    return batches


def _number(waiting: Waiting) -> int:
    segment, index = waiting.segment.number, waiting.frame.index
    if max(segment, index) >= FRAMES_MAX // 2:
        raise CannotConvert(
            f"{waiting.segment.path}: segment {segment}, frame {index} is beyond what requests can be numbered by"
        )
    return segment * FRAMES_MAX + index + 1
