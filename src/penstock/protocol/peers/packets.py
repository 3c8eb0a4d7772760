"""What nodes say to each other, as values (docs/peers.md).

The first group are TaskFlux's packets, as its programs have them; the second are ours, sent only to nodes that announced
that they know them. Indexes are the wire's: they begin with 0, and (index -1, term 1) is the place before all entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
"""Of our packets. A higher one that another node names is one that it speaks besides this."""

APPEND_SIZE_MAX: Final = 24 * 2**20
"""What an append may count: the largest payload and room to spare, or a mebibyte of the smallest ones with their heads."""

PLAIN_CHUNK_SIZE_MAX: Final = 16 * 2**20
"""Data of a TaskFlux chunk: it may hold a whole queue, and TaskFlux has no limit."""

CHUNK_SIZE_MAX: Final = 2**20
"""Data of a chunk of ours."""

CONFIGURATION_SIZE_MAX: Final = 64 * 2**10
TEXT_SIZE_MAX: Final = 255
INCARNATION_SIZE: Final = 16


class Type(IntEnum):
    """The first byte of a packet."""

    CONNECT = ord("C")
    CONNECTED = ord("c")
    VOTE = ord("V")
    VOTE_REPLY = ord("v")
    APPEND = ord("A")
    APPEND_RESULT = ord("a")
    INSTALL = ord("S")
    PLAIN_CHUNK = ord("B")
    PLAIN_CHUNK_TAKEN = ord("b")
    INSTALLED = ord("s")
    RETRANSMIT = ord("R")
    # Ours.
    WELCOME = ord("h")
    HELLO = ord("H")
    TRANSFER_VOTE = ord("W")
    HINTED_VOTE_REPLY = ord("w")
    PRE_VOTE = ord("P")
    PRE_VOTE_REPLY = ord("p")
    APPEND_REPLY = ord("k")
    HEARTBEAT = ord("L")
    HEARTBEAT_REPLY = ord("l")
    TIMEOUT_NOW = ord("N")
    READ = ord("Q")
    READ_REPLY = ord("q")
    OFFER = ord("O")
    OFFER_REPLY = ord("o")
    CHUNK = ord("D")
    CHUNK_REPLY = ord("d")


class Standing(IntEnum):
    """How a transfer stands at its receiver."""

    GOES_ON = 0
    IS_WHOLE = 1  # checked, and handed to the group
    IS_REFUSED = 2  # of an old term, or not what its checksum says


# --- TaskFlux's ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Opens a connection. ``is_announcing``: the opener knows our packets; the checksum's complement says so."""

    node: int
    is_announcing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    is_accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    candidate: int
    term: int
    last_term: int
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply:
    term: int
    is_granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Entries behind a place, as two lists of equal length; without any it is a heartbeat."""

    commit: int
    term: int
    previous_term: int
    previous_index: int
    leader: int
    terms: Sequence[int] = ()
    payloads: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """Whether the append before it was taken; TaskFlux's whole answer."""

    is_taken: bool
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Begins a snapshot, which follows in chunks."""

    term: int
    leader: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainChunk:
    """Part of a snapshot; without data, its end."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainChunkTaken:
    """Go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The end of a snapshot's exchange; before its last chunk, a refusal."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retransmit:
    """The last packet arrived with a wrong checksum: say it again."""


# --- ours ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What an acceptor says of itself, and by which incarnation it knows the opener, empty if not at all."""

    node: int
    incarnation: str
    knows: str
    client_address: str
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The same of an opener, whose number its ``Connect`` said."""

    incarnation: str
    knows: str
    client_address: str
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferVote:
    """A request for a vote that the leader itself wants."""

    term: int
    last_term: int
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HintedVoteReply:
    """A vote reply, and what the voter knows to be committed."""

    term: int
    is_granted: bool
    hint_index: int
    hint_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVote:
    """Would you vote for me?"""

    term: int
    last_term: int
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteReply:
    term: int
    is_granted: bool
    hint_index: int
    hint_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply:
    """Up to where the sender's log agrees; if it was rejected, which append that was and where to look next."""

    term: int
    is_rejected: bool
    index: int
    hint_index: int
    hint_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    term: int
    commit: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    term: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """Run for leader now."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read that waits for an index, of the node ``origin``: followers pass others' on."""

    origin: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    context: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A snapshot that is to be sent: which one, by a leader of which term, how much, and for which group."""

    leader_term: int
    index: int
    term: int
    size: int
    checksum: int
    configuration: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferReply:
    """From where on the snapshot is wanted; what came before is there already."""

    leader_term: int
    index: int
    term: int
    offset: int
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    leader_term: int
    index: int
    term: int
    offset: int
    size: int  # of the whole snapshot
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReply:
    """Where the next chunk has to begin."""

    leader_term: int
    index: int
    term: int
    offset: int
    standing: Standing


Original = (
    Connect
    | Connected
    | Vote
    | VoteReply
    | Append
    | AppendResult
    | Install
    | PlainChunk
    | PlainChunkTaken
    | Installed
    | Retransmit
)
Extension = (
    Welcome
    | Hello
    | TransferVote
    | HintedVoteReply
    | PreVote
    | PreVoteReply
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | TimeoutNow
    | Read
    | ReadReply
    | Offer
    | OfferReply
    | Chunk
    | ChunkReply
)
Packet = Original | Extension
