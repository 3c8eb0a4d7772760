"""What a read or a write asks for, checked on the driver before any job starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar

from penstock.client.addresses import parse_addresses
from penstock.errors import InvalidValue
from penstock.model import INT64_MAX, INT64_MIN, QueueName
from penstock.spark.columns import Op, Table, schema_of

SPLIT_SIZE: Final = 64 * 2**20
"""Bytes that one task reads: less costs more in tasks than it wins in parallel, more leaves cores idle."""


SPLIT_SIZE_MIN: Final = 2**10
"""Below that a task costs more than a hundred times what it reads."""


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
    vhosts: frozenset[str] | None = None  # of a broker: the rows of these alone
    # For the table of a broker's tasks, beside those that survive a restart now.
    include_transient: bool = False
    include_expired: bool = False
    as_of_us: int | None = None  # what expires up to this time is expired; None: now
    envelope: bool = False  # payloads are envelopes: what the broker knew, and the body
    # Of a spool: where the key of encrypted segments is. A key itself would be shown by every plan.
    key_file: str | None = None
    password_file: str | None = None
    columns: tuple[str, ...] | None = None  # these alone: Spark tells no source what it needs
    node: str | None = None  # a live node to read from, instead of files
    max_entries: int | None = None  # per trigger of a stream
    fail_on_data_loss: bool = True


T = TypeVar("T")


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")  # no number of 64 bits has more digits


def _number(low: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        is_number = _NUMBER.fullmatch(value.strip()) is not None
        if not is_number or not low <= int(value) <= INT64_MAX:
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


_SIZE: Final = re.compile(r"([0-9]{1,19}) *([kmg]?b?)", re.IGNORECASE)


def _size(value: str) -> int:
    found = _SIZE.fullmatch(value.strip())
    size = 0 if found is None else int(found[1]) * _UNITS[found[2].lower()]
    if not SPLIT_SIZE_MIN <= size <= INT64_MAX:
        raise ValueError("a size such as 65536 or 64m, at least 1k")
    return size


def _text(value: str) -> str:
    if not value:
        raise ValueError("something")
    return value


def _names(value: str) -> frozenset[str]:
    """A list goes as JSON, for names may hold commas."""
    if not value.lstrip().startswith("["):
        return frozenset({_text(value)})
    try:
        listed = json.loads(value)
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError('a name, or a list such as ["a", "b"]')
    return frozenset(listed)


def _columns(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns with commas between them, each once")
    return names


def _time_us(value: str) -> int:
    """A moment in microseconds since 1970; one without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a time such as 2026-01-31T12:00:00") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def parse_time(value: str) -> int:
    """Return a time in microseconds since 1970. Raises ``InvalidValue``."""
    try:
        return _time_us(value)
    except ValueError as wanted:
        raise InvalidValue(f"{value!r} is no time; write it as {wanted}") from None


def _ops(value: str) -> frozenset[str]:
    names = _names(value)
    if not names <= set(Op):
        raise ValueError(f"one of {', '.join(Op)}, or a list of them")
    return names


# Names as people write them; Spark hands them over in lower case. Each with its field and its parser.
_KNOWN: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "table": ("table", _table),
    "mode": ("mode", _mode),
    "splitSize": ("split_size", _size),
    "startingIndex": ("starting_index", _number(0)),
    "endingIndex": ("ending_index", _number(0)),
    "at": ("at", _number(-1)),
    "uncommitted": ("uncommitted", _boolean),
    "queues": ("queues", _names),
    "ops": ("ops", _ops),
    "files": ("files", _names),
    "vhosts": ("vhosts", _names),
    "includeTransient": ("include_transient", _boolean),
    "includeExpired": ("include_expired", _boolean),
    "asOf": ("as_of_us", _time_us),
    "envelope": ("envelope", _boolean),
    "keyFile": ("key_file", _text),
    "passwordFile": ("password_file", _text),
    "columns": ("columns", _columns),
    "node": ("node", _text),
    "maxEntriesPerTrigger": ("max_entries", _number(1)),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
}


OF_BROKERS: Final = ("vhosts", "includeTransient", "includeExpired", "asOf", "envelope")
"""What only a broker's files can be asked."""

_OF_BROKERS_TASKS: Final = OF_BROKERS[1:]

OF_SPOOLS: Final = ("keyFile", "passwordFile")
"""What only a spool can be asked."""


def given(options: ReadOptions, names: tuple[str, ...]) -> list[str]:
    """Return those of the options that are not as they are without being given."""
    plain = ReadOptions(paths=())
    return [
        name
        for name in names
        if getattr(options, _KNOWN[name][0]) != getattr(plain, _KNOWN[name][0])
    ]


