"""What the report shows: small tables cut from the large ones, and the page made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

import penstock
from penstock.families.sources import Source
from penstock.spark.report import Facts, SourceFacts, make_report

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

POINTS_MAX: Final = 400
"""Points of a queue in a plot: more than a screen has places for."""

ROWS_MAX: Final = 200
"""Rows of a table that people read."""

KEYS_MAX: Final = 200
QUEUES_MAX: Final = 200


def write_report(
    spark: SparkSession,
    home: str,
    sources: Sequence[Source],
    *,
    made_at: datetime | None,
    seconds: float,
    title: str = "Penstock",
) -> str:
    """Return the page about the tables under ``home``."""

    def read(name: str) -> DataFrame:
        return spark.read.parquet(f"{home}/{name}")

    entries = read("spans")
    reach = {
        row["source"]: (row["low"], row["high"])
        for row in entries.groupBy("source")
        .agg(F.min("first_index").alias("low"), F.max("last_index").alias("high"))
        .collect()
    }
    counts = {
        row["source"]: row["count"]
        for row in _records(read("entries")).groupBy("source").count().collect()
    }
    facts = Facts(
        title=title,
        made_at=made_at,
        sources=tuple(
            SourceFacts(
                source=source.name,
                family=source.family,
                generation=source.words,
                first_index=reach.get(source.name, (None, None))[0],
                last_index=reach.get(source.name, (None, None))[1],
                entries=counts.get(source.name, 0),
                size=source.size,
            )
            for source in sources
        ),
        seconds=seconds,
        version=penstock.__version__,
    )
    return make_report(_tables(read), facts)


def _records(entries: DataFrame) -> DataFrame:
    """Return the entries of logs, and what stands for them in a source without one."""
    return entries.where("kind = 'entry' or op in ('add', 'deliver', 'remove')")


def _tables(read: Callable[[str], DataFrame]) -> dict[str, pa.Table]:
    lives = read("lifecycles")
    busiest = (
        read("throughput")
        .groupBy("source", "queue")
        .agg(F.sum(F.col("adds") + F.col("removes")).alias("changes"))
        .orderBy(F.desc("changes"))
        .limit(QUEUES_MAX)
        .select("source", "queue")
    )
    depth = _thinned(read("depth").join(F.broadcast(busiest), ["source", "queue"]))
    throughput = _summed(read("throughput").join(F.broadcast(busiest), ["source", "queue"]))
    named = {"ended_index": "removed_index", "born": "incarnation", "ended_time": "removed_time"}
    lives = lives.withColumnsRenamed(named)
    # Of each source: one that has times does not hide another that counts entries.
    longest = Window.partitionBy("source").orderBy(F.desc_nulls_last("seconds"), F.desc("waited"))
    ranked = lives.where("waited is not null").withColumn("place", F.row_number().over(longest))
    slowest = ranked.where(F.col("place") <= ROWS_MAX).drop("place")
    oldest = (
        lives.where("removed_index is null")
        .orderBy(F.asc_nulls_first("added_index"))
        .limit(ROWS_MAX)
    )
    summary = (
        read("tasks")
        .groupBy("source", "queue")
        .agg(
            F.count("*").alias("count"),
            F.sum("size").alias("bytes"),
            F.min("key").alias("lowest_key"),
            F.max("key").alias("highest_key"),
            F.min("added_index").alias("oldest_index"),
        )
    )
    keys = read("keys").orderBy(F.desc(F.col("adds") + F.col("waiting"))).limit(KEYS_MAX * 10)
    found = {
        "depth": depth,
        "throughput": throughput,
        "keys": keys,
        "sizes": read("sizes"),
        "lifecycles": slowest.unionByName(oldest),
        "tasks_summary": summary,
        "damage": read("damage").limit(ROWS_MAX),
        "gaps": read("gaps").limit(ROWS_MAX),
        "divergence": read("divergence").limit(ROWS_MAX),
    }
    return {name: table.toArrow() for name, table in found.items()}


def _thinned(depth: DataFrame) -> DataFrame:
    """Return depths at no more places than a plot has: the last of each stretch."""
    stretch = _stretch(depth)
    return (
        depth.withColumn("stretch", stretch)
        .groupBy("source", "queue", "stretch")
        .agg(
            F.max("bucket").alias("bucket"),
            F.max("log_index").alias("log_index"),
            F.max("event_time").alias("event_time"),
            F.sum("added").alias("added"),
            F.sum("removed").alias("removed"),
            F.max_by("depth", "bucket").alias("depth"),
        )
        .drop("stretch")
        .orderBy("source", "queue", "bucket")
    )


def _summed(throughput: DataFrame) -> DataFrame:
    return (
        throughput.withColumn("stretch", _stretch(throughput))
        .groupBy("source", "queue", "stretch")
        .agg(
            F.max("bucket").alias("bucket"),
            F.min("first_index").alias("first_index"),
            F.max("last_index").alias("last_index"),
            F.sum("adds").alias("adds"),
            F.sum("removes").alias("removes"),
            F.sum("bytes_added").alias("bytes_added"),
            F.sum("seconds").alias("seconds"),
        )
        .drop("stretch")
        .orderBy("source", "queue", "bucket")
    )


def _stretch(table: DataFrame) -> Any:
    (row,) = table.agg(F.min("bucket").alias("low"), F.max("bucket").alias("high")).collect()
    low, high = row["low"] or 0, row["high"] or 0
    width = max(1, -(-(high - low + 1) // POINTS_MAX))
    return F.floor((F.col("bucket") - low) / width)
