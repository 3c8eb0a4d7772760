"""Links between two nodes, without sockets: bytes in, bytes out, Raft messages on the other side (docs/peers.md).

Each node opens a link to each peer and sends all its messages there; a peer's messages arrive on the link that the peer
opened. Only answers to a snapshot's chunks come back on the same link. A link carries messages only after it was proven
(``proofs``). A link that receives anything else than it may is broken for good; its owner opens another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import BadData, CorruptData
from penstock.protocol.peers import Packet, PacketReader, Type, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Entry, Kind, Message
from penstock.raft.refusals import BadMessage
from penstock.server.peers.proofs import PROOFS_MAX, Proofs
from penstock.server.peers.transfers import (
    Reception,
    Sending,
    SnapshotSink,
    SnapshotSource,
    Transfer,
    message_of_transfer,
)
from penstock.server.peers.translation import message_of, packet_of

PACKET_SECONDS: Final = 5.0
"""How long a packet may take that has begun, beyond what its bytes need at the slowest rate."""

SLOWEST_RATE: Final = 2**20
"""Bytes a second that a connection between nodes carries at the least."""

HANDSHAKE_SECONDS: Final = 5.0
"""How long a link may take to be proven."""


class Appends:
    """Bytes of messages; an append goes to several peers alike, and is encoded for the first of them."""

    __slots__ = ("_bytes", "_entries", "_rest")

    def __init__(self) -> None:
        self._entries: Sequence[Entry] = ()
        self._rest: tuple[int, ...] = ()
        self._bytes = b""

    def encode(self, message: Message) -> bytes:
        if message.kind is not Kind.APPEND or not message.entries:
            return encode_packet(packet_of(message))
        rest = (message.sender, message.term, message.index, message.log_term, message.commit)
        if message.entries is not self._entries or rest != self._rest:
            self._entries, self._rest = message.entries, rest
            self._bytes = encode_packet(packet_of(message))
        return self._bytes


@dataclass(slots=True, kw_only=True)
class Own:
    """What all links of a node share: what it tells its peers, and where it notes what they tell."""

    node: int
    incarnation: str
    client_address: str
    known: Callable[[int], str | None]  # by which incarnation we know a peer
    hear: Callable[[int, str, str | None], None]  # a peer's incarnation, and by which it knows us
    note_client_address: Callable[[int, str], None]
    members: Callable[[], p.Members]  # of this node's configuration
    hear_members: Callable[[p.Members], None]  # of a peer's configuration
    claimed: Callable[[int], None]  # an incoming link claims to be a node's, and is not proven yet
    proofs: Proofs
    reception: Reception = field(default_factory=Reception)
    appends: Appends = field(default_factory=Appends)


class _Link(ABC):
    """What both ends have in common: reading, breaking, closing."""

    def __init__(self, own: Own, write: Callable[[bytes], None], now: Callable[[], float]) -> None:
        self._own = own
        self._write_bytes = write
        self._now = now
        self._reader = PacketReader()
        self._since = now()  # when the link began
        self._begun: float | None = None  # when the packet began that is not whole yet
        self._is_closed = False  # by its owner, or because it broke
        self.is_ready = False  # whether the handshake is done
        self._awaited = "no handshake"  # what a link that is not ready lacks
        self.reason: str | None = None  # why it is broken

    @property
    def is_broken(self) -> bool:
        """Whether it is of no use any more: close the connection."""
        return self.reason is not None

    def receive(self, data: bytes) -> None:
        """Take bytes of the other side."""
        if self._is_closed:
            return
        try:
            self._reader.feed(data)
            self._take_packets(self._reader)
        except (BadData, BadMessage) as error:
            self._break(str(error))
        if not self._reader.held:
            self._begun = None
        elif self._begun is None:
            self._begun = self._now()

    def _take_packets(self, reader: PacketReader) -> None:
        while (
            reader.held
            and not self._is_closed
            and (packet := reader.next(self._allowed())) is not None
        ):
            self._take(packet)
            self._begun = None

    @abstractmethod
    def _allowed(self) -> frozenset[int]:
        """The types of packets that may come now."""

    @abstractmethod
    def _take(self, packet: Packet) -> None:
        """Take a packet of a type that is allowed. Raises ``BadData`` or ``BadMessage``."""

    def tick(self) -> None:
        """Look at the clock; to be called about once a second, or more often."""
        is_met = self.is_ready or self._is_closed
        if not is_met and self._now() - self._since >= HANDSHAKE_SECONDS:
            self._break(f"{self._awaited} within {HANDSHAKE_SECONDS:g} s")
        if self._begun is None:
            return
        patience = PACKET_SECONDS + self._reader.held / SLOWEST_RATE
        if self._now() - self._begun >= patience:
            # A length that is wrong would else keep everything behind it waiting for ever.
            self._break(f"a packet was not whole within {patience:.0f} s")

    def _write(self, packet: Packet) -> None:
        if not self._is_closed:
            self._write_bytes(encode_packet(packet))

    def _break(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            self.close()

    def close(self) -> None:
        """End it; nothing is written or stepped any more."""
        self._is_closed = True
        self.is_ready = False

    def _greeting(self, peer: int) -> p.Hello:
        own = self._own
        knows = own.known(peer) or ""
        return p.Hello(incarnation=own.incarnation, knows=knows, client_address=own.client_address)

    def _note_greeting(self, peer: int, greeting: p.Hello) -> None:
        self._own.hear(peer, greeting.incarnation, greeting.knows or None)
        if greeting.client_address:
            self._own.note_client_address(peer, greeting.client_address)


class Outgoing(_Link):
    """The link that we opened: all that we send to a peer.

    We send our nonce; the listener at the peer's address returns it with its number. Then we return every nonce that an
    incoming link claims to be the peer's, until the peer greets us: one of them was its own.
    """

    _CONNECTED: Final = frozenset((Type.CONNECTED,))
    _HELLO: Final = frozenset((Type.HELLO,))
    _ANSWERS: Final = frozenset((Type.OFFER_REPLY, Type.CHUNK_REPLY))

    def __init__(
        self,
        own: Own,
        peer: int,
        address: str,
        write: Callable[[bytes], None],
        *,
        snapshots: SnapshotSource,
        done: Callable[[int, bool], None],
        now: Callable[[], float],
    ) -> None:
        """``address``: the configured one, which the link was opened to. ``done`` gets how each transfer ended.

        ``done`` may be called before ``send`` returns.
        """
        super().__init__(own, write, now)
        self.peer = peer
        self._snapshots = snapshots
        self._done = done
        self._sending: Sending | None = None
        self._nonce = own.proofs.nonce(peer, address)
        self._is_connected = False  # whether the nonce came back
        self._returned: set[bytes] = set()  # nonces that we returned on this link
        self._members: p.Members | None = None  # what the peer was told last

    def begin(self) -> None:
        """Start the handshake: the connection is there."""
        self._since = self._now()
        self._write(p.Connect(node=self._own.node, nonce=self._nonce))

    def prove(self) -> None:
        """Return the nonces that links claim to be the peer's, if the peer still waits for its own."""
        if not self._is_connected or self.is_ready:
            return
        for nonce in self._own.proofs.candidates(self.peer):
            if nonce in self._returned:
                continue
            if len(self._returned) >= PROOFS_MAX:
                self._break(f"more than {PROOFS_MAX} links claim to be node {self.peer}'s")
                return
            self._returned.add(nonce)
            self._write(p.Proof(nonce=nonce))

    def tell_members(self) -> None:
        """Send where the members of our configuration listen, unless the peer knows."""
        members = self._own.members()
        if self.is_ready and (
            self._members is None or members.addresses != self._members.addresses
        ):
            self._members = members
            self._write(members)

    def send(self, message: Message) -> bool:
        """Send a message. Return whether it was taken; one that was not is lost."""
        if not self.is_ready:
            return False
        if message.kind is Kind.SNAPSHOT:
            self._begin_sending(message)
        else:
            self._write_bytes(self._own.appends.encode(message))
        return True

    def _begin_sending(self, message: Message) -> None:
        assert message.snapshot is not None
        sending = self._sending
        if sending is not None:
            if (sending.snapshot, sending.leader_term) == (message.snapshot, message.term):
                return
            sending.end(False)  # the group has moved on; it waits for the new one's end only
        file = self._snapshots.open(message.snapshot)
        if file is None:
            self._sending = None
            self._done(self.peer, False)
            return
        self._sending = Sending(message, file, self._write, self._now)
        self._sending.offer()

    def _allowed(self) -> frozenset[int]:
        if self.is_ready:
            return self._ANSWERS
        return self._HELLO if self._is_connected else self._CONNECTED

    def _take(self, packet: Packet) -> None:
        match packet:
            case p.Connected():
                self._take_connected(packet)
            case p.Hello():
                # Our greeting reports what we knew of the peer before its greeting changes that.
                self._write(self._greeting(self.peer))
                self.is_ready = True
                self._note_greeting(self.peer, packet)
                self.tell_members()
            case p.OfferReply() | p.ChunkReply() if self._sending is not None:
                self._sending.take(packet)
                self._look_at_sending()

    def _take_connected(self, packet: p.Connected) -> None:
        if packet.node != self.peer:
            raise CorruptData(
                "another node answers at this address",
                expected=f"node {self.peer}",
                found=f"node {packet.node}",
            )
        if packet.nonce != self._nonce:
            raise CorruptData("the peer returns another nonce than it was sent")
        self._is_connected = True
        self._awaited = "the peer did not connect to this node, or not from where it is looked for,"
        self.prove()

    def tick(self) -> None:
        super().tick()
        if self._sending is not None:
            self._sending.tick()
            self._look_at_sending()

    def _look_at_sending(self) -> None:
        sending = self._sending
        if sending is not None and sending.outcome is not None:
            self._sending = None
            self._done(self.peer, sending.outcome)

    def close(self) -> None:
        """End it; a snapshot under way has failed."""
        super().close()
        if self._sending is not None:
            self._sending.end(False)
            self._look_at_sending()


