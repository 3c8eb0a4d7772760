"""Links between two nodes, without sockets: bytes in, bytes out, messages of the group on the other side (docs/peers.md).

Each node opens a link to each peer and says everything there; what a peer says comes on the link that the peer opened. Back
on the same one come answers to a snapshot's chunks, and replies of a peer that has no link of its own yet: one that joins a
group may not know where its leader is. An original TaskFlux node always answers where it was asked.
A link that hears something it cannot have been meant to hear is broken, for good; its owner opens another.
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
from penstock.server.peers.originals import ANSWER_SECONDS, Answering, Asking
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
"""How long the other side may take to say who it is."""


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
    """What a node says of itself, and whom it tells what others say of themselves. One for all links of a node."""

    node: int
    incarnation: str
    client_address: str
    known: Callable[[int], str | None]  # by which incarnation we know a peer
    hear: Callable[[int, str, str | None], None]  # a peer's incarnation, and by which it knows us
    note_client_address: Callable[[int, str], None]
    # Whether a node of this number that does not know our packets may connect.
    takes_original: Callable[[int], bool] = lambda _: True
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
            self._break(f"no handshake within {HANDSHAKE_SECONDS:g} s")
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

    def _note_greeting(self, peer: int, greeting: p.Hello | p.Welcome) -> None:
        self._own.hear(peer, greeting.incarnation, greeting.knows or None)
        if greeting.client_address:
            self._own.note_client_address(peer, greeting.client_address)


class Outgoing(_Link):
    """The link that we opened: all that we say to a peer."""

    _GREETINGS: Final = frozenset((Type.WELCOME, Type.CONNECTED))
    _ANSWERS: Final = frozenset(
        (
            Type.OFFER_REPLY,
            Type.CHUNK_REPLY,
            Type.VOTE_REPLY,
            Type.HINTED_VOTE_REPLY,
            Type.PRE_VOTE_REPLY,
            Type.APPEND_REPLY,
            Type.HEARTBEAT_REPLY,
            Type.READ_REPLY,
        )
    )

    def __init__(
        self,
        own: Own,
        peer: int,
        write: Callable[[bytes], None],
        *,
        step: Callable[[Message], None],
        snapshots: SnapshotSource,
        done: Callable[[int, bool], None],
        now: Callable[[], float],
        plain_snapshots: SnapshotSource | None = None,
    ) -> None:
        """``done`` is told how each transfer ended, possibly before ``send`` returns.

        ``plain_snapshots``: states as an original reads them; without, an original gets no snapshot.
        """
        super().__init__(own, write, now)
        self.peer = peer
        self._step = step
        self._snapshots = snapshots
        self._plain_snapshots = plain_snapshots
        self._done = done
        self._sending: Sending | None = None
        self._asking: Asking | None = None  # if the peer is an original

    @property
    def is_original(self) -> bool:
        return self._asking is not None

    def begin(self) -> None:
        """Say who we are: the connection is there."""
        self._since = self._now()
        self._write(p.Connect(node=self._own.node, is_announcing=True))

    def send(self, message: Message) -> bool:
        """Say a message. Return whether it was taken; one that was not is lost."""
        if not self.is_ready:
            return False
        if self._asking is not None:
            return self._asking.send(message)
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
        if not self.is_ready:
            return self._GREETINGS
        return self._ANSWERS if self._asking is None else self._asking.allowed

    def _take(self, packet: Packet) -> None:
        if not self.is_ready:
            self._take_greeting(packet)
        elif self._asking is not None:
            self._asking.take(packet)
        elif not isinstance(packet, p.OfferReply | p.ChunkReply):
            self._step(message_of(packet, sender=self.peer, to=self._own.node))
        elif self._sending is not None:
            self._sending.take(packet)
            self._look_at_sending()

    def _take_greeting(self, packet: Packet) -> None:
        if isinstance(packet, p.Welcome):
            if packet.node != self.peer:
                raise CorruptData(
                    "another node answers at this address",
                    expected=f"node {self.peer}",
                    found=f"node {packet.node}",
                )
            own = self._own
            knows = own.known(self.peer) or ""
            self._write(
                p.Hello(incarnation=own.incarnation, knows=knows, client_address=own.client_address)
            )
            self.is_ready = True
            self._note_greeting(self.peer, packet)
            return
        assert isinstance(packet, p.Connected)
        if not packet.is_accepted:
            raise CorruptData("the peer does not let us connect")
        self._asking = Asking(
            self._write_bytes,
            step=self._step,
            snapshots=self._plain_snapshots,
            done=lambda ok: self._done(self.peer, ok),
            now=self._now,
        )
        self.is_ready = True

    def tick(self) -> None:
        super().tick()
        if self._sending is not None:
            self._sending.tick()
            self._look_at_sending()
        if self._asking is not None and self._asking.is_overdue:
            self._break(f"no answer within {ANSWER_SECONDS:g} s")

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
        if self._asking is not None:
            self._asking.close()


class Incoming(_Link):
    """A link that a peer opened: all that it says to us."""

    _CONNECT: Final = frozenset((Type.CONNECT,))
    _HELLO: Final = frozenset((Type.HELLO,))
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
        self.peer = 0  # until the handshake is done
        self._step = step
        self._sink = sink
        self._opener = 0  # who says it opened the link
        self._answering: Answering | None = None  # if it is an original
        self._has_offered = False  # whether chunks may come

    @property
    def is_original(self) -> bool:
        return self._answering is not None

    def reply(self, message: Message) -> None:
        """Answer on this link: an original always, others while there is no link to them."""
        if not self.is_ready:
            return
        if self._answering is not None:
            self._answering.reply(message)
        else:
            self._write(packet_of(message))

    def _allowed(self) -> frozenset[int]:
        if self._opener == 0:
            return self._CONNECT
        if not self.is_ready:
            return self._HELLO
        if self._answering is not None:
            return self._answering.ALLOWED
        return self._MESSAGES_AND_CHUNKS if self._has_offered else self._MESSAGES

    def _take(self, packet: Packet) -> None:
        match packet:
            case p.Connect():
                self._take_connect(packet)
            case p.Hello():
                self.peer, self.is_ready = self._opener, True
                self._note_greeting(self.peer, packet)
            case p.Offer():
                self._has_offered = True
                self._own.reception.offered(packet, self._sink, self._write, self._install)
            case p.Chunk():
                self._own.reception.arrived(packet, self._sink, self._write, self._install)
            case _:
                message = message_of(packet, sender=self.peer, to=self._own.node)
                if self._answering is None:
                    self._step(message)
                else:
                    self._answering.take(message)

    def _take_connect(self, packet: p.Connect) -> None:
        own, opener = self._own, packet.node
        may_connect = packet.is_announcing or own.takes_original(opener)
        if opener < 1 or opener == own.node or not may_connect:
            self._write(p.Connected(is_accepted=False))
            raise CorruptData("a node that cannot be a peer wants to connect", found=str(opener))
        self._opener = opener
        if packet.is_announcing:
            self._write(
                p.Welcome(
                    node=own.node,
                    incarnation=own.incarnation,
                    knows=own.known(opener) or "",
                    client_address=own.client_address,
                )
            )
            return
        self._write(p.Connected(is_accepted=True))
        self._answering = Answering(self._write_bytes, step=self._step)
        self.peer, self.is_ready = opener, True

    def _install(self, transfer: Transfer) -> bool:
        """Tell the group of a snapshot that is whole, unless the link has ended meanwhile."""
        if self._is_closed:
            return False
        try:
            self._step(message_of_transfer(transfer, sender=self.peer, to=self._own.node))
        except BadMessage as error:
            self._break(str(error))
            return False
        return True
