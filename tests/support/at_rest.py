"""The tools called as the command line calls them, with their answers as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.families.family import Row
from penstock.families.taskflux import new_directory
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.repair import Repaired, repair
from penstock.families.taskflux.replay import replay
from penstock.families.taskflux.verify import verify
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import OsFile, OsFiles
from penstock.storage.log import LogLimits
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog
from support.naive_queues import Listed


def listed(path: Path, *, at: int | None = None, uncommitted: bool = False) -> Listed:
    """Return what ``penstock tasks`` lists."""
    return [(name, key, payload) for name, _, key, payload in identified(path, at, uncommitted)]


def identified(
    path: Path, at: int | None = None, uncommitted: bool = False
) -> list[tuple[str, int, int, bytes]]:
    """Return what ``penstock tasks`` lists, with ids."""
    state = replay(read_history(resolve(path)), at=at, uncommitted=uncommitted)
    by_name = state.queues.by_name
    return [(str(name), *task) for name in sorted(by_name) for task in by_name[name].in_order()]


def listed_or_refused(path: Path) -> Listed | str:
    """Return what ``penstock tasks`` lists, or the line that it says instead."""
    try:
        return listed(path)
    except PenstockError as error:
        return str(error)


def damage_of(path: Path) -> list[Row]:
    """Return the rows of ``penstock verify`` that are not harmless."""
    return [row for row in verify(resolve(path)) if row["severity"] != "harmless"]


def statuses(path: Path) -> list[str]:
    return [row["status"] for row in damage_of(path)]


def repaired(path: Path, out: Path) -> tuple[list[Row], Repaired]:
    """Repair ``path`` into ``out`` and return the rows of what was left, and the account."""
    result = Repaired()
    return list(repair(resolve(path), out, result)), result


def tree(root: Path) -> dict[str, str]:
    """Return every path below ``root`` with a digest of its content."""
    return {
        str(path.relative_to(root)): sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "/"
        for path in sorted(root.rglob("*"))
    }


def opens(root: Path) -> bool:
    """Open a node's directory as a node does, and say whether it came up without losing anything.

    This may change the directory.
    """
    node = NodeDirectory(QuickFiles(), root, limits=LIMITS)
    cuts = node.cuts
    node.close()
    return not cuts


# --- writing without waiting ---------------------------------------------------------------------

LIMITS = LogLimits(soft=200, hard=400, growth=64)
"""Files so small that a few entries fill several."""


class QuickFile(OsFile):
    """A real file that does not wait for the disk: these tests cut no power."""

    def sync(self) -> None:
        pass


class QuickFiles(OsFiles):
    def open(self, path: Path, *, write: bool, create: bool = False) -> QuickFile:
        return QuickFile(super().open(path, write=write, create=create)._descriptor)

    def sync_directory(self, path: Path) -> None:
        pass


class SmallSingleLog(SingleLog):
    def __init__(self, files: OsFiles, path: Path, snapshot: None) -> None:
        super().__init__(files, path, snapshot, LIMITS)


class SmallSegmentedLog(SegmentedLog):
    def __init__(self, files: OsFiles, path: Path, snapshot: None) -> None:
        super().__init__(files, path, snapshot, LIMITS)


@contextmanager
def quick_writing() -> Iterator[None]:
    """Let repair and conversion write small logs, and not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_directory, "FILES", QuickFiles())
        patch.setattr(new_directory, "SingleLog", SmallSingleLog)
        patch.setattr(new_directory, "SegmentedLog", SmallSegmentedLog)
        yield
