"""The asyncio client: the same names as the blocking one, each to be awaited. The page is docs/client.md."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.client import failures
from penstock.client.addresses import Address, parse_addresses
from penstock.client.async_link import AsyncDialer, AsyncLink, AsyncTicket
from penstock.client.async_subscription import AsyncSubscription
from penstock.client.effects import (
    Ask,
    Collect,
    Effect,
    Exchange,
    LeaveConnection,
    Operation,
    Pause,
    Send,
    TakeSequence,
)
from penstock.client.nodes import Nodes, Way, learn_nothing
from penstock.client.operations import Operations
from penstock.client.producer import Sequences, first_sequence, producer_id
from penstock.client.requests import (
    change_request,
    create_request,
    dequeue_request,
    nack_request,
    peek_request,
    subscribe_request,
    transfer_request,
)
from penstock.client.retries import checked_seconds, patience
from penstock.client.values import (
    Delivery,
    PeekedTask,
    as_list,
    checked_queue,
    lease_ms,
    peeked_tasks,
)
from penstock.errors import ConnectionFailed, LeaseLost, PenstockError
from penstock.protocol.version2 import (
    Ack,
    ClusterInfo,
    Enqueue,
    Entries,
    Extend,
    Node,
    NodeInfo,
    Ok,
    Peeked,
    Ping,
    Purge,
    Purged,
    QueueStat,
    Request,
    Stat,
    Stats,
    Subscribe,
)

T = TypeVar("T")

AsyncConnect = Callable[[], Awaitable[AsyncLink]]
"""Makes a new connection. Raises ``ConnectionFailed``."""


def connect(
    address: str, *, timeout: float = 10.0, producer: str | None = None, retry: float = 30.0
) -> Connecting:
    """Return a client of a node, to be awaited or entered: ``async with connect(…) as client``.

    Arguments and exceptions are those of ``penstock.connect``.
    """
    addresses = parse_addresses(address)
    timeout = checked_seconds(timeout, "timeout", positive=True)
    return Connecting(lambda: client_of(addresses, timeout=timeout, producer=producer, retry=retry))


def client_of(
    addresses: tuple[Address, ...], *, timeout: float, producer: str | None, retry: float
) -> AsyncClient:
    """Return a client that connects to one of these nodes when it is first used."""
    nodes = Nodes(addresses, clock=time.monotonic)
    dialer = AsyncDialer(nodes, timeout=timeout)
    return AsyncClient(dialer, timeout=timeout, producer=producer, retry=retry, nodes=nodes)


class Connecting:
    """A client that is about to connect."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        self._client: AsyncClient | None = None

    async def _connect(self) -> AsyncClient:
        client = self._make()
        await client.connect()
        return client

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()


