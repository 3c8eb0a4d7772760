"""What a history begins with: nothing but the default queue, or what a snapshot holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.sources import Source
from penstock.families.tables import Op
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
    """Return the state before the first entry: the default queue, which always exists where ids are counted."""
    counted = [source.name for source in sources if not source.has_ids]
    lives = [(name, "", -1, None, 0, 0, None, None) for name in counted]
    return Beginning(
        State(small_table(spark, [], OPEN_SCHEMA), small_table(spark, lives, LIVES_SCHEMA)),
        small_table(spark, [(name, 1) for name in counted], NEXT_NUMBERS_SCHEMA),
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
        F.col("properties")["queue_id"].cast("long").alias("queue_id"),
        F.map_filter(
            "properties", lambda name, _: ~name.isin("count", "last_id", "queue_id", "principal_id")
        ).alias("policy"),
    )
    noted = told.where("kind = 'queue'").select(
        "source", F.col("name").alias("queue"), "number", "last_id"
    )
    return plain.join(F.broadcast(noted), ["source", "queue"], "left").select(
        "source",
        "queue",
        F.lit(-1).cast("long").alias("born"),
        F.lit(None).cast("long").alias("until"),
        F.coalesce("queue_id", "number", "place").alias("number"),
        F.greatest(F.coalesce("last_id", "stored_id"), "stored_id").alias("last_id"),
        "policy",
        F.lit(None).cast("timestamp").alias("until_time"),
    )


def _next_numbers(lives: DataFrame, told: DataFrame) -> DataFrame:
    noted = told.where("kind = 'header'").select("source", "next_number")
    counted = lives.groupBy("source").agg((F.max("number") + 1).alias("counted"))
    joined = counted.join(F.broadcast(noted), "source", "left")
    return joined.select("source", F.coalesce("next_number", "counted").alias("next_number"))


def _open(tasks: DataFrame, lives: DataFrame, told: DataFrame) -> DataFrame:
    """Return a snapshot's tasks; where it stores no ids, those that our notes give them, or their places."""
    numbered = tasks.where(F.col("op") == Op.TASK).join(
        F.broadcast(lives.select("source", "queue", "number")), ["source", "queue"]
    )
    is_started = (F.col("op") == Op.DELIVER) & (F.col("properties")["reason"] == "started")
    marked = tasks.where(is_started).select(
        "source", "queue", "task_id", F.lit(True).alias("is_started")
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
        .join(marked, ["source", "queue", "task_id"], "left")
    )
    said = F.col("properties")
    # A task that was moved waits in its queue since then.
    hop = F.timestamp_millis(F.get_json_object(said["origin"], "$.time_ms").cast("long"))
    return with_ids.select(
        "source",
        "queue",
        F.lit(-1).cast("long").alias("born"),
        "task_id",
        "key",
        "payload",
        F.length("payload").cast("long").alias("size"),
        F.when(hop.isNull(), said["entry"].cast("long")).alias("added_index"),
        F.coalesce("noted", said["attempts"].cast("long"), F.lit(0)).cast("long").alias("failed"),
        F.coalesce(hop, "event_time").alias("added_time"),
        said["born_queue_id"].cast("long").alias("first_queue_id"),
        said["born_id"].cast("long").alias("first_id"),
        said["expires"].try_cast("timestamp").alias("expires"),
        F.coalesce("is_started", F.lit(False)).alias("is_started"),
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
    if "policy" in fields:  # generation 4 has it as one object
        told: dict[str, object] = json.loads(fields["policy"])
        fields = {
            name: each if isinstance(each, str) else json.dumps(each) for name, each in told.items()
        }
    keys = json.loads(fields["keys"]) if "keys" in fields else None
    return Policy(
        implementation=Implementation[fields.get("implementation", "heap").upper()],
        size_max=int(fields["size_max"]) if "size_max" in fields else None,
        payload_size_max=int(fields["payload_size_max"]) if "payload_size_max" in fields else None,
        keys=None if keys is None else KeyRange(lowest=int(keys[0]), highest=int(keys[1])),
    )
