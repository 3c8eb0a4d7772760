"""The exceptions of Penstock, one tree below ``PenstockError``. docs/api.md shows the tree.

Any other exception that escapes is a bug. An attribute that only some raisers know is ``None`` or empty elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self


class PenstockError(Exception):
    """The base class: ``except PenstockError`` catches every exception of Penstock."""


class BadData(PenstockError):
    """Bytes that violate a file format.

    ``reason``, ``path``, ``offset``, ``expected`` and ``found`` describe the place. All but ``reason`` may be ``None``.
    """

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
        """Internal: add the path and the offset at which the decoded bytes began, unless a path is set."""
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
    """A complete value is invalid: wrong marker, checksum, length, term or trailing bytes."""


class TooDeep(CorruptData):
    """An event whose maps and lists are nested deeper than is read. Its bytes are whole."""


class BadRecord(CorruptData):
    """A record of generation 4, or a request with the body of one, breaks a rule of the format. ``reason`` names the rule."""


class ForeignWrite(CorruptData):
    """Files that do not fit what a node noted of them: another program wrote here, or the disk lost or changed data."""


class UnsupportedVersion(BadData):
    """The version of the file is not supported."""


class UnknownFormat(BadData):
    """The file has no known format."""


class InvalidValue(PenstockError):
    """An argument or a value is invalid. Nothing was sent or written."""


class InvalidOption(InvalidValue):
    """An option does not apply, or its value is invalid. ``option`` is its name, ``reason`` what is wrong."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option}: {reason}")
        self.option = option
        self.reason = reason


class InvalidQueueName(InvalidValue):
    """A queue name contains a byte outside 33…126 or is longer than 255 bytes."""


class ReplayConflict(PenstockError):
    """A log entry contradicts the state that it is applied to: the log is damaged or lacks its snapshot."""


class CannotConvert(PenstockError):
    """The target format cannot represent a value of the source."""


class OutOfRange(PenstockError):
    """The log does not contain this index."""


class Compacted(OutOfRange):
    """A snapshot has replaced the log entry at this index."""

    first: int | None = None  # the first index that can be read


class StorageError(PenstockError):
    """A file or a directory cannot be used."""


class PathRefused(StorageError):
    """A path is unreadable, already in use, or contains no known files."""


class PathMissing(PathRefused):
    """A path does not exist."""


class DirectoryLocked(StorageError):
    """Another process has the directory open."""

    holder: Mapping[str, Any] | None = None  # host, pid and start time of the other process


class StorageFailed(StorageError):
    """A write, a sync or a read failed. Restart the process: what is on the disk is unknown until it is read again."""


class NoRoom(StorageError):
    """The disk has no room for an optional file, such as a snapshot. The incomplete file was removed."""


class SpoolFull(StorageError):
    """The spool or its disk is full. The tasks of this call were not stored; try again when some were sent."""


class RequestRefused(PenstockError):
    """The node rejected a request. Nothing changed."""


class SparkFailed(PenstockError):
    """A Spark job failed. The message contains the cause that Spark reported."""


class DependencyMissing(PenstockError):
    """A required package or program is not installed. The message contains the command that installs it."""

    package: str | None = None  # the missing Python package
    extra: str | None = None  # the extra of Penstock that installs it


@contextmanager
def needing(extra: str, feature: str) -> Iterator[None]:
    """Raise ``DependencyMissing`` if the block imports a package that is not installed.

    ``extra``: the extra of Penstock that installs the package. ``feature``: the subject of the message.
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
    """The queue does not exist. Create it, or list the queues with ``penstock queue list``."""

    queue: str | None = None  # the missing queue


class QueueExists(RequestRefused):
    """The queue exists already."""


class QueueInUse(RequestRefused):
    """Another queue uses this one as its dead-letter queue. Delete that queue first."""


class PolicyViolated(RequestRefused):
    """The limits of the queue forbid this task."""

    ids: Sequence[int | None] = ()  # of ``enqueue_many``, as it documents


class QueueFull(PolicyViolated):
    """The queue holds its maximum number of tasks, leased tasks included. Try again later."""


class KeyOutOfRange(PolicyViolated):
    """The key is outside the key range of the queue."""


class PayloadTooLarge(PolicyViolated):
    """The payload is larger than the queue or the node allows."""


class LeaseLost(RequestRefused):
    """The lease has ended. The task is in its queue again, and another consumer may have it."""

    deliveries: Sequence[Any] = ()  # those whose lease had ended; the others were settled


class SequenceForgotten(RequestRefused):
    """A retry is too old: the node no longer knows whether it accepted the first try."""


class NotLeader(RequestRefused):
    """The node is not the leader. Send the request to the leader."""

    leader: int | None = None  # node id of the leader
    address: str | None = None  # client address of the leader


class LimitReached(RequestRefused):
    """The node has its maximum number of queues, connections or bytes."""


class ConnectionFailed(PenstockError):
    """The client cannot talk to a node, or the client is closed."""


class Unreachable(ConnectionFailed):
    """No node answers at this address."""


class ConnectionLost(ConnectionFailed):
    """The connection broke. The outcome of the requests in flight is unknown."""


class ProtocolBroken(ConnectionFailed):
    """The other side sent bytes that are not valid in the protocol."""
