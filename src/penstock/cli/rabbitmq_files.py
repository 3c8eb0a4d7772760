"""The commands over files at rest, given the data directory of a RabbitMQ node or a part of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from penstock.cli.families import Asked, Format, Row, Sending, left_fields, refuse_spool, written
from penstock.families.progress import Progress
from penstock.families.rabbitmq.convert import convert
from penstock.families.rabbitmq.dump import dump
from penstock.families.rabbitmq.ingest import (
    TOO_LARGE,
    Left,
    Selection,
    Target,
    last_write_us,
    plan,
    read_requests,
)
from penstock.families.rabbitmq.location import Location
from penstock.families.rabbitmq.other_queues import left_out_words
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.repair import MENDED, Repaired, repair
from penstock.families.rabbitmq.rows import other_row
from penstock.families.rabbitmq.tasks import tasks_or_lines
from penstock.families.rabbitmq.trouble import Trouble
from penstock.families.rabbitmq.verify import Summary, inspect, verify


class RabbitMQFiles:
    """The data directory of a RabbitMQ node, or a part of it."""

    KNOWN: Final = ("queue", "vhost", "include_transient", "include_expired", "as_of")

    def __init__(self, location: Location, *, classic_only: bool) -> None:
        self.location = location
        self.words: list[str] = []
        self.is_damaged = False
        self.is_complete = True
        self._classic_only = classic_only
        self._damaged = 0  # places, as they are told

    @property
    def size(self) -> int:
        return self.location.size

    def inspect(self, progress: Progress) -> Row:
        row = inspect(self.location, progress=progress)
        self._left_out()
        return row | {"left_out": [other_row(other) for other in self.location.others]}

    def dump(self, progress: Progress) -> Iterator[Row]:
        yield from dump(self.location, progress=progress)
        yield from self._left_out()

    def tasks(self, asked: Asked, progress: Progress) -> Iterator[Row | memoryview]:
        asked.refuse_others(self.KNOWN, "RabbitMQ's")
        selection = self._selection(asked, now_us())
        yield from tasks_or_lines(
            self.location,
            selection.wanted,
            tell=self._tell,
            vhost=selection.vhost,
            queue=selection.queue,
            progress=progress,
        )
        yield from self._left_out(selection)
        self._judge(Left())

    def _left_out(self, selection: Selection | None = None, how: str = "left out") -> list[Row]:
        """Return a row for each queue that is not read, none if the caller accepts that; report how many there are."""
        others = self.location.others
        if selection is not None:
            asked_for = (selection.vhost, selection.queue)
            others = tuple(other for other in others if other.is_asked_for(*asked_for))
        if not others:
            return []
        self.is_complete = self._classic_only
        self.words.append(
            f"{self.location.path}: {left_out_words([other.words for other in others], how)}"
        )
        return [] if self._classic_only else [other_row(other) for other in others]

    def _selection(self, asked: Asked, as_of_us: int) -> Selection:
        if asked.properties not in (None, "envelope", "drop"):
            raise typer.BadParameter(
                f"{asked.properties!r} is neither envelope nor drop", param_hint="--properties"
            )
        wanted = Wanted(
            as_of_us=as_of_us if asked.as_of is None else _time_us(asked.as_of),
            transient=asked.include_transient,
            expired=asked.include_expired,
        )
        return Selection(
            wanted=wanted,
            vhost=None if asked.vhost is None else _bytes(asked.vhost),
            queue=None if asked.queue is None else _bytes(asked.queue),
            with_envelope=asked.properties != "drop",
        )

    def _tell(self, trouble: Trouble) -> None:
        self._damaged += trouble.is_damage and trouble.status != TOO_LARGE

    def _judge(self, left: Left) -> None:
        """Say what a reading that is over has met."""
        self.is_damaged = self._damaged + left.lost + left.too_large > 0
        if self._damaged:
            where = f"{self.location.path}: {self._damaged} places are damaged, or messages missing"
            self.words.append(f"{where}; 'penstock verify' lists them")
        if left.too_large:
            self.words.append(
                f"{left.too_large} messages were left out: no node takes tasks so large"
            )

    def verify(self, progress: Progress) -> Iterator[Row]:
        summary = Summary()
        yield from verify(self.location, progress=progress, summary=summary)
        self.is_damaged = summary.damaged > 0
        held = f"{summary.messages} messages in {len(summary.queues)} queues, {summary.lost} lost"
        places = f"{summary.damaged} damaged places, {summary.harmless} harmless ones"
        self.words.append(f"{held}, {places}")
        yield from self._left_out()

    def repair(self, out: Path, asked: Asked, progress: Progress) -> Iterator[Row]:
        asked.refuse_others((), "RabbitMQ's")
        result = Repaired()
        yield from repair(self.location, out, result, progress=progress)
        self.is_damaged = result.left > 0 or bool(result.mended)
        self.words += result.notes
        if result.odd_properties:
            self.words.append(
                f"{result.odd_properties} messages have properties that cannot be read, and were taken along as they are"
            )
        self.words += [
            f"{count} messages had {MENDED[word]}" for word, count in result.mended.items()
        ]
        held = f"{result.messages} messages in {result.queues} queues"
        if result.records:
            held = f"{result.records} records"
        self.words.append(f"{out}: {held} taken along; {result.left} places left behind")
        yield from self._left_out(how="copied without being checked")

    def convert(self, to: Format, out: Path, asked: Asked, progress: Progress) -> Row:
        asked.refuse_others((*self.KNOWN, "properties"), "RabbitMQ's")
        to = refuse_spool(to, "RabbitMQ")
        selection = self._selection(asked, now_us())
        done = convert(self.location, to, out, selection, tell=self._tell, progress=progress)
        self._judge(done.left)
        row = written(to, out, done.entries, None, done.queues, done.tasks)
        return row | left_fields(done.left) | {"left_out": self._left_out(selection)}

    def requests(self, asked: Asked, producer: str | None, progress: Progress) -> Iterator[Sending]:
        """Return what is to be sent. Messages expire as of the last write, for that stays the same."""
        asked.refuse_others((*self.KNOWN, "properties"), "RabbitMQ's")
        selection = self._selection(asked, last_write_us(self.location))
        targets = plan(self.location, selection)  # refuses before anybody is asked for a node
        return self._sendings(targets, selection, producer, progress)

    def _sendings(
        self,
        targets: list[Target],
        selection: Selection,
        producer: str | None,
        progress: Progress,
    ) -> Iterator[Sending]:
        for trouble in self.location.troubles:
            self._tell(trouble)
        total = Left()
        for queue, requests, left in read_requests(
            targets, selection, tell=self._tell, producer=producer, progress=progress
        ):
            yield Sending(queue=queue, requests=requests, left=left, whose=f"queue {queue!r}")
            total.add(left)
        if total.expired:
            moment = datetime.fromtimestamp(selection.wanted.as_of_us / 1_000_000, UTC)
            self.words.append(
                f"{total.expired} messages were left out that had expired at {moment.isoformat()}, when the files"
                " were written last or as --as-of says; --include-expired takes them along"
            )
        self._left_out(selection)
        self._judge(total)


def now_us() -> int:
    return time.time_ns() // 1000


def _bytes(name: str) -> bytes:
    """Return a name as it was typed: arguments that are no UTF-8 come as surrogates."""
    return name.encode("utf-8", "surrogateescape")


def _time_us(text: str) -> int:
    """Return a moment in microseconds since 1970; one without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write it like 2026-01-31T12:00:00", param_hint="--as-of"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
