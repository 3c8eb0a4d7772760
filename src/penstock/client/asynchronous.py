"""The asyncio client: the same names as the blocking one, each to be awaited. The page is docs/client.md."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.client import failures
from penstock.client.addresses import Address, parse_addresses
from penstock.client.async_link import AsyncDialer, AsyncLink, AsyncTicket
from penstock.client.async_subscription import AsyncSubscription
from penstock.client.connecting import Connecting
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
) -> Connecting[AsyncClient]:
    """Connect to a node and return a client; ``penstock.spooling.connecting`` documents the arguments."""
    addresses = parse_addresses(address)
    timeout = checked_seconds(timeout, "timeout", positive=True)

    async def connected() -> AsyncClient:
        client = client_of(addresses, timeout=timeout, producer=producer, retry=retry)
        await client.connect()
        return client

    return Connecting(connected)


def client_of(
    addresses: tuple[Address, ...], *, timeout: float, producer: str | None, retry: float
) -> AsyncClient:
    """Return a client that connects to one of these nodes when it is first used."""
    nodes = Nodes(addresses, clock=time.monotonic)
    dialer = AsyncDialer(nodes, timeout=timeout)
    return AsyncClient(dialer, timeout=timeout, producer=producer, retry=retry, nodes=nodes)


class AsyncClient:
    """A connection to a node that reconnects by itself. Any number of tasks of one event loop can use it at once.

    Every method raises ``InvalidValue`` for an invalid argument, ``ConnectionFailed`` if no node can be reached for
    ``retry`` seconds or the client is closed, ``ConnectionLost`` if the outcome of the request is unknown, and
    ``RequestRefused`` if the node rejects the request. ``penstock.aio.connect`` returns clients.
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
        """Internal: connect now instead of with the first request."""
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
        """Add a task to a queue. Return its id when the task is durable.

        Tasks with smaller keys are delivered first. ``delay``: seconds before the task can be delivered. ``ttl``:
        seconds after which the task expires. Raises ``QueueMissing``, ``QueueFull``, ``KeyOutOfRange`` and
        ``PayloadTooLarge``.
        """
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
        """Add many tasks to a queue, in order. Return their ids when all are durable.

        Several batches are in flight at once, and the call is not atomic: an exception in the middle carries
        ``ids``, with one id for each payload that the node answered for and ``None`` for each that it rejected.
        Later payloads were not added; if the connection broke, their outcome is unknown. Raises as ``enqueue``.
        """
        return await self.run(
            self._operations.enqueue_many(queue, payloads, key=key, keys=keys, delay=delay, ttl=ttl)
        )

    async def enqueue_numbered(self, requests: Iterable[Enqueue]) -> int:
        """Send requests that carry the caller's own producers and sequence numbers. Return the number of tasks.

        For connectors that repeat their work from the start after a crash, such as a Spark task: the node ignores a
        request whose number it has already accepted. Raises as ``enqueue``, and ``SequenceForgotten``.
        """
        return await self.run(self._operations.enqueue_numbered(requests))

    # --- tasks out ---

    def dequeue(
        self, queue: str, *, wait: float = 0.0, lease: float | None = None
    ) -> AbstractAsyncContextManager[Delivery | None]:
        """Take one task: ``async with client.dequeue(queue) as delivery``. The delivery is ``None`` if no task was ready.

        The end of the block acknowledges the task; an exception in the block returns it to the queue. Neither happens if
        the block called ``ack`` or ``nack`` itself. ``wait``: seconds to wait for a task. ``lease``: seconds until the
        task returns to the queue if it was not acknowledged; by default the lease of the queue. Raises
        ``QueueMissing``.
        """
        return AsyncDequeue(self, self._operations.held, queue, wait=wait, lease=lease)

    async def dequeue_many(
        self, queue: str, count: int, *, wait: float = 0.0, lease: float | None = None
    ) -> list[Delivery]:
        """Take up to ``count`` tasks. Acknowledge or return each of them with ``ack`` or ``nack``.

        ``wait``: seconds to wait for the first task; the call does not wait for more. ``lease``: as for ``dequeue``.
        Raises ``QueueMissing``.
        """
        request = dequeue_request(queue, count=count, wait=wait, lease=lease)
        return await self.run(self._operations.dequeue(request))

    async def ack(self, given: Delivery | Iterable[Delivery]) -> None:
        """Acknowledge one or more deliveries: the node removes their tasks.

        Raises ``LeaseLost`` if a lease had ended. Its ``deliveries`` are those affected; the others are acknowledged.
        """
        await self.run(self._operations.settle(Ack(()), as_list(given)))

    async def nack(
        self,
        given: Delivery | Iterable[Delivery],
        *,
        delay: float | None = None,
        key: int | None = None,
    ) -> None:
        """Return one or more tasks to their queue. This counts as an attempt.

        ``delay``: seconds before the tasks can be delivered again. ``key``: a new key; by default the tasks keep
        theirs and their place. Raises ``LeaseLost`` as ``ack``.
        """
        await self.run(self._operations.settle(nack_request(delay, key), as_list(given)))

    async def extend(
        self, given: Delivery | Iterable[Delivery], *, lease: float | None = None
    ) -> None:
        """Extend the leases of one or more deliveries to ``lease`` seconds from now.

        ``lease``: by default the lease of the queue. Raises ``LeaseLost`` as ``ack``.
        """
        await self.run(self._operations.settle(Extend((), lease_ms(lease)), as_list(given)))

    def subscribe(
        self, queue: str, *, prefetch: int = 100, lease: float | None = None
    ) -> AsyncSubscription:
        """Subscribe to a queue: return an iterator over its tasks as they arrive.

        ``prefetch``: the maximum number of tasks that are delivered and not acknowledged. ``lease``: as for
        ``dequeue``.
        """
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
        """Create a queue.

        ``implementation``: ``"heap"``, ``"array"`` (needs ``keys``) or ``"paged"`` (for queues larger than memory).
        ``size_max``: the maximum number of tasks. ``payload_size_max``: the maximum bytes of a payload. ``keys``: the
        lowest and the highest key. ``lease``: seconds, by default the default of the node. ``None`` means no limit.

        ``dead_letter``: an existing queue that receives tasks after ``attempts_max`` attempts, and expired tasks.
        Without it, expired tasks are removed and ``attempts_max`` is an ``InvalidValue``. Raises ``QueueExists``
        unless ``exist_ok`` is true, and ``QueueMissing`` if the dead-letter queue does not exist.
        """
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
        """Delete a queue and its tasks. Raises ``QueueMissing`` and ``QueueInUse``."""
        await self.run(self._operations.delete(name))

    async def queues(self) -> list[QueueStat]:
        """Return the state and counters of every queue."""
        return list((await self.run(self._operations.ask(Stat(None), Stats))).queues)

    async def stat(self, name: str) -> QueueStat:
        """Return the state and counters of a queue. Raises ``QueueMissing``."""
        return await self.run(self._operations.stat(name))

    async def purge(self, name: str) -> int:
        """Remove every task of a queue that is not leased. Return their number. Raises ``QueueMissing``."""
        return (await self.run(self._operations.ask(Purge(checked_queue(name)), Purged))).count

    async def peek(self, queue: str, count: int = 1) -> list[PeekedTask]:
        """Return the next ``count`` tasks of a queue without taking them. Raises ``QueueMissing``."""
        request = peek_request(queue, count)
        return peeked_tasks(await self.run(self._operations.ask(request, Peeked)))

    # --- node and cluster ---

    async def node(self) -> NodeInfo:
        """Return the identity, limits and log position of the node."""
        return await self.run(self._operations.ask(Node(), NodeInfo))

    async def ping(self) -> None:
        """Wait for one answer of the node."""
        await self.run(self._operations.ask(Ping(), Ok))

    async def cluster(self, *, own: bool = False) -> ClusterInfo:
        """Return the state of the cluster as the leader reports it.

        If the leader cannot be reached, another node answers. ``own``: always ask the node that this client is
        connected to.
        """
        return await self.run(self._operations.cluster(own=own))

    async def change_members(
        self,
        *,
        voters: Mapping[int, str] | None = None,
        learners: Mapping[int, str] | None = None,
        remove: Iterable[int] = (),
    ) -> None:
        """Change the members of the cluster in one step. Return when the change is committed.

        ``voters`` and ``learners``: peer addresses by node id; ``""`` keeps a known address. ``remove``: node ids.
        Raises ``RequestRefused`` if the cluster cannot make the change now, and ``ConnectionLost`` if the outcome is
        unknown.
        """
        request = change_request(voters or {}, learners or {}, remove)
        await self.run(self._operations.ask(request, Ok))

    async def transfer(self, to: int) -> None:
        """Make the node ``to`` the leader. Return when it leads. Raises as ``change_members``."""
        await self.run(self._operations.ask(transfer_request(to), Ok))

    async def entries(
        self, first: int = 0, *, follow: bool = False
    ) -> AsyncIterator[tuple[int, int, bytes]]:
        """Yield (index, term, payload) of the committed log entries from index ``first`` to the current end.

        ``follow``: do not stop at the end; wait for further entries. Raises ``Compacted`` if a snapshot has replaced
        the entry ``first``; its ``first`` is the first index that can be read.
        """
        pages = self._operations.pages(first, follow=follow)
        while True:
            page = await self.run(pages.next_page())
            if page is None:
                return
            for entry in page:
                yield entry

    async def entries_page(self, first: int = 0, *, size_max: int = 0) -> Entries:
        """Return one batch of committed log entries from index ``first``. The batch is empty at the end of the log.

        ``size_max``: the maximum bytes of payload, except that one entry is always returned; 0 lets the node choose.
        Raises ``Compacted``.
        """
        return await self.run(self._operations.page(first, size_max=size_max))

    # --- end ---

    async def close(self) -> None:
        """Close the connection. Leased tasks return to their queues. A second call does nothing."""
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
        """Internal: run an operation of this package."""
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
    """The context manager that ``AsyncClient.dequeue`` returns."""

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
