"""The tasks of one queue, in the order of delivery: smallest key first, first in first out within a key.

The id of a task, given when it is added, is its place among equals; it never changes, so order
survives everything that keeps the ids. Only variants 1a and 1b of TaskFlux deliver equal keys in another order,
that of ``ArrayHeap``.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from penstock.errors import ReplayConflict
from penstock.model import Implementation, Policy, QueueHead, QueueName, TaskId
from penstock.queues.array_heap import ArrayHeap


class QueueContents:
    """The tasks of one queue. Indexes by value and by order exist only once they are used."""

    __slots__ = (
        "_array_heap",
        "_by_array_heap",
        "_by_value",
        "_has_index",
        "_heap",
        "last_id",
        "name",
        "policy",
        "tasks",
    )

    def __init__(
        self, name: QueueName, policy: Policy, last_id: int = 0, *, by_array_heap: bool = False
    ) -> None:
        """Begin without tasks. ``by_array_heap``: tasks leave in the order of variants 1a and 1b."""
        self.name = name
        self.policy = policy
        self.last_id = last_id
        self._by_array_heap = by_array_heap
        self._array_heap: ArrayHeap | None = None
        # id -> (key, payload); ids are added in growing order.
        self.tasks: dict[int, tuple[int, bytes]] = {}
        self._has_index = False  # whether one of the indexes exists
        # (key, payload) -> ids, oldest first; may still name tasks that are gone.
        self._by_value: dict[tuple[int, bytes], deque[int]] | None = None
        # (key, id) of all tasks; may still name tasks that are gone.
        self._heap: list[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def is_paged(self) -> bool:
        return self.policy.implementation is Implementation.PAGED

    @property
    def head(self) -> QueueHead:
        return QueueHead(
            name=self.name, policy=self.policy, last_id=TaskId(self.last_id), count=len(self.tasks)
        )

    def add(self, key: int, payload: bytes) -> int:
        """Put a task behind all others of its key and return its id."""
        task_id = self.last_id = self.last_id + 1
        self.tasks[task_id] = (key, payload)
        if self._has_index:
            self._index(task_id, key, payload)
        return task_id

    def restore(self, task_id: int, key: int, payload: bytes) -> None:
        """Put a task back under the id it had. Raises ``ReplayConflict`` if the id is taken."""
        if task_id in self.tasks:
            raise ReplayConflict(f"id {task_id} stands twice in queue {self.name!r}")
        self.tasks[task_id] = (key, payload)
        if self._has_index:
            self._index(task_id, key, payload)

    def _index(self, task_id: int, key: int, payload: bytes) -> None:
        if self._by_value is not None:
            ids = self._by_value.setdefault((key, payload), deque())
            if ids and task_id < ids[-1]:  # only a task that is restored is older than its equals
                insort(ids, task_id)
            else:
                ids.append(task_id)
        if self._heap is not None:
            heappush(self._heap, (key, task_id))
        if self._array_heap is not None:
            self._array_heap.put(key, task_id)

    def remove(self, task_id: int) -> tuple[int, bytes] | None:
        """Take out the task with this id and return its key and payload, or ``None``."""
        return self.tasks.pop(task_id, None)

    def remove_equal(self, key: int, payload: bytes) -> int | None:
        """Take out the oldest task with this key and payload and return its id, or ``None``."""
        if self._by_value is None:
            self._by_value = {}
            self._has_index = True
            for task_id in sorted(self.tasks):
                self._by_value.setdefault(self.tasks[task_id], deque()).append(task_id)
        ids = self._by_value.get((key, payload))
        while ids:
            task_id = ids.popleft()
            if not ids:
                del self._by_value[key, payload]
            if self.tasks.pop(task_id, None) is not None:
                return task_id
        return None

    def pop(self) -> tuple[int, int, bytes] | None:
        """Take out the first task and return its id, key and payload, or ``None`` if there is none."""
        if self._by_array_heap:
            return self._pop_array_heap()
        if self._heap is None:
            self._heap = [(key, task_id) for task_id, (key, _) in self.tasks.items()]
            heapify(self._heap)
            self._has_index = True
        while self._heap:
            key, task_id = heappop(self._heap)
            task = self.tasks.pop(task_id, None)
            if task is not None:
                return task_id, key, task[1]
        return None

    def _pop_array_heap(self) -> tuple[int, int, bytes] | None:
        heap = self._filled_heap()
        while (node := heap.take()) is not None:
            key, task_id = node
            task = self.tasks.pop(task_id, None)
            if task is not None:
                return task_id, key, task[1]
        return None

    def _filled_heap(self) -> ArrayHeap:
        """Return the array heap; made of the tasks in the order in which they came, before any was taken."""
        if self._array_heap is None:
            self._array_heap = ArrayHeap((key, number) for number, (key, _) in self.tasks.items())
            self._has_index = True
        return self._array_heap

    def for_snapshot(self, *, as_array: bool) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) so that a reader of the snapshot delivers them in the order of this queue.

        A reader that keeps ids delivers by them, so tasks of an array heap are numbered again, in the order of
        delivery. ``as_array``: the reader is of variant 1a or 1b, and fills an array heap in the order of the file.
        """
        if not self._by_array_heap:
            yield from self.by_age()
            return
        nodes = self._filled_heap().nodes if as_array else self._filled_heap().drain()
        left = (task_id for _, task_id in nodes if task_id in self.tasks)
        for number, task_id in enumerate(left, 1):
            yield number, *self.tasks[task_id]

    def by_age(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) in the order of ids: the order that snapshots are written in."""
        for task_id in sorted(self.tasks):
            key, payload = self.tasks[task_id]
            yield task_id, key, payload

    def in_order(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) in the order of delivery."""
        if self._by_array_heap:
            for _, task_id in self._filled_heap().drain():
                if task_id in self.tasks:
                    yield task_id, *self.tasks[task_id]
            return
        for key, task_id in sorted((key, task_id) for task_id, (key, _) in self.tasks.items()):
            yield task_id, key, self.tasks[task_id][1]
