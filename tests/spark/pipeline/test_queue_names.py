"""Every legal name of a queue is a value of the tables, a partition and a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record, segment_name
from penstock.model import NO_LIMITS, AddTask, CreateQueue, Delta, QueueName
from penstock.spark.pipeline.run import run
from support.node_files import write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAMES = [
    "",
    "a" * 255,
    "A" * 255,
    "a" * 254,
    "/" * 255,
    "%" * 61,
    "%" * 60,
    "/",
    "..",
    ".",
    "%",
    "%2F",
    "a=b",
    "a:b*?[{\"'\\^#",
    "mail",
    "Mail",
    "_mail",
    "1",
    "01",
    "1.0",
    "2024-01-01",
    "null",
    "_HIVE_DEFAULT_PARTITION__",
    "__HIVE_DEFAULT_PARTITION__",
]


def node(root: Path) -> Path:
    """Write a directory whose queues have these names and hold a task each."""
    names = [QueueName(name) for name in NAMES]
    changes: list[Delta] = [CreateQueue(queue=name, policy=NO_LIMITS) for name in names if name]
    changes += [AddTask(queue=name, key=0, payload=name.encode()) for name in names]
    layout = LogLayout.THREE
    records = [encode_record(layout, term=1, payload=encode_delta(change)) for change in changes]
    data = encode_header(layout) + b"".join(records)
    return write_files(root, {f"data/log/{segment_name(0)}": data})


def test_a_queue_name_of_255_bytes_broke_the_run(spark: SparkSession, tmp_path: Path) -> None:
    outcome = run(spark, [str(node(tmp_path / "node"))], tmp_path / "out", delta=True)
    tasks = spark.read.parquet(outcome.run.table("tasks"))
    found = tasks.select("queue", "payload", "by_queue").collect()
    assert {row["queue"]: bytes(row["payload"]).decode() for row in found} == {n: n for n in NAMES}
    partitions = {row["queue"]: row["by_queue"] for row in found}
    assert len({*partitions.values()} - {None}) == len(NAMES), "one for each"
    assert partitions["mail"] == "_mail"
    for name in ("mail", "a" * 255):
        rows = tasks.where(tasks.by_queue == partitions[name]).select("queue").collect()
        assert [row["queue"] for row in rows] == [name]
    for place, directories, _ in os.walk(outcome.run.home):
        assert all(len(os.fsencode(name)) <= 255 for name in directories), place
