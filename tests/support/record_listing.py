"""What the tools of generation 4 say of a directory, in process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.families.family import Outcome, no_progress
from penstock.families.options import At, Operation, Values
from penstock.families.registry import open_files

Row = dict[str, Any]


def listed(root: Path, at: At | None = None) -> list[Row]:
    """Return the rows of tasks. Raises ``PenstockError``."""
    values: Values = {} if at is None else {"at": at}
    files = open_files(root, Operation.TASKS, values)
    return list(files.tasks(values, Outcome(), no_progress))


def verified(root: Path) -> list[Row]:
    """Return the rows of damage."""
    return list(open_files(root, Operation.VERIFY).verify(Outcome(), no_progress))


def dumped(root: Path) -> list[Row]:
    """Return everything that is stored."""
    return list(open_files(root, Operation.DUMP).dump(Outcome(), no_progress))


def repaired(root: Path, out: Path) -> list[Row]:
    """Repair a directory; return the rows of what was left."""
    return list(open_files(root, Operation.REPAIR).repair(out, {}, Outcome(), no_progress))
