"""Every exception that Penstock raises on purpose; anything else that escapes is a bug.

PenstockError
├── BadData                 bytes that break a format; names file, offset, expected and found
│   ├── TruncatedData       the bytes end inside a value
│   ├── CorruptData         a value is whole but cannot be true
│   ├── UnsupportedVersion  the file is of a version that we do not know
│   └── UnknownFormat       the file is of no kind that we know
├── InvalidValue            a value that no file or packet may hold
│   └── InvalidQueueName    a queue name with a forbidden byte or too long
├── ReplayConflict          an entry contradicts the state that it is applied to
├── CannotConvert           the target format has no bytes for what the source holds
├── OutOfRange              an index that the log does not hold
│   └── Compacted           an index that the log held before a snapshot replaced it
├── StorageError            the disk, or what a person did with it
│   ├── PathRefused         a path that is unreadable, taken, or holds nothing we know
│   │   └── PathMissing     a path that is not there
│   ├── DirectoryLocked     another process has the directory open
│   ├── StorageFailed       a write, sync or read failed; the object answers nothing any more
│   ├── NoRoom              the disk has no room for a file that nothing rests on yet
│   └── SpoolFull           the spool, or its disk, has no room for more
├── RequestRefused          a node took a request and said no; nothing changed
│   ├── QueueMissing        no queue has this name
│   ├── QueueExists         a queue has this name already
│   ├── QueueInUse          another queue names this one as its dead-letter queue
│   ├── PolicyViolated      the queue's policy forbids this task
│   │   ├── QueueFull       the queue holds as many tasks as it may
│   │   ├── KeyOutOfRange   the key is outside the queue's range
│   │   └── PayloadTooLarge the payload is larger than the queue takes
│   ├── LeaseLost           the lease has ended; somebody else may have the task
│   ├── SequenceForgotten   a retry so old that its first result is not known any more
│   ├── NotLeader           another node leads; ask that one
│   └── LimitReached        the node has as many queues, connections or bytes as it may
├── DependencyMissing       something that must be installed is not; `needing` raises it for an extra
├── SparkFailed             a job of Spark's did not end well
└── ConnectionFailed        what happens between a client and a node
    ├── Unreachable         nobody answers at this address
    ├── ConnectionLost      the connection broke; what was under way has an unknown outcome
    └── ProtocolBroken      the other side sent bytes that mean nothing
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self


class PenstockError(Exception):
    """The root: catch this to catch everything that Penstock raises on purpose."""


class BadData(PenstockError):
    """Bytes that break a format."""

    def __init__(
        self,
        reason: str,
        *,
        offset: int | None = None,
        expected: str | None = None,
        found: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset
        self.expected = expected
        self.found = found
        self.path = path

    def located(self, path: str, *, base: int = 0) -> Self:
        """Add the file, and how far into it the decoded bytes began; the first file named stays."""
        if self.path is None:
            self.path = path
            if self.offset is not None:
                self.offset += base
        return self

    def __str__(self) -> str:
        place = self.path or ""
        if self.offset is not None:
            place = f"{place}, offset {self.offset}" if place else f"offset {self.offset}"
        text = f"{place}: {self.reason}" if place else self.reason
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.found is not None:
            text += (
                f", found {self.found}" if self.expected is not None else f"; found {self.found}"
            )
        return text


class TruncatedData(BadData):
    """The bytes end inside a value."""


class CorruptData(BadData):
    """A value is whole but cannot be true: wrong marker, checksum, length, term or trailing bytes."""


class UnsupportedVersion(BadData):
    """The file is of a version that we do not know."""


class UnknownFormat(BadData):
    """The file is of no kind that we know."""


class InvalidValue(PenstockError):
    """A value that no file or packet may hold."""


class InvalidQueueName(InvalidValue):
    """A queue name with a byte outside 33…126, or longer than 255 bytes."""


class ReplayConflict(PenstockError):
    """An entry contradicts the state that it is applied to: damage, or a log without its snapshot."""


class CannotConvert(PenstockError):
    """The target format has no bytes for what the source holds."""


class OutOfRange(PenstockError):
    """An index that the log does not hold."""


class Compacted(OutOfRange):
    """An index that the log held before a snapshot replaced it."""

    first: int | None = None  # the first index that is still there, where it is known


class StorageError(PenstockError):
    """The disk, or what a person did with it."""


class PathRefused(StorageError):
    """A path that is unreadable, taken, or holds nothing we know."""


class PathMissing(PathRefused):
    """A path that is not there: most likely a slip of the fingers."""


class DirectoryLocked(StorageError):
    """Another process has the directory open."""

    holder: Mapping[str, Any] | None = None  # its host, pid and start time, where a file names them


class StorageFailed(StorageError):
    """A write, a sync or a read failed. What is on the disk is unknown until it is read anew by a new process."""


class NoRoom(StorageError):
    """The disk has no room for a file that nothing rests on yet; what was written of it is removed again."""


class SpoolFull(StorageError):
    """The spool, or its disk, has no room for this; nothing of it was kept. Try again when some was sent."""


class RequestRefused(PenstockError):
    """A node took a request and said no; nothing changed."""


class SparkFailed(PenstockError):
    """A job of Spark's did not end well; the message is the cause as far as Spark tells it."""


