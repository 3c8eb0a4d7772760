"""Whether directories are whole, and whether those of one log's replicas agree.

Replicas are compared entry by entry, by all that an entry says. Snapshots hide entries, and each replica takes its own:
so the queues and tasks of all are compared as well, after the last entry that a snapshot hides in any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.errors import CorruptData, InvalidValue
from penstock.families.sources import Source, find_sources
from penstock.families.tables import Op
from penstock.spark.pipeline import tables
from penstock.spark.pipeline.histories import small_table
from penstock.spark.pipeline.moment import Moment, moment
from penstock.spark.pipeline.queue_records import queue_records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class Audit(NamedTuple):
    """What is wrong: nothing, if all three are empty."""

    sources: list[Source]
    damage: DataFrame
    gaps: DataFrame
    divergence: DataFrame
    compared: int  # the last index up to which the replicas were compared; -1 if none was


def audit(spark: SparkSession, paths: Sequence[str]) -> Audit:
    """Return what is wrong within each of some replicas, and between them. Raises ``PenstockError``."""
    sources = find_sources(paths)
    for source in sources:
        if not source.has_log:
            raise InvalidValue(
                f"{source.name}: an audit compares copies of a log, and {source.words} has none; 'penstock verify'"
                " checks its files"
            )
    entries = spark.read.format("penstock").load([source.name for source in sources])
    starts = small_table(
        spark, [(s.name, s.begin + 1) for s in sources], "source string, start long"
    )
    commits = {source.name: source.commit for source in sources}
    whole = entries.where("kind = 'entry' and status = 'ok'").groupBy("source")
    found = {
        row["source"]: row["end"] for row in whole.agg(F.max("log_index").alias("end")).collect()
    }
    ends = []
    for source in sources:
        end, commit = found.get(source.name, source.begin), commits[source.name]
        ends.append((source.name, end if commit is None else min(end, commit)))
    return Audit(
        sources,
        tables.damage(entries),
        tables.gaps(tables.spans(entries), starts),
        compare(spark, sources, entries, dict(ends)),
        min(end for _, end in ends) if len(ends) > 1 else -1,
    )


def compare(
    spark: SparkSession, sources: Sequence[Source], entries: DataFrame, ends: Mapping[str, int]
) -> DataFrame:
    """Return where replicas differ. ``ends`` has for each of them the last index that counts."""
    table = small_table(spark, list(ends.items()), "source string, end long")
    found = tables.divergence(entries, table)
    lowest = min(ends.values())
    hidden = [source.begin for source in sources if 0 <= source.begin <= lowest]
    if not hidden:
        return found
    at = max(hidden)
    states = _states(spark, sources, at)
    if len(states) < 2:
        return found
    rows = reduce(lambda one, other: one.unionByName(other), states.values())
    return found.unionByName(tables.state_divergence(rows, sorted(states), at))


def _states(spark: SparkSession, sources: Sequence[Source], at: int) -> dict[str, DataFrame]:
    """Return the queues and tasks of each replica after entry ``at``, as far as damage allows to know them."""
    reader = spark.read.format("penstock").option("columns", "source,status")
    rows = reader.load([source.name for source in sources]).where("status = 'bad-snapshot'")
    damaged = {row["source"] for row in rows.distinct().collect()}
    states = {}
    for source in sources:
        has_beginning = source.begin >= 0 or source.log_first == 0
        if source.begin > at or source.name in damaged or not has_beginning:
            continue
        # What is not whole is a row of the damage; nothing can be said of the state behind it.
        with suppress(CorruptData):
            states[source.name] = state_of(spark, moment(spark, source.name, at))
    return states


def state_of(spark: SparkSession, found: Moment) -> DataFrame:
    """Return the queues and tasks of a moment as records, each with the place that it has in every replica."""
    source = found.source
    # Only generation 3 stores ids; elsewhere they depend on where a snapshot was taken.
    has_ids = not source.by_value and not source.is_decided
    queues = small_table(
        spark,
        [
            (source.name, "", str(Op.QUEUE), name, None, None, None, list(fields.items()))
            for name, fields in queue_records(spark, found, has_ids=has_ids).items()
        ],
        "source string, place string, op string, queue string, key long, task_id long,"
        " payload binary, properties map<string,string>",
    )
    place: Column = F.col("task_id").cast("string")
    if not has_ids:
        digest = F.sha2("payload", 256)
        equals = Window.partitionBy("queue", "key", digest).orderBy("task_id")
        place = F.concat_ws(" ", "key", digest, F.row_number().over(equals))
    attempts = F.create_map(F.lit("attempts"), F.col("failed").cast("string"))
    nothing = F.lit(None)
    tasks = found.tasks.select(
        "source",
        place.alias("place"),
        F.lit(str(Op.TASK)).alias("op"),
        "queue",
        "key",
        (F.col("task_id") if has_ids else nothing.cast("long")).alias("task_id"),
        "payload",
        (attempts if has_ids else nothing.cast("map<string,string>")).alias("properties"),
    )
    return queues.unionByName(tasks)
