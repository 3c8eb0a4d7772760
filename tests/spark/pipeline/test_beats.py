"""Spools in the pipeline: its tables of what is there, beside those of sources that have a log."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import InvalidValue
from penstock.formats.beats.segment import Header
from penstock.formats.beats.task_event import encode_tasks
from penstock.spark.pipeline.audit import audit
from penstock.spark.pipeline.migrate import to_node
from penstock.spark.pipeline.moment import moment
from penstock.spark.pipeline.run import run
from spark.pipeline.test_run import comparable, live, rows
from support.beats_spools import BAD_PAYLOAD, TORN, payloads_of, sealed, some_events, spool, stored
from support.beats_tables import dumped, waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.heavy]


def spooled(path: Path) -> Path:
    """Write a spool with events and tasks, some acknowledged, one damaged, and a torn tail."""
    events = payloads_of(some_events(6), Header(2, 0))
    ours = encode_tasks("orders", [b"a", b"b", b"c"], [1, 0, 1], timestamp=10**18)
    place = 12 + sum(len(payload) + 12 for payload in events[:2])
    segments: dict[int | str, bytes] = {3: sealed(events), 4: sealed(ours), 5: BAD_PAYLOAD, 6: TORN}
    return spool(path / "filebeat", segments, stored(3, place, 2))


def test_a_run_makes_the_tables_of_a_spool_beside_those_of_a_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, node = spooled(tmp_path), tmp_path / "node"
    live(node, Random(5), 20, generation=3)
    outcome = run(spark, [str(root), str(node)], tmp_path / "out", report=True)

    def of_spool(name: str) -> list[dict[str, Any]]:
        return [row for row in rows(spark, outcome, name) if row["source"] == str(root)]

    assert len(of_spool("entries")) == len(dumped(root))
    names = ("queue", "key", "task_id", "payload")
    found = sorted(tuple(row[name] for name in names) for row in of_spool("tasks"))
    assert found == sorted(tuple(row[name] for name in names) for row in waiting(root))
    assert {row["queue"] for row in of_spool("lives")} == {"filebeat", "orders"}
    keys = {(r["queue"], r["key"]): (r["adds"], r["removes"], r["waiting"]) for r in of_spool("keys")}  # fmt: skip
    assert keys == {("filebeat", 0): (8, 2, 6), ("orders", 0): (1, 0, 1), ("orders", 1): (2, 0, 2)}
    assert sum(row["adds"] for row in of_spool("sizes")) == 11
    assert [(row["path"], row["status"]) for row in of_spool("damage")] == [("5.seg", "bad-checksum")]  # fmt: skip
    assert {row["op"] for row in of_spool("changes")} == {"add", "remove"}
    assert "filebeat" in (outcome.run.home / "report.html").read_text()


def test_what_waits_in_a_spool_is_a_moment_and_is_not_moved(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = str(spooled(tmp_path))
    found = moment(spark, root)
    assert found.tasks.count() == len(waiting(Path(root)))
    with pytest.raises(InvalidValue, match="penstock spool drain"):
        to_node(found, "localhost:1", lambda _: None)
    with pytest.raises(InvalidValue, match=r"has no log, .* omit --at"):
        moment(spark, root, 4)
    with pytest.raises(InvalidValue, match="vhost"):
        moment(spark, root, values={"vhost": "/"})
    with pytest.raises(InvalidValue, match="an audit compares copies of a log"):
        audit(spark, [root])


def test_an_incremental_run_reads_a_spool_anew(spark: SparkSession, tmp_path: Path) -> None:
    root, node = spooled(tmp_path), tmp_path / "node"
    live(node, Random(5), 30, generation=3)
    paths = [str(root), str(node)]
    run(spark, paths, tmp_path / "steps")
    live(node, Random(6), 30, generation=3)
    (root / "7.seg").write_bytes(sealed(payloads_of(some_events(5, first=50), Header(2, 0))))
    (root / "state.dat").write_bytes(stored(4, 0, 0))
    outcome = run(spark, paths, tmp_path / "steps", incremental=True)
    whole = run(spark, paths, tmp_path / "whole")
    assert outcome.continued == [str(node)]
    assert outcome.rows == whole.rows
    for name in ("changes", "tasks", "lives", "keys", "sizes", "damage"):
        assert comparable(spark, outcome, name) == comparable(spark, whole, name)
