"""Time travel, snapshots of a moment, migration and audit, each against what a replay in order says."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import Compacted, CorruptData, OutOfRange
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.replay import replay
from penstock.formats.taskflux.generation import Generation
from penstock.spark.pipeline.audit import audit
from penstock.spark.pipeline.migrate import to_node
from penstock.spark.pipeline.moment import Moment, moment
from penstock.spark.pipeline.snapshot import write_snapshot
from spark.pipeline.test_run import live
from support.at_rest import identified
from support.directories import EXPECTED, build
from support.node_process import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def tasks_of(found: Moment) -> list[tuple[str, int, int, bytes]]:
    rows = found.tasks.orderBy("queue", "key", "task_id").collect()
    return [(r["queue"], r["task_id"], r["key"], bytes(r["payload"])) for r in rows]


@pytest.mark.parametrize("generation", [pytest.param(2, marks=pytest.mark.heavy), 3])
def test_a_moment_is_what_a_replay_up_to_it_gives(
    spark: SparkSession, tmp_path: Path, generation: int
) -> None:
    path = tmp_path / "node"
    live(path, Random(generation), 60, generation=generation)
    last = replay(read_history(resolve(path))).index
    for at in (None, last // 2):
        found = moment(spark, str(path), at)
        assert found.index == (last if at is None else at)
        assert tasks_of(found) == identified(path, at)
    with pytest.raises(OutOfRange, match="beyond the log"):
        moment(spark, str(path), last + 1)


@pytest.mark.heavy
def test_what_a_snapshot_covers_or_damage_hides_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = build(tmp_path / "node", Generation.TWO, snapshot_after=4)
    with pytest.raises(Compacted, match="--at 4 or later"):
        moment(spark, str(path), 2)
    whole = build(tmp_path / "whole", Generation.THREE)
    (segment,) = (whole / "data" / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"third")] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptData, match="--at 2"):
        moment(spark, str(whole))
    assert len(tasks_of(moment(spark, str(whole), 2))) == 2


@pytest.mark.parametrize(
    "generation", [pytest.param(Generation.TWO, marks=pytest.mark.heavy), Generation.THREE]
)
def test_a_node_starts_from_the_snapshot_of_a_moment(
    spark: SparkSession, tmp_path: Path, generation: Generation
) -> None:
    source, out = tmp_path / "node", tmp_path / "then"
    live(source, Random(7), 60, generation=3)
    at = replay(read_history(resolve(source))).index * 2 // 3
    found = moment(spark, str(source), at)
    queues, count = write_snapshot(found, out, generation=generation)
    expected = identified(source, at)
    assert count == len(expected)
    state = replay(read_history(resolve(out)))
    assert (state.index, len(state.queues.by_name)) == (at, queues)
    written = [(n, k, p) for n, _, k, p in identified(out)]
    assert written == [(name, key, payload) for name, _, key, payload in expected]
    if generation is Generation.THREE:
        assert identified(out) == expected
    assert not list(tmp_path.glob(".then*")), "nothing is left beside it"
    with penstock.open(out, generation=int(generation)) as node:
        counts = {stat.name: stat.count for stat in node.queues()}
    assert sum(counts.values()) == count


@pytest.mark.heavy
def test_a_migration_that_is_repeated_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source = build(tmp_path / "old", Generation.TWO)
    found = moment(spark, str(source))
    with NodeProcess(tmp_path / "new").wait_listening() as node:
        for _ in range(2):
            assert to_node(found, node.address, lambda _: None) == (3, 5)
        with penstock.connect(node.address) as client:
            held = [
                (stat.name, task.key, task.payload)
                for stat in sorted(client.queues(), key=lambda stat: stat.name)
                for task in client.peek(stat.name, 10)
            ]
            limits = {str(stat.name): stat.policy.size_max for stat in client.queues()}
    assert held == EXPECTED
    assert limits["orders"] == 100


@pytest.mark.heavy
def test_an_audit_finds_damage_gaps_and_replicas_that_differ(
    spark: SparkSession, tmp_path: Path
) -> None:
    good = build(tmp_path / "one", Generation.THREE)
    copies = [tmp_path / name for name in ("two", "three")]
    for copy in copies:
        shutil.copytree(good, copy)
    alike = audit(spark, [str(good), *map(str, copies)])
    assert alike.compared == 8
    assert alike.damage.count() == alike.gaps.count() == alike.divergence.count() == 0

    live(copies[0], Random(1), 5, generation=3)
    (segment,) = (copies[1] / "data" / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"second")] ^= 1
    segment.write_bytes(data)
    # As if another leader had written the last entry: the same index, another task.
    other = build(tmp_path / "four", Generation.THREE)
    (segment,) = (other / "data" / "log").glob("*.log")
    rewritten = segment.read_bytes().replace(b"default", b"another")
    segment.write_bytes(_with_checksums(rewritten))
    found = audit(spark, [str(good), *map(str, copies), str(other)])
    (damage,) = found.damage.collect()
    assert (Path(damage["source"]).name, damage["log_index"], damage["status"]) == (
        "three", 2, "bad-checksum"
    )  # fmt: skip
    (differing,) = found.divergence.collect()
    assert (differing["log_index"], differing["reason"]) == (7, "the entry differs in payload")
    assert Path(differing["source"]).name == "four"


def _with_checksums(log: bytes) -> bytes:
    """Return a log whose records match their checksums again."""
    from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
    from penstock.formats.taskflux.log_scan import scan

    layout = LogLayout.THREE
    made = encode_header(layout)
    for piece in scan(log, layout, start=layout.header_size):
        start = piece.offset + layout.record_header.size
        payload = log[start : start + piece.length]
        made += encode_record(layout, term=piece.term, payload=payload)
    return made + bytes(len(log) - len(made))
