"""The tables that people read, each made from what became of the tasks or from the entries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.arrow import RECORD
from penstock.families.damage import Severity
from penstock.families.tables import Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKET: Final = 1024
"""Entries in a bucket of ``depth`` and ``throughput``: fixed, so that counts of two runs can be added."""


def lifecycles(histories: DataFrame) -> DataFrame:
    """Return from when to when each task waited, in entries and in seconds, and how often it was delivered."""
    is_acked = (F.col("end") == "removed") & F.coalesce(F.col("reason") == "acked", F.lit(True))
    return histories.select(
        "source",
        "queue",
        "born",
        "task_id",
        "key",
        "size",
        "added_index",
        "ended_index",
        "end",
        "reason",
        (F.col("ended_index") - F.col("added_index")).alias("waited"),
        _seconds("added_time", "ended_time").alias("seconds"),
        # The delivery that ended it left no entry of its own.
        (F.col("failed") + F.when(is_acked, 1).otherwise(0)).alias("deliveries"),
        "added_time",
        "ended_time",
        "first_queue_id",
        "first_id",
    )


def _seconds(since: str, until: str) -> Column:
    """Return the seconds between two times, to the millisecond that logs keep; null if one is unknown."""
    return (F.unix_millis(until) - F.unix_millis(since)) / F.lit(1000.0)


STRETCH: Final = ("source", "queue", "bucket", "first_index", "last_index")
"""What a row of ``throughput`` is about."""


TIMES: Final = ("source", "bucket")


def times(entries: DataFrame) -> DataFrame:
    """Return when the first and the last entry of each bucket were written, where the files have times."""
    timed = entries.where("kind = 'entry' and event_time is not null")
    return timed.groupBy("source", F.floor(F.col("log_index") / BUCKET).alias("bucket")).agg(
        F.min("event_time").alias("first_time"), F.max("event_time").alias("last_time")
    )


def merged_times(times: DataFrame) -> DataFrame:
    """Return the times of buckets that two runs read in part."""
    return times.groupBy(*TIMES).agg(
        F.min("first_time").alias("first_time"), F.max("last_time").alias("last_time")
    )


def throughput(lives: DataFrame) -> DataFrame:
    """Return how many tasks came and went in each bucket of entries; ``lives`` are lifecycles."""
    came = lives.where("added_index is not null").select(
        "source",
        "queue",
        F.floor(F.col("added_index") / BUCKET).alias("bucket"),
        F.lit(1).cast("long").alias("adds"),
        F.lit(0).cast("long").alias("removes"),
        F.col("size").alias("bytes_added"),
    )
    went = lives.where("ended_index is not null").select(
        "source",
        "queue",
        F.floor(F.col("ended_index") / BUCKET).alias("bucket"),
        F.lit(0).cast("long").alias("adds"),
        F.lit(1).cast("long").alias("removes"),
        F.lit(0).cast("long").alias("bytes_added"),
    )
    counted = add_up(came.unionByName(went), "source", "queue", "bucket")
    return counted.select(
        "source",
        "queue",
        "bucket",
        (F.col("bucket") * BUCKET).alias("first_index"),
        ((F.col("bucket") + 1) * BUCKET - 1).alias("last_index"),
        "adds",
        "removes",
        "bytes_added",
    )


def with_seconds(throughput: DataFrame, times: DataFrame) -> DataFrame:
    """Return throughput with how long each bucket lasted: from the end of the one before it to its own."""
    in_order = Window.partitionBy("source").orderBy("bucket")
    began = F.coalesce(F.lag("last_time").over(in_order), "first_time")
    lasted = times.withColumn("began", began).select(
        *TIMES, _seconds("began", "last_time").alias("seconds")
    )
    return throughput.join(lasted, list(TIMES), "left")


def add_up(counts: DataFrame, *by: str) -> DataFrame:
    """Return counts of several runs as one."""
    sums = [name for name in counts.columns if name not in by]
    return counts.groupBy(*by).agg(*[F.sum(name).alias(name) for name in sums])


def depth(throughput: DataFrame, base: DataFrame, times: DataFrame) -> DataFrame:
    """Return how many tasks each queue held at the end of each bucket.

    ``base`` has, for each source and queue, how many it held at the beginning (``held``).
    """
    so_far = Window.partitionBy("source", "queue").orderBy("bucket")
    joined = throughput.join(F.broadcast(base), ["source", "queue"], "left")
    joined = joined.join(times.select(*TIMES, "last_time"), list(TIMES), "left")
    held = F.coalesce("held", F.lit(0)) + F.sum(F.col("adds") - F.col("removes")).over(so_far)
    return joined.select(
        "source",
        "queue",
        "bucket",
        F.col("last_index").alias("log_index"),
        F.col("last_time").alias("event_time"),
        F.col("adds").alias("added"),
        F.col("removes").alias("removed"),
        held.alias("depth"),
    )


def keys(lives: DataFrame) -> DataFrame:
    """Return how often each key was added and removed."""
    return lives.groupBy("source", "queue", "key").agg(
        F.count("added_index").alias("adds"), F.count("ended_index").alias("removes")
    )


def waiting(lives: DataFrame) -> DataFrame:
    """Return how many tasks of each key wait; ``lives`` are those that do."""
    return lives.groupBy("source", "queue", "key").agg(F.count("*").alias("waiting"))


def sizes(lives: DataFrame) -> DataFrame:
    """Return how many tasks were of which size, in powers of two."""
    low = F.when(F.col("size") == 0, 0).otherwise(
        F.pow(F.lit(2.0), F.floor(F.log2(F.col("size").cast("double")))).cast("long")
    )
    return lives.groupBy("source", "queue", low.cast("long").alias("size_low")).agg(
        F.count("*").alias("adds"), F.sum("size").alias("bytes")
    )


# --- what is wrong -------------------------------------------------------------------------------


def damage(entries: DataFrame) -> DataFrame:
    """Return what is lost or damaged."""
    return entries.where(F.col("severity").isin(Severity.LOST, Severity.DAMAGED)).select(
        "source", "family", "path", "offset", "size", "log_index", "status", "reason"
    )


SPANS_SCHEMA: Final = (
    "source string, path string, first_index long, last_index long, first_term long, last_term long"
)
SPAN: Final = tuple(field.split()[0] for field in SPANS_SCHEMA.split(", "))


def spans(entries: DataFrame) -> DataFrame:
    """Return for each log file the indexes of its first and last entry, and their terms."""
    return survey(entries).where("first_index is not null").select(*SPAN)


def survey(entries: DataFrame) -> DataFrame:
    """Return for each file what it spans, its last whole entry and its first damaged one; null where it has none."""
    is_entry, is_ok = F.col("kind") == "entry", F.col("status") == "ok"
    is_damage = F.col("kind").isin("entry", "damage") & ~is_ok
    index, good = F.when(is_entry, F.col("log_index")), F.when(is_entry & is_ok, F.col("log_index"))
    return entries.groupBy("source", "path").agg(
        F.min(index).alias("first_index"),
        F.max(index).alias("last_index"),
        F.min_by("term", index).alias("first_term"),
        F.max_by("term", index).alias("last_term"),
        F.max(good).alias("last_good"),
        F.max_by("term", good).alias("good_term"),
        F.min(F.when(is_damage, F.col("log_index"))).alias("bad"),
    )


def gaps(spans: DataFrame, starts: DataFrame) -> DataFrame:
    """Return where entries are missing, stand twice, or terms fall between two files of a log.

    ``starts`` has, for each source, the index at which its log must begin at the latest (``start``).
    """
    in_order = Window.partitionBy("source").orderBy("first_index", "path")
    before = F.lag("last_index").over(in_order) + 1
    term_before = F.lag("last_term").over(in_order)
    told = (
        spans.withColumn("expected", before)
        .withColumn("term_before", term_before)
        .join(F.broadcast(starts), "source", "left")
        .withColumn(
            "expected",
            F.coalesce("expected", F.least(F.coalesce("start", "first_index"), "first_index")),
        )
    )
    reason = (
        F.when(
            F.col("expected") < F.col("first_index"),
            F.format_string(
                "entries %d to %d are missing before this file",
                "expected",
                F.col("first_index") - 1,
            ),
        )
        .when(
            F.col("expected") > F.col("first_index"),
            F.format_string(
                "entries %d to %d stand in the file before this one too",
                "first_index",
                F.col("expected") - 1,
            ),
        )
        .when(
            F.col("first_term") < F.col("term_before"),
            F.format_string(
                "term %d follows term %d of the file before", "first_term", "term_before"
            ),
        )
    )
    return (
        told.withColumn("reason", reason)
        .where("reason is not null")
        .select("source", "path", "expected", F.col("first_index").alias("found"), "reason")
    )


CONTENT: Final = ("op", "queue", "key", "task_id", "payload", "properties", "event_time")
"""The whole of a record: no bit of an entry changes without one of these (tests/spark/test_whole_records.py)."""


def divergence(entries: DataFrame, ends: DataFrame, *, has_ids: bool = False) -> DataFrame:
    """Return entries in which a replica of a log differs from most others, up to the lowest index that all have committed.

    ``entries`` are of those replicas alone; ``ends`` has for each source the last index that counts (``end``). With
    ``has_ids`` an entry has a row for each task.
    """
    lowest = ends.agg(F.min("end").alias("lowest"))
    whole = entries.where("kind = 'entry' and status = 'ok' and log_index is not null")
    rows = (
        whole.crossJoin(F.broadcast(lowest))
        .where("log_index <= lowest")
        .select("log_index", "source", "term", *CONTENT, _checksum().alias("checksum"))
    )
    records = _joined(rows) if has_ids else rows
    differing = (
        records.groupBy("log_index")
        .agg(
            F.min("term").alias("low_term"),
            F.max("term").alias("high_term"),
            F.min("checksum").alias("low"),
            F.max("checksum").alias("high"),
        )
        .where("low_term != high_term or low != high")
        .select("log_index")
    )
    return _minority(records.join(F.broadcast(differing), "log_index"))


def _joined(rows: DataFrame) -> DataFrame:
    """Return one row for each entry: the content of its first row, and a checksum over all of them."""
    place = F.struct(F.col("properties")["envelope"].cast("long"), "task_id")
    counted = F.xxhash64(F.bit_xor("checksum"), F.count("*"))
    return (
        rows.groupBy("log_index", "source", "term")
        .agg(F.min_by(F.struct(*CONTENT), place).alias("content"), counted.alias("checksum"))
        .select("log_index", "source", "term", "content.*", "checksum")
    )


def state_divergence(states: DataFrame, sources: Sequence[str], at: int) -> DataFrame:
    """Return the queues and tasks in which a replica differs from most others after entry ``at``.

    ``states`` has for each of the ``sources`` its queues and tasks (``op``), each with a ``place`` that it has in all
    of them. It is costly, so it is read once: all copies of a record come together in one row.
    """
    # Payloads are compared by a number: a row holds those of all replicas.
    payload = F.xxhash64("payload").cast("string").cast("binary")
    records = states.withColumn("payload", F.when(F.col("payload").isNotNull(), payload))
    copy = F.struct("source", _checksum().alias("checksum"), F.struct(*CONTENT).alias("content"))
    grouped = records.groupBy("op", "queue", "place").agg(F.collect_list(copy).alias("copies"))
    every = F.transform(
        F.array(*[F.lit(name) for name in sources]),
        lambda name: F.struct(
            name.alias("source"),
            F.get(F.filter("copies", lambda one: one["source"] == name), F.lit(0)).alias("copy"),
        ),
    )
    checksums = F.array_distinct(F.transform("every", lambda one: one["copy"]["checksum"]))
    differing = grouped.withColumn("every", every).where(F.size(checksums) > 1)
    ranks = F.transform(
        "every",
        lambda one: F.struct(
            (-F.size(F.filter("every", lambda two: _is_alike(one["copy"], two["copy"])))).alias(
                "rank"
            ),
            one["source"].alias("source"),
        ),
    )
    most = F.array_min(ranks)["source"]
    chosen = differing.withColumn("most", most).withColumn(
        "most", F.get(F.filter("every", lambda one: one["source"] == F.col("most")), F.lit(0))
    )
    ones = chosen.withColumn("one", F.explode("every"))
    nothing = F.lit(None).cast("long")
    return _reported(
        ones.select(
            F.lit(at).cast("long").alias("log_index"),
            F.col("one.source").alias("source"),
            nothing.alias("term"),
            "op",
            "queue",
            *[F.col(f"one.copy.content.{name}").alias(name) for name in CONTENT[2:]],
            F.col("one.copy.checksum").alias("checksum"),
            F.struct(
                F.col("most.source").alias("source"),
                nothing.alias("term"),
                F.col("most.copy.checksum").alias("checksum"),
                F.col("most.copy.content").alias("content"),
            ).alias("other"),
        )
    )


def _is_alike(one: Column, other: Column) -> Column:
    return one["checksum"].eqNullSafe(other["checksum"])


def _checksum() -> Column:
    """Return a number that differs if anything in a record does."""
    # A hash passes over nulls, and knows no order of a map.
    properties = F.array_sort(F.map_entries("properties"))
    content = [properties if name == "properties" else F.col(name) for name in CONTENT]
    return F.xxhash64(*[part for one in content for part in (one.isNull(), one)])


def _minority(ones: DataFrame) -> DataFrame:
    """Return those of some entries that are not as most others of the same index are."""
    variants = ones.groupBy("log_index", "term", "checksum").agg(
        F.count("*").alias("count"),
        F.min("source").alias("source"),
        F.min_by(F.struct(*CONTENT), "source").alias("content"),
    )
    # What most of them have is taken for right, and the first of equals: a person decides.
    chosen = variants.groupBy("log_index").agg(
        F.min_by(
            F.struct("source", "term", "checksum", "content"),
            F.struct(-F.col("count"), F.col("source")),
        ).alias("other")
    )
    return _reported(ones.join(chosen, "log_index"))


def _reported(ones: DataFrame) -> DataFrame:
    """Return the rows of records that differ from the ``other`` one that they are compared with."""
    is_same = F.col("term").eqNullSafe(F.col("other.term")) & F.col("checksum").eqNullSafe(
        F.col("other.checksum")
    )
    return ones.where(~is_same).select(
        "log_index",
        "source",
        "queue",
        "term",
        "checksum",
        F.col("other.source").alias("other_source"),
        F.col("other.term").alias("other_term"),
        F.col("other.checksum").alias("other_checksum"),
        _difference().alias("reason"),
    )


def _difference() -> Column:
    """Return what a record is, and in which of its fields it differs from the other one."""
    task_id = F.coalesce("task_id", "other.content.task_id")
    record = (
        F.when(F.col("op") == Op.QUEUE, "the queue")
        .when(F.col("op") == Op.TASK, F.concat_ws(" ", F.lit("task"), task_id))
        .otherwise("the entry")
    )
    fields = ["term", *(name for name in CONTENT if name != "properties")]
    others = {
        name: F.col("other.term" if name == "term" else f"other.content.{name}") for name in fields
    }
    changed = [F.when(~F.col(n).eqNullSafe(other), F.lit(n)) for n, other in others.items()]
    nothing = F.create_map().cast("map<string,string>")
    here = F.coalesce("properties", nothing)
    there = F.coalesce("other.content.properties", nothing)
    named = F.filter(
        F.array_union(F.map_keys(here), F.map_keys(there)),
        lambda name: (
            (name != RECORD) & ~F.element_at(here, name).eqNullSafe(F.element_at(there, name))
        ),
    )
    names = F.concat_ws(", ", *changed, named)
    return (
        F.when(F.col("checksum").isNull(), F.concat(record, F.lit(" is missing")))
        .when(
            F.col("other.checksum").isNull(),
            F.concat(record, F.lit(" is missing in the other source")),
        )
        .otherwise(
            F.concat(
                record, F.lit(" differs in "), F.when(names == "", "its bytes").otherwise(names)
            )
        )
    )
