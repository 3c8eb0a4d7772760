"""The state of one source after an entry: time travel, computed and not replayed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.errors import CorruptData, InvalidValue, OutOfRange
from penstock.families.options import At, Values
from penstock.families.registry import NO_VALUES
from penstock.families.sources import Source, find_sources, index_at
from penstock.families.tables import Op
from penstock.spark.pipeline import unlogged
from penstock.spark.pipeline.beginning import from_nothing, from_snapshots
from penstock.spark.pipeline.decided import decide
from penstock.spark.pipeline.histories import (
    Changes,
    TableOfChanges,
    advance,
    fix_lives,
    lives_of,
    with_last_ids,
    with_payloads,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A source as it was after an entry."""

    source: Source
    index: int  # -1 without a log
    term: int
    tasks: DataFrame  # those that waited
    lives: DataFrame  # the queues that lived
    values: Values = field(
        default_factory=dict
    )  # without a log: the options that select these tasks


def moment(
    spark: SparkSession,
    path: str,
    at: At | None = None,
    *,
    uncommitted: bool = False,
    values: Values = NO_VALUES,
    for_migration: bool = False,
) -> Moment:
    """Return the state after entry ``at``, or after the last that counts. Raises ``PenstockError``.

    As strict as ``penstock tasks``: damage in the way stops it, for a state that skips an entry never was. Of a source
    without a log it is what its files hold now; ``values`` are options of the family. ``for_migration`` makes the state the
    same in every run, with payloads as an import makes them.
    """
    (source,) = find_sources([path], uncommitted=uncommitted, values=values)
    if not source.has_log:
        return _without_log(
            spark, source, at, {**source.migrated_with, **values} if for_migration else values
        )
    wanted = index_at(source, at)
    stop = wanted if wanted is not None else source.commit
    read = _Read(spark, path)
    index, term = _end(read.load(_PLACES, last=stop), source, stop)
    if wanted is not None and index < wanted:  # bytes that are no entry end the log
        raise OutOfRange(
            f"entry {wanted} is beyond the log, which ends at entry {index}; ask for --at {index}"
        )
    stored = read.snapshot(source) if source.begin >= 0 else None
    beginning = from_nothing(spark, [source]) if stored is None else from_snapshots(stored)
    changes: Changes = _ChangesOf(read, source, index)
    payloads = read.load(_ADDED, ops=(Op.ADD,), last=index)
    payloads = payloads.where(F.col("log_index") > source.begin)
    if source.is_decided:
        entries = read.load((*_STORED, "log_index", "status"))
        payloads = decide(entries, [source]).where(F.col("log_index") <= index)
        changes = TableOfChanges(payloads)
    state = beginning.state
    sources = [source]
    lives = fix_lives(spark, lives_of(state.lives, changes, beginning.next_numbers, sources))
    histories = advance(state, changes, lives, sources)
    waiting = histories.where("ended_index is null")
    return Moment(
        source=source,
        index=index,
        term=term,
        tasks=with_payloads(waiting, payloads, state.open, lives, sources),
        lives=with_last_ids(lives, histories, changes, sources).where("until is null"),
    )


def _without_log(spark: SparkSession, source: Source, at: At | None, values: Values) -> Moment:
    if at is not None:
        raise InvalidValue(
            f"{source.name}: {source.words} has no log, so only its present state is known; omit --at"
        )
    if source.queues == ():
        raise InvalidValue(
            f"{source.name}: {source.words} has no queues; name a node, vhost or queue"
        )
    tasks = unlogged.tasks_of(spark, [source], [values])
    return Moment(
        source=source,
        index=-1,
        term=0,
        tasks=tasks,
        lives=unlogged.lives_of(spark, [source], tasks, vhost=values.get("vhost")),
        values=values,
    )


