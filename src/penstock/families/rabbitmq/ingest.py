"""A broker's messages as tasks: which queue each goes to, under which key, with which payload.

The key is 0 - priority and messages come in the order of the queue, so the order of delivery is kept.
Names and payloads are explained in docs/formats/rabbitmq-envelope.md. ``read_requests`` numbers what is sent
to a node so that a repeated import is recognised (docs/decisions/0017-rabbitmq-imports.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Final, NamedTuple

from penstock.client.batches import BATCH_SIZE_MAX
from penstock.client.producer import producer_id
from penstock.errors import CannotConvert, PathRefused
from penstock.families.damage import Damage, Report, ignore
from penstock.families.family import Progress, no_progress
from penstock.families.rabbitmq.family import TOO_LARGE
from penstock.families.rabbitmq.location import (
    Location,
    Queue,
    Vhost,
    is_asked_for,
    target_name,
    vhost_name,
)
from penstock.families.rabbitmq.read import (
    Bodies,
    Embedded,
    Held,
    Left,
    Selection,
    Wanted,
    is_expired,
    message_damage,
    read_queue,
)
from penstock.families.rabbitmq.rows import envelope_of
from penstock.families.sources import NAMED_MAX
from penstock.formats.rabbitmq.envelope import encode_envelope
from penstock.model import QueueName
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.protocol.version2 import Enqueue, Producer
from penstock.storage.files import OpenFiles

RANGE: Final = 1000
"""Sequence numbers from which one request takes its messages, as many as a node likes in a batch."""


class Target(NamedTuple):
    """A queue's directory, and the queue that its messages become tasks of."""

    name: QueueName
    vhost: Vhost
    queue: Queue


class NewTask(NamedTuple):
    """A message as a task."""

    sequence: int
    key: int
    payload: bytes


def plan(location: Location, selection: Selection) -> list[Target]:
    """Return what is to be imported, in the order in which it is read.

    Raises ``PathRefused`` if there is no such queue, and ``CannotConvert`` if two would become one.
    """
    if location.kind in ("store", "store-file", "queue-store"):
        raise PathRefused(
            f"{location.path}: a store does not say which messages are still in a queue; name the queue's"
            " directory or the node's"
        )
    targets = [
        Target(target_name(vhost_name(vhost, queue), queue.label), vhost, queue)
        for vhost in location.vhosts
        for queue in vhost.queues
        if is_asked_for(vhost, queue, selection.vhost, selection.queue)
    ]
    others = [
        other.words
        for other in location.others
        if other.is_asked_for(selection.vhost, selection.queue)
    ]
    if not targets and others:
        raise PathRefused(
            f"{location.path}: no classic queue to read, only {', '.join(others[:NAMED_MAX])}; consume those from a running broker"
        )
    if not targets:
        raise PathRefused(f"{location.path}: there is no such queue; see 'penstock inspect'")
    places: dict[tuple[QueueName, int], Path] = {}
    for name, _, queue in targets:
        other = places.setdefault((name, queue.priority), queue.path)
        if other != queue.path:
            raise CannotConvert(
                f"{other} and {queue.path} would both become queue {name!r}; import one after the other,"
                " each by its own path"
            )
    return targets


# --- messages ------------------------------------------------------------------------------------


def read_tasks(
    targets: list[Target],
    selection: Selection,
    *,
    report: Report,
    progress: Progress = no_progress,
) -> Iterator[tuple[QueueName, Iterator[NewTask], Left]]:
    """Yield each target's name, its tasks in order, and what was left out once they are used up.

    The tasks of one must be used up before the next.
    """
    for target, found, left in _read(targets, selection.wanted, report, progress):
        tasks = (_task(target, held, selection, left, report) for held in found)
        yield target.name, (task for task in tasks if task is not None), left


def _read(
    targets: list[Target], wanted: Wanted, report: Report, progress: Progress
) -> Iterator[tuple[Target, Iterator[Held], Left]]:
    for _, of_vhost in groupby(targets, key=lambda target: target.vhost.path):
        same = list(of_vhost)
        with OpenFiles() as files:
            # Damage in a store matters only if a message is missing, which is reported then.
            bodies = Bodies(vhost=same[0].vhost, files=files, report=ignore, progress=progress)
            for target in same:
                left = Left()
                yield (
                    target,
                    read_queue(
                        target.queue, bodies, wanted, report=report, left=left, progress=progress
                    ),
                    left,
                )


def _task(
    target: Target, held: Held, selection: Selection, left: Left, report: Report
) -> NewTask | None:
    """Return a message as a task; report one that is too large."""
    if selection.with_envelope:
        payload = _enveloped(target, held, report)
    else:
        payload = held.message.content.body
    return _task_of(target, held, payload, left, report)


