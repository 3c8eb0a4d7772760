"""Generation 3: the log as a chain of segments, each named after its first index.

The newest segment is open for appends and zero behind its last record; the ones before are sealed and
never change. Compaction removes whole segments. The files store no commit index: it is kept in the
sync point beside them as a floor, and otherwise learned again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Final

from penstock.binary import Bytes
from penstock.errors import CorruptData, NoRoom
from penstock.formats.taskflux.log import (
    END_MARKER,
    LogLayout,
    encode_header,
    encode_records,
    parse_segment_name,
    segment_name,
)
from penstock.model import Entry, Index, SnapshotPoint, Term
from penstock.storage.files import (
    TEMPORARY_SUFFIX,
    File,
    Files,
    Poison,
    needing_room,
    read_whole,
    replace_file,
    zeros,
)
from penstock.storage.log import (
    DEFAULT_LIMITS,
    READ_SIZE_MAX,
    LogLimits,
    SyncPointFile,
    foreign_write,
    refuse_index,
    refuse_missing,
)
from penstock.storage.reading import Walked, walk_file
from penstock.storage.records import Records, Stretch
from penstock.storage.recovery import Cut, erase, judge_tail, refuse_shortened, write_again

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
        self.kept_bytes = 0  # of what a snapshot covers: for others that are a little behind
        self._files = files
        self._directory = directory
        self._limits = limits
        self._poison = Poison(str(directory))
        self._segments: list[_Segment] = []
        self._committed = -1
        self._known_committed = -1
        self._spare: Path | None = None  # a file that waits to become the next segment
        # A segment must not be closed by one thread while another reads in it.
        self._chain = Lock()
        with self._poison.writing():
            files.make_directory(directory)
            self._sync_point = SyncPointFile(files, directory)
        try:
            self._recover(snapshot)
            # A process that was killed may have left records that only the cache of the system holds.
            self._write_again()
            self.sync()
        except BaseException:
            self._let_go()
            raise

    @property
    def first(self) -> Index:
        return Index(self._segments[0].first)

    @property
    def end(self) -> Index:
        return Index(self._segments[-1].end)

    @property
    def committed(self) -> Index:
        return Index(self._committed)

    @property
    def known_committed(self) -> Index:
        """What was known to be committed before this start: a floor, of what the log still holds."""
        return Index(self._known_committed)

    @property
    def size(self) -> int:
        return sum(segment.records.end for segment in self._segments)

    def append(self, term: Term, payloads: Sequence[bytes]) -> None:
        segment = self._segments[-1]
        assert self.last_term <= term, "terms never fall"
        pieces = encode_records(LAYOUT, term, payloads)
        with self._poison.writing():
            if self._is_full(segment):
                segment = self._rotate()
            offsets, end = segment.records.places(LAYOUT, payloads)
            self._reserve(segment, end)
            segment.file.write(segment.records.end, pieces)
        segment.records.extend_term(offsets, term, end)

    def sync(self) -> None:
        with self._poison.writing():
            self._segments[-1].file.sync()
            committed = max(self._committed, self._known_committed)
            self._sync_point.advance(synced=self.end - 1, committed=committed)

    @property
    def wants_spare(self) -> bool:
        """Whether the next segment should be made now, before the newest one is full."""
        return self._spare is None and self._segments[-1].records.end > self._limits.soft // 2

    def make_spare(self) -> None:
        """Make the next segment's file ahead of time. May run beside appends and syncs, in another thread.

        A rotation then is a rename. Under its temporary name the file means nothing; a start removes it. Raises
        ``NoRoom``, and leaves nothing of it: until the newest segment is full, the log goes on without.
        """
        path = self._directory / ("spare" + TEMPORARY_SUFFIX)
        with self._poison.writing():
            with needing_room(path):
                file = self._files.open(path, write=True, create=True)
            try:
                with needing_room(path):
                    offset = 0
                    for piece in _fresh(self._limits.soft):
                        file.write(offset, [piece])
                        offset += len(piece)
                file.sync()
            except NoRoom:
                self._files.remove(path)
                raise
            finally:
                file.close()
        self._spare = path

    @property
    def spare_size(self) -> int:
        return self._limits.soft

    def truncate(self, index: Index) -> None:
        self._poison.check()
        assert self._committed < index, "a committed entry never goes away"
        if index >= self.end:
            return
        with self._poison.writing(), self._chain:
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
        self._poison.check()
        assert self._committed <= index < self.end, "the commit index grows within the log"
        assert index <= self._sync_point.point.synced, "nothing is committed before it is synced"
        self._committed = index

    def term(self, index: Index) -> Term:
        self._poison.check()
        with self._chain:
            refuse_index(index, self.first, self.end)
            segment = self._segment_of(index)
            return Term(segment.records.term(index - segment.first))

    def read(self, first: Index, end: Index, *, size_max: int = READ_SIZE_MAX) -> list[Entry]:
        """Return entries as ``Log.read`` says; a read ends at the end of a segment at the latest."""
        with self._poison.reading(), self._chain:
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
        for segment in list(self._segments):
            with self._poison.reading():
                yield from segment.records.stretches(
                    segment.file,
                    LAYOUT,
                    base=segment.first,
                    start=max(0, first - segment.first),
                    stop=len(segment.records),
                )

    def begin_compaction(self, point: SnapshotPoint) -> None:
        """Announce the snapshot: a start refuses one that was never announced."""
        assert self.first <= point.index + 1, "snapshots never go back"
        with self._poison.writing():
            self._sync_point.note_snapshot(self._sync_point.point.snapshot, point)

    def drop_prefix(self, point: SnapshotPoint) -> None:
        assert self.first <= point.index + 1, "snapshots never go back"
        with self._poison.writing(), self._chain:
            self._sync_point.note_snapshot(point, None)
            if point.index >= self.end:
                self._start_anew(point.index + 1)
            while len(self._segments) > 1 and self._segments[1].first <= point.index + 1:
                if self.size - self._segments[0].records.end < self.kept_bytes:
                    break
                self._remove(self._segments.pop(0))
        self._committed = max(self._committed, point.index)

    def restart_behind(self, point: SnapshotPoint) -> None:
        """Drop everything: a snapshot of another, now in place, goes on where this log was not."""
        with self._poison.writing(), self._chain:
            self._sync_point.note_snapshot(point, None)
            self._start_anew(point.index + 1)
        self._committed = point.index

    def close(self) -> None:
        try:
            if not self._poison.has_struck:  # a sync that has failed is never tried again
                with self._poison.writing():
                    self._sync_point.sync()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._sync_point.close()

    # Segments.

    @property
    def last_term(self) -> int:
        """The term of the last entry, 0 if there is none; a fresh segment asks the one before it."""
        last = self._segments[-1].records.last_term
        if last or len(self._segments) == 1:
            return last
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
        if self._spare is None:
            replace_file(self._files, path, _fresh(self._limits.soft))
        else:
            self._files.rename(self._spare, path)
            self._files.sync_directory(self._directory)
            self._spare = None
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
            segment.file.write(segment.size, list(zeros(size - segment.size)))
            segment.file.sync()
            segment.size = size

    def _segment_of(self, index: int) -> _Segment:
        return next(s for s in reversed(self._segments) if s.first <= index)

    # Starting.

    def _recover(self, snapshot: SnapshotPoint | None) -> None:
        """Judge the whole chain, and only then change it: a refusal leaves everything as it was."""
        self._refuse_unannounced(snapshot)
        known = self._sync_point.point.committed
        after = 0 if snapshot is None else snapshot.index + 1
        firsts = sorted(
            first
            for name in self._files.names(self._directory)
            if (first := parse_segment_name(name)) is not None
        )
        # Segments that the snapshot covers wholly are what a compaction left to remove.
        covered = [first for first, following in pairwise(firsts) if following <= after]
        kept = firsts[len(covered) :]
        if not kept:
            refuse_missing(self._directory, self._sync_point.point.synced, after)
            with self._poison.writing():
                self._note(snapshot)
                self._begin(after)
        else:
            for first, following in pairwise(kept):
                self._open_sealed(first, following)
            cut = self._open_newest(kept[-1], 0 if snapshot is None else snapshot.term)
            self._refuse_gap(snapshot, after)
            self._refuse_falling_terms()
            with self._poison.writing():
                self._note(snapshot)
                self._mend(covered, cut, after)
        self._committed = max(after, self.first) - 1
        self._known_committed = max(self._committed, min(known, self.end - 1))

    def _write_again(self) -> None:
        """Write the records once more that no sync is known to have proved."""
        segment = self._segments[-1]
        number = max(0, self._sync_point.point.synced + 1 - segment.first)
        if number < len(segment.records):
            with self._poison.writing():
                write_again(segment.file, segment.records.offsets[number], segment.records.end)

    def _note(self, snapshot: SnapshotPoint | None) -> None:
        """Write down the snapshot that was found, before anything rests on it."""
        known = self._sync_point.point
        if (known.snapshot, known.pending) != (snapshot, None):
            self._sync_point.note_snapshot(snapshot, None)

    def _mend(self, covered: list[int], cut: Cut | None, after: int) -> None:
        for first in covered:
            self._files.remove(self._directory / segment_name(first))
            self._files.sync_directory(self._directory)
        if cut is not None:
            erase(self._segments[-1].file, cut)
            self.cuts.append(cut)
        if self.end < after:
            self._start_anew(after)

    def _open(self, first: int) -> tuple[_Segment, Walked]:
        path = self._directory / segment_name(first)
        file = self._files.open(path, write=True)
        try:
            walked = walk_file(file, path, LAYOUT)
        except BaseException:
            file.close()
            raise
        segment = _Segment(path, first, file, walked.records)
        self._segments.append(segment)
        return segment, walked

    def _open_sealed(self, first: int, following: int) -> None:
        segment, walked = self._open(first)
        if walked.stop is not None or segment.end != following:
            raise CorruptData(
                f"a sealed segment is not whole; nothing was changed: restore {segment.path.name}, or"
                " salvage with 'penstock repair'",
                path=str(segment.path),
                offset=walked.records.end,
                expected=f"entries {first} to {following - 1}",
                found=f"entries up to {segment.end - 1}",
            )

    def _open_newest(self, first: int, snapshot_term: int) -> Cut | None:
        self._initialise(first)
        before = max((segment.records.last_term for segment in self._segments), default=0)
        segment, walked = self._open(first)
        point = self._sync_point.point
        refuse_shortened(
            segment.file, segment.path, LAYOUT, walked, first=first, known=self._sync_point
        )
        sure = max(point.synced, point.committed)
        return judge_tail(
            segment.file,
            segment.path,
            LAYOUT,
            walked,
            first=first,
            sure=sure,
            is_ours=point.sequence > 0,
            term=max(before, snapshot_term),
        )

    def _initialise(self, first: int) -> None:
        """Make the newest segment's header anew if a crash cut it short (R2)."""
        path = self._directory / segment_name(first)
        start = read_whole(self._files, path, size_max=LAYOUT.header_size)
        assert start is not None
        if len(start) < LAYOUT.header_size and encode_header(LAYOUT).startswith(start):
            refuse_missing(path, self._sync_point.point.synced, first)
            with self._poison.writing():
                replace_file(self._files, path, _fresh(self._limits.soft))

    def _refuse_unannounced(self, snapshot: SnapshotPoint | None) -> None:
        """Refuse a snapshot whose index or term is not the one it was written with.

        No checksum covers them; a wrong index would drop entries, skip them, or apply them twice. A sync
        point that was never written is that of a directory from elsewhere, and knows nothing.
        """
        known = self._sync_point.point
        announced = (known.snapshot, known.pending)
        if known.sequence > 0 and snapshot is not None and snapshot not in announced:
            raise foreign_write(
                "the snapshot is not the one that was written last",
                self._sync_point.path,
                path=None,
                offset=4,
                expected=" or ".join(f"{p.index}, {p.term}" for p in announced if p)
                or "no snapshot",
                found=f"{snapshot.index}, {snapshot.term}",
            )

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
            term, segment = self.term(snapshot.index), self._segment_of(snapshot.index)
            if term != snapshot.term:
                raise CorruptData(
                    f"snapshot and log disagree on the term of entry {snapshot.index}",
                    path=str(segment.path),
                    offset=segment.records.offsets[snapshot.index - segment.first],
                    expected=str(snapshot.term),
                    found=str(term),
                )

    def _refuse_falling_terms(self) -> None:
        """Refuse what no single file shows: a segment whose terms begin below the end of the one before."""
        for before, segment in pairwise(self._segments):
            if segment.records and segment.records.term(0) < before.records.last_term:
                raise CorruptData(
                    f"the term of entry {segment.first} falls behind that of the entry before it",
                    path=str(segment.path),
                    offset=segment.records.offsets[0],
                    expected=f"{before.records.last_term} or more",
                    found=str(segment.records.term(0)),
                )


def _fresh(size: int) -> Iterator[Bytes]:
    header = encode_header(LAYOUT)
    yield header
    yield from zeros(max(0, size - len(header)))
