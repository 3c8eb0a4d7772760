"""What carries bytes between a client and a node: a socket, or a queue within one process."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from penstock.client.nodes import Nodes
from penstock.errors import ConnectionLost, Unreachable

RECEIVE_SIZE: Final = 256 * 2**10
"""Bytes of one read: several batches of small tasks at once, and little enough to allocate each time."""

INBOX_SIZE_MAX: Final = 64 * 2**20
"""Bytes taken in while a send waits for room: three of the largest frames."""

_LOOK_AGAIN: Final = 0.05
"""Seconds after which a blocked send looks whether somebody still reads."""

_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
)
"""A machine that vanished without a word is noticed after half a minute of silence."""


class Transport(Protocol):
    """Bytes both ways, in order. One thread receives at a time and one sends; any may close."""

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises ``OSError`` (``TimeoutError`` among them)."""

    def receive(self, timeout: float | None) -> bytes:
        """Return the next bytes, ``b""`` once the other side has closed.

        Raises ``TimeoutError`` after ``timeout`` seconds without any, and ``OSError``.
        """

    def close(self) -> None:
        """End the connection; a ``receive`` under way returns or raises. Harmless when repeated."""


Connect = Callable[[], Transport]
"""Makes a new transport. Raises ``Unreachable``."""


class SocketTransport:
    """A TCP connection.

    A send that waits for room takes in what arrives meanwhile: the node may itself be waiting to be
    read from before it reads on, and then two polite sides would wait for each other for ever.
    """

    def __init__(self, sock: socket.socket, *, timeout: float) -> None:
        """Take over a connected socket. ``timeout`` seconds without room to send break it."""
        sock.setblocking(False)
        self._socket = sock
        self._timeout = timeout
        self._reading = threading.Lock()  # held by whoever reads the socket
        self._inbox: deque[bytes] = deque()  # read by a send, not yet received
        self._inbox_size = 0
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def send(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._send_slowly(memoryview(data)[sent:])

    def _send_slowly(self, rest: memoryview) -> None:
        deadline = time.monotonic() + self._timeout
        while rest:
            if self._wait_for_room(deadline):
                try:
                    rest = rest[self._socket.send(rest) :]
                    deadline = time.monotonic() + self._timeout
                except BlockingIOError:
                    continue

    def _wait_for_room(self, deadline: float) -> bool:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"no room to send for {self._timeout:g} s")
        if self._socket.fileno() < 0:
            raise ConnectionResetError("closed by this side")
        room = select.poll()
        reads = self._inbox_size < INBOX_SIZE_MAX and self._reading.acquire(blocking=False)
        try:
            room.register(self._socket, select.POLLOUT | (select.POLLIN if reads else 0))
            events = room.poll(1000 * min(remaining, remaining if reads else _LOOK_AGAIN))
            state = events[0][1] if events else 0
            if reads and state & ~select.POLLOUT:
                self._take_in()
        finally:
            if reads:
                self._reading.release()
        return bool(state & ~select.POLLIN)

    def _take_in(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("closed by the other side")
        self._inbox.append(data)
        self._inbox_size += len(data)

    def receive(self, timeout: float | None) -> bytes:
        with self._reading:
            if self._inbox:
                data = self._inbox.popleft()
                self._inbox_size -= len(data)
                return data
            while self._socket.fileno() >= 0:
                if not self._readable.poll(None if timeout is None else 1000 * max(0.0, timeout)):
                    raise TimeoutError
                try:
                    return self._socket.recv(RECEIVE_SIZE)
                except BlockingIOError:
                    continue
            return b""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other side may have been faster
            # Wakes a thread that polls; closing alone would leave it there.
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._reading.acquire(timeout=_LOOK_AGAIN):
            try:
                self._socket.close()
            finally:
                self._reading.release()


def prepare(sock: socket.socket) -> None:
    """Set what every connection of ours has: no waiting to fill packets, and notice of dead machines."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Dialer:
    """Connects to the first node that answers, and next time to the one behind it, or to the leader."""

    def __init__(self, nodes: Nodes, *, timeout: float) -> None:
        self._nodes = nodes
        self._timeout = timeout

    def __call__(self) -> Transport:
        """Return a transport. Raises ``Unreachable`` with what each address said."""
        reasons = []
        for address in self._nodes.candidates():
            try:
                patience = self._nodes.patience(self._timeout)
                sock = socket.create_connection((address.host, address.port), patience)
                prepare(sock)
                return SocketTransport(sock, timeout=self._timeout)
            except OSError as error:
                reasons.append(f"{address} ({reason_of(error)})")
        raise unreachable(reasons)


def unreachable(reasons: list[str]) -> Unreachable:
    """Return the error for a round of addresses none of which answered."""
    return Unreachable(
        f"no node answers at {', '.join(reasons)}; is the node running? Start one with `penstock serve`"
    )


def reason_of(error: OSError) -> str:
    """Return what the system said, in its words, without numbers."""
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    return error.strerror or str(error) or type(error).__name__


def lost(error: OSError) -> ConnectionLost:
    return ConnectionLost(f"the connection broke: {reason_of(error)}")
