"""The family of a RabbitMQ broker's classic queues: a node's data directory, or a vhost, a queue, a store or one file.

What the operations need is imported when they are used, so that commands start quickly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidValue
from penstock.families.damage import Damage, is_damage
from penstock.families.family import Files, Outcome, Progress, Row, Sending, Split, no_progress
from penstock.families.options import FILES as FILE_OPERATIONS
from penstock.families.options import At, Kind, Operation, Option, Values
from penstock.storage.files import FILES, read_whole

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.families.follow import Follower
    from penstock.families.rabbitmq.ingest import Target
    from penstock.families.rabbitmq.location import Location
    from penstock.families.rabbitmq.read import Left, Selection
    from penstock.families.sources import Source
    from penstock.families.tables import ReadOptions


JOURNAL: Final = "journal.jif"
PERSISTENT: Final = "msg_store_persistent"
TRANSIENT: Final = "msg_store_transient"
MESSAGE_STORES: Final = "msg_stores"
VHOSTS: Final = Path(MESSAGE_STORES) / "vhosts"
NAME: Final = "rabbitmq"
TITLE: Final = "RabbitMQ"
ENVELOPE, DROP = "envelope", "drop"
TOO_LARGE: Final = "too-large"  # a message that no node takes


_OF_TASKS: Final = frozenset(
    {Operation.TASKS, Operation.CONVERT, Operation.INGEST, Operation.TABLES}
)


OPTIONS: Final = (
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this queue.",
        operations=frozenset({Operation.TASKS, Operation.CONVERT, Operation.INGEST}),
    ),
    Option(
        name="vhost",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this vhost.",
        operations=_OF_TASKS,
    ),
    Option(
        name="include_transient",
        kind=Kind.FLAG,
        help="Also messages that a restart forgets.",
        operations=_OF_TASKS,
        only_tasks=True,
    ),
    Option(
        name="include_expired",
        kind=Kind.FLAG,
        help="Also messages that have expired.",
        operations=_OF_TASKS,
        only_tasks=True,
    ),
    Option(
        name="as_of",
        kind=Kind.TIME,
        metavar="TIME",
        help="Omit messages that have expired at this time, 2026-01-31T12:00:00 in UTC; without it now,"
        " and for an import when PATH was last written.",
        operations=_OF_TASKS,
        only_tasks=True,
    ),
    Option(
        name="properties",
        kind=Kind.TEXT,
        choices=(ENVELOPE, DROP),
        metavar="HOW",
        help="'envelope' puts a line of JSON before each body, 'drop' does not; without it tables have"
        " bare bodies, everything else envelopes.",
        operations=_OF_TASKS - {Operation.TASKS},
        only_tasks=True,
    ),
    Option(
        name="classic_only",
        kind=Kind.FLAG,
        help="Accept that quorum queues and streams are left out; without it the exit code is 1.",
        operations=FILE_OPERATIONS | {Operation.INGEST, Operation.PIPELINE},
    ),
)


class RabbitMQ:
    """The family."""

    name: Final = NAME
    title: Final = TITLE
    options: Final = OPTIONS
    formats: Final = ()

    def detect(self, path: Path) -> bool:
        """Return whether a path is a directory of RabbitMQ, or a file that only RabbitMQ has."""
        if path.is_dir():
            return any(found(path) for found in (is_node, is_vhost, is_queue, is_store))
        return path.is_file() and kind_of_file(path) is not None

    def open(self, path: Path, values: Values) -> Files:
        from penstock.families.rabbitmq.location import resolve

        return RabbitMQFiles(resolve(path), classic_only="classic_only" in values)

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.rabbitmq.tables.scan import read_split

        return read_split(split, options, columns)


class RabbitMQFiles:
    """The data directory of a node, or a part of it."""

    notice: Final = None

    def __init__(self, location: Location, *, classic_only: bool) -> None:
        self.path = location.path
        self._location = location
        self._classic_only = classic_only

    @property
    def root(self) -> Path:
        return self.path

    @property
    def size(self) -> int:
        return self._location.size

    def describe(self, *, uncommitted: bool) -> Source:
        from penstock.families.rabbitmq.tables.plan import describe

        del uncommitted  # there is no commit index: what is stored counts
        return describe(str(self.path), self._location)

    def index_at(self, at: At) -> int:
        del at
        raise InvalidValue(
            f"{self.path}: files of RabbitMQ hold what is in the queues now and no state of another moment; omit --at"
        )

    def inspect(self, outcome: Outcome, progress: Progress) -> Row:
        from penstock.families.rabbitmq.rows import other_row
        from penstock.families.rabbitmq.verify import inspect

        row = inspect(self._location, progress=progress)
        outcome.is_damaged = bool(row["damage"])
        self._leave_out(outcome)
        return row | {"left_out": [other_row(other) for other in self._location.others]}

    def dump(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.rabbitmq.dump import dump

        for row in dump(self._location, progress=progress):
            outcome.is_damaged = outcome.is_damaged or is_damage(row)
            yield row
        others = self._leave_out(outcome)
        outcome.is_damaged = outcome.is_damaged or bool(others)
        yield from others

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.rabbitmq.read import Left, selection_of
        from penstock.families.rabbitmq.rows import tasks

        selection = selection_of(values, time.time_ns() // 1000)
        damage = _Damage()
        yield from tasks(
            self._location,
            selection.wanted,
            report=damage.add,
            vhost=selection.vhost,
            queue=selection.queue,
            progress=progress,
        )
        yield from self._leave_out(outcome, selection)
        self._judge(outcome, damage, Left())

    def verify(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.rabbitmq.verify import Summary, verify

        summary = Summary()
        yield from verify(self._location, progress=progress, summary=summary)
        outcome.is_damaged = summary.damage.damaged > 0
        held = f"{summary.messages} messages in {len(summary.queues)} queues, {summary.lost} lost"
        outcome.words.append(f"{held}, {summary.damage.words}")
        yield from self._leave_out(outcome)

    def repair(
        self, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Iterator[Row]:
        from penstock.families.rabbitmq.repair import MENDED, Repaired, repair

        del values
        result = Repaired()
        yield from repair(self._location, out, result, progress=progress)
        outcome.is_damaged = result.left > 0 or bool(result.mended)
        outcome.words += result.notes
        if result.odd_properties:
            outcome.words.append(
                f"{result.odd_properties} messages have properties that cannot be read, and were taken along as they are"
            )
        outcome.words += [
            f"{count} messages had {MENDED[word]}" for word, count in result.mended.items()
        ]
        held = f"{result.messages} messages in {result.queues} queues"
        if result.records:
            held = f"{result.records} records"
        outcome.words.append(f"{out}: {held} taken along; {result.left} places left behind")
        yield from self._leave_out(outcome, how="copied without being checked")

    def convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row:
        from penstock.families.penstock.task_log import written_as
        from penstock.families.rabbitmq.convert import convert
        from penstock.families.rabbitmq.read import selection_of

        selection = selection_of(values, time.time_ns() // 1000)
        damage = _Damage()
        done = convert(self._location, to, out, selection, report=damage.add, progress=progress)
        self._judge(outcome, damage, done.left)
        row = written_as(to, out, done.entries, done.queues, done.tasks, TITLE)
        left = {f"left_{name}": count for name, count in asdict(done.left).items()}
        return row | left | {"left_out": self._leave_out(outcome, selection)}

    def count_parts(self, values: Values) -> int:
        """Return how many queues there are."""
        from penstock.families.rabbitmq.ingest import plan
        from penstock.families.rabbitmq.location import last_write_us
        from penstock.families.rabbitmq.read import selection_of

        return len(plan(self._location, selection_of(values, last_write_us(self._location))))

    def ingest(
        self,
        values: Values,
        outcome: Outcome,
        *,
        producer: str | None = None,
        part: int | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[Sending]:
        """Return what is to be sent. Messages expire as of the last write, which stays the same in every run."""
        from penstock.families.rabbitmq.ingest import plan
        from penstock.families.rabbitmq.location import last_write_us
        from penstock.families.rabbitmq.read import selection_of

        selection = selection_of(values, last_write_us(self._location))
        targets = plan(self._location, selection)  # refuses before a node is asked
        if part is not None:
            targets = targets[part : part + 1]
        return self._sendings(targets, selection, producer, outcome, progress)

    def _sendings(
        self,
        targets: list[Target],
        selection: Selection,
        producer: str | None,
        outcome: Outcome,
        progress: Progress,
    ) -> Iterator[Sending]:
        from penstock.families.rabbitmq.ingest import read_requests
        from penstock.families.rabbitmq.read import Left

        damage = _Damage()
        for found in self._location.found_damage:
            damage.add(found)
        total = Left()
        for queue, requests, left in read_requests(
            targets, selection, report=damage.add, producer=producer, progress=progress
        ):
            yield Sending(queue=queue, requests=requests, left=left, owner=f"queue {queue!r}")
            total.add(left)
        if total.expired:
            moment = datetime.fromtimestamp(selection.wanted.as_of_us / 1_000_000, UTC)
            outcome.words.append(
                f"{total.expired} messages were left out that had expired at {moment.isoformat()}, when the files"
                " were written last or as --as-of says; --include-expired takes them along"
            )
        self._leave_out(outcome, selection)
        self._judge(outcome, damage, total)

    def plan(self, options: ReadOptions) -> list[Split]:
        from penstock.families.rabbitmq.tables.plan import plan_source

        return plan_source(str(self.path), self._location, options)

    def follow(self, options: ReadOptions) -> Follower:
        del options
        raise InvalidValue(f"{self.path}: has no log that a stream could follow; read it instead")

    def _leave_out(
        self, outcome: Outcome, selection: Selection | None = None, how: str = "left out"
    ) -> list[Row]:
        """Return a row for each queue that is not read, none if the caller accepts that; report how many there are."""
        from penstock.families.rabbitmq.rows import other_row
        from penstock.families.sources import left_out_words

        others = self._location.others
        if selection is not None:
            asked_for = (selection.vhost, selection.queue)
            others = tuple(other for other in others if other.is_asked_for(*asked_for))
        if not others:
            return []
        outcome.is_complete = self._classic_only
        words = left_out_words([other.words for other in others], how)
        outcome.words.append(f"{self.path}: {words}")
        return [] if self._classic_only else [other_row(other) for other in others]

    def _judge(self, outcome: Outcome, damage: _Damage, left: Left) -> None:
        """Report what a finished read has found."""
        outcome.is_damaged = damage.count + left.lost + left.too_large > 0
        if damage.count:
            where = f"{self.path}: {damage.count} places are damaged, or messages missing"
            outcome.words.append(f"{where}; 'penstock verify' lists them")
        if left.too_large:
            outcome.words.append(
                f"{left.too_large} messages were left out: no node takes tasks so large"
            )


class _Damage:
    """Counts damage."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, damage: Damage) -> None:
        self.count += not damage.is_harmless and damage.status != TOO_LARGE


