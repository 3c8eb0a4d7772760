"""Wrong versions of the storage, each with one bug that programs like ours have had.

Every function patches the storage for the time of one test. None of this is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.binary import Bytes
from penstock.formats.taskflux.compaction import Compaction
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.model import HardState, Index, SnapshotPoint
from penstock.storage import metadata, recovery, segmented_log, single_log
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import TEMPORARY_SUFFIX, File, Files
from penstock.storage.log import LogLimits, SyncPointFile
from penstock.storage.metadata import MetadataStore
from penstock.storage.recovery import Cut
from penstock.storage.segmented_log import SegmentedLog, _Segment
from penstock.storage.single_log import SingleLog
from penstock.storage.snapshot import SnapshotWriter
from penstock.testing.disk import MemoryFiles

Patch = pytest.MonkeyPatch


def returning(value: object) -> Callable[..., object]:
    """Return a function that does nothing but return ``value``."""

    def function(*_: object, **__: object) -> object:
        return value

    return function


# Replacing a file.


def replace_wrongly(
    files: Files,
    path: Path,
    pieces: Iterable[Bytes],
    *,
    syncs_file: bool = True,
    syncs_directory: bool = True,
    renames_first: bool = False,
) -> None:
    sibling = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = files.open(sibling, write=True, create=True)
    file.truncate(0)
    offset = 0
    for piece in pieces:
        file.write(offset, [piece])
        offset += len(piece)
    if renames_first:
        files.rename(sibling, path)
    if syncs_file:
        file.sync()
    if not renames_first:
        files.rename(sibling, path)
    file.close()
    if syncs_directory:
        files.sync_directory(path.parent)


def seed_replace(patch: Patch, **wrong: Any) -> None:
    for module in (single_log, segmented_log, metadata):
        patch.setattr(module, "replace_file", partial(replace_wrongly, **wrong))


def seed_metadata_in_place(patch: Patch) -> None:
    def replace(self: MetadataStore, state: HardState) -> None:
        file = self._files.open(self._path, write=True, create=True)
        file.truncate(0)
        file.write(0, [encode_metadata(state, self.layout)])
        file.sync()
        self._files.sync_directory(self._path.parent)
        self._state = state

    patch.setattr(MetadataStore, "replace", replace)


# Syncing the log, and the sync point.


def seed_no_sync(patch: Patch) -> None:
    def sync(self: SingleLog | SegmentedLog) -> None:
        self._sync_point.advance(synced=self.end - 1, committed=self.committed)

    patch.setattr(SingleLog, "sync", sync)
    patch.setattr(SegmentedLog, "sync", sync)


def seed_sync_after_note(patch: Patch) -> None:
    def sync_2(self: SingleLog) -> None:
        self._sync_point.advance(synced=self.end - 1, committed=self.committed)
        self._file.sync()

    def sync_3(self: SegmentedLog) -> None:
        self._sync_point.advance(synced=self.end - 1, committed=self.committed)
        self._segments[-1].file.sync()

    patch.setattr(SingleLog, "sync", sync_2)
    patch.setattr(SegmentedLog, "sync", sync_3)


def seed_no_retreat(patch: Patch) -> None:
    patch.setattr(SyncPointFile, "retreat", returning(None))


def seed_retreat_unsynced(patch: Patch) -> None:
    def retreat(self: SyncPointFile, *, synced: int) -> None:
        if synced < self.point.synced:
            for _ in range(2):
                self.advance(synced=synced, committed=min(self.point.committed, synced))

    patch.setattr(SyncPointFile, "retreat", retreat)


def seed_no_sync_at_start(patch: Patch) -> None:
    for kind in (SingleLog, SegmentedLog):
        patch.setattr(kind, "__init__", _without_sync(kind.__init__))


def _without_sync(original: Callable[..., None]) -> Callable[..., None]:
    def opened(self: object, *rest: object) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(self), "sync", returning(None))
            original(self, *rest)

    return opened


def seed_names_unsynced_at_start(patch: Patch) -> None:
    original = NodeDirectory._open

    def opened(self: NodeDirectory, limits: LogLimits) -> None:
        sync = MemoryFiles.sync_directory
        waiting = {self.layout.home, self.layout.companions}

        def sync_later(files: MemoryFiles, path: Path) -> None:
            if path in waiting:
                waiting.discard(path)
            else:
                sync(files, path)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(MemoryFiles, "sync_directory", sync_later)
            original(self, limits)

    patch.setattr(NodeDirectory, "_open", opened)


# Compaction.


def seed_no_sidecar(patch: Patch) -> None:
    patch.setattr(SingleLog, "_write_sidecar", returning(None))
    patch.setattr(SingleLog, "_remove_sidecar", returning(None))


def seed_sidecar_without_count(patch: Patch) -> None:
    original = SingleLog._write_sidecar

    def write(self: SingleLog, compaction: Compaction) -> None:
        original(self, Compaction(point=compaction.point, first=compaction.first, count=None))

    patch.setattr(SingleLog, "_write_sidecar", write)


def seed_sidecar_removed_early(patch: Patch) -> None:
    original, remove = SingleLog.drop_prefix, SingleLog._remove_sidecar

    def drop(self: SingleLog, point: SnapshotPoint) -> None:
        write = self._write_sidecar
        with pytest.MonkeyPatch.context() as inner:

            def write_and_remove(compaction: Compaction) -> None:
                write(compaction)
                remove(self)

            inner.setattr(self, "_write_sidecar", write_and_remove)
            inner.setattr(self, "_remove_sidecar", returning(None))
            original(self, point)

    patch.setattr(SingleLog, "drop_prefix", drop)


def seed_log_dropped_first(patch: Patch) -> None:
    def save(self: NodeDirectory, point: SnapshotPoint, pieces: object) -> None:
        writer = self.snapshot.write(pieces)  # type: ignore[arg-type]
        self.log.begin_compaction(point)
        self.log.drop_prefix(point)
        writer.install()
        self.snapshot.reload()

    patch.setattr(NodeDirectory, "save_snapshot", save)


def seed_snapshot_unsynced(patch: Patch) -> None:
    def finish(self: SnapshotWriter, found: object) -> None:
        self._flush()
        if found is not None:
            self._file.write(found.offset, [found.data])  # type: ignore[attr-defined]
        self._close()

    patch.setattr(SnapshotWriter, "finish", finish)


def seed_snapshot_name_unsynced(patch: Patch) -> None:
    def install(self: SnapshotWriter) -> None:
        self._files.rename(self._sibling, self._path)

    patch.setattr(SnapshotWriter, "install", install)


def seed_segment_too_many(patch: Patch) -> None:
    def drop(self: SegmentedLog, point: SnapshotPoint) -> None:
        if point.index >= self.end - 1:  # one too early: the last segment is still needed
            self._start_anew(point.index + 1)
        while len(self._segments) > 1:
            self._remove(self._segments.pop(0))
        self._committed = max(self._committed, point.index)

    patch.setattr(SegmentedLog, "drop_prefix", drop)


# Truncation and segments.


def seed_truncate_in_memory_only(patch: Patch) -> None:
    def truncate_2(self: SingleLog, index: Index) -> None:
        if index < self.end:
            self._sync_point.retreat(synced=index - 1)
            self._records.cut(max(0, index - self._first))

    def truncate_3(self: SegmentedLog, index: Index) -> None:
        self._sync_point.retreat(synced=index - 1)
        while len(self._segments) > 1 and self._segments[-1].first >= index:
            self._remove(self._segments.pop())
        segment = self._segments[-1]
        segment.records.cut(max(0, index - segment.first))

    patch.setattr(SingleLog, "truncate", truncate_2)
    patch.setattr(SegmentedLog, "truncate", truncate_3)


def seed_truncate_unsynced(patch: Patch) -> None:
    def truncate(self: SingleLog, index: Index) -> None:
        number = max(0, index - self._first)
        if number < len(self._records):
            start, stop = self._records.offsets[number], self._records.end
            self._sync_point.retreat(synced=index - 1)
            self._file.write(start, [bytes(stop - start)])
            self._records.cut(number)

    patch.setattr(SingleLog, "truncate", truncate)


def truncate_segments(
    self: SegmentedLog, index: Index, *, oldest_first: bool = False, erases_first: bool = False
) -> None:
    if index >= self.end:
        return
    self._sync_point.retreat(synced=index - 1)
    kept = [s for s in self._segments if s.first < index or s is self._segments[0]]
    gone = [s for s in self._segments if s not in kept]

    def erase() -> None:
        segment, number = kept[-1], max(0, index - kept[-1].first)
        if number < len(segment.records):
            start, stop = segment.records.offsets[number], segment.records.end
            segment.file.write(start, [bytes(stop - start)])
            segment.file.sync()
            segment.records.cut(number)

    if erases_first:
        erase()
    for segment in gone if oldest_first else reversed(gone):
        self._remove(segment)
    self._segments = kept
    if not erases_first:
        erase()


def seed_truncation(patch: Patch, **wrong: bool) -> None:
    def truncate(self: SegmentedLog, index: Index) -> None:
        truncate_segments(self, index, **wrong)

    patch.setattr(SegmentedLog, "truncate", truncate)


def seed_removal_unsynced(patch: Patch) -> None:
    def remove(self: SegmentedLog, segment: _Segment) -> None:
        segment.file.close()
        self._files.remove(segment.path)

    patch.setattr(SegmentedLog, "_remove", remove)


def seed_sealed_unsynced(patch: Patch) -> None:
    def rotate(self: SegmentedLog) -> _Segment:
        self._begin(self._segments[-1].end)
        return self._segments[-1]

    patch.setattr(SegmentedLog, "_rotate", rotate)


# Recovery.


def seed_cut_not_erased(patch: Patch) -> None:
    for module in (single_log, segmented_log):
        patch.setattr(module, "erase", returning(None))


def seed_cut_erases_a_marker_only(patch: Patch) -> None:
    def erase(file: File, cut: Cut) -> None:
        file.write(cut.offset, [bytes(4)])
        file.sync()

    for module in (single_log, segmented_log):
        patch.setattr(module, "erase", erase)


def seed_lost_sector_is_damage(patch: Patch) -> None:
    patch.setattr(recovery, "lacks_a_piece", returning(False))


def seed_tail_left_behind(patch: Patch) -> None:
    def end_of_data(_file: File, start: int, _stop: int) -> int:
        return start

    patch.setattr(recovery, "end_of_data", end_of_data)


def seed_nothing_begun(patch: Patch) -> None:
    for kind in (SingleLog, SegmentedLog):
        patch.setattr(kind, "begin_compaction", returning(None))


def seed_growth_unsynced(patch: Patch) -> None:
    def reserve(self: SingleLog, end: int) -> None:
        if end + 4 > self._size:
            size = -(-(end + 4) // self._growth) * self._growth
            self._file.write(self._size, [bytes(size - self._size)])
            self._size = size

    patch.setattr(SingleLog, "_reserve", reserve)
