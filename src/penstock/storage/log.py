"""What every log store does, whatever its files look like.

``single_log`` keeps generation 2's one file, ``segmented_log`` generation 3's segments. An append
and the sync that makes it durable are separate calls, because the caller decides how many batches
share a sync; nothing may be promised to anybody before ``sync`` has returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import Compacted, CorruptData, ForeignWrite, OutOfRange
from penstock.formats.taskflux.sync_point import (
    FILE_NAME,
    SIZE,
    SyncPoint,
    decode_sync_point,
    encode_sync_point,
)
from penstock.model import Entry, Index, SnapshotPoint, Term
from penstock.storage.files import Files, read_whole
from penstock.storage.records import Stretch

READ_SIZE_MAX: Final = 2**20
"""Default bound on the payload bytes of one ``read``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How large the files of a log get; the defaults of the limits are TaskFlux's."""

    soft: int = 16 * 2**20  # a segment is sealed behind this once all of it is committed
    hard: int = 32 * 2**20  # a segment is sealed behind this in any case
    growth: int = 4 * 2**20  # a file grows by this: one slow sync for thousands of fast ones

    def __post_init__(self) -> None:
        assert 16 < self.soft <= self.hard
        assert self.growth > 0


DEFAULT_LIMITS: Final = LogLimits()


class Log(Protocol):
    """The log of a node. Indexes are global and count from 0."""

    @property
    def first(self) -> Index:
        """The index of the first entry that the log can still hold."""
        ...

    @property
    def end(self) -> Index:
        """The index that the next appended entry gets."""
        ...

    @property
    def committed(self) -> Index:
        """The last index known to be committed; ``NO_INDEX`` if none is."""
        ...

    @property
    def last_term(self) -> int:
        """The term of the last entry; 0 if the log holds none."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the records that the log holds."""
        ...

    def append(self, term: Term, payloads: Sequence[bytes]) -> None:
        """Write a batch of entries of one term behind the last one, as one write."""
        ...

    def sync(self) -> None:
        """Return when everything appended is on the disk."""
        ...

    @property
    def wants_spare(self) -> bool:
        """Whether ``make_spare`` would save the appends to come some time."""
        ...

    def make_spare(self) -> None:
        """Make a file ahead of time that an append will need; may run beside appends and syncs. Raises ``NoRoom``."""
        ...

    @property
    def spare_size(self) -> int:
        """How much room ``make_spare`` takes."""
        ...

    def truncate(self, index: Index) -> None:
        """Remove the entries from ``index`` on, durably. None of them may be committed."""
        ...

    def set_committed(self, index: Index) -> None:
        """Note that entries up to ``index``, all synced, are committed; durable with the next sync."""
        ...

    def term(self, index: Index) -> Term:
        """Return the term of an entry. Raises ``OutOfRange``."""
        ...

    def read(self, first: Index, end: Index, *, size_max: int = READ_SIZE_MAX) -> list[Entry]:
        """Return entries from ``first`` on, at least one, no more than fit ``size_max`` or precede ``end``."""
        ...

    def stretches(self, first: Index) -> Iterator[Stretch]:
        """Yield all entries from ``first`` on in bulk, for a rebuild of the state."""
        ...

    def begin_compaction(self, point: SnapshotPoint) -> None:
        """Prepare for a snapshot at ``point`` to come into place; its rename may follow at once."""
        ...

    def drop_prefix(self, point: SnapshotPoint) -> None:
        """Drop what the snapshot at ``point``, now in place, covers."""
        ...

    def close(self) -> None:
        """Let the files go. Raises ``StorageFailed``, but not for a failure that was told before."""
        ...


class SyncPointFile:
    """Keeps the sync point beside a log. Written without a sync of its own but the first time, and where it must step back."""

    def __init__(self, files: Files, directory: Path) -> None:
        self.path = directory / FILE_NAME
        data = read_whole(files, self.path, size_max=SIZE)
        found = None if data is None else decode_sync_point(data)
        self.point = found or SyncPoint()
        is_new = data is None or len(data) < SIZE
        self._file = files.open(self.path, write=True, create=True)
        if is_new:
            self._file.write(0, [bytes(SIZE)])
            self._file.sync()
            files.sync_directory(directory)

    def advance(self, *, synced: int, committed: int) -> None:
        """Note what a sync that has returned made durable."""
        point = self.point
        self._write(
            SyncPoint(
                sequence=point.sequence + 1,
                synced=Index(synced),
                committed=Index(committed),
                snapshot=point.snapshot,
                pending=point.pending,
            )
        )
        if point.sequence == 0:
            # From now on the directory is known as ours: what a crash tears is judged by this file.
            self._file.sync()

    def note_snapshot(self, snapshot: SnapshotPoint | None, pending: SnapshotPoint | None) -> None:
        """Note, durably, which snapshot is in place and which is about to be."""
        for _ in range(2):
            sequence = self.point.sequence + 1
            self._write(replace(self.point, sequence=sequence, snapshot=snapshot, pending=pending))
        self._file.sync()

    def _write(self, point: SyncPoint) -> None:
        self.point = point
        offset, slot = encode_sync_point(point)
        self._file.write(offset, [slot])

    def retreat(self, *, synced: int) -> None:
        """Withdraw the claim for entries behind ``synced``, durably, before they are removed."""
        if synced < self.point.synced:
            # Both slots: the older one may claim more than the newer, and survive it.
            for _ in range(2):
                self.advance(synced=synced, committed=min(self.point.committed, synced))
            self._file.sync()

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def foreign_write(
    what: str, noted: Path, *, path: Path | None, offset: int, expected: str, found: str
) -> ForeignWrite:
    """Return the refusal of files that do not fit what the sync point in ``noted`` says of them."""
    return ForeignWrite(
        f"{what}: another program wrote here since Penstock did, or the disk lost or changed data; nothing was changed."
        f" If TaskFlux ran on this directory, delete {noted} and start again; if not, restore the file, or salvage with"
        " 'penstock repair'",
        path=None if path is None else str(path),
        offset=offset,
        expected=expected,
        found=found,
    )


def refuse_index(index: int, first: int, end: int) -> None:
    """Raise ``Compacted`` or ``OutOfRange`` unless the log holds ``index``."""
    if index < first:
        raise Compacted(f"entry {index} is covered by a snapshot; the log begins at {first}")
    if index >= end:
        raise OutOfRange(f"entry {index} is not there yet; the log ends before {end}")


def refuse_missing(path: Path, synced: int, after: int) -> None:
    """Raise ``CorruptData`` for a log that is not there, if entries behind the snapshot were synced."""
    if synced >= after:
        raise CorruptData(
            "the log is missing or empty; nothing was changed: restore it, or begin in a new directory",
            path=str(path),
            offset=0,
            expected=f"entries up to {synced}, which were synced",
            found="no entries",
        )
