"""When the queues of a paged directory are flushed, and how often each rule did it (docs/formats/paged.md#flushes).

RabbitMQ's document on its queue index calls the rules A, B and C. A flush appends to a queue's segment files what only
memory, or only the journal, holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.storage.queue_index import QueueIndex

IDLE_MS: Final = 1000
"""A queue without an action for this long is idle; RabbitMQ's queues hibernate after as long at the earliest."""

IDLE_FLUSHES_MAX: Final = 16
"""Idle queues that one call flushes: other requests wait meanwhile."""


def steady_clock_ms() -> int:
    """Return milliseconds of a clock that is never set back."""
    return time.monotonic_ns() // 1_000_000


class FlushReason(StrEnum):
    """Why a queue was flushed."""

    IDLE = "idle"  # rule A: no action for a second
    COUNT = "count"  # rule B: too many actions since the last flush
    CHECKPOINT = "checkpoint"


class FlushRules:
    """Flushes queues by rule, and counts the flushes."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """``clock_ms``: a steady clock."""
        self.counts = dict.fromkeys(FlushReason, 0)
        self._clock_ms = clock_ms
        # Queues with unflushed actions, by number, and the time of the last action: longest ago first.
        self._dirty: dict[int, tuple[QueueIndex, int]] = {}

    def note_actions(self, queue: QueueIndex) -> None:
        """Apply rule B after publishes, delivers or acks of a queue, and note the time for rule A."""
        self.forget(queue)
        self._dirty[queue.number] = (queue, self._clock_ms())
        if queue.needs_flush:
            self._flush(queue, FlushReason.COUNT)

    def flush_idle(self) -> int | None:
        """Apply rule A. Return in how many milliseconds to call again, ``None`` if no queue needs a flush."""
        now = self._clock_ms()
        for queue, at in list(self._dirty.values())[:IDLE_FLUSHES_MAX]:
            if now - at < IDLE_MS:
                break
            self._flush(queue, FlushReason.IDLE)
        for _, at in self._dirty.values():
            return max(0, at + IDLE_MS - now)
        return None

    @property
    def is_dirty(self) -> bool:
        """Whether some queue has actions since its last flush."""
        return bool(self._dirty)

    def note_checkpoint(self) -> None:
        """Count the queues that the begin of a checkpoint flushed."""
        for queue, _ in list(self._dirty.values()):
            if not queue.dirty_count:
                self._count(queue, FlushReason.CHECKPOINT)

    def forget(self, queue: QueueIndex) -> None:
        """Drop a queue that was deleted."""
        self._dirty.pop(queue.number, None)

    def _flush(self, queue: QueueIndex, reason: FlushReason) -> None:
        queue.flush()
        self._count(queue, reason)

    def _count(self, queue: QueueIndex, reason: FlushReason) -> None:
        self.counts[reason] += 1
        self.forget(queue)
