"""The blocking client: thread-safe, without a thread of its own. The page is docs/client.md."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.client import failures
from penstock.client.addresses import parse_addresses
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
from penstock.client.link import Link, Ticket
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
from penstock.client.subscription import Subscription
from penstock.client.transport import Connect, Dialer
from penstock.client.values import (
    Delivery,
    PeekedTask,
    as_list,
    checked_queue,
    lease_ms,
    peeked_tasks,
)
from penstock.errors import ConnectionFailed, LeaseLost, PenstockError, Unreachable
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


def connect(
    address: str, *, timeout: float = 10.0, producer: str | None = None, retry: float = 30.0
) -> Client:
    """Return a client that is connected to a node: ``"host:port"``, ``"host"``, ``"host1:port,host2:port"``.

    ``timeout``: seconds that the node may be silent while something is unanswered. ``retry``: seconds
    for which requests are repeated after the connection broke, if that is safe. ``producer``: a name for
    this program, so that the node keeps one row for it and not one for each run; one client a name.
    Raises ``InvalidValue`` for a bad address and ``ConnectionFailed`` if no node can be talked to.
    """
    addresses = parse_addresses(address)
    timeout = checked_seconds(timeout, "timeout", positive=True)
    nodes = Nodes(addresses, clock=time.monotonic)
    dialer = Dialer(nodes, timeout=timeout)
    return Client(dialer, timeout=timeout, producer=producer, retry=retry, nodes=nodes)


class Client:
    """A connection to a node that mends itself. Any number of threads may use it at once.

    All methods raise ``InvalidValue`` for arguments that mean nothing, ``ConnectionFailed`` when the node
    cannot be reached for ``retry`` seconds or the client is closed, ``ConnectionLost`` when the outcome is
    unknown, and a ``RequestRefused`` when the node says no.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        timeout: float = 10.0,
        producer: str | None = None,
        retry: float = 30.0,
        nodes: Nodes | None = None,
    ) -> None:
        """Connect through ``connect``, which is called again whenever the connection broke.

        ``nodes`` decides whom ``connect`` turns to; ``None``: there is only one node.
        """
        self._connect = connect
        self._nodes = nodes
        self._timeout = checked_seconds(timeout, "timeout", positive=True)
        self._sequences = Sequences(first_sequence(producer, now_ns=time.time_ns()))
        self._sequence_free = threading.Condition()  # guards the sequences
        self._operations = Operations(
            retry=checked_seconds(retry, "retry", positive=False),
            producer=producer_id(producer),
            learn=learn_nothing if nodes is None else nodes.learn,
            take_sequence=self._try_sequence,
            release_sequence=self._release_sequence,
            clock=time.monotonic,
            chance=random.random,
        )
        self._closed = threading.Event()
        self._connecting = threading.Lock()  # held while a connection is made or left
        self._retired: list[Link] = []  # connections that were left and may still bring answers
        self._link = self._open_link()

    # --- tasks in ---

    def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        key: int = 0,
        delay: float | None = None,
        ttl: float | None = None,
    ) -> int:
        """Put a task in a queue and return its id, once it is durable. The smallest key comes out first.

        ``delay``: seconds before it can be delivered; ``ttl``: seconds after which it expires. Raises
        ``QueueMissing``, ``QueueFull``, ``KeyOutOfRange`` and ``PayloadTooLarge``.
        """
        return self.run(self._operations.enqueue(queue, payload, key=key, delay=delay, ttl=ttl))

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        key: int = 0,
        keys: Iterable[int] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
    ) -> list[int]:
        """Put many tasks in a queue, in order, and return their ids; several batches are on their way at once.

        Not all or nothing: the exceptions of ``enqueue``, and any that comes in the middle, carry ``ids``,
        one for each payload that was answered for, ``None`` where it was refused. Later ones were not taken,
        or, if the connection broke for good, their fate is unknown.
        """
        return self.run(
            self._operations.enqueue_many(queue, payloads, key=key, keys=keys, delay=delay, ttl=ttl)
        )

    def enqueue_numbered(self, requests: Iterable[Enqueue]) -> int:
        """Send enqueues whose producers and numbers are the caller's own, and return how many tasks they hold.

        For programs that repeat their work from the start after a crash, as a Spark task does: what the node
        has taken under a number it does not take again. Raises as ``enqueue``, and ``SequenceForgotten``.
        """
        return self.run(self._operations.enqueue_numbered(requests))

    # --- tasks out ---

    def dequeue(self, queue: str, *, wait: float = 0.0, lease: float | None = None) -> Dequeue:
        """Take one task out: ``with client.dequeue(queue) as delivery``. ``None`` if there was none.

        Leaving the ``with`` acks the task, leaving it by an exception nacks it; nothing happens if the body
        did one of these itself. ``wait``: seconds to wait for a task; ``lease``: seconds until it goes back
        to the queue by itself, else as the queue says.
        """
        return Dequeue(self, self._operations.held, queue, wait=wait, lease=lease)

    def dequeue_many(
        self, queue: str, count: int, *, wait: float = 0.0, lease: float | None = None
    ) -> list[Delivery]:
        """Take up to ``count`` tasks out, each to be acked or nacked. Waits only for the first of them."""
        request = dequeue_request(queue, count=count, wait=wait, lease=lease)
        return self.run(self._operations.dequeue(request))

    def ack(self, given: Delivery | Iterable[Delivery]) -> None:
        """Say that tasks are done; they are gone for good. Raises ``LeaseLost`` with ``deliveries``."""
        self.run(self._operations.settle(Ack(()), as_list(given)))

    def nack(
        self,
        given: Delivery | Iterable[Delivery],
        *,
        delay: float | None = None,
        key: int | None = None,
    ) -> None:
        """Give tasks back, to their old place or that of another ``key``. Raises ``LeaseLost``."""
        self.run(self._operations.settle(nack_request(delay, key), as_list(given)))

    def extend(self, given: Delivery | Iterable[Delivery], *, lease: float | None = None) -> None:
        """Keep tasks for ``lease`` seconds from now, else as the queue says. Raises ``LeaseLost``."""
        self.run(self._operations.settle(Extend((), lease_ms(lease)), as_list(given)))

    def subscribe(
        self, queue: str, *, prefetch: int = 100, lease: float | None = None
    ) -> Subscription:
        """Return the tasks of a queue as they come; at most ``prefetch`` are out without an ack."""
        request = subscribe_request(queue, prefetch=prefetch, lease=lease)
        return Subscription(_Port(self, self._operations, self._timeout), request)

    # --- queues ---

    def create_queue(
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
        """Create a queue. ``None`` is no limit; for ``lease``, the node's default.

        After ``attempts_max`` attempts a task goes to the queue ``dead_letter``, which must exist:
        ``attempts_max`` without it is an ``InvalidValue``. An expired task goes there too; without a
        dead-letter queue it is removed. Raises ``QueueExists`` unless ``exist_ok``, and ``QueueMissing``.
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
        self.run(self._operations.create(request, exist_ok=exist_ok))

    def delete_queue(self, name: str) -> None:
        """Delete a queue and its tasks. Raises ``QueueMissing`` and ``QueueInUse``."""
        self.run(self._operations.delete(name))

    def queues(self) -> list[QueueStat]:
        """Return how every queue is doing."""
        return list(self.run(self._operations.ask(Stat(None), Stats)).queues)

    def stat(self, name: str) -> QueueStat:
        """Return how a queue is doing. Raises ``QueueMissing``."""
        return self.run(self._operations.stat(name))

    def purge(self, name: str) -> int:
        """Drop every task that is not out on lease and return how many. Raises ``QueueMissing``."""
        return self.run(self._operations.ask(Purge(checked_queue(name)), Purged)).count

    def peek(self, queue: str, count: int = 1) -> list[PeekedTask]:
        """Return the tasks that would be delivered next, without taking them out."""
        return peeked_tasks(self.run(self._operations.ask(peek_request(queue, count), Peeked)))

    # --- node and cluster ---

    def node(self) -> NodeInfo:
        """Return what the node says of itself."""
        return self.run(self._operations.ask(Node(), NodeInfo))

    def ping(self) -> None:
        """Return when the node has answered."""
        self.run(self._operations.ask(Ping(), Ok))

    def cluster(self, *, own: bool = False) -> ClusterInfo:
        """Return the group of nodes as its leader sees it, or, if that cannot be reached, as another one does.

        ``own``: as the node sees it that this client talks to, whoever leads.
        """
        return self.run(self._operations.cluster(own=own))

    def change_members(
        self,
        *,
        voters: Mapping[int, str] | None = None,
        learners: Mapping[int, str] | None = None,
        remove: Iterable[int] = (),
    ) -> None:
        """Change who belongs to the group, all at once, and return when that is in force.

        ``voters`` and ``learners``: by their number, where their peers hear them; ``""``: as it is known. Raises
        ``RequestRefused`` if the group does not take it now, ``ConnectionLost`` if the outcome is unknown.
        """
        self.run(self._operations.ask(change_request(voters or {}, learners or {}, remove), Ok))

    def transfer(self, to: int) -> None:
        """Let the node with this number lead. Raises as ``change_members``."""
        self.run(self._operations.ask(transfer_request(to), Ok))

    def entries(self, first: int = 0, *, follow: bool = False) -> Iterator[tuple[int, int, bytes]]:
        """Yield (index, term, payload) of committed entries from ``first`` on, to the last there is now.

        With ``follow`` it does not end, and waits for more. Raises ``Compacted``, whose ``first`` is the
        first index that is still there.
        """
        pages = self._operations.pages(first, follow=follow)
        while True:
            page = self.run(pages.next_page())
            if page is None:
                return
            yield from page

    def entries_page(self, first: int = 0, *, size_max: int = 0) -> Entries:
        """Return committed entries from ``first`` on, as many as the node sends at once, none if none are there.

        ``size_max``: bytes of payload at most, but for the first of them; 0: as the node likes. Raises
        ``Compacted``.
        """
        return self.run(self._operations.page(first, size_max=size_max))

    # --- end ---

    def close(self) -> None:
        """End the connection; tasks that are out return to their queues. Harmless when repeated."""
        self._closed.set()
        for link in (self._link, *self._retired):
            link.fail(failures.closed())
        with self._sequence_free:
            self._sequence_free.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- carrying out ---

    def run(self, operation: Operation[T]) -> T:
        """Carry out an operation; for the parts of a client, not for its users."""
        try:
            effect = next(operation)
            while True:
                try:
                    result = self._perform(effect)
                except ConnectionFailed as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            operation.close()

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Ask(request, connection):
                ticket = self._send(request, connection)
                return None if ticket is None else self._collect(ticket)
            case Send(request, connection):
                return self._send(request, connection)
            case Collect(ticket):
                assert isinstance(ticket, Ticket)
                return self._collect(ticket)
            case TakeSequence():
                return self._take_sequence()
            case Pause(seconds):
                if self._closed.wait(seconds):
                    raise failures.closed()
                return None
            case LeaveConnection(connection, leader):
                return self._leave(connection, leader)

    def _send(self, request: Request, connection: int | None) -> Ticket | None:
        link = self._link
        link.look()
        if connection is None:
            if link.error is not None or link.is_retired:
                link = self._connected()
        elif link.number != connection or link.error is not None or link.is_retired:
            if self._closed.is_set():
                raise failures.closed()
            return None
        return link.send(request, patience(request, self._timeout))

    def _collect(self, ticket: Ticket) -> Exchange:
        try:
            return ticket.link.collect(ticket)
        finally:
            ticket.abandon()  # nothing is left to abandon unless an interrupt came first

    def _connected(self) -> Link:
        """Return a connection that works, as far as anybody knows. One thread makes it for all."""
        with self._connecting:
            if self._closed.is_set():
                raise failures.closed()
            if self._link.error is not None or self._link.is_retired:
                self._link = self._open_link()
                if self._closed.is_set():  # closed meanwhile, when there was no link to close
                    self._link.fail(failures.closed())
            return self._link

    def _open_link(self) -> Link:
        try:
            transport = self._connect()
        except OSError as error:
            raise Unreachable(f"no connection: {error}") from error
        link = Link(transport)
        try:
            link.open(self._timeout if self._nodes is None else self._nodes.patience(self._timeout))
        except ConnectionFailed:
            if self._nodes is not None:
                self._nodes.note_gone()
            raise
        return link

    def _leave(self, connection: int, leader: str | None) -> bool:
        """Talk to another node from now on, if there is one, and return whether that should be the leader."""
        with self._connecting:
            link = self._link
            if link.number != connection:
                return True  # another thread has left it, and knows more than we do
            way = Way.NOWHERE if self._nodes is None else self._nodes.turn(leader)
            if way is not Way.NOWHERE:
                link.retire()
                self._retired = [each for each in (*self._retired, link) if each.error is None]
            return way is Way.LEADER

    def _try_sequence(self) -> int | None:
        with self._sequence_free:
            return self._sequences.take()

    def _take_sequence(self) -> int:
        with self._sequence_free:
            while True:
                if self._closed.is_set():
                    raise failures.closed()
                number = self._sequences.take()
                if number is not None:
                    return number
                self._sequence_free.wait()

    def _release_sequence(self, number: int) -> None:
        with self._sequence_free:
            self._sequences.release(number)
            self._sequence_free.notify()


class Dequeue:
    """What ``Client.dequeue`` returns: a ``with`` around one task."""

    def __init__(
        self,
        client: Client,
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

    def __enter__(self) -> Delivery | None:
        taken = self._client.dequeue_many(self._queue, 1, wait=self._wait, lease=self._lease)
        self._delivery = taken[0] if taken else None
        if self._delivery is not None:
            self._held.add((self._delivery.connection, self._delivery.token))
        return self._delivery

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is None or (delivery.connection, delivery.token) not in self._held:
            return
        if error is None:
            self._client.ack(delivery)
            return
        # The task comes back by itself if the nack does not get through; the body's error is the one to see.
        with contextlib.suppress(LeaseLost, ConnectionFailed):
            self._client.nack(delivery)


class _Port:
    """What a subscription may do with its client."""

    def __init__(self, client: Client, operations: Operations, timeout: float) -> None:
        self._client = client
        self._operations = operations
        self._timeout = timeout
        self._backoff = operations.backoff()  # from one success to the next

    def subscribe(
        self, request: Subscribe, *, after: PenstockError | None, is_anew: bool
    ) -> Ticket:
        if is_anew:
            self._backoff = self._operations.backoff()
        ticket: Ticket = self._client.run(
            self._operations.subscribe(request, self._backoff, after=after)
        )
        return ticket

    def leave(self, ticket: Ticket, leader: str | None) -> None:
        self._client.run(self._operations.turn(ticket.connection, leader))

    def send_on(self, link: Link, request: Request) -> Ticket:
        return link.send(request, self._timeout)

    def unsubscribe(self, ticket: Ticket) -> None:
        self._client.run(self._operations.unsubscribe(ticket.number, ticket.connection))
