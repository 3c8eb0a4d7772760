"""When the queues of a paged directory are flushed, and how often each rule did it (docs/formats/paged.md#flushes).

RabbitMQ's document on its queue index calls the rules A, B and C. A flush appends to a queue's segment files what only
memory, or only the journal, holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.storage.paged.queue_index import QueueIndex

IDLE_MS: Final = 1000
"""A queue without an action for this long is idle; RabbitMQ's queues hibernate after as long at the earliest."""

IDLE_FLUSHES_MAX: Final = 16
"""Idle queues that one call flushes: other requests wait meanwhile."""

MEMORY_FLUSHES_MAX: Final = 64
"""Queues that one action flushes to relieve memory: requests wait meanwhile."""


def steady_clock_ms() -> int:
    """Return milliseconds of a clock that is never set back."""
    return time.monotonic_ns() // 1_000_000


class FlushReason(StrEnum):
    """Why a queue was flushed."""

    IDLE = "idle"  # rule A: no action for a second
    COUNT = "count"  # rule B: too many actions since the last flush
    MEMORY = "memory"  # rule C: too many unflushed actions of all queues together
    CHECKPOINT = "checkpoint"


@dataclass(slots=True)
class _Dirty:
    """A queue with unflushed actions, as it was after the last of them."""

    queue: QueueIndex
    at_ms: int
    count: int
    size: int


class FlushRules:
    """Flushes queues by rule, and counts the flushes."""

    def __init__(self, *, memory: int, clock_ms: Callable[[], int]) -> None:
        """``memory``: the bytes that unflushed actions may take. ``clock_ms``: a steady clock."""
        self.counts = dict.fromkeys(FlushReason, 0)
        self._memory = memory
        self._clock_ms = clock_ms
        self._dirty: dict[int, _Dirty] = {}  # by number; the queue that acted longest ago is first
        self._dirty_count = 0  # unflushed actions of all queues
        self._dirty_size = 0  # and their bytes in memory

    @property
    def is_dirty(self) -> bool:
        """Whether some queue has actions since its last flush."""
        return bool(self._dirty)

    @property
    def dirty_max(self) -> int:
        """How many unflushed actions memory can hold: the budget by the measured size of one."""
        return self._memory * self._dirty_count // max(1, self._dirty_size)

    def note_actions(self, queue: QueueIndex) -> None:
        """Apply rules B and C after publishes, delivers or acks of a queue, and note the time for rule A."""
        self.forget(queue)
        if queue.needs_flush:
            self._flush(queue, FlushReason.COUNT)
        else:
            self._remember(queue, self._clock_ms())
            if self._dirty_count > self.dirty_max:
                self._relieve_memory()

    def flush_idle(self) -> int | None:
        """Apply rule A. Return in how many milliseconds to call again, ``None`` if no queue needs a flush."""
        now = self._clock_ms()
        for one in list(islice(self._dirty.values(), IDLE_FLUSHES_MAX)):
            if now - one.at_ms < IDLE_MS:
                break
            self._flush(one.queue, FlushReason.IDLE)
        for one in self._dirty.values():
            return max(0, one.at_ms + IDLE_MS - now)
        return None

    def flush_all(self, reason: FlushReason) -> None:
        """Flush every queue with unflushed actions."""
        for one in list(self._dirty.values()):
            self._flush(one.queue, reason)

    @property
    def total(self) -> int:
        """Flushes for all reasons together."""
        return sum(self.counts.values())

    def note_checkpoint(self) -> None:
        """Count the queues that the begin of a checkpoint flushed."""
        for one in list(self._dirty.values()):
            if not one.queue.dirty_count:
                self._count(one.queue, FlushReason.CHECKPOINT)

    def forget(self, queue: QueueIndex) -> None:
        """Drop a queue, which was flushed or deleted."""
        one = self._dirty.pop(queue.number, None)
        if one is not None:
            self._dirty_count -= one.count
            self._dirty_size -= one.size

    def _remember(self, queue: QueueIndex, at_ms: int) -> None:
        if not queue.dirty_count:
            return
        one = _Dirty(queue, at_ms, queue.dirty_count, queue.dirty_size)
        self._dirty[queue.number] = one
        self._dirty_count += one.count
        self._dirty_size += one.size

    def _relieve_memory(self) -> None:
        """Flush the dirtiest queues until a quarter of what memory can hold is free, or as many as may be."""
        for one in list(self._dirty.values()):  # a read may have written what waited
            self.forget(one.queue)
            self._remember(one.queue, one.at_ms)
        most = self.dirty_max
        if self._dirty_count <= most:
            return
        dirtiest = nlargest(MEMORY_FLUSHES_MAX, self._dirty.values(), key=attrgetter("count"))
        for one in dirtiest:
            if self._dirty_count <= most - most // 4:
                break
            self._flush(one.queue, FlushReason.MEMORY)

    def _flush(self, queue: QueueIndex, reason: FlushReason) -> None:
        queue.flush()
        self._count(queue, reason)

    def _count(self, queue: QueueIndex, reason: FlushReason) -> None:
        self.counts[reason] += 1
        self.forget(queue)
