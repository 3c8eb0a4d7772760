"""Salvage: every message that is provably whole, into new files of the same kind; the rest as rows.

A queue is written as a broker's recovery would leave it: segments of version 1 that only hold what is
still there, an empty journal, and store files with the messages that some queue refers to. Messages are
copied byte for byte. Stores and single files are copied record by record, for nothing tells which of
their records still count. What a broker saves at a clean stop is not written: it recovers without. All other files of
a node, its metadata among them, are copied as they are.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

from penstock.binary import Bytes
from penstock.errors import BadData, PathRefused
from penstock.families.damage import Damage, Report, damage_row, ignore, words_of
from penstock.families.family import Progress, Row, no_progress
from penstock.families.rabbitmq.damage import REASONS, UNREADABLE, damage_at, reason_of
from penstock.families.rabbitmq.family import JOURNAL, MESSAGE_STORES, PERSISTENT, TRANSIENT
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.location import Location, Queue, Vhost, home
from penstock.families.rabbitmq.read import (
    BAD_EXPIRY,
    BAD_SEQUENCE,
    BAD_SIZE,
    SEQUENCE_BELIEVED,
    Bodies,
    Held,
    Shared,
    Wanted,
    decode,
    read_queue,
)
from penstock.families.rabbitmq.store_map import report_gaps
from penstock.families.rabbitmq.verify import own_store_damage
from penstock.families.taskflux.new_directory import whole_directory
from penstock.formats.rabbitmq import journal, message_store, queue_v2, segment
from penstock.formats.rabbitmq.journal import Kind, Piece, Publish, SequenceNumber, Status
from penstock.formats.rabbitmq.names import encode_config, encode_queue_name
from penstock.storage.broker_files import (
    Scan,
    StoreWindow,
    scan_index_file,
    scan_queue_store,
    scan_slots,
    scan_store_file,
    segment_scan,
)
from penstock.storage.files import FILES, File, OpenFiles, opened, replace_file

EVERYTHING: Final = Wanted(as_of_us=0, transient=True, expired=True)


STORE_FILE_SIZE: Final = 16 * 2**20
"""Bytes at which a broker begins the next store file, unless told otherwise."""


BUFFER_SIZE: Final = 2**20


MENDED: Final = {
    BAD_EXPIRY: "an impossible expiry, and were taken along without it",
    BAD_SIZE: "another size than their index says, and were taken along with the true one",
    BAD_SEQUENCE: "an impossible sequence number, and were taken along behind all others of their queue",
}
"""What is wrong with messages that are taken along all the same, by status."""


@dataclass
class Repaired:
    """What a repair wrote; filled as it goes."""

    messages: int = 0
    queues: int = 0
    records: int = 0  # copied from stores and single files
    left: int = 0  # rows of what was left behind
    odd_properties: int = (
        0  # messages that were taken along although their properties cannot be read
    )
    mended: Counter[str] = field(default_factory=Counter)  # messages taken along, by MENDED
    notes: list[str] = field(default_factory=list)


def repair(
    location: Location, out: Path, result: Repaired, *, progress: Progress = no_progress
) -> Iterator[Row]:
    """Write all that is whole into ``out``; yield a row for everything that was lost or left."""
    with whole_directory(out, source=home(location)) as new:
        for damage in _salvage(location, new, result, progress):
            if not damage.is_harmless:
                if damage.status in MENDED:
                    result.mended[damage.status] += 1
                else:
                    result.left += 1
                yield damage_row(FAMILY, damage)


def _salvage(
    location: Location, new: Path, result: Repaired, progress: Progress
) -> Iterator[Damage]:
    yield from location.found_damage
    match location.kind:
        case "node":
            # A broker deletes every queue that its metadata does not name, so that comes along as it is.
            yield from copy_tree(location.path, new, but=(MESSAGE_STORES,))
            result.notes.append(
                "all other files of the node were copied as they are; start the broker with the same node name"
            )
            for vhost in location.vhosts:
                place = new / MESSAGE_STORES / "vhosts" / vhost.path.name
                yield from _Salvage(vhost, place, result, progress).run(judges_stores=True)
        case "vhost":
            yield from _Salvage(location.vhosts[0], new, result, progress).run(judges_stores=True)
        case "queue":
            result.notes.append(
                "a queue is read with the stores of its vhost: a vhost was written that holds this queue alone"
            )
            yield from _Salvage(location.vhosts[0], new, result, progress).run(judges_stores=False)
        case _:
            for path in location.files:
                yield from _copy_file(location, path, new / path.name, result, progress)


# --- queues and their stores ---------------------------------------------------------------------


class _Salvage:
    """Writes the queues of a vhost, and the messages in its stores that they refer to."""

    def __init__(self, vhost: Vhost, place: Path, result: Repaired, progress: Progress) -> None:
        self.vhost = vhost
        self.place = place
        self.result = result
        self.progress = progress
        self.met: list[Damage] = []

    def run(self, *, judges_stores: bool) -> Iterator[Damage]:
        for name in (PERSISTENT, TRANSIENT, "queues"):
            FILES.make_directory(self.place / name)
        if self.vhost.name is not None:
            replace_file(FILES, self.place / ".vhost", [self.vhost.name])
        replace_file(FILES, self.place / ".config", [encode_config(self.vhost.entry_count)])
        report: Report = self.met.append if judges_stores else ignore
        with (
            OpenFiles() as files,
            closing(_Store(self.place / PERSISTENT)) as persistent,
            closing(_Store(self.place / TRANSIENT)) as transient,
        ):
            bodies = Bodies(vhost=self.vhost, files=files, report=report, progress=self.progress)
            for queue in self.vhost.queues:
                yield from self._queue(queue, bodies, persistent, transient)
            if judges_stores:
                # To look at a store is to judge it, also where no queue asked for anything in it.
                len(bodies.persistent), len(bodies.transient)
                yield from self._drained()
            persistent.finish()
            transient.finish()

    def _queue(
        self, queue: Queue, bodies: Bodies, persistent: _Store, transient: _Store
    ) -> Iterator[Damage]:
        place = self.place / "queues" / queue.path.absolute().name
        FILES.make_directory(place)
        if queue.name is not None:
            stub = encode_queue_name(replace(queue.name, version=1))
            replace_file(FILES, place / ".queue_name", [stub])
        with closing(_Segments(place, self.vhost.entry_count)) as segments:
            found = read_queue(
                queue, bodies, EVERYTHING, report=self.met.append, progress=self.progress
            )
            for held in found:
                raw = bodies.read(held.indexed)
                if isinstance(raw, Damage):
                    self.met.append(raw)  # a broker is at work and has just removed it
                else:
                    store = persistent if held.indexed.is_persistent else transient
                    self._take(held, raw, segments, store)
                yield from self._drained()
            segments.finish()
        replace_file(FILES, place / JOURNAL, [])
        for _, path in queue.stores:
            yield from own_store_damage(path, self.progress)
        yield from self._drained()
        self._count(queue)

    def _take(self, held: Held, raw: bytes, segments: _Segments, store: _Store) -> None:
        indexed, message = held
        is_shared = isinstance(indexed.body, Shared)
        # Only a container may lack its id, and nothing looks an embedded message up by it.
        message_id = message.id or blake2b(raw, digest_size=journal.MESSAGE_ID_SIZE).digest()
        if isinstance(indexed.body, Shared):
            message_id = indexed.body.message_id
            store.add(message_id, raw)
        publish = Publish(
            message_id=message_id,
            is_persistent=indexed.is_persistent,
            expiry_us=indexed.expiry_us,
            body_size=message.content.body_size,
            embedded=b"" if is_shared else raw,
        )
        segments.add(indexed.sequence, publish, bool(indexed.is_delivered))
        self.result.messages += 1
        try:
            message.content.properties  # noqa: B018 - only whether they can be read is asked
        except BadData:
            self.result.odd_properties += 1

    def _count(self, queue: Queue) -> None:
        self.result.queues += 1
        note = "queues of version 2 were written in version 1, which brokers before 4.0 serve"
        if (queue.indexes or queue.stores) and note not in self.result.notes:
            self.result.notes.append(note)

    def _drained(self) -> Iterator[Damage]:
        yield from self.met
        self.met.clear()


class _NewFile:
    """A file that is written from its start to its end."""

    def __init__(self, path: Path) -> None:
        self._file: File | None = FILES.open(path, write=True, create=True)
        self._directory = path.parent
        self._pieces: list[Bytes] = []
        self._written = 0
        self.size = 0

    def write(self, piece: Bytes) -> None:
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size - self._written >= BUFFER_SIZE:
            self._flush()

    def skip_to(self, offset: int) -> None:
        """Leave a hole, which reads as zeros."""
        self._flush()
        self._written = self.size = offset

    def _flush(self) -> None:
        assert self._file is not None
        self._file.write(self._written, self._pieces)
        self._pieces, self._written = [], self.size

    def finish(self) -> None:
        """Return when the file is on the disk."""
        self._flush()
        assert self._file is not None
        self._file.sync()
        self.close()
        FILES.sync_directory(self._directory)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Segments:
    """The index of a queue: messages come by their sequence numbers, so one segment after the other."""

    def __init__(self, directory: Path, entry_count: int) -> None:
        self._directory = directory
        self._entry_count = entry_count
        self._number = -1
        self._next = 0  # the sequence number behind the last message
        self._file: _NewFile | None = None

    def add(self, found: int, publish: Publish, is_delivered: bool) -> None:
        """Add a message. One whose number is impossible goes behind all others: it comes last, by its number."""
        sequence = SequenceNumber(found if found < SEQUENCE_BELIEVED else self._next)
        self._next = sequence + 1
        number = segment.segment_of(sequence, entry_count=self._entry_count)
        if self._file is None or number != self._number:
            self.finish()
            self._number = number
            self._file = _NewFile(self._directory / segment.segment_name(number))
        relative = segment.relative_of(sequence, entry_count=self._entry_count)
        self._file.write(segment.encode_publish(relative, publish))
        if is_delivered:
            self._file.write(segment.encode_deliver_or_ack(relative))

    def finish(self) -> None:
        if self._file is not None:
            self._file.finish()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Store:
    """A message store. A message that several queues hold stands in it once.

    The ids are kept for that: about 100 bytes each, for messages of 4096 bytes and more.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ids: set[bytes] = set()
        self._count = 0  # files
        self._file: _NewFile | None = None

    def add(self, message_id: bytes, message: bytes) -> None:
        if message_id in self._ids:
            return
        self._ids.add(message_id)
        if self._file is None or self._file.size >= STORE_FILE_SIZE:
            self.finish()
            self._file = _NewFile(self._directory / message_store.store_name(self._count))
            self._count += 1
        self._file.write(message_store.encode_record(message_id, message))

    def finish(self) -> None:
        if self._file is not None:
            self._file.finish()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


