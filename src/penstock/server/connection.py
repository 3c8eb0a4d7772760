"""One socket: the greeting, the session behind it, and what a bad or slow caller may cost.

A caller that breaks the protocol, sends too slowly, reads too slowly or sends more than it may, loses its own
connection; nobody else notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, cast

from penstock.errors import BadData
from penstock.protocol import version1 as v1
from penstock.protocol import version2 as v2
from penstock.server.session1 import Session1
from penstock.server.session2 import Session2
from penstock.server.settings import EXCESS_SECONDS

if TYPE_CHECKING:
    from penstock.server.listener import Listener

WRITE_BUFFER_MAX: Final = 2**20
"""Bytes that wait for a caller to read them before nothing more is delivered to it."""

GREETING_SIZE_MAX: Final = 64
SLOWEST_RATE: Final = 64 * 2**10
"""Bytes a second below which a large frame is not worth waiting for."""

_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux only
"""TaskFlux's client sends a packet in several small writes without TCP_NODELAY. It sends the second when the first is
acknowledged, which the kernel delays by 40 ms unless it is told otherwise after every read."""

# A peer that vanished without a word is noticed after about a minute.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Connection(asyncio.Protocol):
    """A caller at the other end of a socket."""

    __slots__ = (
        "_closing_since",
        "_greeting",
        "_is_authorized",
        "_is_reading",
        "_listener",
        "_socket",
        "_transport",
        "accounted",
        "blocked_since",
        "heard",
        "pending_since",
        "session",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._greeting = b""
        self._is_authorized = False
        self._is_reading = True
        self._socket: socket.socket | None = None  # of TCP; None for any other transport
        self._closing_since: float | None = None  # since when only its last answers keep it open
        self.session: Session1 | Session2 | None = None
        self.accounted = 0  # bytes of ours in the node's total
        now = listener.now()
        self.heard = now  # when something last came
        self.pending_since: float | None = now  # since when a packet is not whole
        self.blocked_since: float | None = None  # since when the caller reads too slowly

    # From the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            self._socket = raw
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        if not self._listener.welcome(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.heard = self._listener.now()
        self._listener.meter.bytes_received += len(data)
        if not isinstance(self.session, Session2):
            self._acknowledge()
        if self.session is None:
            data = self._greet(data)
            if self.session is None:
                return
        count = self.session.receive(data) if data else 0
        held = self.session.held_size
        if not held and not self.session.is_draining:
            self.pending_since = None
        elif count or self.pending_since is None:
            self.pending_since = self.heard
        if self.session.is_broken:
            self._listener.handle(self)
            self._break_off()
        elif (
            count or held
        ):  # else only reports of started tasks came: nothing is to be done for them
            self._listener.gather(self)

    def _acknowledge(self) -> None:
        """Let the kernel acknowledge what was read at once."""
        if _QUICK_ACK is not None and self._socket is not None:
            with contextlib.suppress(OSError):  # the connection may be gone
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def look(self) -> None:
        """Go on with packets that waited until answers had left; end what broke the protocol meanwhile."""
        session = self.session
        if session is None or self.is_closing:
            return
        if session.has_backlog and not session.is_full:
            session.go_on()
            self._listener.handle(self)
        if session.is_broken:
            self._break_off()

    def _break_off(self) -> None:
        """End a session that broke the protocol: its tasks go back now, however slowly it reads the rest."""
        if self.session is not None and not self.is_closing:
            self._listener.meter.protocol_errors += 1
            self.session.close()
            self.close()
            self._listener.handle(self)

    def attend(self) -> None:
        """Ask to be looked at when the answers of this turn have left."""
        self._listener.attend(self)

    def pause_writing(self) -> None:
        self.blocked_since = self._listener.now()
        if self.session is not None:
            self.session.set_full(True)

    def resume_writing(self) -> None:
        self.blocked_since = None
        if self.session is not None:
            self.session.set_full(False)
            self._listener.handle(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self.session is not None:
            self.session.close()
        self._listener.farewell(self)

    # The greeting: authorization, then the version that decides who goes on.

    def _greet(self, data: bytes) -> bytes:
        """Take the greeting and return what came behind it."""
        self._greeting += data
        while self.session is None:
            try:
                found = v1.decode_request(self._greeting[:GREETING_SIZE_MAX])
            except BadData:
                self._refuse()
                return b""
            if found is None:
                if len(self._greeting) >= GREETING_SIZE_MAX:
                    self._refuse()
                return b""
            request, offset = found
            self._greeting = self._greeting[offset:]
            if not self._is_authorized and isinstance(request, v1.Authorize):
                self._is_authorized = True
                self.write(v1.encode_response(v1.Authorized(reason=None)))
            elif self._is_authorized and isinstance(request, v1.Bootstrap):
                self._begin(request)
                if self.session is None:
                    return b""
            else:
                self._refuse()
                return b""
        rest, self._greeting = self._greeting, b""
        return rest

    def _begin(self, request: v1.Bootstrap) -> None:
        if request.major == 1 and request.minor <= 0:  # TaskFlux takes negative minors too
            self.session = self._listener.session1(self)
        elif (request.major, request.minor) == (v2.MAJOR, v2.MINOR):
            self.session = Session2(self._listener.broker, self.write, self._listener.node.group)
        reason = None
        if self.session is None:
            reason = f"versions 1.0 and {v2.MAJOR}.{v2.MINOR} are spoken here"
        self.write(v1.encode_response(v1.Bootstrapped(reason=reason)))
        if self.session is None:
            self.close()

    def _refuse(self) -> None:
        self._listener.meter.protocol_errors += 1
        self.close()

    # To the socket.

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._listener.meter.bytes_sent += len(data)
            self._transport.write(data)

    def set_reading(self, is_reading: bool) -> None:
        if is_reading == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = is_reading
        if is_reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    @property
    def is_closing(self) -> bool:
        return self._closing_since is not None

    def close(self) -> None:
        """Close when what was answered has left."""
        if self._closing_since is None:
            self._closing_since = self._listener.now()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._closing_since is None:
            self._closing_since = self._listener.now()
        self._transport.abort()

    def is_overdue(self, now: float, *, idle_seconds: float, stall_seconds: float) -> bool:
        """Return whether the caller has kept us waiting for longer than it may."""
        if self._closing_since is not None:
            return now - self._closing_since > stall_seconds
        if self.blocked_since is not None and now - self.blocked_since > stall_seconds:
            return True
        is_draining = self.session is not None and self.session.is_draining
        if self.session is None or is_draining or self.pending_since is not None:
            since = self.pending_since or self.heard
            held = 0 if self.session is None else self.session.held_size
            patience = stall_seconds + held / SLOWEST_RATE
            if is_draining:
                patience = min(patience, EXCESS_SECONDS)
            if self._is_reading and now - since > patience:
                return True
        is_waiting = self.session is not None and self.session.is_waiting
        return not is_waiting and now - self.heard > idle_seconds
