"""What can be asked of a node and what it answers: the values, without their bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.errors import InvalidValue
from penstock.model import (
    INT32_MAX,
    Policy,
    QueueName,
    QueueOptions,
)

MAJOR: Final = 2
MINOR: Final = 0

BATCH_MAX: Final = 65_536
"""Tasks, tokens or entries in one frame: bounds what one frame can make the other side build."""

PRODUCER_SIZE: Final = 16

STEPS_MAX: Final = 64
"""Steps in one change of members: more than any group has members."""

ROLES: Final = ("follower", "precandidate", "candidate", "leader")
STANDINGS: Final = ("voter", "learner", "outgoing")
PACES: Final = ("probe", "replicate", "snapshot")
"""What a member can be, in the order of their numbers on the wire."""


class Kind(IntEnum):
    """The type byte: requests in upper case, answers in lower case."""

    ENQUEUE = ord("E")
    DEQUEUE = ord("D")
    ACK = ord("A")
    NACK = ord("N")
    RELEASE = ord("L")
    EXTEND = ord("X")
    START = ord("B")
    SUBSCRIBE = ord("S")
    UNSUBSCRIBE = ord("U")
    PEEK = ord("P")
    PURGE = ord("Z")
    CREATE = ord("C")
    DELETE = ord("R")
    STAT = ord("Q")
    READ = ord("I")
    NODE = ord("M")
    PING = ord("H")
    CLUSTER = ord("G")
    CHANGE_MEMBERS = ord("V")
    TRANSFER = ord("T")

    ENQUEUED = ord("e")
    DELIVERED = ord("d")
    SETTLED = ord("a")
    PEEKED = ord("p")
    PURGED = ord("z")
    STATS = ord("q")
    ENTRIES = ord("i")
    NODE_INFO = ord("m")
    CLUSTER_INFO = ord("g")
    OK = ord("k")
    FAILED = ord("x")


class Failure(IntEnum):
    """Why a request was refused. ``Failed.detail`` holds what the comment says."""

    INVALID = 1
    QUEUE_MISSING = 2
    QUEUE_EXISTS = 3
    QUEUE_IN_USE = 4
    NOT_LEADER = 5  # the leader's node id, -1 if unknown; the text is where clients reach it
    LIMIT = 6
    COMPACTED = 7  # the first index that is still there
    SEQUENCE_FORGOTTEN = 8
    STOPPING = 9
    UNKNOWN_REQUEST = 10
    OUTCOME_UNKNOWN = 11  # the one failure of something that may have been done
    CHANGE_REFUSED = 12


class Outcome(IntEnum):
    """What became of a run of tasks; the numbers are TaskFlux's policy codes."""

    ACCEPTED = 0
    QUEUE_FULL = 1
    KEY_OUT_OF_RANGE = 2
    PAYLOAD_TOO_LARGE = 3


# --- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of a request and the number of the request. A retry repeats both."""

    id: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A request to add tasks to a queue, as ``Client.enqueue_numbered`` sends it."""

    queue: QueueName
    keys: Sequence[int]
    payloads: Sequence[bytes]
    delay_ms: int | None = None
    ttl_ms: int | None = None
    producer: Producer | None = None


@dataclass(frozen=True, slots=True)
class Dequeue:
    queue: QueueName
    count_max: int = 1
    size_max: int = 0  # bytes of payload after which no further task is added; 0: the node decides
    wait_ms: int = 0
    lease_ms: int = 0  # 0: as the queue says


@dataclass(frozen=True, slots=True)
class Ack:
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Nack:
    tokens: Sequence[int]
    delay_ms: int | None = None
    key: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give tasks back that no user code received: no attempt."""

    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Start:
    """Report that user code receives tasks of a subscription now. It has no answer."""

    tokens: Sequence[int]
    acked: Sequence[int] = ()  # deliveries that user code is done with; their Ack follows


@dataclass(frozen=True, slots=True)
class Extend:
    tokens: Sequence[int]
    lease_ms: int  # from now on; 0: as the queue says


@dataclass(frozen=True, slots=True)
class Subscribe:
    queue: QueueName
    prefetch: int
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    subscription: int  # the request id of the subscribe


@dataclass(frozen=True, slots=True)
class Peek:
    queue: QueueName
    count_max: int = 1


@dataclass(frozen=True, slots=True)
class Purge:
    queue: QueueName


@dataclass(frozen=True, slots=True)
class Create:
    queue: QueueName
    policy: Policy
    # 0 in a lease means the node's default, so an option that was not given stays open to it.
    lease_ms: int = 0
    attempts_max: int | None = None
    dead_letter: QueueName | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    queue: QueueName


@dataclass(frozen=True, slots=True)
class Stat:
    queue: QueueName | None = None  # None: all queues


@dataclass(frozen=True, slots=True)
class Read:
    """Committed entries from an index on; waits up to ``wait_ms`` for the first of them."""

    first: int
    size_max: int = 0
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    pass


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Cluster:
    pass


