"""Runs that overlap, and files that another process changes under a run: the tables are exact, or there are none."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import CorruptData, DirectoryLocked
from penstock.spark.pipeline.run import Outcome, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WAIT_S = 240


def make_node(path: Path, count: int) -> None:
    with penstock.open(path) as node:
        node.create_queue("orders")
        node.enqueue_many("orders", [b"order %d" % number for number in range(count)])


def row_counts(spark: SparkSession, outcome: Outcome) -> dict[str, int]:
    return {name: spark.read.parquet(outcome.run.table(name)).count() for name in outcome.rows}


def test_two_runs_at_once_do_not_publish_doubled_rows(spark: SparkSession, tmp_path: Path) -> None:
    source, out = tmp_path / "node", tmp_path / "out"
    make_node(source, 5)
    wrote, done = threading.Event(), threading.Event()

    def second() -> None:
        def say(words: str) -> None:
            if words.startswith("entries"):
                wrote.set()
                done.wait(WAIT_S)

        try:
            run(spark, [str(source)], out, say=say)
        finally:
            wrote.set()

    with ThreadPoolExecutor() as pool:

        def say(words: str) -> None:
            if words.startswith("spans"):
                futures.append(pool.submit(second))
                wrote.wait(WAIT_S)

        futures: list[Future[None]] = []
        try:
            first = run(spark, [str(source)], out, say=say)
        finally:
            done.set()
        refused = futures[0].exception(WAIT_S)
    assert (first.rows["tasks"], first.rows["lifecycles"]) == (5, 5)
    assert first.rows["entries"] == spark.read.format("penstock").load(str(source)).count()
    assert row_counts(spark, first) == first.rows
    assert isinstance(refused, DirectoryLocked)


def test_rows_that_another_process_doubles_under_a_run_are_not_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, out = tmp_path / "node", tmp_path / "out"
    make_node(source, 5)

    def say(words: str) -> None:
        if words.startswith("changes"):
            (staging,) = (out / "runs").glob("*.staging")
            (file, *_) = (staging / "entries").rglob("*.parquet")
            shutil.copyfile(file, file.with_stem("doubled"))

    with pytest.raises(CorruptData) as caught:
        run(spark, [str(source)], out, say=say)
    assert caught.value.path is not None
    assert caught.value.path.endswith("/entries")
    assert not (out / "current").exists()
