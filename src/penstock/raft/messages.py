"""What members say to each other, and what they agree on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.raft.configuration import Configuration


class EntryKind(Enum):
    """What an entry is for."""

    NORMAL = "normal"
    CONFIGURATION = "configuration"  # its payload is a change of members


# Not frozen, which would cost four times as much: one is made for every entry, on every node.
@dataclass(slots=True, unsafe_hash=True)
class Entry:
    """One place of the log. Index and term together name it for ever; nobody changes it."""

    index: int
    term: int
    payload: bytes = b""
    kind: EntryKind = EntryKind.NORMAL

    @property
    def size(self) -> int:
        """What it counts for in limits."""
        return len(self.payload)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state that stands for all entries up to ``index``. What it consists of is its owner's business."""

    index: int
    term: int
    configuration: Configuration
    data: bytes = b""


class Kind(Enum):
    """What a message says."""

    VOTE = "vote"
    VOTE_REPLY = "vote reply"
    PRE_VOTE = "pre-vote"
    PRE_VOTE_REPLY = "pre-vote reply"
    APPEND = "append"
    APPEND_REPLY = "append reply"
    HEARTBEAT = "heartbeat"
    HEARTBEAT_REPLY = "heartbeat reply"
    SNAPSHOT = "snapshot"
    TIMEOUT_NOW = "timeout now"
    READ = "read"
    READ_REPLY = "read reply"


# Tuples, not sets: members of an enum are found in them by identity, and hashed by a function in Python.
REPLIES: Final = (
    Kind.APPEND_REPLY,
    Kind.HEARTBEAT_REPLY,
    Kind.VOTE_REPLY,
    Kind.PRE_VOTE_REPLY,
    Kind.READ_REPLY,
)
"""What only a member of the group can say, to one that asked it."""

FROM_LEADER: Final = (Kind.APPEND, Kind.HEARTBEAT, Kind.SNAPSHOT)


@dataclass(slots=True, kw_only=True, unsafe_hash=True)  # not frozen for the same reason
class Message:
    """A message of any kind; which of its fields mean something depends on that. Nobody changes it."""

    kind: Kind
    sender: int
    to: int
    term: int = 0  # 0 for reads, which have none
    index: int = 0  # of the entry before the first one; in replies, of the last one that is there
    log_term: int = 0  # of the entry at ``index``
    entries: tuple[Entry, ...] = ()
    commit: int = 0
    is_rejected: bool = False
    hint: int = 0  # of a rejected append: where the logs may agree; of a non-voter's refusal: what is committed
    hint_term: int = 0
    context: int = 0  # of heartbeats: the last read that waits; of reads: which one
    is_transfer: bool = False  # of votes: the leader itself wants this
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class HardState:
    """What a member must not forget."""

    term: int = 0
    vote: int = 0  # 0 for nobody
    commit: int = 0


@dataclass(frozen=True, slots=True)
class ReadState:
    """A read that may be answered once ``index`` is applied."""

    context: int
    index: int


@dataclass(slots=True, kw_only=True)
class Ready:
    """All that the driver must do now."""

    token: int
    hard_state: HardState | None = None
    entries: list[Entry] = field(default_factory=list)
    snapshot: Snapshot | None = None
    messages: list[Message] = field(default_factory=list)
    messages_after: list[Message] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    read_states: list[ReadState] = field(default_factory=list)
    must_sync: bool = False
