"""What queues hold, the slow and obvious way: the model that replay is held to.

Lists in the order of arrival, searched from the front. It shares no code with ``penstock.queues``.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Self

from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    AddTask,
    Command,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    ListQueues,
    Policy,
    QueueHead,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)
from penstock.queues.array_heap import ArrayHeap
from support.taskflux_strategies import Queues

Listed = list[tuple[str, int, bytes]]
"""Tasks as ``penstock tasks`` lists them: (queue, key, payload)."""

Change = Delta | Command


@dataclass
class NaiveQueue:
    """A queue as a list of (id, key, payload), oldest first."""

    policy: Policy = NO_LIMITS
    last_id: int = 0
    tasks: list[tuple[int, int, bytes]] = field(default_factory=list)
    heap: ArrayHeap | None = None  # the tasks as variants 1a and 1b have them

    def add(self, key: int, payload: bytes) -> None:
        self.last_id += 1
        self.tasks.append((self.last_id, key, payload))
        if self.heap is not None:
            self.heap.put(key, self.last_id)

    def in_order(self) -> list[tuple[int, int, bytes]]:
        if self.heap is not None:
            return self._by_id(self.heap.drain())
        return sorted(self.tasks, key=lambda task: (task[1], task[0]))

    def stored(self) -> list[tuple[int, int, bytes]]:
        """Return the tasks in the order of a snapshot; what it stores no ids for is counted again."""
        return self.tasks if self.heap is None else self._by_id(self.heap.nodes)

    def _by_id(self, nodes: Iterable[tuple[int, int]]) -> list[tuple[int, int, bytes]]:
        tasks = {task[0]: task for task in self.tasks}
        return [tasks[task_id] for _, task_id in nodes]


class NaiveQueues:
    """All queues; only commands can delete the default one. ``by_heap``: tasks leave as in variants 1a and 1b."""

    def __init__(self, *, by_heap: bool = False) -> None:
        self.by_heap = by_heap
        self.queues = {DEFAULT_QUEUE: self._new(NO_LIMITS)}

    def _new(self, policy: Policy) -> NaiveQueue:
        return NaiveQueue(policy, heap=ArrayHeap() if self.by_heap else None)

    def _create(self, name: QueueName, policy: Policy) -> None:
        if name != DEFAULT_QUEUE:
            self.queues.setdefault(name, self._new(policy))

    def after(self, change: Change) -> Self:
        """Return a copy to which one more change is applied."""
        copy = deepcopy(self)
        copy.apply(change)
        return copy

    def apply(self, change: Change) -> None:
        match change:
            case CreateQueue():
                self.queues[change.queue] = self._new(change.policy)
            case DeleteQueue() | DeleteCommand():
                self.queues.pop(change.queue, None)
                if isinstance(change, DeleteQueue):
                    self.queues.setdefault(DEFAULT_QUEUE, self._new(NO_LIMITS))
            case AddTask():
                self.queues[change.queue].add(change.key, change.payload)
            case RemoveTask():
                self._drop(
                    change.queue, [t for t in self._tasks(change.queue) if t[0] == change.id]
                )
            case RemoveEqualTask():
                value = (change.key, change.payload)
                self._drop(change.queue, [t for t in self._tasks(change.queue) if t[1:] == value])
            case CreateCommand():
                self._create(change.queue, Policy(size_max=change.size_max))
            case CreateWithPolicy():
                self._create(change.queue, change.policy)
            case Enqueue():
                queue = self.queues.get(change.queue)
                if queue and _takes(queue, change):
                    queue.add(change.key, change.payload)
            case Dequeue():
                if change.queue in self.queues:
                    self._drop(change.queue, self.queues[change.queue].in_order())
                    heap = self.queues[change.queue].heap
                    if heap is not None:
                        heap.take()
            case CountTasks() | ListQueues():
                pass

    def _tasks(self, name: QueueName) -> list[tuple[int, int, bytes]]:
        return self.queues[name].tasks

    def _drop(self, name: QueueName, found: list[tuple[int, int, bytes]]) -> None:
        for task in found[:1]:
            self.queues[name].tasks.remove(task)

    def listed(self) -> Listed:
        """Return every task, queues by name, tasks in the order of delivery."""
        return [
            (str(name), key, payload)
            for name in sorted(self.queues)
            for _, key, payload in self.queues[name].in_order()
        ]

    def unordered(self) -> dict[str, tuple[Policy, list[tuple[int, bytes]]]]:
        """Return policy and tasks of each queue, in no order of delivery."""
        return {
            str(name): (queue.policy, sorted((key, payload) for _, key, payload in queue.tasks))
            for name, queue in self.queues.items()
        }

    def identified(self) -> list[tuple[str, int, int, bytes]]:
        """Return every task with its id, in the same order."""
        return [
            (str(name), *task)
            for name in sorted(self.queues)
            for task in self.queues[name].in_order()
        ]

    def stored(self) -> Queues:
        """Return heads and tasks as the snapshot encoder takes them."""
        return [
            (
                QueueHead(
                    name=name,
                    policy=queue.policy,
                    last_id=TaskId(queue.last_id),
                    count=len(queue.tasks),
                ),
                list(queue.stored()),
            )
            for name, queue in self.queues.items()
        ]


def _takes(queue: NaiveQueue, task: Enqueue) -> bool:
    policy = queue.policy
    return (
        (policy.size_max is None or len(queue.tasks) < policy.size_max)
        and (policy.payload_size_max is None or len(task.payload) <= policy.payload_size_max)
        and (policy.keys is None or policy.keys.lowest <= task.key <= policy.keys.highest)
    )
