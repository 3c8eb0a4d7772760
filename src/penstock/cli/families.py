"""The families of files that the commands read: which one a path is of, and what each can be asked.

The only place that knows both. The commands ask a ``Source`` and never what it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from penstock.cli.output import say
from penstock.errors import CannotConvert, InvalidQueueName, PathRefused, QueueMissing
from penstock.families.beats import location as beats_location
from penstock.families.beats.versions import FORMATS as BEATS_FORMATS
from penstock.families.beats.versions import SegmentVersion
from penstock.families.progress import Progress
from penstock.families.rabbitmq import location as rabbitmq_location
from penstock.families.rabbitmq.ingest import Left
from penstock.families.taskflux import convert as taskflux_convert
from penstock.families.taskflux import location as taskflux_target
from penstock.families.taskflux import repair as taskflux_repair
from penstock.families.taskflux import verify as taskflux_verify
from penstock.families.taskflux.dump import dump
from penstock.families.taskflux.inspect import inspect
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.replay import replay
from penstock.families.taskflux.rows import encode_payload
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import Variant
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue

if TYPE_CHECKING:
    from penstock.families.beats.ingest import Left as SpoolLeft

Row = dict[str, Any]

Format = Variant | SegmentVersion
FORMATS: Final[dict[str, Format]] = {**taskflux_convert.FORMATS, **BEATS_FORMATS}
"""What a conversion writes, by the names that people type."""

AsOfWrittenOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="RabbitMQ: leave out what has expired at this time; else when PATH was written last.",
    ),
]
VhostOption = Annotated[str | None, typer.Option(metavar="NAME", help="RabbitMQ: only this vhost.")]
TransientOption = Annotated[
    bool,
    typer.Option("--include-transient", help="RabbitMQ: also messages that a restart forgets."),
]
ExpiredOption = Annotated[
    bool, typer.Option("--include-expired", help="RabbitMQ: also messages that have expired.")
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="RabbitMQ: leave out what has expired at this time, 2026-01-31T12:00:00 in UTC; else now.",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        readable=False,
        help="Beats: the key of encrypted segments; else the variable PENSTOCK_SPOOL_KEY.",
    ),
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        readable=False,
        help="Beats: the password that the key is derived from.",
    ),
]
CBOR: Final = "cbor"
"""The serialization of spools where none is asked for."""

SerializationOption = Annotated[
    str | None,
    typer.Option(
        "--serialization",
        metavar="FORM",
        help=f"Spools: events as {CBOR} or protobuf; else {CBOR}.",
    ),
]
CompressOption = Annotated[bool, typer.Option("--compress", help="Spools: write with LZ4.")]
EncryptOption = Annotated[
    bool, typer.Option("--encrypt", help="Spools: write encrypted, with the key that is given.")
]
FilesGenerationOption = Annotated[
    int | None,
    typer.Option(
        "--generation",
        metavar="N",
        min=1,
        max=3,
        help="TaskFlux: which files to read, 1, 2 or 3, if PATH holds two sets of them.",
    ),
]
ClassicOnlyOption = Annotated[
    bool,
    typer.Option(
        "--classic-only",
        help="RabbitMQ: accept that quorum queues and streams are left out; without it the exit code is 1.",
    ),
]
PropertiesOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="RabbitMQ: 'envelope' puts a line of JSON before each body, 'drop' nothing; else envelope.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command was asked for; a family refuses what it does not know."""

    queue: str | None = None
    at: int | None = None
    uncommitted: bool = False
    vhost: str | None = None
    include_transient: bool = False
    include_expired: bool = False
    as_of: str | None = None
    properties: str | None = None
    serialization: str | None = None
    compress: bool = False
    encrypt: bool = False

    def refuse_others(self, known: tuple[str, ...], whose: str) -> None:
        """Raise ``typer.BadParameter`` if something is asked for that is not known."""
        for one in fields(self):
            value = getattr(self, one.name)
            is_asked = value is not None and value is not False
            if is_asked and one.name not in known:
                raise typer.BadParameter(
                    f"the files are {whose}, to which this flag does not apply; omit it",
                    param_hint="--" + one.name.replace("_", "-"),
                )