# --- stores and single files, record by record ---------------------------------------------------


def _copy_file(
    location: Location, path: Path, target: Path, result: Repaired, progress: Progress
) -> Iterator[Damage]:
    try:
        FILES.open(path, write=False).close()
    except (OSError, PathRefused) as error:
        yield damage_at(path, UNREADABLE, words_of(error))
        return
    with opened(path) as file, closing(_NewFile(target)) as new:
        match location.kind:
            case "journal":
                yield from _copy_records(file, path, new, journal.scan, result, progress)
            case "segment":
                vhost = location.vhosts[0]
                scan = segment_scan(vhost.queues[0].segments[0][0], vhost.entry_count)
                yield from _copy_records(file, path, new, scan, result, progress)
            case "index":
                yield from _copy_slots(file, path, new, result, progress)
            case "queue-store":
                yield from _copy_own_store(file, path, new, result, progress)
            case _:
                yield from _copy_store(file, path, new, result, progress)
        new.finish()


def _copy_records(
    file: File, path: Path, new: _NewFile, scan: Scan, result: Repaired, progress: Progress
) -> Iterator[Damage]:
    for piece in scan_index_file(file, scan, progress=progress):
        data = b"" if piece.kind is Kind.NONE else file.read(piece.offset, piece.size)
        damage = _damage(path, piece, data)
        if damage is None:
            new.write(data)
            result.records += 1
        else:
            yield damage


