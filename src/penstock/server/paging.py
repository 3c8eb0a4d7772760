"""What the pages of a node want done when nobody asks for anything: what is in memory only flushed, their garbage merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.server.node import Node
from penstock.storage.task_pages import TaskShelf

IDLE_SECONDS: Final = 1.0
"""A node that has applied nothing for so long is idle."""


class IdleFlush:
    """Tidies the pages up, a step at a time, as long as the node is idle."""

    def __init__(
        self, node: Node, call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._node = node
        self._call_later = call_later
        self._applied = 0  # batches that were applied so far
        self._is_waiting = False  # whether a look is on its way
        if node.shelf is not None:
            node.replica.after_apply.append(self._note)

    def _note(self) -> None:
        self._applied += 1
        shelf = self._node.shelf
        if not self._is_waiting and shelf is not None and shelf.is_in_use:
            self._wait(shelf)

    def _wait(self, shelf: TaskShelf) -> None:
        self._is_waiting = True
        seen = self._applied
        self._call_later(IDLE_SECONDS, lambda: self._look(shelf, seen))

    def _look(self, shelf: TaskShelf, seen: int) -> None:
        self._is_waiting = False
        if self._node.replica.failure is None and (seen != self._applied or shelf.tidy_up()):
            self._wait(shelf)
