"""Housekeeping of a node's paged queues: idle queues are flushed, and the store is merged while the node is idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.server.node import Node
from penstock.storage.paged.task_pages import TaskShelf

IDLE_SECONDS: Final = 1.0
"""A node that has applied nothing for this long is idle."""

PAUSE_SECONDS: Final = 0.005
"""Between two steps of the same work, so that requests are served meanwhile."""


class IdleFlush:
    """Flushes each paged queue that is idle, whatever the others do, and merges when the whole node is idle."""

    def __init__(
        self, node: Node, call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._node = node
        self._call_later = call_later
        self._applied = 0  # batches that were applied so far
        self._is_waiting = False  # whether a call of ``_look`` is scheduled
        if node.shelf is not None:
            node.replica.after_apply.append(self._note)
            if node.shelf.is_dirty:  # by the log that the start replayed
                self._wait(node.shelf, IDLE_SECONDS)

    def _note(self) -> None:
        self._applied += 1
        shelf = self._node.shelf
        if not self._is_waiting and shelf is not None and shelf.is_in_use:
            self._wait(shelf, IDLE_SECONDS)

    def _wait(self, shelf: TaskShelf, seconds: float) -> None:
        self._is_waiting = True
        seen = self._applied
        self._call_later(seconds, lambda: self._look(shelf, seen))

    def _look(self, shelf: TaskShelf, seen: int) -> None:
        self._is_waiting = False
        if self._node.replica.failure is not None:
            return
        wait_ms = shelf.flush_idle()
        if wait_ms is not None:
            self._wait(shelf, max(PAUSE_SECONDS, wait_ms / 1000))
        elif seen != self._applied or shelf.merge():
            self._wait(shelf, IDLE_SECONDS)
