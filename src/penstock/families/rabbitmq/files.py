"""A broker's data directory, or a part of it: the operations on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidValue
from penstock.families.damage import Damage, is_damage
from penstock.families.family import Outcome, Progress, Row, Sending, Split, no_progress
from penstock.families.follow import Follower
from penstock.families.options import At, Values
from penstock.families.rabbitmq.family import DROP, TITLE
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
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.rows import other_row
from penstock.families.sources import Source, left_out_words
from penstock.families.tables import ReadOptions


class RabbitMQFiles:
    """The data directory of a node, or a part of it."""

    notice: Final = None

    def __init__(self, location: Location, *, classic_only: bool) -> None:
        self.path = location.path
        self._location = location
        self._classic_only = classic_only

    @property
    def root(self) -> Path:
        return self.path

    @property
    def size(self) -> int:
        return self._location.size

    def describe(self, *, uncommitted: bool) -> Source:
        from penstock.families.rabbitmq.tables.description import describe

        del uncommitted  # there is no commit index: what is stored counts
        return describe(str(self.path), self._location)

    def index_at(self, at: At) -> int:
        del at
        raise InvalidValue(
            f"{self.path}: files of RabbitMQ hold what is in the queues now and no state of another moment; omit --at"
        )

    def inspect(self, outcome: Outcome, progress: Progress) -> Row:
        from penstock.families.rabbitmq.verify import inspect

        row = inspect(self._location, progress=progress)
        outcome.is_damaged = bool(row["damage"])
        self._leave_out(outcome)
        return row | {"left_out": [other_row(other) for other in self._location.others]}

    def dump(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.rabbitmq.dump import dump

        for row in dump(self._location, progress=progress):
            outcome.is_damaged = outcome.is_damaged or is_damage(row)
            yield row
        others = self._leave_out(outcome)
        outcome.is_damaged = outcome.is_damaged or bool(others)
        yield from others

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.rabbitmq.tasks import tasks

        selection = selection_of(values, now_us())
        damage = _Damage()
        yield from tasks(
            self._location,
            selection.wanted,
            report=damage.add,
            vhost=selection.vhost,
            queue=selection.queue,
            progress=progress,
        )
        yield from self._leave_out(outcome, selection)
        self._judge(outcome, damage, Left())

    def verify(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.rabbitmq.verify import Summary, verify

        summary = Summary()
        yield from verify(self._location, progress=progress, summary=summary)
        outcome.is_damaged = summary.damage.damaged > 0
        held = f"{summary.messages} messages in {len(summary.queues)} queues, {summary.lost} lost"
        outcome.words.append(f"{held}, {summary.damage.words}")
        yield from self._leave_out(outcome)

    def repair(
        self, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Iterator[Row]:
        from penstock.families.rabbitmq.repair import MENDED, Repaired, repair

        del values
        result = Repaired()
        yield from repair(self._location, out, result, progress=progress)
        outcome.is_damaged = result.left > 0 or bool(result.mended)
        outcome.words += result.notes
        if result.odd_properties:
            outcome.words.append(
                f"{result.odd_properties} messages have properties that cannot be read, and were taken along as they are"
            )
        outcome.words += [
            f"{count} messages had {MENDED[word]}" for word, count in result.mended.items()
        ]
        held = f"{result.messages} messages in {result.queues} queues"
        if result.records:
            held = f"{result.records} records"
        outcome.words.append(f"{out}: {held} taken along; {result.left} places left behind")
        yield from self._leave_out(outcome, how="copied without being checked")

    def convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row:
        from penstock.families.rabbitmq.convert import convert
        from penstock.families.taskflux.files import variant_of, written

        variant = variant_of(to, TITLE)
        selection = selection_of(values, now_us())
        damage = _Damage()
        done = convert(
            self._location, variant, out, selection, report=damage.add, progress=progress
        )
        self._judge(outcome, damage, done.left)
        row = written(variant, out, done.entries, None, done.queues, done.tasks)
        left = {f"left_{name}": count for name, count in asdict(done.left).items()}
        return row | left | {"left_out": self._leave_out(outcome, selection)}

    def count_parts(self, values: Values) -> int:
        """Return how many queues there are."""
        return len(plan(self._location, selection_of(values, last_write_us(self._location))))

    def ingest(
        self,
        values: Values,
        outcome: Outcome,
        *,
        producer: str | None = None,
        part: int | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[Sending]:
        """Return what is to be sent. Messages expire as of the last write, which stays the same in every run."""
        selection = selection_of(values, last_write_us(self._location))
        targets = plan(self._location, selection)  # refuses before a node is asked
        if part is not None:
            targets = targets[part : part + 1]
        return self._sendings(targets, selection, producer, outcome, progress)

    def _sendings(
        self,
        targets: list[Target],
        selection: Selection,
        producer: str | None,
        outcome: Outcome,
        progress: Progress,
    ) -> Iterator[Sending]:
        damage = _Damage()
        for found in self._location.found_damage:
            damage.add(found)
        total = Left()
        for queue, requests, left in read_requests(
            targets, selection, report=damage.add, producer=producer, progress=progress
        ):
            yield Sending(queue=queue, requests=requests, left=left, owner=f"queue {queue!r}")
            total.add(left)
        if total.expired:
            moment = datetime.fromtimestamp(selection.wanted.as_of_us / 1_000_000, UTC)
            outcome.words.append(
                f"{total.expired} messages were left out that had expired at {moment.isoformat()}, when the files"
                " were written last or as --as-of says; --include-expired takes them along"
            )
        self._leave_out(outcome, selection)
        self._judge(outcome, damage, total)

    def plan(self, options: ReadOptions) -> list[Split]:
        from penstock.families.rabbitmq.tables.plan import plan_source

        return plan_source(str(self.path), self._location, options)

    def follow(self, options: ReadOptions) -> Follower:
        del options
        raise InvalidValue(f"{self.path}: has no log that a stream could follow; read it instead")

    def _leave_out(
        self, outcome: Outcome, selection: Selection | None = None, how: str = "left out"
    ) -> list[Row]:
        """Return a row for each queue that is not read, none if the caller accepts that; report how many there are."""
        others = self._location.others
        if selection is not None:
            asked_for = (selection.vhost, selection.queue)
            others = tuple(other for other in others if other.is_asked_for(*asked_for))
        if not others:
            return []
        outcome.is_complete = self._classic_only
        words = left_out_words([other.words for other in others], how)
        outcome.words.append(f"{self.path}: {words}")
        return [] if self._classic_only else [other_row(other) for other in others]

    def _judge(self, outcome: Outcome, damage: _Damage, left: Left) -> None:
        """Report what a finished read has found."""
        outcome.is_damaged = damage.count + left.lost + left.too_large > 0
        if damage.count:
            where = f"{self.path}: {damage.count} places are damaged, or messages missing"
            outcome.words.append(f"{where}; 'penstock verify' lists them")
        if left.too_large:
            outcome.words.append(
                f"{left.too_large} messages were left out: no node takes tasks so large"
            )


class _Damage:
    """Counts damage."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, damage: Damage) -> None:
        self.count += not damage.is_harmless and damage.status != TOO_LARGE


def selection_of(values: Values, as_of_us: int) -> Selection:
    """Return the messages that options select; ``as_of_us`` is the time of expiry unless an option gives one."""
    return Selection(
        wanted=Wanted(
            as_of_us=values.get("as_of", as_of_us),
            transient="include_transient" in values,
            expired="include_expired" in values,
        ),
        vhost=_bytes(values.get("vhost")),
        queue=_bytes(values.get("queue")),
        with_envelope=values.get("properties") != DROP,
    )


def now_us() -> int:
    return time.time_ns() // 1000


def _bytes(name: Any) -> bytes | None:
    """Return a name as it was typed: arguments that are not UTF-8 arrive as surrogates."""
    return None if name is None else str(name).encode("utf-8", "surrogateescape")