class Source(Protocol):
    """Files of one family. ``words`` and ``is_damaged`` speak of what was read last, when it is read."""

    words: list[str]
    is_damaged: bool
    is_complete: (
        bool  # False if the files hold queues that are not read, and the caller did not accept that
    )

    @property
    def size(self) -> int: ...

    def inspect(self, progress: Progress) -> Row: ...

    def dump(self, progress: Progress) -> Iterator[Row]: ...

    def tasks(self, asked: Asked, progress: Progress) -> Iterator[Row | memoryview]:
        """Yield rows, or many rows at a time as the lines that they are printed as."""
        ...

    def verify(self, progress: Progress) -> Iterator[Row]: ...

    def repair(self, out: Path, asked: Asked, progress: Progress) -> Iterator[Row]: ...

    def convert(self, to: Format, out: Path, asked: Asked, progress: Progress) -> Row: ...

    def requests(
        self, asked: Asked, producer: str | None, progress: Progress
    ) -> Iterator[Sending]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Requests that put tasks in, numbered alike in every run; the first needs ``queue``, the others no new one."""

    queue: QueueName
    requests: Iterator[Enqueue]
    left: Left | SpoolLeft  # complete when the requests are used up
    whose: str  # what an earlier run was given other messages of


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where the key of encrypted files is."""

    key_file: Path | None = None
    password_file: Path | None = None

    @property
    def are_named(self) -> bool:
        """Whether a key was named by a flag, and not only left in the environment."""
        return self.key_file is not None or self.password_file is not None

    def read(self) -> bytes | None:
        """Return the key, or ``None``. Raises ``InvalidValue`` or ``PathMissing``."""
        from penstock.families.beats.keys import read_key

        return read_key(self.key_file, self.password_file, os.environ)

    def refuse(self, whose: str) -> None:
        """Raise ``typer.BadParameter`` if a key was named for files that have none."""
        for value, name in ((self.key_file, "--key-file"), (self.password_file, "--password-file")):
            if value is not None:
                raise typer.BadParameter(
                    f"the files are {whose}, which are never encrypted; omit the flag",
                    param_hint=name,
                )


def source_at(
    path: Path, keys: Keys, generation: int | None = None, *, classic_only: bool = False
) -> Source:
    """Return the files at ``path``. Raises ``PathRefused``, ``BadData`` or ``InvalidValue``."""
    if rabbitmq_location.is_rabbitmq(path):
        keys.refuse("RabbitMQ's")
        _refuse_generation(generation, "RabbitMQ's")
        from penstock.cli.rabbitmq_files import RabbitMQFiles

        return RabbitMQFiles(rabbitmq_location.resolve(path), classic_only=classic_only)
    if classic_only:
        raise typer.BadParameter(
            "the files are not RabbitMQ's, to which alone this flag applies; omit it",
            param_hint="--classic-only",
        )
    if beats_location.is_beats(path):
        _refuse_generation(generation, "Beats'")
        from penstock.cli.beats_files import BeatsFiles  # needs libraries that not everybody has

        return BeatsFiles(beats_location.resolve(path), keys.read(), is_key_named=keys.are_named)
    wanted = None if generation is None else Generation(generation)
    target = taskflux_target.resolve(path, wanted)
    keys.refuse("TaskFlux's")
    if target.notice is not None:
        say(target.notice)
    return TaskFluxFiles(target)


def _refuse_generation(generation: int | None, whose: str) -> None:
    """Raise ``typer.BadParameter`` if a generation was named for files that have none."""
    if generation is not None:
        raise typer.BadParameter(
            f"the files are {whose}, which have no generations; omit the flag",
            param_hint="--generation",
        )


def refuse_spool(to: Format, whose: str) -> Variant:
    """Return the variant that was asked for. Raises ``CannotConvert``."""
    if isinstance(to, SegmentVersion):
        raise CannotConvert(
            f"files of {whose} are not written as segments of Beats; choose one of"
            f" {', '.join(taskflux_convert.FORMATS)}"
        )
    return to


