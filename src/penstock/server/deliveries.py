"""Who gets which task, for how long, and what becomes of it: dequeues, subscriptions, leases, returns.

A dequeue changes nothing that is stored, so it is answered at once; what ends a lease is logged first.
"""

from collections.abc import Callable, Sequence
from typing import Final

from penstock.formats.taskflux.extensions import IDS_MAX, encode_extension
from penstock.model import (
    LEASE_MS_MAX,
    Returning,
    Terms,
)
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure
from penstock.queues.deadlines import Deadlines
from penstock.queues.leases import Ended, Leases
from penstock.queues.queue import Queue
from penstock.server import operations
from penstock.server.books import Books
from penstock.server.caller import Caller
from penstock.server.consumers import Consumer
from penstock.server.replica import Replica
from penstock.server.settings import Limits

DELIVERY_COUNT_MAX: Final = 1024
DELIVERY_SIZE_MAX: Final = 2**20
"""What one delivery holds at most, but for a single task that is larger by itself."""


class Deliveries(Books):
    """Tasks on their way out, and back."""

    # Time leases and waits; a wall clock that is set back must not make them longer.
    _steady: Callable[[], int]
    _patience_clock: Callable[[], int]

    def __init__(self, replica: Replica, clock: Callable[[], int], limits: Limits) -> None:
        self._patience = Deadlines()  # until when somebody waits, by a number of ours
        self._next_waiting = 1
        super().__init__(replica, clock, limits)

    def _open(self) -> None:
        super()._open()
        self.leases = Leases(self.replica.group.term)
        self._waiting: dict[int, Consumer] = {}  # dequeues that wait for a time, by the same number
        self._is_asking = False  # whether the group was asked for the sake of those who wait

    def dequeue(self, caller: Caller, number: int, request: v2.Dequeue) -> None:
        if self.replica.is_alone:
            self._dequeue(caller, number, request)
        else:
            self._confirm(lambda: self._dequeue(caller, number, request), caller, number)

    def _dequeue(self, caller: Caller, number: int, request: v2.Dequeue) -> None:
        if caller.is_gone:
            return
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
        self._patience.set(consumer.waiting, self._patience_clock() + request.wait_ms)
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

    @property
    def is_hungry(self) -> bool:
        """Whether somebody may be waiting for what is ready: ``serve`` finds out."""
        return bool(self._hungry)

    def serve(self) -> None:
        """Give what is ready to those who wait for it. Called when a batch is done."""
        if not self._hungry or not self.replica.is_leading:
            return
        if self.replica.is_alone or self.replica.is_fresh:
            self._serve()
        elif not self._is_asking and self._has_waiting:
            self._is_asking = True
            self.replica.confirm(self._serve_confirmed, self._give_up_serving)
        elif not self._is_asking:
            self._hungry.clear()

    @property
    def _has_waiting(self) -> bool:
        counters = self._counters
        return any(number in counters and counters[number].line for number in self._hungry)

    def _serve_confirmed(self) -> None:
        self._is_asking = False
        self._serve()

    def _give_up_serving(self, failed: v2.Failed) -> None:  # noqa: ARG002
        self._is_asking = False

    def _serve(self) -> None:
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
        self._release(queue, now)
        count_max = min(consumer.room, DELIVERY_COUNT_MAX)
        ids, keys, payloads = self._take(queue, count_max, consumer.size_max, now)
        if not ids:
            return False
        subscription = consumer if consumer.is_subscription else None
        token = self.leases.grant(
            queue,
            ids,
            consumer.caller,
            subscription,
            deadline_ms=self._steady() + consumer.lease_ms,
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

    def _release(self, queue: Queue, now: int) -> None:
        """Make tasks ready whose delay is over; whoever waits for them is served with the rest."""
        if len(queue.delayed) and queue.release(now):
            self._hungry[queue.number] = queue

    def _take(
        self, queue: Queue, count_max: int, size_max: int, now: int
    ) -> tuple[list[int], list[int], list[bytes]]:
        ids, keys, payloads = queue.take_many(count_max, size_max)
        expired = queue.expired(ids, now)
        while expired:
            self._expire(queue, expired)
            gone = set(expired)
            kept = [place for place, task_id in enumerate(ids) if task_id not in gone]
            more = queue.take_many(count_max - len(kept), size_max)
            ids = [ids[place] for place in kept] + more[0]
            keys = [keys[place] for place in kept] + more[1]
            payloads = [payloads[place] for place in kept] + more[2]
            expired = queue.expired(more[0], now)
        return ids, keys, payloads

    def ack(self, caller: Caller, number: int, request: v2.Ack) -> None:
        ended, lost = self._settle(caller, request.tokens)
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

    def _settle(self, caller: Caller, tokens: Sequence[int]) -> tuple[list[Ended], list[int]]:
        """End leases; what is out of a queue that is going away is as lost as a lease that has ended."""
        ended, lost = self.leases.settle(tokens, caller)
        doomed = {id(one.queue) for one in ended if one.queue.is_doomed}
        for one in ended:
            self._free(one)
        if doomed:
            # Its leases end here as well; only the tokens that name them are needed for the answer.
            gone = [one for one in ended if id(one.queue) in doomed]
            lost += [token for one in gone for token in _tokens_of(one, tokens)]
            ended = [one for one in ended if id(one.queue) not in doomed]
        return ended, lost

    def _free(self, ended: Ended) -> None:
        """Give a subscription the places back that tasks took up in its window."""
        subscription = ended.batch.subscription
        if isinstance(subscription, Consumer):
            subscription.out -= len(ended.ids)
            self.wake(subscription)

    def start(self, caller: Caller, request: v2.Start) -> None:
        """Note which tasks of a caller's subscriptions user code has received. It is not answered."""
        self.leases.start(request.tokens, request.acked, caller)

    def release(self, caller: Caller, number: int, request: v2.Release) -> None:
        """Put tasks back that a caller gives up without an attempt."""
        ended, lost = self._settle(caller, request.tokens)
        self._put_back(ended)
        caller.answer(number, v2.Settled(lost) if lost else operations.SETTLED)

    def nack(self, caller: Caller, number: int, request: v2.Nack) -> None:
        if not self._may_move(caller, request):
            text = f"key {request.key} is outside the range of the task's queue"
            caller.answer(number, v2.Failed(Failure.INVALID, text))
            return
        ended, lost = self._settle(caller, request.tokens)
        answer = v2.Settled(lost) if lost else operations.SETTLED
        if not ended:
            caller.answer(number, answer)
            return
        now = self._clock()
        not_before_ms = None if request.delay_ms is None else now + request.delay_ms
        self._return(ended, not_before_ms, request.key)
        self.replica.propose((), operations.Answered(caller, number, answer))

    def _may_move(self, caller: Caller, request: v2.Nack) -> bool:
        """Return whether the queues of all tasks that the caller holds take the key they are to get."""
        find, key = self.leases.find, request.key
        batches = [batch for token in request.tokens if (batch := find(token, caller)) is not None]
        ranges = [batch.queue.policy.keys for batch in batches]
        return key is None or all(keys.hold((key,)) for keys in ranges if keys is not None)

    def extend(self, caller: Caller, number: int, request: v2.Extend) -> None:
        now = self._steady()
        lost: list[int] = []
        for token in request.tokens:
            batch = self.leases.find(token, caller)
            if batch is None or batch.queue.is_doomed:
                lost.append(token)
                continue
            lease_ms = min(request.lease_ms or batch.queue.options.lease_ms, LEASE_MS_MAX)
            self.leases.extend((token,), deadline_ms=now + lease_ms)
        caller.answer(number, v2.Settled(lost))

    def _return(
        self, ended: Sequence[Ended], not_before_ms: int | None = None, key: int | None = None
    ) -> None:
        """Put tasks back after a failed delivery, into their place, under another key, or with the dead."""
        for queue, ids in _by_queue(ended):
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

    def _expire(self, queue: Queue, ids: Sequence[int]) -> None:
        """Drop tasks whose time is over, or put them with the dead."""
        if queue.is_doomed:
            return  # behind the entry that deletes it none may speak of it; the tasks go with it
        dead_letter = queue.options.dead_letter
        if dead_letter is not None:
            moved = self._move(queue, ids, self._find(dead_letter), "dead_lettered")
            ids = [task_id for task_id in ids if task_id not in moved]
        if ids:
            self._propose_removal(queue, ids, "expired")

    def leave(self, caller: Caller) -> None:
        """Forget a caller that is gone: its leases and its waiting end."""
        caller.is_gone = True
        for consumer in list(caller.consumers):
            self.end(consumer)
        self._return_ended(self.leases.end_all_of(caller))

    def unsubscribe(self, consumer: Consumer) -> None:
        """End a subscription: what its caller has not started is released, the rest stays on lease."""
        self.end(consumer)
        self._return_ended(self.leases.end_released_of(consumer.caller, consumer))

    def _return_ended(self, ended: Sequence[Ended]) -> None:
        """Bring tasks back whose leases ended by themselves: only those that were started count an attempt."""
        acked: list[Ended] = []
        attempted: list[Ended] = []
        released: list[Ended] = []
        for one in ended:
            self._free(one)
            for part, into in zip(one.split(), (acked, attempted, released), strict=True):
                if part.ids:
                    into.append(part)
        for queue, ids in _by_queue(acked):
            if not queue.is_doomed:
                self._propose_removal(queue, ids, "acked")
        self._return(attempted)
        self._put_back(released)

    def _put_back(self, released: Sequence[Ended]) -> None:
        """Make tasks ready again in their old places; the log never knew that they were out."""
        for queue, ids in _by_queue(released):
            if queue.is_doomed:
                continue
            queue.put_back(ids)
            self._hungry[queue.number] = queue
            if len(queue.expiring):
                self._watch(queue)


def _by_queue(ended: Sequence[Ended]) -> list[tuple[Queue, Sequence[int]]]:
    """Group ended leases by queue, in the order in which they came."""
    if len(ended) == 1:
        return [(ended[0].queue, ended[0].ids)]
    found: dict[int, tuple[Queue, list[int]]] = {}
    for one in ended:
        found.setdefault(one.queue.number, (one.queue, []))[1].extend(one.ids)
    return list(found.values())


def _tokens_of(ended: Ended, tokens: Sequence[int]) -> list[int]:
    """Return those of ``tokens`` that named the leases that have ended here."""
    ids = set(ended.ids)
    batch = ended.batch
    places = range(batch.first, batch.first + len(batch.ids))
    return [token for token in tokens if token in places and batch.ids[token - batch.first] in ids]
