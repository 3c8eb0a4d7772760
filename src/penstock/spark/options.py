"""What a read asks for, checked on the driver before any job starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from penstock.errors import InvalidValue
from penstock.model import INT64_MAX
from penstock.spark.columns import Table

SPLIT_SIZE: Final = 64 * 2**20
"""Bytes that one task reads: less costs more in tasks than it wins in parallel, more leaves cores idle."""


class Mode(StrEnum):
    """What becomes of damage, as Spark's own sources have it."""

    PERMISSIVE = "PERMISSIVE"  # rows with a status and a reason
    DROPMALFORMED = "DROPMALFORMED"  # left out
    FAILFAST = "FAILFAST"  # the first one fails the job


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read."""

    paths: tuple[str, ...]
    table: Table = Table.ENTRIES
    mode: Mode = Mode.PERMISSIVE
    split_size: int = SPLIT_SIZE
    starting_index: int | None = None  # the first entry wanted
    ending_index: int | None = None  # the last entry wanted
    at: int | None = None  # for the table of tasks: the state after this entry
    uncommitted: bool = False  # count entries that the files do not say are committed
    pushdown: bool = True
    node: str | None = None  # a live node to read from, instead of files
    max_entries: int | None = None  # per trigger of a stream
    fail_on_data_loss: bool = True


T = TypeVar("T")


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def _number(low: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.lstrip("-").isascii() or not value.lstrip("-").isdigit():
            raise ValueError(f"a whole number from {low} on")
        if not low <= int(value) <= INT64_MAX:
            raise ValueError(f"a whole number from {low} on")
        return int(value)

    return parse


def _table(value: str) -> Table:
    try:
        return Table(value.lower())
    except ValueError:
        raise ValueError(f"one of {', '.join(Table)}") from None


def _mode(value: str) -> Mode:
    try:
        return Mode(value.upper())
    except ValueError:
        raise ValueError(f"one of {', '.join(Mode)}") from None


_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}  # fmt: skip


def _size(value: str) -> int:
    digits = value.strip().lower().rstrip("kmgb ")
    unit = value.strip().lower()[len(digits) :].strip()
    if not digits.isascii() or not digits.isdigit() or unit not in _UNITS or not int(digits):
        raise ValueError("a size such as 65536 or 64m")
    return int(digits) * _UNITS[unit]


def _text(value: str) -> str:
    if not value:
        raise ValueError("something")
    return value


# Names as people write them; Spark hands them over in lower case. Each with its field and its parser.
_KNOWN: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "table": ("table", _table),
    "mode": ("mode", _mode),
    "splitSize": ("split_size", _size),
    "startingIndex": ("starting_index", _number(0)),
    "endingIndex": ("ending_index", _number(0)),
    "at": ("at", _number(-1)),
    "uncommitted": ("uncommitted", _boolean),
    "pushdown": ("pushdown", _boolean),
    "node": ("node", _text),
    "maxEntriesPerTrigger": ("max_entries", _number(1)),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
}
_BY_LOWER: Final = {name.lower(): (name, *how) for name, how in _KNOWN.items()}


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return what the options say. Raises ``InvalidValue`` for one that is unknown or means nothing."""
    fields: dict[str, object] = {"paths": _paths(options)}
    for given, value in options.items():
        if given.lower() in ("path", "paths"):
            continue
        known = _BY_LOWER.get(given.lower())
        if known is None:
            raise InvalidValue(f"option {given!r} is unknown; there are {', '.join(_KNOWN)}")
        name, field, parse = known
        try:
            fields[field] = parse(value)
        except ValueError as wanted:
            raise InvalidValue(f"option {name} is {value!r}; it takes {wanted}") from None
    parsed = ReadOptions(**fields)  # type: ignore[arg-type]
    _check(parsed)
    return parsed


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    lower = {name.lower(): value for name, value in options.items()}
    paths = [lower["path"]] if lower.get("path") else []
    if lower.get("paths"):
        try:
            listed = json.loads(lower["paths"])
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(p, str) and p for p in listed):
            raise InvalidValue("option paths is not a JSON list of paths; use load([...])")
        paths += listed
    return tuple(paths)


def _check(options: ReadOptions) -> None:
    if options.node is not None and options.paths:
        raise InvalidValue(
            "a path and option node were given; a read is of files or of a live node"
        )
    if options.node is None and not options.paths:
        raise InvalidValue("no path to read; load(PATH), or option node for a live one")
    first, last = options.starting_index, options.ending_index
    if first is not None and last is not None and first > last:
        raise InvalidValue(
            f"startingIndex {first} is behind endingIndex {last}: nothing is between"
        )
    if options.at is not None and options.table is not Table.TASKS:
        raise InvalidValue(
            "option at is for the table tasks; entries have startingIndex, endingIndex"
        )
    if options.table is Table.TASKS and (first is not None or last is not None):
        raise InvalidValue("the table tasks is the state after an entry: use option at")
