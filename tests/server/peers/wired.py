"""Links with bytes between them that a test carries, and snapshots in memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.formats.taskflux.deltas import encode_delta
from penstock.model import DEFAULT_QUEUE, AddTask
from penstock.protocol.peers import Packet, PacketReader, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.configuration import Configuration
from penstock.raft.messages import Kind, Message, Snapshot
from penstock.raft.refusals import BadMessage
from penstock.server.peers.links import Incoming, Outgoing, Own
from penstock.server.peers.proofs import Proofs

THREE = Configuration(voters=(1, 2, 3))
INCARNATIONS = {number: f"{number:016x}" for number in range(1, 10)}


PAYLOAD = encode_delta(AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"task"))
"""An entry that a follower can decode."""


def address(number: int) -> str:
    return f"host{number}:2702"


def message(kind: Kind, sender: int = 1, to: int = 2, **fields: Any) -> Message:
    return Message(kind=kind, sender=sender, to=to, **{"term": 3, **fields})


def snapshot_message(snapshot: Snapshot, *, term: int = 3) -> Message:
    return message(Kind.SNAPSHOT, term=term, snapshot=snapshot)


def packets_in(data: bytes) -> list[Packet]:
    reader, found = PacketReader(), []
    reader.feed(data)
    while (packet := reader.next()) is not None:
        found.append(packet)
    assert reader.held == 0
    return found


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


class BytesFile:
    """A snapshot to send."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.checksum = zlib.crc32(data)
        self.is_closed = False

    def read(self, offset: int, size: int) -> bytes:
        assert not self.is_closed
        return self.data[offset : offset + size]

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class Shelf:
    """The snapshots that a node has to send."""

    def __init__(self, *kept: tuple[Snapshot, bytes]) -> None:
        self.kept = dict(kept)
        self.opened: list[BytesFile] = []

    def open(self, snapshot: Snapshot) -> BytesFile | None:
        if snapshot not in self.kept:
            return None
        self.opened.append(BytesFile(self.kept[snapshot]))
        return self.opened[-1]


class Tray:
    """Where a snapshot arrives; what it holds outlives links, as a file would."""

    def __init__(self) -> None:
        self.held = bytearray()
        self.key: tuple[Snapshot, int, int] | None = None
        self.checks: list[bool] = []  # what each check of a whole said
        self.writes: list[int] = []  # the offsets that were written
        # A check of the whole waits until it is called, if a test wants it to.
        self.waiting: list[Callable[[], None]] = []
        self.is_slow = False
        self.is_without_room = False

    def offset(self, snapshot: Snapshot, size: int, checksum: int) -> int | None:
        if self.is_without_room:
            return None
        if self.key != (snapshot, size, checksum):
            self.key = (snapshot, size, checksum)
            self.held.clear()
        return len(self.held)

    def write(self, offset: int, data: bytes) -> bool:
        if self.is_without_room:
            self.key = None
            return False
        assert offset == len(self.held), "a hole, or bytes written twice"
        self.writes.append(offset)
        self.held += data
        return True

    def finish(self, then: Callable[[bool], None]) -> None:
        assert self.key is not None
        is_right = len(self.held) == self.key[1] and zlib.crc32(self.held) == self.key[2]
        self.checks.append(is_right)
        if self.is_slow:
            self.waiting.append(lambda: then(is_right))
        else:
            then(is_right)

    def abandon(self) -> None:
        self.held.clear()
        self.key = None


@dataclass
class Node:
    """What a node has beside its links."""

    number: int
    shelf: Shelf = field(default_factory=Shelf)
    tray: Tray = field(default_factory=Tray)
    clock: Clock = field(default_factory=Clock)
    stepped: list[Message] = field(default_factory=list)
    heard: list[tuple[int, str, str | None]] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)
    ended: list[tuple[int, bool]] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)  # numbers that incoming links claimed
    members: p.Members = field(default_factory=lambda: p.Members(index=-1, addresses={}))
    heard_members: list[p.Members] = field(default_factory=list)
    refuses: bool = False  # whether the group takes nothing

    def __post_init__(self) -> None:
        self.own = Own(
            node=self.number,
            incarnation=INCARNATIONS[self.number],
            client_address=f"client{self.number}:2602",
            known=self.known.get,
            hear=lambda *told: self.heard.append(told),
            note_client_address=self.addresses.__setitem__,
            members=lambda: self.members,
            hear_members=self.heard_members.append,
            claimed=self.claimed.append,
            proofs=Proofs(Random(self.number).randbytes),
        )

    def step(self, message: Message) -> None:
        if self.refuses:
            raise BadMessage("not taken")
        self.stepped.append(message)

    def outgoing(self, peer: int, write: Callable[[bytes], None]) -> Outgoing:
        return Outgoing(
            self.own,
            peer,
            address(peer),
            write,
            snapshots=self.shelf,
            done=lambda peer, ok: self.ended.append((peer, ok)),
            now=self.clock,
        )

    def incoming(self, write: Callable[[bytes], None]) -> Incoming:
        return Incoming(self.own, write, step=self.step, sink=self.tray, now=self.clock)


class Wire:
    """A connection that one node opened to another. It is proven when ``introduce`` was called for the two."""

    def __init__(self, opener: Node, acceptor: Node, *, peer: int | None = None) -> None:
        self.there = bytearray()
        self.back = bytearray()
        self.outgoing = opener.outgoing(peer or acceptor.number, self.there.extend)
        self.incoming = acceptor.incoming(self.back.extend)
        self.outgoing.begin()

    def carry(self, *, piece: int = 2**20) -> None:
        """Carry bytes both ways until none are left."""
        while self.there or self.back:
            data = bytes(self.there[:piece])
            del self.there[:piece]
            self.incoming.receive(data)
            data = bytes(self.back[:piece])
            del self.back[:piece]
            self.outgoing.receive(data)

    def close(self) -> None:
        """Break the connection: what is on its way is lost."""
        self.there.clear()
        self.back.clear()
        self.outgoing.close()
        self.incoming.close()


def introduce(opener: Node, acceptor: Node) -> None:
    """Let the opener know the acceptor's nonce for it, as if a link of the acceptor had brought it."""
    nonce = acceptor.own.proofs.nonce(opener.number, address(opener.number))
    opener.own.proofs.claim(object(), acceptor.number, nonce)


def greeting_of(opener: Node, acceptor: Node) -> bytes:
    """Return all that a peer sends on its link before its messages."""
    nonce = acceptor.own.proofs.nonce(opener.number, address(opener.number))
    packets: list[Packet] = [
        p.Connect(node=opener.number, nonce=bytes(16)),
        p.Proof(nonce=nonce),
        p.Hello(incarnation=INCARNATIONS[opener.number], knows="", client_address=""),
    ]
    return b"".join(map(encode_packet, packets))
