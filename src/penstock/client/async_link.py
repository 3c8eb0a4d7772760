"""One connection in an event loop: an ``asyncio.Protocol`` around the pure core."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, cast

from penstock.client.connection import Connection
from penstock.client.effects import Exchange
from penstock.client.link import next_connection
from penstock.client.nodes import Nodes
from penstock.client.transport import lost, prepare, reason_of, unreachable
from penstock.errors import ConnectionFailed, ConnectionLost, Unreachable
from penstock.protocol.version2 import Failed, Request, Start

_WATCH: Final = 0.25
"""How often, as a part of the timeout, it is looked whether the node is silent for too long."""


class AsyncTicket:
    """A request that was sent; a subscription's collects many answers."""

    __slots__ = ("answers", "changed", "link", "number", "patience", "sent")

    def __init__(self, link: AsyncLink, number: int, patience: float | None) -> None:
        self.link = link
        self.number = number
        self.patience = patience  # seconds of silence to bear; None: any
        self.sent = time.monotonic()
        self.answers: deque[Exchange] = deque()
        # Resolved when there is something to look at; made anew by whoever waits.
        self.changed: asyncio.Future[None] | None = None

    @property
    def connection(self) -> int:
        return self.link.number

    def abandon(self) -> None:
        self.link.abandon(self)

    async def wait(self) -> None:
        """Wait until there is an answer, the connection broke, or somebody called ``wake``."""
        if self.answers or self.link.error is not None:
            return
        if self.changed is None or self.changed.done():
            self.changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self.changed) if self.patience is None else await self.changed

    def wake(self) -> None:
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)


