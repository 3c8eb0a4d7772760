"""One socket between two nodes: what is written in one turn of the loop leaves together."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final, cast

# A peer that vanished without a word, or behind a network that drops everything, is noticed after about this long. What
# the system keeps trying to send would else be tried again ever more rarely, and a healed network be noticed late.
SILENCE_MS: Final = 5_000
_OPTIONS: Final = (
    ("TCP_NODELAY", 1),
    ("TCP_KEEPIDLE", 2),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", SILENCE_MS),
)


class Line(asyncio.Protocol):
    """A connection whose owner is told what comes, and when it ends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        made: Callable[[], None],
        received: Callable[[bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._made = made
        self._received = received
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.is_closed:
            self._transport.abort()
            return
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _OPTIONS:
                if hasattr(socket, name):  # not every system has all of them
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._made()

    def data_received(self, data: bytes) -> None:
        if not self.is_closed:
            self._received(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self.is_closed = True
        self._lost()

    @property
    def unsent(self) -> int:
        """Bytes that were written and have not left this process."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._gathered_size + waiting

    def write(self, data: bytes) -> None:
        """Send bytes, together with all others of this turn of the loop."""
        if self.is_closed:
            return
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(data)
        self._gathered_size += len(data)

    def flush(self) -> None:
        """Send what was gathered now and not in the next turn."""
        gathered, self._gathered, self._gathered_size = self._gathered, [], 0
        if gathered and self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(RuntimeError):  # a handle that was closed and has not said so
                self._transport.writelines(gathered)

    def close(self) -> None:
        """Close, at once if the other side does not take what was written."""
        if self.is_closed:
            return
        self.flush()
        self.is_closed = True
        if self._transport is None:
            return  # it is closed as soon as it is there
        # A connection that was given up while it was being made is closed without a word to its protocol, and whatever
        # is asked of it then is an error.
        with contextlib.suppress(RuntimeError):
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()
