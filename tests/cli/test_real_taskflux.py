"""Directories of real TaskFlux programs: the commands show the tasks that those programs hold, and the damage that is there."""

from __future__ import annotations

from pathlib import Path

from penstock.server.upgrade import upgrade
from penstock.storage.files import OsFiles
from penstock.tools.target import choose
from support.command import penstock
from support.taskflux_golden import Case, by_queue


def listed(root: Path) -> dict[str, list[tuple[int, str]]]:
    found = penstock("tasks", root)
    assert found.code == 0, found.err
    return by_queue(found.rows)


def test_dequeues_of_equal_keys_leave_the_tasks_that_taskflux_has_in_its_order(
    tmp_path: Path,
) -> None:
    """A dequeue of variant 1a names no task: the oldest of equal keys is not the one that clients received."""
    case = Case("1a-equal-keys")
    root = case.unpack(tmp_path / "old")
    assert listed(root) == case.truth
    for to in ("taskflux-1", "taskflux-2", "taskflux-3"):
        assert penstock("convert", root, "--to", to, "--out", tmp_path / to).code == 0
        assert listed(tmp_path / to) == case.truth
    assert penstock("repair", root, "--out", tmp_path / "repaired").code == 0
    assert listed(tmp_path / "repaired") == case.truth


def test_an_upgrade_keeps_the_order_of_delivery(tmp_path: Path) -> None:
    case = Case("1a-equal-keys")
    root = case.unpack(tmp_path)
    layout = choose(OsFiles(), root, None).layout
    assert upgrade(OsFiles(), root, layout) == str(root / "consensus")
    assert (root / "data").is_dir()
    assert listed(root) == case.truth
