"""Queues with all that they were created with: policies, and what our own entries and notes say beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.tables import Op
from penstock.formats.taskflux import notes
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, NO_OPTIONS, policy_fields
from penstock.spark.pipeline.beginning import notes_of
from penstock.spark.pipeline.moment import Moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fields = dict[str, str]


def queue_records(
    spark: SparkSession, found: Moment, *, has_ids: bool
) -> dict[str, dict[str, str]]:
    """Return for each queue of a moment its policy and options, and with ``has_ids`` the last id that it gave out."""
    lives = found.lives.collect()
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


_OPTIONS = ("lease_ms", "attempts_max", "dead_letter")


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
