"""The tasks of one queue, in the order of delivery: smallest key first, first in first out within a key.

The id of a task, given when it is added, is its place among equals; it never changes, so order
survives everything that keeps the ids.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from penstock.errors import ReplayConflict
from penstock.model import Implementation, Policy, QueueHead, QueueName, TaskId


class QueueContents:
    """The tasks of one queue. Indexes by value and by order exist only once they are used."""

    __slots__ = ("_by_value", "_has_index", "_heap", "last_id", "name", "policy", "tasks")

    def __init__(self, name: QueueName, policy: Policy, last_id: int = 0) -> None:
        self.name = name
        self.policy = policy
        self.last_id = last_id
        # id -> (key, payload); ids are added in growing order.
        self.tasks: dict[int, tuple[int, bytes]] = {}
        self._has_index = False  # whether one of the next two exists
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

    def by_age(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) in the order of ids: the order that snapshots are written in."""
        for task_id in sorted(self.tasks):
            key, payload = self.tasks[task_id]
            yield task_id, key, payload

    def in_order(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) in the order of delivery."""
        for key, task_id in sorted((key, task_id) for task_id, (key, _) in self.tasks.items()):
            yield task_id, key, self.tasks[task_id][1]