# --- what a path is ------------------------------------------------------------------------------


def is_node(path: Path) -> bool:
    """Return whether a directory is the data directory of a node."""
    return (path / VHOSTS).is_dir()


def is_vhost(path: Path) -> bool:
    """Return whether a directory is that of a vhost."""
    has_store = (path / PERSISTENT).is_dir() or (path / TRANSIENT).is_dir()
    return (path / ".vhost").is_file() or has_store


def is_queue(path: Path) -> bool:
    """Return whether a directory is that of a queue."""
    names = FILES.names(path)
    return ".queue_name" in names or any(_is_index_name(name) for name in names)


def _is_index_name(name: str) -> bool:
    from penstock.formats.rabbitmq import queue_v2, segment

    suffixes = (queue_v2.INDEX_SUFFIX, queue_v2.STORE_SUFFIX)
    if name == JOURNAL or segment.parse_segment_name(name) is not None:
        return True
    return any(numbered(name, suffix) is not None for suffix in suffixes)


def is_store(path: Path) -> bool:
    """Return whether a directory has files of a message store."""
    from penstock.formats.rabbitmq.message_store import parse_store_name

    return any(parse_store_name(name) is not None for name in FILES.names(path))


def numbered(name: str, suffix: str) -> int | None:
    """Return the number before a suffix, or ``None`` if a name is another."""
    from penstock.formats.rabbitmq import segment

    if not name.endswith(suffix):
        return None
    return segment.parse_segment_name(name.removesuffix(suffix) + segment.SUFFIX)


def kind_of_file(path: Path) -> str | None:
    """Return the kind of file that a path is: by its marker, if it has one, else by its name."""
    from penstock.formats.rabbitmq import message_store, queue_v2, segment

    name = path.name
    if name == JOURNAL:
        return "journal"
    if segment.parse_segment_name(name) is not None:
        return "segment"
    if message_store.parse_store_name(name) is not None:
        return "store-file"
    marker = read_whole(FILES, path, size_max=3)
    return {queue_v2.INDEX_MARKER: "index", queue_v2.STORE_MARKER: "queue-store"}.get(marker or b"")


FAMILY: Final = RabbitMQ()
