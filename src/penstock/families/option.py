"""Options of families: declared once, offered as flags of commands and as options of tables.

A family lists its options in ``OPTIONS``. The command line derives a flag from each (``cli.family_flags``), the tables an
option (``families.options``), and both refuse an option that the family of the files does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidOption
from penstock.families.values import (
    format_time_us,
    parse_boolean,
    parse_number,
    parse_text,
    parse_time_us,
)

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


def refuse_foreign(
    owner: str, options: Iterable[Option], operation: Operation, values: Values
) -> None:
    """Raise ``InvalidOption`` for a value that the files of ``owner`` do not have in an operation."""
    known = {option.name for option in options if operation in option.operations}
    for name in values:
        if name not in known:
            shown = table_name(name) if operation is Operation.TABLES else name
            raise InvalidOption(shown, f"it does not apply to these files, of {owner}; omit it")
