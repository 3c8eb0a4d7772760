"""Generation 2: the log as one file, with the commit index in its header.

Behind the last record the file is zero up to its end, and it grows in steps of zeros, so that a
sync of an append writes no metadata. The file does not say at which index it begins; the snapshot
does, and while a compaction is under way the sidecar does (docs/formats/compaction.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.binary import Bytes
from penstock.errors import BadData, CorruptData
from penstock.formats.taskflux.compaction import (
    FILE_NAME,
    SIZE,
    Compaction,
    decode_compaction,
    encode_compaction,
)
from penstock.formats.taskflux.log import (
    COMMIT,
    COMMIT_OFFSET,
    END_MARKER,
    LogLayout,
    encode_header,
    encode_records,
)
from penstock.model import INT32_MAX, Entry, Index, SnapshotPoint, Term
from penstock.storage.files import Files, Poison, read_whole, replace_file, zeros
from penstock.storage.log import (
    DEFAULT_LIMITS,
    READ_SIZE_MAX,
    LogLimits,
    SyncPointFile,
    refuse_index,
    refuse_missing,
)
from penstock.storage.reading import walk_file
from penstock.storage.records import Records, Stretch
from penstock.storage.recovery import Cut, erase, judge_tail, refuse_shortened, write_again

COPY_WINDOW: Final = 2**20
LAYOUT: Final = LogLayout.TWO
UNDECIDED_SUFFIX: Final = ".undecided"


class SingleLog:
    """The log of generation 2. See ``storage.log.Log`` for what each method promises."""

    def __init__(
        self,
        files: Files,
        path: Path,
        snapshot: SnapshotPoint | None,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open the log, made if missing, and mend what a crash left. Raises ``BadData`` for damage."""
        self.cuts: list[Cut] = []
        self._files = files
        self._path = path
        self._growth = limits.growth
        self._poison = Poison(str(path))
        self._records = Records(LAYOUT.header_size)
        self._first = 0
        self._commit = -1  # number in the file of the last committed record, as stored
        with self._poison.writing():
            self._sync_point = SyncPointFile(files, path.parent)
        try:
            self._initialise(snapshot)
            self._file = files.open(path, write=True)
        except BaseException:
            self._sync_point.close()
            raise
        try:
            self._recover(snapshot)
            self._size = self._file.size()
            # A process that was killed may have left records that only the cache of the system holds.
            self._write_again()
            self.sync()
        except BaseException:
            self._let_go()
            raise

    # Stored: the header's commit index and the records. In memory: where the records are.

    @property
    def first(self) -> Index:
        return Index(self._first)

    @property
    def end(self) -> Index:
        return Index(self._first + len(self._records))

    @property
    def committed(self) -> Index:
        return Index(self._first + self._commit)

    @property
    def last_term(self) -> int:
        return self._records.last_term

    @property
    def size(self) -> int:
        return self._records.end

    def append(self, term: Term, payloads: Sequence[bytes]) -> None:
        assert self._records.last_term <= term, "terms never fall"
        assert self.end + len(payloads) <= INT32_MAX, "generation 2 has no larger indexes"
        pieces = encode_records(LAYOUT, term, payloads)
        offsets, end = self._records.places(LAYOUT, payloads)
        with self._poison.writing():
            self._reserve(end)
            self._file.write(self._records.end, pieces)
        self._records.extend_term(offsets, term, end)

    def sync(self) -> None:
        with self._poison.writing():
            self._file.sync()
            self._sync_point.advance(synced=self.end - 1, committed=self.committed)

    wants_spare = False  # one file that grows: there is no next one to make
    spare_size = 0

    def make_spare(self) -> None:
        """Nothing is to be made ahead of time."""

    def truncate(self, index: Index) -> None:
        self._poison.check()
        assert self.committed < index, "a committed entry never goes away"
        number = max(0, index - self._first)
        if number >= len(self._records):
            return
        start, stop = self._records.offsets[number], self._records.end
        with self._poison.writing():
            self._sync_point.retreat(synced=index - 1)
            self._file.write(start, [bytes(stop - start)])
            self._file.sync()
        self._records.cut(number)

    def set_committed(self, index: Index) -> None:
        self._poison.check()
        commit = index - self._first
        assert self._commit <= commit < len(self._records), "the commit index grows within the log"
        assert index <= self._sync_point.point.synced, "nothing is committed before it is synced"
        with self._poison.writing():
            self._file.write(COMMIT_OFFSET, [COMMIT.pack(commit)])
        self._commit = commit

    def term(self, index: Index) -> Term:
        self._poison.check()
        refuse_index(index, self.first, self.end)
        return Term(self._records.term(index - self._first))

    def read(self, first: Index, end: Index, *, size_max: int = READ_SIZE_MAX) -> list[Entry]:
        with self._poison.reading():
            refuse_index(first, self.first, self.end)
            return self._records.read(
                self._file,
                LAYOUT,
                base=self._first,
                start=first - self._first,
                stop=min(end, self.end) - self._first,
                size_max=size_max,
            )

    def stretches(self, first: Index) -> Iterator[Stretch]:
        with self._poison.reading():
            yield from self._records.stretches(
                self._file,
                LAYOUT,
                base=self._first,
                start=max(0, first - self._first),
                stop=len(self._records),
            )

    def begin_compaction(self, point: SnapshotPoint) -> None:
        assert self._first <= point.index + 1, "snapshots never go back"
        self._write_sidecar(Compaction(point=point, first=self.first, count=None))

    def drop_prefix(self, point: SnapshotPoint) -> None:
        """Rewrite the log without what the snapshot covers; a crash anywhere in it is finished at start."""
        assert self._first <= point.index + 1, "snapshots never go back"
        with self._poison.writing():
            self._file.sync()
        self._write_sidecar(Compaction(point=point, first=self.first, count=len(self._records)))
        dropped = min(len(self._records), point.index + 1 - self._first)
        with self._poison.writing():
            if dropped > 0:
                replace_file(self._files, self._path, self._kept(dropped))
                shortened = self._files.open(self._path, write=True)
                self._file.close()
                self._file = shortened
            self._remove_sidecar()
        self._forget(dropped, point)

    def close(self) -> None:
        try:
            if not self._poison.has_struck:  # a sync that has failed is never tried again
                with self._poison.writing():
                    self._sync_point.sync()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._file.close()
        self._sync_point.close()

    # Growing, copying.

    def _reserve(self, end: int) -> None:
        """Make the file long enough for records up to ``end`` and the end mark behind them."""
        needed = end + len(END_MARKER)
        if needed > self._size:
            size = -(-needed // self._growth) * self._growth
            self._file.write(self._size, list(zeros(size - self._size)))
            self._file.sync()
            self._size = size

    def _kept(self, dropped: int) -> Iterator[Bytes]:
        """Yield the log's bytes without its first ``dropped`` records."""
        yield encode_header(LAYOUT, commit=max(self._commit - dropped, -1))
        at_end = dropped >= len(self._records)
        offset = self._records.end if at_end else self._records.offsets[dropped]
        while offset < self._records.end:
            data = self._file.read(offset, min(COPY_WINDOW, self._records.end - offset))
            yield data
            offset += len(data)
        yield from zeros(self._growth)

    def _forget(self, dropped: int, point: SnapshotPoint) -> None:
        kept, shift = Records(LAYOUT.header_size), 0
        if dropped < len(self._records):
            shift = self._records.offsets[dropped] - LAYOUT.header_size
            numbers = range(dropped, len(self._records))
            offsets = [self._records.offsets[number] - shift for number in numbers]
            terms = [self._records.term(number) for number in numbers]
            kept.extend(offsets, terms, self._records.end - shift)
        self._records = kept
        self._first = point.index + 1
        self._commit = max(self._commit - dropped, -1)
        self._size = self._file.size()

    # Starting.

    def _initialise(self, snapshot: SnapshotPoint | None) -> None:
        """Make the file if it is missing, empty, or a header that a crash cut short (R1, R2)."""
        start = read_whole(self._files, self._path, size_max=LAYOUT.header_size)
        header = encode_header(LAYOUT)
        if start is None or (len(start) < len(header) and header.startswith(start)):
            refuse_missing(self._path, self._sync_point.point.synced, _after(snapshot))
            with self._poison.writing():
                replace_file(self._files, self._path, [header, *zeros(self._growth)])

    def _write_again(self) -> None:
        """Write the records once more that no sync is known to have proved."""
        number = max(0, self._sync_point.point.synced + 1 - self._first)
        if number < len(self._records):
            with self._poison.writing():
                write_again(self._file, self._records.offsets[number], self._records.end)

    def _recover(self, snapshot: SnapshotPoint | None) -> None:
        walked = walk_file(self._file, self._path, LAYOUT)
        assert walked.commit is not None
        sidecar = self._read_sidecar()
        try:
            old_first = sidecar.log_first(snapshot, len(walked.records)) if sidecar else None
        except BadData as error:
            raise error.located(str(self._path)) from None
        self._first = _after(snapshot) if old_first is None else old_first
        # While an unfinished compaction shows, the records were synced up to the last one.
        point = self._sync_point.point
        refuse_shortened(
            self._file, self._path, LAYOUT, walked, first=self._first, known=self._sync_point
        )
        sure = max(self._first + walked.commit, point.synced)
        cut = judge_tail(
            self._file,
            self._path,
            LAYOUT,
            walked,
            first=self._first,
            sure=sure,
            is_ours=point.sequence > 0,
            term=0 if snapshot is None else snapshot.term,
        )
        if walked.commit >= len(walked.records):
            raise CorruptData(
                "committed entries are missing",
                path=str(self._path),
                offset=COMMIT_OFFSET,
                expected=f"more than {walked.commit} records",
                found=str(len(walked.records)),
            )
        self._records, self._commit = walked.records, walked.commit
        with self._poison.writing():
            if cut is not None:
                if cut.is_undecided:
                    replace_file(self._files, self._undecided_path, self._all_bytes())
                erase(self._file, cut)
                self.cuts.append(cut)
            if sidecar is not None and old_first is None:
                self._remove_sidecar()
        if sidecar is not None and old_first is not None:
            self._size = self._file.size()
            self.drop_prefix(sidecar.point)

    @property
    def _undecided_path(self) -> Path:
        """Where the log is copied before records are cut of which the bytes do not tell whether they are entries."""
        return self._path.with_name(self._path.name + UNDECIDED_SUFFIX)

    def _all_bytes(self) -> Iterator[Bytes]:
        size = self._file.size()
        for offset in range(0, size, COPY_WINDOW):
            yield self._file.read(offset, min(COPY_WINDOW, size - offset))

    # The sidecar.

    @property
    def _sidecar_path(self) -> Path:
        return self._path.parent / FILE_NAME

    def _read_sidecar(self) -> Compaction | None:
        data = read_whole(self._files, self._sidecar_path, size_max=SIZE)
        if not data:
            return None
        try:
            return decode_compaction(data)
        except BadData as error:
            raise error.located(str(self._sidecar_path)) from None

    def _write_sidecar(self, compaction: Compaction) -> None:
        with self._poison.writing():
            replace_file(self._files, self._sidecar_path, [encode_compaction(compaction)])

    def _remove_sidecar(self) -> None:
        self._files.remove(self._sidecar_path)
        self._files.sync_directory(self._path.parent)


def _after(snapshot: SnapshotPoint | None) -> int:
    """Return the index behind the snapshot."""
    return 0 if snapshot is None else snapshot.index + 1
