"""``spark.readStream.format("penstock")``: a log or a spool as it grows, or a live node (docs/spark-streams.md).

Spark replays what is between two offsets after a crash, so whatever an offset names must never change. A stream is of
entries; what a snapshot holds instead of them is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import InvalidValue
from penstock.families.follow import Follower, LogFollower, Offset
from penstock.families.options import Operation
from penstock.families.plan import expand
from penstock.families.registry import open_files
from penstock.families.tables import ReadOptions, Table
from penstock.spark.node import NodeLog
from penstock.spark.source import Task, in_a_sentence, read_task


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver by offsets, reads on executors. Options are checked when it is first used."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._follower: Follower | None = None
        self._target: Offset | None = None  # where a run ends that ends

    @in_a_sentence
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        return self._followed().beginning()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_entries is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_entries)

    @in_a_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._followed().end()

    @in_a_sentence
    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return self._followed().end()

    @in_a_sentence
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._followed().latest(start, rows_max=rows_max, target=self._target)

    @in_a_sentence
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [Task([plan]) for plan in self._followed().plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(partition, self._options, self._columns)

    def stop(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def _followed(self) -> Follower:
        if self._follower is None:
            self._follower = open_follower(self._options)
        return self._follower


def open_follower(options: ReadOptions) -> Follower:
    """Return what a stream follows. Raises ``PenstockError``."""
    if options.table is Table.TASKS:
        raise InvalidValue("the table tasks is a state, not a stream: read it, or stream changes")
    if options.uncommitted:
        raise InvalidValue(
            "a stream never has what may be taken back; option uncommitted is for a read"
        )
    if options.filters.paths is not None:
        raise InvalidValue("a stream follows a log from file to file; option files is for a read")
    if options.node is not None:
        return LogFollower(NodeLog(options.node), options)
    paths = expand(options.paths)
    if len(paths) != 1:
        raise InvalidValue(
            f"a stream follows one log and {len(paths)} were named; make one stream of each"
        )
    return open_files(paths[0], Operation.TABLES, options.own).follow(options)
