"""The commands over files at rest: inspect, dump, tasks, verify, repair, convert."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from penstock.cli.families import (
    FORMATS,
    Asked,
    AsOfOption,
    ClassicOnlyOption,
    CompressOption,
    EncryptOption,
    ExpiredOption,
    FilesGenerationOption,
    KeyFileOption,
    Keys,
    PasswordFileOption,
    PropertiesOption,
    SerializationOption,
    Source,
    TransientOption,
    VhostOption,
    source_at,
)
from penstock.cli.output import Exit, bar, emit, emit_lines, say, show_table
from penstock.cli.task_table import show_tasks

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
TableOption = Annotated[bool, typer.Option("--table", help="A table for people.")]
UncommittedOption = Annotated[
    bool, typer.Option("--uncommitted", help="Include entries behind the commit index.")
]


def inspect(
    path: PathArgument,
    table: TableOption = False,
    key_file: KeyFileOption = None,
    password_file: PasswordFileOption = None,
    generation: FilesGenerationOption = None,
    classic_only: ClassicOnlyOption = False,
) -> None:
    """Say what PATH is: family, generation or version, counts, indexes, damage. One JSON object.

    \b
    Examples:
      penstock inspect node
      penstock inspect node --table
      penstock inspect old/consensus/log.raft
    """
    keys = Keys(key_file=key_file, password_file=password_file)
    source = source_at(path, keys, generation, classic_only=classic_only)
    with bar(source.size, "reading") as shown:
        row = source.inspect(shown.advance)
    damage = row["damage"]
    if table:
        shown_row = {
            name: _for_people(value)
            for name, value in row.items()
            if name != "damage" and not (name == "harmless" and value == [])
        }
        show_table(str(path), shown_row, damage)
    else:
        emit(row)
    _finish(source, is_damaged=bool(damage))


def _finish(
    source: Source, *, words: list[str] | None = None, is_damaged: bool | None = None
) -> NoReturn:
    """Print what a reading has to say, and exit: 1 if something is damaged or left out."""
    for sentence in source.words if words is None else words:
        say(sentence)
    is_damaged = source.is_damaged if is_damaged is None else is_damaged
    raise typer.Exit(Exit.OK if source.is_complete and not is_damaged else Exit.DAMAGE)


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


def dump(
    path: PathArgument,
    key_file: KeyFileOption = None,
    password_file: PasswordFileOption = None,
    generation: FilesGenerationOption = None,
    classic_only: ClassicOnlyOption = False,
) -> None:
    """Print every entry, record, queue, task and metadata file in file order, damage included.

    \b
    Examples:
      penstock dump node
      penstock dump node/data/tflux.snapshot
    """
    keys = Keys(key_file=key_file, password_file=password_file)
    source = source_at(path, keys, generation, classic_only=classic_only)
    is_whole = True
    with bar(source.size, "reading") as shown:
        for row in source.dump(shown.advance):
            is_whole = is_whole and (row["status"] == "ok" or bool(row.get("harmless")))
            emit(row)
    _finish(source, is_damaged=not is_whole)


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
    vhost: VhostOption = None,
    include_transient: TransientOption = False,
    include_expired: ExpiredOption = False,
    as_of: AsOfOption = None,
    table: TableOption = False,
    key_file: KeyFileOption = None,
    password_file: PasswordFileOption = None,
    generation: FilesGenerationOption = None,
    classic_only: ClassicOnlyOption = False,
) -> None:
    """Print what the queues hold, each in its order of delivery.

    Of a RabbitMQ node these are the messages that it has after a restart, of a spool the events that wait.

    \b
    Examples:
      penstock tasks node
      penstock tasks node --table
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
    keys = Keys(key_file=key_file, password_file=password_file)
    source = source_at(path, keys, generation, classic_only=classic_only)
    with bar(source.size, "reading") as shown:
        found = source.tasks(asked, shown.advance)
        if table:
            show_tasks(found)
        else:
            _emit_tasks(found)
    _finish(source)


def _emit_tasks(found: Iterable[dict[str, Any] | memoryview]) -> None:
    for row in found:
        if isinstance(row, memoryview):
            emit_lines(row)
        else:
            emit(row)


def verify(
    path: PathArgument,
    key_file: KeyFileOption = None,
    password_file: PasswordFileOption = None,
    generation: FilesGenerationOption = None,
    classic_only: ClassicOnlyOption = False,
) -> None:
    """Check everything that can be checked; print the damage as rows, nothing if all is well.

    \b
    Examples:
      penstock verify node
      penstock verify old
    """
    keys = Keys(key_file=key_file, password_file=password_file)
    source = source_at(path, keys, generation, classic_only=classic_only)
    with bar(source.size, "verifying") as shown:
        for row in source.verify(shown.advance):
            emit(row)
    summary, *others = source.words
    verdict = "whole" if source.is_complete else "incomplete"
    say(f"{path}: {'damaged' if source.is_damaged else verdict}: {summary}")
    _finish(source, words=others)


def repair(
    path: PathArgument,
    out: OutOption,
    uncommitted: Annotated[
        bool,
        typer.Option(
            "--uncommitted",
            help="Also records behind the end of a generation 2 log that may be entries of it, or stale.",
        ),
    ] = False,
    key_file: KeyFileOption = None,
    password_file: PasswordFileOption = None,
    generation: FilesGenerationOption = None,
    classic_only: ClassicOnlyOption = False,
) -> None:
    """Salvage all that is provably whole into a new directory; print what was left, row by row.

    \b
    Examples:
      penstock repair damaged --out salvaged
      penstock repair rabbit --out mended
    """
    keys = Keys(key_file=key_file, password_file=password_file)
    source = source_at(path, keys, generation, classic_only=classic_only)
    with bar(2 * source.size, "salvaging") as shown:
        for row in source.repair(out, Asked(uncommitted=uncommitted), shown.advance):
            emit(row)
    _finish(source)


def convert(
    path: PathArgument,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}."),
    ],
    out: OutOption,
    uncommitted: UncommittedOption = False,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="RabbitMQ: only this queue. Beats: where events go that name none.",
        ),
    ] = None,
    vhost: VhostOption = None,
    include_transient: TransientOption = False,
    include_expired: ExpiredOption = False,
    as_of: AsOfOption = None,
    properties: PropertiesOption = None,
    serialization: SerializationOption = None,
    compress: CompressOption = False,
    encrypt: EncryptOption = False,
    key_file: KeyFileOption = None,
    password_file: PasswordFileOption = None,
    generation: FilesGenerationOption = None,
    classic_only: ClassicOnlyOption = False,
) -> None:
    """Write PATH in another generation into a new directory; refuse what that one cannot hold.

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
    if to not in FORMATS:
        raise typer.BadParameter(
            f"{to!r} is not a format; choose one of {', '.join(FORMATS)}", param_hint="--to"
        )
    asked = Asked(
        uncommitted=uncommitted,
        queue=queue,
        vhost=vhost,
        include_transient=include_transient,
        include_expired=include_expired,
        as_of=as_of,
        properties=properties,
        serialization=serialization,
        compress=compress,
        encrypt=encrypt,
    )
    keys = Keys(key_file=key_file, password_file=password_file)
    source = source_at(path, keys, generation, classic_only=classic_only)
    with bar(source.size, "converting") as shown:
        row = source.convert(FORMATS[to], out, asked, shown.advance)
    emit(row)
    _finish(source)
