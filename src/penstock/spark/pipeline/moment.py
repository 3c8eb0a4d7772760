"""The state of one source after an entry: time travel, computed and not replayed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.errors import Compacted, CorruptData, OutOfRange
from penstock.spark.columns import Op
from penstock.spark.pipeline.beginning import from_nothing, from_snapshots
from penstock.spark.pipeline.decided import decide
from penstock.spark.pipeline.histories import (
    CHANGES,
    advance,
    fix_lives,
    lives_of,
    with_last_ids,
    with_payloads,
)
from penstock.spark.pipeline.inputs import Source, find_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A source as it was after an entry."""

    source: Source
    index: int
    term: int
    tasks: DataFrame  # those that waited
    lives: DataFrame  # the queues that lived


def moment(
    spark: SparkSession, path: str, at: int | None = None, *, uncommitted: bool = False
) -> Moment:
    """Return the state after entry ``at``, or after the last that counts. Raises ``PenstockError``.

    As strict as ``penstock tasks``: damage in the way stops it, for a state that skips an entry never was.
    """
    (source,) = find_sources([path], uncommitted=uncommitted)
    if at is not None and at < source.begin:
        raise Compacted(
            f"entry {at} is covered by the snapshot, which holds the state after entry {source.begin};"
            f" ask for --at {source.begin} or later"
        )
    stop = at if at is not None else source.commit

    def load(columns: Sequence[str], ops: Sequence[str] = ()) -> DataFrame:
        reader = spark.read.format("penstock").option("columns", ",".join(columns))
        if ops:
            reader = reader.option("ops", json.dumps(ops))
        if stop is not None:
            reader = reader.option("endingIndex", max(0, stop))
        return reader.load(path)

    # Read once and kept by Spark: the state is made of several passes over these.
    is_needed = source.by_value or source.is_decided
    entries = load(_ALL if is_needed else [name for name in _ALL if name != "payload"])
    entries = entries.persist(StorageLevel.MEMORY_AND_DISK)
    index, term = _end(entries, source, stop)
    if at is not None and index < at:
        raise OutOfRange(
            f"entry {at} is beyond the log, which ends at entry {index}; ask for --at {index}"
        )
    changes = _changes(entries, source, index)
    stored = load(_ALL, (Op.QUEUE, Op.TASK)) if source.begin >= 0 else None
    beginning = from_nothing(spark, [source]) if stored is None else from_snapshots(stored)
    state = beginning.state
    lives = fix_lives(spark, lives_of(state.lives, changes, beginning.next_numbers))
    by_value = [source.name] if source.by_value else []
    histories = advance(state, changes, lives, by_value=by_value)
    adds = changes if source.is_decided else load(("source", "log_index", "payload"), (Op.ADD,))
    return Moment(
        source=source,
        index=index,
        term=term,
        tasks=with_payloads(histories.where("ended_index is null"), adds, state.open),
        lives=with_last_ids(lives, histories).where("until is null"),
    )


_ALL: Final = ("kind", "path", "offset", "status", "term", *CHANGES)


def _changes(entries: DataFrame, source: Source, index: int) -> DataFrame:
    if source.is_decided:
        return decide(entries, [source]).where(F.col("log_index") <= index)
    return entries.where(
        (F.col("kind") == "entry")
        & (F.col("status") == "ok")
        & F.col("op").isNotNull()
        & (F.col("log_index") > source.begin)
        & (F.col("log_index") <= index)
    ).select(*[name for name in CHANGES if name in entries.columns])


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
