"""The tables of a read: their columns, and the options that say which rows and columns of them are wanted.

There is one list of columns for every family, in Arrow's types (docs/spark.md). No name hides a method of a Spark row, as
``index`` and ``count`` would. What a family does not have is null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.client.addresses import parse_addresses
from penstock.errors import InvalidOption, InvalidValue
from penstock.families.options import (
    At,
    Operation,
    Option,
    Values,
    parse_at,
    parse_boolean,
    parse_columns,
    parse_fields,
    parse_names,
    parse_number,
    parse_size,
    parse_text,
    table_name,
)

if TYPE_CHECKING:
    import pyarrow as pa


class Table(StrEnum):
    """What a source shows of its files."""

    ENTRIES = "entries"  # everything stored, in file order, damage included
    CHANGES = "changes"  # what changes a queue, whole entries only
    TASKS = "tasks"  # what the queues hold


class Op(StrEnum):
    """What an entry does. A family's own words are in ``properties``."""

    CREATE = "create"
    DELETE = "delete"
    ADD = "add"
    REMOVE = "remove"
    DELIVER = "deliver"
    RETURN = "return"
    MOVE = "move"
    SET = "set"
    EMPTY = "empty"  # the first entry of a term
    MEMBERS = "members"
    ACCESS = "access"
    ENQUEUE = "enqueue"  # a request of generation 1, decided when it is replayed
    DEQUEUE = "dequeue"
    COUNT = "count"
    LIST = "list"
    # Entries of ours that plain readers pass over; what each says is in ``properties``.
    ADDING = "adding"
    CREATING = "creating"
    RETURNING = "returning"
    REMOVING = "removing"
    EXTENSION = "extension"  # one that says nothing, or is of a later version of Penstock
    QUEUE = "queue"  # a queue as a snapshot has it
    TASK = "task"  # a task as a snapshot has it


class Kind(StrEnum):
    """What a row of ``entries`` is about."""

    ENTRY = "entry"  # of a log, or of a segment of a broker's index
    RECORD = "record"  # of a broker's journal
    SLOT = "slot"  # of a broker's index of version 2
    MESSAGE = "message"  # in a broker's store
    FRAME = "frame"  # of a spool's segment
    DAMAGE = "damage"  # a stretch that is no record, or a file that cannot be read
    QUEUE = "queue"
    TASK = "task"
    METADATA = "metadata"


OK: Final = "ok"
"""The status of what is whole; every other one has a reason and a severity."""

MISSING: Final = "missing"
"""The status of a message that an index knows and that no store holds."""

MISSING_REASON: Final = "the index knows this message, but no store holds it"

PAYLOAD_TEXT: Final = "payload_text"
PAYLOAD_JSON: Final = "payload_json"
"""Columns of the table of tasks that are made of ``payload`` when they are wanted; no family stores them."""


@cache
def schema_of(table: Table) -> pa.Schema:
    """Return a table's columns."""
    import pyarrow as pa

    fields = {
        "source": pa.string(),  # the directory or file that was loaded
        "family": pa.string(),
        "kind": pa.string(),
        "path": pa.string(),  # the file, under its source
        "offset": pa.int64(),
        "size": pa.int64(),
        # Of a snapshot's rows: the last entry that it covers. Of a broker's: the number of a message in its queue. Of
        # a spool's: the number of the segment in the upper half, that of the frame in the lower.
        "log_index": pa.int64(),
        "term": pa.int64(),
        "op": pa.string(),
        "queue": pa.string(),
        "key": pa.int64(),
        "task_id": pa.int64(),
        "payload": pa.binary(),
        PAYLOAD_TEXT: pa.string(),  # the payload, if it is text; ``families.payloads`` has the rule
        PAYLOAD_JSON: pa.string(),  # its text, if that is a JSON object or array
        "properties": pa.map_(pa.string(), pa.string()),
        "event_time": pa.timestamp("us", tz="UTC"),
        "status": pa.string(),
        "reason": pa.string(),
        "severity": pa.string(),  # what it costs that the row is not whole: docs/formats/damage.md
    }
    left_out: dict[Table, tuple[str, ...]] = {
        Table.ENTRIES: (PAYLOAD_TEXT, PAYLOAD_JSON),
        Table.CHANGES: (PAYLOAD_TEXT, PAYLOAD_JSON, "status", "reason", "severity"),
        Table.TASKS: ("kind", "op", "status", "reason", "severity"),
    }
    return pa.schema([(n, t) for n, t in fields.items() if n not in left_out[table]])