class TaskFluxFiles:
    """A directory or a file of TaskFlux, or of ours."""

    KNOWN: Final = ("queue", "at", "uncommitted")
    is_complete = True

    def __init__(self, target: taskflux_target.Target) -> None:
        self.target = target
        self.words: list[str] = []
        self.is_damaged = False

    @property
    def size(self) -> int:
        return self.target.size

    def inspect(self, progress: Progress) -> Row:
        return inspect(self.target, progress=progress)

    def dump(self, progress: Progress) -> Iterator[Row]:
        return dump(self.target, progress=progress)

    def tasks(self, asked: Asked, progress: Progress) -> Iterator[Row]:
        asked.refuse_others(self.KNOWN, "TaskFlux's")
        only = queue_asked(asked)
        history = read_history(self.target, progress=progress)
        state = replay(history, at=asked.at, uncommitted=asked.uncommitted)
        if only is not None and only not in state.queues.by_name:
            raise queue_missing(only)
        self.words = [words for words in (state.tail, state.damage, state.undecided) if words]
        self.is_damaged = state.tail is not None or state.damage is not None
        has_ids = self.target.generation is Generation.THREE
        for name in sorted(state.queues.by_name):
            if only is not None and name != only:
                continue
            for task_id, key, payload in state.queues.by_name[name].in_order():
                row = {"queue": name, "key": key, "payload": encode_payload(payload)}
                yield row | {"id": task_id} if has_ids else row

    def verify(self, progress: Progress) -> Iterator[Row]:
        summary = taskflux_verify.Summary()
        count = harmless = 0
        for row in taskflux_verify.verify(self.target, progress=progress, summary=summary):
            is_harmless = bool(row.get("harmless"))
            count, harmless = count + (not is_harmless), harmless + is_harmless
            yield row
        held = f"{summary.entries} entries, {summary.queues} queues, {summary.tasks} tasks"
        places = f"{count} damaged places"
        if harmless:
            places += f", {harmless} harmless ones"
        self.words, self.is_damaged = [f"{held}, {places}"], count > 0

    def repair(self, out: Path, asked: Asked, progress: Progress) -> Iterator[Row]:
        asked.refuse_others(("uncommitted",), "TaskFlux's")
        result = taskflux_repair.Repaired()
        yield from taskflux_repair.repair(
            self.target, out, result, uncommitted=asked.uncommitted, progress=progress
        )
        self.is_damaged = result.left > 0
        held = (
            f"{result.entries} entries taken along, {result.tasks} tasks in {result.queues} queues"
        )
        self.words = list(dict.fromkeys(result.notes))
        self.words.append(f"{out}: {held}; {result.left} places left behind")

    def convert(self, to: Format, out: Path, asked: Asked, progress: Progress) -> Row:
        asked.refuse_others(("uncommitted",), "TaskFlux's")
        to = refuse_spool(to, "TaskFlux")
        history = read_history(self.target, progress=progress)
        done = taskflux_convert.convert(history, to, out, uncommitted=asked.uncommitted)
        self.words, self.is_damaged = list(_words_of_conversion(done)), done.tail is not None
        return written(to, out, done.entries, done.snapshot_index, done.queues, done.tasks) | {
            "left_uncommitted": done.left_uncommitted,
            "dropped_extensions": done.dropped_extensions,
            "dropped_notes": done.dropped_notes,
        }

    def requests(self, asked: Asked, producer: str | None, progress: Progress) -> Iterator[Sending]:
        del asked, producer, progress
        raise PathRefused(
            f"{self.target.path}: --from does not read files of TaskFlux; use 'penstock tasks PATH | penstock enqueue --json',"
            " or 'penstock pipeline migrate', which can be repeated"
        )


def written(
    to: Variant, out: Path, entries: int, snapshot_index: int | None, queues: int, tasks: int
) -> Row:
    return {
        "family": taskflux_target.FAMILY,
        "generation": int(to.generation),
        "path": str(out),
        "entries": entries,
        "snapshot_index": snapshot_index,
        "queues": queues,
        "tasks": tasks,
    }


def _words_of_conversion(done: taskflux_convert.Converted) -> Iterator[str]:
    if done.dropped_extensions or done.dropped_notes:
        yield (
            f"{done.dropped_extensions} extensions and {done.dropped_notes} notes were dropped: delays, expiries,"
            " attempts, queue options and the memory of retries do not survive a conversion"
        )
    if done.left_uncommitted:
        yield f"{done.left_uncommitted} uncommitted entries were left out; --uncommitted takes them along"
    if done.tail is not None:
        yield done.tail
    if done.undecided is not None:
        yield done.undecided


def queue_asked(asked: Asked) -> QueueName | None:
    try:
        return None if asked.queue is None else QueueName(asked.queue)
    except InvalidQueueName as error:
        raise typer.BadParameter(str(error), param_hint="--queue") from None


def queue_missing(name: str) -> QueueMissing:
    """Return the refusal of a queue that the files do not have."""
    return QueueMissing(f"there is no queue {name!r}; omit --queue to see all queues")


def left_fields(left: Left | SpoolLeft) -> Row:
    """Return how many messages were left out, and why."""
    return {f"left_{one.name}": getattr(left, one.name) for one in fields(left)}
