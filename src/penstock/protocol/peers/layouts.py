"""Where the fields of packets are (docs/peers.md); both directions use these and nothing else.

A packet is its type, its payload, and the payload's checksum. Payloads of ours begin with the length of what follows in
them, so that any of them can be bounded and skipped by who knows nothing else of it.
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
CHUNK_UNIT: Final = 4

OFFER_HEAD: Final = Struct(">qqqqI")
CHUNK_HEAD: Final = Struct(">qqqqq")

ZEROS: Final = tuple(bytes(count) for count in range(ENTRY_UNIT))

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


ORIGINALS: Final[dict[int, Layout]] = {
    Type.CONNECTED: _layout(p.Connected, "?"),
    Type.VOTE: _layout(p.Vote, "iqqq"),
    Type.VOTE_REPLY: _layout(p.VoteReply, "q?"),
    Type.APPEND_RESULT: _layout(p.AppendResult, "?q"),
    Type.INSTALL: _layout(p.Install, "qiqq"),
    Type.PLAIN_CHUNK_TAKEN: _layout(p.PlainChunkTaken, ""),
    Type.INSTALLED: _layout(p.Installed, "q"),
    Type.RETRANSMIT: _layout(p.Retransmit, ""),
}
"""TaskFlux's packets of fixed size; ``Connect`` is one too, but for its checksum."""

CONNECT: Final = Struct(">i")

EXTENSIONS: Final[dict[int, Layout]] = {
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
"""Packets of ours of fixed size, behind their length."""

BOUNDS: Final[dict[int, tuple[int, int]]] = {
    Type.APPEND: (APPEND_HEAD.size, p.APPEND_SIZE_MAX),
    Type.PLAIN_CHUNK: (0, p.PLAIN_CHUNK_SIZE_MAX),
    Type.WELCOME: (5 + 3 * LENGTH_SIZE, 256 + 3 * TEXT_FIELD_MAX),
    Type.HELLO: (1 + 3 * LENGTH_SIZE, 256 + 3 * TEXT_FIELD_MAX),
    Type.OFFER: (OFFER_HEAD.size, OFFER_HEAD.size + p.CONFIGURATION_SIZE_MAX),
    Type.CHUNK: (CHUNK_HEAD.size + 1, CHUNK_HEAD.size + p.CHUNK_SIZE_MAX),
    **{kind: (layout.form.size, layout.form.size) for kind, layout in EXTENSIONS.items()},
}
"""The least and the most that the length at the start of a payload may say."""
