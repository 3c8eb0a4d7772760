"""The families of files that the commands read: which one a path is of, and what each can be asked.

The only place that knows both. The commands ask a ``Source`` and never what it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import typer

from penstock.errors import InvalidQueueName, PathRefused
from penstock.formats.taskflux.generation import Generation
from penstock.model import QueueName
from penstock.tools import target as taskflux_target
from penstock.tools import verify as taskflux_verify
from penstock.tools.dump import dump
from penstock.tools.history import Progress, read_history
from penstock.tools.inspect import inspect
from penstock.tools.rabbitmq import dump as rabbitmq_dump
from penstock.tools.rabbitmq import location as rabbitmq_location
from penstock.tools.rabbitmq import tasks as rabbitmq_tasks
from penstock.tools.rabbitmq import verify as rabbitmq_verify
from penstock.tools.rabbitmq.queue_reading import Wanted
from penstock.tools.rabbitmq.trouble import Trouble
from penstock.tools.replay import replay
from penstock.tools.rows import encode_payload

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What ``tasks`` was asked for; a family refuses what it does not know."""

    queue: str | None = None
    at: int | None = None
    uncommitted: bool = False
    vhost: str | None = None
    include_transient: bool = False
    include_expired: bool = False
    as_of: str | None = None

    def refuse_others(self, known: tuple[str, ...], whose: str) -> None:
        """Raise ``typer.BadParameter`` if something is asked for that is not known."""
        for one in fields(self):
            value = getattr(self, one.name)
            is_asked = value is not None and value is not False
            if is_asked and one.name not in known:
                raise typer.BadParameter(
                    f"the files are {whose}, which have no such thing; leave the flag out",
                    param_hint="--" + one.name.replace("_", "-"),
                )


class Source(Protocol):
    """Files of one family. ``words`` and ``is_damaged`` speak of what was read last, when it is read."""

    words: list[str]
    is_damaged: bool

    @property
    def size(self) -> int: ...

    def inspect(self, progress: Progress) -> Row: ...

    def dump(self, progress: Progress) -> Iterator[Row]: ...

    def tasks(self, asked: Asked, progress: Progress) -> Iterator[Row]: ...

    def verify(self, progress: Progress) -> Iterator[Row]: ...


def source_at(path: Path) -> Source:
    """Return the files at ``path``. Raises ``PathRefused`` or ``BadData``."""
    if rabbitmq_location.is_rabbitmq(path):
        return RabbitMQFiles(rabbitmq_location.resolve(path))
    return TaskFluxFiles(taskflux_target.resolve(path))


def writable_target(path: Path) -> taskflux_target.Target:
    """Return files that can be written anew elsewhere. Raises ``PathRefused`` or ``BadData``."""
    if rabbitmq_location.is_rabbitmq(path):
        raise PathRefused(
            f"{path}: files of RabbitMQ can only be read: see what they hold with 'penstock tasks'"
        )
    return taskflux_target.resolve(path)


class TaskFluxFiles:
    """A directory or a file of TaskFlux, or of ours."""

    KNOWN: Final = ("queue", "at", "uncommitted")

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
        try:
            only = None if asked.queue is None else QueueName(asked.queue)
        except InvalidQueueName as error:
            raise typer.BadParameter(str(error), param_hint="--queue") from None
        history = read_history(self.target, progress=progress)
        state = replay(history, at=asked.at, uncommitted=asked.uncommitted)
        if state.tail is not None:
            self.words, self.is_damaged = [state.tail], True
        has_ids = self.target.generation is Generation.THREE
        for name in sorted(state.queues.by_name):
            if only is not None and name != only:
                continue
            for task_id, key, payload in state.queues.by_name[name].in_order():
                row = {"queue": name, "key": key, "payload": encode_payload(payload)}
                yield row | {"id": task_id} if has_ids else row

    def verify(self, progress: Progress) -> Iterator[Row]:
        summary = taskflux_verify.Summary()
        count = 0
        for row in taskflux_verify.verify(self.target, progress=progress, summary=summary):
            count += 1
            yield row
        held = f"{summary.entries} entries, {summary.queues} queues, {summary.tasks} tasks"
        self.words, self.is_damaged = [f"{held}, {count} damaged places"], count > 0


class RabbitMQFiles:
    """The data directory of a RabbitMQ node, or a part of it."""

    KNOWN: Final = ("queue", "vhost", "include_transient", "include_expired", "as_of")

    def __init__(self, location: rabbitmq_location.Location) -> None:
        self.location = location
        self.words: list[str] = []
        self.is_damaged = False

    @property
    def size(self) -> int:
        return self.location.size

    def inspect(self, progress: Progress) -> Row:
        return rabbitmq_verify.inspect(self.location, progress=progress)

    def dump(self, progress: Progress) -> Iterator[Row]:
        return rabbitmq_dump.dump(self.location, progress=progress)

    def tasks(self, asked: Asked, progress: Progress) -> Iterator[Row]:
        asked.refuse_others(self.KNOWN, "RabbitMQ's")
        wanted = Wanted(
            as_of_us=time.time_ns() // 1000 if asked.as_of is None else _time_us(asked.as_of),
            transient=asked.include_transient,
            expired=asked.include_expired,
        )
        damaged = 0

        def tell(trouble: Trouble) -> None:
            nonlocal damaged
            damaged += trouble.is_damage

        yield from rabbitmq_tasks.tasks(
            self.location,
            wanted,
            tell=tell,
            vhost=None if asked.vhost is None else _bytes(asked.vhost),
            queue=None if asked.queue is None else _bytes(asked.queue),
            progress=progress,
        )
        self.is_damaged = damaged > 0
        if damaged:
            where = f"{self.location.path}: {damaged} places are damaged, or messages missing"
            self.words = [f"{where}; 'penstock verify' lists them"]

    def verify(self, progress: Progress) -> Iterator[Row]:
        summary = rabbitmq_verify.Summary()
        yield from rabbitmq_verify.verify(self.location, progress=progress, summary=summary)
        self.is_damaged = summary.damaged > 0
        held = f"{summary.messages} messages in {len(summary.queues)} queues, {summary.lost} lost"
        places = f"{summary.damaged} damaged places, {summary.harmless} harmless ones"
        self.words = [f"{held}, {places}"]


def _bytes(name: str) -> bytes:
    """Return a name as it was typed: arguments that are no UTF-8 come as surrogates."""
    return name.encode("utf-8", "surrogateescape")


def _time_us(text: str) -> int:
    """Return a moment in microseconds since 1970; one without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write it like 2026-01-31T12:00:00", param_hint="--as-of"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