class AsyncLink(asyncio.Protocol):
    """A connection to a node, from its greeting until it breaks."""

    def __init__(self, timeout: float) -> None:
        self.number = next_connection()
        # Why nothing more can be sent or received; None while all is well.
        self.error: ConnectionFailed | None = None
        self.is_retired = False  # as of ``link.Link``
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._core = Connection()
        self._tickets: dict[int, AsyncTicket] = {}
        self._out: list[bytes] = []  # frames of this turn of the loop, sent in one write
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._room: asyncio.Future[None] | None = None  # pending while the transport is full
        self._watch: asyncio.TimerHandle | None = None
        self._heard = time.monotonic()

    async def open(self, patience: float) -> None:
        """Wait for the greeting. Raises ``Unreachable``, or what the node refuses it with."""
        try:
            async with asyncio.timeout(patience):
                await self._greeted
        except TimeoutError:
            self.fail(Unreachable("no greeting from the node in time"))
            raise Unreachable("no greeting from the node in time") from None
        except ConnectionLost as error:
            raise Unreachable(
                f"no greeting from the node: {error}; check that this is its client port"
            ) from error
        finally:
            if not self._core.greeted:  # cancelled, too
                self.fail(Unreachable("no greeting from the node"))

    # --- requests ---

    def send(self, request: Request, patience: float | None) -> AsyncTicket:
        """Send a request with the others of this turn of the loop. Raises ``Unreachable`` if too late."""
        self._check_usable()
        number, data = self._core.send(request)
        ticket = self._tickets[number] = AsyncTicket(self, number, patience)
        self._write(data)
        if self._watch is None and patience is not None:
            self._watch = self._loop.call_later(self._timeout * _WATCH, self._look)
        return ticket

    def start(self, start: Start) -> None:
        """Report started tasks at once. Raises ``Unreachable`` if too late.

        The system has the bytes when this returns, or when ``wait_for_room`` does: the transport holds nothing back.
        """
        self._check_usable()
        self._out.append(self._core.start(start))
        self._flush()

    def _check_usable(self) -> None:
        if self.error is not None:
            raise Unreachable(str(self.error)) from self.error
        if self.is_retired:
            raise Unreachable("left for another node")

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        if len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self.error is None and self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    async def wait_for_room(self) -> None:
        """Wait until the system has all that was written."""
        if self._room is not None:
            await asyncio.shield(self._room)

    async def collect(self, ticket: AsyncTicket) -> Exchange:
        """Wait for the next answer. Raises ``ConnectionFailed`` if there will be none."""
        while not ticket.answers:
            if self.error is not None:
                fresh = type(self.error)(*self.error.args)
                raise fresh from self.error.__cause__
            await ticket.wait()
        return ticket.answers.popleft()

    def abandon(self, ticket: AsyncTicket) -> None:
        """Forget a ticket whose answer nobody will collect."""
        if self._tickets.pop(ticket.number, None) is not None:
            self._core.abandon(ticket.number)
            self._end_if_retired()

    def forget(self, ticket: AsyncTicket) -> None:
        """Forget a subscription that the node has ended."""
        self._tickets.pop(ticket.number, None)

    def _look(self) -> None:
        """Break the connection if the node is silent for longer than somebody bears."""
        self._watch = None
        now = time.monotonic()
        awaited = [each for each in self._tickets.values() if each.patience is not None]
        for ticket in awaited:
            assert ticket.patience is not None
            if now - max(ticket.sent, self._heard) >= ticket.patience:
                self.fail(ConnectionLost(f"the node did not answer for {ticket.patience:g} s"))
                return
        if awaited:
            self._watch = self._loop.call_later(self._timeout * _WATCH, self._look)

    def retire(self) -> None:
        """Send nothing more, and end when what was sent has been answered; subscriptions end then."""
        self.is_retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self.is_retired and all(each.patience is None for each in self._tickets.values()):
            self.fail(ConnectionLost("left for another node"))

    def fail(self, error: ConnectionFailed) -> None:
        """Break the connection for everybody, for the first reason that is given."""
        if self.error is not None:
            return
        self.error = error
        if self._transport is not None:
            self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        if not self._greeted.done():
            self._greeted.set_exception(error)
            self._greeted.exception()  # whoever opened it may be gone
        self.resume_writing()
        for ticket in self._tickets.values():
            ticket.wake()

    # --- what the loop tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: uvloop's transports quack like asyncio's and do not inherit from them.
        self._transport = cast("asyncio.Transport", transport)
        prepare(transport.get_extra_info("socket"))
        # The transport tries to send at once, in uvloop's loop too, and calls pause_writing if it could not.
        self._transport.set_write_buffer_limits(high=0)
        self._transport.write(self._core.greet())

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            answers = self._core.receive(data)
            owed = self._core.release_unclaimed()
        except ConnectionFailed as error:
            self.fail(error)
            return
        if self._core.greeted and not self._greeted.done():
            self._greeted.set_result(None)
        for number, answer in answers:
            ticket = self._tickets[number]
            ticket.answers.append(Exchange(answer, self.number, self._heard))
            if ticket.patience is not None or isinstance(answer, Failed):
                del self._tickets[number]
            ticket.wake()
        if owed:
            self._write(owed)
        self._end_if_retired()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self.fail(lost(exc))
        else:
            self.fail(ConnectionLost("the node closed the connection"))

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None


class AsyncDialer:
    """Connects to the first node that answers, and next time to the one behind it, or to the leader."""

    def __init__(self, nodes: Nodes, *, timeout: float) -> None:
        self._nodes = nodes
        self._timeout = timeout

    async def __call__(self) -> AsyncLink:
        """Return a connection that was greeted. Raises ``ConnectionFailed``."""
        loop, reasons = asyncio.get_running_loop(), []
        for address in self._nodes.candidates():
            patience = self._nodes.patience(self._timeout)
            try:
                async with asyncio.timeout(patience):
                    _, link = await loop.create_connection(
                        lambda: AsyncLink(self._timeout), address.host, address.port
                    )
            except OSError as error:
                reasons.append(f"{address} ({reason_of(error)})")
            else:
                await self._greet(link, patience)
                return link
        raise unreachable(reasons)

    async def _greet(self, link: AsyncLink, patience: float) -> None:
        try:
            await link.open(patience)
        except ConnectionFailed:
            self._nodes.note_gone()
            raise
