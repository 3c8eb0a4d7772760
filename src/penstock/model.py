"""The vocabulary of every layer: queues, tasks, and the changes that a log holds.

Values are checked when built, so what exists is valid. Nothing here knows a byte layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NewType, Self

from penstock.errors import InvalidQueueName, InvalidValue

Index = NewType("Index", int)
"""A position in the log, from 0 as in the files."""

Term = NewType("Term", int)
NodeId = NewType("NodeId", int)
TaskId = NewType("TaskId", int)

NO_INDEX: Final = Index(-1)
"""The index before the first entry."""

INT32_MAX: Final = 2**31 - 1

TERM_MAX: Final = 2**62
"""The last term that a node accepts. Terms are Int64 in files and packets, so that the next one always fits."""
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1

QUEUE_NAME_SIZE_MAX: Final = 255

_NAME_CHARACTERS: Final = frozenset(map(chr, range(33, 127)))


def _check_key(key: int) -> None:
    if not INT64_MIN <= key <= INT64_MAX:
        raise InvalidValue(f"key {key} is beyond 64 bits")


def _check_payload(payload: bytes) -> None:
    if len(payload) > INT32_MAX:
        raise InvalidValue(
            f"a payload of {len(payload)} bytes is beyond the 2 GiB that a file can hold"
        )


class QueueName(str):
    """The name of a queue: at most 255 printable ASCII characters without spaces. ``""`` is the default queue."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if type(text) is cls:
            return text
        if len(text) > QUEUE_NAME_SIZE_MAX:
            raise InvalidQueueName(
                f"queue name of {len(text)} characters; at most {QUEUE_NAME_SIZE_MAX} are allowed"
            )
        if not _NAME_CHARACTERS.issuperset(text):
            bad = next(c for c in text if c not in _NAME_CHARACTERS)
            raise InvalidQueueName(
                f"queue name {text!r} holds {bad!r}; allowed are printable ASCII characters without space"
            )
        return super().__new__(cls, text)


DEFAULT_QUEUE: Final = QueueName("")

RESERVED_PREFIX: Final = "!penstock."
"""Names that no queue may have: deleting one is how a log says "nothing happens here"."""


class Implementation(IntEnum):
    """How a queue stores its tasks."""

    HEAP = 1
    ARRAY = 2
    PAGED = 1001  # on disk pages, for queues larger than memory; not a TaskFlux code


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The keys that a queue accepts, both ends included."""

    lowest: int
    highest: int

    def __post_init__(self) -> None:
        if not INT64_MIN <= self.lowest <= self.highest <= INT64_MAX:
            raise InvalidValue(f"key range {self.lowest}…{self.highest} is empty or beyond 64 bits")

    def hold(self, keys: Sequence[int]) -> bool:
        """Internal: return whether the range contains all of these keys."""
        return not keys or (self.lowest <= min(keys) and max(keys) <= self.highest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits that a queue was created with. ``None`` means no limit."""

    implementation: Implementation = Implementation.HEAP
    size_max: int | None = None
    payload_size_max: int | None = None
    keys: KeyRange | None = None

    def __post_init__(self) -> None:
        for name, limit in (("queue", self.size_max), ("payload", self.payload_size_max)):
            if limit is not None and not 0 <= limit <= 2**32 - 1:
                raise InvalidValue(f"{name} size limit {limit} is negative or beyond 32 bits")
        if self.implementation is Implementation.ARRAY and self.keys is None:
            raise InvalidValue("an array queue needs a key range")


NO_LIMITS: Final = Policy()


def policy_fields(policy: Policy) -> dict[str, Any]:
    """Return a policy as rows and tables name its parts; limits that it does not have are left out."""
    fields: dict[str, Any] = {"implementation": policy.implementation.name.lower()}
    if policy.size_max is not None:
        fields["size_max"] = policy.size_max
    if policy.payload_size_max is not None:
        fields["payload_size_max"] = policy.payload_size_max
    if policy.keys is not None:
        fields["keys"] = [policy.keys.lowest, policy.keys.highest]
    return fields


LEASE_MS: Final = 60_000
"""How long a task is out on lease unless the queue or the request says otherwise."""

LEASE_MS_MAX: Final = 24 * 3_600_000
"""A day: a consumer that needs longer extends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Lease, attempts and dead-letter queue that a queue was created with."""

    lease_ms: int = LEASE_MS
    attempts_max: int | None = None  # None: a task is delivered until it is acknowledged
    dead_letter: QueueName | None = None  # None: expired tasks are removed

    def __post_init__(self) -> None:
        if not 1 <= self.lease_ms <= LEASE_MS_MAX:
            raise InvalidValue(f"a lease of {self.lease_ms} ms is below 1 or above {LEASE_MS_MAX}")
        if self.attempts_max is not None and not 1 <= self.attempts_max <= INT32_MAX:
            raise InvalidValue(f"{self.attempts_max} attempts are below 1 or above {INT32_MAX}")


