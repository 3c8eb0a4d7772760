"""Following a log of generation 4: by index and term, no further than the commit floor, over segments and removals."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import Compacted, CorruptData, PathRefused
from penstock.families.options import Operation
from penstock.families.registry import families, open_files
from penstock.families.tables import parse_options
from support.record_directories import write_directory
from support.record_lives import Entry, Leader
from support.record_rows import said_rows


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return Leader(Random(9)).run(300)


def follow(path: Path, **more: str) -> Any:
    options = parse_options({"path": str(path), "table": "entries", **more})
    return options, open_files(path, Operation.TABLES, {}).follow(options)


def rows_between(options: Any, follower: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    family = families()["penstock"]
    columns = ["log_index", "op", "task_id"]
    return [
        row
        for split in follower.plan(start, end)
        for batch in family.read(split, options, columns)
        for row in batch.to_pylist()
    ]


def said(entries: list[Entry], first: int, last: int) -> list[dict[str, Any]]:
    rows = [row for row in said_rows(entries) if first <= row["log_index"] <= last]
    return [{name: row[name] for name in ("log_index", "op", "task_id")} for row in rows]


def test_a_stream_stops_at_the_commit_floor_and_goes_on_from_its_offset(
    tmp_path: Path, entries: list[Entry]
) -> None:
    node = write_directory(
        tmp_path / "node", entries[:200], segment_size=4000, commit_floor=150, zeros=512
    )
    options, follower = follow(node)
    start = follower.beginning()
    end = follower.latest(start, rows_max=None, target=None)
    assert end == {"index": 150, "term": entries[149][0].term}
    assert rows_between(options, follower, start, end) == said(entries, 1, 150)
    assert follower.latest(end, rows_max=None, target=None) == end
    follower.close()
    node.rename(tmp_path / "before")
    write_directory(node, entries, segment_size=4000)
    options, follower = follow(node)
    later = follower.latest(end, rows_max=70, target=None)
    assert later["index"] == 220
    assert rows_between(options, follower, end, later) == said(entries, 151, 220)


def test_another_log_under_the_same_name_is_refused(tmp_path: Path, entries: list[Entry]) -> None:
    node = write_directory(tmp_path / "node", entries, segment_size=4000)
    _, follower = follow(node)
    with pytest.raises(CorruptData):
        follower.latest({"index": 100, "term": 99}, rows_max=None, target=None)


def test_entries_that_were_removed_fail_the_stream_or_are_passed_over(
    tmp_path: Path, entries: list[Entry]
) -> None:
    node = write_directory(
        tmp_path / "node", entries, segment_size=4000, first=120, snapshots=[130]
    )
    _, follower = follow(node)
    with pytest.raises(Compacted):
        follower.latest(follower.beginning(), rows_max=None, target=None)
    options, follower = follow(node, failOnDataLoss="false")
    start = follower.beginning()
    end = follower.latest(start, rows_max=None, target=None)
    assert rows_between(options, follower, start, end) == said(entries, 120, 300)


def test_damage_among_committed_entries_fails_the_stream(
    tmp_path: Path, entries: list[Entry]
) -> None:
    node = write_directory(tmp_path / "node", entries, segment_size=4000)
    options, follower = follow(node)
    start = follower.beginning()
    end = follower.latest(start, rows_max=None, target=None)
    plans = follower.plan(start, end)
    last = Path(plans[-1].plan.path)
    data = bytearray(last.read_bytes())
    data[plans[-1].plan.stop - 8] ^= 1
    last.write_bytes(data)
    with pytest.raises(CorruptData):
        rows_between(options, follower, start, end)


def test_snapshots_are_no_stream(tmp_path: Path, entries: list[Entry]) -> None:
    node = write_directory(tmp_path / "node", entries, snapshots=[100])
    with pytest.raises(PathRefused):
        follow(node / "snapshots")