class AsyncClient:
    """A connection to a node that mends itself. Any number of tasks of one event loop may use it at once.

    Every method does what the method of that name of ``penstock.Client`` does, and raises the same.
    """

    def __init__(
        self,
        connect: AsyncConnect,
        *,
        timeout: float = 10.0,
        producer: str | None = None,
        retry: float = 30.0,
        nodes: Nodes | None = None,
    ) -> None:
        self._connect = connect
        self._nodes = nodes
        self._timeout = checked_seconds(timeout, "timeout", positive=True)
        self._sequences = Sequences(first_sequence(producer, now_ns=time.time_ns()))
        self._sequence_waiters: deque[asyncio.Future[None]] = deque()
        self._operations = Operations(
            retry=checked_seconds(retry, "retry", positive=False),
            producer=producer_id(producer),
            learn=learn_nothing if nodes is None else nodes.learn,
            take_sequence=self._sequences.take,
            release_sequence=self._release_sequence,
            clock=time.monotonic,
            chance=random.random,
        )
        self._closed = asyncio.Event()
        self._connecting = asyncio.Lock()  # held while a connection is made or left
        self._retired: list[
            AsyncLink
        ] = []  # connections that were left and may still bring answers
        self._link: AsyncLink | None = None

    async def connect(self) -> None:
        """Connect now, rather than with the first request."""
        await self._connected()

    # --- tasks in ---

    async def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        key: int = 0,
        delay: float | None = None,
        ttl: float | None = None,
    ) -> int:
        """Put a task in a queue and return its id, once it is durable."""
        operation = self._operations.enqueue(queue, payload, key=key, delay=delay, ttl=ttl)
        return await self.run(operation)

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        key: int = 0,
        keys: Iterable[int] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
    ) -> list[int]:
        """Put many tasks in a queue, in order, and return their ids."""
        return await self.run(
            self._operations.enqueue_many(queue, payloads, key=key, keys=keys, delay=delay, ttl=ttl)
        )

    async def enqueue_numbered(self, requests: Iterable[Enqueue]) -> int:
        """Send enqueues whose producers and numbers are the caller's own, and return how many tasks they hold."""
        return await self.run(self._operations.enqueue_numbered(requests))

    # --- tasks out ---

    def dequeue(self, queue: str, *, wait: float = 0.0, lease: float | None = None) -> AsyncDequeue:
        """Take one task out: ``async with client.dequeue(queue) as delivery``. ``None`` if there was none."""
        return AsyncDequeue(self, self._operations.held, queue, wait=wait, lease=lease)

    async def dequeue_many(
        self, queue: str, count: int, *, wait: float = 0.0, lease: float | None = None
    ) -> list[Delivery]:
        """Take up to ``count`` tasks out, each to be acked or nacked."""
        request = dequeue_request(queue, count=count, wait=wait, lease=lease)
        return await self.run(self._operations.dequeue(request))

    async def ack(self, given: Delivery | Iterable[Delivery]) -> None:
        """Say that tasks are done; they are gone for good."""
        await self.run(self._operations.settle(Ack(()), as_list(given)))

    async def nack(
        self,
        given: Delivery | Iterable[Delivery],
        *,
        delay: float | None = None,
        key: int | None = None,
    ) -> None:
        """Give tasks back, to their old place or that of another ``key``."""
        await self.run(self._operations.settle(nack_request(delay, key), as_list(given)))

    async def extend(
        self, given: Delivery | Iterable[Delivery], *, lease: float | None = None
    ) -> None:
        """Keep tasks for ``lease`` seconds from now, else as the queue says."""
        await self.run(self._operations.settle(Extend((), lease_ms(lease)), as_list(given)))

    def subscribe(
        self, queue: str, *, prefetch: int = 100, lease: float | None = None
    ) -> AsyncSubscription:
        """Return the tasks of a queue as they come; at most ``prefetch`` are out without an ack."""
        request = subscribe_request(queue, prefetch=prefetch, lease=lease)
        return AsyncSubscription(_Port(self, self._operations, self._timeout), request)

    # --- queues ---

    async def create_queue(
        self,
        name: str,
        *,
        implementation: str = "heap",
        size_max: int | None = None,
        payload_size_max: int | None = None,
        keys: tuple[int, int] | None = None,
        lease: float | None = None,
        attempts_max: int | None = None,
        dead_letter: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a queue."""
        request = create_request(
            name,
            implementation=implementation,
            size_max=size_max,
            payload_size_max=payload_size_max,
            keys=keys,
            lease=lease,
            attempts_max=attempts_max,
            dead_letter=dead_letter,
        )
        await self.run(self._operations.create(request, exist_ok=exist_ok))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue and its tasks."""
        await self.run(self._operations.delete(name))

    async def queues(self) -> list[QueueStat]:
        """Return how every queue is doing."""
        return list((await self.run(self._operations.ask(Stat(None), Stats))).queues)

    async def stat(self, name: str) -> QueueStat:
        """Return how a queue is doing."""
        return await self.run(self._operations.stat(name))

    async def purge(self, name: str) -> int:
        """Drop every task that is not out on lease and return how many."""
        return (await self.run(self._operations.ask(Purge(checked_queue(name)), Purged))).count

    async def peek(self, queue: str, count: int = 1) -> list[PeekedTask]:
        """Return the tasks that would be delivered next, without taking them out."""
        request = peek_request(queue, count)
        return peeked_tasks(await self.run(self._operations.ask(request, Peeked)))

    # --- node and cluster ---

    async def node(self) -> NodeInfo:
        """Return what the node says of itself."""
        return await self.run(self._operations.ask(Node(), NodeInfo))

    async def ping(self) -> None:
        """Return when the node has answered."""
        await self.run(self._operations.ask(Ping(), Ok))

    async def cluster(self, *, own: bool = False) -> ClusterInfo:
        """Return the group of nodes as its leader sees it, or, if that cannot be reached, as another one does."""
        return await self.run(self._operations.cluster(own=own))

    async def change_members(
        self,
        *,
        voters: Mapping[int, str] | None = None,
        learners: Mapping[int, str] | None = None,
        remove: Iterable[int] = (),
    ) -> None:
        """Change who belongs to the group, all at once, and return when that is in force."""
        request = change_request(voters or {}, learners or {}, remove)
        await self.run(self._operations.ask(request, Ok))

    async def transfer(self, to: int) -> None:
        """Let the node with this number lead."""
        await self.run(self._operations.ask(transfer_request(to), Ok))

    async def entries(
        self, first: int = 0, *, follow: bool = False
    ) -> AsyncIterator[tuple[int, int, bytes]]:
        """Yield (index, term, payload) of committed entries from ``first`` on."""
        pages = self._operations.pages(first, follow=follow)
        while True:
            page = await self.run(pages.next_page())
            if page is None:
                return
            for entry in page:
                yield entry

    async def entries_page(self, first: int = 0, *, size_max: int = 0) -> Entries:
        """Return committed entries from ``first`` on, as many as the node sends at once."""
        return await self.run(self._operations.page(first, size_max=size_max))

    # --- end ---

    async def close(self) -> None:
        """End the connection; tasks that are out go back to their queues. Harmless when repeated."""
        self._closed.set()
        for link in (self._link, *self._retired):
            if link is not None:
                link.fail(failures.closed())
        while self._sequence_waiters:
            _wake(self._sequence_waiters)
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- carrying out ---

    async def run(self, operation: Operation[T]) -> T:
        """Carry out an operation; for the parts of a client, not for its users."""
        try:
            effect = next(operation)
            while True:
                try:
                    result = await self._perform(effect)
                except ConnectionFailed as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            operation.close()

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Ask(request, connection):
                ticket = await self._send(request, connection)
                return None if ticket is None else await self._collect(ticket)
            case Send(request, connection):
                return await self._send(request, connection)
            case Collect(ticket):
                assert isinstance(ticket, AsyncTicket)
                return await self._collect(ticket)
            case TakeSequence():
                return await self._take_sequence()
            case Pause(seconds):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), seconds)
                    raise failures.closed()
                return None
            case LeaveConnection(connection, leader):
                return await self._leave(connection, leader)

    async def _send(self, request: Request, connection: int | None) -> AsyncTicket | None:
        link = self._link
        is_open = link is not None and link.error is None and not link.is_retired
        if connection is None:
            if link is None or not is_open:
                link = await self._connected()
        elif link is None or link.number != connection or not is_open:
            if self._closed.is_set():
                raise failures.closed()
            return None
        await link.wait_for_room()
        return link.send(request, patience(request, self._timeout))

    async def _collect(self, ticket: AsyncTicket) -> Exchange:
        try:
            return await ticket.link.collect(ticket)
        finally:
            ticket.abandon()  # nothing is left to abandon unless it was cancelled

    async def _connected(self) -> AsyncLink:
        """Return a connection that works, as far as anybody knows. One task makes it for all."""
        async with self._connecting:
            if self._closed.is_set():
                raise failures.closed()
            link = self._link
            if link is None or link.error is not None or link.is_retired:
                link = self._link = await self._connect()
                if self._closed.is_set():  # closed meanwhile, when there was no link to close
                    link.fail(failures.closed())
            return link

    async def _leave(self, connection: int, leader: str | None) -> bool:
        """Talk to another node from now on, if there is one, and return whether that should be the leader."""
        async with self._connecting:
            link = self._link
            if link is None or link.number != connection:
                return True  # another task has left it, and knows more than we do
            way = Way.NOWHERE if self._nodes is None else self._nodes.turn(leader)
            if way is not Way.NOWHERE:
                link.retire()
                self._retired = [each for each in (*self._retired, link) if each.error is None]
            return way is Way.LEADER

    async def _take_sequence(self) -> int:
        while True:
            if self._closed.is_set():
                raise failures.closed()
            number = self._sequences.take()
            if number is not None:
                return number
            waiter = asyncio.get_running_loop().create_future()
            self._sequence_waiters.append(waiter)
            await waiter

    def _release_sequence(self, number: int) -> None:
        self._sequences.release(number)
        _wake(self._sequence_waiters)