class DependencyMissing(PenstockError):
    """Something that must be installed is not; the message says how."""

    package: str | None = None  # what could not be imported, where it is a Python package
    extra: str | None = None  # the extra of Penstock that installs it


@contextmanager
def needing(extra: str, feature: str) -> Iterator[None]:
    """Raise ``DependencyMissing`` where the block imports a package that is not installed.

    ``extra`` is the extra of Penstock that installs it; ``feature`` begins the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "penstock"):
            raise  # our own mistake
        missing = DependencyMissing(
            f"{feature} needs the package {package}; install it with: pip install 'penstock[{extra}]'"
        )
        missing.package, missing.extra = package, extra
        raise missing from None


class QueueMissing(RequestRefused):
    """No queue has this name: create it, or look at ``penstock queue list``."""

    queue: str | None = None  # the missing queue, where it is known


class QueueExists(RequestRefused):
    """A queue has this name already."""


class QueueInUse(RequestRefused):
    """Another queue names this one as its dead-letter queue: delete that one first."""


class PolicyViolated(RequestRefused):
    """The queue's policy forbids this task."""

    ids: Sequence[int] = ()  # of the tasks that the same call had put in before


class QueueFull(PolicyViolated):
    """The queue holds as many tasks as it may, those out on lease counted: try again later."""


class KeyOutOfRange(PolicyViolated):
    """The key is outside the range that the queue was created with."""


class PayloadTooLarge(PolicyViolated):
    """The payload is larger than the queue, or the node, takes."""


class LeaseLost(RequestRefused):
    """The lease has ended; the task is back in its queue and somebody else may have it."""

    deliveries: Sequence[
        Any
    ] = ()  # those of the call whose lease had ended; the others were settled


class SequenceForgotten(RequestRefused):
    """A retry so old that its first result is not known any more; the task was or was not taken."""


class NotLeader(RequestRefused):
    """Another node leads; ask that one."""

    leader: int | None = None  # its node id, where it is known
    address: str | None = None  # where clients reach it, where that is known


class LimitReached(RequestRefused):
    """The node has as many queues, connections or bytes as it may have."""


class ConnectionFailed(PenstockError):
    """What happens between a client and a node."""


class Unreachable(ConnectionFailed):
    """Nobody answers at this address."""


class ConnectionLost(ConnectionFailed):
    """The connection broke. What was under way has an unknown outcome."""


class ProtocolBroken(ConnectionFailed):
    """The other side sent bytes that mean nothing in the protocol."""