NO_OPTIONS: Final = QueueOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task as it waits in a queue. The id grows with every add and gives the order within a key."""

    id: TaskId
    key: int
    payload: bytes

    def __post_init__(self) -> None:
        if not 1 <= self.id <= UINT64_MAX:
            raise InvalidValue(f"task id {self.id} is below 1 or beyond 64 bits")
        _check_key(self.key)
        _check_payload(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHead:
    """All about a queue but its tasks, of which ``count`` follow."""

    name: QueueName
    policy: Policy
    last_id: TaskId
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.last_id <= UINT64_MAX or self.count < 0:
            raise InvalidValue(f"last id {self.last_id} or count {self.count} is out of range")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a node must never forget: the highest term it saw, and whom it voted for in that term."""

    term: Term = Term(1)
    vote: NodeId | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.term <= INT64_MAX:
            raise InvalidValue(f"term {self.term} is below 1 or beyond 64 bits")
        if self.vote is not None and not 0 <= self.vote <= INT32_MAX:
            raise InvalidValue(f"vote for node {self.vote} is negative or beyond 32 bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPoint:
    """The last entry that a snapshot covers."""

    index: Index
    term: Term

    def __post_init__(self) -> None:
        if not 0 <= self.index <= INT64_MAX or not 1 <= self.term <= INT64_MAX:
            raise InvalidValue(f"snapshot at index {self.index}, term {self.term} cannot be")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the replicated log. The payload is opaque to storage and consensus."""

    index: Index
    term: Term
    payload: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.index <= INT64_MAX or not 1 <= self.term <= INT64_MAX:
            raise InvalidValue(f"an entry with index {self.index}, term {self.term} cannot be")
        _check_payload(self.payload)


# The changes that a log holds. Deltas are what generations 2 and 3 store: results, applied blindly.


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateQueue:
    queue: QueueName
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteQueue:
    queue: QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTask:
    queue: QueueName
    key: int
    payload: bytes

    def __post_init__(self) -> None:
        _check_key(self.key)
        _check_payload(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTask:
    """Removal by id, as generation 3 stores it."""

    queue: QueueName
    id: TaskId

    def __post_init__(self) -> None:
        if not 0 <= self.id <= UINT64_MAX:
            raise InvalidValue(f"task id {self.id} is negative or beyond 64 bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveEqualTask:
    """Removal of the oldest task with this key and payload, as generation 2 stores it."""

    queue: QueueName
    key: int
    payload: bytes

    def __post_init__(self) -> None:
        _check_key(self.key)
        _check_payload(self.payload)


Delta = CreateQueue | DeleteQueue | AddTask | RemoveTask | RemoveEqualTask

NOTHING: Final = DeleteQueue(queue=QueueName(RESERVED_PREFIX + "nothing"))
"""An entry that every reader of the format replays without effect; it keeps an index in use."""


# Commands are what generation 1 stores: requests, which replay decides anew.


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    queue: QueueName
    key: int
    payload: bytes

    def __post_init__(self) -> None:
        _check_key(self.key)
        _check_payload(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dequeue:
    queue: QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTasks:
    queue: QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCommand:
    queue: QueueName
    size_max: int | None

    def __post_init__(self) -> None:
        if self.size_max is not None and not 1 <= self.size_max <= 2**32 - 1:
            raise InvalidValue(f"generation 1 has no bytes for a size limit of {self.size_max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWithPolicy:
    """The command of variant 1d that creates a queue: it carries a whole policy."""

    queue: QueueName
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCommand:
    queue: QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQueues:
    pass


Command = (
    Enqueue | Dequeue | CountTasks | CreateCommand | CreateWithPolicy | DeleteCommand | ListQueues
)


# What TaskFlux has no bytes for. An extension is an entry that its readers replay without effect; it speaks
# of the entries right behind it, or of tasks by queue number and id.


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which tasks are added, where there is more to say than key and payload."""

    not_before_ms: int | None = None  # milliseconds since 1970, by the leader's clock
    expires_ms: int | None = None
    attempts: int = 0  # failed deliveries that a task brings along when it changes its key
    producer: bytes | None = None
    sequence: int = 0
    total: int = 0  # tasks of the whole request; fewer are added where a crash cut it in two


NO_TERMS: Final = Terms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adding:
    """The next ``count`` entries, as far as they are adds, add under these terms."""

    count: int
    terms: Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Creating:
    """The next entry, if it creates a queue, creates it with these options."""

    lease_ms: int
    attempts_max: int | None
    dead_letter: int | None  # the number of that queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """These tasks were delivered once more, in vain."""

    queue: int  # the number of the queue
    ids: tuple[int, ...]
    not_before_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removing:
    """The next entries, as far as they remove by value, remove these tasks, in this order."""

    ids: tuple[int, ...]


Extension = Adding | Creating | Returning | Removing
