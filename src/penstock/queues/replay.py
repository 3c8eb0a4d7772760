"""All queues, rebuilt from a snapshot and the changes after it.

Deltas are results: they are applied without asking a policy, and one that contradicts the state is
damage. Commands are requests: they are decided here anew, as the node that logged them did.
"""

from __future__ import annotations

from typing import assert_never

from penstock.errors import ReplayConflict
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
from penstock.queues.contents import QueueContents


class Queues:
    """The state of all queues. A new one holds the default queue alone."""

    __slots__ = ("_by_array_heap", "by_name")

    def __init__(self, *, by_array_heap: bool = False) -> None:
        """Begin empty. ``by_array_heap``: tasks leave in the order of variants 1a and 1b."""
        self._by_array_heap = by_array_heap
        self.by_name: dict[QueueName, QueueContents] = {}
        self._begin(DEFAULT_QUEUE, NO_LIMITS)

    def _begin(self, name: QueueName, policy: Policy, last_id: int = 0) -> QueueContents:
        queue = QueueContents(name, policy, last_id, by_array_heap=self._by_array_heap)
        self.by_name[name] = queue
        return queue

    # Restoring a snapshot.

    def restore(self, head: QueueHead) -> QueueContents:
        """Begin a queue that a snapshot holds; its tasks are restored into the result."""
        return self._begin(head.name, head.policy, head.last_id)

    # Applying deltas.

    def apply(self, delta: Delta) -> None:
        """Apply one delta. Raises ``ReplayConflict`` if it contradicts the state."""
        match delta:
            case AddTask():
                self.add(delta.queue, delta.key, delta.payload)
            case RemoveTask():
                self.remove(delta.queue, delta.id)
            case RemoveEqualTask():
                self.remove_equal(delta.queue, delta.key, delta.payload)
            case CreateQueue():
                self.create(delta.queue, delta.policy)
            case DeleteQueue():
                self.delete(delta.queue)
            case _:
                assert_never(delta)

    def create(self, name: QueueName, policy: Policy) -> None:
        if name in self.by_name:
            raise ReplayConflict(f"queue {name!r} is created but exists")
        self._begin(name, policy)

    def delete(self, name: QueueName) -> None:
        """Drop a queue; deleting one that is missing has no effect, which is how logs say nothing."""
        if self.by_name.pop(name, None) is not None and name == DEFAULT_QUEUE:
            # It always exists; a log that deletes it can only mean its tasks.
            self._begin(name, NO_LIMITS)

    def add(self, name: QueueName, key: int, payload: bytes) -> int:
        queue = self.by_name.get(name)
        if queue is None:
            raise ReplayConflict(f"a task is added to queue {name!r}, which does not exist")
        return queue.add(key, payload)

    def remove(self, name: QueueName, task_id: int) -> tuple[int, bytes]:
        """Remove by id and return key and payload; the format makes a missing id an error."""
        queue = self.by_name.get(name)
        if queue is None:
            raise ReplayConflict(f"a task is removed from queue {name!r}, which does not exist")
        task = queue.remove(task_id)
        if task is None:
            raise ReplayConflict(f"task {task_id} is removed from queue {name!r} but is not there")
        return task

    def remove_equal(self, name: QueueName, key: int, payload: bytes) -> int | None:
        """Remove the oldest equal task and return its id; ``None`` if there is none, which is allowed."""
        queue = self.by_name.get(name)
        if queue is None:
            raise ReplayConflict(f"a task is removed from queue {name!r}, which does not exist")
        return queue.remove_equal(key, payload)

    # Obeying commands.

    def obey(self, command: Command) -> Delta | None:
        """Decide a command as generation 1 does and return what changed, if anything did."""
        match command:
            case Enqueue():
                return self._enqueue(command)
            case Dequeue():
                queue = self.by_name.get(command.queue)
                taken = None if queue is None else queue.pop()
                return (
                    None if taken is None else RemoveTask(queue=command.queue, id=TaskId(taken[0]))
                )
            case CreateCommand():
                return self._create(command.queue, Policy(size_max=command.size_max))
            case CreateWithPolicy():
                return self._create(command.queue, command.policy)
            case DeleteCommand():
                # Clients of variants 1a and 1b could delete the default queue too; what they put in then was refused.
                if self.by_name.pop(command.queue, None) is None:
                    return None
                return DeleteQueue(queue=command.queue)
            case CountTasks() | ListQueues():
                return None
            case _:
                assert_never(command)

    def _create(self, name: QueueName, policy: Policy) -> CreateQueue | None:
        if name in self.by_name or name == DEFAULT_QUEUE:
            return None
        self.create(name, policy)
        return CreateQueue(queue=name, policy=policy)

    def _enqueue(self, command: Enqueue) -> AddTask | None:
        queue = self.by_name.get(command.queue)
        if queue is None or not _is_allowed(queue, command):
            return None
        queue.add(command.key, command.payload)
        return AddTask(queue=command.queue, key=command.key, payload=command.payload)


def _is_allowed(queue: QueueContents, command: Enqueue) -> bool:
    """Return whether a queue's policy lets a task in. Variants 1a and 1b know only the size limit."""
    policy = queue.policy
    if policy.size_max is not None and len(queue) >= policy.size_max:
        return False
    if policy.payload_size_max is not None and len(command.payload) > policy.payload_size_max:
        return False
    return policy.keys is None or policy.keys.lowest <= command.key <= policy.keys.highest
