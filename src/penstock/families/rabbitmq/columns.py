"""The messages of a queue in bulk: what ``read_queue`` yields, many at a time and in columns.

Messages are read in the order in which they lie in their files, in few large pieces, and handed out in the order of
the queue. Whatever is out of the ordinary, a message that is missing, damaged or of a rare shape, is left to
``read_queue``'s own functions, so both report the same damage. Memory is bounded by ``BATCH_SIZE``, or by the largest message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.binary import UINT32
from penstock.errors import InvalidValue, PathRefused
from penstock.families.damage import Damage, Report, words_of
from penstock.families.family import Progress, no_progress
from penstock.families.rabbitmq.damage import UNREADABLE, damage_at
from penstock.families.rabbitmq.location import Queue
from penstock.families.rabbitmq.read import (
    EXPIRY_MIN_US,
    RECORDS_MAX,
    SEQUENCE_BELIEVED,
    Bodies,
    Embedded,
    Held,
    Indexed,
    Shared,
    Wanted,
    believed_rows,
    expiry_end_us,
    finding_damage,
    implausible,
    is_forgotten,
    read_held,
    read_queue,
    too_many,
)
from penstock.families.rabbitmq.store_map import ID_DTYPE
from penstock.formats.rabbitmq import journal
from penstock.formats.rabbitmq.journal import MESSAGE_ID_SIZE, TERM_MARKER, TERM_TAGS, Kind
from penstock.formats.rabbitmq.merge_scan import (
    EntryColumns,
    RecordColumns,
    joined,
    merge_columns,
    records_in,
)
from penstock.formats.rabbitmq.message_scan import (
    FIELD_COUNT,
    KEY_HEAD_SIZE,
    MessageColumns,
    Status,
    scan_messages,
)
from penstock.formats.rabbitmq.message_store import END_MARKER, FRAMING_SIZE, HEAD
from penstock.formats.rabbitmq.messages import Message
from penstock.storage.broker_files import (
    ScanColumns,
    scan_index_columns,
    segment_scan_columns,
)
from penstock.storage.files import OpenFiles, opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


BATCH_SIZE: Final = 8 * 2**20
"""Bytes of messages that are read at a time: few calls, and what one step wrote is near for the next."""


BATCH_ROWS: Final = 16_384
"""Messages from which on those of several segments are not put together any more."""


PARTS_MAX: Final = 1024
"""Segments that are put together, so that many without a message do not gather their damage."""


UNKNOWN: Final = -1
"""In ``delivered``: indexes of version 2 do not say."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Messages of a queue, in its order. Offsets in ``parts`` count in ``data``; their lengths are in bytes."""

    sequence: NDArray[np.int64]
    is_persistent: NDArray[np.bool_]  # as the index says
    delivered: NDArray[np.int8]  # 1, 0, or UNKNOWN
    expiry_us: NDArray[np.uint64]  # 0 is never
    path: NDArray[np.int64]  # the place in ``paths`` of the file whose record knows the message
    offset: NDArray[np.int64]  # of that record
    term_offset: NDArray[np.int64]  # of the message, where ``parts`` knows its address
    parts: MessageColumns  # all are there, also of what was decoded one by one: its keys stand as in a term
    data: NDArray[np.uint8]  # never to be changed
    paths: tuple[Path, ...]
    decoded: dict[int, Message] = field(default_factory=dict)  # rows that were decoded one by one

    def __len__(self) -> int:
        return len(self.sequence)


def read_columns(
    queue: Queue,
    bodies: Bodies,
    wanted: Wanted,
    *,
    report: Report,
    progress: Progress = no_progress,
) -> Iterator[Messages]:
    """Yield the messages of a queue's directory in order; report what is damaged or cannot be found.

    Messages and damage are those of ``read_queue``. Raises ``DependencyMissing`` without numpy and numba.
    """
    if queue.indexes:
        held = read_queue(queue, bodies, wanted, report=report, progress=progress)
        yield from _of_version_2(held)
        return
    waiting: list[IndexPart] = []
    count = 0
    for part in read_index_columns(
        queue, entry_count=bodies.vhost.entry_count, report=report, progress=progress
    ):
        chosen = part._replace(entries=part.entries.take(_is_wanted(part.entries, wanted)))
        waiting.append(chosen)
        count += len(chosen.entries)
        if count >= BATCH_ROWS or len(waiting) == PARTS_MAX:
            yield from _Reader(waiting, bodies, wanted, report).messages()
            waiting, count = [], 0
    if waiting:
        yield from _Reader(waiting, bodies, wanted, report).messages()


