"""What queues hold, the slow and obvious way: the model that replay is held to.

Lists in the order of arrival, searched from the front. It shares no code with ``penstock.queues``.
"""

from __future__ import annotations

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

    def add(self, key: int, payload: bytes) -> None:
        self.last_id += 1
        self.tasks.append((self.last_id, key, payload))

    def in_order(self) -> list[tuple[int, int, bytes]]:
        return sorted(self.tasks, key=lambda task: (task[1], task[0]))


class NaiveQueues:
    """All queues; the default one is always there."""

    def __init__(self) -> None:
        self.queues = {DEFAULT_QUEUE: NaiveQueue()}

    def after(self, change: Change) -> Self:
        """Return a copy to which one more change is applied."""
        copy = deepcopy(self)
        copy.apply(change)
        return copy

    def apply(self, change: Change) -> None:
        match change:
            case CreateQueue():
                self.queues[change.queue] = NaiveQueue(change.policy)
            case DeleteQueue() | DeleteCommand():
                self.queues.pop(change.queue, None)
                self.queues.setdefault(DEFAULT_QUEUE, NaiveQueue())
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
                self.queues.setdefault(change.queue, NaiveQueue(Policy(size_max=change.size_max)))
            case CreateWithPolicy():
                self.queues.setdefault(change.queue, NaiveQueue(change.policy))
            case Enqueue():
                queue = self.queues.get(change.queue)
                if queue and _takes(queue, change):
                    queue.add(change.key, change.payload)
            case Dequeue():
                if change.queue in self.queues:
                    self._drop(change.queue, self.queues[change.queue].in_order())
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
                list(queue.tasks),
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
