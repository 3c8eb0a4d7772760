"""Everything a client can do, once for both faces: generators that yield effects (``effects``).

Here is decided what is repeated, how failures become exceptions, and what an answer means. No socket,
no waiting; time and chance come in as callables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from penstock.client.batches import Batch, cut
from penstock.client.effects import (
    Ask,
    Collect,
    Exchange,
    LeaveConnection,
    Operation,
    Pause,
    Send,
    TakeSequence,
)
from penstock.client.failures import (
    carry,
    failure,
    lease_lost,
    outcome_unknown,
    refusal,
    task_ids,
)
from penstock.client.requests import is_as_asked, read_request
from penstock.client.retries import PAUSE_ELECTION, PAUSE_MAX, Backoff, repeated
from penstock.client.values import (
    Delivery,
    checked_key,
    checked_payload,
    checked_queue,
    deliveries,
    optional_ms,
    whole_number,
)
from penstock.client.window import Batches, Window
from penstock.errors import (
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    NotLeader,
    PenstockError,
    QueueExists,
    QueueMissing,
    RequestRefused,
    Unreachable,
)
from penstock.model import INT32_MAX, INT64_MAX
from penstock.protocol.version2 import (
    BATCH_MAX,
    Ack,
    Answer,
    Cluster,
    ClusterInfo,
    Create,
    Delete,
    Dequeue,
    Enqueue,
    Enqueued,
    Entries,
    Extend,
    Failed,
    Failure,
    Nack,
    NodeInfo,
    Producer,
    QueueStat,
    Read,
    Request,
    Settled,
    Stat,
    Stats,
    Subscribe,
    Unsubscribe,
)

A = TypeVar("A")


class Reply(NamedTuple):
    """The end of a request: its exchange, and whether it had been sent before without an answer."""

    exchange: Exchange
    repeated: bool


class Operations:
    """The operations of one client."""

    def __init__(
        self,
        *,
        retry: float,
        producer: bytes,
        learn: Callable[[Iterable[str]], None],
        take_sequence: Callable[[], int | None],
        release_sequence: Callable[[int], None],
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._retry = retry
        self._producer = producer
        self._learn_addresses = learn  # takes in where the nodes of a cluster are
        self._take_sequence = take_sequence  # None: not now, the effect waits for one
        self._release_sequence = release_sequence
        self._clock = clock
        self._chance = chance
        # (connection, token) of deliveries that a ``with`` will settle unless its body does.
        self.held: set[tuple[int, int]] = set()

    # --- one request, repeated while that is safe ---

    def backoff(self) -> Backoff:
        return Backoff(retry=self._retry, clock=self._clock, chance=self._chance)

    def call(self, request: Request) -> Operation[Reply]:
        """Ask until there is an answer. Raises what the node refuses, and ``ConnectionFailed``."""
        return (yield from self._call(request, self.backoff(), was_sent=False))

    def _call(self, request: Request, backoff: Backoff, *, was_sent: bool) -> Operation[Reply]:
        while True:
            problem: PenstockError
            try:
                exchange: Exchange = yield Ask(request)
            except (ConnectionLost, Unreachable) as error:
                problem = error
            else:
                if not isinstance(exchange.answer, Failed):
                    self._learn(exchange.answer)
                    return Reply(exchange=exchange, repeated=was_sent)
                problem = carry(failure(exchange.answer, request), was_repeated=was_sent)
                is_leader_known = yield from self.leave(exchange, problem)
                if is_leader_known and backoff.take_first():
                    continue
            if isinstance(problem, ConnectionLost):
                was_sent = True
                again = repeated(request, elapsed=backoff.elapsed)
                if again is None:
                    raise outcome_unknown(problem, request) from problem
                request = again
            given_up = outcome_unknown(problem, request) if was_sent else problem
            yield from self._pause(backoff, given_up, problem)

    def leave(self, exchange: Exchange, problem: PenstockError) -> Operation[bool]:
        """Turn to another node if that may help, and return whether it is the leader; else raise ``problem``."""
        if not isinstance(problem, NotLeader | ConnectionLost | Unreachable):
            raise problem
        leader = problem.address if isinstance(problem, NotLeader) else None
        is_known: bool = yield LeaveConnection(exchange.connection, leader)
        return is_known

    def turn(self, connection: int, leader: str | None) -> Operation[None]:
        """Turn to another node than that of a connection."""
        yield LeaveConnection(connection, leader)

    def _learn(self, answer: Answer) -> None:
        if isinstance(answer, NodeInfo):
            self._learn_addresses(answer.addresses)
        elif isinstance(answer, ClusterInfo):
            self._learn_addresses([each.client_address for each in answer.members])

    def _pause(
        self, backoff: Backoff, given_up: PenstockError, cause: PenstockError | None
    ) -> Operation[None]:
        """Wait before a repetition, or raise ``given_up`` if it is too late for one."""
        pause = backoff.next_pause(
            at_most=PAUSE_ELECTION if isinstance(cause, NotLeader) else PAUSE_MAX
        )
        if pause is not None:
            yield Pause(pause)
        elif given_up is cause:
            raise given_up
        else:
            raise given_up from cause

    def ask(self, request: Request, kind: type[A]) -> Operation[A]:
        """Return the answer to a request; the connection has seen to it that it is of this kind."""
        reply = yield from self.call(request)
        answer = reply.exchange.answer
        assert isinstance(answer, kind)
        return answer

    # --- queues ---

    def create(self, request: Create, *, exist_ok: bool) -> Operation[None]:
        try:
            yield from self.call(request)
        except QueueExists as error:
            if exist_ok:
                return
            if not _was_repeated(error):
                raise
            # The lost request may have made it, or somebody else did: what is there decides.
            if not is_as_asked((yield from self.stat(request.queue)), request):
                raise

    def delete(self, queue: str) -> Operation[None]:
        try:
            yield from self.call(Delete(checked_queue(queue)))
        except QueueMissing as error:
            if not _was_repeated(error):
                raise

    def stat(self, queue: str) -> Operation[QueueStat]:
        request = Stat(checked_queue(queue))
        stats = yield from self.ask(request, Stats)
        if not stats.queues:
            raise failure(Failed(Failure.QUEUE_MISSING, ""), request)
        return stats.queues[0]

    # --- enqueue ---

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        key: int = 0,
        keys: Iterable[int] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
    ) -> Operation[list[int]]:
        """Send payloads in frames, several in flight, and return the ids of all."""
        template = _enqueue_request(queue, delay=delay, ttl=ttl)
        batches = Batches(cut(payloads, key=key, keys=keys))
        window = Window()
        ids: list[int | None] = []
        try:
            while True:
                while window.has_room and batches.advance():
                    request = yield from self._numbered(template, batches.batch)
                    yield from self._send(request, window)
                if not window.requests:
                    break
                ids += yield from self._collect_oldest(window, batches)
        except ConnectionFailed as error:
            carry(error, ids=ids)
            raise
        finally:
            for request in window.abandon():
                self._release(request)
        if batches.error is not None:
            raise carry(batches.error, ids=ids)
        return [each for each in ids if each is not None]

    def enqueue_numbered(self, requests: Iterable[Enqueue]) -> Operation[int]:
        """Send enqueues that carry numbers of their own, several in flight, and return how many tasks they hold.

        Raises what the first refused one was refused with; those in flight behind it may have been taken.
        """
        coming = iter(requests)
        window = Window()
        count = 0
        try:
            while True:
                while window.has_room and (request := next(coming, None)) is not None:
                    assert request.producer is not None, "a request without a number counts twice"
                    yield from self._send(request, window)
                if not window.requests:
                    return count
                answer = yield from self._collect(window)
                request = window.remove_oldest()
                refused = refusal(answer, request)
                if refused is not None:
                    raise refused
                count += len(request.payloads)
        finally:
            window.abandon()

    def _collect_oldest(self, window: Window, batches: Batches) -> Operation[list[int | None]]:
        """Return the ids of the oldest frame in flight; a refusal ends the batches."""
        request = window.requests[0]
        try:
            answer = yield from self._collect(window)
            ids = task_ids(answer, request)
            batches.end(refusal(answer, request))
        except (RequestRefused, InvalidValue) as error:
            ids = [None] * len(request.payloads)
            batches.end(error)
        self._release(window.remove_oldest())
        return ids

    def enqueue(
        self, queue: str, payload: bytes, *, key: int, delay: float | None, ttl: float | None
    ) -> Operation[int]:
        template = _enqueue_request(queue, delay=delay, ttl=ttl)
        batch = [checked_key(key)], [checked_payload(payload)]
        request = yield from self._numbered(template, batch)
        try:
            answer = yield from self.ask(request, Enqueued)
        finally:
            self._release(request)
        (task_id,) = task_ids(answer, request)
        refused = refusal(answer, request)
        if refused is not None:
            raise refused
        assert task_id is not None
        return task_id

    def _numbered(self, template: Enqueue, batch: Batch) -> Operation[Enqueue]:
        sequence = self._take_sequence()
        if sequence is None:
            sequence = yield TakeSequence()
        producer = Producer(self._producer, sequence)
        return Enqueue(template.queue, *batch, template.delay_ms, template.ttl_ms, producer)

    def _release(self, request: Enqueue) -> None:
        assert request.producer is not None
        self._release_sequence(request.producer.sequence)

    def _send(self, request: Enqueue, window: Window) -> Operation[None]:
        """Send without waiting; a request that cannot be sent now is left to ``_collect``."""
        window.add(request)
        try:
            window.ticket((yield Send(request, window.connection)))
        except Unreachable:
            pass
        except ConnectionLost as error:
            window.lost = error

    def _collect(self, window: Window) -> Operation[Enqueued]:
        """Return the answer to the oldest enqueue of the window, repeating it if its connection broke.

        It is collected, and so repeated, before any other: the order of tasks stays.
        """
        request, ticket = window.oldest
        backoff = self.backoff()
        problem: PenstockError | None = window.lost if ticket is None else None
        is_leader_known = False
        if ticket is not None:
            try:
                exchange: Exchange = yield Collect(ticket)
            except (ConnectionLost, Unreachable) as error:
                problem = error
            else:
                answer = exchange.answer
                if isinstance(answer, Enqueued):
                    return answer
                problem = failure(answer, request)
                is_leader_known = yield from self.leave(exchange, problem)
        was_sent = isinstance(problem, ConnectionLost)
        if problem is not None and not (is_leader_known and backoff.take_first()):
            given_up = outcome_unknown(problem, request) if was_sent else problem
            yield from self._pause(backoff, given_up, problem)
        reply = yield from self._call(request, backoff, was_sent=was_sent)
        repeated_answer: Enqueued = reply.exchange.answer
        return repeated_answer

    # --- deliveries ---

    def dequeue(self, request: Dequeue) -> Operation[list[Delivery]]:
        reply = yield from self.call(request)
        exchange = reply.exchange
        return deliveries(
            exchange.answer,
            queue=request.queue,
            connection=exchange.connection,
            received=exchange.received,
        )

    def settle(self, request: Ack | Nack | Extend, given: Sequence[Delivery]) -> Operation[None]:
        """Send a request about these deliveries, each on the connection it came by.

        Raises ``LeaseLost`` for those whose lease had ended, after the rest was settled, and
        ``ConnectionLost`` if the connection broke before the answer.
        """
        lost: list[Delivery] = []
        for connection in dict.fromkeys(each.connection for each in given):
            group = [each for each in given if each.connection == connection]
            if not isinstance(request, Extend):
                self.held.difference_update((connection, each.token) for each in group)
            for start in range(0, len(group), BATCH_MAX):
                part = group[start : start + BATCH_MAX]
                lost += yield from self._settle(request, part, connection)
        if lost:
            raise lease_lost(lost)

    def _settle(
        self, request: Ack | Nack | Extend, part: Sequence[Delivery], connection: int
    ) -> Operation[list[Delivery]]:
        request = replace(request, tokens=[each.token for each in part])
        try:
            exchange: Exchange | None = yield Ask(request, connection)
        except Unreachable:
            exchange = None
        except ConnectionLost as error:
            raise outcome_unknown(error, request) from error
        if exchange is None:
            return list(part)  # the leases ended with the connection
        if isinstance(exchange.answer, Failed):
            problem = failure(exchange.answer, request)
            if isinstance(problem, NotLeader):
                return list(part)  # leases are a leader's own books, and end with it
            if isinstance(problem, ConnectionLost):
                raise outcome_unknown(problem, request)
            raise problem
        return lost_of(exchange.answer, part)

    def subscribe(
        self, request: Subscribe, backoff: Backoff, *, after: PenstockError | None
    ) -> Operation[Any]:
        """Send a subscription, connecting as often as it takes, and return its ticket.

        ``after`` is what ended the one before; then it is not in a hurry, for a node that breaks every connection
        must not be stormed.
        """
        if after is not None:
            yield from self._pause(backoff, after, after)
        while True:
            try:
                return (yield Send(request))
            except (ConnectionLost, Unreachable) as error:
                yield from self._pause(backoff, error, error)

    def unsubscribe(self, subscription: int, connection: int) -> Operation[None]:
        """End a subscription, if its connection has not ended it. Raises ``ConnectionFailed``."""
        yield Ask(Unsubscribe(subscription), connection)

    # --- the cluster ---

    def cluster(self, *, own: bool) -> Operation[ClusterInfo]:
        """Return the group as its leader sees it, if that can be reached, or as whoever answers does."""
        reply = yield from self.call(Cluster())
        info: ClusterInfo = reply.exchange.answer
        leader = next((each.client_address for each in info.members if each.is_leader), "")
        if own or info.is_leading or not leader:
            return info
        if (yield LeaveConnection(reply.exchange.connection, leader)):
            try:
                exchange: Exchange = yield Ask(Cluster())
            except (ConnectionLost, Unreachable):
                return info
            if isinstance(exchange.answer, ClusterInfo):
                return exchange.answer
        return info

    # --- entries ---

    def page(self, first: int, *, size_max: int) -> Operation[Entries]:
        """Return the next entries as the node sends them."""
        first = whole_number(first, "first", lowest=0, highest=INT64_MAX)
        size_max = whole_number(size_max, "size_max", lowest=0, highest=INT32_MAX)
        return (yield from self.ask(Read(first, size_max), Entries))

    def pages(self, first: int, *, follow: bool) -> Pages:
        return Pages(self, read_request(first, follow=follow), follow=follow)


class Pages:
    """Reads committed entries page by page."""

    def __init__(self, operations: Operations, request: Read, *, follow: bool) -> None:
        self._operations = operations
        self._request = request
        self._follow = follow
        self._end: int | None = None  # where to stop: what was committed when the reading began

    def next_page(self) -> Operation[Iterator[tuple[int, int, bytes]] | None]:
        """Return (index, term, payload) of the next entries, ``None`` behind the last."""
        while self._end is None or self._request.first < self._end:
            page = yield from self._operations.ask(self._request, Entries)
            if not self._follow and self._end is None:
                self._end = page.committed + 1
            if page.terms:
                end = page.first + len(page.terms)
                self._request = replace(self._request, first=end)
                return zip(range(page.first, end), page.terms, page.payloads, strict=True)
            if not self._follow:
                break
        return None


def lost_of(answer: Settled, part: Sequence[Delivery]) -> list[Delivery]:
    """Return the deliveries whose lease had ended before the node heard of them."""
    if not answer.lost:
        return []
    lost = set(answer.lost)
    return [each for each in part if each.token in lost]


def _was_repeated(error: PenstockError) -> bool:
    return bool(getattr(error, "was_repeated", False))


def _enqueue_request(queue: str, *, delay: float | None, ttl: float | None) -> Enqueue:
    """Return an enqueue of nothing yet."""
    delay_ms, ttl_ms = optional_ms(delay, "delay"), optional_ms(ttl, "ttl")
    return Enqueue(checked_queue(queue), (), (), delay_ms, ttl_ms)
