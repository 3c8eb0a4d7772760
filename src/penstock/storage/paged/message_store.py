"""The store that all queues of a directory share: messages too large for an index, in ``N.rdq`` files.

Records are only appended. What nobody refers to is garbage in its file; a file with more than half of
it is merged: what is left goes to a new file, which gets its name when it is whole and synced. A file
without a message is removed after the next checkpoint, not before: the checkpoint on the disk may still
need it. References are not stored; a start counts them anew from the indexes (docs/formats/paged.md).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import CorruptData
from penstock.formats.rabbitmq.message_store import (
    FRAMING_SIZE,
    HEAD,
    MERGE_SUFFIX,
    Status,
    StoreColumns,
    parse_store_name,
    scan_store_columns,
    store_name,
)
from penstock.formats.rabbitmq.places import (
    ROWS_MAX,
    Covers,
    PlaceTable,
    TableMark,
    as_columns,
    parse_places_name,
)
from penstock.formats.rabbitmq.writing import encode_stored
from penstock.storage.files import TEMPORARY_SUFFIX, File
from penstock.storage.paged.bulk_reads import read_runs, scan_windows
from penstock.storage.paged.limits import FILE_SIZE_END, FILE_SIZE_LIMIT
from penstock.storage.paged.message_slots import MessageSlots, id_columns
from penstock.storage.paged.place_tables import (
    NewTables,
    WantedTable,
    read_table,
    remove_table,
    table_path,
)
from penstock.storage.paged.tree_files import TreeFiles

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _StoreFile:
    """What is known of a file."""

    size: int
    live_size: int  # bytes of records that somebody refers to
    table: TableMark | None = None  # the table beside it that counts

    @property
    def is_mostly_garbage(self) -> bool:
        return 2 * self.live_size < self.size


class MessageStore:
    """The messages of all queues of a directory that are in no index."""

    def __init__(
        self, tree: TreeFiles, directory: Path, *, file_size_limit: int = FILE_SIZE_LIMIT
    ) -> None:
        assert 0 < file_size_limit < FILE_SIZE_END
        self._tree = tree
        self._directory = directory
        self._limit = file_size_limit
        self._slots = MessageSlots()
        self._files: dict[int, _StoreFile] = {}
        self._current: int | None = None  # the number of the file that is appended to
        self._next_number = 0
        self._sure: dict[int, int] = {}  # while starting: what the checkpoint says of lengths
        self.unread_tables: list[Path] = []  # those that a start could not use

    def __len__(self) -> int:
        """Return how many messages somebody refers to."""
        return len(self._slots)

    @property
    def memory_size(self) -> int:
        return self._slots.memory_size

    @property
    def file_size(self) -> int:
        """Bytes of all files, garbage included."""
        return sum(file.size for file in self._files.values())

    @property
    def live_size(self) -> int:
        """Bytes of the records that somebody refers to."""
        return sum(file.live_size for file in self._files.values())

    def write_many(self, ids: Sequence[bytes], messages: Sequence[bytes]) -> Numbers:
        """Append messages, and return the slot of each. One whose id is there is counted once more only."""
        self._tree.check()
        slots, is_new = self._slots.claim(id_columns(ids), counted=True)
        if is_new.all():
            self._append(slots, ids, messages)
        elif is_new.any():
            rows = np.flatnonzero(is_new).tolist()
            self._append(slots[is_new], [ids[r] for r in rows], [messages[r] for r in rows])
        return slots

    def _append(self, slots: Numbers, ids: Sequence[bytes], messages: Sequence[bytes]) -> None:
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        ends = np.cumsum(lengths + FRAMING_SIZE)
        pieces = iter(encode_stored(ids, messages))
        at, written = 0, 0
        while at < len(messages):
            number, file = self._file_to_append()
            # The one that reaches the limit is the last; a file may be longer by one record.
            room = written + self._limit - file.size
            stop = min(len(messages), int(np.searchsorted(ends, room)) + 1)
            self._tree.write(self._path(number), file.size, list(islice(pieces, 3 * (stop - at))))
            part = slots[at:stop]
            self._slots.file[part] = number
            starts = ends[at:stop] - lengths[at:stop] - FRAMING_SIZE
            self._slots.offset[part] = starts - written + file.size
            self._slots.length[part] = lengths[at:stop]
            size = int(ends[stop - 1]) - written
            file.size += size
            file.live_size += size
            at, written = stop, written + size

    def _file_to_append(self) -> tuple[int, _StoreFile]:
        if self._current is None or self._files[self._current].size >= self._limit:
            self._current = self._begin()
            self._tree.create(self._path(self._current))
        return self._current, self._files[self._current]

    def _begin(self) -> int:
        number = self._next_number
        self._next_number += 1
        self._files[number] = _StoreFile(size=0, live_size=0)
        return number

    def read_many(self, slots: Numbers) -> list[bytes]:
        """Return the messages in these slots. Raises ``CorruptData``."""
        messages: list[bytes] = [b""] * len(slots)
        numbers = self._slots.file[slots]
        offsets = self._slots.offset[slots].astype(np.int64) + HEAD.size
        lengths = self._slots.length[slots].astype(np.int64)
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            path = self._path(number)
            file = self._tree.get(path)
            for run in read_runs(file, path, offsets[rows], lengths[rows]):
                where = rows[run.rows]
                ends = run.starts + lengths[where]
                for row, start, end in zip(
                    where.tolist(), run.starts.tolist(), ends.tolist(), strict=True
                ):
                    messages[row] = run.data[start:end]
        return messages

    def remove_many(self, slots: Numbers) -> None:
        """Count one reference less for each; a message without one is garbage."""
        gone = self._slots.release(slots)
        if not len(gone):
            return
        sizes = self._slots.length[gone].astype(np.int64) + FRAMING_SIZE
        numbers = self._slots.file[gone]
        for number in np.unique(numbers).tolist():
            self._files[number].live_size -= int(sizes[numbers == number].sum())

    def find(self, ids: Numbers) -> Numbers:
        """Return the slots of these ids (as ``id_columns`` gives them), -1 where there is none."""
        return self._slots.find(ids)

    def refer(self, slots: Numbers) -> None:
        """Count one more reference for each: an index was read that refers to them."""
        self._slots.refer(slots)

    # Merging.

    @property
    def has_garbage_to_collect(self) -> bool:
        return bool(self._victims(self._limit))

    def collect(self, budget: int = FILE_SIZE_LIMIT) -> int:
        """Merge files with more than half garbage into a new one; return the bytes that were copied.

        Copies ``budget`` bytes at most, or one record. The files themselves go after the next checkpoint.
        """
        self._tree.check()
        victims = self._victims(min(budget, self._limit))
        if not victims:
            return 0
        slots = self._slots.in_files(victims)
        sizes = self._slots.length[slots].astype(np.int64) + FRAMING_SIZE
        count = max(1, int(np.searchsorted(np.cumsum(sizes), budget, side="right")))
        return self._move(slots[:count], sizes[:count])

    def _victims(self, room: int) -> list[int]:
        """Return files to merge, those with the least to copy first: as many as fit, or one."""
        candidates = sorted(
            (file.live_size, number)
            for number, file in self._files.items()
            if number != self._current and file.live_size and file.is_mostly_garbage
        )
        chosen: list[int] = []
        for live_size, number in candidates:
            room -= live_size
            if chosen and room < 0:
                break
            chosen.append(number)
        return chosen

    def _move(self, slots: Numbers, sizes: Numbers) -> int:
        """Copy records, in order of file and offset, to a new file, and look for them there from now on."""
        target = self._begin()
        final = self._path(target)
        path = final.with_name(final.name + TEMPORARY_SUFFIX)
        self._tree.create(path)
        numbers = self._slots.file[slots]
        offsets = self._slots.offset[slots].astype(np.int64)
        moved = np.cumsum(sizes) - sizes
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            source = self._path(number)
            file = self._tree.get(source)
            for run in read_runs(file, source, offsets[rows], sizes[rows]):
                self._copy(path, run.data, run.starts, sizes[rows[run.rows]], moved[rows[run.rows]])
        # Only a whole file gets a store file's name: no crash leaves half a merge, as the original's does.
        self._tree.sync([path])
        self._tree.rename(path, final)
        self._tree.sync([final])
        total = int(sizes.sum())
        for number in np.unique(numbers).tolist():
            self._files[number].live_size -= int(sizes[numbers == number].sum())
        self._files[target] = _StoreFile(size=total, live_size=total)
        self._slots.file[slots] = target
        self._slots.offset[slots] = moved
        return total

    def _copy(
        self, path: Path, data: bytes, starts: Numbers, sizes: Numbers, places: Numbers
    ) -> None:
        view = memoryview(data)
        ends = starts + sizes
        pieces = [view[s:e] for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]
        self._tree.write(path, int(places[0]), pieces)

    # Checkpoints.

    @property
    def next_number(self) -> int:
        return self._next_number

    def sync(self) -> None:
        """Return when every message written so far is on the disk."""
        unsynced = self._tree.unsynced
        self._tree.sync([path for path in unsynced if path.parent == self._directory])

    def lengths(self) -> dict[int, int]:
        """Return the length of every file that is needed: a checkpoint names no others."""
        garbage = self.garbage()
        files = sorted(self._files.items())
        return {number: file.size for number, file in files if number not in garbage}

    def garbage(self) -> set[int]:
        """Return the files without a message that somebody refers to; nothing is appended to them."""
        return {
            number
            for number, file in self._files.items()
            if not file.live_size and number != self._current
        }

    def forget(self, numbers: set[int]) -> None:
        """Remove garbage files, which the checkpoint on the disk does not name any more."""
        assert numbers <= self.garbage()
        for number in sorted(numbers):
            del self._files[number]
            self._tree.remove(self._path(number))
            remove_table(self._tree, self._path(number), number)

    def tables(self) -> dict[int, TableMark]:
        """Return the tables of the files that a checkpoint names."""
        garbage = self.garbage()
        files = sorted(self._files.items())
        return {n: f.table for n, f in files if f.table is not None and n not in garbage}

    def new_tables(self, tables_max: int) -> NewTables:
        """Return tables that are missing, so many at most: those of files that are not appended to."""
        wanted = [
            self._wanted_table(number, file.size)
            for number, file in sorted(self._files.items())
            if number != self._current and file.live_size and file.table is None
        ]
        return NewTables(wanted[:tables_max])

    def _wanted_table(self, number: int, length: int) -> WantedTable:
        return WantedTable(
            path=self._path(number),
            number=number,
            make=lambda file: _store_table(file, number, length),
        )

    def note_tables(self, tables: NewTables) -> None:
        """Take over the tables that were made with a checkpoint, which counts now."""
        for number, mark in tables.made.items():
            self._files[number].table = mark

    # Starting.

    def recover(
        self,
        lengths: dict[int, int],
        next_number: int,
        *,
        tables: dict[int, TableMark],
        exactly: bool,
    ) -> None:
        """Find all messages of the files that a checkpoint names; unless ``exactly``, of all others too.

        Nobody refers to a message yet: whoever reads the indexes does, and then calls ``settle``. Raises
        ``CorruptData`` if a file is shorter than the checkpoint says.
        """
        sizes = self._sizes_found(lengths, tables, exactly=exactly)
        self._next_number = max([next_number, *(number + 1 for number in sizes)])
        self._sure = dict(lengths)
        for number, length in sorted(lengths.items()):
            if sizes.get(number, 0) < length or number not in sizes:
                raise CorruptData(
                    "a store file is missing or shorter than the checkpoint says; restore it",
                    path=str(self._path(number)),
                    expected=f"{length} bytes",
                    found=f"{sizes.get(number, 0)}",
                )
            self._files[number] = _StoreFile(size=length, live_size=0, table=tables.get(number))
            self._scan(number, self._take_table(number), length)
        # Of several copies of a message the first that is met counts: one that no checkpoint vouches for may
        # be torn, but then a whole one stands before it.
        for number, size in sorted(sizes.items()):
            length = lengths.get(number, 0)
            file = self._files.setdefault(number, _StoreFile(size=size, live_size=0))
            file.size = size
            if not exactly and size > length:
                self._tree.distrust(self._path(number))
                self._scan(number, length, size)

    def _sizes_found(
        self, lengths: dict[int, int], tables: dict[int, TableMark], *, exactly: bool
    ) -> dict[int, int]:
        """Return the files that are there and their sizes; remove those that are none, or unknown."""
        sizes = {}
        for name in self._tree.names(self._directory):
            path = self._directory / name
            number = parse_store_name(name)
            is_store_file = number is not None and name == store_name(number)
            of_table = parse_places_name(name)
            is_unvouched = of_table is not None and of_table not in tables
            is_half = name.endswith((TEMPORARY_SUFFIX, MERGE_SUFFIX))
            if is_store_file and number is not None and (number in lengths or not exactly):
                sizes[number] = self._tree.get(path).size()
            elif is_store_file or is_half or is_unvouched:
                self._tree.remove(path)
        return sizes

    def _take_table(self, number: int) -> int:
        """Give a slot to each record that the file's table names; return how much of the file it covers."""
        file = self._files[number]
        if file.table is None:
            return 0
        table = read_table(
            self._tree, self._path(number), file.table, covers=Covers.STORE_FILE,
            queue=0, number=number, length=file.size,
        )  # fmt: skip
        records = None if table is None else _records_of_table(table)
        if table is None or records is None:
            file.table = None
            self.unread_tables.append(table_path(self._path(number), number))
            return 0
        self._claim(number, *records)
        return table.length

    def _claim(self, number: int, offsets: Numbers, lengths: Numbers, ids: Numbers) -> None:
        """Give a slot to each record of a file, unless its id has one already."""
        slots, is_new = self._slots.claim(ids, counted=False)
        found = slots[is_new]
        self._slots.file[found] = number
        self._slots.offset[found] = offsets[is_new]
        self._slots.length[found] = lengths[is_new]

    def _scan(self, number: int, start: int, end: int) -> None:
        """Give a slot to each whole record of a stretch of a file."""
        if start < end:
            file = self._tree.get(self._path(number))
            for records in _whole_records(file, start, end):
                self._claim(number, *records)

    def settle(self) -> None:
        """Forget the messages that no index refers to, and cut off what lies behind the last of a file.

        Behind that and the length of the checkpoint nothing was promised: it may be torn.
        """
        self._slots.release_unreferred()
        live = self._slots.extents()
        for number, file in self._files.items():
            count, size, end = live.get(number, (0, 0, 0))
            file.live_size = size + FRAMING_SIZE * count
            end = max(self._sure.get(number, 0), end + FRAMING_SIZE if count else 0)
            if end < file.size:
                self._tree.truncate(self._path(number), end)
                file.size = end
        newest = max(self._files, default=None)
        if newest is not None and self._files[newest].size < self._limit:
            self._current = newest

    def _path(self, number: int) -> Path:
        return self._directory / store_name(number)


