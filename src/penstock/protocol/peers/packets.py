"""The packets that nodes exchange, as values (docs/peers.md).

Indexes are those of the wire: they begin with 0, and (index -1, term 1) is the place before all entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
"""The version of the packets. A node that names a later version understands this one too."""

APPEND_SIZE_MAX: Final = 24 * 2**20
"""What an append may count: the largest payload and room to spare, or a mebibyte of the smallest ones with their heads."""

CHUNK_SIZE_MAX: Final = 2**20
"""Data of a snapshot's chunk."""

CONFIGURATION_SIZE_MAX: Final = 64 * 2**10
MEMBERS_SIZE_MAX: Final = 64 * 2**10
NONCE_SIZE: Final = 16
"""Bytes of a nonce: 128 random bits cannot be guessed."""

TEXT_SIZE_MAX: Final = 255
INCARNATION_SIZE: Final = 16


class Type(IntEnum):
    """The first byte of a packet."""

    CONNECT = ord("G")
    CONNECTED = ord("g")
    PROOF = ord("R")
    HELLO = ord("H")
    MEMBERS = ord("M")
    VOTE = ord("V")
    VOTE_REPLY = ord("v")
    APPEND = ord("A")
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


# --- proving a link ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Opens a link: the number that the opener claims, and the nonce that the real node of that number returns."""

    node: int
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The acceptor's number and the opener's nonce. It discloses nothing that a stranger could use."""

    node: int
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A nonce that the opener received over a link which claimed to be the acceptor's."""

    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The sender's incarnation, and the one by which it knows the receiver (empty if by none)."""

    incarnation: str
    knows: str
    client_address: str
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Where the members of the sender's configuration listen, as of the last entry that it applied."""

    index: int
    addresses: dict[int, str]


# --- messages ---


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


Packet = (
    Connect
    | Connected
    | Proof
    | Hello
    | Members
    | Vote
    | VoteReply
    | Append
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
