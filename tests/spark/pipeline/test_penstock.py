"""The pipeline over directories of generation 4 against a naive account: lifecycles, waits, depth, in full and in parts."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.families.options import LogTime
from penstock.formats.taskflux.generation import Generation
from penstock.spark.pipeline.audit import audit
from penstock.spark.pipeline.migrate import to_directory
from penstock.spark.pipeline.moment import moment
from penstock.spark.pipeline.run import Outcome, run
from penstock.spark.pipeline.tables import BUCKET
from penstock.tables import read
from support.record_directories import write_directory
from support.record_lives import Entry, Leader, NaiveLives, NaiveTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SEED = 4
ENTRIES = 1500


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return Leader(Random(SEED)).run(ENTRIES)


def account(entries: list[Entry]) -> NaiveLives:
    found = NaiveLives()
    for stamp, change in entries:
        found.apply(stamp, change)
    return found


def rows(spark: SparkSession, outcome: Outcome, name: str) -> list[dict[str, Any]]:
    table = spark.read.parquet(outcome.run.table(name))
    return [row.asDict() for row in table.drop("by_source", "by_queue", "part", "state").collect()]


def seconds(task: NaiveTask) -> float | None:
    return None if task.ended_ms is None else (task.ended_ms - task.added_ms) / 1000


def ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


def expected(task: NaiveTask) -> tuple[object, ...]:
    """Say what a row of ``lifecycles`` must be."""
    waited = None if task.ended_index is None else task.ended_index - task.added_index
    is_acked = task.end == "removed" and task.reason == "acked"
    return (
        task.queue, task.born, task.id, task.key, len(task.payload), task.added_index, task.ended_index,
        task.end, task.reason, waited, seconds(task), task.failed + is_acked, task.added_ms, task.ended_ms,
        *task.first,
    )  # fmt: skip


def found(row: dict[str, Any]) -> tuple[object, ...]:
    names = (
        "queue", "born", "task_id", "key", "size", "added_index", "ended_index", "end", "reason",
        "waited", "seconds", "deliveries",
    )  # fmt: skip
    times = (ms(row["added_time"]), ms(row["ended_time"]))
    return (*(row[name] for name in names), *times, row["first_queue_id"], row["first_id"])


def ordered(values: Any) -> list[tuple[object, ...]]:
    return sorted(values, key=str)


def held(known: NaiveLives) -> list[tuple[object, ...]]:
    alive = known.alive.values()
    return ordered((task.queue, task.id, task.key, task.payload, task.failed) for task in alive)


def check(spark: SparkSession, outcome: Outcome, known: NaiveLives, last: int) -> None:
    """Hold the tables of a run to the account."""
    assert outcome.rows["damage"] == outcome.rows["gaps"] == 0
    cycles = rows(spark, outcome, "lifecycles")
    assert ordered(map(found, cycles)) == ordered(map(expected, known.tasks))
    waiting = [
        (row["queue"], row["task_id"], row["key"], bytes(row["payload"]), row["failed"])
        for row in rows(spark, outcome, "tasks")
    ]
    assert ordered(waiting) == held(known)
    depth = {(row["queue"], row["bucket"]): row["depth"] for row in rows(spark, outcome, "depth")}
    for (queue, bucket), count in depth.items():
        end = min((bucket + 1) * BUCKET - 1, last)
        assert count == sum(
            task.queue == queue
            and task.added_index <= end
            and (task.ended_index is None or task.ended_index > end)
            for task in known.tasks
        )
    adds = Counter((task.queue, task.added_key) for task in known.tasks)
    removes = Counter((task.queue, task.key) for task in known.tasks if task.end is not None)
    for row in rows(spark, outcome, "keys"):
        place = row["queue"], row["key"]
        assert (row["adds"], row["removes"]) == (adds[place], removes[place])


def test_tables_are_those_of_a_naive_account_and_parts_add_up(
    spark: SparkSession, tmp_path: Path, entries: list[Entry]
) -> None:
    known = account(entries)
    assert {task.end for task in known.tasks} == {"removed", "moved", "deleted", None}
    node = write_directory(tmp_path / "node", entries, segment_size=30_000)
    full = run(spark, [str(node)], tmp_path / "full", report=True)
    check(spark, full, known, ENTRIES)
    page = (Path(full.run.home) / "report.html").read_text()
    assert "The files hold no times" not in page

    # The same log as it grew: the entries behind the commit floor do not count yet.
    half = ENTRIES // 2
    growing = tmp_path / "growing"
    write_directory(growing / "node", entries[: half + 40], segment_size=30_000, commit_floor=half)
    first = run(spark, [str(growing / "node")], tmp_path / "parts")
    check(spark, first, account(entries[:half]), half)
    (growing / "node").rename(growing / "before")
    write_directory(growing / "node", entries, segment_size=30_000)
    second = run(spark, [str(growing / "node")], tmp_path / "parts", incremental=True)
    assert second.continued == [str(growing / "node")]
    check(spark, second, known, ENTRIES)
    for name in ("lifecycles", "tasks", "depth", "throughput", "keys", "sizes", "lives", "times"):
        assert without_source(rows(spark, second, name)) == without_source(rows(spark, full, name))


def without_source(table: list[dict[str, Any]]) -> list[str]:
    return sorted(
        str({name: value for name, value in row.items() if name != "source"}) for row in table
    )


def test_a_history_begins_with_the_oldest_snapshot_that_the_log_continues(
    spark: SparkSession, tmp_path: Path, entries: list[Entry]
) -> None:
    known, begin = account(entries), 700
    node = write_directory(
        tmp_path / "node", entries, segment_size=30_000, snapshots=[begin, 1200], first=begin - 100
    )
    outcome = run(spark, [str(node)], tmp_path / "out")
    assert outcome.sources[0].begin == begin
    assert outcome.rows["damage"] == outcome.rows["gaps"] == 0
    waiting = [
        (row["queue"], row["task_id"], row["key"], bytes(row["payload"]), row["failed"])
        for row in rows(spark, outcome, "tasks")
    ]
    assert ordered(waiting) == held(known)
    later = [task for task in known.tasks if task.ended_index is None or task.ended_index > begin]
    cycles = rows(spark, outcome, "lifecycles")
    ends = [(row["queue"], row["task_id"], row["ended_index"], row["end"], row["reason"]) for row in cycles]  # fmt: skip
    assert ordered(ends) == ordered(
        (task.queue, task.id, task.ended_index, task.end, task.reason) for task in later
    )
    timed = {(row["queue"], row["task_id"], row["ended_index"]): row["seconds"] for row in cycles}
    assert timed == {(task.queue, task.id, task.ended_index): seconds(task) for task in later}


def test_a_moment_is_an_index_or_a_time(
    spark: SparkSession, tmp_path: Path, entries: list[Entry]
) -> None:
    node = write_directory(tmp_path / "node", entries, segment_size=30_000)
    index = 610
    stamp = entries[index - 1][0]
    last = max(each.index for each, _ in entries if each.time_ms <= stamp.time_ms)
    for at, wanted in ((index, index), (LogTime(stamp.time_ms), last)):
        found = moment(spark, str(node), at)
        assert found.index == wanted
        tasks = [
            (row["queue"], row["task_id"], row["key"], bytes(row["payload"]), row["failed"])
            for row in found.tasks.collect()
        ]
        known = account(entries[:wanted])
        assert ordered(tasks) == held(known)
        lives = {(row["queue"], row["number"], row["last_id"]) for row in found.lives.collect()}
        assert lives == {
            (name, queue_id, known.last_ids[queue_id])
            for queue_id, (name, _) in known.names.items()
        }


def test_a_moment_becomes_a_directory_that_a_node_serves(
    spark: SparkSession, tmp_path: Path, entries: list[Entry]
) -> None:
    some = entries[:200]
    node = write_directory(tmp_path / "node", some)
    queues, tasks = to_directory(moment(spark, str(node)), tmp_path / "out", Generation.THREE)
    known = account(some)
    assert tasks == len(known.alive)
    assert queues >= len(known.names)
    rows = read(tmp_path / "out").read_all().to_pylist()
    assert ordered((row["queue"], row["key"], row["payload"]) for row in rows) == ordered(
        (task.queue, task.key, task.payload) for task in known.alive.values()
    )


def test_replicas_are_compared_by_entry_and_by_state(
    spark: SparkSession, tmp_path: Path, entries: list[Entry]
) -> None:
    some = entries[:300]
    one = write_directory(tmp_path / "one", some)
    same = write_directory(tmp_path / "same", some, segment_size=9000, snapshots=[200], first=150)
    agreed = audit(spark, [str(one), str(same)])
    assert agreed.damage.count() == agreed.gaps.count() == agreed.divergence.count() == 0
    stamp, change = some[-1]
    other = [*some[:-1], (stamp._replace(time_ms=stamp.time_ms + 1), change)]
    late = write_directory(tmp_path / "late", other)
    (row,) = audit(spark, [str(one), str(same), str(late)]).divergence.collect()
    assert (row["log_index"], row["source"]) == (300, str(late))
    assert "event_time" in row["reason"]
