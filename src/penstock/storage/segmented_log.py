"""Generation 3: the log as a chain of segments, each named after its first index.

The newest segment is open for appends and zero behind its last record; the ones before are sealed and
never change. Compaction removes whole segments. The files store no commit index: it is kept in the
sync point beside them as a floor, and otherwise learned again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import CorruptData
from penstock.formats.taskflux.log import (
    END_MARKER,
    LogLayout,
    encode_header,
    encode_records,
    parse_segment_name,
    segment_name,
)
from penstock.model import Entry, Index, SnapshotPoint, Term
from penstock.storage.files import File, Files, Poison, read_whole, replace_file
from penstock.storage.log import (
    DEFAULT_LIMITS,
    READ_SIZE_MAX,
    LogLimits,
    SyncPointFile,
    refuse_index,
)
from penstock.storage.reading import Walked, walk_file
from penstock.storage.records import Records, Stretch
from penstock.storage.recovery import Cut, judge_tail

LAYOUT: Final = LogLayout.THREE


class _Segment:
    """One file of the chain."""

    __slots__ = ("file", "first", "path", "records", "size")

    def __init__(self, path: Path, first: int, file: File, records: Records) -> None:
        self.path = path
        self.first = first
        self.file = file
        self.records = records
        self.size = file.size()

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class SegmentedLog:
    """The log of generation 3. See ``storage.log.Log`` for what each method promises."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        snapshot: SnapshotPoint | None,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open the chain, begun if there is none, and mend what a crash left. Raises ``BadData``."""
        self.cuts: list[Cut] = []
        self._files = files
        self._directory = directory
        self._limits = limits
        self._poison = Poison(str(directory))
        with self._poison.writing():
            files.make_directory(directory)
            self._sync_point = SyncPointFile(files, directory)
        self._segments: list[_Segment] = []
        self._committed = -1
        self._recover(snapshot)

    @property
    def first(self) -> Index:
        return Index(self._segments[0].first)

    @property
    def end(self) -> Index:
        return Index(self._segments[-1].end)

    @property
    def committed(self) -> Index:
        return Index(self._committed)

    def append(self, term: Term, payloads: Sequence[bytes]) -> None:
        segment = self._segments[-1]
        assert self._last_term <= term, "terms never fall"
        pieces = encode_records(LAYOUT, term, payloads)
        with self._poison.writing():
            if self._is_full(segment):
                segment = self._rotate()
            offsets, end = segment.records.places(LAYOUT, payloads)
            self._reserve(segment, end)
            segment.file.write(segment.records.end, pieces)
        segment.records.extend(offsets, [term] * len(offsets), end)

    def sync(self) -> None:
        with self._poison.writing():
            self._segments[-1].file.sync()
            self._sync_point.advance(synced=self.end - 1, committed=self._committed)

    def truncate(self, index: Index) -> None:
        assert self._committed < index, "a committed entry never goes away"
        if index >= self.end:
            return
        with self._poison.writing():
            self._sync_point.retreat(synced=index - 1)
            # From the newest back, each removal synced: a crash leaves a chain without a gap.
            while len(self._segments) > 1 and self._segments[-1].first >= index:
                self._remove(self._segments.pop())
            segment = self._segments[-1]
            number = max(0, index - segment.first)
            start, stop = segment.records.end, segment.records.end
            if number < len(segment.records):
                start = segment.records.offsets[number]
            segment.file.write(start, [bytes(stop - start)])
            segment.file.sync()
            segment.records.cut(number)

    def set_committed(self, index: Index) -> None:
        assert self._committed <= index < self.end, "the commit index grows within the log"
        self._committed = index

    def term(self, index: Index) -> Term:
        refuse_index(index, self.first, self.end)
        segment = self._segment_of(index)
        return Term(segment.records.term(index - segment.first))

    def read(self, first: Index, end: Index, *, size_max: int = READ_SIZE_MAX) -> list[Entry]:
        """Return entries as ``Log.read`` says; a read ends at the end of a segment at the latest."""
        self._poison.check()
        refuse_index(first, self.first, self.end)
        segment = self._segment_of(first)
        return segment.records.read(
            segment.file,
            LAYOUT,
            base=segment.first,
            start=first - segment.first,
            stop=min(end, segment.end) - segment.first,
            size_max=size_max,
        )

    def stretches(self, first: Index) -> Iterator[Stretch]:
        self._poison.check()
        for segment in list(self._segments):
            yield from segment.records.stretches(
                segment.file,
                LAYOUT,
                base=segment.first,
                start=max(0, first - segment.first),
                stop=len(segment.records),
            )

    def begin_compaction(self, point: SnapshotPoint) -> None:
        """Segments name their indexes, so nothing has to be prepared."""

    def drop_prefix(self, point: SnapshotPoint) -> None:
        with self._poison.writing():
            if point.index >= self.end:
                self._start_anew(point.index + 1)
            while len(self._segments) > 1 and self._segments[1].first <= point.index + 1:
                self._remove(self._segments.pop(0))
        self._committed = max(self._committed, point.index)

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._sync_point.close()

    # Segments.

    @property
    def _last_term(self) -> int:
        """Return the term of the last entry; a fresh segment asks the one before it."""
        return next((s.records.last_term for s in reversed(self._segments) if s.records), 0)

    def _is_full(self, segment: _Segment) -> bool:
        """Seal at the soft limit if all is committed, else at the hard one: uncommitted entries may go."""
        if segment.records.end > self._limits.hard:
            return True
        return segment.records.end > self._limits.soft and self._committed >= self.end - 1

    def _rotate(self) -> _Segment:
        self._segments[-1].file.sync()
        self._begin(self._segments[-1].end)
        return self._segments[-1]

    def _begin(self, first: int) -> None:
        """Put a new, preallocated segment at the end of the chain."""
        path = self._directory / segment_name(first)
        replace_file(self._files, path, _fresh(self._limits.soft))
        file = self._files.open(path, write=True)
        self._segments.append(_Segment(path, first, file, Records(LAYOUT.header_size)))

    def _start_anew(self, first: int) -> None:
        """Replace the whole chain by an empty one that begins behind a snapshot."""
        self._sync_point.retreat(synced=-1)
        while self._segments:
            self._remove(self._segments.pop())
        self._begin(first)

    def _remove(self, segment: _Segment) -> None:
        segment.file.close()
        self._files.remove(segment.path)
        self._files.sync_directory(self._directory)

    def _reserve(self, segment: _Segment, end: int) -> None:
        needed = end + len(END_MARKER)
        if needed > segment.size:
            size = -(-needed // self._limits.growth) * self._limits.growth
            segment.file.write(segment.size, [bytes(size - segment.size)])
            segment.file.sync()
            segment.size = size

    def _segment_of(self, index: int) -> _Segment:
        return next(s for s in reversed(self._segments) if s.first <= index)

    # Starting.

    def _recover(self, snapshot: SnapshotPoint | None) -> None:
        after = 0 if snapshot is None else snapshot.index + 1
        firsts = sorted(
            first
            for name in self._files.names(self._directory)
            if (first := parse_segment_name(name)) is not None
        )
        with self._poison.writing():
            # Segments that the snapshot covers wholly are what a compaction left to remove.
            while len(firsts) > 1 and firsts[1] <= after:
                self._files.remove(self._directory / segment_name(firsts.pop(0)))
                self._files.sync_directory(self._directory)
            if not firsts:
                self._begin(after)
        for number, first in enumerate(firsts):
            self._open(first, firsts[number + 1] if number + 1 < len(firsts) else None)
        self._refuse_gap(snapshot, after)
        self._committed = max(after, self.first) - 1
        if self.end < after:
            with self._poison.writing():
                self._start_anew(after)

    def _open(self, first: int, following: int | None) -> None:
        path = self._directory / segment_name(first)
        if following is None:
            self._initialise(path)
        file = self._files.open(path, write=True)
        walked = walk_file(file, path, LAYOUT)
        segment = _Segment(path, first, file, walked.records)
        self._segments.append(segment)
        if following is None:
            self._mend_tail(segment, walked)
        elif walked.stop is not None or segment.end != following:
            raise CorruptData(
                f"a sealed segment is not whole; nothing was changed: restore {path.name}, or salvage with"
                " 'penstock repair'",
                path=str(path),
                offset=walked.records.end,
                expected=f"entries {first} to {following - 1}",
                found=f"entries up to {segment.end - 1}",
            )

    def _initialise(self, path: Path) -> None:
        """Make the newest segment's header anew if a crash cut it short (R2)."""
        start = read_whole(self._files, path, size_max=LAYOUT.header_size)
        assert start is not None
        if len(start) < LAYOUT.header_size and encode_header(LAYOUT).startswith(start):
            with self._poison.writing():
                replace_file(self._files, path, _fresh(self._limits.soft))

    def _mend_tail(self, segment: _Segment, walked: Walked) -> None:
        sure = max(self._sync_point.point.synced, self._sync_point.point.committed)
        cut = judge_tail(segment.file, segment.path, LAYOUT, walked, first=segment.first, sure=sure)
        if cut is not None:
            with self._poison.writing():
                segment.file.write(cut.offset, [bytes(cut.size)])
                segment.file.sync()
            self.cuts.append(cut)

    def _refuse_gap(self, snapshot: SnapshotPoint | None, after: int) -> None:
        segment = self._segments[0]
        if self.first > after:
            raise CorruptData(
                "entries are missing between the snapshot and the log",
                path=str(segment.path),
                offset=0,
                expected=f"a log that begins at {after} or before",
                found=f"{self.first}",
            )
        if snapshot is not None and self.first <= snapshot.index < self.end:
            term = self.term(snapshot.index)
            if term != snapshot.term:
                raise CorruptData(
                    f"snapshot and log disagree on the term of entry {snapshot.index}",
                    path=str(self._segment_of(snapshot.index).path),
                    expected=str(snapshot.term),
                    found=str(term),
                )


def _fresh(size: int) -> list[bytes]:
    header = encode_header(LAYOUT)
    return [header + bytes(max(0, size - len(header)))]
