"""Wrong versions of the paged store, each with one bug that programs like ours have had.

Every function patches the storage for the time of one test. None of this is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.binary import Bytes
from penstock.formats.rabbitmq.checkpoint import NO_MARK, QueueLengths, encode_checkpoint
from penstock.formats.rabbitmq.journal import Kind
from penstock.formats.rabbitmq.places import PlaceTable, TableMark, mark_of, places_name
from penstock.formats.rabbitmq.segment import parse_segment_name
from penstock.storage.files import TEMPORARY_SUFFIX, File
from penstock.storage.paged import queue_index, queue_segments
from penstock.storage.paged.directory import AtMark, PagedDirectory, PendingCheckpoint
from penstock.storage.paged.message_store import MessageStore, Numbers
from penstock.storage.paged.place_tables import WantedTable
from penstock.storage.paged.queue_index import QueueIndex
from penstock.storage.paged.queue_segments import Segment
from penstock.storage.paged.segment_records import segment_table
from penstock.storage.paged.tree_files import TreeFiles, Unsynced

Patch = pytest.MonkeyPatch


# Checkpoints.


def seed_checkpoint_before_sync(patch: Patch) -> None:
    def write(self: PendingCheckpoint) -> None:
        self.unsynced.replace(self.path, [encode_checkpoint(self.with_new_tables())])
        self.unsynced.sync()

    patch.setattr(PendingCheckpoint, "write", write)


def seed_files_unsynced(patch: Patch) -> None:
    def sync(self: Unsynced) -> None:
        for directory in self.directories:
            self._files.sync_directory(directory)

    patch.setattr(Unsynced, "sync", sync)


def seed_names_unsynced(patch: Patch) -> None:
    original = Unsynced.sync

    def sync(self: Unsynced) -> None:
        self.directories = []
        original(self)

    patch.setattr(Unsynced, "sync", sync)


def seed_checkpoint_in_place(patch: Patch) -> None:
    def replace(self: Unsynced, path: Path, pieces: Iterable[Bytes]) -> None:
        file = self._files.open(path, write=True, create=True)
        file.truncate(0)
        file.write(0, list(pieces))
        file.sync()
        self._files.sync_directory(path.parent)

    patch.setattr(Unsynced, "replace", replace)


def seed_removed_before_the_checkpoint(patch: Patch) -> None:
    begin = PagedDirectory.begin_checkpoint

    def begin_and_remove(self: PagedDirectory, mark: int = NO_MARK) -> Callable[[], None]:
        write = begin(self, mark)
        assert self._pending is not None
        for one in self._pending.queues:
            one.queue.finish_checkpoint(one)
            one.acked.clear()
        return write

    patch.setattr(PagedDirectory, "begin_checkpoint", begin_and_remove)


def seed_deleted_queue_removed_at_once(patch: Patch) -> None:
    original = PagedDirectory.delete_queue

    def delete(self: PagedDirectory, number: int) -> None:
        original(self, number)
        while self._doomed:
            self._empty(self._doomed.pop())

    patch.setattr(PagedDirectory, "delete_queue", delete)


def seed_garbage_removed_at_once(patch: Patch) -> None:
    original = MessageStore.remove_many

    def remove(self: MessageStore, slots: Numbers) -> None:
        original(self, slots)
        self.forget(self.garbage())

    patch.setattr(MessageStore, "remove_many", remove)


# The journal.


def seed_flush_empties_the_journal(patch: Patch) -> None:
    original = QueueIndex.flush

    def flush(self: QueueIndex) -> None:
        original(self)
        if self._journal_size:
            self._tree.truncate(self.journal_path, 0)
            self._journal_size = self._flushed_size = self._sealed_size = 0

    patch.setattr(QueueIndex, "flush", flush)


def seed_journal_goes_on_where_it_was(patch: Patch) -> None:
    original = QueueIndex.begin_checkpoint

    def begin(self: QueueIndex, tables_max: int) -> queue_index.PendingQueue:
        pending = original(self, tables_max)
        if self._is_apart:
            self.journal_path = self.directory / queue_index.JOURNAL
            self._is_apart = False
        return pending

    patch.setattr(QueueIndex, "begin_checkpoint", begin)


def seed_generation_never_changes(patch: Patch) -> None:
    original = QueueIndex.begin_checkpoint

    def begin(self: QueueIndex, tables_max: int) -> queue_index.PendingQueue:
        before = self._generation
        pending = original(self, tables_max)
        if self._generation != before:
            self._generation = self._chain = before
            object.__setattr__(pending.lengths, "generation", before)
            object.__setattr__(pending.lengths, "chain", before)
        return pending

    patch.setattr(QueueIndex, "begin_checkpoint", begin)


def seed_journal_believed_to_its_end(patch: Patch) -> None:
    def end(self: QueueIndex, lengths: QueueLengths, *, exactly: bool) -> int:
        self._chain = lengths.chain
        file = self._tree.get(self.journal_path)
        stop = lengths.journal_length
        if exactly:
            return stop
        for base, _, pieces in self._scan_journal(stop, file.size()):
            rows = np.flatnonzero(pieces.kind != Kind.NONE)
            if len(rows):
                stop = base + int(pieces.offset[rows[-1]] + pieces.size[rows[-1]])
        return stop

    patch.setattr(QueueIndex, "_believed_end", end)


def seed_journal_not_cut(patch: Patch) -> None:
    original = QueueIndex._believed_end

    def end(self: QueueIndex, lengths: QueueLengths, *, exactly: bool) -> int:
        found = original(self, lengths, exactly=exactly)
        return max(found, self._tree.get(self.journal_path).size() // 8 * 8)

    patch.setattr(QueueIndex, "_believed_end", end)


def seed_sealed_before_the_store_is_synced(patch: Patch) -> None:
    def sync(self: PagedDirectory) -> None:
        if not self._is_listed:
            self.checkpoint()
            return
        for queue in self.queues:
            queue.seal()
            self._tree.sync([queue.journal_path])
        self.store.sync()

    patch.setattr(PagedDirectory, "sync", sync)


def seed_journal_unsynced(patch: Patch) -> None:
    def sync(self: PagedDirectory) -> None:
        if not self._is_listed:
            self.checkpoint()
            return
        self.store.sync()
        for queue in self.queues:
            queue.seal()

    patch.setattr(PagedDirectory, "sync", sync)


# Segments.


def seed_segments_not_cut(patch: Patch) -> None:
    original = Segment.recover

    def recover(
        self: Segment,
        length: int,
        table: TableMark | None,
        find_slots: queue_segments.FindSlots,
    ) -> None:
        size = self._tree.get(self.path).size() if self._tree.exists(self.path) else 0
        original(self, max(length, size), table, find_slots)

    patch.setattr(Segment, "recover", recover)


def seed_unknown_segments_kept(patch: Patch) -> None:
    def nothing(self: QueueIndex, lengths: QueueLengths) -> None:
        for name in self._tree.names(self.directory):
            number = parse_segment_name(name)
            if number is not None and number not in lengths.segments:
                lengths.segments[number] = 0
                size = self._tree.get(self.directory / name).size()
                lengths.segments[number] = size

    patch.setattr(QueueIndex, "_remove_unknown", nothing)


def seed_delivers_flushed_twice(patch: Patch) -> None:
    original = Segment.flush

    def flush(self: Segment, path: Path, *, may_grow: bool) -> None:
        # As after a crash: what the file says already is not known.
        if self.is_dirty:
            self.state &= np.uint8(0xFF ^ queue_segments.DELIVER_FLUSHED)
        original(self, path, may_grow=may_grow)

    patch.setattr(Segment, "flush", flush)


# Tables of places.


def seed_stale_tables_believed(patch: Patch) -> None:
    """Take every table that is there for the right one, whatever the checkpoint says."""
    original = QueueIndex._remove_unknown

    def remove_unknown(self: QueueIndex, lengths: QueueLengths) -> None:
        for number in lengths.segments:
            path = self.directory / places_name(number)
            data = self._tree.read_whole(path, size_max=2**20)
            if data:
                lengths.tables[number] = mark_of(data)
        original(self, lengths)

    patch.setattr(QueueIndex, "_remove_unknown", remove_unknown)


def seed_nothing_read_behind_a_table(patch: Patch) -> None:
    original = Segment._read_table

    def read(self: Segment) -> Any:
        found = original(self)
        return None if found is None else (self.file_size, found[1])

    patch.setattr(Segment, "_read_table", read)


def seed_tables_of_the_present(patch: Patch) -> None:
    """A table is made of the file as it is when it is written, not as it was when the checkpoint began."""

    def wanted(self: Segment) -> WantedTable:
        began = self.file_size

        def make(file: File) -> PlaceTable | None:
            table = segment_table(file, self._file, file.size())
            return None if table is None else replace(table, length=began)

        return WantedTable(path=self.path, number=self._file.number, make=make)

    patch.setattr(Segment, "wanted_table", wanted)


def seed_nothing_read_behind_a_stores_table(patch: Patch) -> None:
    original = MessageStore._take_table

    def take(self: MessageStore, number: int) -> int:
        return self._files[number].size if original(self, number) else 0

    patch.setattr(MessageStore, "_take_table", take)


# The store.


def seed_merge_in_place(patch: Patch) -> None:
    """Merge as the original does: cut the left file, extend it with zeros, fill it again."""

    def move(self: MessageStore, slots: Numbers, sizes: Numbers) -> int:
        target = int(self._slots.file[slots[0]])
        path = self._path(target)
        records = []
        for slot, size in zip(slots.tolist(), sizes.tolist(), strict=True):
            source = self._path(int(self._slots.file[slot]))
            offset = int(self._slots.offset[slot])
            records.append(self._tree.get(source).read(offset, size))
        total = int(sizes.sum())
        self._tree.truncate(path, 0)
        self._tree.truncate(path, total)
        self._tree.write(path, 0, records)
        self._tree.sync([path])
        for number in np.unique(self._slots.file[slots]).tolist():
            chosen = self._slots.file[slots] == number
            self._files[number].live_size -= int(sizes[chosen].sum())
        self._files[target].size = self._files[target].live_size = total
        self._slots.file[slots] = target
        self._slots.offset[slots] = np.cumsum(sizes) - sizes
        return total

    patch.setattr(MessageStore, "_move", move)


def seed_merge_unsynced(patch: Patch) -> None:
    original = TreeFiles.sync

    def sync(self: TreeFiles, paths: Iterable[Path]) -> None:
        original(self, [p for p in paths if not p.name.endswith(".rdq" + TEMPORARY_SUFFIX)])

    patch.setattr(TreeFiles, "sync", sync)
    forget = TreeFiles._forget

    def rename(self: TreeFiles, source: Path, target: Path) -> None:
        forget(self, target)
        self._unsynced.discard(source)
        self._open.pop(source, None)
        self._files.rename(source, target)
        self._unsynced_names.add(target.parent)

    patch.setattr(TreeFiles, "rename", rename)


def seed_nothing_synced_at_start(patch: Patch) -> None:
    original = PagedDirectory._recover

    def recover(self: PagedDirectory, at_mark: AtMark) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(TreeFiles, "sync", lambda *_: None)
            original(self, at_mark)
        self._tree._unsynced.clear()

    patch.setattr(PagedDirectory, "_recover", recover)


def seed_checkpoint_name_unsynced_at_start(patch: Patch) -> None:
    patch.setattr(TreeFiles, "sync_directory", lambda *_: None)
