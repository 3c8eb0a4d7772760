"""The sockets between a node and its peers (docs/peers.md).

A node listens for its peers and keeps one connection of its own to each of them. A peer that breaks the protocol, is slow
or is gone costs its own connection; the group is told that what it was sent may be lost, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from penstock.client.addresses import Address, parse_addresses
from penstock.errors import InvalidValue, Unreachable
from penstock.raft.messages import REPLIES, Kind, Message
from penstock.server.peers.line import Line
from penstock.server.peers.links import Incoming, Outgoing, Own
from penstock.server.peers.transfers import SnapshotSink, SnapshotSource
from penstock.server.settings import GroupSettings

UNSENT_MAX: Final = 32 * 2**20
"""Bytes that wait for one peer: a full window of appends and a snapshot's chunks, several times over."""

INCOMING_MAX: Final = 64
"""Connections that others have open; a group has far fewer members, and each needs one."""

STRANGERS_MAX: Final = 16
"""Of these, connections that have not said yet who they are."""

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
    client_addresses: dict[int, str]

    def hear(self, peer: int, incarnation: str, knows: str | None) -> None: ...

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
        plain_snapshots: SnapshotSource | None = None,
    ) -> None:
        """``plain_snapshots``: states as an original node reads them; without, an original gets no snapshot."""
        self.loop = loop
        self.replica = group.replica
        self.membership = membership = group.membership
        self.plain_snapshots = plain_snapshots
        self.now: Callable[[], float] = time.monotonic
        self.own = Own(
            node=group.settings.node,
            incarnation=membership.incarnation,
            client_address=group.settings.client_address,
            known=membership.known,
            hear=group.hear,
            note_client_address=group.client_addresses.__setitem__,
            takes_original=lambda peer: peer in membership.peers(),
        )
        self._say = say
        self._said: dict[int, str] = {}  # what was last said of a peer
        self._peers: dict[int, Peer] = {}
        self._accepted: dict[Accepted, None] = {}  # all of them, in the order in which they came
        self._incoming: dict[int, Accepted] = {}  # those that have said who they are
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
        for accepted in list(self._accepted):
            accepted.close()

    @property
    def connected(self) -> list[int]:
        """The peers that hear us."""
        return sorted(number for number, peer in self._peers.items() if peer.is_ready)

    def transmit(self, message: Message) -> None:
        """Send a message; it is lost if its peer cannot be reached or takes nothing any more."""
        if self.is_closed:
            return
        caller, peer = self._incoming.get(message.to), self._peers.get(message.to)
        is_reached = peer is not None and peer.is_ready
        if (
            message.kind in REPLIES
            and caller is not None
            and (caller.link.is_original or not is_reached)
        ):
            caller.reply(message)
        elif peer is not None:
            peer.send(message)

    def flush(self) -> None:
        """Send what was gathered in this turn now: the loop may be about to wait for the disk."""
        for peer in self._peers.values():
            peer.flush()
        for accepted in self._accepted:
            accepted.line.flush()

    def _follow(self) -> None:
        """Connect to whoever is a peer now, and to nobody else."""
        if self.is_closed:
            return
        wanted = self.membership.peers()
        for number in [number for number in self._peers if number not in wanted]:
            self._peers.pop(number).close()
        for number in wanted:
            if number in self._peers:
                self._peers[number].follow()
            else:
                self._peers[number] = Peer(self, number)

    def _look_around(self) -> None:
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_around)
        for peer in list(self._peers.values()):
            peer.tick()
        for accepted in list(self._accepted):
            accepted.tick()

    # From connections.

    def say(self, peer: int, text: str) -> None:
        """Tell people about a peer, unless that was the last that they were told."""
        if self._said.get(peer) != text and not self.is_closed:
            self._said[peer] = text
            self._say("peer", {"peer": peer, "text": text})

    def has_room(self) -> bool:
        """Return whether one more connection may be opened to us."""
        strangers = len(self._accepted) - len(self._incoming)
        return (
            not self.is_closed and len(self._accepted) < INCOMING_MAX and strangers < STRANGERS_MAX
        )

    def welcome(self, accepted: Accepted) -> None:
        self._accepted[accepted] = None

    def note_caller(self, accepted: Accepted) -> None:
        """Take a connection for the peer's, in place of an older one."""
        number = accepted.link.peer
        older = self._incoming.get(number)
        self._incoming[number] = accepted
        if older is not None:
            older.close()
        if number in self._peers:
            self._peers[number].wake()  # it is there, so it can be reached

    def farewell(self, accepted: Accepted) -> None:
        self._accepted.pop(accepted, None)
        if self._incoming.get(accepted.link.peer) is accepted:
            del self._incoming[accepted.link.peer]


class Accepted:
    """A connection that somebody opened to us."""

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
        if self._transport.has_room():
            self._transport.welcome(self)
        else:
            self.line.close()

    def _received(self, data: bytes) -> None:
        was_ready = self.link.is_ready
        self.link.receive(data)
        if self.link.is_ready and not was_ready:
            self._transport.note_caller(self)
        self._look()

    def reply(self, message: Message) -> None:
        """Answer on this connection, unless its opener does not read what it is told."""
        if self.line.unsent <= UNSENT_MAX:
            self.link.reply(message)

    def _look(self) -> None:
        if self.link.is_broken and not self.line.is_closed:
            text = f"its connection was closed: {self.link.reason}"
            self._transport.say(self.link.peer, text)
            self.close()

    def tick(self) -> None:
        self.link.tick()
        self._look()

    def close(self) -> None:
        self.link.close()
        self.line.close()

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
            self.line.write,
            step=transport.replica.step,
            snapshots=transport.replica.offers,
            plain_snapshots=transport.plain_snapshots,
            done=self._note_sent,
            now=transport.now,
        )

    def _made(self) -> None:
        self.link.begin()

    def _received(self, data: bytes) -> None:
        self.link.receive(data)
        if self.link.is_ready and not self.was_ready:
            self.was_ready = True
            kind = ", an original node" if self.link.is_original else ""
            self._transport.say(self._peer, f"connected to {self._address}{kind}")
        self._look()

    def _note_sent(self, peer: int, ok: bool) -> None:
        # A transfer can end within the group's own call that sends a message.
        self._transport.loop.call_soon(self._transport.replica.snapshot_sent, peer, ok)

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
            self._hang_up()
            self.wake()

    def wake(self) -> None:
        """Connect now rather than later, if there is no connection."""
        self._wake.set()

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
            wait = delay * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
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


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_SECONDS:g} s"
    return str(error)


def _report_bug(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Hand what a task ended with to who decides about mistakes of ours."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        loop.call_exception_handler({"message": "connecting to a peer", "exception": error})
