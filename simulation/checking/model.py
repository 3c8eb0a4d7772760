"""Queues as a user sees them, one operation after the other: what a right answer is.

Plain rather than fast, and written without a look at the product's own queues: a mistake in those must not be
here too. Time, delays, expiry, numbers of attempts and dead letters are not modelled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Final, assert_never

from penstock.model import NO_LIMITS, Policy
from simulation.checking.history import (
    Op,
    Operation,
    Outcome,
    Process,
    Refusal,
    TaskName,
)

DEFAULT_QUEUE: Final = ""

Place = tuple[int, int]
"""Key, and how many tasks were added before: the order of delivery. A task keeps its place for life."""

Holder = tuple[Process, TaskName | None]
"""Who has a task on lease: a process, and the lease's token where there is one."""

_JUDGED: Final = frozenset(Refusal)
_SETTLING: Final = frozenset({Op.ACK, Op.NACK})
_EVERYWHERE: Final = frozenset({Op.DISCONNECT, Op.LEAD})  # they concern all queues, and ask nobody


class ModelQueue:
    """One queue: tasks that wait, and tasks on lease."""

    __slots__ = ("last_number", "leases", "numbers", "policy", "waiting")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.waiting: list[tuple[Place, TaskName]] = []  # a heap: the next one is the first
        self.leases: dict[TaskName, tuple[Place, Holder]] = {}
        self.numbers: dict[TaskName, int] = {}  # those that the node gave, as far as they are known
        self.last_number = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.leases)

    def copy(self) -> ModelQueue:
        other = ModelQueue(self.policy)
        other.waiting = self.waiting.copy()
        other.leases = self.leases.copy()
        other.numbers = self.numbers.copy()
        other.last_number = self.last_number
        return other

    def state(self) -> Hashable:
        """Return all tasks in the order of their places, with their holders."""
        tasks: list[tuple[Place, TaskName, Holder | None]]
        tasks = [(place, name, None) for place, name in self.waiting]
        tasks += [(place, name, holder) for name, (place, holder) in self.leases.items()]
        tasks.sort()  # no two places are equal
        return tuple([(place[0], name, holder) for place, name, holder in tasks])

    def put_back(self, names: Iterable[TaskName]) -> None:
        """End the leases of these tasks, as far as there are any: each goes to its old place."""
        for name in names:
            lease = self.leases.pop(name, None)
            if lease is not None:
                heappush(self.waiting, (lease[0], name))


