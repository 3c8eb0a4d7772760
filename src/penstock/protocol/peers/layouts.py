"""Where the fields of packets are (docs/peers.md); both directions use these and nothing else.

A packet is its type, its payload, and the payload's checksum. All payloads but those of votes begin with the length of
the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from struct import Struct
from typing import Any, Final

from penstock.protocol.peers import packets as p
from penstock.protocol.peers.packets import Type

TYPE_SIZE: Final = 1
LENGTH_SIZE: Final = 4
CHECKSUM_SIZE: Final = 4

APPEND_HEAD: Final = Struct(">qqqqii")
"""Commit, term, previous term and index, leader, count: what every append holds behind its length."""

ENTRY_HEAD: Final = Struct(">qi")
ENTRY_UNIT: Final = (
    8  # an entry is followed by its length modulo this many zeros, which aligns nothing
)

OFFER_HEAD: Final = Struct(">qqqqI")
CHUNK_HEAD: Final = Struct(">qqqqq")

MEMBERS_HEAD: Final = Struct(">qi")
"""Index and count."""

ZEROS: Final = tuple(bytes(count) for count in range(ENTRY_UNIT))

_NUMBER_AND_NONCE: Final = f"i{p.NONCE_SIZE}s"

TEXT_FIELD_MAX: Final = LENGTH_SIZE + p.TEXT_SIZE_MAX


@dataclass(frozen=True, slots=True)
class Layout:
    """A payload of fixed size: a number for each field of its packet, in this order."""

    kind: type[Any]
    form: Struct
    names: tuple[str, ...]


def _layout(kind: type[Any], form: str, *names: str) -> Layout:
    """Return a layout; the order is that of the packet's fields unless it is named."""
    return Layout(kind, Struct(">" + form), names or tuple(f.name for f in fields(kind)))


PLAIN: Final[dict[int, Layout]] = {
    Type.VOTE: _layout(p.Vote, "iqqq"),
    Type.VOTE_REPLY: _layout(p.VoteReply, "q?"),
}
"""Packets of fixed size without a length: TaskFlux has them so."""

MEASURED: Final[dict[int, Layout]] = {
    Type.CONNECT: _layout(p.Connect, _NUMBER_AND_NONCE),
    Type.CONNECTED: _layout(p.Connected, _NUMBER_AND_NONCE),
    Type.PROOF: _layout(p.Proof, f"{p.NONCE_SIZE}s"),
    Type.TRANSFER_VOTE: _layout(p.TransferVote, "qqq"),
    Type.HINTED_VOTE_REPLY: _layout(p.HintedVoteReply, "q?qq"),
    Type.PRE_VOTE: _layout(p.PreVote, "qqq"),
    Type.PRE_VOTE_REPLY: _layout(p.PreVoteReply, "q?qq"),
    Type.APPEND_REPLY: _layout(p.AppendReply, "q?qqq"),
    Type.HEARTBEAT: _layout(p.Heartbeat, "qqq"),
    Type.HEARTBEAT_REPLY: _layout(p.HeartbeatReply, "qq"),
    Type.TIMEOUT_NOW: _layout(p.TimeoutNow, "q"),
    Type.READ: _layout(p.Read, "iq"),
    Type.READ_REPLY: _layout(p.ReadReply, "qq"),
    Type.OFFER_REPLY: _layout(p.OfferReply, "qqqqB"),
    Type.CHUNK_REPLY: _layout(p.ChunkReply, "qqqqB"),
}
"""Packets of fixed size behind their length."""

BOUNDS: Final[dict[int, tuple[int, int]]] = {
    Type.APPEND: (APPEND_HEAD.size, p.APPEND_SIZE_MAX),
    Type.HELLO: (1 + 3 * LENGTH_SIZE, 256 + 3 * TEXT_FIELD_MAX),
    Type.MEMBERS: (MEMBERS_HEAD.size, p.MEMBERS_SIZE_MAX),
    Type.OFFER: (OFFER_HEAD.size, OFFER_HEAD.size + p.CONFIGURATION_SIZE_MAX),
    Type.CHUNK: (CHUNK_HEAD.size + 1, CHUNK_HEAD.size + p.CHUNK_SIZE_MAX),
    **{kind: (layout.form.size, layout.form.size) for kind, layout in MEASURED.items()},
}
"""The least and the most that the length at the start of a payload may say."""
