"""A spool, or one file of it: the operations on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from penstock.errors import InvalidOption, InvalidValue
from penstock.families.beats.damage import LEFT_OUT, TOO_DEEP, is_counted, too_deep_words
from penstock.families.beats.family import CBOR, NAME, TITLE, key_of
from penstock.families.beats.location import Location
from penstock.families.beats.versions import FORMATS, SegmentVersion
from penstock.families.damage import Damage, is_damage
from penstock.families.family import Outcome, Progress, Row, Sending, Split, no_progress, queue_of
from penstock.families.follow import Follower
from penstock.families.options import At, Values
from penstock.families.sources import Source
from penstock.families.tables import ReadOptions
from penstock.formats.beats.segment import NO_OPTIONS, Options, segment_options
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue

NOTES_MAX: Final = 10
"""Oddities that are no damage and are reported one by one; a spool may have one in each of thousands of files."""


class BeatsFiles:
    """A spool, or one file of it."""

    notice: Final = None

    def __init__(self, location: Location, values: Values) -> None:
        self.path = location.path
        self._location = location
        self._values = values

    @property
    def root(self) -> Path:
        return self.path

    @property
    def size(self) -> int:
        return self._location.size

    @property
    def _key(self) -> bytes | None:
        return key_of(self._values)

    def describe(self, *, uncommitted: bool) -> Source:
        from penstock.families.beats.tables.description import describe

        del uncommitted  # there is no commit index: what is stored counts
        return describe(str(self.path), self._location)

    def index_at(self, at: At) -> int:
        del at
        raise InvalidValue(
            f"{self.path}: a spool holds what is in it now and no state of another moment; omit --at"
        )

    def inspect(self, outcome: Outcome, progress: Progress) -> Row:
        from penstock.families.beats.verify import inspect

        row = inspect(self._location, key=self._key, progress=progress)
        outcome.is_damaged = bool(row["damage"])
        return row

    def dump(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.beats.dump import dump

        for row in dump(self._location, key=self._key, progress=progress):
            outcome.is_damaged = outcome.is_damaged or is_damage(row)
            yield row

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.beats.tasks import tasks

        damage = _Damage()
        yield from tasks(
            self._location,
            key=self._key,
            report=damage.add,
            queue=values.get("queue"),
            progress=progress,
        )
        damage.judge(self.path, outcome)
        outcome.is_damaged = outcome.is_damaged or damage.too_deep > 0  # events that are not shown

    def verify(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.beats.verify import Summary, verify

        summary = Summary()
        yield from verify(self._location, key=self._key, progress=progress, summary=summary)
        outcome.is_damaged = summary.damage.damaged > 0
        held = f"{summary.frames} events in {len(summary.segments)} segments, {summary.waiting} waiting"
        outcome.words.append(f"{held}, {summary.damage.words}")

    def repair(
        self, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Iterator[Row]:
        from penstock.families.beats.repair import Repaired, repair

        del values
        result = Repaired()
        yield from repair(self._location, out, result, key=self._key, progress=progress)
        outcome.is_damaged = result.left > 0
        outcome.words += _first_of(result.notes)
        held = f"{result.frames} events in {result.segments} segments taken along"
        outcome.words.append(f"{out}: {held}; {result.left} places left behind")

    def convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row:
        if to in FORMATS:
            return self._respool(FORMATS[to], out, values, outcome, progress)
        return self._convert(to, out, values, outcome, progress)

    def _respool(
        self,
        to: SegmentVersion,
        out: Path,
        values: Values,
        outcome: Outcome,
        progress: Progress,
    ) -> Row:
        from penstock.families.beats.convert import respool
        from penstock.families.beats.rewriting import ROUND_LOST
        from penstock.families.beats.rows import option_names

        options = self._segment_options(to, values)
        damage = _Damage()
        done = respool(
            self._location,
            to,
            out,
            key=self._key,
            options=options,
            report=damage.add,
            progress=progress,
        )
        if done.is_round_lost:
            outcome.words.append(ROUND_LOST)
        if to is SegmentVersion.ONE:
            outcome.words.append(
                "Beats 8.4 and later pass over segments of version 1 that nothing was read of; beats-2 is for them"
            )
        damage.judge(self.path, outcome)
        outcome.is_damaged = outcome.is_damaged or done.left_too_deep > 0
        return {
            "family": NAME,
            "version": int(to),
            "options": option_names(options),
            "path": str(out),
            "segments": done.segments,
            "frames": done.frames,
            "left_unencodable": done.left_unencodable,
            "left_too_deep": done.left_too_deep,
        }

    def _segment_options(self, to: SegmentVersion, values: Values) -> Options:
        """Return the options of the segments to write. Raises ``InvalidOption``."""
        from penstock.families.beats.convert import is_encrypted
        from penstock.storage.spool_values import NEEDS_KEY

        known = {"key_file", "password_file"}
        if to is SegmentVersion.TWO:
            known |= {"serialization", "compress", "encrypt"}
        for name in values:
            if name not in known:
                raise InvalidOption(name, f"it does not apply to beats-{int(to)}; omit it")
        if to is SegmentVersion.ONE:
            return NO_OPTIONS
        # A key that opens nothing can only be meant for what is written.
        is_key_named = "key_file" in values or "password_file" in values
        is_to_be_encrypted = "encrypt" in values or (
            is_key_named and not is_encrypted(self._location)
        )
        if is_to_be_encrypted and self._key is None:
            raise InvalidOption("encrypt", NEEDS_KEY)
        try:
            return segment_options(
                serialization=values.get("serialization", CBOR),
                compress="compress" in values,
                encrypt=is_to_be_encrypted,
            )
        except InvalidValue as error:
            raise InvalidOption("serialization", str(error)) from None

    def _convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row:
        from penstock.families.beats.convert import convert
        from penstock.families.taskflux.files import variant_of, written

        variant = variant_of(to, TITLE)
        for name in ("serialization", "compress", "encrypt"):
            if name in values:
                raise InvalidOption(name, f"it does not apply to {to}; omit it")
        damage = _Damage()
        done = convert(
            self._location,
            variant,
            out,
            key=self._key,
            report=damage.add,
            queue=queue_of(values),
            progress=progress,
        )
        if done.terms_dropped:
            outcome.words.append(
                f"{done.terms_dropped} tasks had a delay or an expiry, which do not survive a conversion"
            )
        damage.judge(self.path, outcome)
        row = written(variant, out, done.entries, None, done.queues, done.tasks)
        return row | {"left_too_large": done.left.too_large, "too_deep": damage.too_deep}

    def count_parts(self, values: Values) -> int:
        del values
        return 1

    def ingest(
        self,
        values: Values,
        outcome: Outcome,
        *,
        producer: str | None = None,
        part: int | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[Sending]:
        """Return what is to be sent. The option ``queue`` is where events go that name none."""
        from penstock.families.beats.ingest import read_requests

        del part  # frames have one order
        damage = _Damage()
        too_large: Counter[QueueName] = Counter()
        requests = read_requests(
            self._location,
            key=self._key,
            report=damage.add,
            otherwise=queue_of(values),
            too_large=too_large,
            producer=producer,
            progress=progress,
        )
        return self._sendings(requests, too_large, damage, outcome)

    def _sendings(
        self,
        requests: Iterator[Enqueue],
        too_large: Counter[QueueName],
        damage: _Damage,
        outcome: Outcome,
    ) -> Iterator[Sending]:
        """Cut where a queue is met that must be created first; a queue's tasks need not stand together."""
        from penstock.families.beats.ingest import Left

        known: set[QueueName] = set()
        coming = list(islice(requests, 1))

        def of_known() -> Iterator[Enqueue]:
            while coming and coming[0].queue in known:
                yield coming.pop()
                coming.extend(islice(requests, 1))

        nothing = Left()
        while coming:
            queue = coming[0].queue
            known.add(queue)
            yield Sending(queue=queue, requests=of_known(), left=nothing, owner="the node")
        for queue, count in too_large.items():
            left = Left(too_large=count)
            yield Sending(queue=queue, requests=iter(()), left=left, owner="the node")
        damage.judge(self.path, outcome)

    def plan(self, options: ReadOptions) -> list[Split]:
        from penstock.families.beats.tables.plan import plan_source

        return plan_source(str(self.path), self._location, options)

    def follow(self, options: ReadOptions) -> Follower:
        from penstock.families.beats.tables.growth import GrowingSpool

        return GrowingSpool(self.path, options)