def _task_of(
    target: Target, held: Held, payload: bytes, left: Left, report: Report
) -> NewTask | None:
    indexed = held.indexed
    if len(payload) <= PAYLOAD_SIZE_MAX:
        return NewTask(indexed.sequence, -target.queue.priority, payload)
    left.too_large += 1
    reason = f"a payload of {len(payload)} bytes; a node takes at most {PAYLOAD_SIZE_MAX}"
    report(message_damage(indexed, TOO_LARGE, reason))
    return None


def _enveloped(target: Target, held: Held, report: Report) -> bytes:
    envelope = envelope_of(target.vhost, target.queue, held, report)
    return encode_envelope(envelope, *held.message.content.fragments)


# --- requests to a node --------------------------------------------------------------------------


def read_requests(
    targets: list[Target],
    selection: Selection,
    *,
    report: Report,
    producer: str | None = None,
    progress: Progress = no_progress,
) -> Iterator[tuple[QueueName, Iterator[Enqueue], Left]]:
    """Yield for each target the requests that put its messages in, numbered alike in every run.

    No message changes its request because others are left out or because of how it is sent: where they are
    cut follows from all messages of the queue that there are, each in its envelope. So a request that
    is not the one of an earlier run holds fewer tasks or more, which the node notices.
    """
    everything = Wanted(as_of_us=0, transient=True, expired=True)
    for target, found, left in _read(targets, everything, report, progress):
        first = next(found, None)
        requests: Iterator[Enqueue] = iter(())
        if first is not None:
            name = producer_id(_producer_name(target, first, producer))
            parts = _parts(target, chain([first], found))
            requests = _requests(target, name, parts, selection, left, report)
        yield target.name, requests, left


def _producer_name(target: Target, first: Held, producer: str | None) -> str:
    """Return a name that is the same in each run over the same queue, wherever its files lie.

    The first message tells one broker's queue from another's of the same name: its id is random.
    """
    facts = (
        producer or "",
        vhost_name(target.vhost, target.queue),
        target.queue.label,
        target.queue.priority,
        first.indexed.sequence,
        first.message.id,
        hashlib.sha256(first.message.content.body).digest(),
    )
    return f"rabbitmq/{hashlib.sha256(repr(facts).encode()).hexdigest()}"


class _Wrapped(NamedTuple):
    """A message in its envelope, and its damage."""

    held: Held
    payload: bytes
    found_damage: list[Damage]


Part = tuple[int, list[_Wrapped]]
"""Messages of one request, and its number."""


def _parts(target: Target, found: Iterator[Held]) -> Iterator[Part]:
    """Cut messages by ranges of sequence numbers, and within those by size; number the parts."""
    number, size = -1, 0
    part: list[_Wrapped] = []
    for held in found:
        first = held.indexed.sequence // RANGE * RANGE
        found_damage: list[Damage] = []
        payload = _enveloped(target, held, found_damage.append)
        if first > number or size + len(payload) > BATCH_SIZE_MAX:
            if part:
                yield number, part
            # A range has no more parts than sequence numbers, so those of the next one come behind them.
            number, part, size = max(first, number + 1), [], 0
        part.append(_Wrapped(held, payload, found_damage))
        size += len(payload)
    if part:
        yield number, part


def _requests(
    target: Target,
    producer: bytes,
    parts: Iterator[Part],
    selection: Selection,
    left: Left,
    report: Report,
) -> Iterator[Enqueue]:
    for number, part in parts:
        payloads = []
        for held, payload, found_damage in part:
            if not _is_kept(held, selection.wanted, left):
                continue
            if selection.with_envelope:
                for damage in found_damage:
                    report(damage)
            else:
                payload = held.message.content.body
            task = _task_of(target, held, payload, left, report)
            if task is not None:
                payloads.append(task.payload)
        if payloads:
            keys = [-target.queue.priority] * len(payloads)
            yield Enqueue(target.name, keys, payloads, None, None, Producer(producer, number + 1))


def _is_kept(held: Held, wanted: Wanted, left: Left) -> bool:
    """Return whether ``read_queue`` would yield a message; count it if not."""
    indexed, message = held
    is_forgotten = isinstance(indexed.body, Embedded) and not message.is_persistent
    if (is_forgotten or not indexed.is_persistent) and not wanted.transient:
        left.transient += 1
        return False
    if is_expired(indexed, wanted.as_of_us) and not wanted.expired:
        left.expired += 1
        return False
    return True
