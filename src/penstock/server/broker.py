"""Decides what a request means: policies, leases, who gets which task. The leader's books are here.

Decisions rest on the applied state and on what is on its way into the log, so that policies hold however many
requests arrive at once. Nothing is told before the replica says that it is committed; a dequeue changes nothing
that is stored, so it is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import InvalidValue
from penstock.formats.taskflux.deltas import encode_adds, encode_delta, encode_removals
from penstock.formats.taskflux.extensions import IDS_MAX, encode_extension
from penstock.formats.taskflux.generation import Generation
from penstock.model import (
    DEFAULT_QUEUE,
    LEASE_MS_MAX,
    NO_LIMITS,
    NO_OPTIONS,
    NO_TERMS,
    RESERVED_PREFIX,
    Adding,
    CreateQueue,
    Creating,
    DeleteQueue,
    Policy,
    QueueName,
    QueueOptions,
    RemoveEqualTask,
    Removing,
    Returning,
    Terms,
)
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure, Outcome
from penstock.queues.deadlines import Deadlines
from penstock.queues.leases import Lease, Leases
from penstock.queues.queue import Queue
from penstock.server import operations
from penstock.server.caller import Caller
from penstock.server.consumers import Consumer, Line
from penstock.server.replica import Replica
from penstock.server.settings import Limits

DELIVERY_COUNT_MAX: Final = 1024
DELIVERY_SIZE_MAX: Final = 2**20
"""What one delivery holds at most, but for a single task that is larger by itself."""

PURGE_COUNT_MAX: Final = 10_000
"""Removals proposed at a time: a purge of millions must not keep others waiting."""


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


class Broker:
    """The leader's view of all queues."""

    def __init__(self, replica: Replica, clock: Callable[[], int], limits: Limits) -> None:
        """``clock`` returns milliseconds since 1970."""
        self.replica = replica
        self.limits = limits
        self.leases = Leases(replica.group.term)
        self._state = replica.state
        self._clock = clock
        self._counters: dict[int, Counters] = {n: Counters() for n in self._state.by_number}
        self._hungry: dict[int, Queue] = {}  # queues with something new for those who wait
        self._timed: dict[int, Queue] = {  # queues with delayed or expiring tasks
            queue.number: queue
            for queue in self._state.queues()
            if len(queue.delayed) or len(queue.expiring)
        }
        self._creating: dict[QueueName, QueueOptions] = {}  # names on their way into the log
        self._producing: dict[tuple[bytes, int], operations.Add] = {}
        self._waiting: dict[
            int, Consumer
        ] = {}  # dequeues that wait for a time, by a number of ours
        self._patience = Deadlines()  # until when, by the same number
        self._next_waiting = 1
        self._reading: dict[int, Callable[[], None]] = {}  # reads that wait for the next entry
        self.touched: list[Caller] = []  # callers with answers that were not sent yet
        replica.after_apply.append(self._after_apply)

    def _after_apply(self) -> None:
        self.serve()
        for waiting in list(self._reading):
            self._patience.discard(waiting)
            self._reading.pop(waiting)()
        self.flush()

    def flush(self) -> None:
        """Send what was answered: one write for each caller."""
        touched, self.touched = self.touched, []
        for caller in touched:
            caller.flush()

    # --- finding, failing ------------------------------------------------------------------------

    def _find(self, name: QueueName) -> Queue | None:
        queue = self._state.by_name.get(name)
        return None if queue is None or queue.is_doomed else queue

    def _missing(self, caller: Caller, number: int, name: QueueName) -> None:
        text = f"queue {name!r} does not exist; create it first"
        caller.answer(number, v2.Failed(Failure.QUEUE_MISSING, text))

    def policy_of(self, name: QueueName) -> Policy:
        queue = self._state.by_name.get(name)
        return NO_LIMITS if queue is None else queue.policy

    # --- enqueue ---------------------------------------------------------------------------------

    def enqueue(self, caller: Caller, number: int, request: v2.Enqueue) -> None:
        queue = self._find(request.queue)
        if queue is None:
            if request.queue in self._creating:
                self._after_creation(lambda: self.enqueue(caller, number, request))
                return
            self._missing(caller, number, request.queue)
            return
        keys, payloads, done = request.keys, request.payloads, 0
        if request.producer is not None:
            found = self._find_produced(caller, number, queue, request)
            if found is None:
                return
            done = found
            keys, payloads = keys[done:], payloads[done:]
        count = len(keys)
        outcome = self._judge(queue, keys, payloads)
        if outcome or not count:
            run = v2.Run(outcome, len(request.keys), 0)
            caller.answer(number, v2.Enqueued((run,) if request.keys else ()))
            return
        terms = self._terms(request)
        operation = operations.Add(self, queue, keys, payloads, terms, caller, number)
        if terms.producer is not None:
            self._producing[terms.producer, terms.sequence] = operation
        self.replica.propose(self._encode_adds(queue, keys, payloads, terms), operation)

    def _find_produced(
        self, caller: Caller, number: int, queue: Queue, request: v2.Enqueue
    ) -> int | None:
        """Return how many tasks of a request were taken before, or ``None`` if it has its answer."""
        producer = request.producer
        assert producer is not None
        under_way = self._producing.get((producer.id, producer.sequence))
        if under_way is not None:
            under_way.waiting.append((caller, number))
            return None
        taken = self._state.producers.find(producer.id, producer.sequence)
        if taken is None:
            if not self._state.producers.is_forgotten(producer.id, producer.sequence):
                return 0
            text = (
                "this request is older than the last 1024 of its producer; its result is forgotten"
            )
            caller.answer(number, v2.Failed(Failure.SEQUENCE_FORGOTTEN, text))
            return None
        if taken.queue != queue.number or taken.total != len(request.keys):
            text = f"sequence {producer.sequence} was used for another request; use a new one"
            caller.answer(number, v2.Failed(Failure.INVALID, text))
            return None
        if taken.is_whole:
            caller.answer(number, self._produced(taken.runs))
            return None
        return taken.count

    def _produced(self, runs: Iterable[tuple[int, int]]) -> v2.Enqueued:
        return v2.Enqueued([v2.Run(Outcome.ACCEPTED, count, first) for first, count in runs])

    def finish_produced(self, producer: bytes, sequence: int) -> v2.Enqueued:
        """Return the answer to a request that is whole now."""
        self._producing.pop((producer, sequence), None)
        taken = self._state.producers.find(producer, sequence)
        assert taken is not None, "what was just taken is remembered"
        return self._produced(taken.runs)

    def _judge(self, queue: Queue, keys: Sequence[int], payloads: Sequence[bytes]) -> int:
        """Return what a queue's policy says of a batch, which is taken whole or not at all."""
        policy, count = queue.policy, len(keys)
        if policy.size_max is not None and len(queue) + queue.proposed + count > policy.size_max:
            return Outcome.QUEUE_FULL
        if policy.keys is not None and not policy.keys.hold(keys):
            return Outcome.KEY_OUT_OF_RANGE
        size_max = self.limits.payload_size_max
        if policy.payload_size_max is not None:
            size_max = min(size_max, policy.payload_size_max)
        if count and max(map(len, payloads)) > size_max:
            return Outcome.PAYLOAD_TOO_LARGE
        return Outcome.ACCEPTED

    def _terms(self, request: v2.Enqueue) -> Terms:
        if request.delay_ms is None and request.ttl_ms is None and request.producer is None:
            return NO_TERMS
        now, producer = self._clock(), request.producer
        return Terms(
            not_before_ms=None if request.delay_ms is None else now + request.delay_ms,
            expires_ms=None if request.ttl_ms is None else now + request.ttl_ms,
            producer=None if producer is None else producer.id,
            sequence=0 if producer is None else producer.sequence,
            total=0 if producer is None else len(request.keys),
        )

    def _encode_adds(
        self, queue: Queue, keys: Sequence[int], payloads: Sequence[bytes], terms: Terms
    ) -> list[bytes]:
        entries = encode_adds(queue.name, keys, payloads)
        if terms is not NO_TERMS:
            entries.insert(0, encode_extension(Adding(count=len(keys), terms=terms)))
        return entries

    def note_added(self, queue: Queue, count: int, terms: Terms) -> None:
        self._counters[queue.number].enqueued += count
        self._hungry[queue.number] = queue
        if terms.not_before_ms is not None or terms.expires_ms is not None:
            self._timed[queue.number] = queue

    # --- dequeue, subscribe ----------------------------------------------------------------------

    def dequeue(self, caller: Caller, number: int, request: v2.Dequeue) -> None:
        queue = self._find(request.queue)
        if queue is None:
            self._missing(caller, number, request.queue)
            return
        consumer = self._consumer(
            caller, number, queue, request.count_max or 1, request.size_max, request.lease_ms
        )
        if self._deliver(queue, consumer):
            return
        if not request.wait_ms:
            caller.answer(number, v2.NOTHING_DELIVERED)
            return
        consumer.waiting = self._next_waiting
        self._next_waiting += 1
        self._waiting[consumer.waiting] = consumer
        self._patience.set(consumer.waiting, self._clock() + request.wait_ms)
        self._list(consumer)

    def _list(self, consumer: Consumer) -> None:
        counters = self._counters[consumer.queue.number]
        consumer.caller.consumers[consumer] = None
        counters.consumers[consumer] = None
        counters.line.join(consumer)

    def end(self, consumer: Consumer) -> None:
        """Deliver nothing more to a consumer; what is out stays on lease."""
        consumer.caller.consumers.pop(consumer, None)
        self._waiting.pop(consumer.waiting, None)
        self._patience.discard(consumer.waiting)
        counters = self._counters.get(consumer.queue.number)
        if counters is not None:
            counters.consumers.pop(consumer, None)
            counters.line.leave(consumer)
        consumer.is_ended = True

    def _consumer(
        self,
        caller: Caller,
        number: int,
        queue: Queue,
        count_max: int,
        size_max: int,
        lease_ms: int,
        *,
        is_subscription: bool = False,
    ) -> Consumer:
        return Consumer(
            caller,
            number,
            queue,
            count_max=count_max,
            size_max=min(size_max or DELIVERY_SIZE_MAX, DELIVERY_SIZE_MAX),
            lease_ms=min(lease_ms or queue.options.lease_ms, LEASE_MS_MAX),
            is_subscription=is_subscription,
        )

    def subscribe(self, caller: Caller, number: int, request: v2.Subscribe) -> Consumer | None:
        """Begin a subscription, answered at once; deliveries follow. ``None`` if it was refused."""
        queue = self._find(request.queue)
        if queue is None:
            self._missing(caller, number, request.queue)
            return None
        if not request.prefetch:
            text = "a prefetch of 0 would never deliver anything; 1 or more"
            caller.answer(number, v2.Failed(Failure.INVALID, text))
            return None
        consumer = self._consumer(
            caller, number, queue, request.prefetch, 0, request.lease_ms, is_subscription=True
        )
        caller.answer(number, operations.OK)
        self._list(consumer)
        self.wake(consumer)
        return consumer

    def wake(self, consumer: Consumer) -> None:
        """Serve a subscription that may have room again."""
        if not consumer.is_ended:
            self._counters[consumer.queue.number].line.join(consumer)
            self._hungry[consumer.queue.number] = consumer.queue

    def serve(self) -> None:
        """Give what is ready to those who wait for it. Called when a batch is done."""
        while self._hungry:
            _, queue = self._hungry.popitem()
            counters = self._counters.get(queue.number)
            if counters is None or not counters.line:
                continue
            while queue.ready_count and (consumer := counters.line.next()) is not None:
                if not self._deliver(queue, consumer):
                    counters.line.join(consumer)
                    break
                if consumer.is_subscription and consumer.room > 0:
                    counters.line.join(consumer)

    def _deliver(self, queue: Queue, consumer: Consumer) -> bool:
        """Lease what is ready to a consumer with room; return whether there was anything."""
        now = self._clock()
        if len(queue.delayed):
            queue.release(now)
        count_max = min(consumer.room, DELIVERY_COUNT_MAX)
        ids, keys, payloads = self._take(queue, count_max, consumer.size_max, now)
        if not ids:
            return False
        subscription = consumer if consumer.is_subscription else None
        token = self.leases.grant(
            queue, ids, consumer.caller, subscription, deadline_ms=now + consumer.lease_ms
        )
        failed = queue.attempts
        attempts = [failed.get(i, 0) + 1 for i in ids] if failed else [1] * len(ids)
        consumer.out += len(ids)
        if not consumer.is_subscription:
            self.end(consumer)
        self._counters[queue.number].delivered += len(ids)
        delivered = v2.Delivered(token, consumer.lease_ms, ids, keys, attempts, payloads)
        consumer.caller.answer(consumer.number, delivered)
        return True

    def _take(
        self, queue: Queue, count_max: int, size_max: int, now: int
    ) -> tuple[list[int], list[int], list[bytes]]:
        ids: list[int] = []
        keys: list[int] = []
        payloads: list[bytes] = []
        expired: list[int] = []
        size = 0
        take, expiring = queue.take, queue.expiring
        while len(ids) < count_max and (task := take()) is not None:
            task_id, key, payload = task
            if len(expiring) and (time := expiring.get(task_id)) is not None and time <= now:
                expired.append(task_id)
                continue
            size += len(payload)
            if size > size_max and ids:
                queue.put_back((task_id,))
                break
            ids.append(task_id)
            keys.append(key)
            payloads.append(payload)
        if expired:
            self._expire(queue, expired)
        return ids, keys, payloads

    # --- ack, nack, extend -----------------------------------------------------------------------

    def ack(self, caller: Caller, number: int, request: v2.Ack) -> None:
        ended, lost = self._settle(request.tokens)
        answer = v2.Settled(lost) if lost else operations.SETTLED
        if not ended:
            caller.answer(number, answer)
            return
        removed = _by_queue(ended)
        entries: list[bytes] = []
        for queue, ids in removed:
            entries += self._encode_removals(queue, ids)
        operation = operations.Remove(self, removed, "acked", caller, number, answer)
        self.replica.propose(entries, operation)

    def _settle(self, tokens: Sequence[int]) -> tuple[list[Lease], list[int]]:
        """End leases; what is out of a queue that is going away is as lost as a lease that has ended."""
        doomed = [t for t in tokens if (x := self.leases.get(t)) and x.batch.queue.is_doomed]
        if doomed:
            gone = set(doomed)
            tokens = [token for token in tokens if token not in gone]
        ended, lost = self.leases.settle(tokens)
        lost += doomed
        for lease in ended:
            self._free(lease)
        return ended, lost

    def _free(self, lease: Lease) -> None:
        """Give a subscription the place back that a task took up in its window."""
        subscription = lease.batch.subscription
        if isinstance(subscription, Consumer):
            subscription.out -= 1
            self.wake(subscription)

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

    def nack(self, caller: Caller, number: int, request: v2.Nack) -> None:
        if request.key is not None and not self._may_move(request.tokens, request.key):
            text = f"key {request.key} is outside the range of the task's queue"
            caller.answer(number, v2.Failed(Failure.INVALID, text))
            return
        ended, lost = self._settle(request.tokens)
        answer = v2.Settled(lost) if lost else operations.SETTLED
        if not ended:
            caller.answer(number, answer)
            return
        now = self._clock()
        not_before_ms = None if request.delay_ms is None else now + request.delay_ms
        self._return(ended, not_before_ms, request.key)
        self.replica.propose((), operations.Answered(caller, number, answer))

    def _may_move(self, tokens: Iterable[int], key: int) -> bool:
        queues = {lease.batch.queue for t in tokens if (lease := self.leases.get(t)) is not None}
        ranges = [queue.policy.keys for queue in queues if queue.policy.keys is not None]
        return all(keys.lowest <= key <= keys.highest for keys in ranges)

    def extend(self, caller: Caller, number: int, request: v2.Extend) -> None:
        now = self._clock()
        lost: list[int] = []
        for token in request.tokens:
            lease = self.leases.get(token)
            if lease is None or lease.batch.queue.is_doomed:
                lost.append(token)
                continue
            lease_ms = min(request.lease_ms or lease.batch.queue.options.lease_ms, LEASE_MS_MAX)
            self.leases.extend((token,), deadline_ms=now + lease_ms)
        caller.answer(number, v2.Settled(lost))

    def _return(
        self, leases: Sequence[Lease], not_before_ms: int | None = None, key: int | None = None
    ) -> None:
        """Put tasks back after a failed delivery, into their place, under another key, or with the dead."""
        for queue, ids in _by_queue(leases):
            if queue.is_doomed:
                continue
            worn = self._worn_out(queue, ids)
            if worn:
                dead_letter = queue.options.dead_letter
                assert dead_letter is not None, "a limit of attempts needs a dead-letter queue"
                moved = self._move(queue, worn, self._find(dead_letter), "dead_lettered")
                ids = [task_id for task_id in ids if task_id not in moved]
            if key is not None:
                self._rekey(queue, ids, key, not_before_ms)
            elif ids:
                self._propose_return(queue, ids, not_before_ms)

    def _worn_out(self, queue: Queue, ids: Sequence[int]) -> list[int]:
        limit = queue.options.attempts_max
        if limit is None:
            return []
        return [task_id for task_id in ids if queue.attempts.get(task_id, 0) + 1 >= limit]

    def _propose_return(self, queue: Queue, ids: Sequence[int], not_before_ms: int | None) -> None:
        entries = [
            encode_extension(
                Returning(
                    queue=queue.number,
                    ids=tuple(ids[start : start + IDS_MAX]),
                    not_before_ms=not_before_ms,
                )
            )
            for start in range(0, len(ids), IDS_MAX)
        ]
        self.replica.propose(entries, operations.Return(self, [(queue, ids)], not_before_ms))

    def _move(
        self, queue: Queue, ids: Sequence[int], target: Queue | None, what: str
    ) -> frozenset[int]:
        """Move tasks to another queue and return their ids; none if that queue cannot take them.

        They are added before they are removed: a crash between the two doubles a task, and loses none.
        """
        tasks = [task for task_id in ids if (task := queue.tasks.get(task_id)) is not None]
        keys, payloads = [key for key, _ in tasks], [payload for _, payload in tasks]
        if target is None or self._judge(target, keys, payloads) != Outcome.ACCEPTED:
            return frozenset()
        added = operations.Add(self, target, keys, payloads, NO_TERMS, None, 0)
        self.replica.propose(encode_adds(target.name, keys, payloads), added)
        self._propose_removal(queue, ids, what)
        return frozenset(ids)

    def _propose_removal(self, queue: Queue, ids: Sequence[int], what: str) -> None:
        operation = operations.Remove(self, [(queue, ids)], what)
        self.replica.propose(self._encode_removals(queue, ids), operation)

    def _rekey(self, queue: Queue, ids: Sequence[int], key: int, not_before_ms: int | None) -> None:
        """Put tasks back under another key, behind those that have it, with all that is known of them."""
        for task_id in ids:
            task = queue.tasks.get(task_id)
            assert task is not None, "what is out is still there"
            terms = Terms(
                attempts=queue.attempts.get(task_id, 0) + 1,
                not_before_ms=not_before_ms,
                expires_ms=queue.expiring.get(task_id),
            )
            operation = operations.Add(self, queue, [key], [task[1]], terms, None, 0)
            self.replica.propose(self._encode_adds(queue, [key], [task[1]], terms), operation)
        if ids:
            self._propose_removal(queue, ids, "returned")

    def note_returned(self, queue: Queue, count: int, not_before_ms: int | None) -> None:
        if queue.number in self._counters:
            self._counters[queue.number].returned += count
            self._hungry[queue.number] = queue
            if not_before_ms is not None:
                self._timed[queue.number] = queue

    def count(self, queue: Queue, what: str, count: int) -> None:
        """Add to one of a queue's counters."""
        counters = self._counters.get(queue.number)
        if counters is not None:
            setattr(counters, what, getattr(counters, what) + count)

    def leave(self, caller: Caller) -> None:
        """Forget a caller that is gone: its tasks go back, its waiting ends."""
        caller.is_gone = True
        for consumer in list(caller.consumers):
            self.end(consumer)
        self._return_ended(self.leases.end_all_of(caller))

    def _return_ended(self, ended: Sequence[Lease]) -> None:
        for lease in ended:
            self._free(lease)
        self._return(ended)

    # --- queues ----------------------------------------------------------------------------------

    def create(self, caller: Caller, number: int, request: v2.Create) -> None:
        name = request.queue
        problem = self._refuse_creation(request)
        if problem is not None:
            caller.answer(number, problem)
            return
        dead_letter = None if request.dead_letter is None else self._find(request.dead_letter)
        try:
            options = QueueOptions(
                lease_ms=request.lease_ms or NO_OPTIONS.lease_ms,
                attempts_max=request.attempts_max,
                dead_letter=request.dead_letter,
            )
        except InvalidValue as error:
            caller.answer(number, v2.Failed(Failure.INVALID, str(error)))
            return
        entries = [encode_delta(CreateQueue(queue=name, policy=request.policy))]
        if options != NO_OPTIONS:
            extension = Creating(
                lease_ms=options.lease_ms,
                attempts_max=options.attempts_max,
                dead_letter=None if dead_letter is None else dead_letter.number,
            )
            entries.insert(0, encode_extension(extension))
        self._creating[name] = options
        operation = operations.Create(self, name, request.policy, options, caller, number)
        self.replica.propose(entries, operation)

    def _refuse_creation(self, request: v2.Create) -> v2.Failed | None:
        name, state = request.queue, self._state
        if name.startswith(RESERVED_PREFIX):
            return v2.Failed(Failure.INVALID, f"names that begin with {RESERVED_PREFIX!r} are ours")
        doomed = state.by_name.get(name)
        if doomed is not None or name in self._creating:
            return v2.Failed(Failure.QUEUE_EXISTS, f"queue {name!r} exists")
        if len(state.by_name) + len(self._creating) >= self.limits.queues_max:
            text = f"the node has {self.limits.queues_max} queues, as many as it may (--max-queues)"
            return v2.Failed(Failure.LIMIT, text)
        if request.dead_letter is None:
            if request.attempts_max is not None:
                text = "a limit of attempts needs a dead-letter queue to put the task in after the last"
                return v2.Failed(Failure.INVALID, text)
        elif request.dead_letter == name or self._find(request.dead_letter) is None:
            text = f"dead-letter queue {request.dead_letter!r} does not exist; create it first"
            return v2.Failed(Failure.QUEUE_MISSING, text)
        return None

    def note_created(self, name: QueueName) -> None:
        self._creating.pop(name, None)
        self._counters[self._state.by_name[name].number] = Counters()

    def _after_creation(self, call: Callable[[], None]) -> None:
        """Do something when what is on its way into the log is applied."""
        self.replica.propose((), _Later(call))

    def delete(self, caller: Caller, number: int, request: v2.Delete) -> None:
        queue = self._find(request.queue)
        if queue is None:
            self._missing(caller, number, request.queue)
            return
        if queue.name == DEFAULT_QUEUE:
            text = "the default queue always exists; purge it instead"
            caller.answer(number, v2.Failed(Failure.INVALID, text))
            return
        user = self._user_of(queue.name)
        if user is not None:
            text = f"queue {user!r} puts its dead letters here; delete that one first"
            caller.answer(number, v2.Failed(Failure.QUEUE_IN_USE, text))
            return
        operation = operations.Delete(self, queue, caller, number)
        self.replica.propose([encode_delta(DeleteQueue(queue=queue.name))], operation)

    def _user_of(self, name: QueueName) -> QueueName | None:
        """Return a queue whose dead letters go to ``name``, one that is being created counted."""
        for queue in self._state.by_name.values():
            if queue.options.dead_letter == name and not queue.is_doomed:
                return queue.name
        return next((own for own, o in self._creating.items() if o.dead_letter == name), None)

    def note_deleted(self, queue: Queue) -> None:
        self.leases.drop_queue(queue)
        self._timed.pop(queue.number, None)
        self._hungry.pop(queue.number, None)
        counters = self._counters.pop(queue.number)
        for consumer in list(counters.consumers):
            self.end(consumer)
            self._missing(consumer.caller, consumer.number, queue.name)

    def purge(self, caller: Caller, number: int, request: v2.Purge, done: int = 0) -> None:
        """Remove what is ready or delayed, in parts, so that others get their turn in between."""
        queue = self._find(request.queue)
        if queue is None:
            self._missing(caller, number, request.queue)
            return
        ids: list[int] = []
        while len(ids) < PURGE_COUNT_MAX and (task := queue.take()) is not None:
            ids.append(task[0])
        if len(ids) < PURGE_COUNT_MAX:
            ids += queue.take_delayed(PURGE_COUNT_MAX - len(ids))
        done += len(ids)
        if ids:
            self._propose_removal(queue, ids, "purged")
        if len(ids) < PURGE_COUNT_MAX:
            if ids:
                self.replica.propose((), operations.Answered(caller, number, v2.Purged(done)))
            else:
                caller.answer(number, v2.Purged(done))
        else:
            self._after_creation(lambda: self.purge(caller, number, request, done))

    # --- looking ---------------------------------------------------------------------------------

    def peek(self, caller: Caller, number: int, request: v2.Peek) -> None:
        queue = self._find(request.queue)
        if queue is None:
            self._missing(caller, number, request.queue)
            return
        now = self._clock()
        if len(queue.delayed):
            queue.release(now)
        ids: list[int] = []
        keys: list[int] = []
        payloads: list[bytes] = []
        size = 0
        for task_id, key, payload in queue.peek(min(request.count_max, DELIVERY_COUNT_MAX)):
            if (queue.expiring.get(task_id) or now + 1) <= now:
                continue
            size += len(payload)
            if size > DELIVERY_SIZE_MAX and ids:
                break
            ids.append(task_id)
            keys.append(key)
            payloads.append(payload)
        attempts = [queue.attempts.get(task_id, 0) for task_id in ids]
        caller.answer(number, v2.Peeked(ids, keys, attempts, payloads))

    def stat(self, caller: Caller, number: int, request: v2.Stat) -> None:
        if request.queue is None:
            queues = [queue for queue in self._state.queues() if not queue.is_doomed]
            caller.answer(number, v2.Stats([self.stat_of(queue) for queue in queues]))
            return
        queue = self._find(request.queue)
        if queue is None:
            self._missing(caller, number, request.queue)
            return
        caller.answer(number, v2.Stats([self.stat_of(queue)]))

    def stat_of(self, queue: Queue) -> v2.QueueStat:
        counters = self._counters[queue.number]
        return v2.QueueStat(
            name=queue.name,
            policy=queue.policy,
            options=queue.options,
            count=len(queue),
            leased=len(queue.out),
            delayed=len(queue.delayed),
            size=queue.tasks.size,
            last_id=queue.tasks.last_id,
            enqueued=counters.enqueued,
            delivered=counters.delivered,
            acked=counters.acked,
            returned=counters.returned,
            expired=counters.expired,
            dead_lettered=counters.dead_lettered,
        )

    def wait_for_entry(self, wait_ms: int, call: Callable[[], None]) -> None:
        """Call when the next entry is applied, or when the time is over."""
        self._reading[self._next_waiting] = call
        self._patience.set(self._next_waiting, self._clock() + wait_ms)
        self._next_waiting += 1

    # --- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what the clock asks for: end leases, release delayed tasks, expire, stop waiting."""
        now = self._clock()
        self._return_ended(self.leases.expire(now))
        for queue in list(self._timed.values()):
            if queue.release(now):
                self._hungry[queue.number] = queue
            # What is out is looked at again when it comes back.
            due = [task_id for task_id in queue.expiring.pop_due(now) if task_id not in queue.out]
            if due:
                queue.take_these(due)
                self._expire(queue, due)
            if not len(queue.delayed) and not len(queue.expiring):
                del self._timed[queue.number]
        self.serve()
        for waiting in self._patience.take_due(now):
            if waiting in self._reading:
                self._reading.pop(waiting)()
                continue
            consumer = self._waiting[waiting]
            self.end(consumer)
            consumer.caller.answer(consumer.number, v2.NOTHING_DELIVERED)

    def _expire(self, queue: Queue, ids: Sequence[int]) -> None:
        """Drop tasks whose time is over, or put them with the dead."""
        dead_letter = queue.options.dead_letter
        if dead_letter is not None and self._move(
            queue, ids, self._find(dead_letter), "dead_lettered"
        ):
            return
        self._propose_removal(queue, ids, "expired")

    def next_wakeup_ms(self) -> int | None:
        """Return when ``tick`` has something to do, or ``None`` if never."""
        times = [self.leases.next_deadline(), self._patience.next()]
        for queue in self._timed.values():
            times += [queue.delayed.next(), queue.expiring.next()]
        return min((time for time in times if time is not None), default=None)


class _Later:
    """Calls somebody when everything before it is applied."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def apply(self, state: object) -> None:
        pass

    def tell(self) -> None:
        self._call()


def _by_queue(leases: Sequence[Lease]) -> list[tuple[Queue, list[int]]]:
    """Group ended leases by queue, in the order in which they came."""
    found: dict[int, tuple[Queue, list[int]]] = {}
    queue, ids = None, []
    for lease in leases:
        if lease.batch.queue is not queue:
            queue = lease.batch.queue
            ids = found.setdefault(queue.number, (queue, []))[1]
        ids.append(lease.id)
    return list(found.values())
