"""The protocol of a family of files: what the command line, the tables and Spark ask of it.

A family is a directory of this package, named in ``registry.FAMILIES``, whose module ``family`` has an instance ``FAMILY``.
Nothing outside the directory knows the family by name.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from penstock.binary import Bytes
from penstock.errors import (
    InvalidOption,
    InvalidQueueName,
    InvalidValue,
    QueueMissing,
    RequestRefused,
    SequenceForgotten,
)
from penstock.families.options import At, Option, Values
from penstock.model import QueueName

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking import Client
    from penstock.families.follow import Follower
    from penstock.families.sources import Source
    from penstock.families.tables import ReadOptions
    from penstock.protocol.version2 import Enqueue

Row = dict[str, Any]
"""What the commands print of records, tasks and damage.

The names are a contract for every family (docs/formats/damage.md): ``family``, ``kind``, ``path``, ``offset``,
``size`` and ``status`` are in every row about a place in a file; bytes are base64 in ``payload``.
"""

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""

LEFT_OUT: Final = "left-out"
"""The status of rows about what is not read."""


def no_progress(_size: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A part of a source that one call reads. ``plan`` is the family's own, and can be pickled."""

    family: str
    source: str
    size: int  # bytes, by which small splits are grouped and a job is balanced
    plan: Any


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What an operation reports beside its rows. It is complete when the rows are used up."""

    words: list[str] = field(default_factory=list)  # sentences for people
    is_damaged: bool = False
    is_complete: bool = True  # False if queues are not read, and the caller did not accept that


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Requests that enqueue tasks, numbered alike in every run; the first needs ``queue``, the others no new one."""

    queue: QueueName
    requests: Iterator[Enqueue]
    left: Any  # a dataclass of counts: what is left out, and why; complete when the requests are used up
    owner: str  # whose other messages an earlier run may have sent

    def send(self, client: Client) -> Counter[str]:
        """Send what no earlier run has sent; return how many tasks of each queue there are, those of earlier runs too.

        A node remembers the last requests of a producer, and of older ones only that there were some. Numbers grow, and
        requests are sent in order, so those that the node has forgotten were taken and come before all others. Raises
        ``RequestRefused`` if an earlier run sent other messages of the owner.
        """
        counts: Counter[str] = Counter({self.queue: 0})
        requests = self._counted(counts)
        try:
            for request in requests:
                try:
                    client.enqueue_numbered([request])
                except SequenceForgotten:
                    continue
                client.enqueue_numbered(requests)
        except InvalidValue:
            raise RequestRefused(
                f"an earlier run sent other messages of {self.owner}: the files, the selection or the queue have changed"
                " since; repeat the command as it was, or start a new import with --producer NAME"
            ) from None
        return counts

    def _counted(self, counts: Counter[str]) -> Iterator[Enqueue]:
        for request in self.requests:
            counts[request.queue] += len(request.payloads)
            yield request


class Files(Protocol):
    """The files of one family at one path."""

    path: Path

    @property
    def root(self) -> Path:
        """A path that opens the same files without options."""
        ...

    @property
    def notice(self) -> str | None:
        """What people must know before the files are read."""
        ...

    @property
    def size(self) -> int:
        """The bytes that a full read reads."""
        ...

    def describe(self, *, uncommitted: bool) -> Source:
        """Return what a pipeline needs to know before it reads."""
        ...

    def index_at(self, at: At) -> int:
        """Return the entry after which the state is wanted. Raises ``PenstockError`` if the files do not have it."""
        ...

    def inspect(self, outcome: Outcome, progress: Progress) -> Row: ...

    def dump(self, outcome: Outcome, progress: Progress) -> Iterator[Row]: ...

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]: ...

    def verify(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        """Yield the damage as rows. The first of the words is a summary."""
        ...

    def repair(
        self, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Iterator[Row]: ...

    def convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row: ...

    def count_parts(self, values: Values) -> int:
        """Return how many parts can be ingested side by side."""
        ...

    def ingest(
        self,
        values: Values,
        outcome: Outcome,
        *,
        producer: str | None = None,
        part: int | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[Sending]:
        """Return what is to be sent to a node, all of it or one part. Raises ``PenstockError`` before a node is asked."""
        ...

    def plan(self, options: ReadOptions) -> list[Split]:
        """Cut the files into splits by names, sizes and headers; omit what the filters rule out."""
        ...

    def follow(self, options: ReadOptions) -> Follower:
        """Return what a stream follows. Raises ``PenstockError`` for files without an order."""
        ...


class Family(Protocol):
    """What a family has to offer."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str:
        """The name of the system whose files these are."""
        ...

    @property
    def options(self) -> tuple[Option, ...]: ...

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that a conversion can write, by the names that people type."""
        ...

    def detect(self, path: Path) -> bool:
        """Return whether the files at a path look like this family's."""
        ...

    def open(self, path: Path, values: Values) -> Files:
        """Return the files at a path. Raises ``PathRefused``, ``BadData`` or ``InvalidValue``."""
        ...

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, these columns of them."""
        ...


def queue_of(values: Values) -> QueueName | None:
    """Return the queue that was asked for. Raises ``InvalidOption``."""
    try:
        return None if "queue" not in values else QueueName(values["queue"])
    except InvalidQueueName as error:
        raise InvalidOption("queue", str(error)) from None


def refuse_queue(name: str) -> NoReturn:
    """Raise ``QueueMissing`` for a queue that the files do not have."""
    raise QueueMissing(f"there is no queue {name!r}; omit --queue to see all queues")


def encode_payload(payload: Bytes) -> str:
    """Return bytes as rows contain them."""
    return b2a_base64(payload, newline=False).decode("ascii")
