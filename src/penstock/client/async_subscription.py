"""A subscription of the asyncio client: an async iterator that any number of tasks may share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from penstock.client.async_link import AsyncLink, AsyncTicket
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


class AsyncPort(Protocol):
    """What a subscription needs of its client; as ``subscription.Port``."""

    async def subscribe(
        self, request: Subscribe, *, after: PenstockError | None, is_anew: bool
    ) -> AsyncTicket: ...

    async def leave(self, ticket: AsyncTicket, leader: str | None) -> None: ...

    async def send_on(self, link: AsyncLink, request: Request) -> AsyncTicket: ...

    async def unsubscribe(self, ticket: AsyncTicket) -> None: ...


class AsyncSubscription:
    """The tasks of a queue as they arrive: iterate with ``async for delivery in subscription`` and ``ack`` each delivery.

    Any number of tasks of one event loop can share it. It starts with ``async with`` or with the first task.
    After a broken connection the subscription continues on a new one, and tasks that were delivered and not
    acknowledged are delivered again.
    """

    def __init__(self, port: AsyncPort, request: Subscribe) -> None:
        self._port = port
        self._state = Prefetch(request)
        self._ticket: AsyncTicket | None = None
        self._renewing = asyncio.Lock()  # held by the one task that subscribes, or anew
        self._acks: deque[tuple[AsyncTicket, list[Delivery]]] = deque()

    @property
    def lost_count(self) -> int:
        """The number of acknowledgements that arrived after the lease had ended."""
        return self._state.lost_count

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Wait for the next task and return it. Raises ``RequestRefused`` and ``ConnectionFailed``."""
        state = self._state
        while True:
            if state.is_closed:
                raise StopAsyncIteration
            task = state.hand_out(time.monotonic())
            if task is not None:
                if await self._start(task):
                    return task
                continue
            state.check()
            ticket = self._ticket or await self._renew(None)
            state.waiting_count += 1
            try:
                await self._send_acks(state.take_acks())
                if not state.has_news:
                    await ticket.wait()
            finally:
                state.waiting_count -= 1
            await self._gather(ticket)

    async def _start(self, task: Delivery) -> bool:
        """Tell the node that a task is started, and return whether user code may have it."""
        assert self._ticket is not None
        link = self._ticket.link
        try:
            link.start(self._state.report(task))
        except Unreachable:
            self._state.drop_tasks()  # their leases are over
            return False
        try:
            await link.wait_for_room()
        except asyncio.CancelledError:
            self._state.put_back(task)
            raise
        return link.error is None

    async def _gather(self, ticket: AsyncTicket) -> None:
        """Take what the connection brought; if it broke, subscribe anew."""
        if ticket is not self._ticket:
            return
        while ticket.answers:
            self._state.receive(ticket.answers.popleft())
        is_put_off = self._state.is_put_off
        is_broken = not self._state.has_tasks and ticket.link.error is not None
        ticket.wake()
        if is_put_off:
            await self._port.leave(ticket, self._state.leader)
        if (is_put_off or is_broken) and not self._state.is_closed:
            await self._renew(ticket)

    async def _renew(self, ticket: AsyncTicket | None) -> AsyncTicket:
        async with self._renewing:
            if self._ticket is None or ticket is self._ticket:
                state = self._state
                renewed = await self._port.subscribe(
                    state.request,
                    after=None if ticket is None else state.end,
                    is_anew=ticket is None or state.was_accepted,
                )
                state.disconnect()
                self._ticket = renewed
            return self._ticket

    # --- acks ---

    async def ack(self, given: Delivery | Iterable[Delivery]) -> None:
        """Acknowledge one or more deliveries, together with others.

        The client sends the acknowledgements when the iterator waits, when enough have gathered, and in ``flush`` and
        ``close``. Until then they are not durable. ``flush`` and ``close`` report those that arrive too late.
        """
        if self._state.add_acks(as_list(given)):
            await self._send_acks(self._state.take_acks())

    async def flush(self) -> None:
        """Wait until every acknowledgement is durable. Raises ``LeaseLost`` if one arrived after its lease had ended."""
        await self._send_acks(self._state.take_acks())
        while self._acks:
            await self._collect_ack()
        error = self._state.take_error()
        if error is not None:
            raise error

    async def _send_acks(self, acks: list[Delivery]) -> None:
        if not acks:
            return
        link = None if self._ticket is None else self._ticket.link
        number = 0 if link is None else link.number
        alive = [each for each in acks if each.connection == number]
        stale = [each for each in acks if each.connection != number]
        try:
            if alive and link is not None:
                ticket = await self._port.send_on(link, Ack([each.token for each in alive]))
                self._acks.append((ticket, alive))
        except (ConnectionLost, Unreachable):
            stale = acks
        self._state.note_lost(stale)
        while self._acks and (len(self._acks) > ACK_REQUESTS_MAX or self._acks[0][0].answers):
            await self._collect_ack()

    async def _collect_ack(self) -> None:
        """Hear what became of the oldest request of acks. With its connection, its leases are over."""
        ticket, acks = self._acks.popleft()
        try:
            answer = (await ticket.link.collect(ticket)).answer
        except (ConnectionLost, Unreachable):
            self._state.note_lost(acks)
        else:
            self._state.note_lost(acks if isinstance(answer, Failed) else lost_of(answer, acks))

    # --- end ---

    async def close(self) -> None:
        """End the subscription, release the tasks that were prefetched and not handed out, and ``flush``.

        Tasks that were handed out stay leased: acknowledge them here or with the client. A second call does nothing
        more. Raises ``LeaseLost`` as ``flush``.
        """
        was_closed, self._state.is_closed = self._state.is_closed, True
        if not was_closed and self._ticket is not None and not self._state.is_refused:
            await self._unsubscribe(self._ticket)
        await self.flush()

    async def _unsubscribe(self, ticket: AsyncTicket) -> None:
        ticket.wake()
        # A connection that is gone has ended the subscription, and the leases with it.
        with contextlib.suppress(ConnectionFailed):
            await self._port.unsubscribe(ticket)
        ticket.link.forget(ticket)
        self._state.drop_tasks()

    async def __aenter__(self) -> Self:
        if self._ticket is None:
            await self._renew(None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        with contextlib.suppress(ConnectionFailed, LeaseLost):  # the first error is the one to see
            await self.close()