# --- reading -------------------------------------------------------------------------------------


def _is_wanted(entries: EntryColumns, wanted: Wanted) -> NDArray[np.bool_]:
    """Return which messages ``read_queue`` would look for."""
    chosen = ~entries.is_acked
    if not wanted.transient:
        chosen &= entries.is_persistent
    if not wanted.expired:
        as_of_us = min(max(wanted.as_of_us, 0), 2**64 - 1)
        chosen &= (entries.expiry_us == 0) | (entries.expiry_us > as_of_us)
    return chosen


class _Reader:
    """Reads the messages of some segments, and reports their damage, in the order of the queue."""

    def __init__(
        self, parts: Sequence[IndexPart], bodies: Bodies, wanted: Wanted, report: Report
    ) -> None:
        import numpy as np

        self._bodies = bodies
        self._wanted = wanted
        self._report = report
        self._found_damage = [part.found_damage for part in parts]
        self._reported = 0  # parts whose damage was reported
        self._entries = _joined([part.entries for part in parts])
        self._part = np.repeat(np.arange(len(parts)), [len(part.entries) for part in parts])
        self._paths, self._path = _paths(parts, self._entries, self._part)

    def messages(self) -> Iterator[Messages]:
        """Yield the messages that are there."""
        import numpy as np

        if len(self._entries):
            files, stretches = self._places()
            # A message that is not found here may still be, elsewhere; its record tells how large.
            for rows in _batches_of(np.maximum(stretches.size, self._entries.body_size)):
                found = self._read(rows, files, stretches.take(rows))
                if len(found):
                    yield found
        self._report_parts(len(self._found_damage))

    def _report_parts(self, end: int) -> None:
        """Report the damage of the parts before ``end``; it comes before the damage of their messages."""
        for found_damage in self._found_damage[self._reported : end]:
            for damage in found_damage:
                self._report(damage)
        self._reported = max(self._reported, end)

    def _places(self) -> tuple[tuple[Path, ...], Stretches]:
        """Return where the messages stand: terms in an index, records in the store; size 0 is not found."""
        entries = self._entries
        embedded = entries.length > 0
        file = self._path.copy()
        offset = entries.offset + entries.size - entries.length
        size = entries.length.copy()
        files = self._paths
        stored = (~embedded).nonzero()[0]
        if len(stored):
            store = self._bodies.persistent
            is_there, found = store.find(entries.message_id[stored])
            rows = stored[is_there]
            file[rows] = len(files) + found.file.astype("i8")
            offset[rows] = found.offset
            size[rows] = found.length + FRAMING_SIZE
            files = (*files, *store.files)
        return files, Stretches(file, offset, size)

    def _read(self, rows: slice, files: tuple[Path, ...], stretches: Stretches) -> Messages:
        """Return the messages of some rows: what can be is read in bulk, the others one by one."""
        import numpy as np

        entries = self._entries.take(rows)
        data, places = read_stretches(files, stretches, self._bodies.files)
        embedded = entries.length > 0
        start = np.where(embedded, places, places + HEAD.size)
        length = np.where(embedded, entries.length, stretches.size - FRAMING_SIZE)
        readable = (places >= 0) & (embedded | _is_record(data, places, length, entries))
        found = scan_messages(data, np.where(readable, start, 0), np.where(readable, length, 0))
        # A message of another size than the index says is damage, which is reported one by one.
        found.status[found.body_length != entries.body_size] = Status.SCALAR
        is_fast = found.status == Status.FAST
        kept = is_fast.copy()
        if not self._wanted.transient:
            kept &= ~(embedded & (found.is_persistent == 0))
        decoded: dict[int, Message] = {}
        for row in (~is_fast).nonzero()[0].tolist():
            message = self._read_one(rows.start + row)
            if message is not None:
                decoded[row] = message
                kept[row] = True
        self._report_parts(int(self._part[rows][-1]) + 1)
        data = _append(data, found, decoded)
        place = np.cumsum(kept) - 1
        return Messages(
            sequence=entries.sequence[kept],
            is_persistent=entries.is_persistent[kept],
            delivered=entries.is_delivered[kept].astype(np.int8),
            expiry_us=entries.expiry_us[kept],
            path=self._path[rows][kept],
            offset=entries.offset[kept],
            term_offset=start[kept],
            parts=found.take(kept),
            data=data,
            paths=self._paths,
            decoded={int(place[row]): message for row, message in decoded.items()},
        )

    def _read_one(self, row: int) -> Message | None:
        self._report_parts(int(self._part[row]) + 1)
        indexed = indexed_at(self._entries, row, self._paths[int(self._path[row])])
        held = read_held(indexed, self._bodies, self._report)
        if held is None or (is_forgotten(held) and not self._wanted.transient):
            return None
        return held.message


