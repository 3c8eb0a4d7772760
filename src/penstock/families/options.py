"""The options of a read of tables, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.client.addresses import parse_addresses
from penstock.errors import InvalidOption, InvalidValue
from penstock.families.columns import Op, Table, schema_of
from penstock.families.option import Operation, Option, Values, table_name
from penstock.families.values import (
    parse_boolean,
    parse_columns,
    parse_fields,
    parse_names,
    parse_number,
    parse_size,
    parse_text,
)

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
    queues: frozenset[str] | None = None  # the rows of these alone
    ops: frozenset[str] | None = None
    files: frozenset[str] | None = None  # by their paths, as the rows have them
    own: Values = field(default_factory=dict)  # options of a family
    columns: tuple[str, ...] | None = None  # these alone: Spark tells no source what it needs
    node: str | None = None  # a live node to read from, instead of files
    max_entries: int | None = None  # per trigger of a stream
    fail_on_data_loss: bool = True


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


def _ops(value: str) -> frozenset[str]:
    names = parse_names(value)
    if not names <= set(Op):
        raise ValueError(f"one of {', '.join(Op)}, or a list of them")
    return names


# Names as people write them; Spark hands them over in lower case. Each with its field and its parser.
KNOWN: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "table": ("table", _table),
    "mode": ("mode", _mode),
    "splitSize": ("split_size", parse_size),
    "startingIndex": ("starting_index", parse_number(0)),
    "endingIndex": ("ending_index", parse_number(0)),
    "at": ("at", parse_number(-1)),
    "uncommitted": ("uncommitted", parse_boolean),
    "queues": ("queues", parse_names),
    "ops": ("ops", _ops),
    "files": ("files", parse_names),
    "columns": ("columns", parse_columns),
    "node": ("node", parse_text),
    "maxEntriesPerTrigger": ("max_entries", parse_number(1)),
    "failOnDataLoss": ("fail_on_data_loss", parse_boolean),
}


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return what the options say. Raises ``InvalidValue`` for one that is unknown or means nothing."""
    from penstock.families.registry import options_of  # families import this module

    own = {option.table_name: option for _, option in options_of(Operation.TABLES)}
    known = KNOWN | {name: (name, option.parse) for name, option in own.items()}
    others = {name: value for name, value in options.items() if name.lower() not in PATHS}
    fields = parse_fields(others, known)
    values = {own[name].name: fields.pop(name) for name in own if name in fields}
    # A flag that is off says what its absence says.
    values = {name: value for name, value in values.items() if value is not False}
    parsed = ReadOptions(paths=_paths(options), own=values, **fields)  # type: ignore[arg-type]
    _check(parsed)
    _check_own(parsed, [option for _, option in options_of(Operation.TABLES)])
    return parsed


PATHS: Final = ("path", "paths")


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
    own = schema_of(options.table).names
    for name in options.columns or ():
        if name not in own:
            raise InvalidValue(
                f"option columns names {name!r}; table {options.table} has {', '.join(own)}"
            )
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
    if options.table is Table.TASKS and (options.ops is not None or options.files is not None):
        raise InvalidValue("the table tasks has no ops, and is of all files; use option queues")
    if options.node is not None:
        parse_addresses(options.node)
        if options.own:
            name = table_name(next(iter(options.own)))
            raise InvalidOption(name, "it is for files, and a live node has none; omit it")
        if options.table is Table.TASKS:
            raise InvalidValue(
                "a node's tasks are a table of its files; a live one has entries, changes"
            )


def _check_own(options: ReadOptions, declared: Sequence[Option]) -> None:
    for option in declared:
        if option.name in options.own and option.only_tasks and options.table is not Table.TASKS:
            raise InvalidOption(option.table_name, "it is for the table tasks")
