"""Decides what a request means. Sessions ask here; ``Books`` and ``Deliveries`` are its first chapters.

Decisions rest on the applied state and on what is on its way into the log, so that policies hold however many
requests arrive at once. Nothing is told before the replica says that it is committed.
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import InvalidValue
from penstock.formats.taskflux.deltas import encode_adds, encode_delta
from penstock.formats.taskflux.extensions import encode_extension
from penstock.model import (
    DEFAULT_QUEUE,
    NO_OPTIONS,
    NO_TERMS,
    RESERVED_PREFIX,
    CreateQueue,
    Creating,
    DeleteQueue,
    Implementation,
    QueueName,
    QueueOptions,
    Terms,
)
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure
from penstock.protocol.version2.requests import Singles
from penstock.queues.queue import Queue
from penstock.server import operations
from penstock.server.books import Counters
from penstock.server.caller import Caller, SinglesCaller
from penstock.server.deliveries import DELIVERY_COUNT_MAX, DELIVERY_SIZE_MAX, Deliveries
from penstock.server.replica import Replica
from penstock.server.settings import Limits

PURGE_COUNT_MAX: Final = 10_000
"""Removals proposed at a time: a purge of millions must not keep others waiting."""


class Broker(Deliveries):
    """The leader's view of all queues."""

    def __init__(
        self,
        replica: Replica,
        clock: Callable[[], int],
        limits: Limits,
        steady: Callable[[], int] | None = None,
        patience: Callable[[], int] | None = None,
    ) -> None:
        """Open the books. The clocks count milliseconds.

        ``clock`` counts since 1970 and times delays and expiry. ``steady`` never jumps and times leases. ``patience``
        times how long callers wait; it differs from ``steady`` only on a node whose clock a test moves.
        """
        self._steady = steady or clock
        self._patience_clock = patience or self._steady
        self._reading: dict[int, Callable[[], None]] = {}  # reads that wait for the next entry
        super().__init__(replica, clock, limits)
        replica.after_apply.append(self._after_apply)
        replica.after_confirm.append(self.flush)

    def _open(self) -> None:
        super()._open()
        self._creating: dict[QueueName, QueueOptions] = {}  # names on their way into the log
        self._adding: operations.AddEach | None = None  # the last one begun

    def begin_leading(self) -> None:
        """Open the books for a term that this node leads."""
        self._open()

    def stop_leading(self, failed: v2.Failed) -> None:
        """Close the books: whoever waits is told, and no lease counts any more."""
        for counters in list(self._counters.values()):
            for consumer in list(counters.consumers):
                self.end(consumer)
                consumer.caller.answer(consumer.number, failed)
        self.leases.drop_all()
        self._open()

    def _after_apply(self) -> None:
        self.serve()
        for waiting in list(self._reading):
            self._patience.discard(waiting)
            self._reading.pop(waiting)()
        self.flush()

    def enqueue(self, caller: Caller, number: int, request: v2.Enqueue) -> None:
        if self.replica.is_short_of_room:
            text = "the node's disk is nearly full; consume tasks or free disk space (--min-free)"
            caller.answer(number, v2.Failed(Failure.LIMIT, text))
            return
        queue = self._find(request.queue)
        if queue is None:
            if request.queue in self._creating:
                self._after_creation(caller, number, lambda: self.enqueue(caller, number, request))
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
            # Of a request that a crash cut in two the rest may find the queue full: the limit holds, and both are said.
            runs = self._taken_runs(request) if done else []
            if count:
                runs.append(v2.Run(outcome, count, 0))
            self._answer(caller, number, v2.Enqueued(runs))
            return
        terms = self._terms(request)
        operation = operations.Add(self, queue, keys, payloads, terms, caller, number)
        if terms.producer is not None:
            self._producing[terms.producer, terms.sequence] = operation
        self.replica.propose(self._encode_adds(queue, keys, payloads, terms), operation)

    def enqueue_singles(self, caller: SinglesCaller, singles: Singles) -> None:
        """Enqueue one task for each of many requests, which count as one batch here and nowhere else."""
        queue = self._find(singles.queue)
        keys, payloads = singles.keys, singles.payloads
        if (
            queue is None
            or queue.policy.size_max is not None
            or self.replica.is_short_of_room
            or self._judge(queue, keys, payloads)
        ):
            for number, key, payload in zip(singles.numbers, keys, payloads, strict=True):
                self.enqueue(caller, number, v2.Enqueue(singles.queue, (key,), (payload,)))
            return
        # Callers who send one task each at the same time are one batch as well.
        operation = self._adding
        if operation is None or operation is not self.replica.open or operation.queue is not queue:
            operation = self._adding = operations.AddEach(self, queue)
        operation.add(caller, singles)
        self.replica.propose(encode_adds(queue.name, keys, payloads), operation)

    def _find_produced(
        self, caller: Caller, number: int, queue: Queue, request: v2.Enqueue
    ) -> int | None:
        """Return how many tasks of a request were taken before, or ``None`` if it has its answer."""
        producer = request.producer
        assert producer is not None
        under_way = self._producing.get((producer.id, producer.sequence))
        if under_way is not None:
            if under_way.queue is queue and under_way.total == len(request.keys):
                under_way.waiting.append((caller, number))
            else:
                self._misused(caller, number, producer)
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
            self._misused(caller, number, producer)
            return None
        if taken.is_whole:
            caller.answer(number, self._produced(taken.runs))
            return None
        return taken.count

    def _taken_runs(self, request: v2.Enqueue) -> list[v2.Run]:
        """Return what was taken of a request before a crash cut it in two."""
        assert request.producer is not None
        taken = self._state.producers.find(request.producer.id, request.producer.sequence)
        assert taken is not None
        return list(self._produced(taken.runs).runs)

    def _misused(self, caller: Caller, number: int, producer: v2.Producer) -> None:
        text = f"sequence {producer.sequence} was used for another request; use a new one"
        caller.answer(number, v2.Failed(Failure.INVALID, text))

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

    def create(self, caller: Caller, number: int, request: v2.Create) -> None:
        name = request.queue
        problem = self._refuse_creation(request)
        if problem is not None:
            self._answer(caller, number, problem)
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
            text = f"the node has {self.limits.queues_max} queues, its limit; delete a queue or raise --max-queues"
            return v2.Failed(Failure.LIMIT, text)
        if request.policy.implementation is Implementation.PAGED:
            refusal = state.paging_refusal()
            if refusal is not None:
                text = f"queue {name!r} cannot be paged: {refusal}"
                return v2.Failed(Failure.CHANGE_REFUSED, text)
        if request.dead_letter is None:
            if request.attempts_max is not None:
                text = "a limit of attempts needs a dead-letter queue; name one (--dead-letter)"
                return v2.Failed(Failure.INVALID, text)
        elif request.dead_letter == name:
            text = "a queue cannot be its own dead-letter queue; name another queue"
            return v2.Failed(Failure.INVALID, text)
        elif self._find(request.dead_letter) is None:
            text = f"dead-letter queue {request.dead_letter!r} does not exist; create it first"
            return v2.Failed(Failure.QUEUE_MISSING, text)
        return None

    def note_created(self, name: QueueName) -> None:
        self._creating.pop(name, None)
        self._counters[self._state.by_name[name].number] = Counters()

    def _after_creation(self, caller: Caller, number: int, call: Callable[[], None]) -> None:
        """Do something when what is on its way into the log is applied."""
        self.replica.propose((), operations.Later(call, caller, number))

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
            text = f"queue {user!r} sends its dead letters to this queue; delete {user!r} first"
            self._answer(caller, number, v2.Failed(Failure.QUEUE_IN_USE, text))
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
        self._timed.discard(queue.number)
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
                self._answer(caller, number, v2.Purged(done))
        else:
            self._after_creation(caller, number, lambda: self.purge(caller, number, request, done))

    def peek(self, caller: Caller, number: int, request: v2.Peek) -> None:
        if self.replica.is_alone:
            self._peek(caller, number, request)
        else:
            self._confirm(lambda: self._peek(caller, number, request), caller, number)

    def _peek(self, caller: Caller, number: int, request: v2.Peek) -> None:
        queue = self._find(request.queue)
        if queue is None:
            self._missing(caller, number, request.queue)
            return
        now = self._clock()
        self._release(queue, now)
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
        if self.replica.is_alone:
            self._stat(caller, number, request)
        else:
            self._confirm(lambda: self._stat(caller, number, request), caller, number)

    def _stat(self, caller: Caller, number: int, request: v2.Stat) -> None:
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
        # One that follows keeps no books: it has seen queues come that it has no counters for.
        counters = self._counters.get(queue.number) or Counters()
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

    def wait_for_entry(self, wait_ms: int, call: Callable[[], None]) -> int:
        """Call when the next entry is applied, or when the time is over; return the number of the wait."""
        waiting = self._next_waiting
        self._next_waiting += 1
        self._reading[waiting] = call
        self._patience.set(waiting, self._patience_clock() + wait_ms)
        return waiting

    def stop_waiting_for_entry(self, waiting: int) -> None:
        """Call nobody: whoever waited is gone."""
        if self._reading.pop(waiting, None) is not None:
            self._patience.discard(waiting)

    def tick(self) -> None:
        """Do what the clock asks for: end leases, release delayed tasks, expire, stop waiting."""
        if self.replica.is_leading:
            self._keep_times(self._clock())
        self.serve()
        for waiting in self._patience.take_due(self._patience_clock()):
            if waiting in self._reading:
                self._reading.pop(waiting)()
                continue
            consumer = self._waiting[waiting]
            self.end(consumer)
            # There was nothing when the wait began, and that was sure.
            consumer.caller.answer(consumer.number, v2.NOTHING_DELIVERED)

    def _keep_times(self, now: int) -> None:
        self._return_ended(self.leases.expire(self._steady()))
        for number in self._timed.take_due(now):
            queue = self._state.by_number[number]
            if queue.release(now):
                self._hungry[queue.number] = queue
            # What is out is looked at again when it comes back.
            due = [task_id for task_id in queue.expiring.pop_due(now) if task_id not in queue.out]
            if due:
                queue.take_these(due)
                self._expire(queue, due)
            self._watch(queue)

    def wakeup_in_ms(self) -> int | None:
        """Return in how many milliseconds ``tick`` has something to do, or ``None`` if never."""
        if not (len(self.leases) or len(self._patience) or len(self._timed)):
            return None
        waits: list[int] = []
        if (lease := self.leases.next_deadline()) is not None:
            waits.append(lease - self._steady())
        if (patience := self._patience.next()) is not None:
            waits.append(patience - self._patience_clock())
        if (due := self._timed.next()) is not None:
            waits.append(due - self._clock())
        return max(0, min(waits)) if waits else None