class Model:
    """All queues. ``apply`` is the whole interface; a complaint is returned, never raised."""

    def __init__(self, policies: Mapping[str, Policy] | None = None) -> None:
        """Begin with the default queue, or with queues of these policies."""
        known = {DEFAULT_QUEUE: NO_LIMITS} if policies is None else policies
        self._queues = {name: ModelQueue(policy) for name, policy in known.items()}
        self._added = 0  # gives places within a key
        self._produced: dict[tuple[str, int], tuple[TaskName, ...]] = {}

    def copy(self) -> Model:
        other = Model({})
        other._queues = {name: queue.copy() for name, queue in self._queues.items()}
        other._added = self._added
        other._produced = self._produced.copy()
        return other

    def state(self) -> Hashable:
        """Return a value that is equal for models which no further operation can tell apart.

        Without the numbers that the node gave: they judge answers, and steer none.
        """
        queues = tuple([(n, q.policy, q.state()) for n, q in sorted(self._queues.items())])
        return queues, frozenset(self._produced.items())

    def apply(self, operation: Operation) -> str | None:
        """Do what an operation asks for; return what is wrong with its answer, ``None`` if nothing is.

        A wrong one may be done in part. One of unknown outcome does what it would have done if it is not refused; a
        dequeue of unknown outcome that names ids is judged as if it had been answered with them.
        """
        if operation.outcome is Outcome.FAIL:
            return self._judge_refusal(operation)
        if reasons := self._refusals(operation):
            return f"it should have been refused: {', '.join(sorted(reasons))}"
        match op := operation.op:
            case Op.ENQUEUE:
                return self._enqueue(operation)
            case Op.DEQUEUE:
                return self._dequeue(operation)
            case Op.ACK:
                for name in operation.ids:
                    del self._queues[operation.queue].leases[name]
            case Op.NACK | Op.LEASE_END:
                self._queues[operation.queue].put_back(operation.ids)
            case Op.PURGE:
                return self._purge(operation)
            case Op.CREATE:
                self._queues[operation.queue] = ModelQueue(operation.policy or NO_LIMITS)
            case Op.DELETE:
                del self._queues[operation.queue]
            case Op.LEAD:
                self.end_all_leases()
            case Op.DISCONNECT:
                self._disconnect(operation.process)
            case _:
                assert_never(op)
        return None

    def end_all_leases(self) -> None:
        """A new leader knows of no lease: every task is back in its place."""
        for queue in self._queues.values():
            queue.put_back(list(queue.leases))

    def _disconnect(self, process: Process) -> None:
        for queue in self._queues.values():
            queue.put_back([n for n, (_, holder) in queue.leases.items() if holder[0] == process])

    # Refusals: what must be refused, and what must not.

    def _judge_refusal(self, operation: Operation) -> str | None:
        if operation.reason not in _JUDGED:
            return None  # it was refused for what no queue knows of, such as who leads
        reasons = self._refusals(operation)
        if operation.reason in reasons:
            return None
        if reasons:
            return f"it was refused as {operation.reason}, and not as {', '.join(sorted(reasons))}"
        return f"it was refused as {operation.reason}, and should not have been"

    def _refusals(self, operation: Operation) -> set[str]:
        """Return every reason for which an operation is to be refused as things stand."""
        if operation.op in _EVERYWHERE:
            return set()
        queue = self._queues.get(operation.queue)
        if operation.op is Op.CREATE:
            return set() if queue is None else {Refusal.QUEUE_EXISTS}
        if operation.op is Op.ENQUEUE and self._is_repeated(operation):
            return set()  # its first answer is given again, whatever became of the queue
        if queue is None:
            # Its leases went with it, and a node that is asked about a lease looks for that alone.
            lost = {Refusal.LEASE_LOST} if operation.op in _SETTLING else set()
            return {Refusal.QUEUE_MISSING, *lost}
        if operation.op is Op.ENQUEUE:
            return self._policy_refusals(queue.policy, len(queue), operation)
        if operation.op in _SETTLING:
            is_held = all(
                (lease := queue.leases.get(name)) is not None and lease[1] == holder
                for name, holder in _holders(operation)
            )
            return set() if is_held else {Refusal.LEASE_LOST}
        return set()

    def _is_repeated(self, operation: Operation) -> bool:
        return self._new_names(operation) == ()

    def _new_names(self, operation: Operation) -> tuple[TaskName, ...]:
        """Return the tasks that a batch adds: not those that an earlier attempt added."""
        if operation.producer is None or operation.sequence is None:
            return operation.ids
        done = self._produced.get((operation.producer, operation.sequence), ())
        return tuple(name for name in operation.ids if name not in done) if done else operation.ids

    def _policy_refusals(self, policy: Policy, size: int, operation: Operation) -> set[str]:
        reasons: set[str] = set()
        count = size + len(self._new_names(operation))
        if policy.size_max is not None and count > policy.size_max:
            reasons.add(Refusal.QUEUE_FULL)
        if policy.keys is not None and not policy.keys.hold(operation.keys):
            reasons.add(Refusal.KEY_OUT_OF_RANGE)
        largest = max(operation.sizes, default=0)
        if policy.payload_size_max is not None and largest > policy.payload_size_max:
            reasons.add(Refusal.PAYLOAD_TOO_LARGE)
        return reasons

    # Changes that are not refused.

    def _enqueue(self, operation: Operation) -> str | None:
        new = self._new_names(operation)
        if operation.producer is not None and operation.sequence is not None:
            done = self._produced.get((operation.producer, operation.sequence), ())
            if not set(done).issubset(operation.ids):
                return "a repetition brought other tasks than the first attempt"
            self._produced[operation.producer, operation.sequence] = done + new
        queue = self._queues.get(operation.queue)
        if queue is None:
            return None  # a repetition, and the queue is gone
        if len(new) == len(operation.ids):
            added = zip(operation.ids, operation.keys, strict=True)
        else:
            keys = dict(zip(operation.ids, operation.keys, strict=True))
            added = zip(new, map(keys.__getitem__, new), strict=True)
        for name, key in added:
            self._added += 1
            heappush(queue.waiting, ((key, self._added), name))
        return self._judge_numbers(queue, operation, new) if operation.numbers else None

    def _dequeue(self, operation: Operation) -> str | None:
        queue = self._queues[operation.queue]
        if operation.outcome is Outcome.UNKNOWN and not operation.ids:
            for _ in range(min(operation.asked, len(queue.waiting))):
                place, name = heappop(queue.waiting)
                queue.leases[name] = (place, (operation.process, None))
            return None
        if not operation.ids:
            return f"task {queue.waiting[0][1]!r} was waiting" if queue.waiting else None
        if len(operation.ids) > operation.asked:
            return f"{len(operation.ids)} tasks were delivered, and {operation.asked} asked for"
        for (name, holder), key in zip(_holders(operation), _keys(operation), strict=True):
            if not queue.waiting:
                return f"task {name!r} was delivered from an empty queue"
            if queue.waiting[0][1] != name:
                return f"task {name!r} was delivered, and {queue.waiting[0][1]!r} was next"
            place, name = heappop(queue.waiting)
            queue.leases[name] = (place, holder)
            if key is not None and key != place[0]:
                return f"task {name!r} was delivered with key {key}, and came with {place[0]}"
        return self._judge_numbers(queue, operation, ()) if operation.numbers else None

    def _purge(self, operation: Operation) -> str | None:
        queue = self._queues[operation.queue]
        count = len(queue.waiting)
        queue.waiting.clear()
        if operation.count not in {None, count} and operation.outcome is Outcome.OK:
            return f"it removed {operation.count} tasks, and {count} were waiting"
        return None

    def _judge_numbers(
        self, queue: ModelQueue, operation: Operation, new: tuple[TaskName, ...]
    ) -> str | None:
        """Numbers that a node gives only grow, and a task keeps its own."""
        last = queue.last_number
        for name, number in zip(operation.ids, operation.numbers, strict=True):
            known = queue.numbers.setdefault(name, number)
            if known != number:
                return f"task {name!r} has number {known}, and was answered with {number}"
            if name in new and number <= last:
                return f"task {name!r} got number {number}, and {last} was given before"
            last = max(last, number)
        queue.last_number = last
        return None


def _holders(operation: Operation) -> Iterable[tuple[TaskName, Holder]]:
    """Return each task of an operation with whoever must have it on lease, or gets it."""
    tokens = operation.tokens or (None,) * len(operation.ids)
    return zip(operation.ids, [(operation.process, token) for token in tokens], strict=True)


def _keys(operation: Operation) -> tuple[int | None, ...]:
    return operation.keys or (None,) * len(operation.ids)
