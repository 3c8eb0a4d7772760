"""A subscription of the blocking client: an iterator that any number of threads may share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from penstock.client.link import Link, Ticket
from penstock.client.operations import lost_of
from penstock.client.prefetch import ACK_REQUESTS_MAX, Prefetch
from penstock.client.values import Delivery, as_list
from penstock.errors import (
    ConnectionFailed,
    ConnectionLost,
    LeaseLost,
    PenstockError,
    Unreachable,
)
from penstock.protocol.version2 import Ack, Failed, Request, Subscribe


class Port(Protocol):
    """What a subscription needs of its client."""

    def subscribe(
        self, request: Subscribe, *, after: PenstockError | None, is_anew: bool
    ) -> Ticket:
        """Send a subscription, connecting as often as it takes, ``after`` the end of another one.

        ``is_anew``: that one was a success, so patience begins anew. Raises ``after`` or ``ConnectionFailed``.
        """

    def leave(self, ticket: Ticket, leader: str | None) -> None:
        """Ask another node from now on, the one at ``leader`` if that is known."""

    def send_on(self, link: Link, request: Request) -> Ticket:
        """Send a request on this connection and no other. Raises ``ConnectionFailed``."""

    def unsubscribe(self, ticket: Ticket) -> None:
        """End a subscription. Raises ``ConnectionFailed``."""


class Subscription:
    """The tasks of a queue as they arrive: iterate with ``for delivery in subscription`` and ``ack`` each delivery.

    Any number of threads can share it.
    After a broken connection the subscription continues on a new one, and tasks that were delivered and not
    acknowledged are delivered again.
    """

    def __init__(self, port: Port, request: Subscribe) -> None:
        self._port = port
        self._lock = threading.Lock()  # guards the next two
        self._state = Prefetch(request)
        self._ticket = port.subscribe(request, after=None, is_anew=True)
        # Held while a task is handed out: the node hears that it is started before the subscription ends.
        self._starting = threading.Lock()
        self._renewing = threading.Lock()  # held by the one thread that subscribes anew
        self._acking = threading.Lock()  # guards the requests of acks in flight
        self._acks: deque[tuple[Ticket, list[Delivery]]] = deque()

    @property
    def lost_count(self) -> int:
        """The number of acknowledgements that arrived after the lease had ended."""
        return self._state.lost_count

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        """Wait for the next task and return it. Raises ``RequestRefused`` and ``ConnectionFailed``."""
        state = self._state
        while True:
            task = self._hand_out()
            if task is not None:
                return task
            with self._lock:
                state.check()
                ticket, acks = self._ticket, state.take_acks()
                state.waiting_count += 1
            try:
                self._send_acks(acks)
                ticket.link.wait(ticket, lambda: state.has_news)
            finally:
                with self._lock:
                    state.waiting_count -= 1
            self._gather(ticket)

    def _hand_out(self) -> Delivery | None:
        """Return the next task that is here, once the node was told that it is started."""
        state = self._state
        with self._starting:
            with self._lock:
                if state.is_closed:
                    raise StopIteration
                task = state.hand_out(time.monotonic())
                if task is None:
                    return None
                link, report = self._ticket.link, state.report(task)
            try:
                link.start(report)
            except (ConnectionLost, Unreachable):
                with self._lock:
                    if link is self._ticket.link:  # another thread may have subscribed again
                        state.drop_tasks()  # their leases are over
                return None
            return task

    def _gather(self, ticket: Ticket) -> None:
        """Take what the connection brought; if it broke, subscribe anew."""
        with self._lock:
            if ticket is not self._ticket:
                return
            for exchange in ticket.link.drain(ticket):
                self._state.receive(exchange)
            is_put_off, leader = self._state.is_put_off, self._state.leader
            is_broken = not self._state.has_tasks and ticket.link.error is not None
        ticket.link.wake(ticket)
        if is_put_off:
            self._port.leave(ticket, leader)
        if (is_put_off or is_broken) and not self._state.is_closed:
            self._renew(ticket)

    def _renew(self, ticket: Ticket) -> None:
        with self._renewing:
            if ticket is not self._ticket:
                return
            state = self._state
            renewed = self._port.subscribe(
                state.request, after=state.end, is_anew=state.was_accepted
            )
            with self._lock:
                self._state.disconnect()
                self._ticket = renewed

    # --- acks ---

    def ack(self, given: Delivery | Iterable[Delivery]) -> None:
        """Acknowledge one or more deliveries, together with others.

        The client sends the acknowledgements when the iterator waits, when enough have gathered, and in ``flush`` and
        ``close``. Until then they are not durable. ``flush`` and ``close`` report those that arrive too late.
        """
        deliveries = as_list(given)
        with self._lock:
            is_time = self._state.add_acks(deliveries)
            acks = self._state.take_acks() if is_time else []
        self._send_acks(acks)

    def flush(self) -> None:
        """Wait until every acknowledgement is durable. Raises ``LeaseLost`` if one arrived after its lease had ended."""
        with self._lock:
            acks = self._state.take_acks()
        self._send_acks(acks)
        with self._acking:
            while self._acks:
                self._collect_ack()
        with self._lock:
            error = self._state.take_error()
        if error is not None:
            raise error

    def _send_acks(self, acks: list[Delivery]) -> None:
        if not acks:
            return
        with self._acking:
            link = self._ticket.link
            alive = [each for each in acks if each.connection == link.number]
            stale = [each for each in acks if each.connection != link.number]
            try:
                if alive:
                    ticket = self._port.send_on(link, Ack([each.token for each in alive]))
                    self._acks.append((ticket, alive))
            except (ConnectionLost, Unreachable):
                stale = acks
            self._note_lost(stale)
            while self._acks and (len(self._acks) > ACK_REQUESTS_MAX or self._acks[0][0].answers):
                self._collect_ack()

    def _collect_ack(self) -> None:
        """Hear what became of the oldest request of acks. With its connection, its leases are over."""
        ticket, acks = self._acks.popleft()
        try:
            answer = ticket.link.collect(ticket).answer
        except (ConnectionLost, Unreachable):
            self._note_lost(acks)
        else:
            self._note_lost(acks if isinstance(answer, Failed) else lost_of(answer, acks))

    def _note_lost(self, lost: list[Delivery]) -> None:
        with self._lock:
            self._state.note_lost(lost)

    # --- end ---

    def close(self) -> None:
        """End the subscription, release the tasks that were prefetched and not handed out, and ``flush``.

        Tasks that were handed out stay leased: acknowledge them here or with the client. A second call does nothing
        more. Raises ``LeaseLost`` as ``flush``.
        """
        with self._starting, self._lock:
            was_closed, self._state.is_closed = self._state.is_closed, True
            ticket = self._ticket
        if not was_closed and not self._state.is_refused:
            self._unsubscribe(ticket)
        self.flush()

    def _unsubscribe(self, ticket: Ticket) -> None:
        ticket.link.wake(ticket)
        # A connection that is gone has ended the subscription, and the leases with it.
        with contextlib.suppress(ConnectionFailed):
            self._port.unsubscribe(ticket)
        ticket.link.forget(ticket)
        with self._lock:
            self._state.drop_tasks()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(ConnectionFailed, LeaseLost):  # the first error is the one to see
            self.close()
