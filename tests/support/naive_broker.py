"""What a node holds and answers, the slow and obvious way: lists, searched from the front.

It shares no code with ``penstock.queues`` and ``penstock.server``; the broker is held to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model import DEFAULT_QUEUE, NO_LIMITS, NO_OPTIONS, Policy, QueueName, QueueOptions

Ids = list[int]


@dataclass
class NaiveTask:
    id: int
    key: int
    payload: bytes
    attempts: int = 0
    not_before: int = 0
    expires: int | None = None
    token: int | None = None  # of the lease that it is out on
    owner: object = None
    deadline: int = 0


@dataclass
class NaiveQueue:
    name: QueueName
    number: int
    policy: Policy = NO_LIMITS
    options: QueueOptions = NO_OPTIONS
    counts_leased: bool = True  # against the size limit
    last_id: int = 0
    tasks: list[NaiveTask] = field(default_factory=list)

    def add(self, key: int, payload: bytes, **terms: int | None) -> NaiveTask:
        self.last_id += 1
        task = NaiveTask(self.last_id, key, payload, **terms)  # type: ignore[arg-type]
        self.tasks.append(task)
        return task

    def ready(self, now: int) -> list[NaiveTask]:
        found = [t for t in self.tasks if t.token is None and t.not_before <= now]
        return sorted(found, key=lambda task: (task.key, task.id))

    def outcome(self, keys: Ids, payloads: list[bytes]) -> int:
        """Return the code of the first policy that a batch violates, 0 for none."""
        policy = self.policy
        counted = [t for t in self.tasks if t.token is None or self.counts_leased]
        if policy.size_max is not None and len(counted) + len(keys) > policy.size_max:
            return 1
        if policy.keys is not None and not all(
            policy.keys.lowest <= key <= policy.keys.highest for key in keys
        ):
            return 2
        if policy.payload_size_max is not None and any(
            len(payload) > policy.payload_size_max for payload in payloads
        ):
            return 3
        return 0


@dataclass
class Request:
    """A producer's request that was taken."""

    queue: NaiveQueue
    keys: Ids
    payloads: list[bytes]
    first: int


class NaiveBroker:
    """All queues and producers."""

    def __init__(self, *, counts_leased: bool) -> None:
        self.counts_leased = counts_leased
        self.queues: dict[QueueName, NaiveQueue] = {DEFAULT_QUEUE: NaiveQueue(DEFAULT_QUEUE, 0)}
        self.next_number = 1
        self.requests: dict[tuple[bytes, int], Request] = {}
        # Dead letters whose ids are not known yet: the order among several queues is the node's.
        self.buried: list[tuple[QueueName, int, bytes]] = []

    def create(self, name: QueueName, policy: Policy, options: QueueOptions) -> None:
        self.queues[name] = NaiveQueue(name, self.next_number, policy, options, self.counts_leased)
        self.next_number += 1

    def users_of(self, name: QueueName) -> list[QueueName]:
        return [q.name for q in self.queues.values() if q.options.dead_letter == name]

    def find(self, token: int) -> tuple[NaiveQueue, NaiveTask] | None:
        for queue in self.queues.values():
            for task in queue.tasks:
                if task.token == token:
                    return queue, task
        return None

    def leased(self) -> list[tuple[NaiveQueue, NaiveTask]]:
        return [(q, t) for q in self.queues.values() for t in q.tasks if t.token is not None]

    def fail(
        self, queue: NaiveQueue, task: NaiveTask, not_before: int = 0, key: int | None = None
    ) -> None:
        """Bring a task back after a delivery that failed."""
        task.token = task.owner = None
        limit = queue.options.attempts_max
        if limit is not None and task.attempts + 1 >= limit:
            self._bury(queue, task)
        elif key is not None:
            queue.tasks.remove(task)
            queue.add(
                key,
                task.payload,
                attempts=task.attempts + 1,
                not_before=not_before,
                expires=task.expires,
            )
        else:
            task.attempts += 1
            task.not_before = not_before

    def _bury(self, queue: NaiveQueue, task: NaiveTask) -> None:
        queue.tasks.remove(task)
        if queue.options.dead_letter is not None:
            self.buried.append((queue.options.dead_letter, task.key, task.payload))

    def tick(self, now: int) -> None:
        """Let leases and tasks end whose time is over."""
        for queue, task in self.leased():
            if task.deadline <= now:
                self.fail(queue, task)
        for queue in self.queues.values():
            for task in list(queue.tasks):
                if task.token is None and task.expires is not None and task.expires <= now:
                    self._bury(queue, task)

    def restart(self) -> None:
        """Forget what only a leader knows."""
        for _, task in self.leased():
            task.token = task.owner = None

    def adopt(self, name: QueueName, ids: list[tuple[int, int, bytes]]) -> None:
        """Take over the ids that dead letters got; they must be exactly those that were buried."""
        queue = self.queues[name]
        for task_id, key, payload in ids:
            if task_id > queue.last_id:
                self.buried.remove((name, key, payload))
                assert queue.add(key, payload).id == task_id