def _whole_records(file: File, start: int, end: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yield offsets, lengths of messages, and ids of the whole records of a stretch of a file."""
    for base, data, pieces in scan_windows(file, start=start, end=end, scan=_scan_store):
        rows = np.flatnonzero(pieces.status == Status.OK)
        offsets: Numbers = pieces.offset[rows]
        yield base + offsets, pieces.length[rows], _ids_at(data, offsets)


def _scan_store(data: bytes, size: int) -> Generator[StoreColumns, None, int]:
    return scan_store_columns(data, size=size)


def _ids_at(data: bytes, offsets: Numbers) -> Numbers:
    """Return the ids of the records at these offsets."""
    raw = np.frombuffer(data, dtype=np.uint8)
    ids: Numbers = raw[(offsets + 8)[:, None] + np.arange(16)].view(np.int64).reshape(-1, 2)
    return ids


def _store_table(file: File, number: int, length: int) -> PlaceTable | None:
    """Return the table of the first ``length`` bytes of a file; ``None`` if a table cannot have so many rows."""
    parts = list(zip(*_whole_records(file, 0, length), strict=True))
    if not parts or sum(map(len, parts[0])) > ROWS_MAX:
        return None
    offsets, lengths, ids = (np.concatenate(part) for part in parts)
    halves = np.ascontiguousarray(ids).view(">u8")
    return PlaceTable(
        covers=Covers.STORE_FILE,
        queue=0,
        number=number,
        length=length,
        columns=as_columns((offsets, lengths, halves[:, 0], halves[:, 1])),
    )


def _records_of_table(table: PlaceTable) -> tuple[Numbers, Numbers, Numbers] | None:
    """Return what ``_whole_records`` would yield where the table was made; ``None`` if that cannot be."""
    if len(table.columns) != 4:
        return None
    offsets, lengths, first_half, second_half = (c.view(np.int64) for c in table.columns)
    ends = offsets + lengths + FRAMING_SIZE
    if len(table) and (min(offsets.min(), lengths.min()) < 0 or ends.max() > table.length):
        return None
    ids = np.stack([first_half, second_half], axis=1).astype(">i8").view(np.int64)
    return offsets, lengths, ids