def refuse_foreign(source: object, options: ReadOptions, *, but: tuple[str, ...] = ()) -> None:
    """Raise ``InvalidValue`` for an option that is for files of another family; ``but`` are one's own."""
    for names, whose in ((OF_BROKERS, "files of RabbitMQ"), (OF_SPOOLS, "spools")):
        wrong = [] if names == but else given(options, names)
        if wrong:
            raise InvalidValue(f"{source}: option {wrong[0]} is for {whose}")


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return what the options say. Raises ``InvalidValue`` for one that is unknown or means nothing."""
    paths = _paths(options)
    others = {name: value for name, value in options.items() if name.lower() not in _PATHS}
    parsed = ReadOptions(paths=paths, **_fields(others, _KNOWN))  # type: ignore[arg-type]
    _check(parsed)
    return parsed


_PATHS: Final = ("path", "paths")


def _fields(
    options: Mapping[str, str], known: Mapping[str, tuple[str, Callable[[str], object]]]
) -> dict[str, object]:
    """Return the values of fields. Raises ``InvalidValue``."""
    by_lower = {name.lower(): (name, *how) for name, how in known.items()}
    fields: dict[str, object] = {}
    for given, value in options.items():
        if given.lower() not in by_lower:
            raise InvalidValue(f"option {given!r} is unknown; there are {', '.join(known)}")
        name, field, parse = by_lower[given.lower()]
        try:
            fields[field] = parse(value)
        except ValueError as wanted:
            raise InvalidValue(f"option {name} is {value!r}; it takes {wanted}") from None
    return fields


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
    wrong = given(options, _OF_BROKERS_TASKS) if options.table is not Table.TASKS else []
    if wrong:
        raise InvalidValue(f"option {wrong[0]} is for the table tasks")
    if options.key_file is not None and options.password_file is not None:
        raise InvalidValue("options keyFile and passwordFile were given; a key comes from one")
    if options.node is not None:
        parse_addresses(options.node)
        wrong = given(options, OF_BROKERS)
        if wrong:
            raise InvalidValue(f"option {wrong[0]} is for files of RabbitMQ; a live node has none")
        wrong = given(options, OF_SPOOLS)
        if wrong:
            raise InvalidValue(f"option {wrong[0]} is for spools; a live node has none")
        if options.table is Table.TASKS:
            raise InvalidValue(
                "a node's tasks are a table of its files; a live one has entries, changes"
            )


# --- a write -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    node: str
    queue: str | None = None  # of all rows; None: each row's own
    key: int | None = None  # of all rows; None: each row's own, 0 without such a column
    # Who writes, over restarts; None: the query, or nobody but this one write.
    application: str | None = None
    version: int | None = None  # which write of the application's this is; a stream numbers its own


VERSION_MAX: Final = 2**53
"""Numbers of requests are made of it and must fit 64 bits."""


def _version(value: str) -> int:
    number = _number(0)(value)
    if number > VERSION_MAX:
        raise ValueError(f"a whole number from 0 to {VERSION_MAX}")
    return number


def _queue(value: str) -> str:
    try:
        return QueueName(value)
    except InvalidValue as error:
        raise ValueError(f"a queue's name: {error}") from None


_OF_SINKS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "node": ("node", _text),
    "queue": ("queue", _queue),
    "key": ("key", _number(INT64_MIN)),
    "txnAppId": ("application", _text),
    "txnVersion": ("version", _version),
}
_ONLY_OF_SINKS: Final = [name for name in _OF_SINKS if name not in _KNOWN]
_OF_SPARK: Final = ("checkpointlocation", "queryname", "outputmode")
"""What a stream is told and hands on to its sink."""


def is_of_sink(options: Mapping[str, str]) -> bool:
    """Return whether some option is one that only a write has."""
    only = {*map(str.lower, _ONLY_OF_SINKS), *_OF_SPARK}
    return any(name.lower() in only for name in options)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return what the options of a write say. Raises ``InvalidValue``."""
    if any(name.lower() in _PATHS for name in options):
        raise InvalidValue(
            "a path, and nothing but a live node is written to: option node, and save() without a path; options"
            f" {', '.join(_ONLY_OF_SINKS)} are of a write, a read is filtered by its columns"
        )
    given = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    fields = _fields(given, _OF_SINKS)
    if "node" not in fields:
        raise InvalidValue("no node to write to; give option node, such as 127.0.0.1:2602")
    parsed = SinkOptions(**fields)  # type: ignore[arg-type]
    parse_addresses(parsed.node)
    return parsed