class MemberStep(IntEnum):
    """What becomes of a member."""

    VOTER = 0
    LEARNER = 1
    REMOVE = 2


_PEER_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One step: a node becomes a voter or a learner, heard by its peers at ``address``, or is removed."""

    step: MemberStep
    node: int
    address: str = ""  # empty: the one that is known; a removal has none

    def __post_init__(self) -> None:
        if not 1 <= self.node <= INT32_MAX:
            raise InvalidValue(f"nodes are numbered from 1 to {INT32_MAX}, not {self.node}")
        if not self.address:
            return
        if self.step is MemberStep.REMOVE:
            raise InvalidValue(f"node {self.node} is removed by its number alone")
        found = _PEER_ADDRESS.fullmatch(self.address)
        if found is None or not 1 <= int(found[2]) <= 65_535:
            raise InvalidValue(f"node {self.node} needs HOST:PORT, not {self.address!r}")


def check_step_count(count: int) -> None:
    """Raise ``InvalidValue`` for more or less than a change can have."""
    if not 1 <= count <= STEPS_MAX:
        raise InvalidValue(f"a change of members has 1 to {STEPS_MAX} steps, not {count}")


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """Steps that are taken at once."""

    steps: Sequence[MemberChange]

    def __post_init__(self) -> None:
        check_step_count(len(self.steps))
        if len({step.node for step in self.steps}) < len(self.steps):
            raise InvalidValue("a change of members names a node twice")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Let another node lead."""

    to: int


Request = (
    Enqueue
    | Dequeue
    | Ack
    | Nack
    | Release
    | Extend
    | Start
    | Subscribe
    | Unsubscribe
    | Peek
    | Purge
    | Create
    | Delete
    | Stat
    | Read
    | Node
    | Ping
    | Cluster
    | ChangeMembers
    | Transfer
)


# --- answers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tasks of a request that fared alike; accepted ones have consecutive ids from ``first``."""

    outcome: int
    count: int
    first: int


@dataclass(frozen=True, slots=True)
class Enqueued:
    runs: Sequence[Run]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Tasks out on lease; the token of task i is ``token + i``."""

    token: int
    lease_ms: int
    ids: Sequence[int]
    keys: Sequence[int]
    attempts: Sequence[int]  # of each task so far, plus one
    payloads: Sequence[bytes]


NOTHING_DELIVERED: Final = Delivered(0, 0, (), (), (), ())


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to ack, nack and extend: the tokens whose lease had ended before."""

    lost: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Peeked:
    ids: Sequence[int]
    keys: Sequence[int]
    attempts: Sequence[int]
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Purged:
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStat:
    """The state and the counters of a queue."""

    name: QueueName
    policy: Policy
    options: QueueOptions
    count: int  # all tasks: ready, delayed and leased
    leased: int
    delayed: int
    size: int  # bytes of payload
    last_id: int  # id of the newest task
    enqueued: int = 0  # this and the following: since the node started
    delivered: int = 0
    acked: int = 0
    returned: int = 0
    expired: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    queues: Sequence[QueueStat]


@dataclass(frozen=True, slots=True)
class Entries:
    """A batch of committed log entries with consecutive indexes from ``first``."""

    generation: int  # file format of the payloads
    first: int
    committed: int  # last committed index
    terms: Sequence[int]  # one for each entry
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The identity, limits and log position of a node."""

    node: int
    leader: int | None  # node id; None if no leader is known
    version: str
    generation: int  # file format of the log
    term: int
    first: int  # first index that can be read
    committed: int  # last committed index
    frame_size_max: int
    payload_size_max: int
    addresses: tuple[str, ...] = ()  # client addresses of the cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """A member of a cluster. Fields that only the leader knows are ``None`` in the answer of another node."""

    node: int
    address: str  # for its peers
    client_address: str  # for clients; empty if not known
    standing: str  # "voter", "learner" or "outgoing"
    is_leader: bool
    is_self: bool
    match: int | None = None  # last entry that it is known to hold
    lag: int | None = None  # entries between that one and the last entry of the leader
    pace: str | None = None  # "probe", "replicate" or "snapshot"
    window: int | None = None  # append requests in flight to it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The state of a cluster as one of its nodes reports it."""

    node: int
    leader: int | None
    role: str  # "follower", "precandidate", "candidate" or "leader"
    is_leading: bool  # leads and accepts requests
    is_joint: bool  # a change of members is in progress
    term: int
    first: int
    last: int
    committed: int
    applied: int
    members: tuple[ClusterMember, ...]


@dataclass(frozen=True, slots=True)
class Ok:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    code: int
    text: str
    detail: int = 0


Answer = (
    Enqueued
    | Delivered
    | Settled
    | Peeked
    | Purged
    | Stats
    | Entries
    | NodeInfo
    | ClusterInfo
    | Ok
    | Failed
)
