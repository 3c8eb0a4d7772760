"""Variants that programs of TaskFlux wrote, as tables: the rows of the tools."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest

from penstock.cli.table_flags import chosen_paths
from penstock.errors import PathRefused
from penstock.formats.taskflux.log import LogLayout, encode_header
from support.command import penstock
from support.node_files import write_files
from support.spark_tables import read_rows
from support.taskflux_golden import Case
from support.taskflux_vectors import SNAPSHOT_1D

CASES = [
    "1b-policies-equal-keys",
    "1b-policies-queues",
    "2-late-leader-snapshot",
    "2-mixed-policies",
    "2-mixed-snapshot",
]


def table(root: Path) -> list[tuple[str, int, bytes]]:
    rows = read_rows(root, table="tasks")
    return [(row["queue"], row["key"], row["payload"]) for row in rows]


def listed(root: Path) -> list[tuple[str, int, bytes]]:
    done = penstock("tasks", root)
    assert done.code == 0
    return [(row["queue"], row["key"], base64.b64decode(row["payload"])) for row in done.rows]


@pytest.mark.parametrize("name", CASES)
def test_the_tasks_of_each_variant_are_those_of_the_tools(tmp_path: Path, name: str) -> None:
    root = Case(name).unpack(tmp_path)
    assert table(root) == listed(root)
    rows = read_rows(root, table="entries")
    assert {row["status"] for row in rows} == {"ok"}


def test_a_creation_of_1d_is_an_entry_with_its_policy(tmp_path: Path) -> None:
    root = Case("1b-policies-queues").unpack(tmp_path)
    created = [row for row in read_rows(root, table="entries") if row["op"] == "create"]
    assert [row["queue"] for row in created] == ["orders", "two", "gone", "gone"]
    assert dict(created[0]["properties"])["size_max"] == "100"


def test_a_snapshot_of_1d_is_read_with_its_limits(tmp_path: Path) -> None:
    log = encode_header(LogLayout.ONE_D)
    root = write_files(
        tmp_path, {"consensus/raft.log": log, "consensus/raft.snapshot": SNAPSHOT_1D}
    )
    assert table(root) == listed(root) == [("orders", -1, b""), ("orders", 5, b"hi")]
    rows = [row for row in read_rows(root, table="entries") if row["kind"] == "queue"]
    assert dict(rows[1]["properties"])["keys"] == "[-10, 10]"
    # Places of queues and tasks cover the file behind its header, without gaps.
    places = [row for row in read_rows(root, table="entries") if row["kind"] in ("queue", "task")]
    at = 12
    for row in sorted(places, key=lambda row: row["offset"]):
        assert row["offset"] == at
        at += row["size"]
    assert at == len(SNAPSHOT_1D)


def test_two_sets_of_files_with_tasks_are_refused_by_name(tmp_path: Path) -> None:
    root = Case("2-mixed-killed").unpack(tmp_path / "root")
    other = Case("3-policies").unpack(tmp_path / "other")
    shutil.copytree(other / "data", root / "data")
    with pytest.raises(PathRefused) as caught:
        table(root)
    assert str(root / "consensus") in str(caught.value)
    done = penstock("pipeline", "tasks", "--in", root)
    assert done.code == 1
    assert str(root / "consensus") in done.err
    for below in ("consensus", "data"):
        assert table(root / below) == listed(root / below)


def test_a_pipeline_takes_the_generation_that_is_asked_for(tmp_path: Path) -> None:
    root = Case("2-mixed-killed").unpack(tmp_path / "root")
    other = Case("3-policies").unpack(tmp_path / "other")
    shutil.copytree(other / "data", root / "data")
    assert chosen_paths([str(root)], {"generation": 2}) == [str(root / "consensus")]
    assert chosen_paths([str(root)], {"generation": 3}) == [str(root / "data")]
    with pytest.raises(PathRefused):
        chosen_paths([str(root)], {"generation": 1})


def test_a_pipeline_never_takes_the_other_of_two_sets_in_one_directory(tmp_path: Path) -> None:
    root = Case("2-late-host").unpack(tmp_path)
    segment = encode_header(LogLayout.THREE) + bytes(64)
    write_files(root, {f"data/log/{0:019d}.log": segment})
    assert table(root) == listed(root) != []
    assert chosen_paths([str(root)], {"generation": 3}) == [str(root / "data" / "log")]
    assert table(root / "data" / "log") == []
    with pytest.raises(PathRefused):
        chosen_paths([str(root)], {"generation": 2})


def test_tables_never_hold_overwritten_tasks_and_name_the_bytes_harmless(tmp_path: Path) -> None:
    for name in ("2-overwrite-shorter", "2-clear-then-append", "3-overwritten"):
        root = Case(name).unpack(tmp_path / name)
        assert table(root) == listed(root)
        rows = [row for row in read_rows(root, table="entries") if row["status"] != "ok"]
        assert [(row["status"], row["severity"]) for row in rows] == [("stale", "harmless")]
