"""Whether directories are whole, and whether those of one log's replicas agree.

Replicas are compared entry by entry, by all that an entry says. Snapshots hide entries, and each replica takes its own:
so the queues and tasks of all are compared as well, after the last entry that a snapshot hides in any of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.errors import CorruptData, InvalidValue
from penstock.families.sources import Source, find_sources
from penstock.families.tables import Op
from penstock.formats.taskflux import notes
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, NO_OPTIONS, policy_fields
from penstock.spark.pipeline import tables
from penstock.spark.pipeline.beginning import notes_of
from penstock.spark.pipeline.histories import small_table
from penstock.spark.pipeline.moment import Moment, moment

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
        spark,
        [(s.name, max(s.begin + 1, s.origin)) for s in sources],
        "source string, start long",
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
    found = tables.divergence(entries, table, has_ids=any(each.has_ids for each in sources))
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
        has_beginning = source.begin >= 0 or source.log_first <= source.origin
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
            (source.name, "", str(Op.QUEUE), name, None, None, None, list(fields.items()), None)
            for name, fields in _queue_records(spark, found, has_ids=has_ids).items()
        ],
        "source string, place string, op string, queue string, key long, task_id long,"
        " payload binary, properties map<string,string>, event_time timestamp",
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
        F.col("added_time").alias("event_time"),
    )
    return queues.unionByName(tasks)


Fields = dict[str, str]


def _queue_records(spark: SparkSession, found: Moment, *, has_ids: bool) -> dict[str, Fields]:
    """Return for each queue of a moment all that it was created with: its policy and options, and with ``has_ids`` the last id that it gave out."""
    lives = found.lives.collect()
    if found.source.has_ids:
        return {
            row["queue"]: (row["policy"] or {}) | {"last_id": str(row["last_id"])} for row in lives
        }
    noted = _noted(spark, found)
    created = _created(spark, found)
    names = {str(row["number"]): row["queue"] for row in lives}
    plain = {name: str(value) for name, value in policy_fields(NO_LIMITS).items()}
    plain["lease_ms"] = str(NO_OPTIONS.lease_ms)
    records = {str(DEFAULT_QUEUE): plain | ({"last_id": "0"} if has_ids else {})}
    for row in lives:
        told = noted.get(row["queue"]) if row["born"] < 0 else created.get(row["born"] - 1)
        fields = plain | (row["policy"] or {}) | (told or {})
        if "dead_letter" in fields:
            fields["dead_letter"] = names.get(fields["dead_letter"], fields["dead_letter"])
        if has_ids:
            fields["last_id"] = str(row["last_id"])
        records[row["queue"]] = fields
    return records


_OPTIONS: Final = ("lease_ms", "attempts_max", "dead_letter")


def _noted(spark: SparkSession, found: Moment) -> dict[str, Fields]:
    """Return the options of queues that a snapshot's notes have, by name."""
    if found.source.begin < 0:
        return {}
    reader = spark.read.format("penstock").option("columns", "source,offset,kind,key,payload")
    rows = reader.option("queues", json.dumps([notes.QUEUE])).load(found.source.name)
    told = notes_of(rows.where(F.col("kind") == "task")).where("kind = 'queue'")
    return {row["name"]: _options(row.asDict()) for row in told.collect()}


def _created(spark: SparkSession, found: Moment) -> dict[int, Fields]:
    """Return the options that entries of ours name, by their index: they stand before the creation that they mean."""
    if found.index <= found.source.begin:
        return {}
    reader = (
        spark.read.format("penstock")
        .option("columns", "log_index,properties")
        .option("ops", json.dumps([Op.CREATING]))
        .option("startingIndex", found.source.begin + 1)
        .option("endingIndex", found.index)
    )
    rows = reader.load(found.source.name).collect()
    return {row["log_index"]: _options(row["properties"]) for row in rows}


def _options(fields: dict[str, str | int | None]) -> Fields:
    return {name: str(fields[name]) for name in _OPTIONS if fields.get(name) is not None}