class _Damage:
    """Counts what a read reports."""

    def __init__(self) -> None:
        self.too_deep = 0  # events that were not decoded
        self._is_loss = False
        self._places = 0
        self._left: Counter[str] = Counter()  # events that were left out, by status
        self._notes: list[str] = []

    def add(self, damage: Damage) -> None:
        self._is_loss = self._is_loss or damage.is_lost
        if damage.status in LEFT_OUT:
            self._left[damage.status] += 1
        elif damage.status == TOO_DEEP:
            self.too_deep += 1
        elif is_counted(damage):
            self._places += 1
        else:
            self._notes.append(damage.words)

    def judge(self, path: Path, outcome: Outcome) -> None:
        """Report what a finished read has found."""
        outcome.is_damaged = self._is_loss
        outcome.words += _first_of(self._notes)
        if self._places:
            where = f"{path}: {self._places} places are damaged"
            outcome.words.append(f"{where}; 'penstock verify' lists them")
        if self.too_deep:
            outcome.words.append(too_deep_words(self.too_deep))
        for status, count in self._left.items():
            outcome.words.append(f"{count} events were left out: {LEFT_OUT[status]}")


def _first_of(notes: list[str]) -> list[str]:
    """Return the first notes, and how many there are beside."""
    more = len(notes) - NOTES_MAX
    return notes if more <= 0 else [*notes[:NOTES_MAX], f"and {more} more of this kind"]
