"""The family of Elastic Beats' disk queue, and of spools of ours: the directory, or one file of it.

What the operations need is imported when they are used, so that commands start quickly.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidOption, InvalidValue
from penstock.families.damage import is_damage
from penstock.families.family import (
    Files,
    Outcome,
    Progress,
    Row,
    Sending,
    Split,
    no_progress,
    queue_of,
)
from penstock.families.options import FILES as FILE_OPERATIONS
from penstock.families.options import At, Kind, Operation, Option, Values
from penstock.storage.files import FILES

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.families.beats.location import Location
    from penstock.families.beats.read import Tally
    from penstock.families.follow import Follower
    from penstock.families.sources import Source
    from penstock.families.tables import ReadOptions
    from penstock.formats.beats.segment import Options
    from penstock.model import QueueName
    from penstock.protocol.version2 import Enqueue

NAME: Final = "beats"
TITLE: Final = "Beats"


class SegmentVersion(IntEnum):
    """Version 1 is for Beats 7.14 to 8.3, version 2 for all later ones."""

    ONE = 1
    TWO = 2


FORMATS: Final = {f"beats-{int(version)}": version for version in SegmentVersion}
CBOR: Final = "cbor"
"""The serialization of spools where none is asked for."""


_ALL: Final = FILE_OPERATIONS | {
    Operation.INGEST,
    Operation.TABLES,
    Operation.SPOOL,
    Operation.SPOOL_PUT,
}

_WRITES: Final = frozenset({Operation.CONVERT, Operation.SPOOL_PUT})


KEY_FILE: Final = Option(
    name="key_file",
    kind=Kind.FILE,
    metavar="FILE",
    help="The key of encrypted segments; without it the variable PENSTOCK_SPOOL_KEY.",
    operations=_ALL,
)

PASSWORD_FILE: Final = Option(
    name="password_file",
    kind=Kind.FILE,
    metavar="FILE",
    help="The password that the key is derived from.",
    operations=_ALL,
)

SERIALIZATION: Final = Option(
    name="serialization",
    kind=Kind.TEXT,
    metavar="FORM",
    help=f"Write events as {CBOR} or protobuf; without it {CBOR}.",
    operations=_WRITES,
)

COMPRESS: Final = Option(
    name="compress",
    kind=Kind.FLAG,
    help="Write with LZ4.",
    operations=_WRITES,
)

ENCRYPT: Final = Option(
    name="encrypt",
    kind=Kind.FLAG,
    help="Write encrypted, with the key that is given.",
    operations=_WRITES,
)

OPTIONS: Final = (
    KEY_FILE,
    PASSWORD_FILE,
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this queue.",
        operations=frozenset({Operation.TASKS}),
    ),
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Where events go that name no queue.",
        operations=frozenset({Operation.CONVERT, Operation.INGEST}),
    ),
    SERIALIZATION,
    COMPRESS,
    ENCRYPT,
)


class Beats:
    """The family."""

    name: Final = NAME
    title: Final = TITLE
    options: Final = OPTIONS
    formats: Final = tuple(FORMATS)

    def detect(self, path: Path) -> bool:
        """Return whether a path is a spool's directory, or has the name of a file of one."""
        from penstock.formats.beats.segment import STATE_NAME, segment_number

        if not path.is_dir():
            is_named = path.name == STATE_NAME or path.suffix.lower() == ".seg"
            return is_named and path.is_file()
        names = FILES.names(path)
        if any(segment_number(name) is not None for name in names):
            return True
        return STATE_NAME in names and _has_state(path / STATE_NAME)

    def open(self, path: Path, values: Values) -> Files:
        from penstock.families.beats.location import resolve

        if "key_file" in values and "password_file" in values:
            raise InvalidOption(
                "password_file",
                "a key comes from one file, and key_file names one; omit one of them",
            )
        return BeatsFiles(resolve(path), values)

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.beats.tables.scan import read_split

        return read_split(split, options, columns)


def _has_state(path: Path) -> bool:
    """Return whether a ``state.dat`` is one of a spool: other programs use the name too."""
    from penstock.families.beats.location import read_state

    return read_state(path)[2] is None


def key_of(values: Values) -> bytes | None:
    """Return the key that options or the environment name. Raises ``InvalidValue`` or ``PathMissing``."""

    from penstock.storage.spool_keys import read_key

    return read_key(values.get("key_file"), values.get("password_file"), os.environ)


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
        from penstock.families.beats.tables.plan import describe

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
        from penstock.families.beats.rows import dump

        for row in dump(self._location, key=self._key, progress=progress):
            outcome.is_damaged = outcome.is_damaged or is_damage(row)
            yield row

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.beats.read import Tally
        from penstock.families.beats.rows import tasks

        damage = Tally()
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
        from penstock.families.beats.read import first_of
        from penstock.families.beats.repair import Repaired, repair

        del values
        result = Repaired()
        yield from repair(self._location, out, result, key=self._key, progress=progress)
        outcome.is_damaged = result.left > 0
        outcome.words += first_of(result.notes)
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
        from penstock.families.beats.read import Tally
        from penstock.families.beats.repair import ROUND_LOST
        from penstock.families.beats.rows import option_names

        options = self._segment_options(to, values)
        damage = Tally()
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
        from penstock.formats.beats.segment import NO_OPTIONS, segment_options
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
        from penstock.families.beats.read import Tally
        from penstock.families.penstock.task_log import written_as

        for name in ("serialization", "compress", "encrypt"):
            if name in values:
                raise InvalidOption(name, f"it does not apply to {to}; omit it")
        damage = Tally()
        done = convert(
            self._location,
            to,
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
        row = written_as(to, out, done.entries, done.queues, done.tasks, TITLE)
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
        from penstock.families.beats.read import Tally

        del part  # frames have one order
        damage = Tally()
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
        damage: Tally,
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


FAMILY: Final = Beats()
