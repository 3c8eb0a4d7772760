"""The loop around a node: connections, their limits, the clock, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from typing import Final

from penstock.protocol import version1 as v1
from penstock.server.connection import Connection
from penstock.server.disk import ThreadDisk
from penstock.server.gathering import Gathering
from penstock.server.node import Node
from penstock.server.session1 import Session1
from penstock.storage.paged.flush_rules import steady_clock_ms

SWEEP_SECONDS: Final = 1.0
"""How often connections are looked at for being overdue."""

WAKE_SECONDS_MIN: Final = 0.005
"""Leases, delays and waits end no finer than this."""


class Listener:
    """All connections of a node."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self.broker = node.broker
        self.meter = node.meter
        self._limits = node.settings.limits
        self._loop = loop
        self.now: Callable[[], float] = time.monotonic
        self.connections: dict[Connection, None] = {}
        self._paused: dict[Connection, None] = {}
        self._total = 0  # bytes that all connections have in flight or half received
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms: int | None = None
        self._arrived: list[Connection] = []  # connections that were heard from in this turn
        self._is_stopping = False
        self._is_feeding = False  # whether deliveries go on in the next turn of the loop
        self._gathering = Gathering()
        self._is_poking = False
        node.replica.after_apply.insert(0, self._note_answered)
        node.replica.after_apply.append(self._after_apply)
        node.replica.after_confirm.append(self._schedule)
        if isinstance(node.disk, ThreadDisk):
            self._disk = node.disk
            node.replica.hold = self._hold
        self._sweep_handle = loop.call_later(SWEEP_SECONDS, self._sweep)

    def accept(self) -> Connection:
        return Connection(self)

    def session1(self, connection: Connection) -> Session1:
        settings = self.node.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        cluster = v1.Cluster(addresses=(f"{host}:{settings.port}",), leader=0, node=0)
        return Session1(
            self.broker,
            connection.write,
            connection.attend,
            node=cluster,
            group=self.node.group,
            with_id=settings.with_ids,
        )

    # From connections.

    def welcome(self, connection: Connection) -> bool:
        """Take a new connection in, unless there are as many as there may be."""
        if len(self.connections) >= self._limits.connections_max or self._is_stopping:
            self.meter.connections_refused += 1
            return False
        self.meter.connections_accepted += 1
        self.connections[connection] = None
        return True

    def farewell(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._paused.pop(connection, None)
        self._total -= connection.accounted
        connection.accounted = 0
        self._go_on()

    def gather(self, connection: Connection) -> None:
        """Note that packets may have become whole; what arrives in one turn of the loop is one batch."""
        if len(self.connections) == 1:
            self.handle(connection)
            return
        self._gathering.hear(connection.session)
        self._arrived.append(connection)
        if len(self._arrived) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        arrived, self._arrived = self._arrived, []
        if self.node.replica.failure is not None:
            return
        self._go_on()
        for connection in arrived:
            self._look_after(connection)

    def handle(self, connection: Connection) -> None:
        """Do at once what a connection's bytes have asked for."""
        self._go_on()
        self._look_after(connection)

    def _look_after(self, connection: Connection) -> None:
        session = connection.session
        if session is not None and session.has_backlog:
            self.attend(connection)
        self._account(connection)

    def attend(self, connection: Connection) -> None:
        """Look at a connection in another turn of the loop: others wait too."""
        self._loop.call_soon(connection.look)

    def _go_on(self) -> None:
        self.broker.serve()
        self.node.replica.advance()
        self.broker.flush()
        self._schedule()

    def _note_answered(self) -> None:
        self._gathering.answer(self.broker.touched)

    def _hold(self) -> bool:
        """Say whether the next batch is to wait for more, and come again in the next turn if so."""
        if not self._gathering.is_worth_waiting(self.now(), self._disk.mean_seconds):
            return False
        if not self._is_poking:
            self._is_poking = True
            self._loop.call_soon(self._poke)
        return True

    def _poke(self) -> None:
        self._is_poking = False
        if self.node.replica.failure is None:
            self.node.replica.advance()

    def _after_apply(self) -> None:
        self._gathering.begin(self.now())
        for connection in list(self._paused):
            self._account(connection)
        self._schedule()

    def _account(self, connection: Connection) -> None:
        """Note what a connection has in flight, and read from it only while that is within bounds."""
        session = connection.session
        if session is None or connection.is_closing:
            return
        size = session.in_flight_size + session.held_size + session.backlog_size
        self._total += size - connection.accounted
        connection.accounted = size
        if self._total > self._limits.total_bytes_max and self.node.replica.is_idle:
            # Nothing under way will free anything: what fills the room are frames that never end.
            self._refuse_largest()
            if connection.is_closing:
                return
        is_over = (
            session.in_flight_size + session.backlog_size > self._limits.connection_bytes_max
            or session.has_backlog
            or connection.blocked_since is not None
            or self._is_stopping
            or self._total > self._limits.total_bytes_max
        )
        connection.set_reading(not is_over)
        if is_over:
            self._paused[connection] = None
        else:
            self._paused.pop(connection, None)

    def _refuse_largest(self) -> None:
        """Cut off whoever takes up most of the room; not whoever happened to ask for some."""
        largest = max(self.connections, key=lambda connection: connection.accounted)
        self.meter.connections_refused += 1
        self._total -= largest.accounted
        largest.accounted = 0
        largest.abort()

    # The clock.

    def _schedule(self) -> None:
        """Be called when the broker next has something to do."""
        if self.broker.is_hungry and not self._is_feeding:
            # Deliveries have left and made room for more: in another turn of the loop, others wait too.
            self._is_feeding = True
            self._loop.call_soon(self._feed)
        wait = self.broker.wakeup_in_ms()
        if wait is None:
            return
        due = steady_clock_ms() + wait
        if self._wake_ms is not None and self._wake_ms <= due:
            return
        if self._wake is not None:
            self._wake.cancel()
        delay = max(WAKE_SECONDS_MIN, wait / 1000)
        self._wake_ms = due
        self._wake = self._loop.call_later(delay, self._tick)

    def _feed(self) -> None:
        self._is_feeding = False
        if self.node.replica.failure is None:
            self._go_on()

    def _tick(self) -> None:
        self._wake = self._wake_ms = None
        if self.node.replica.failure is None:
            self.broker.tick()
            self._go_on()

    def _sweep(self) -> None:
        now, limits = self.now(), self._limits
        for connection in list(self.connections):
            if connection.is_overdue(
                now, idle_seconds=limits.idle_seconds, stall_seconds=limits.stall_seconds
            ):
                connection.abort()
        for connection in list(self._paused):
            self._account(connection)
        self._look_at_room()
        self._sweep_handle = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _look_at_room(self) -> None:
        """Take nothing more in before the disk is full: a write that fails stops the node."""
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self.node.settings.data).free
            self.node.replica.is_short_of_room = free < self._limits.free_bytes_min

    # The end.

    async def drain(self, seconds: float) -> None:
        """Read no more, and wait until what was read is answered, or the time is over."""
        self._is_stopping = True
        for connection in self.connections:
            connection.set_reading(False)
        end = self._loop.time() + seconds
        done = asyncio.Event()
        self.node.replica.after_apply.append(done.set)
        while not self.node.replica.is_idle and self._loop.time() < end:
            done.clear()
            try:
                await asyncio.wait_for(done.wait(), 0.1)
            except TimeoutError:
                continue
        self.broker.flush()

    def close(self) -> None:
        """Close every connection, and stop the clock."""
        self._sweep_handle.cancel()
        if self._wake is not None:
            self._wake.cancel()
        for connection in list(self.connections):
            connection.close()

    def abort(self) -> None:
        """Drop every connection without another byte: what is unanswered has an unknown outcome."""
        self._sweep_handle.cancel()
        for connection in list(self.connections):
            connection.abort()
