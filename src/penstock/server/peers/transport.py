"""The sockets between a node and its peers (docs/peers.md).

A node listens for its peers and keeps one connection of its own to each of them. A peer that breaks the protocol, is slow
or is gone costs its own connection; the group learns that messages to it may be lost. Connections that have not proven to
be a peer's are few, have little time, and never take the place of a proven one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from penstock.client.addresses import Address, parse_addresses
from penstock.errors import InvalidValue, Unreachable
from penstock.protocol.peers.packets import Members as MembersPacket
from penstock.raft.messages import Kind, Message
from penstock.server.peers.line import Line
from penstock.server.peers.links import Incoming, Outgoing, Own
from penstock.server.peers.proofs import Proofs
from penstock.server.peers.transfers import SnapshotSink, SnapshotSource
from penstock.server.settings import GroupSettings

UNSENT_MAX: Final = 32 * 2**20
"""Bytes that wait for one peer: a full window of appends and a snapshot's chunks, several times over."""

UNPROVEN_MAX: Final = 64
"""Incoming connections that are not proven. One more closes the oldest of them: a stranger cannot occupy all places."""

STRANGER_LOG_SECONDS: Final = 60.0
"""Between two lines of the log about connections that were closed unproven."""

CONNECT_SECONDS: Final = 2.0
RETRY_SECONDS_MIN: Final = 0.1
RETRY_SECONDS_MAX: Final = 2.0
_JITTER: Final = 0.25  # nodes that lost each other at one moment should not all come back at one

LOOK_SECONDS: Final = 0.5
"""How often links are looked at for being overdue."""

BACKLOG: Final = 64

Say = Callable[[str, dict[str, object]], None]


class Replica(Protocol):
    """Where messages go to. The last three are set by the transport."""

    def step(self, message: Message) -> None: ...
    def unreachable(self, peer: int) -> None: ...
    def snapshot_sent(self, peer: int, ok: bool) -> None: ...

    @property
    def offers(self) -> SnapshotSource: ...
    @property
    def receipt(self) -> SnapshotSink: ...

    transmit: Callable[[Message], None]
    flush_messages: Callable[[], None]
    soon: Callable[[Callable[[], None]], object] | None


class Members(Protocol):
    """Who the peers are."""

    @property
    def own_address(self) -> str: ...

    incarnation: str
    when_changed: list[Callable[[], None]]

    def known(self, peer: int) -> str | None: ...
    def address(self, peer: int) -> str | None: ...
    def peers(self) -> Sequence[int]: ...


class PeerGroup(Protocol):
    """What the transport needs of a node's place in its group."""

    settings: GroupSettings

    def hear(self, peer: int, incarnation: str, knows: str | None) -> None: ...
    def note_client_address(self, peer: int, address: str) -> None: ...
    def members(self) -> MembersPacket: ...
    def hear_members(self, members: MembersPacket) -> None: ...

    @property
    def membership(self) -> Members: ...
    @property
    def replica(self) -> Replica: ...


def bind(text: str) -> socket.socket:
    """Take an address for peers without listening yet. Raises ``InvalidValue`` and ``Unreachable``."""
    address = _parse(text)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise Unreachable(f"cannot listen for peers on {address}: {error}") from None
    listening.setblocking(False)
    return listening


def _parse(text: str) -> Address:
    addresses = parse_addresses(text)
    if len(addresses) != 1:
        raise InvalidValue(f'"{text}" is not one address')
    return addresses[0]


