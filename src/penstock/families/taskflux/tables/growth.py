"""A TaskFlux log that may grow while it is read: how far it can be relied on, and where its entries stand.

``GrowingLog`` lives on the driver and looks at the files again whenever it is asked; what it has scanned once it
remembers as marks, so that a look costs a listing and the bytes that are new. What it plans, ``read_range`` reads on executors.

Nothing is ever told that could change: generation 3 is read up to its sync point and generation 2 up to the commit
index in its header. Where the files hold neither, whole entries are counted, and what is torn behind them is not
damage but an entry that is still being written.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import Compacted, CorruptData, PathRefused
from penstock.families.family import Split
from penstock.families.plan import refusal
from penstock.families.tables import ReadOptions, shown_path
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.location import read_sync_point, resolve
from penstock.families.taskflux.read import survey
from penstock.families.taskflux.tables.plan import LogPlan
from penstock.families.taskflux.tables.scan import Builder, Place, Walk
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, decode_header, parse_segment_name
from penstock.storage.files import FILES, TEMPORARY_SUFFIX, File, opened
from penstock.storage.reading import NO_RULE, are_records, scan_file_columns

if TYPE_CHECKING:
    import pyarrow as pa


_LOOKS_MAX: Final = 100
"""Looks at files that a compaction changes meanwhile; it renames a few of them and is over."""

_SEGMENTS_MAX: Final = 64
"""Segments whose marks are kept: a stream goes forward, so the last ones are asked for."""

_MARKS_MAX: Final = 256
"""Marks of a segment that are kept, beside its beginning."""


class Mark(NamedTuple):
    """A boundary in a log file: the index of what begins there, and the term of the entry before it."""

    entry: int
    position: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A file of the log, and the index of its first entry."""

    path: Path
    layout: LogLayout
    first: int
    inode: int | None = None  # of a file whose first index only those around it tell

    @property
    def beginning(self) -> Mark:
        return Mark(self.first, self.layout.header_size, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a look at the files told."""

    segments: tuple[Segment, ...] = ()  # oldest first
    sure: int | None = None  # the last index that the files vouch for; None if they do not say


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePlan:
    """Entries ``first`` to ``last`` of one file, which its inode tells from one that a compaction put in its place."""

    source: str
    path: str
    shown: str
    layout: str
    inode: int
    start: Mark  # at or before the first entry
    end: int | None  # where the last one ends; None: with the file
    first: int
    last: int


class GrowingLog:
    """The log of one directory, or a log file alone."""

    def __init__(self, path: Path) -> None:
        """Find the files. Raises ``PathRefused`` and ``BadData``."""
        self._path = path.absolute()
        self._target = resolve(self._path)
        if self._target.kind not in ("directory", "log"):
            raise PathRefused(
                f"{path}: a stream is of a log, not of a {self._target.kind}; name the node's directory"
            )
        kind, generation = self._target.kind, self._target.generation
        self._is_chain = kind == "directory" and generation is Generation.THREE
        self._extent = Extent()
        # A single file is held open: so no other gets its inode, by which tasks know it.
        self._held: File | None = None
        # By path and first index: the file's inode, and the boundaries that were found in it, ascending.
        self._marks: OrderedDict[tuple[Path, int], tuple[int, list[Mark]]] = OrderedDict()

    @property
    def name(self) -> str:
        return str(self._path)

    def look(self) -> tuple[int, int]:
        """Look at the files. Return the first index they hold, and the last that will not change any more.

        The last is the one before the first if there is none. Raises ``BadData`` and ``PathRefused``.
        """
        try:
            self._extent = self._look_at_chain() if self._is_chain else self._look_at_file()
        except OSError as error:
            raise refusal(self._path, error) from None
        segments, sure = self._extent.segments, self._extent.sure
        if not segments:
            return 0, -1
        if sure is None:
            sure = self._mark(segments[-1], None)[1].entry - 1
        return segments[0].first, max(sure, segments[0].first - 1)

    def term(self, index: int) -> int:
        """Return an entry's term. Raises ``CorruptData`` if damage hides it or the log ends before it."""
        for segment in reversed(self._extent.segments):
            if segment.first <= index:
                return self._mark(segment, index + 1)[1].term
        raise _gone(self.name, index)

    def close(self) -> None:
        """Let the file go that is held."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def plan(self, first: int, last: int) -> list[Split]:
        """Return the entries from ``first`` to ``last``, by file: the same splits for the same two, always."""
        ranges = self.ranges(first, last)
        return [Split(family=FAMILY, source=self.name, size=1, plan=one) for one in ranges]

    def ranges(self, first: int, last: int) -> list[RangePlan]:
        """Return the same as plans."""
        plans: list[RangePlan] = []
        segments = self._extent.segments
        ends = [*(following.first for following in segments[1:]), last + 1]
        for segment, end in zip(segments, ends, strict=True):
            low, high = max(first, segment.first), min(last + 1, end)
            if low >= high:
                continue
            inode, start = self._mark(segment, low)
            stop = self._mark(segment, high)[1].position if high == last + 1 else None
            plans.append(
                RangePlan(
                    source=self.name,
                    path=str(segment.path),
                    shown=shown_path(self.name, segment.path),
                    layout=segment.layout.name,
                    inode=inode,
                    start=start,
                    end=stop,
                    first=low,
                    last=high - 1,
                )
            )
        return plans

    # Looking.

    def _look_at_chain(self) -> Extent:
        """Names tell what segments hold. The sync point is read first: what it covers is in them."""
        known = read_sync_point(self._target)
        directory = self._target.companions
        assert directory is not None
        if not directory.is_dir():
            return Extent()  # a node that has not written yet
        found = sorted(
            (first, directory / name)
            for name in os.listdir(directory)
            if (first := parse_segment_name(name)) is not None
        )
        segments = (
            Segment(path=path, layout=LogLayout.THREE, first=first) for first, path in found
        )
        # A node alone has committed what it has synced, and notes the former one batch late. Of a cluster this
        # must be ``committed``: another leader may replace what is only synced.
        sure = known.synced if known is not None and known.sequence > 0 else None
        return Extent(segments=tuple(segments), sure=sure)

    def _look_at_file(self) -> Extent:
        """Only the files around a single one tell at which index it begins, until another takes its place."""
        if self._held is not None:
            segment = self._extent.segments[0]
            if segment.path.exists() and segment.path.stat().st_ino == segment.inode:
                commit = decode_header(self._held.read(0, 16), segment.layout).commit
                return Extent(
                    segments=(segment,), sure=None if commit is None else segment.first + commit
                )
            self.close()
        for _ in range(_LOOKS_MAX):
            extent = self._survey_file()
            if extent is not None:
                return extent
        raise PathRefused(f"{self._path}: its files do not stop changing places; try again")

    def _survey_file(self) -> Extent | None:
        """Look at all files, and hold the log; ``None`` if some of them changed meanwhile."""
        try:
            before = self._inodes()
            history = survey(resolve(self._path))
            if not history.target.logs:
                return Extent()
            log = history.target.logs[0]
            held = FILES.open(log.path, write=False)
        except FileNotFoundError:
            return None
        if self._inodes() != before:
            held.close()
            return None
        for one in history.unreadable:
            if one.kind != "metadata":
                held.close()
                raise one.error
        self._held = held
        segment = Segment(
            path=log.path, layout=log.layout, first=history.first, inode=before[log.path]
        )
        return Extent(segments=(segment,), sure=history.commit)

    def _inodes(self) -> dict[Path, int]:
        """Return which files there are; each is replaced, never rewritten, but for the log that grows."""
        directory = self._path if self._target.companions is None else self._target.companions
        if not directory.is_dir():
            return {self._path: self._path.stat().st_ino}
        with os.scandir(directory) as found:
            return {
                Path(entry.path): entry.inode()
                for entry in found
                if not entry.name.endswith(TEMPORARY_SUFFIX)
            }

    # Marks.

    def _mark(self, segment: Segment, index: int | None) -> tuple[int, Mark]:
        """Return a file's inode and where entry ``index`` begins, ``None`` being the one behind the last.

        Scans from the nearest boundary that is known. Raises ``CorruptData`` if damage is in the way.
        """
        try:
            inode = segment.path.stat().st_ino
            with opened(segment.path) as file:
                if segment.path.stat().st_ino != inode or segment.inode not in (None, inode):
                    raise _gone(str(segment.path), index)
                marks = self._known(segment, inode)
                # The last mark at or before the entry; each stands before those of later entries.
                end = len(marks) if index is None else bisect_left(marks, (index + 1,))
                nearest = marks[end - 1]
                if nearest.entry == index:
                    return inode, nearest
                found = _found(file, segment, nearest, index)
        except FileNotFoundError:
            raise _gone(str(segment.path), index) from None
        if found not in marks:
            insort(marks, found)
            if len(marks) > _MARKS_MAX:
                del marks[1]
        return inode, found

    def _known(self, segment: Segment, inode: int) -> list[Mark]:
        key = (segment.path, segment.first)
        known = self._marks.get(key)
        if known is None or known[0] != inode:
            known = self._marks[key] = (inode, [segment.beginning])
        self._marks.move_to_end(key)
        while len(self._marks) > _SEGMENTS_MAX:
            self._marks.popitem(last=False)
        return known[1]


def _found(file: File, segment: Segment, nearest: Mark, index: int | None) -> Mark:
    mark = nearest
    for mark in _boundaries(file, segment.layout, nearest, index):
        if mark.entry == index:
            return mark
    if index is None:
        return mark
    raise CorruptData(
        f"entry {index - 1} is not where the log must have it: the file is damaged, or not the one it was;"
        " see 'penstock verify'",
        path=str(segment.path),
        offset=mark.position,
        expected=f"entries up to {index - 1}",
        found=f"entries up to {mark.entry - 1}",
    )


def _boundaries(
    file: File, layout: LogLayout, mark: Mark, index: int | None
) -> Generator[Mark, None, None]:
    """Yield boundaries from ``mark`` on, the last one before entry ``index`` or behind the last whole entry."""
    size = file.size()
    batches = scan_file_columns(
        file, layout, start=mark.position, stop=size, size=size, term=mark.term
    )
    for batch in batches:
        pieces, is_record = batch.entries.pieces, are_records(batch.entries.pieces, layout)
        whole = len(is_record) if is_record.all() else int((~is_record).argmax())
        count = whole if index is None else min(whole, index - mark.entry)
        if count:
            terms = pieces.term[:count][pieces.term[:count] >= 1]
            end = batch.base + int(pieces.offset[count - 1] + pieces.size[count - 1])
            mark = Mark(mark.entry + count, end, int(terms[-1]) if len(terms) else mark.term)
            yield mark
        if count == len(is_record):
            continue
        if index is None and batch.base + int(pieces.offset[count] + pieces.size[count]) < size:
            raise CorruptData(
                f"damage behind entry {mark.entry - 1}, and entries behind that; see 'penstock verify'",
                offset=mark.position,
            )
        return


def _gone(path: str, index: int | None) -> Compacted:
    what = "entries" if index is None else f"entry {index}"
    return Compacted(f"{path}: the file went away while {what} should be read from it")


_SEARCHES_MAX: Final = 10
"""How often a file is looked for that compactions replace; each is minutes apart from the next."""


def read_range(
    plan: RangePlan, options: ReadOptions, columns: Sequence[str], *, looks: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of entries. Raises ``Compacted``, and ``CorruptData`` if one of them is missing.

    A file that another took the place of since the plan was made is looked for anew, as often as ``looks`` allows.
    """
    path = Path(plan.path)
    try:
        file: File | None = FILES.open(path, write=False)
        is_same = path.stat().st_ino == plan.inode
    except FileNotFoundError:
        file, is_same = None, False
    try:
        if file is not None and is_same:
            yield from _read_file(file, plan, options, columns)
            return
    finally:
        if file is not None:
            file.close()
    for moved in _find_again(plan, looks):
        yield from read_range(moved, options, columns, looks=looks + 1)


def _find_again(plan: RangePlan, looks: int) -> list[RangePlan]:
    """Return where the entries of a plan stand now. Raises ``Compacted`` if they do not any more."""
    log = GrowingLog(Path(plan.source))
    try:
        first, _ = log.look()
        if plan.first < first or looks >= _SEARCHES_MAX:
            raise Compacted(
                f"{plan.path}: entries {plan.first} to {max(first, plan.first + 1) - 1} were compacted away"
                " before they were read"
            )
        return log.ranges(plan.first, plan.last)
    finally:
        log.close()


def _read_file(
    file: File, plan: RangePlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    layout = LogLayout[plan.layout]
    size = file.size() if plan.end is None else plan.end
    builder = _builder(plan, layout, size, options, columns)
    place = Place(plan.start.position, plan.start.term, plan.start.entry)
    walk = Walk(layout, place, plan.start.entry, NO_RULE)
    end = plan.start.entry  # behind the last entry that was met
    for batch in walk.over(file, size, size):
        numbers, is_known = walk.indexes
        numbers = numbers[is_known & are_records(batch.entries.pieces, layout)]
        end = int(numbers[-1]) + 1 if len(numbers) else end
        built = builder.build(batch, walk.indexes)
        if built is not None:
            yield built
    if options.fail_on_data_loss and end <= plan.last:
        raise CorruptData(
            f"entries {plan.first} to {plan.last} are not all there, damage hides some; see 'penstock"
            " verify', or read without them: failOnDataLoss=false",
            path=plan.path,
        )


def _builder(
    plan: RangePlan, layout: LogLayout, size: int, options: ReadOptions, columns: Sequence[str]
) -> Builder:
    filters = replace(options.filters, first=plan.first, last=plan.last)
    log = LogPlan(
        path=plan.path,
        shown=plan.shown,
        layout=plan.layout,
        first=plan.start.entry,
        start=plan.start.position,
        stop=size,
        size=size,
        commit=None,  # a stream goes no further than what is committed
    )
    return Builder(plan.source, log, layout, replace(options, filters=filters), columns)