def _damage(path: Path, piece: Piece, data: bytes) -> Damage | None:
    """Return why a piece is no whole record, or what is embedded in it no message; ``None`` if all is well."""
    sequence = None if piece.kind is Kind.NONE else piece.sequence
    met: list[Damage] = []

    def report(status: str, reason: str) -> None:
        met.append(
            damage_at(path, status, reason, offset=piece.offset, size=piece.size, sequence=sequence)
        )

    if piece.status is not Status.OK:
        report(piece.status.word, reason_of(piece.status))
    elif piece.length:
        decode(data[len(data) - piece.length :], report)
    return met[0] if met else None


def _copy_store(
    file: File, path: Path, new: _NewFile, result: Repaired, progress: Progress
) -> Iterator[Damage]:
    met: list[Damage] = []
    for window in scan_store_file(file, progress=progress):
        report_gaps(path, window, met.append)
        yield from met
        met.clear()
        for run in _runs(window):
            new.write(run)
        result.records += int((window.pieces.status == message_store.Status.OK).sum())


def _runs(window: StoreWindow) -> Iterator[bytes]:
    """Yield the whole records of a window, those that stand side by side in one piece."""
    import numpy as np

    whole = window.pieces.status == message_store.Status.OK
    starts = window.pieces.offset[whole]
    ends = starts + window.pieces.size[whole]
    is_first = np.ones(len(starts), dtype=bool)
    is_first[1:] = starts[1:] != ends[:-1]
    is_last = np.ones(len(ends), dtype=bool)
    is_last[:-1] = is_first[1:]
    for start, end in zip(starts[is_first].tolist(), ends[is_last].tolist(), strict=True):
        yield window.data[start:end].tobytes()


