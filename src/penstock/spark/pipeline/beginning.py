"""What a history begins with: nothing but the default queue, or what a snapshot holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.sources import Source
from penstock.formats.taskflux import notes
from penstock.model import NO_LIMITS, Implementation, KeyRange, Policy
from penstock.spark.pipeline.histories import (
    LIVES_SCHEMA,
    OPEN_SCHEMA,
    State,
    arrow_schema,
    small_table,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NOTES_SCHEMA: Final = (
    "source string, offset long, kind string, number long, name string, last_id long,"
    " next_number long, lease_ms long, attempts_max long, dead_letter long, ids array<long>,"
    " attempts array<long>"
)
NEXT_NUMBERS_SCHEMA: Final = "source string, next_number long"


class Beginning(NamedTuple):
    """A state, and for each source the number that its next queue gets."""

    state: State
    next_numbers: DataFrame


def from_nothing(spark: SparkSession, sources: Sequence[Source]) -> Beginning:
    """Return the state before the first entry: the default queue, which always exists."""
    lives = [(source.name, "", -1, None, 0, 0, None) for source in sources]
    return Beginning(
        State(small_table(spark, [], OPEN_SCHEMA), small_table(spark, lives, LIVES_SCHEMA)),
        small_table(spark, [(source.name, 1) for source in sources], NEXT_NUMBERS_SCHEMA),
    )


def from_snapshots(entries: DataFrame) -> Beginning:
    """Return the state that snapshots hold; ``entries`` are those of the sources that begin with one."""
    told = notes_of(entries.where((F.col("kind") == "task") & (F.col("queue") == notes.QUEUE)))
    stored = entries.where(F.col("queue") != notes.QUEUE)
    lives = _lives(stored.where("kind = 'queue'"), told)
    return Beginning(
        State(_open(stored.where("kind = 'task'"), lives, told), lives), _next_numbers(lives, told)
    )


def _lives(heads: DataFrame, told: DataFrame) -> DataFrame:
    in_file = Window.partitionBy("source").orderBy(
        F.when(F.col("queue") == "", 0).otherwise(1), "offset"
    )
    count = F.col("properties")["count"].cast("long")
    plain = heads.select(
        "source",
        "queue",
        (F.row_number().over(in_file) - 1).cast("long").alias("place"),
        F.coalesce(F.col("properties")["last_id"].cast("long"), count).alias("stored_id"),
        F.map_filter("properties", lambda name, _: ~name.isin("count", "last_id")).alias("policy"),
    )
    noted = told.where("kind = 'queue'").select(
        "source", F.col("name").alias("queue"), "number", "last_id"
    )
    return plain.join(F.broadcast(noted), ["source", "queue"], "left").select(
        "source",
        "queue",
        F.lit(-1).cast("long").alias("born"),
        F.lit(None).cast("long").alias("until"),
        F.coalesce("number", "place").alias("number"),
        F.greatest(F.coalesce("last_id", "stored_id"), "stored_id").alias("last_id"),
        "policy",
    )


def _next_numbers(lives: DataFrame, told: DataFrame) -> DataFrame:
    noted = told.where("kind = 'header'").select("source", "next_number")
    counted = lives.groupBy("source").agg((F.max("number") + 1).alias("counted"))
    joined = counted.join(F.broadcast(noted), "source", "left")
    return joined.select("source", F.coalesce("next_number", "counted").alias("next_number"))


def _open(tasks: DataFrame, lives: DataFrame, told: DataFrame) -> DataFrame:
    """Return a snapshot's tasks; where it stores no ids, those that our notes give them, or their places."""
    numbered = tasks.join(
        F.broadcast(lives.select("source", "queue", "number")), ["source", "queue"]
    )
    ids = told.where("kind = 'ids'").select("source", "number", "offset", F.posexplode("ids"))
    in_order = Window.partitionBy("source", "number").orderBy("offset", "pos")
    named = ids.select(
        "source",
        "number",
        F.row_number().over(in_order).cast("long").alias("task_id"),
        F.col("col").alias("named_id"),
    )
    attempts = told.where("kind = 'tasks'").select(
        "source", "number", F.explode(F.arrays_zip("ids", "attempts")).alias("row")
    )
    failed = attempts.select(
        "source",
        "number",
        F.col("row.ids").alias("task_id"),
        F.col("row.attempts").alias("noted"),
    )
    with_ids = (
        numbered.join(named, ["source", "number", "task_id"], "left")
        .withColumn("task_id", F.coalesce("named_id", "task_id"))
        .join(failed, ["source", "number", "task_id"], "left")
    )
    return with_ids.select(
        "source",
        "queue",
        F.lit(-1).cast("long").alias("born"),
        "task_id",
        "key",
        "payload",
        F.length("payload").cast("long").alias("size"),
        F.lit(None).cast("long").alias("added_index"),
        F.coalesce("noted", F.lit(0)).cast("long").alias("failed"),
    )


def notes_of(rows: DataFrame) -> DataFrame:
    """Return what the notes in snapshots say; a few of them stand for many tasks."""
    # Only the driver can parse a schema in Spark's words.
    decode = partial(_decode_notes, schema=arrow_schema(NOTES_SCHEMA))
    return rows.select("source", "offset", "key", "payload").mapInArrow(decode, NOTES_SCHEMA)


def _decode_notes(
    batches: Iterator[pa.RecordBatch], *, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        rows = [
            {"source": row["source"], "offset": row["offset"]}
            | _fields(notes.decode_note(row["key"], row["payload"]))
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _fields(note: notes.Note) -> dict[str, Any]:
    match note:
        case notes.Header():
            return {"kind": "header", "next_number": note.next_number}
        case notes.QueueNote():
            names = ("number", "name", "last_id", "lease_ms", "attempts_max", "dead_letter")
            return {"kind": "queue"} | {name: getattr(note, name) for name in names}
        case notes.Ids():
            return {"kind": "ids", "number": note.queue, "ids": list(note.ids)}
        case notes.TaskNotes():
            return {
                "kind": "tasks",
                "number": note.queue,
                "ids": [row[0] for row in note.rows],
                "attempts": [row[1] for row in note.rows],
            }
        case _:
            return {"kind": "producer"}


def policy_of(fields: Mapping[str, str] | None) -> Policy:
    """Return the policy that a queue's properties spell."""
    if not fields:
        return NO_LIMITS
    keys = json.loads(fields["keys"]) if "keys" in fields else None
    return Policy(
        implementation=Implementation[fields.get("implementation", "heap").upper()],
        size_max=int(fields["size_max"]) if "size_max" in fields else None,
        payload_size_max=int(fields["payload_size_max"]) if "payload_size_max" in fields else None,
        keys=None if keys is None else KeyRange(lowest=keys[0], highest=keys[1]),
    )
