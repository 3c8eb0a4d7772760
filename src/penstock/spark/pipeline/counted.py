"""What became of the tasks of sources whose rows do not name every task: ids are counted (generations 1 to 3).

Within a life of its queue, tasks get ids in the order in which they were added, so an id is a count; a removal names an id,
or a value, and then means the oldest equal task. So state is a difference of multisets, whatever the order in which it is
computed.

Payloads take no part in that: they are most of the bytes. Where removals go by value, a digest stands for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.arrow import RECORD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.spark.pipeline.histories import Changes, State

SLICE_BITS: Final = 20
"""A million entries are numbered by one task: those whose indexes differ in these bits alone."""

LIFE: Final = ("source", "queue", "born")
TASK: Final = ("life", "task_id")


def advance(
    state: State, changes: Changes, lives: DataFrame, *, by_value: Sequence[str] = ()
) -> DataFrame:
    """Return every task that waited in ``state`` or that ``changes`` add, with what became of it.

    Sources in ``by_value`` remove by value where no extension names an id.
    """
    removes = without_payloads(changes.of("remove"), by_value)
    if by_value:
        removes = name_removed(removes, changes.of("removing"))
    removes = place(removes, lives)
    added = number_adds(place(without_payloads(changes.of("add"), by_value), lives))
    held = held_by(lives, without_payloads(state.open, by_value))
    candidates = held.unionByName(added.withColumn("is_held", F.lit(False)))
    ended = end_by_id(candidates, removes.where("task_id is not null"))
    if by_value:
        rest = end_by_value(
            ended.where("digest is not null"),
            removes.where("digest is not null and task_id is null"),
        )
        ended = ended.where("digest is null").unionByName(rest)
    return count_failed(end_with_queue(ended, lives), changes.of("returning"), lives)


def lives_of(before: DataFrame, changes: Changes, next_numbers: DataFrame) -> DataFrame:
    """Return every life of every queue: those before, and those that creations begin; each with its end.

    ``next_numbers`` has, for each source, the number of the queue that it creates next; ``last_id`` is that of before.
    """
    policy = F.map_filter("properties", lambda name, _: name != RECORD)
    births = changes.of("create", "delete").select(
        "source", "queue", "log_index", "op", policy.alias("policy")
    )
    in_order = Window.partitionBy("source").orderBy("log_index")
    # The default queue keeps its number: deleting it means its tasks.
    created = (
        births.where("op = 'create'")
        .withColumn("place", F.row_number().over(in_order) - 1)
        .join(F.broadcast(next_numbers), "source")
        .withColumn("number", F.col("next_number") + F.col("place"))
        .select("source", "queue", "log_index", "op", "policy", "number")
    )
    deleted = births.where("op = 'delete'").withColumn("number", F.lit(0).cast("long"))
    known = before.select(
        "source", "queue", F.col("born").alias("log_index"), F.lit("there").alias("op"), "number",
        "last_id", "policy",
    )  # fmt: skip
    fresh = created.unionByName(deleted).withColumn("last_id", F.lit(0).cast("long"))
    by_queue = Window.partitionBy("source", "queue").orderBy("log_index")
    return (
        known.unionByName(fresh)
        .withColumn("until", F.lead("log_index").over(by_queue))
        .where("op != 'delete' or queue = ''")
        .select(
            "source", "queue", F.col("log_index").alias("born"), "until", "number", "last_id",
            "policy", F.lit(None).cast("timestamp").alias("until_time"),
        )
    )  # fmt: skip


def with_last_ids(lives: DataFrame, histories: DataFrame) -> DataFrame:
    """Return lives with the id of the last task that each was given."""
    counts = histories.where("not is_held").groupBy("life").agg(F.count("*").alias("more"))
    joined = lives.join(F.broadcast(counts), "life", "left")
    last_id: Column = F.col("last_id") + F.coalesce("more", F.lit(0))
    return joined.withColumn("last_id", last_id).drop("more")


def without_payloads(rows: DataFrame, by_value: Sequence[str]) -> DataFrame:
    """Return rows with the size of each payload, and its digest where equal ones must be found, in its place."""
    size, digest = F.lit(None).cast("long"), F.lit(None).cast("binary")
    if "payload" in rows.columns:
        size = F.length("payload").cast("long")
        if by_value:
            digest = F.when(F.col("source").isin(*by_value), F.unhex(F.sha2("payload", 256)))
    return rows.withColumn("size", size).withColumn("digest", digest).drop("payload")


def place(changes: DataFrame, lives: DataFrame) -> DataFrame:
    """Return changes of tasks with the life of their queue; what speaks of no living queue is left out."""
    life = lives.select("source", "queue", "born", "until", "last_id", "life")
    is_within = (F.col("log_index") > F.col("born")) & (
        F.col("until").isNull() | (F.col("log_index") < F.col("until"))
    )
    joined = changes.join(F.broadcast(life), ["source", "queue"]).where(is_within)
    wanted = ("life", "last_id", "log_index", "key", "task_id", "size", "digest")
    return joined.select(*[name for name in wanted if name in joined.columns])


def held_by(lives: DataFrame, open_tasks: DataFrame) -> DataFrame:
    """Return the tasks that waited at the beginning, by the number of their queue's life."""
    joined = open_tasks.join(F.broadcast(lives.select(*LIFE, "life")), list(LIFE))
    return joined.select(
        *TASK, "key", "size", "digest", "added_index", "failed", F.lit(True).alias("is_held")
    )


