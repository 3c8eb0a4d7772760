"""What sources without a log give: no history, only what their files hold now.

Nothing orders the changes of such a source, so there are no lives, lifecycles, depths or throughputs of it. Queues and
tasks are those that its family lists; counts are over the records that are still on file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.options import Values
from penstock.families.registry import families
from penstock.families.sources import Source
from penstock.families.tables import MISSING, MISSING_REASON
from penstock.spark.pipeline import tables
from penstock.spark.pipeline.histories import CHANGES, LIVES_SCHEMA, OPEN_SCHEMA, small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AS_OF: Final = "as_of"
"""The option that says when messages have expired."""

MESSAGE: Final = ("source", "queue", "key", "task_id")
"""What a message is known by: numbers are of one queue, and of one of its priorities."""


def table_options(source: Source, values: Values) -> dict[str, str]:
    """Return values as the options of a read of a source's tasks."""
    declared = {option.name: option for option in families()[source.family].options}
    return {declared[name].table_name: declared[name].text(value) for name, value in values.items()}


def values_at(source: Source, time_us: int) -> Values:
    """Return the options with which tasks of a source are those of a time, if its tasks expire by a clock."""
    names = {option.name for option in families()[source.family].options}
    return {AS_OF: time_us} if AS_OF in names else {}


def changes_of(spark: SparkSession, entries: DataFrame, sources: Sequence[Source]) -> DataFrame:
    """Return the records of some sources that change a queue; a message that cannot be read has no payload."""
    names = [source.name for source in sources]
    theirs = entries.where(F.col("source").isin(*names) & F.col("op").isNotNull())
    whole = sorted({status for source in sources for status in source.whole_statuses})
    payload = F.when(F.col("status").isin(*whole), F.col("payload"))
    changes = theirs.withColumn("payload", payload).select(*CHANGES)
    positioned = [source.name for source in sources if source.removes_by_position]
    if not positioned:
        return changes
    reader = spark.read.format("penstock").option("table", "changes").option("ops", "remove")
    return changes.unionByName(reader.load(positioned).select(*CHANGES))


def lives_of(
    spark: SparkSession, sources: Sequence[Source], rows: DataFrame, *, vhost: str | None = None
) -> DataFrame:
    """Return the queues that are there, or those of one vhost; ``rows`` tell those that their source does not list."""
    listed = [
        (source.name, queue.name, -1, None, number, 0, None, None)
        for source in sources
        for number, queue in enumerate(source.queues or ())
        if vhost in (None, queue.vhost)
    ]
    unlisted = [source.name for source in sources if source.queues is None]
    found = (
        rows.where(F.col("source").isin(*unlisted)).select("source", "queue") if unlisted else None
    )
    told = [] if found is None else sorted(found.distinct().collect())
    numbers: Counter[str] = Counter()
    for source, queue in told:
        listed.append((source, queue, -1, None, numbers[source], 0, None, None))
        numbers[source] += 1
    return small_table(spark, listed, LIVES_SCHEMA)


def tasks_of(spark: SparkSession, sources: Sequence[Source], values: Sequence[Values]) -> DataFrame:
    """Return the tasks of some sources, as those are that wait in a history; each source has its own options."""
    columns = "source,queue,key,task_id,log_index,payload,event_time"
    tasks = [small_table(spark, [], OPEN_SCHEMA)]
    names: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for source, own in zip(sources, values, strict=True):
        if source.queues != ():
            options = tuple(sorted(table_options(source, own).items()))
            names.setdefault(options, []).append(source.name)
    for options, paths in names.items():
        reader = spark.read.format("penstock").option("table", "tasks")
        reader = reader.option("columns", columns).options(**dict(options))
        tasks.append(_as_open(reader.load(paths)))
    return reduce(lambda one, other: one.unionByName(other), tasks)


def _as_open(found: DataFrame) -> DataFrame:
    return found.select(
        "source",
        "queue",
        F.lit(-1).cast("long").alias("born"),
        "task_id",
        "key",
        "payload",
        F.length("payload").cast("long").alias("size"),
        F.col("log_index").alias("added_index"),
        F.lit(0).cast("long").alias("failed"),
        F.col("event_time").alias("added_time"),
        F.lit(None).cast("long").alias("first_queue_id"),
        F.lit(None).cast("long").alias("first_id"),
        F.lit(None).cast("timestamp").alias("expires"),
        F.lit(False).alias("is_started"),
    )


def keys_of(changes: DataFrame, tasks: DataFrame) -> DataFrame:
    """Return how many messages of each key came and went, as far as that is on file, and how many wait."""
    by = ("source", "queue", "key")
    known = changes.where("op in ('add', 'remove')").select("op", *MESSAGE).distinct()
    counted = known.groupBy(*by).agg(
        F.count_if(F.col("op") == "add").alias("adds"),
        F.count_if(F.col("op") == "remove").alias("removes"),
        F.lit(0).cast("long").alias("waiting"),
    )
    none = F.lit(0).cast("long")
    held = tables.waiting(tasks).select(*by, none.alias("adds"), none.alias("removes"), "waiting")
    return tables.add_up(counted.unionByName(held), *by)


def sizes_of(changes: DataFrame) -> DataFrame:
    """Return how many messages were of which size; the size is the body's, wherever that is."""
    size = F.coalesce(F.col("properties")["body_size"].cast("long"), F.length("payload"))
    added = changes.where("op = 'add'").select(*MESSAGE, size.cast("long").alias("size"))
    return tables.sizes(added.distinct())


def missing(records: DataFrame, tasks: DataFrame, as_of_us: int) -> DataFrame:
    """Return the messages that index records know and that no store holds, as rows of damage."""
    said = F.col("properties")
    expiry = F.coalesce(said["expiry_us"].cast("decimal(20, 0)"), F.lit(0))
    is_kept = (said["persistent"] == "true") & ((expiry == 0) | (expiry > F.lit(as_of_us)))
    # What stands in the index itself says where it was published to.
    elsewhere = records.where("op = 'add'").where(is_kept & said["exchange"].isNull())
    gone, found = records.where("op = 'remove'").select(*MESSAGE), tasks.select(*MESSAGE)
    lost = elsewhere.join(gone, list(MESSAGE), "left_anti").join(found, list(MESSAGE), "left_anti")
    return lost.select(
        "source", "family", "path", "offset", "size", "log_index",
        F.lit(MISSING).alias("status"), F.lit(MISSING_REASON).alias("reason"),
    )  # fmt: skip


def count_missing(spark: SparkSession, source: Source, values: Values) -> int:
    """Return how many messages of a source are lost: no store holds them, or they cannot be read."""
    declared = {option.name: option for option in families()[source.family].options}
    everywhere = {name: v for name, v in values.items() if not declared[name].only_tasks}

    def read(table: str, columns: Sequence[str], own: Values) -> DataFrame:
        reader = spark.read.format("penstock").option("table", table)
        reader = reader.option("columns", ",".join(columns)).options(**table_options(source, own))
        return reader.load(source.name)

    place = ("family", "path", "offset", "size", "log_index")
    records = read("changes", (*MESSAGE, *place, "op", "properties"), everywhere)
    tasks = read("tasks", MESSAGE, values)
    return missing(records, tasks, values.get(AS_OF, 0)).count()


def numbered(tasks: DataFrame) -> DataFrame:
    """Return tasks with ids as a node gives them: each queue's own, in the order of delivery, from 1 on."""
    in_order = Window.partitionBy("queue").orderBy("key", "task_id")
    return tasks.withColumn("task_id", F.row_number().over(in_order).cast("long"))
