"""The heap from which TaskFlux's first programs took tasks: .NET's ``PriorityQueue``, four children a node.

Variants 1a and 1b log a dequeue without naming its task, and this heap is not stable: which of several equal keys
leaves first depends on where its array has them. Replay must therefore repeat the array move by move
(docs/formats/commands.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Node = tuple[int, int]
"""(key, task id); only keys are compared."""


class ArrayHeap:
    """A 4-ary heap in an array. The children of place ``i`` are at ``4i + 1 … 4i + 4``."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        """Put nodes in, one by one in the order given."""
        self.nodes: list[Node] = []
        for key, task_id in nodes:
            self.put(key, task_id)

    def put(self, key: int, task_id: int) -> None:
        """Append a node and move it up while its key is strictly smaller than its parent's."""
        nodes = self.nodes
        place = len(nodes)
        nodes.append((key, task_id))
        while place > 0:
            parent = (place - 1) >> 2
            if key >= nodes[parent][0]:
                break
            nodes[place] = nodes[parent]
            place = parent
        nodes[place] = (key, task_id)

    def take(self) -> Node | None:
        """Remove the root and return it; the last node moves down from its place."""
        nodes = self.nodes
        if not nodes:
            return None
        root, last = nodes[0], nodes.pop()
        if nodes:
            self._move_down(last)
        return root

    def drain(self) -> Iterator[Node]:
        """Yield the nodes in the order in which ``take`` would return them; the heap stays as it is."""
        copy = ArrayHeap()
        copy.nodes = self.nodes.copy()
        while (node := copy.take()) is not None:
            yield node

    def _move_down(self, node: Node) -> None:
        nodes, place = self.nodes, 0
        while (first := 4 * place + 1) < len(nodes):
            smallest = min(range(first, min(first + 4, len(nodes))), key=lambda i: nodes[i][0])
            if node[0] <= nodes[smallest][0]:
                break
            nodes[place] = nodes[smallest]
            place = smallest
        nodes[place] = node