def number_adds(adds: DataFrame) -> DataFrame:
    """Return added tasks with their ids: the count of additions to their queue's life, from its last id on.

    Counted in slices of the log, each by itself, and the counts of the slices before: no task sees all of a queue.
    """
    sliced = adds.withColumn("slice", F.shiftright("log_index", SLICE_BITS))
    counts = sliced.groupBy("life", "slice").agg(F.count("*").alias("count"))
    before = Window.partitionBy("life").orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    counts = counts.withColumn("before", F.coalesce(F.sum("count").over(before), F.lit(0)))
    within = Window.partitionBy("life", "slice").orderBy("log_index")
    numbered = sliced.withColumn("within", F.row_number().over(within)).join(
        F.broadcast(counts.select("life", "slice", "before")), ["life", "slice"]
    )
    return numbered.select(
        "life",
        (F.col("last_id") + F.col("before") + F.col("within")).alias("task_id"),
        "key",
        "size",
        "digest",
        F.col("log_index").alias("added_index"),
        F.lit(0).cast("long").alias("failed"),
    )


def name_removed(removes: DataFrame, namings: DataFrame) -> DataFrame:
    """Return removals by value with the id that an entry of ours in front of them names, where there is one."""
    ids = namings.select(
        "source", "log_index", F.posexplode(F.split(F.col("properties")["ids"], ","))
    )
    named = ids.select(
        "source",
        (F.col("log_index") + 1 + F.col("pos")).alias("log_index"),
        F.col("col").cast("long").alias("named_id"),
    )
    joined = removes.join(named, ["source", "log_index"], "left")
    return joined.withColumn("task_id", F.coalesce("task_id", "named_id")).drop("named_id")


def end_by_id(tasks: DataFrame, removes: DataFrame) -> DataFrame:
    """Return tasks with the index of the entry that removed each by its id, null where none did."""
    ends = removes.groupBy(*TASK).agg(F.min("log_index").alias("ended_index"))
    return tasks.join(ends, list(TASK), "left")


def end_by_value(tasks: DataFrame, removes: DataFrame) -> DataFrame:
    """Return tasks with the index of the entry that removed each by its value: the oldest equal one first.

    A task that was removed by its id was not there for a removal by value, or the other would have met it first.
    """
    value = ("life", "key", "digest")
    left = tasks.where("ended_index is null").drop("ended_index")
    turns = _met(left, removes).select(
        *value,
        F.row_number().over(Window.partitionBy(*value).orderBy("place")).alias("turn"),
        F.col("place").alias("ended_index"),
    )
    by_age = Window.partitionBy(*value).orderBy("task_id")
    met = left.withColumn("turn", F.row_number().over(by_age)).join(turns, [*value, "turn"], "left")
    return tasks.where("ended_index is not null").unionByName(met.drop("turn"))


def _met(tasks: DataFrame, removes: DataFrame) -> DataFrame:
    """Return the removals by value that met a task; one that found none had no effect, whatever came later.

    Of the count of equal tasks as if each removal took one, those that made it lower than ever found none.
    """
    value = ("life", "key", "digest")
    came = tasks.select(
        *value, F.coalesce("added_index", F.lit(-1)).alias("place"), F.lit(1).alias("step")
    )
    went = removes.select(*value, F.col("log_index").alias("place"), F.lit(-1).alias("step"))
    in_order = Window.partitionBy(*value).orderBy("place", F.desc("step"))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    lowest = F.least(F.lit(0), F.min("count").over(so_far))
    return (
        came.unionByName(went)
        .withColumn("count", F.sum("step").over(so_far))
        .withColumn("lowest", lowest)
        .withColumn("before", F.lag("lowest", 1, 0).over(in_order))
        .where("step < 0 and lowest = before")
    )


def end_with_queue(tasks: DataFrame, lives: DataFrame) -> DataFrame:
    """Return tasks with how each ended: ``removed``, or ``deleted`` with its queue; null for one that waits."""
    ends = lives.where("until is not null").select("life", "until")
    joined = tasks.join(F.broadcast(ends), "life", "left")
    end = (
        F.when(F.col("ended_index").isNotNull(), F.lit("removed"))
        .when(F.col("until").isNotNull(), F.lit("deleted"))
        .otherwise(F.lit(None))
    )
    return joined.select(
        *TASK, "key", "size", "added_index", "failed", "is_held",
        F.coalesce("ended_index", "until").alias("ended_index"), end.alias("end"),
    )  # fmt: skip


def count_failed(tasks: DataFrame, returns: DataFrame, lives: DataFrame) -> DataFrame:
    """Return tasks with their failed deliveries counted, as entries of ours tell them."""
    returned = (
        returns.select(
            "source",
            F.col("properties")["queue"].cast("long").alias("number"),
            F.explode(F.split(F.col("properties")["ids"], ",")).alias("id"),
            "log_index",
        )
        .join(
            F.broadcast(lives.select("source", "number", "born", "until", "life")),
            ["source", "number"],
        )
        # The default queue has one number in all its lives.
        .where("log_index > born and (until is null or log_index < until)")
        .groupBy("life", F.col("id").cast("long").alias("task_id"))
        .agg(F.count("*").alias("more"))
    )
    joined = tasks.join(returned, list(TASK), "left")
    failed: Column = F.col("failed") + F.coalesce("more", F.lit(0))
    return joined.withColumn("failed", failed).drop("more")