def shown_path(source: str, path: Path) -> str:
    """Return a file's path as rows have it: under its source, or its name if it is the source.

    Of a node's directory of segments the other files are its neighbours: their paths begin with dots.
    """
    text, root = str(path), source.rstrip("/") + "/"
    if text == source:
        return path.name
    return text.removeprefix(root) if text.startswith(root) else os.path.relpath(text, source)


SPLIT_SIZE: Final = 64 * 2**20
"""Bytes that one task reads: less costs more in tasks than it wins in parallel, more leaves cores idle."""


class Mode(StrEnum):
    """What becomes of damage, as Spark's own sources have it."""

    PERMISSIVE = "PERMISSIVE"  # rows with a status and a reason
    DROPMALFORMED = "DROPMALFORMED"  # left out
    FAILFAST = "FAILFAST"  # the first one fails the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The rows wanted; ``None``: all.

    A planner uses the filters to skip files. It may keep a file that it cannot judge, because the scanner drops every row
    that the filters do not select.
    """

    first: int | None = None  # the lowest log index
    last: int | None = None  # the highest
    queues: frozenset[str] | None = None
    ops: frozenset[str] | None = None
    paths: frozenset[str] | None = None  # of files, as the rows have them

    @property
    def is_empty(self) -> bool:
        """Whether no row can be wanted."""
        if self.first is not None and self.last is not None and self.first > self.last:
            return True
        return any(
            values is not None and not values for values in (self.queues, self.ops, self.paths)
        )

    @property
    def is_open(self) -> bool:
        """Whether also a row is wanted that has no index, op or queue, as damage may not."""
        wanted = (self.first, self.last, self.queues, self.ops)
        return all(values is None for values in wanted)

    def wants_queue(self, name: str) -> bool:
        return self.queues is None or name in self.queues

    def wants_path(self, shown: str) -> bool:
        return self.paths is None or shown in self.paths

    def wants_indexes(self, first: int, end: int | None) -> bool:
        """Whether entries from ``first`` up to ``end`` (``None``: unknown) may hold one that is wanted."""
        if self.last is not None and first > self.last:
            return False
        return self.first is None or end is None or end > self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read."""

    paths: tuple[str, ...]
    table: Table = Table.ENTRIES
    mode: Mode = Mode.PERMISSIVE
    split_size: int = SPLIT_SIZE
    filters: Filters = Filters()
    at: At | None = None  # for the table of tasks: the state after this entry, or at this time
    uncommitted: bool = False  # count entries that the files do not say are committed
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
    "startingIndex": ("first", parse_number(0)),
    "endingIndex": ("last", parse_number(0)),
    "at": ("at", parse_at),
    "uncommitted": ("uncommitted", parse_boolean),
    "queues": ("queues", parse_names),
    "ops": ("ops", _ops),
    "files": ("paths", parse_names),
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
    names = {each.name for each in dataclass_fields(Filters)}
    filters = Filters(**{name: fields.pop(name) for name in names & fields.keys()})  # type: ignore[arg-type]
    parsed = ReadOptions(paths=_paths(options), filters=filters, own=values, **fields)  # type: ignore[arg-type]
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
    filters = options.filters
    first, last = filters.first, filters.last
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
    if options.table is Table.TASKS and (filters.ops is not None or filters.paths is not None):
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
