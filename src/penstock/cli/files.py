"""The commands over files at rest: inspect, dump, tasks, verify, repair, convert.

Every command over files has flags that are derived from the options which the families declare (``families.options``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, get_type_hints

import typer

from penstock.cli.output import Exit, bar, emit, emit_rows, say, show_table
from penstock.cli.task_table import show_tasks
from penstock.errors import InvalidOption
from penstock.families.family import Files, Outcome
from penstock.families.options import Kind, Operation, Option, Values
from penstock.families.registry import NO_VALUES, formats, open_files, options_of

VALUES: Final = "values"
"""The parameter of a command that receives the options which were given."""

PREFIX: Final = "family_"
"""Before the names of parameters that are flags of families: a command may have a parameter of that name itself."""


def with_family_flags(
    *operations: Operation,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option of these operations; the command takes them as ``values``.

    The help of a flag names the families that have the option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = _merged(operations)

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            given = {name: arguments.pop(PREFIX + name) for name in options}
            values = {
                name: _parsed(options[name][0], value)
                for name, value in given.items()
                if value is not None and value is not False
            }
            with usage_errors():
                command(**arguments, values=values)

        hints = get_type_hints(command, include_extras=True)
        declared = signature(command)
        parameters = [
            each.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
            for name, each in declared.parameters.items()
            if name != VALUES
        ]
        parameters += [_parameter(option, help_) for option, help_ in options.values()]
        run.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


_TYPES: Final[dict[Kind, Any]] = {
    Kind.FLAG: bool,
    Kind.NUMBER: int | None,
    Kind.FILE: Path | None,
    Kind.TEXT: str | None,
    Kind.TIME: str | None,
    Kind.AT: str | None,
}


def _flag(option: Option, help_: str) -> Any:
    """Return the annotation of a parameter that is an option's flag."""
    details: dict[str, Any] = {"help": help_}
    if option.metavar is not None:
        details["metavar"] = option.metavar
    if option.kind is Kind.NUMBER:
        details["min"] = option.lowest
    if option.kind is Kind.FILE:
        details["readable"] = False  # the family reports a file that cannot be read
    return Annotated[_TYPES[option.kind], typer.Option(option.flag, **details)]