_PLACES: Final = ("kind", "status", "log_index", "term", "path", "offset")
_STORED: Final = (
    "source", "kind", "offset", "op", "queue", "key", "task_id", "payload", "properties", "event_time",
)  # fmt: skip
_ADDED: Final = ("source", "log_index", "queue", "task_id", "payload")
_NEEDED: Final = {
    "add": ("source", "log_index", "queue", "key"),
    "remove": ("source", "log_index", "queue", "task_id"),
    "returning": ("source", "log_index", "properties"),
    "removing": ("source", "log_index", "properties"),
    "create": ("source", "log_index", "op", "queue", "properties"),
    "delete": ("source", "log_index", "op", "queue", "properties"),
}
"""What each kind of change needs: columns are sent from Python to Spark one by one, so none that is not looked at."""

_VALUE: Final = {"add": ("payload",), "remove": ("key", "payload")}
"""What it needs more where removals go by value."""

_NUMBERED: Final = (
    "source",
    "log_index",
    "op",
    "queue",
    "key",
    "task_id",
    "properties",
    "event_time",
)
"""What changes need that name every task."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Reads some columns of some entries; cheaper done twice than kept, for that means all columns of all entries."""

    spark: SparkSession
    path: str

    def load(
        self,
        columns: Sequence[str],
        *,
        ops: Sequence[str] = (),
        first: int | None = None,
        last: int | None = None,
    ) -> DataFrame:
        reader = self.spark.read.format("penstock").option("columns", ",".join(columns))
        if ops:
            reader = reader.option("ops", json.dumps(ops))
        if first is not None:
            reader = reader.option("startingIndex", first)
        if last is not None:
            reader = reader.option("endingIndex", max(0, last))
        return reader.load(self.path)

    def snapshot(self, source: Source) -> DataFrame:
        """Return the queues and tasks of the snapshot that a source begins with."""
        if not source.has_ids:
            return self.load(_STORED, ops=(Op.QUEUE, Op.TASK))
        ops = (Op.QUEUE, Op.TASK, Op.DELIVER)
        rows = self.load(_STORED, ops=ops, first=source.begin, last=source.begin)
        return rows.where("kind in ('queue', 'task')")


@dataclass(frozen=True, slots=True)
class _ChangesOf:
    """The changes behind a source's beginning, up to an index."""

    read: _Read
    source: Source
    index: int

    def of(self, *ops: str) -> DataFrame:
        columns = list(_NUMBERED if self.source.has_ids else _NEEDED[ops[0]])
        if self.source.by_value:
            columns += _VALUE.get(ops[0], ())
        if self.index <= self.source.begin:
            return self.read.load(columns, ops=ops).where(F.lit(False))
        return self.read.load(columns, ops=ops, first=self.source.begin + 1, last=self.index)


def _end(entries: DataFrame, source: Source, stop: int | None) -> tuple[int, int]:
    """Return the last entry that counts and its term. Raises ``CorruptData`` for damage before it."""
    is_good = (F.col("kind") == "entry") & (F.col("status") == "ok")
    is_bad = (F.col("status") != "ok") & ~F.col("status").isin("torn", "leftover")
    is_within = F.lit(True) if stop is None else (F.col("log_index") <= stop)
    good, bad = F.when(is_good & is_within, F.col("log_index")), F.when(is_bad, F.col("log_index"))
    (told,) = entries.agg(
        F.max(good).alias("end"),
        F.max_by("term", good).alias("term"),
        F.min(bad).alias("bad"),
        F.min_by(F.struct("path", "offset", "status"), bad).alias("place"),
    ).collect()
    end = source.begin if told["end"] is None else max(told["end"], source.begin)
    if told["bad"] is not None and source.begin < told["bad"] <= end:
        place = told["place"]
        raise CorruptData(
            f"entry {told['bad']} is not whole ({place['status']}); ask for --at {told['bad'] - 1}, or"
            " salvage with 'penstock repair'",
            path=place["path"],
            offset=place["offset"],
        )
    return end, told["term"] or 0
