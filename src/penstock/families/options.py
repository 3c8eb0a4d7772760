"""Options: how their values are written as text, and what a family declares of its own.

A family lists its options in ``OPTIONS``. The command line derives a flag from each (``cli.files``), the tables an
option (``families.tables``), and both refuse an option that the family of the files does not have.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidOption, InvalidValue
from penstock.model import INT64_MAX

Values = Mapping[str, Any]
"""The options that were given, by name, as parsed values; an option that was not given is missing."""


class Operation(StrEnum):
    """What an option applies to."""

    INSPECT = "inspect"
    DUMP = "dump"
    TASKS = "tasks"
    VERIFY = "verify"
    REPAIR = "repair"
    CONVERT = "convert"
    INGEST = "ingest"  # enqueue --from
    TABLES = "tables"  # a read of tables, in Spark or without
    PIPELINE = "pipeline"  # a run of the pipeline
    SPOOL = "spool"  # commands of a spool's owner
    SPOOL_PUT = "spool put"


FILES: Final = frozenset(
    {
        Operation.INSPECT,
        Operation.DUMP,
        Operation.TASKS,
        Operation.VERIFY,
        Operation.REPAIR,
        Operation.CONVERT,
    }
)
"""The commands over files at rest."""


class Kind(Enum):
    """How a value is written."""

    FLAG = auto()  # given or not; true or false
    TEXT = auto()
    TIME = auto()  # ISO 8601, UTC without a zone
    FILE = auto()
    NUMBER = auto()
    AT = auto()  # the index of an entry, a time, or an age such as -2h


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a family."""

    name: str
    kind: Kind
    help: str
    operations: frozenset[Operation]
    metavar: str | None = None
    choices: tuple[str, ...] = ()  # of a text
    lowest: int = 0  # of a number
    only_tasks: bool = False  # of tables: for the table of tasks alone

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def table_name(self) -> str:
        """The name as an option of a table."""
        return table_name(self.name)

    def parse(self, text: str) -> object:
        """Return the value of a text. Raises ``ValueError`` with what the option takes."""
        match self.kind:
            case Kind.FLAG:
                return parse_boolean(text)
            case Kind.TIME:
                return parse_time_us(text)
            case Kind.NUMBER:
                return parse_number(self.lowest)(text)
            case Kind.FILE:
                return Path(parse_text(text))
            case Kind.AT:
                return parse_at(text)
            case Kind.TEXT:
                if self.choices and text not in self.choices:
                    raise ValueError(" or ".join(self.choices))
                return text

    def text(self, value: Any) -> str:
        """Return a value as an option of a table takes it."""
        match self.kind:
            case Kind.FLAG:
                return "true" if value else "false"
            case Kind.TIME:
                return format_time_us(value)
            case _:
                return str(value)


def table_name(name: str) -> str:
    """Return an option's name as tables have it."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


SIZE_MIN: Final = 2**10
"""The smallest split: below that a task costs more than a hundred times what it reads."""


# A parser raises ``ValueError`` with what it expects, as words that follow "it takes".


def parse_boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")  # no number of 64 bits has more digits


def parse_number(low: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        is_number = _NUMBER.fullmatch(value.strip()) is not None
        if not is_number or not low <= int(value) <= INT64_MAX:
            raise ValueError(f"a whole number from {low} on")
        return int(value)

    return parse


_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}  # fmt: skip


_SIZE: Final = re.compile(r"([0-9]{1,19}) *([kmg]?b?)", re.IGNORECASE)


def parse_size(value: str) -> int:
    found = _SIZE.fullmatch(value.strip())
    size = 0 if found is None else int(found[1]) * _UNITS[found[2].lower()]
    if not SIZE_MIN <= size <= INT64_MAX:
        raise ValueError("a size such as 65536 or 64m, at least 1k")
    return size


def parse_text(value: str) -> str:
    if not value:
        raise ValueError("something")
    return value


def parse_names(value: str) -> frozenset[str]:
    """A list goes as JSON, for names may hold commas."""
    if not value.lstrip().startswith("["):
        return frozenset({parse_text(value)})
    try:
        listed = json.loads(value)
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError('a name, or a list such as ["a", "b"]')
    return frozenset(listed)


def parse_columns(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns with commas between them, each once")
    return names


def parse_time_us(value: str) -> int:
    """A moment in microseconds since 1970; one without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a time such as 2026-01-31T12:00:00") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def format_time_us(time_us: int) -> str:
    """Return a time as ``parse_time_us`` takes it."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat()


@dataclass(frozen=True, slots=True)
class LogTime:
    """A moment by the clock of a log, in milliseconds since 1970. It means: after the last entry up to then."""

    time_ms: int

    def __str__(self) -> str:
        return format_time_us(self.time_ms * 1000)


At = int | LogTime
"""Which state is wanted: the one after the entry of this index, or at this time."""

_AGE: Final = re.compile(r"-([0-9]{1,9})([smhd])")
_AGE_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_at(value: str, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> At:
    """The index of an entry, -1 before the first one; a time; or an age, which ends now."""
    text = value.strip()
    if (age := _AGE.fullmatch(text)) is not None:
        return LogTime(now_ms() - int(age[1]) * _AGE_UNITS_MS[age[2]])
    try:
        return parse_number(-1)(text) if _NUMBER.fullmatch(text) else LogTime(parse_time_us(text) // 1000)  # fmt: skip
    except ValueError:
        raise ValueError(
            "an index from -1 on, a time such as 2026-01-31T12:00:00Z, or an age such as -2h"
        ) from None


def entry_at(at: At, title: str) -> int:
    """Return the index of an entry, for files without times. Raises ``InvalidOption`` for a time."""
    if isinstance(at, LogTime):
        raise InvalidOption("at", f"files of {title} have no times; give the index of an entry")
    return at


def parse_fields(
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
