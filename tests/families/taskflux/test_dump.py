"""Rows of a dump stand for every byte between a file's frame, in order and without a gap."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.rows import dump
from support.taskflux_vectors import SNAPSHOTS, SnapshotVector


@pytest.mark.parametrize("vector", SNAPSHOTS, ids=lambda vector: vector.layout.name)
def test_the_rows_of_a_snapshot_follow_each_other_to_its_end(
    tmp_path: Path, vector: SnapshotVector
) -> None:
    layout, path = vector.layout, tmp_path / "raft.snapshot"
    path.write_bytes(vector.data)
    rows = list(dump(resolve(path)))
    assert [row["kind"] for row in rows] == ["queue", "queue", "task", "task"]
    assert rows[0]["offset"] == layout.state_offset + 4 * layout.is_counted
    for row, following in pairwise(rows):
        assert row["offset"] + row["size"] == following["offset"]
    end = rows[-1]["offset"] + rows[-1]["size"]
    assert end == len(vector.data) - 4 * layout.is_checked
