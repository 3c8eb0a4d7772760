"""Directories of generation 4 in a real Spark: the rows of a read without one, and a stream that goes on where it stopped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.tables import read
from support.record_directories import write_directory
from support.record_lives import Entry, Leader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = ("log_index", "op", "queue", "key", "task_id", "payload")


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return Leader(Random(12)).run(400)


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str({name: row[name] for name in COLUMNS}) for row in rows)


def collected(frame: DataFrame) -> Counter[str]:
    rows = [row.asDict() for row in frame.select(*COLUMNS).collect()]
    for row in rows:
        row["payload"] = None if row["payload"] is None else bytes(row["payload"])
    return counted(rows)


def test_spark_reads_the_rows_of_a_read_without_it(
    spark: SparkSession, tmp_path: Path, entries: list[Entry]
) -> None:
    node = write_directory(tmp_path / "node", entries, segment_size=9000, snapshots=[100])
    for table in ("entries", "changes"):
        frame = spark.read.format("penstock").option("table", table).load(str(node))
        assert collected(frame) == counted(read(node, table).read_all().to_pylist())
    tasks = spark.read.format("penstock").option("table", "tasks").option("at", 200).load(str(node))
    expected = read(node, at=200).read_all().to_pylist()
    names = ("queue", "key", "task_id", "payload_text", "event_time")
    found = [row["task_id"] for row in tasks.select(*names).collect()]
    assert Counter(found) == Counter(row["task_id"] for row in expected)


def test_a_stream_delivers_each_committed_entry_once(
    spark: SparkSession, tmp_path: Path, entries: list[Entry]
) -> None:
    node, out = tmp_path / "node", tmp_path / "out"

    def stream() -> None:
        frame = spark.readStream.format("penstock").option("maxEntriesPerTrigger", 90)
        query = (
            frame.load(str(node))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination()

    write_directory(node, entries[:300], segment_size=9000, commit_floor=250)
    stream()
    found = spark.read.parquet(str(out))
    whole = read(node, "entries").read_all().to_pylist()
    committed = [row for row in whole if row["kind"] == "entry" and row["log_index"] <= 250]
    assert collected(found) == counted(committed)
    node.rename(tmp_path / "before")
    write_directory(node, entries, segment_size=9000)
    stream()
    whole = read(node, "entries").read_all().to_pylist()
    assert collected(spark.read.parquet(str(out))) == counted(
        [row for row in whole if row["kind"] == "entry"]
    )
