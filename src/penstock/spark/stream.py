"""``spark.readStream.format("penstock")``: a log as it grows, of a directory or of a live node (docs/spark-streams.md).

An offset is ``{"index": n, "term": t}``: the last entry that was delivered. Spark replays ``(start, end]`` after a
crash, so whatever an offset names must never change: a log tells only what is durable, and an entry whose term is not
the one it was fails the stream. A stream is of entries; what a snapshot holds instead of them is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import Compacted, CorruptData, InvalidValue
from penstock.spark.columns import Table
from penstock.spark.families import expand, families
from penstock.spark.node import NodeLog, NodePlan
from penstock.spark.node import read_range as read_from_node
from penstock.spark.options import OF_BROKERS, ReadOptions, given
from penstock.spark.taskflux.growing import GrowingLog, RangePlan
from penstock.spark.taskflux.ranges import read_range as read_from_file
from penstock.spark.worker import in_a_sentence, settle

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, int]
Plan = RangePlan | NodePlan
T = TypeVar("T")

_ANY_TERM: Final = 0
"""The term in an offset before which nothing was delivered: there is no entry to compare."""


class LogTail(Protocol):
    """A log that others append to."""

    @property
    def name(self) -> str: ...

    def look(self) -> tuple[int, int]:
        """Return the first index that is there and the last that will not change any more."""
        ...

    def term(self, index: int) -> int:
        """Return the term of an entry that the last look saw."""
        ...

    def plan(self, first: int, last: int) -> Sequence[Plan]:
        """Cut a range of entries into parts, always the same for the same range."""
        ...

    def close(self) -> None: ...


class Stretch(InputPartition):
    """What one task of a batch reads."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(None)
        self.plan = plan


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver by indexes, reads on executors. Options are checked when it is first used."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._tail: LogTail | None = None
        self._target: int | None = None  # the last index of a run that ends

    @in_a_sentence
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        self._log()
        return {"index": (self._options.starting_index or 0) - 1, "term": _ANY_TERM}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_entries is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_entries)

    @in_a_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log().look()[1]

    @in_a_sentence
    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {"index": self._log().look()[1]}

    @in_a_sentence
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        return _steadily(lambda: self._latest(start, limit))

    @in_a_sentence
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start["index"] >= end["index"]:
            return []
        return _steadily(lambda: self._plan(start, end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Stretch)
        yield from read_plan(partition.plan, self._options, self._columns)
        settle()

    def stop(self) -> None:
        if self._tail is not None:
            self._tail.close()

    def _log(self) -> LogTail:
        if self._tail is None:
            self._tail = open_tail(self._options)
        return self._tail

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        log = self._log()
        first, last = log.look()
        begin = self._begin(start, first, last)
        for bound in (self._target, self._options.ending_index):
            last = last if bound is None else min(last, bound)
        if isinstance(limit, ReadMaxRows):
            last = min(last, begin - 1 + limit.max_rows)
        return {"index": last, "term": log.term(last)} if last >= begin else start

    def _plan(self, start: Offset, end: Offset) -> list[Stretch]:
        log = self._log()
        first, last = log.look()
        begin = self._begin(start, first, last)
        if begin > end["index"]:
            return []
        self._check_term(end, last)
        return [Stretch(plan) for plan in log.plan(begin, end["index"])]

    def _begin(self, start: Offset, first: int, last: int) -> int:
        """Return the first index behind ``start`` that is there, once ``start`` itself was checked."""
        begin = start["index"] + 1
        if begin < first:
            if self._options.fail_on_data_loss:
                error = Compacted(
                    f"{self._log().name}: entries {begin} to {first - 1} were compacted away; begin behind"
                    f" them with startingIndex={first} and a new checkpoint, or go on without them:"
                    " failOnDataLoss=false"
                )
                error.first = first
                raise error
            return first
        if begin > first:
            self._check_term(start, last)
        return begin

    def _check_term(self, offset: Offset, last: int) -> None:
        """Refuse a log in which a delivered entry is not the one that was delivered."""
        index, term = offset["index"], offset["term"]
        if term == _ANY_TERM:
            return
        found = self._log().term(index)
        if found != term:
            raise CorruptData(
                f"{self._log().name}: entry {index} was delivered with term {term} and now has {found}, in a log"
                f" that ends at {last}: this is not the log of the checkpoint, or it was written anew;"
                " begin with a new checkpoint"
            )


def _steadily(call: Callable[[], T]) -> T:
    """Make a call once more if entries went away under it: a compaction between two looks is no loss yet."""
    try:
        return call()
    except Compacted:
        return call()


def open_tail(options: ReadOptions) -> LogTail:
    """Return the log that a stream follows. Raises ``PenstockError``."""
    if options.table is Table.TASKS:
        raise InvalidValue("the table tasks is a state, not a stream: read it, or stream changes")
    if options.uncommitted:
        raise InvalidValue(
            "a stream never has what may be taken back; option uncommitted is for a read"
        )
    if options.files is not None:
        raise InvalidValue("a stream follows a log from file to file; option files is for a read")
    if options.node is not None:
        return NodeLog(options.node)
    paths = expand(options.paths)
    if len(paths) != 1:
        raise InvalidValue(
            f"a stream follows one log and {len(paths)} were named; make one stream of each"
        )
    _check_log(paths[0], options)
    return GrowingLog(paths[0])


def _check_log(path: Path, options: ReadOptions) -> None:
    """Raise ``InvalidValue`` for what has no log, and for what only that can be asked."""
    for family in families().values():
        if not family.has_log and family.recognise(path) is not None:
            raise InvalidValue(f"{path}: has no log that a stream could follow; read it instead")
    wrong = given(options, OF_BROKERS)
    if wrong:
        raise InvalidValue(f"{path}: option {wrong[0]} is for files of RabbitMQ")


def read_plan(plan: Plan, options: ReadOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task."""
    if isinstance(plan, RangePlan):
        return read_from_file(plan, options, columns)
    return read_from_node(plan, options, columns)
