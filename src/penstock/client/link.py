"""One connection shared by threads, without a thread of its own.

Whoever waits for an answer reads the transport, hands what arrives to those it is for, and passes the
reading on when its own answer is there. A lone caller so pays for no switch between threads.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.client.connection import Connection
from penstock.client.effects import Exchange
from penstock.client.transport import Transport, lost
from penstock.errors import ConnectionFailed, ConnectionLost, Unreachable
from penstock.protocol.version2 import Failed, Request, Start

_numbers: Final = itertools.count(1)
"""Numbers connections over the whole process: a delivery names the one that it came by."""

_IDLE: Final = 1.0
"""Seconds of silence after which a connection is looked at before it is used: a node closes idle ones, and a
request that is sent into a closed one has an unknown outcome."""


def next_connection() -> int:
    """Return the number of a new connection, of either face."""
    return next(_numbers)


class Ticket:
    """A request that was sent; a subscription's collects many answers."""

    __slots__ = ("answers", "link", "number", "patience", "ready", "sent")

    def __init__(self, link: Link, number: int, patience: float | None) -> None:
        self.link = link
        self.number = number
        self.patience = patience  # seconds of silence to bear; None: any
        self.sent = time.monotonic()
        self.answers: deque[Exchange] = deque()
        # Made by the first thread that has to wait while another one reads.
        self.ready: threading.Condition | None = None

    @property
    def connection(self) -> int:
        return self.link.number

    def abandon(self) -> None:
        self.link.abandon(self)


