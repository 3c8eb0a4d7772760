"""Frames of a spool as tasks. Pure.

An event of ours differs from the next in its time, its key and its payload, and in little else, so that what stands between
these is decoded once and then known by its bytes. All others go through the decoder of events; the answers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import CorruptData
from penstock.formats.beats.event import decode_event
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.beats.task_event import SpooledTask, task_of
from penstock.model import INT64_MAX, QueueName

KNOWN_MAX: Final = 4096
"""Different queues and terms that are remembered: a few megabytes at most."""

MIDDLE_MAX: Final = 512
"""Bytes between time and payload that are looked at: the longest name of a queue, a key, delay and ttl."""

_BEFORE_TIME: Final = b"\xa4\x69timestamp\x1b"
_TIME: Final = Struct(">Q")
_MIDDLE: Final = len(_BEFORE_TIME) + _TIME.size
_KEY: Final = b"\x63key"
_PAYLOAD: Final = b"\x67payload"
_UNSIGNED, _NEGATIVE, _BYTES = 0, 1, 2
_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}


class Outgoing(NamedTuple):
    """A task and when it was spooled, in nanoseconds since 1970."""

    task: SpooledTask
    timestamp: int


class TaskReader:
    """Reads payloads of frames; keeps what it has learned from one to the next."""

    def __init__(self) -> None:
        # By the bytes between time and key, and between key and payload.
        self._known: dict[tuple[bytes, bytes], SpooledTask | None] = {}

    def read(
        self, payloads: Sequence[bytes], payload_format: PayloadFormat, *, others: QueueName | None
    ) -> list[Outgoing]:
        """Return the tasks that payloads of frames hold.

        What is no task of ours becomes one of the queue ``others``, with the whole payload of its frame. Without
        such a queue the tasks before it are returned: fewer than there were payloads.
        """
        tasks = []
        is_cbor = payload_format is PayloadFormat.CBOR
        for payload in payloads:
            task = self._read_known(payload) if is_cbor else None
            if task is None:
                task = read_task(payload, payload_format)
            if task is None:
                if others is None:
                    break
                task = Outgoing(SpooledTask(others, 0, payload), 0)
            tasks.append(task)
        return tasks

    def _read_known(self, payload: bytes) -> Outgoing | None:
        """Return a task of the usual form, ``None`` if it may be of another."""
        end = payload.find(_PAYLOAD, _MIDDLE, _MIDDLE + MIDDLE_MAX) + len(_PAYLOAD)
        key_at = payload.find(_KEY, _MIDDLE, end) + len(_KEY)
        if key_at < _MIDDLE or end < key_at or not payload.startswith(_BEFORE_TIME):
            return None
        kind, number, behind_key = _head(payload, key_at)
        content, size, start = _head(payload, end)
        (timestamp,) = _TIME.unpack_from(payload, len(_BEFORE_TIME))
        is_usual = (
            kind in (_UNSIGNED, _NEGATIVE)
            and content == _BYTES
            and start + size == len(payload)
            and max(number, timestamp) <= INT64_MAX
        )
        if not is_usual:
            return None
        around = payload[_MIDDLE:key_at], payload[behind_key:end]
        like = self._known[around] if around in self._known else self._learn(around)
        if like is None:
            return None
        key = number if kind == _UNSIGNED else -1 - number
        task = SpooledTask(like.queue, key, payload[start:], like.delay_ms, like.ttl_ms)
        return Outgoing(task, timestamp)

    def _learn(self, around: tuple[bytes, bytes]) -> SpooledTask | None:
        """Return a task with these bytes around its key, if what stands there are key and payload indeed."""
        before, behind = around
        start = _BEFORE_TIME + _TIME.pack(0) + before
        one = read_task(start + b"\x00" + behind + b"\x40", PayloadFormat.CBOR)
        other = read_task(start + b"\x20" + behind + b"\x41z", PayloadFormat.CBOR)
        like = None if one is None else one.task
        if other is None or (other.task.key, other.task.payload) != (-1, b"z"):
            like = None
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[around] = like
        return like


def read_task(payload: bytes, payload_format: PayloadFormat) -> Outgoing | None:
    """Return the task that an event is, ``None`` for one of somebody else and for what is no event."""
    try:
        event = decode_event(payload, payload_format)
    except CorruptData:
        return None
    task = task_of(event)
    return None if task is None else Outgoing(task, event.timestamp)


def _head(payload: bytes, offset: int) -> tuple[int, int, int]:
    """Return what an item of CBOR is, its number, and where it goes on; (-1, 0, 0) for one that is none of ours."""
    if offset >= len(payload):
        return -1, 0, 0
    kind, number = payload[offset] >> 5, payload[offset] & 31
    if number < 24:
        return kind, number, offset + 1
    width = _WIDTHS.get(number)
    end = offset + 1 + (width or 0)
    if width is None or end > len(payload):
        return -1, 0, 0
    return kind, int.from_bytes(payload[offset + 1 : end], "big"), end
