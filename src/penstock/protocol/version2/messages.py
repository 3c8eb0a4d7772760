"""What can be asked of a node and what it answers: the values, without their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from penstock.model import (
    Policy,
    QueueName,
    QueueOptions,
)

MAJOR: Final = 2
MINOR: Final = 0

BATCH_MAX: Final = 65_536
"""Tasks, tokens or entries in one frame: bounds what one frame can make the other side build."""

PRODUCER_SIZE: Final = 16


class Kind(IntEnum):
    """The type byte: requests in upper case, answers in lower case."""

    ENQUEUE = ord("E")
    DEQUEUE = ord("D")
    ACK = ord("A")
    NACK = ord("N")
    EXTEND = ord("X")
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

    ENQUEUED = ord("e")
    DELIVERED = ord("d")
    SETTLED = ord("a")
    PEEKED = ord("p")
    PURGED = ord("z")
    STATS = ord("q")
    ENTRIES = ord("i")
    NODE_INFO = ord("m")
    OK = ord("k")
    FAILED = ord("x")


class Failure(IntEnum):
    """Why a request was refused. ``Failed.detail`` holds what the comment says."""

    INVALID = 1
    QUEUE_MISSING = 2
    QUEUE_EXISTS = 3
    QUEUE_IN_USE = 4
    NOT_LEADER = 5  # the leader's node id, -1 if unknown
    LIMIT = 6
    COMPACTED = 7  # the first index that is still there
    SEQUENCE_FORGOTTEN = 8
    STOPPING = 9
    UNKNOWN_REQUEST = 10


class Outcome(IntEnum):
    """What became of a run of tasks; the numbers are TaskFlux's policy codes."""

    ACCEPTED = 0
    QUEUE_FULL = 1
    KEY_OUT_OF_RANGE = 2
    PAYLOAD_TOO_LARGE = 3


# --- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Producer:
    """Who enqueues, and the number of this request among the producer's; a retry repeats both."""

    id: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class Enqueue:
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


Request = (
    Enqueue
    | Dequeue
    | Ack
    | Nack
    | Extend
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
    attempts: Sequence[int]  # deliveries of each task so far, this one counted
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
    """How a queue is doing. ``count`` is all that it holds: ready, delayed and out on lease."""

    name: QueueName
    policy: Policy
    options: QueueOptions
    count: int
    leased: int
    delayed: int
    size: int  # bytes of payload
    last_id: int
    # Since the node started.
    enqueued: int = 0
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
    generation: int
    first: int
    committed: int
    terms: Sequence[int]
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    node: int
    leader: int | None
    version: str
    generation: int
    term: int
    first: int  # the first index that can be read
    committed: int
    frame_size_max: int
    payload_size_max: int
    addresses: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Ok:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    code: int
    text: str
    detail: int = 0


Answer = Enqueued | Delivered | Settled | Peeked | Purged | Stats | Entries | NodeInfo | Ok | Failed