def _wake(waiters: deque[asyncio.Future[None]]) -> None:
    """Wake the first that still waits."""
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return


class AsyncDequeue:
    """What ``AsyncClient.dequeue`` returns: an ``async with`` around one task."""

    def __init__(
        self,
        client: AsyncClient,
        held: set[tuple[int, int]],
        queue: str,
        *,
        wait: float,
        lease: float | None,
    ) -> None:
        dequeue_request(queue, count=1, wait=wait, lease=lease)  # a mistake shows where it was made
        self._client = client
        self._held = held
        self._queue, self._wait, self._lease = queue, wait, lease
        self._delivery: Delivery | None = None

    async def __aenter__(self) -> Delivery | None:
        taken = await self._client.dequeue_many(self._queue, 1, wait=self._wait, lease=self._lease)
        self._delivery = taken[0] if taken else None
        if self._delivery is not None:
            self._held.add((self._delivery.connection, self._delivery.token))
        return self._delivery

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is None or (delivery.connection, delivery.token) not in self._held:
            return
        if error is None:
            await self._client.ack(delivery)
            return
        # The task comes back by itself if the nack does not get through; the body's error is the one to see.
        with contextlib.suppress(LeaseLost, ConnectionFailed):
            await self._client.nack(delivery)


class _Port:
    """What a subscription may do with its client."""

    def __init__(self, client: AsyncClient, operations: Operations, timeout: float) -> None:
        self._client = client
        self._operations = operations
        self._timeout = timeout
        self._backoff = operations.backoff()  # from one success to the next

    async def subscribe(
        self, request: Subscribe, *, after: PenstockError | None, is_anew: bool
    ) -> AsyncTicket:
        if is_anew:
            self._backoff = self._operations.backoff()
        operation = self._operations.subscribe(request, self._backoff, after=after)
        ticket: AsyncTicket = await self._client.run(operation)
        return ticket

    async def leave(self, ticket: AsyncTicket, leader: str | None) -> None:
        await self._client.run(self._operations.turn(ticket.connection, leader))

    async def send_on(self, link: AsyncLink, request: Request) -> AsyncTicket:
        await link.wait_for_room()
        return link.send(request, self._timeout)

    async def unsubscribe(self, ticket: AsyncTicket) -> None:
        operation = self._operations.unsubscribe(ticket.number, ticket.connection)
        await self._client.run(operation)