class Link:
    """A connection to a node, from its greeting until it breaks."""

    def __init__(self, transport: Transport) -> None:
        self.number = next_connection()
        # Why nothing more can be sent or received; None while all is well.
        self.error: ConnectionFailed | None = None
        # Whether nothing more is to be sent by it; it ends when what is under way has been answered.
        self.is_retired = False
        self._transport = transport
        self._sending = threading.Lock()  # taken before ``lock`` if both, never after
        self.lock = threading.Lock()  # guards all below
        self._core = Connection()
        self._tickets: dict[int, Ticket] = {}
        self._is_read = False  # a thread is reading the transport
        self._blocked: list[Ticket] = []  # those of threads that wait for the reader
        self._heard = time.monotonic()  # when the node was last heard of

    def open(self, timeout: float) -> None:
        """Greet the node. Raises ``Unreachable``, or what it refuses the greeting with."""
        deadline = time.monotonic() + timeout
        try:
            self._transport.send(self._core.greet())
            while not self._core.greeted:
                data = self._transport.receive(max(0.0, deadline - time.monotonic()))
                if not data:
                    raise ConnectionResetError("closed before a greeting")
                self._core.receive(data)
        except OSError as error:
            self._transport.close()
            raise Unreachable(
                f"no greeting from the node: {lost(error)}; check that this is its client port"
            ) from error
        except ConnectionFailed:
            self._transport.close()
            raise

    def send(self, request: Request, patience: float | None) -> Ticket:
        """Send a request. Raises ``Unreachable`` if that was tried too late, and ``ConnectionLost``."""
        with self.lock:
            self._check_usable()
            number, data = self._core.send(request)
            ticket = self._tickets[number] = Ticket(self, number, patience)
        self._transmit(data)
        return ticket

    def start(self, start: Start) -> None:
        """Report started tasks; the system has the bytes when this returns. Raises as ``send``."""
        with self.lock:
            self._check_usable()
        self._transmit(self._core.start(start))

    def _check_usable(self) -> None:
        if self.error is not None:
            raise Unreachable(str(self.error)) from self.error
        if self.is_retired:
            raise Unreachable("left for another node")

    def look(self) -> None:
        """Notice, before something is sent, that a node has closed a connection that lay idle."""
        if self._tickets or time.monotonic() - self._heard < _IDLE:
            return
        with self.lock:
            if self.error is None and not self._is_read:
                self._read(0.0)

    def _transmit(self, data: bytes) -> None:
        is_sent = False
        try:
            with self._sending:
                self._transport.send(data)
            is_sent = True
        except OSError as error:
            self.fail(lost(error))
            raise lost(error) from error
        except ConnectionFailed as error:  # a node in this process speaks our language
            self.fail(error)
            raise
        finally:
            if not is_sent:  # half a frame may be on its way, whatever interrupted us
                self.fail(ConnectionLost("a frame was sent in part"))

    def collect(self, ticket: Ticket) -> Exchange:
        """Wait for the next answer. Raises ``ConnectionFailed`` if there will be none."""
        self.wait(ticket)
        with self.lock:
            if ticket.answers:
                return ticket.answers.popleft()
            raise self._broken()

    def _broken(self) -> ConnectionFailed:
        error = self.error or ConnectionFailed("this request is over")
        # A new one for every thread: each adds its own traceback.
        fresh = type(error)(*error.args)
        fresh.__cause__ = error.__cause__
        return fresh

    def wait(self, ticket: Ticket, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until the ticket has an answer, the connection broke, or it ``is_enough``.

        Whoever makes it enough calls ``wake``.
        """
        with self.lock:
            try:
                while not (ticket.answers or self.error or is_enough()):
                    remaining = self._remaining(ticket)
                    if remaining is not None and remaining <= 0:
                        text = f"the node did not answer for {ticket.patience:g} s"
                        self._fail(ConnectionLost(text))
                    elif self._is_read:
                        self._wait_for_reader(ticket, remaining)
                    else:
                        self._read(remaining)
            finally:
                self._pass_on()

    def _remaining(self, ticket: Ticket) -> float | None:
        """Return for how long the node may still be silent."""
        if ticket.patience is None:
            return None
        return max(ticket.sent, self._heard) + ticket.patience - time.monotonic()

    def _wait_for_reader(self, ticket: Ticket, remaining: float | None) -> None:
        if ticket.ready is None:
            ticket.ready = threading.Condition(self.lock)
        self._blocked.append(ticket)
        try:
            ticket.ready.wait(remaining)
        finally:
            self._blocked.remove(ticket)

    def _pass_on(self) -> None:
        """Wake a thread to read, now that nobody does."""
        if self._blocked and not self._is_read:
            self._wake(self._blocked[0])

    def _read(self, timeout: float | None) -> None:
        """Read once and hand out what came. The lock is held before and after, and not meanwhile."""
        self._is_read = True
        self.lock.release()
        try:
            data = self._transport.receive(timeout)
            error: ConnectionFailed | None = (
                None if data else ConnectionLost("the node closed the connection")
            )
        except TimeoutError as silence:
            if silence.errno is None:
                return  # the caller looks at the time
            data, error = b"", lost(silence)  # the system's own: the other machine is gone
        except OSError as problem:
            data, error = b"", lost(problem)
        except ConnectionFailed as problem:
            data, error = b"", problem
        finally:
            self.lock.acquire()
            self._is_read = False
        if error is None:
            self._take(data)
        else:
            self._fail(error)

    def _take(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            answers = self._core.receive(data)
            owed = self._core.release_unclaimed()
        except ConnectionFailed as error:
            self._fail(error)
            return
        for number, answer in answers:
            ticket = self._tickets[number]
            ticket.answers.append(Exchange(answer, self.number, self._heard))
            if ticket.patience is not None or isinstance(answer, Failed):
                del self._tickets[number]
            self._wake(ticket)
        self._end_if_retired()
        if owed:
            self.lock.release()
            try:
                self._transmit(owed)
            except ConnectionLost:
                pass  # whoever waits is told
            finally:
                self.lock.acquire()

    def _wake(self, ticket: Ticket) -> None:
        if ticket.ready is not None:
            ticket.ready.notify_all()

    def wake(self, ticket: Ticket) -> None:
        """Let those who wait for this ticket look again."""
        with self.lock:
            self._wake(ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Forget a ticket whose answer nobody will collect."""
        with self.lock:
            if self._tickets.pop(ticket.number, None) is not None:
                self._core.abandon(ticket.number)
                self._end_if_retired()

    def drain(self, ticket: Ticket) -> list[Exchange]:
        """Return the answers that a subscription brought and nobody took."""
        with self.lock:
            answers = list(ticket.answers)
            ticket.answers.clear()
            return answers

    def forget(self, ticket: Ticket) -> None:
        """Forget a subscription that the node has ended."""
        with self.lock:
            self._tickets.pop(ticket.number, None)

    def retire(self) -> None:
        """Send nothing more, and end when what was sent has been answered; subscriptions end then."""
        with self.lock:
            self.is_retired = True
            self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self.is_retired and all(each.patience is None for each in self._tickets.values()):
            self._fail(ConnectionLost("left for another node"))

    def fail(self, error: ConnectionFailed) -> None:
        """Break the connection for everybody, for the first reason that is given."""
        with self.lock:
            self._fail(error)

    def _fail(self, error: ConnectionFailed) -> None:
        if self.error is not None:
            return
        self.error = error
        self._transport.close()
        for ticket in self._tickets.values():
            self._wake(ticket)
