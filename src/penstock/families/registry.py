"""The registry of families: one line each. Everything that reads files asks it which family a path belongs to."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from penstock.errors import InvalidOption
from penstock.families.family import Family, Files
from penstock.families.options import Operation, Option, Values, table_name

FAMILIES: Final = (
    "penstock",
    "rabbitmq",
    "beats",
    "taskflux",  # last: it takes every path, and names what is wrong with files that no family knows
)
"""The directories below ``penstock.families``, in the order in which they are asked."""

NO_VALUES: Final[Values] = {}


@cache
def families() -> dict[str, Family]:
    """Return the families by name."""
    modules = [import_module(f"penstock.families.{name}.family") for name in FAMILIES]
    return {module.FAMILY.name: module.FAMILY for module in modules}


def options_of(*operations: Operation) -> list[tuple[Family, Option]]:
    """Return the options of operations, each with its family."""
    return [
        (family, option)
        for family in families().values()
        for option in family.options
        if not option.operations.isdisjoint(operations)
    ]


def formats() -> list[str]:
    """Return what a conversion can write."""
    return [name for family in families().values() for name in family.formats]


def open_files(path: Path, operation: Operation, values: Values = NO_VALUES) -> Files:
    """Return the files at a path, for one operation. Raises ``PenstockError``.

    Raises ``InvalidOption`` for a value that files of the family do not have in the operation.
    """
    family = _detect(path)
    # A path that holds nothing is refused first: it has no family whose options could be missed.
    files = family.open(path, values)
    _refuse_foreign(family, operation, values)
    return files


def _detect(path: Path) -> Family:
    return next(family for family in families().values() if family.detect(path))


def _refuse_foreign(family: Family, operation: Operation, values: Values) -> None:
    """Raise ``InvalidOption`` for a value that files of the family do not have in an operation."""
    known = {option.name for option in family.options if operation in option.operations}
    for name in values:
        if name not in known:
            shown = table_name(name) if operation is Operation.TABLES else name
            raise InvalidOption(
                shown, f"it does not apply to these files, of {family.title}; omit it"
            )