class Incoming(_Link):
    """A link that a node opened to us: all that it sends, once it has proven to be the peer that it claims to be.

    Until then it may claim a number and return nonces, both in packets of a few bytes, and learns nothing.
    """

    _CONNECT: Final = frozenset((Type.CONNECT,))
    _PROOF: Final = frozenset((Type.PROOF,))
    _PROOF_OR_HELLO: Final = frozenset((Type.PROOF, Type.HELLO))
    _MESSAGES: Final = frozenset(
        (
            Type.VOTE,
            Type.VOTE_REPLY,
            Type.APPEND,
            Type.TRANSFER_VOTE,
            Type.HINTED_VOTE_REPLY,
            Type.PRE_VOTE,
            Type.PRE_VOTE_REPLY,
            Type.APPEND_REPLY,
            Type.HEARTBEAT,
            Type.HEARTBEAT_REPLY,
            Type.TIMEOUT_NOW,
            Type.READ,
            Type.READ_REPLY,
            Type.OFFER,
            Type.MEMBERS,
        )
    )
    _MESSAGES_AND_CHUNKS: Final = _MESSAGES | {Type.CHUNK}

    def __init__(
        self,
        own: Own,
        write: Callable[[bytes], None],
        *,
        step: Callable[[Message], None],
        sink: SnapshotSink,
        now: Callable[[], float],
    ) -> None:
        super().__init__(own, write, now)
        self.claims = 0  # the number that the opener claims
        self.is_proven = False  # whether the opener is the peer that it claims to be
        self._step = step
        self._sink = sink
        self._wrong_proofs = 0
        self._has_offered = False  # whether chunks may come

    def _allowed(self) -> frozenset[int]:
        if self.is_ready:
            return self._MESSAGES_AND_CHUNKS if self._has_offered else self._MESSAGES
        if self.is_proven:
            return self._PROOF_OR_HELLO  # proofs that were sent before our greeting arrived
        return self._PROOF if self.claims else self._CONNECT

    def _take(self, packet: Packet) -> None:
        match packet:
            case p.Connect():
                self._take_connect(packet)
            case p.Proof():
                self._take_proof(packet)
            case p.Hello():
                self.is_ready = True
                self._note_greeting(self.claims, packet)
            case p.Members():
                self._own.hear_members(packet)
            case p.Offer():
                self._has_offered = True
                self._own.reception.offered(packet, self._sink, self._write, self._install)
            case p.Chunk():
                self._own.reception.arrived(packet, self._sink, self._write, self._install)
            case _:
                self._step(message_of(packet, sender=self.claims, to=self._own.node))

    def _take_connect(self, packet: p.Connect) -> None:
        own = self._own
        if packet.node < 1 or packet.node == own.node:
            raise CorruptData("a node that cannot be a peer connects", found=f"node {packet.node}")
        self.claims = packet.node
        self._write(p.Connected(node=own.node, nonce=packet.nonce))
        own.proofs.claim(self, packet.node, packet.nonce)
        own.claimed(packet.node)

    def _take_proof(self, packet: p.Proof) -> None:
        own = self._own
        if self.is_proven:
            return
        if own.proofs.is_right(self.claims, packet.nonce):
            self.is_proven = True
            own.proofs.confirm(self)
            self._write(self._greeting(self.claims))
            return
        self._wrong_proofs += 1
        if self._wrong_proofs > PROOFS_MAX:
            raise CorruptData(f"more than {PROOFS_MAX} wrong nonces")

    def close(self) -> None:
        super().close()
        self._own.proofs.drop(self)

    def _install(self, transfer: Transfer) -> bool:
        """Step a snapshot that is whole, unless the link has ended meanwhile."""
        if self._is_closed:
            return False
        try:
            self._step(message_of_transfer(transfer, sender=self.claims, to=self._own.node))
        except BadMessage as error:
            self._break(str(error))
            return False
        return True
