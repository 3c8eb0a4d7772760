"""Spools through a real Spark: events are queried as what they are, and a stream goes on from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.formats.beats.frame import encode_frames
from penstock.formats.beats.segment import Header
from penstock.spark import with_event
from spark.test_streaming import run
from support.beats_spools import VECTORS, payloads_of, sealed, some_events, spool, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def payloads(count: int, first: int = 0) -> list[bytes]:
    return payloads_of(some_events(count, first=first), Header(2, 0))


def test_events_are_queried_by_variant_and_json(spark: SparkSession, tmp_path: Path) -> None:
    names = ("v0_json", "v1_cbor", "v2_cbor_lz4", "v2_proto_gen3")
    root = spool(tmp_path / "spool", {n: VECTORS[name] for n, name in enumerate(names)}, stored(0, 116, 1))  # fmt: skip
    reader = spark.read.format("penstock").option("table", "tasks")
    found = with_event(reader.load(str(root))).selectExpr(
        "task_id",
        "variant_get(event, '$.fields.message', 'string') as message",
        "get_json_object(properties['fields'], '$.n') as n",
        "variant_get(event, '$.timestamp_ns', 'bigint') as exact",
        "date_format(event_time, 'HH:mm:ss.SSSSSS') as time",
    )
    rows = [tuple(row) for row in found.orderBy("task_id").collect()]
    b = ('t\u014dr\u014d "\u6843" <&>', None, 1704164646000000000, "03:04:06.000000")
    a = ("hello", "42", 1704164645678901234, "03:04:05.678901")
    numbers = [1, 1 << 32, (1 << 32) + 1, 2 << 32, (2 << 32) + 1, 3 << 32]
    assert rows == [(n, *event) for n, event in zip(numbers, (b, a, b, a, b, a), strict=True)]


def test_a_stream_stopped_and_restarted_gives_the_rows_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = spool(tmp_path / "spool", {0: sealed(payloads(30)), 1: sealed(payloads(7, 30), count=0)})
    reader = spark.readStream.format("penstock").option("maxEntriesPerTrigger", 16)
    progress = run(reader.load(str(root)), tmp_path)
    assert [batch["numInputRows"] for batch in progress if batch["numInputRows"]] == [16, 16, 5]
    with (root / "1.seg").open("ab") as file:
        file.write(encode_frames(payloads(9, 37)) + b"torn")
    run(reader.load(str(root)), tmp_path)
    (root / "2.seg").write_bytes(sealed(payloads(4, 46)))
    run(reader.load(str(root)), tmp_path)
    columns = ("path", "offset", "size", "log_index", "payload", "status")
    batch = spark.read.format("penstock").load(str(root)).select(*columns)
    expected = sorted(batch.collect(), key=str)
    assert len(expected) == 51
    streamed = spark.read.parquet(str(tmp_path / "out")).select(*columns)
    assert sorted(streamed.collect(), key=str) == expected
