"""The commands over files at rest: inspect, dump, tasks, verify, repair, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Exit, bar, emit, say, show_table
from penstock.errors import InvalidQueueName
from penstock.formats.taskflux.generation import Generation
from penstock.model import QueueName
from penstock.tools import convert as conversion
from penstock.tools import repair as salvage
from penstock.tools import verify as verification
from penstock.tools.dump import dump as dump_rows
from penstock.tools.history import read_history
from penstock.tools.inspect import inspect as inspect_target
from penstock.tools.replay import replay
from penstock.tools.rows import encode_payload
from penstock.tools.target import resolve

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
    """Say what PATH is: family, generation, counts, indexes, damage. One JSON object.

    \b
    Examples:
      penstock inspect node
      penstock inspect node --table
      penstock inspect old/consensus/log.raft
    """
    target = resolve(path)
    with bar(target.size, "reading") as shown:
        row = inspect_target(target, progress=shown.advance)
    damage = row["damage"]
    if table:
        show_table(str(path), {n: v for n, v in row.items() if n != "damage"}, damage)
    else:
        emit(row)
    raise typer.Exit(Exit.DAMAGE if damage else Exit.OK)


def dump(path: PathArgument) -> None:
    """Print every entry, queue, task and metadata file in file order, damage included.

    \b
    Examples:
      penstock dump node
      penstock dump node/data/tflux.snapshot
    """
    target = resolve(path)
    is_whole = True
    with bar(target.size, "reading") as shown:
        for row in dump_rows(target, progress=shown.advance):
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
) -> None:
    """Print what the queues hold, each in its order of delivery.

    \b
    Examples:
      penstock tasks node
      penstock tasks node --at 2
      penstock tasks old --uncommitted --queue orders
    """
    try:
        only = None if queue is None else QueueName(queue)
    except InvalidQueueName as error:
        raise typer.BadParameter(str(error), param_hint="--queue") from None
    target = resolve(path)
    with bar(target.size, "replaying") as shown:
        history = read_history(target, progress=shown.advance)
        state = replay(history, at=at, uncommitted=uncommitted)
    if state.tail is not None:
        say(state.tail)
    has_ids = target.generation is Generation.THREE
    for name in sorted(state.queues.by_name):
        if only is not None and name != only:
            continue
        for task_id, key, payload in state.queues.by_name[name].in_order():
            row = {"queue": name, "key": key, "payload": encode_payload(payload)}
            emit(row | {"id": task_id} if has_ids else row)
    raise typer.Exit(Exit.OK if state.tail is None else Exit.DAMAGE)


def verify(path: PathArgument) -> None:
    """Check everything that can be checked; print the damage as rows, nothing if all is well.

    \b
    Examples:
      penstock verify node
      penstock verify old
    """
    target = resolve(path)
    summary = verification.Summary()
    count = 0
    with bar(target.size, "verifying") as shown:
        for row in verification.verify(target, progress=shown.advance, summary=summary):
            emit(row)
            count += 1
    held = f"{summary.entries} entries, {summary.queues} queues, {summary.tasks} tasks"
    say(f"{path}: {'damaged' if count else 'whole'}: {held}, {count} damaged places")
    raise typer.Exit(Exit.DAMAGE if count else Exit.OK)


def repair(path: PathArgument, out: OutOption) -> None:
    """Salvage all that is provably whole into a new directory; print what was left, row by row.

    \b
    Examples:
      penstock repair damaged --out salvaged
    """
    target = resolve(path)
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
    target = resolve(path)
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
