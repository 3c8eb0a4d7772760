"""The commands over files at rest: inspect, dump, tasks, verify, repair, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.families import Asked, source_at, writable_target
from penstock.cli.output import Exit, bar, emit, say, show_table
from penstock.tools import convert as conversion
from penstock.tools import repair as salvage
from penstock.tools.history import read_history

# Whether a path can be read is found out, and said, by those who read it.
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
UncommittedOption = Annotated[
    bool, typer.Option("--uncommitted", help="Include entries behind the commit index.")
]


def inspect(
    path: PathArgument,
    table: Annotated[bool, typer.Option("--table", help="A table for people.")] = False,
) -> None:
    """Say what PATH is: family, generation or version, counts, indexes, damage. One JSON object.

    \b
    Examples:
      penstock inspect node
      penstock inspect node --table
      penstock inspect old/consensus/log.raft
    """
    source = source_at(path)
    with bar(source.size, "reading") as shown:
        row = source.inspect(shown.advance)
    damage = row["damage"]
    if table:
        shown_row = {name: _for_people(value) for name, value in row.items() if name != "damage"}
        show_table(str(path), shown_row, damage)
    else:
        emit(row)
    raise typer.Exit(Exit.DAMAGE if damage else Exit.OK)


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


def dump(path: PathArgument) -> None:
    """Print every entry, record, queue, task and metadata file in file order, damage included.

    \b
    Examples:
      penstock dump node
      penstock dump node/data/tflux.snapshot
    """
    source = source_at(path)
    is_whole = True
    with bar(source.size, "reading") as shown:
        for row in source.dump(shown.advance):
            is_whole = is_whole and row["status"] == "ok"
            emit(row)
    raise typer.Exit(Exit.OK if is_whole else Exit.DAMAGE)


def tasks(
    path: PathArgument,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="INDEX", min=-1, help="The state after this entry; entries count from 0."
        ),
    ] = None,
    uncommitted: UncommittedOption = False,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this queue; '' is the default queue.")
    ] = None,
    vhost: Annotated[
        str | None, typer.Option(metavar="NAME", help="RabbitMQ: only this vhost.")
    ] = None,
    include_transient: Annotated[
        bool,
        typer.Option("--include-transient", help="RabbitMQ: also messages that a restart forgets."),
    ] = False,
    include_expired: Annotated[
        bool, typer.Option("--include-expired", help="RabbitMQ: also messages that have expired.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="RabbitMQ: leave out what has expired at this time, 2026-01-31T12:00:00 in UTC; else now.",
        ),
    ] = None,
) -> None:
    """Print what the queues hold, each in its order of delivery.

    Of a RabbitMQ node these are the messages that it has after a restart.

    \b
    Examples:
      penstock tasks node
      penstock tasks node --at 2
      penstock tasks old --uncommitted --queue orders
    """
    asked = Asked(
        queue=queue,
        at=at,
        uncommitted=uncommitted,
        vhost=vhost,
        include_transient=include_transient,
        include_expired=include_expired,
        as_of=as_of,
    )
    source = source_at(path)
    with bar(source.size, "reading") as shown:
        for row in source.tasks(asked, shown.advance):
            emit(row)
    for words in source.words:
        say(words)
    raise typer.Exit(Exit.DAMAGE if source.is_damaged else Exit.OK)


def verify(path: PathArgument) -> None:
    """Check everything that can be checked; print the damage as rows, nothing if all is well.

    \b
    Examples:
      penstock verify node
      penstock verify old
    """
    source = source_at(path)
    with bar(source.size, "verifying") as shown:
        for row in source.verify(shown.advance):
            emit(row)
    for words in source.words:
        say(f"{path}: {'damaged' if source.is_damaged else 'whole'}: {words}")
    raise typer.Exit(Exit.DAMAGE if source.is_damaged else Exit.OK)


def repair(path: PathArgument, out: OutOption) -> None:
    """Salvage all that is provably whole into a new directory; print what was left, row by row.

    \b
    Examples:
      penstock repair damaged --out salvaged
    """
    target = writable_target(path)
    result = salvage.Repaired()
    with bar(2 * target.size, "salvaging") as shown:
        for row in salvage.repair(target, out, result, progress=shown.advance):
            emit(row)
    for note in dict.fromkeys(result.notes):
        say(note)
    say(
        f"{out}: {result.entries} entries taken along, {result.tasks} tasks in {result.queues} queues;"
        f" {result.left} places left behind"
    )
    raise typer.Exit(Exit.DAMAGE if result.left else Exit.OK)


def convert(
    path: PathArgument,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(conversion.FORMATS)}."),
    ],
    out: OutOption,
    uncommitted: UncommittedOption = False,
) -> None:
    """Write PATH in another generation into a new directory; refuse what that one cannot hold.

    \b
    Examples:
      penstock convert old --to taskflux-3 --out new
      penstock convert node --to taskflux-2 --out second
    """
    if to not in conversion.FORMATS:
        raise typer.BadParameter(
            f"{to!r} is no format; choose one of {', '.join(conversion.FORMATS)}", param_hint="--to"
        )
    target = writable_target(path)
    with bar(target.size, "converting") as shown:
        history = read_history(target, progress=shown.advance)
        done = conversion.convert(history, conversion.FORMATS[to], out, uncommitted=uncommitted)
    emit(
        {
            "family": "taskflux",
            "generation": int(conversion.FORMATS[to]),
            "path": str(out),
            "entries": done.entries,
            "snapshot_index": done.snapshot_index,
            "queues": done.queues,
            "tasks": done.tasks,
            "left_uncommitted": done.left_uncommitted,
            "dropped_extensions": done.dropped_extensions,
            "dropped_notes": done.dropped_notes,
        }
    )
    if done.dropped_extensions or done.dropped_notes:
        say(
            f"{done.dropped_extensions} extensions and {done.dropped_notes} notes were dropped: delays, expiries,"
            " attempts, queue options and the memory of retries do not survive a conversion"
        )
    if done.left_uncommitted:
        say(
            f"{done.left_uncommitted} uncommitted entries were left out; --uncommitted takes them along"
        )
    if done.tail is not None:
        say(done.tail)
        raise typer.Exit(Exit.DAMAGE)
