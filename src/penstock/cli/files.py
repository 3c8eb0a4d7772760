"""The commands over files at rest: inspect, dump, tasks, verify, repair, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock.cli.family_flags import open_path, with_family_flags
from penstock.cli.output import Exit, bar, emit, emit_rows, say, show_table
from penstock.cli.task_table import show_tasks
from penstock.families.family import Outcome
from penstock.families.option import Operation, Values
from penstock.families.registry import formats

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