class PeerTransport:
    """All connections between a node and its peers."""

    def __init__(
        self,
        group: PeerGroup,
        loop: asyncio.AbstractEventLoop,
        say: Say,
        *,
        draw_nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """``draw_nonce(n)`` returns n random bytes that cannot be guessed."""
        self.loop = loop
        self.replica = group.replica
        self.membership = membership = group.membership
        self.now: Callable[[], float] = time.monotonic
        self.own = Own(
            node=group.settings.node,
            incarnation=membership.incarnation,
            client_address=group.settings.client_address,
            known=membership.known,
            hear=group.hear,
            note_client_address=group.note_client_address,
            members=group.members,
            hear_members=group.hear_members,
            claimed=self._note_claim,
            proofs=Proofs(draw_nonce),
        )
        self._say = say
        self._said: dict[int, str] = {}  # by peer: the last line about it
        self._strangers_said_at: float | None = (
            None  # when the last line about strangers was written
        )
        self._strangers_unsaid = 0  # connections of strangers that were closed without a line since
        self._peers: dict[int, Peer] = {}
        self._unproven: dict[Accepted, None] = {}  # in the order in which they came
        self._incoming: dict[int, Accepted] = {}  # the proven one of each peer
        self._server: asyncio.Server | None = None
        self._look: asyncio.TimerHandle | None = None
        self.is_closed = False

    async def start(self, listening: socket.socket | None = None) -> None:
        """Listen, and connect to all peers. Raises ``Unreachable`` if the address is taken.

        ``listening``: a socket of ``bind``, for who takes the address before anything else.
        """
        if listening is None:
            listening = bind(self.membership.own_address)
        self._server = await self.loop.create_server(
            lambda: Accepted(self).line, sock=listening, backlog=BACKLOG
        )
        self.replica.transmit = self.transmit
        self.replica.flush_messages = self.flush
        self.replica.soon = self.loop.call_soon
        self.membership.when_changed.append(self._follow)
        self._follow()
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_around)

    def close(self) -> None:
        """End all connections; nothing is sent or stepped any more."""
        self.is_closed = True
        if self._look is not None:
            self._look.cancel()
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(ValueError):
            self.membership.when_changed.remove(self._follow)
        for peer in list(self._peers.values()):
            peer.close()
        for accepted in [*self._unproven, *self._incoming.values()]:
            accepted.close()

    @property
    def connected(self) -> list[int]:
        """The peers that hear us."""
        return sorted(number for number, peer in self._peers.items() if peer.is_ready)

    def transmit(self, message: Message) -> None:
        """Send a message; it is lost if its peer cannot be reached or takes nothing any more."""
        if self.is_closed:
            return
        peer = self._peers.get(message.to)
        if peer is not None:
            peer.send(message)

    def flush(self) -> None:
        """Send what was gathered in this turn now: the loop may be about to wait for the disk."""
        for peer in self._peers.values():
            peer.flush()
        for accepted in self._incoming.values():
            accepted.line.flush()

    def _follow(self) -> None:
        """Connect to the nodes that are peers now, and to no others."""
        if self.is_closed:
            return
        wanted = self.membership.peers()
        for number in [number for number in self._peers if number not in wanted]:
            self._peers.pop(number).close()
            self._said.pop(number, None)
            self.forget(number)
        for number in wanted:
            if number in self._peers:
                self._peers[number].follow()
            else:
                self._peers[number] = Peer(self, number)

    def forget(self, number: int) -> None:
        """End what was proven at an address that is not a peer's any more."""
        self.own.proofs.forget(number)
        accepted = self._incoming.get(number)
        if accepted is not None:
            accepted.close()

    def _note_claim(self, number: int) -> None:
        """Return the nonce of a new link over our own link to the node that it claims to be."""
        peer = self._peers.get(number)
        if peer is not None:
            peer.prove()

    def _look_around(self) -> None:
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_around)
        for peer in list(self._peers.values()):
            peer.tick()
        for accepted in [*self._unproven, *self._incoming.values()]:
            accepted.tick()

    # From connections.

    def say(self, peer: int, text: str) -> None:
        """Log a line about a peer, unless it was the last line about it."""
        if self._said.get(peer) != text and not self.is_closed:
            self._said[peer] = text
            self._say("peer", {"peer": peer, "text": text})

    def say_stranger(self, claims: int, text: str) -> None:
        """Log that a connection was closed unproven, at most one line in a while."""
        now = self.now()
        at = self._strangers_said_at
        if self.is_closed or (at is not None and now - at < STRANGER_LOG_SECONDS):
            self._strangers_unsaid += 1
            return
        self._strangers_said_at = now
        unsaid, self._strangers_unsaid = self._strangers_unsaid, 0
        self._say("stranger", {"claims": claims, "text": text, "suppressed": unsaid})

    def welcome(self, accepted: Accepted) -> None:
        """Take a connection; if too many are not proven, close the oldest of them."""
        self._unproven[accepted] = None
        if len(self._unproven) > UNPROVEN_MAX:
            oldest = next(iter(self._unproven))
            self.say_stranger(
                oldest.link.claims, "closed unproven: a newer connection needs its place"
            )
            oldest.close()

    def note_proven(self, accepted: Accepted) -> None:
        """Take a connection for the peer's, in place of an older one."""
        number = accepted.link.claims
        del self._unproven[accepted]
        older = self._incoming.get(number)
        self._incoming[number] = accepted
        if older is not None:
            older.close()

    def farewell(self, accepted: Accepted) -> None:
        self._unproven.pop(accepted, None)
        if self._incoming.get(accepted.link.claims) is accepted:
            del self._incoming[accepted.link.claims]


