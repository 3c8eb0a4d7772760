"""The leader's books: the queues as they are and as they will be, and how a change gets into the log."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.formats.taskflux.deltas import encode_adds, encode_delta, encode_removals
from penstock.formats.taskflux.extensions import IDS_MAX, encode_extension
from penstock.formats.taskflux.generation import Generation
from penstock.model import (
    NO_LIMITS,
    NO_TERMS,
    Adding,
    Policy,
    QueueName,
    RemoveEqualTask,
    Removing,
    Terms,
)
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure, Outcome
from penstock.queues.deadlines import Deadlines
from penstock.queues.queue import Queue
from penstock.server import operations
from penstock.server.caller import Caller
from penstock.server.consumers import Consumer, Line
from penstock.server.replica import Replica
from penstock.server.settings import Limits


@dataclass(slots=True)
class Counters:
    """What happened to a queue since the node started."""

    enqueued: int = 0
    delivered: int = 0
    acked: int = 0
    returned: int = 0
    expired: int = 0
    dead_lettered: int = 0
    purged: int = 0
    line: Line = field(default_factory=Line)  # who waits for its tasks and has room
    consumers: dict[Consumer, None] = field(default_factory=dict)  # all who wait or subscribe


class Books:
    """What every decision needs: finding queues, judging by policy, proposing changes."""

    def __init__(self, replica: Replica, clock: Callable[[], int], limits: Limits) -> None:
        """``clock`` returns milliseconds since 1970."""
        self.replica = replica
        self.limits = limits
        self._clock = clock
        self.touched: list[Caller] = []  # callers with answers that were not sent yet
        self._open()

    def _open(self) -> None:
        """Begin the books anew from the state: with a leader's term, or with the node that is alone."""
        self._state = self.replica.state
        self._counters: dict[int, Counters] = {n: Counters() for n in self._state.by_number}
        self._hungry: dict[int, Queue] = {}  # queues with something new for those who wait
        # When a queue next has a task that is due or expires, by its number; maybe too early, never too late.
        self._timed = Deadlines()
        for queue in self._state.queues():
            self._watch(queue)
        # Requests of producers on their way into the log.
        self._producing: dict[tuple[bytes, int], operations.Add] = {}

    def leader_refusal(self) -> v2.Failed | None:
        """Return why nothing can be asked of this node now, ``None`` if it can."""
        return self.replica.refusal()

    def _find(self, name: QueueName) -> Queue | None:
        queue = self._state.by_name.get(name)
        return None if queue is None or queue.is_doomed else queue

    def _missing(self, caller: Caller, number: int, name: QueueName) -> None:
        text = f"queue {name!r} does not exist; create it first"
        self._answer(caller, number, v2.Failed(Failure.QUEUE_MISSING, text))

    def _answer(self, caller: Caller, number: int, answer: v2.Answer) -> None:
        """Answer from the state as it is: once it is sure that this is the state of the group."""
        if self.replica.is_alone:
            caller.answer(number, answer)
        else:
            self._confirm(lambda: caller.answer(number, answer), caller, number)

    def _confirm(self, call: Callable[[], None], caller: Caller, number: int) -> None:
        """Call when it is sure that nobody else has led since; else say who does."""
        self.replica.confirm(call, lambda failed: caller.answer(number, failed))

    def policy_of(self, name: QueueName) -> Policy:
        queue = self._state.by_name.get(name)
        return NO_LIMITS if queue is None else queue.policy

    def flush(self) -> None:
        """Send what was answered: one write for each caller."""
        touched, self.touched = self.touched, []
        for caller in touched:
            caller.flush()

    def _judge(self, queue: Queue, keys: Sequence[int], payloads: Sequence[bytes]) -> int:
        """Return what a queue's policy says of a batch, which is taken whole or not at all."""
        policy, count = queue.policy, len(keys)
        if policy.size_max is not None and self._limited(queue) + count > policy.size_max:
            return Outcome.QUEUE_FULL
        if policy.keys is not None and not policy.keys.hold(keys):
            return Outcome.KEY_OUT_OF_RANGE
        size_max = self.limits.payload_size_max
        if policy.payload_size_max is not None:
            size_max = min(size_max, policy.payload_size_max)
        if count and max(map(len, payloads)) > size_max:
            return Outcome.PAYLOAD_TOO_LARGE
        return Outcome.ACCEPTED

    def _limited(self, queue: Queue) -> int:
        """Return how many tasks count against a queue's size limit.

        In a TaskFlux directory those are the waiting ones only, as with TaskFlux. Elsewhere leased tasks count too, so
        that tasks that are returned never exceed the limit.
        """
        count = len(queue) + queue.proposed
        return count if self.replica.generation is Generation.THREE else count - len(queue.out)

    def _encode_adds(
        self, queue: Queue, keys: Sequence[int], payloads: Sequence[bytes], terms: Terms
    ) -> list[bytes]:
        entries = encode_adds(queue.name, keys, payloads)
        if terms is not NO_TERMS:
            entries.insert(0, encode_extension(Adding(count=len(keys), terms=terms)))
        return entries

    def _encode_removals(self, queue: Queue, ids: Sequence[int]) -> list[bytes]:
        if self.replica.generation is Generation.THREE:
            return encode_removals(queue.name, ids)
        entries: list[bytes] = []
        for start in range(0, len(ids), IDS_MAX):
            part = tuple(ids[start : start + IDS_MAX])
            entries.append(encode_extension(Removing(ids=part)))
            for task_id in part:
                task = queue.tasks.get(task_id)
                assert task is not None, "what is out is still there"
                entries.append(
                    encode_delta(RemoveEqualTask(queue=queue.name, key=task[0], payload=task[1]))
                )
        return entries

    def _propose_removal(self, queue: Queue, ids: Sequence[int], what: str) -> None:
        operation = operations.Remove(self, [(queue, ids)], what)
        self.replica.propose(self._encode_removals(queue, ids), operation)

    def _move(
        self, queue: Queue, ids: Sequence[int], target: Queue | None, what: str
    ) -> frozenset[int]:
        """Move tasks to another queue and return the ids of those that it takes.

        They are added before they are removed: a crash between the two doubles a task, and loses none.
        """
        tasks = [task for task_id in ids if (task := queue.tasks.get(task_id)) is not None]
        keys, payloads = [key for key, _ in tasks], [payload for _, payload in tasks]
        if target is None:
            return frozenset()
        if self._judge(target, keys, payloads) != Outcome.ACCEPTED:
            # One that does not fit must not keep the others from their place.
            single = [(task_id,) for task_id in ids] if len(ids) > 1 else []
            return frozenset().union(*[self._move(queue, one, target, what) for one in single])
        added = operations.Add(self, target, keys, payloads, NO_TERMS, None, 0)
        self.replica.propose(encode_adds(target.name, keys, payloads), added)
        self._propose_removal(queue, ids, what)
        return frozenset(ids)

    def note_added(self, queue: Queue, count: int, terms: Terms) -> None:
        self._counters[queue.number].enqueued += count
        self._hungry[queue.number] = queue
        if terms.not_before_ms is not None or terms.expires_ms is not None:
            self._watch(queue)

    def note_returned(self, queue: Queue, count: int, not_before_ms: int | None) -> None:
        if queue.number in self._counters:
            self._counters[queue.number].returned += count
            self._hungry[queue.number] = queue
            if not_before_ms is not None or len(queue.expiring):
                self._watch(queue)

    def _watch(self, queue: Queue) -> None:
        """Note when the clock next concerns a queue: thousands of them must not be asked each time."""
        times = [time for time in (queue.delayed.next(), queue.expiring.next()) if time is not None]
        if not times:
            self._timed.discard(queue.number)
        elif self._timed.get(queue.number) != min(times):
            self._timed.set(queue.number, min(times))

    def count(self, queue: Queue, what: str, count: int) -> None:
        """Add to one of a queue's counters."""
        counters = self._counters.get(queue.number)
        if counters is not None:
            setattr(counters, what, getattr(counters, what) + count)

    def _produced(self, runs: Iterable[tuple[int, int]]) -> v2.Enqueued:
        return v2.Enqueued([v2.Run(Outcome.ACCEPTED, count, first) for first, count in runs])

    def finish_produced(self, producer: bytes, sequence: int) -> v2.Enqueued:
        """Return the answer to a request that is whole now."""
        self._producing.pop((producer, sequence), None)
        taken = self._state.producers.find(producer, sequence)
        assert taken is not None, "what was just taken is remembered"
        return self._produced(taken.runs)