def _joined(parts: Sequence[EntryColumns]) -> EntryColumns:
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    return EntryColumns(
        **{
            each.name: np.concatenate([getattr(part, each.name) for part in parts])
            for each in fields(EntryColumns)
        }
    )


def _paths(
    parts: Sequence[IndexPart], entries: EntryColumns, part: NDArray[np.int64]
) -> tuple[tuple[Path, ...], NDArray[np.int64]]:
    """Return the files of some parts, and which of them holds the record of each entry."""
    import numpy as np

    numbers: dict[Path | None, int] = {}
    of_segment = [numbers.setdefault(each.segment, len(numbers)) for each in parts]
    of_journal = [numbers.setdefault(each.journal, len(numbers)) for each in parts]
    # What is not there holds no record; its number is never looked up.
    paths = tuple(path or Path() for path in numbers)
    path = np.where(entries.is_journaled, np.array(of_journal)[part], np.array(of_segment)[part])
    return paths, path


def _batches_of(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Yield stretches of rows that have about ``BATCH_SIZE`` bytes each, or one row."""
    import numpy as np

    before = np.cumsum(sizes) - sizes
    bounds = np.flatnonzero(np.diff(before // BATCH_SIZE)) + 1
    for first, end in pairwise([0, *bounds.tolist(), len(sizes)]):
        yield slice(first, end)


def _is_record(
    data: NDArray[np.uint8],
    places: NDArray[np.int64],
    length: NDArray[np.int64],
    entries: EntryColumns,
) -> NDArray[np.bool_]:
    """Return at which places the record stands that the map of the store knows: a broker may be at work."""
    import numpy as np

    is_record = np.zeros(len(places), dtype=bool)
    rows = np.flatnonzero((entries.length == 0) & (places >= 0))
    if len(rows) == 0:
        return is_record
    at, size = places[rows], length[rows]
    message = at + HEAD.size
    # A record without a message takes more bytes than are looked at here, and its end marker is the last.
    good = at_every_byte(data, ">u8")[at] == size + MESSAGE_ID_SIZE
    good &= at_every_byte(data, ID_DTYPE)[at + 8] == entries.message_id[rows].view(ID_DTYPE)
    good &= data[message + size] == END_MARKER
    good &= (size >= 2) & (data[message] == TERM_MARKER) & np.isin(data[message + 1], TERM_TAGS)
    is_record[rows] = good
    return is_record


# --- one by one ----------------------------------------------------------------------------------


def _append(
    data: NDArray[np.uint8], found: MessageColumns, decoded: dict[int, Message]
) -> NDArray[np.uint8]:
    """Return the buffer with the parts of some messages behind it; ``found`` tells where they are."""
    import numpy as np

    if not decoded:
        return data
    pieces: list[bytes] = []
    end = len(data)

    def put(piece: bytes) -> tuple[int, int]:
        nonlocal end
        pieces.append(piece)
        end += len(piece)
        return end - len(piece), len(piece)

    for row, message in decoded.items():
        content = message.content
        found.vhost_offset[row], found.vhost_length[row] = put(message.vhost or b"")
        if message.vhost is None:
            found.vhost_length[row] = UNKNOWN
        found.exchange_offset[row], found.exchange_length[row] = put(message.exchange)
        keys = b"".join(b"m" + UINT32.pack(len(key)) + key for key in message.routing_keys)
        found.keys_offset[row] = put(keys)[0] + KEY_HEAD_SIZE
        found.key_count[row] = len(message.routing_keys)
        found.properties_offset[row], found.properties_length[row] = put(content.property_block)
        found.body_offset[row], found.body_length[row] = put(content.body)
        found.id_offset[row] = UNKNOWN if message.id is None else put(message.id)[0]
        found.is_persistent[row] = message.is_persistent
    return np.frombuffer(b"".join((data.data, *pieces)), dtype=np.uint8)


def _of_version_2(messages: Iterator[Held]) -> Iterator[Messages]:
    """Yield messages that were read one by one in columns."""
    waiting: list[Held] = []
    size = 0
    for held in messages:
        waiting.append(held)
        size += held.message.content.body_size
        if size >= BATCH_SIZE or len(waiting) == BATCH_ROWS:
            yield _messages_of(waiting)
            waiting, size = [], 0
    if waiting:
        yield _messages_of(waiting)


def _messages_of(helds: list[Held]) -> Messages:
    import numpy as np

    indexed = [held.indexed for held in helds]
    decoded = {row: held.message for row, held in enumerate(helds)}
    parts = MessageColumns.of_rows(np.zeros((FIELD_COUNT, len(helds)), dtype=np.int64))
    parts.status[:] = Status.SCALAR
    data = _append(np.frombuffer(b"", dtype=np.uint8), parts, decoded)
    numbers: dict[Path, int] = {}
    path = [numbers.setdefault(each.path, len(numbers)) for each in indexed]
    delivered = [UNKNOWN if each.is_delivered is None else each.is_delivered for each in indexed]
    return Messages(
        sequence=np.array([each.sequence for each in indexed], dtype=np.int64),
        is_persistent=np.array([each.is_persistent for each in indexed], dtype=bool),
        delivered=np.array(delivered, dtype=np.int8),
        expiry_us=np.array([each.expiry_us for each in indexed], dtype=np.uint64),
        path=np.array(path, dtype=np.int64),
        offset=np.array([each.offset for each in indexed], dtype=np.int64),
        term_offset=np.zeros(len(helds), dtype=np.int64),
        parts=parts,
        data=data,
        paths=tuple(numbers),
        decoded=decoded,
    )


# --- version 1 in columns ------------------------------------------------------------------------


class IndexPart(NamedTuple):
    """What a segment and the journal's records of it add up to, and the damage of the two."""

    entries: EntryColumns
    segment: Path | None
    journal: Path | None
    found_damage: list[Damage]


def indexed_at(entries: EntryColumns, at: int, path: Path) -> Indexed:
    """Return one of the messages as ``read_index`` yields it; ``path`` is the file of its record."""
    offset, length = int(entries.offset[at]), int(entries.length[at])
    body: Embedded | Shared = Shared(entries.message_id[at].tobytes())
    if length:
        body = Embedded(path, offset + int(entries.size[at]) - length, length)
    return Indexed(
        sequence=int(entries.sequence[at]),
        path=path,
        offset=offset,
        is_acked=bool(entries.is_acked[at]),
        is_persistent=bool(entries.is_persistent[at]),
        is_delivered=bool(entries.is_delivered[at]),
        expiry_us=int(entries.expiry_us[at]),
        body_size=int(entries.body_size[at]),
        body=body,
    )


def read_index_columns(
    queue: Queue, *, entry_count: int, report: Report, progress: Progress = no_progress
) -> Iterator[IndexPart]:
    """Yield what ``read_index`` yields of a queue of version 1, segment by segment.

    The damage of the journal itself is reported at once, all else with its part. Raises ``DependencyMissing``.
    """
    records = _record_columns(queue.journal, journal.scan_journal_columns, report, progress)
    order, numbers, firsts = _by_segment(records, entry_count)
    end_us = expiry_end_us()
    journaled = dict(zip(numbers, pairwise([*firsts, len(order)]), strict=True))
    paths = dict(queue.segments)
    for number in sorted(journaled.keys() | paths.keys()):
        found_damage: list[Damage] = []
        path = paths.get(number)
        scan = segment_scan_columns(number, entry_count)
        flushed = _record_columns(path, scan, found_damage.append, progress)
        first, end = journaled.get(number, (0, 0))
        entries, findings = merge_columns(
            records.take(order[first:end]), flushed, number=number, entry_count=entry_count
        )
        found_damage += [finding_damage(queue, paths, finding) for finding in findings]
        part = IndexPart(entries, path, queue.journal, found_damage)
        yield _judged_columns(part, end_us)


def _judged_columns(part: IndexPart, end_us: int) -> IndexPart:
    """Return what ``_judged`` returns of the messages of a part; the damage is reported with the part."""
    import numpy as np

    entries = part.entries
    expiry = entries.expiry_us
    is_expiry_bad = (expiry != 0) & ((expiry < EXPIRY_MIN_US) | (expiry >= end_us))
    is_bad = (is_expiry_bad | (entries.sequence >= SEQUENCE_BELIEVED)) & ~entries.is_acked
    if not is_bad.any():
        return part
    for row in np.flatnonzero(is_bad).tolist():
        path = part.journal if entries.is_journaled[row] else part.segment
        assert path is not None, "a record comes from a file"
        part.found_damage.extend(implausible(indexed_at(entries, row, path), end_us))
    without = np.where(is_expiry_bad & is_bad, np.uint64(0), expiry)
    return part._replace(entries=replace(entries, expiry_us=without))


def _by_segment(
    records: RecordColumns, entry_count: int
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """Return the rows sorted by segment, the numbers of those, and where in the rows each begins."""
    import numpy as np

    numbers = records.pieces.sequence // entry_count
    order = np.argsort(numbers, kind="stable")
    found, firsts = np.unique(numbers[order], return_index=True)
    return order, found.tolist(), firsts.tolist()


def _record_columns(
    path: Path | None, scan: ScanColumns, report: Report, progress: Progress
) -> RecordColumns:
    """Return the records of a file, as many as are held; report what else there is."""
    parts: list[RecordColumns] = []
    if path is None:
        return joined(parts)
    try:
        with opened(path) as file:
            count = 0
            for window in scan_index_columns(file, scan, progress=progress):
                parts.append(records_in(window.data, window.pieces, base=window.base))
                count += len(window.pieces)
                if count > RECORDS_MAX:
                    break
    except (OSError, PathRefused) as error:
        report(damage_at(path, UNREADABLE, words_of(error)))
    except InvalidValue as error:
        report(damage_at(path, "bad-name", str(error)))
    return _only_records(path, joined(parts), report)


def _only_records(path: Path, records: RecordColumns, report: Report) -> RecordColumns:
    """Return what is a record that counts; report what is none, and where those begin that are too many."""
    pieces = records.pieces
    if len(records) > RECORDS_MAX and pieces.kind[RECORDS_MAX] != Kind.NONE:
        report(too_many(path, int(pieces.offset[RECORDS_MAX])))
        records = records.take(slice(0, RECORDS_MAX))
    if not (records.pieces.kind == Kind.NONE).any():
        return records
    return records.take(_rows(believed_rows(path, list(records.to_pieces()), report)))


def _rows(rows: list[int]) -> NDArray[np.int64]:
    import numpy as np

    return np.array(rows, dtype=np.int64)


# --- many stretches of files brought into one buffer with few calls ------------------------------

GAP_MAX: Final = 4096
"""Bytes between two stretches that are read along: a call costs as much as so many bytes, or more."""


class Stretches(NamedTuple):
    """Places in files: the place of a file in a list, where a stretch begins there, and its size."""

    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]

    def take(self, rows: slice) -> Stretches:
        return Stretches(self.file[rows], self.offset[rows], self.size[rows])


def read_stretches(
    paths: Sequence[Path], wanted: Stretches, files: OpenFiles
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return a buffer, and where each stretch begins in it: -1 where it is empty or cannot be read whole.

    Files are read from front to back. What lies between stretches that are near is read along.
    """
    import numpy as np

    places = np.full(len(wanted.size), -1, dtype=np.int64)
    rows = np.flatnonzero(wanted.size > 0)
    rows = rows[np.lexsort((wanted.offset[rows], wanted.file[rows]))]
    if len(rows) == 0:
        return np.frombuffer(b"", dtype=np.uint8), places
    file, begin = wanted.file[rows], wanted.offset[rows]
    end = begin + wanted.size[rows]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (file[1:] != file[:-1]) | (begin[1:] > end[:-1] + GAP_MAX)
    firsts = np.flatnonzero(is_new)
    run = np.cumsum(is_new) - 1
    ends = np.maximum.reduceat(end, firsts)
    pieces = [
        _read(files, paths[number], start, stop - start)
        for number, start, stop in zip(
            file[firsts].tolist(), begin[firsts].tolist(), ends.tolist(), strict=True
        )
    ]
    sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
    bases = np.cumsum(sizes) - sizes
    within = begin - begin[firsts][run]
    is_whole = within + (end - begin) <= sizes[run]
    places[rows] = np.where(is_whole, bases[run] + within, -1)
    joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return np.frombuffer(joined, dtype=np.uint8), places


def _read(files: OpenFiles, path: Path, offset: int, size: int) -> bytes:
    try:
        return files.read(path, offset, size)
    except (OSError, PathRefused):
        return b""  # the reader of a single message reports why


def at_every_byte(data: NDArray[np.uint8], kind: str) -> NDArray[Any]:
    """Return the values of a type that begin at each byte of a buffer: a view, from which some are taken."""
    import numpy as np

    count = max(0, len(data) - np.dtype(kind).itemsize + 1)
    return np.ndarray((count,), dtype=kind, buffer=data, strides=(1,))