class Accepted:
    """A connection that another process opened to us."""

    def __init__(self, transport: PeerTransport) -> None:
        self._transport = transport
        self.line = Line(transport.loop, made=self._made, received=self._received, lost=self._lost)
        self.link = Incoming(
            transport.own,
            self.line.write,
            step=transport.replica.step,
            sink=transport.replica.receipt,
            now=transport.now,
        )

    def _made(self) -> None:
        if self._transport.is_closed:
            self.line.close()
        else:
            self._transport.welcome(self)

    def _received(self, data: bytes) -> None:
        was_proven = self.link.is_proven
        self.link.receive(data)
        if self.link.is_proven and not was_proven:
            self._transport.note_proven(self)
        self._look()

    def _look(self) -> None:
        if not self.link.is_broken or self.line.is_closed:
            return
        text = f"its connection was closed: {self.link.reason}"
        if self.link.is_proven:
            self._transport.say(self.link.claims, text)
        else:
            self._transport.say_stranger(self.link.claims, text)
        self.close()

    def tick(self) -> None:
        self.link.tick()
        self._look()

    def close(self) -> None:
        self.link.close()
        self.line.close()
        self._transport.farewell(self)

    def _lost(self) -> None:
        self.link.close()
        self._transport.farewell(self)


class Dialled:
    """A connection that we opened to a peer."""

    def __init__(self, transport: PeerTransport, peer: int, address: str) -> None:
        self._transport = transport
        self._peer = peer
        self._address = address
        self.ended = asyncio.Event()
        self.was_ready = False  # whether the two have understood each other
        self.line = Line(transport.loop, made=self._made, received=self._received, lost=self._lost)
        self.link = Outgoing(
            transport.own,
            peer,
            address,
            self.line.write,
            snapshots=transport.replica.offers,
            done=self._note_sent,
            now=transport.now,
        )

    def _made(self) -> None:
        self.link.begin()

    def _received(self, data: bytes) -> None:
        self.link.receive(data)
        if self.link.is_ready and not self.was_ready:
            self.was_ready = True
            self._transport.say(self._peer, f"connected to {self._address}")
        self._look()

    def _note_sent(self, peer: int, ok: bool) -> None:
        # A transfer can end within the group's own call that sends a message.
        self._transport.loop.call_soon(self._transport.replica.snapshot_sent, peer, ok)

    def prove(self) -> None:
        self.link.prove()
        self._look()

    def tick(self) -> None:
        self.link.tick()
        self._look()

    def _look(self) -> None:
        if self.link.is_broken:
            self._transport.say(self._peer, f"the connection was closed: {self.link.reason}")
            self.close()

    def close(self) -> None:
        self.link.close()
        self.line.close()

    def _lost(self) -> None:
        self.link.close()
        self.ended.set()
        if self.was_ready and not self._transport.is_closed:
            self._transport.replica.unreachable(self._peer)
            if not self.link.is_broken:
                self._transport.say(self._peer, f"the connection to {self._address} is lost")


