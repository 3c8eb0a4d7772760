"""The commands over files at rest, given a spool of Beats or of ours, or one file of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import typer

from penstock.cli.families import (
    CBOR,
    Asked,
    Format,
    Row,
    Sending,
    left_fields,
    queue_asked,
    written,
)
from penstock.errors import InvalidValue
from penstock.families.beats.convert import convert, is_encrypted, respool
from penstock.families.beats.dump import dump
from penstock.families.beats.ingest import Left, read_requests
from penstock.families.beats.location import FAMILY, Location
from penstock.families.beats.repair import Repaired, repair
from penstock.families.beats.rewriting import ROUND_LOST
from penstock.families.beats.rows import option_names
from penstock.families.beats.tasks import tasks
from penstock.families.beats.trouble import LEFT_OUT, TOO_DEEP, Trouble, too_deep_words
from penstock.families.beats.verify import Summary, inspect, verify
from penstock.families.beats.versions import SegmentVersion
from penstock.families.progress import Progress
from penstock.formats.beats.segment import NO_OPTIONS, Options, segment_options
from penstock.formats.taskflux.variant import Variant
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue
from penstock.storage.spool_values import NEEDS_KEY

NOTES_MAX: Final = 10
"""Oddities that are no damage and are said one by one; a spool may have one in each of thousands of files."""


class BeatsFiles:
    """A spool: the directory of Beats' disk queue, or of ours; or one file of it."""

    is_complete = True

    def __init__(self, location: Location, key: bytes | None, *, is_key_named: bool) -> None:
        """``is_key_named``: the key was given by a flag, and is not just in the environment."""
        self.location = location
        self.key = key
        self._is_key_named = is_key_named
        self.words: list[str] = []
        self.is_damaged = False
        self._damaged = 0  # places, as they are told
        self._left: Counter[str] = Counter()  # events that were left out, by status
        self._too_deep = 0  # events that were not decoded
        self._notes: list[str] = []

    @property
    def size(self) -> int:
        return self.location.size

    def inspect(self, progress: Progress) -> Row:
        return inspect(self.location, key=self.key, progress=progress)

    def dump(self, progress: Progress) -> Iterator[Row]:
        return dump(self.location, key=self.key, progress=progress)

    def tasks(self, asked: Asked, progress: Progress) -> Iterator[Row | memoryview]:
        asked.refuse_others(("queue",), "Beats'")
        yield from tasks(
            self.location, key=self.key, tell=self._tell, queue=asked.queue, progress=progress
        )
        self.is_damaged = self.is_damaged or self._too_deep > 0  # their events are not shown
        self._judge()

    def _tell(self, trouble: Trouble) -> None:
        self.is_damaged = self.is_damaged or trouble.is_loss
        if trouble.status in LEFT_OUT:
            self._left[trouble.status] += 1
        elif trouble.status == TOO_DEEP:
            self._too_deep += 1
        elif trouble.is_counted:
            self._damaged += 1
        else:
            self._notes.append(trouble.words)

    def _judge(self) -> None:
        """Say what a reading that is over has met."""
        self.words += _first_of(self._notes)
        if self._damaged:
            where = f"{self.location.path}: {self._damaged} places are damaged"
            self.words.append(f"{where}; 'penstock verify' lists them")
        if self._too_deep:
            self.words.append(too_deep_words(self._too_deep))
        for status, count in self._left.items():
            self.words.append(f"{count} events were left out: {LEFT_OUT[status]}")

    def verify(self, progress: Progress) -> Iterator[Row]:
        summary = Summary()
        yield from verify(self.location, key=self.key, progress=progress, summary=summary)
        self.is_damaged = summary.damaged > 0
        held = f"{summary.frames} events in {len(summary.segments)} segments, {summary.waiting} waiting"
        notes = [f"{held}, {summary.damaged} damaged places", *_first_of(summary.notes)]
        self.words = ["; no damage, but: ".join(notes)]

    def repair(self, out: Path, asked: Asked, progress: Progress) -> Iterator[Row]:
        asked.refuse_others((), "Beats'")
        result = Repaired()
        yield from repair(self.location, out, result, key=self.key, progress=progress)
        self.is_damaged = result.left > 0
        self.words = list(_first_of(result.notes))
        held = f"{result.frames} events in {result.segments} segments taken along"
        self.words.append(f"{out}: {held}; {result.left} places left behind")

    def convert(self, to: Format, out: Path, asked: Asked, progress: Progress) -> Row:
        if isinstance(to, SegmentVersion):
            row = self._respool(to, out, self._options(to, asked), progress)
        else:
            asked.refuse_others(("queue",), "Beats'")
            row = self._convert(to, out, asked, progress)
        self._judge()
        return row

    def _options(self, to: SegmentVersion, asked: Asked) -> Options:
        """Return the options of the segments to write. Raises ``typer.BadParameter``."""
        if to is SegmentVersion.ONE:
            asked.refuse_others((), "for Beats 7.14 to 8.3")
            return NO_OPTIONS
        asked.refuse_others(("serialization", "compress", "encrypt"), "Beats'")
        # A key that opens nothing can only be meant for what is written.
        is_for_writing = self._is_key_named and not is_encrypted(self.location)
        is_to_be_encrypted = asked.encrypt or is_for_writing
        if is_to_be_encrypted and self.key is None:
            raise typer.BadParameter(NEEDS_KEY, param_hint="--encrypt")
        try:
            return segment_options(
                serialization=asked.serialization or CBOR,
                compress=asked.compress,
                encrypt=is_to_be_encrypted,
            )
        except InvalidValue as error:
            raise typer.BadParameter(str(error), param_hint="--serialization") from None

    def _respool(self, to: SegmentVersion, out: Path, options: Options, progress: Progress) -> Row:
        done = respool(
            self.location,
            to,
            out,
            key=self.key,
            options=options,
            tell=self._tell,
            progress=progress,
        )
        self.is_damaged = self.is_damaged or done.left_too_deep > 0
        if done.is_round_lost:
            self.words.append(ROUND_LOST)
        if to is SegmentVersion.ONE:
            self.words.append(
                "Beats 8.4 and later pass over segments of version 1 that nothing was read of; beats-2 is for them"
            )
        return {
            "family": FAMILY,
            "version": int(to),
            "options": option_names(options),
            "path": str(out),
            "segments": done.segments,
            "frames": done.frames,
            "left_unencodable": done.left_unencodable,
            "left_too_deep": done.left_too_deep,
        }

    def _convert(self, to: Variant, out: Path, asked: Asked, progress: Progress) -> Row:
        done = convert(
            self.location,
            to,
            out,
            key=self.key,
            tell=self._tell,
            queue=queue_asked(asked),
            progress=progress,
        )
        if done.terms_dropped:
            self.words.append(
                f"{done.terms_dropped} tasks had a delay or an expiry, which do not survive a conversion"
            )
        row = written(to, out, done.entries, None, len(done.queues), done.tasks)
        return row | left_fields(done.left) | {"too_deep": self._too_deep}

    def requests(self, asked: Asked, producer: str | None, progress: Progress) -> Iterator[Sending]:
        """Return what is to be sent. ``queue`` is where events go that name none."""
        asked.refuse_others(("queue",), "Beats'")
        too_large: Counter[QueueName] = Counter()
        requests = read_requests(
            self.location,
            key=self.key,
            tell=self._tell,
            otherwise=queue_asked(asked),
            too_large=too_large,
            producer=producer,
            progress=progress,
        )
        return self._sendings(requests, too_large)

    def _sendings(
        self, requests: Iterator[Enqueue], too_large: Counter[QueueName]
    ) -> Iterator[Sending]:
        """Cut where a queue is met that must be created first; a queue's tasks need not stand together."""
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
            yield Sending(queue=queue, requests=of_known(), left=nothing, whose="the node")
        for queue, count in too_large.items():
            left = Left(too_large=count)
            yield Sending(queue=queue, requests=iter(()), left=left, whose="the node")
        self._judge()


def _first_of(notes: list[str]) -> list[str]:
    """Return the first notes, and how many there are beside."""
    more = len(notes) - NOTES_MAX
    return notes if more <= 0 else [*notes[:NOTES_MAX], f"and {more} more of this kind"]