def _copy_slots(
    file: File, path: Path, new: _NewFile, result: Repaired, progress: Progress
) -> Iterator[Damage]:
    """Copy the slots of a version 2 index to their places; zeros stand for all others."""
    head = file.read(0, queue_v2.HEADER_SIZE)
    header = queue_v2.decode_index_header(head)
    new.write(head)
    for slot in scan_slots(file, header, progress=progress):
        if slot.status is queue_v2.SlotStatus.OK:
            new.skip_to(slot.offset)
            new.write(file.read(slot.offset, slot.size))
            result.records += 1
        else:
            reason = reason_of(slot.status)
            yield damage_at(
                path,
                slot.status.word,
                reason,
                offset=slot.offset,
                size=slot.size,
                sequence=slot.sequence,
            )


def _copy_own_store(
    file: File, path: Path, new: _NewFile, result: Repaired, progress: Progress
) -> Iterator[Damage]:
    """Copy the records of a queue's own store, one behind the other."""
    head = file.read(0, queue_v2.HEADER_SIZE)
    queue_v2.decode_store_header(head)
    new.write(head)
    for record, _ in scan_queue_store(file, progress=progress):
        if record.status is queue_v2.RecordStatus.OK:
            new.write(file.read(record.offset, record.size))
            result.records += 1
        else:
            word = record.status.word
            yield damage_at(path, word, REASONS[word], offset=record.offset, size=record.size)


# --- what is not read, copied byte for byte: metadata, quorum queues, streams --------------------

PIECE: Final = 2**20
"""Bytes that are copied at a time."""


def copy_tree(source: Path, target: Path, *, but: tuple[str, ...] = ()) -> Iterator[Damage]:
    """Copy a directory, without the entries ``but``, with modes and times; yield what cannot be read.

    Symbolic links are copied as links. Sockets and pipes are left out: a broker makes its own.
    """
    FILES.make_directory(target)
    try:
        names = [name for name in FILES.names(source) if name not in but]
    except OSError as error:
        yield damage_at(source, UNREADABLE, words_of(error))
        return
    for name in names:
        yield from _copy(source / name, target / name)
    shutil.copystat(source, target)
    FILES.sync_directory(target)


def _copy(source: Path, target: Path) -> Iterator[Damage]:
    mode = source.lstat().st_mode
    if stat.S_ISDIR(mode):
        yield from copy_tree(source, target)
    elif stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)  # noqa: PTH115, PTH211 - as it is, also if it leads nowhere
    elif stat.S_ISREG(mode):
        try:
            FILES.open(source, write=False).close()
        except (OSError, PathRefused) as error:
            yield damage_at(source, UNREADABLE, words_of(error))
            return
        replace_file(FILES, target, _pieces(source))
        shutil.copystat(source, target)


def _pieces(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        offset = 0
        while piece := file.read(offset, PIECE):
            yield piece
            offset += len(piece)