def open_path(path: Path, operation: Operation, values: Values = NO_VALUES) -> Files:
    """Return the files at a path, and report what people must know of them. Raises ``PenstockError``."""
    files = open_files(path, operation, values)
    if files.notice is not None:
        say(files.notice)
    return files


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report an option that does not apply as wrong usage."""
    try:
        yield
    except InvalidOption as error:
        flag = "--" + re.sub("_|(?=[A-Z])", "-", error.option).lower()
        raise typer.BadParameter(error.reason, param_hint=flag) from None


def _merged(operations: tuple[Operation, ...]) -> dict[str, tuple[Option, str]]:
    """Return the options of operations by name, each with a help that covers all families which have it."""
    helps: dict[str, dict[str, list[str]]] = {}
    options: dict[str, Option] = {}
    for family, option in options_of(*operations):
        options.setdefault(option.name, option)
        titles = helps.setdefault(option.name, {}).setdefault(option.help, [])
        titles.append(family.title)
    return {
        name: (
            option,
            " ".join(f"{', '.join(titles)}: {text}" for text, titles in helps[name].items()),
        )
        for name, option in options.items()
    }


def _parameter(option: Option, help_: str) -> Parameter:
    return Parameter(
        PREFIX + option.name,
        Parameter.KEYWORD_ONLY,
        default=False if option.kind is Kind.FLAG else None,
        annotation=_flag(option, help_),
    )


def _parsed(option: Option, value: Any) -> Any:
    """Return the value of a flag as the family takes it. Raises ``typer.BadParameter``."""
    if not isinstance(value, str):
        return value
    try:
        return option.parse(value)
    except ValueError as expected:
        raise typer.BadParameter(f"{value!r} is not {expected}", param_hint=option.flag) from None


# Whether a path can be read is found out, and reported, by the family that reads it.
PathArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", readable=False, help="A data directory, or one file of it."),
]
OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        readable=False,
        help="A new or empty directory; PATH is never changed.",
    ),
]
TableOption = Annotated[bool, typer.Option("--table", help="A table for people.")]


def _finish(outcome: Outcome) -> NoReturn:
    """Print what an operation reports, and exit: 1 if something is damaged or left out."""
    for sentence in outcome.words:
        say(sentence)
    is_well = outcome.is_complete and not outcome.is_damaged
    raise typer.Exit(Exit.OK if is_well else Exit.DAMAGE)


@with_family_flags(Operation.INSPECT)
def inspect(path: PathArgument, values: Values, table: TableOption = False) -> None:
    """Say what PATH is: family, generation or version, counts, indexes, damage. One JSON object.

    \b
    Examples:
      penstock inspect node
      penstock inspect node --table
      penstock inspect old/consensus/log.raft
    """
    files, outcome = open_path(path, Operation.INSPECT, values), Outcome()
    with bar(files.size, "reading") as shown:
        row = files.inspect(outcome, shown.advance)
    if table:
        shown_row = {name: _for_people(value) for name, value in row.items() if name != "damage"}
        shown_row["harmless"] = len(row["harmless"])  # there may be thousands
        show_table(str(path), shown_row, row["damage"])
    else:
        emit(row)
    _finish(outcome)


def _for_people(value: object) -> object:
    """Return a list as words; what else stands in a row is shown as it is."""
    if not isinstance(value, list):
        return value
    words = (
        " ".join(f"{name} {held}," for name, held in each.items() if held is not None)[:-1]
        if isinstance(each, dict)
        else str(each)
        for each in value
    )
    return "; ".join(words)


@with_family_flags(Operation.DUMP)
def dump(path: PathArgument, values: Values) -> None:
    """Print every entry, record, queue, task and metadata file in file order, damage included.

    \b
    Examples:
      penstock dump node
      penstock dump node/data/tflux.snapshot
    """
    files, outcome = open_path(path, Operation.DUMP, values), Outcome()
    with bar(files.size, "reading") as shown:
        emit_rows(files.dump(outcome, shown.advance))
    _finish(outcome)


@with_family_flags(Operation.TASKS)
def tasks(path: PathArgument, values: Values, table: TableOption = False) -> None:
    """Print what the queues hold, each in its order of delivery.

    Of a RabbitMQ node these are the messages that it has after a restart, of a spool the events that wait.

    \b
    Examples:
      penstock tasks node
      penstock tasks node --table
      penstock tasks node --at 2
      penstock tasks old --uncommitted --queue orders
    """
    files, outcome = open_path(path, Operation.TASKS, values), Outcome()
    with bar(files.size, "reading") as shown:
        found = files.tasks(values, outcome, shown.advance)
        if table:
            show_tasks(found)
        else:
            emit_rows(found)
    _finish(outcome)


@with_family_flags(Operation.VERIFY)
def verify(path: PathArgument, values: Values) -> None:
    """Check everything that can be checked; print the damage as rows, nothing if all is well.

    \b
    Examples:
      penstock verify node
      penstock verify old
    """
    files, outcome = open_path(path, Operation.VERIFY, values), Outcome()
    with bar(files.size, "verifying") as shown:
        emit_rows(files.verify(outcome, shown.advance))
    verdict = "whole" if outcome.is_complete else "incomplete"
    outcome.words[0] = f"{path}: {'damaged' if outcome.is_damaged else verdict}: {outcome.words[0]}"
    _finish(outcome)


@with_family_flags(Operation.REPAIR)
def repair(path: PathArgument, out: OutOption, values: Values) -> None:
    """Salvage all that is provably whole into a new directory; print what was left, row by row.

    \b
    Examples:
      penstock repair damaged --out salvaged
      penstock repair rabbit --out mended
    """
    files, outcome = open_path(path, Operation.REPAIR, values), Outcome()
    with bar(2 * files.size, "salvaging") as shown:
        emit_rows(files.repair(out, values, outcome, shown.advance))
    _finish(outcome)


@with_family_flags(Operation.CONVERT)
def convert(
    path: PathArgument,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(formats())}."),
    ],
    out: OutOption,
    values: Values,
) -> None:
    """Write PATH in another format into a new directory; refuse what that format cannot hold.

    What a RabbitMQ node holds, or a spool of Beats, becomes a directory that a node of ours serves. A spool also becomes
    one that Beats reads: with beats-2 as --serialization, --compress and --encrypt say. A key that is named for a spool
    without encrypted segments encrypts what is written.

    \b
    Examples:
      penstock convert old --to taskflux-3 --out new
      penstock convert node --to taskflux-2 --out second
      penstock convert rabbit --to taskflux-3 --out moved
      penstock convert diskqueue --to beats-2 --serialization protobuf --compress --out packed
    """
    if to not in formats():
        raise typer.BadParameter(
            f"{to!r} is not a format; choose one of {', '.join(formats())}", param_hint="--to"
        )
    files, outcome = open_path(path, Operation.CONVERT, values), Outcome()
    with bar(files.size, "converting") as shown:
        row = files.convert(to, out, values, outcome, shown.advance)
    emit(row)
    _finish(outcome)