class Peer:
    """A peer that we keep a connection to."""

    def __init__(self, transport: PeerTransport, number: int) -> None:
        self.number = number
        self._transport = transport
        self._dialled: Dialled | None = None
        self._address: str | None = None  # where it was last looked for
        self._wake = asyncio.Event()
        self._has_backlog = (
            False  # whether too much waited to be sent, and not enough of it has left
        )
        # Whether the group was told that messages are lost; once is enough until some are not.
        self._is_told = False
        self._task = transport.loop.create_task(self._keep_connected())
        self._task.add_done_callback(partial(_report_bug, transport.loop))

    @property
    def is_ready(self) -> bool:
        return self._dialled is not None and self._dialled.link.is_ready

    def send(self, message: Message) -> None:
        dialled = self._dialled
        if dialled is None or self._is_congested(dialled.line) or not dialled.link.send(message):
            self._lose(message)
        else:
            self._is_told = False

    def flush(self) -> None:
        if self._dialled is not None:
            self._dialled.line.flush()

    def _is_congested(self, line: Line) -> bool:
        """Return whether too much waits already; once it does, half of it has to leave first."""
        self._has_backlog = line.unsent > (UNSENT_MAX // 2 if self._has_backlog else UNSENT_MAX)
        return self._has_backlog

    def _lose(self, message: Message) -> None:
        """Tell the group of a lost message, but not from within its own call that sends one."""
        replica, soon = self._transport.replica, self._transport.loop.call_soon
        if message.kind is Kind.SNAPSHOT:
            soon(replica.snapshot_sent, self.number, False)
        elif not self._is_told:
            self._is_told = True
            soon(replica.unreachable, self.number)

    def follow(self) -> None:
        """Go where the peer is now."""
        if self._address != self._transport.membership.address(self.number):
            self._transport.forget(self.number)
            self._hang_up()
            self._wake.set()
        elif self._dialled is not None:
            self._dialled.link.tell_members()

    def prove(self) -> None:
        """Return a nonce that was claimed; connect first, and soon, if there is no connection."""
        if self._dialled is None:
            self._wake.set()
        else:
            self._dialled.prove()

    def tick(self) -> None:
        if self._dialled is not None:
            self._dialled.tick()

    def close(self) -> None:
        self._task.cancel()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._dialled is not None:
            self._dialled.close()

    async def _keep_connected(self) -> None:
        """Connect again and again; that ends only with the transport, or when the peer is none any more."""
        delay = RETRY_SECONDS_MIN
        while True:
            self._wake.clear()
            if await self._connect():
                delay = RETRY_SECONDS_MIN
            # Every link that claims to be the peer's wakes this loop. The pause keeps a stranger from setting the pace.
            await asyncio.sleep(RETRY_SECONDS_MIN * _jitter())
            wait = (delay - RETRY_SECONDS_MIN) * _jitter()
            # Not wait_for: if it is cancelled in the moment of its success, it forgets about that.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            delay = min(2 * delay, RETRY_SECONDS_MAX)

    async def _connect(self) -> bool:
        """Connect, and stay until that ends. Return whether the two understood each other."""
        transport = self._transport
        self._address = transport.membership.address(self.number)
        if self._address is None:
            return False
        dialled = self._dialled = Dialled(transport, self.number, self._address)
        try:
            address = _parse(self._address)
            async with asyncio.timeout(CONNECT_SECONDS):
                await transport.loop.create_connection(
                    lambda: dialled.line, address.host, address.port
                )
            await dialled.ended.wait()
        except (OSError, TimeoutError, InvalidValue) as error:
            transport.say(self.number, f"cannot be reached at {self._address}: {_words(error)}")
        finally:
            self._dialled = None
            dialled.close()
        return dialled.was_ready


def _jitter() -> float:
    return random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_SECONDS:g} s"
    return str(error)


def _report_bug(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Hand what a task ended with to who decides about mistakes of ours."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        loop.call_exception_handler({"message": "connecting to a peer", "exception": error})
