"""A broker's files read piece by piece, in windows: memory stays the same for any size of file.

What a piece is, is known by the formats alone. Here it is decided how much of a file they are shown,
and when no more of it is worth waiting for. A file may be cut while it is read; then it ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from penstock.binary import UINT32, Bytes
from penstock.formats.kernel import bulk
from penstock.formats.rabbitmq import journal, message_store, proof, queue_v2, segment
from penstock.formats.rabbitmq.journal import Kind, Piece, PieceColumns, SequenceNumber, Status
from penstock.formats.rabbitmq.merge_scan import records_in
from penstock.formats.rabbitmq.message_store import RECORD_SIZE_BELIEVED, StoreColumns
from penstock.storage.files import File, opened
from penstock.storage.log_end import end_of_data, read_data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


T = TypeVar("T")
Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


def no_progress(_size: int) -> None:
    """Show nothing."""


WINDOW: Final = 4 * 2**20
"""Bytes read at a time, as a broker does: large enough to spread a call's cost."""


EMBEDDED_MAX: Final = 64 * 2**20
"""How much of an index is held to judge one record. Brokers embed messages below 4096 bytes unless told
otherwise; a length beyond this is damage, and must not bring the rest of a large file into memory.
"""


STORE_WINDOW_MAX: Final = RECORD_SIZE_BELIEVED // 2 * 3
"""How much of a store file is held to judge one record. Two thirds hold the largest that is believed, so
that a third of it can be passed over where there is none. Files that a broker did not enlarge are 16 MiB.
"""


SLOTS: Final = 2**16
"""Slots of a version 2 index that are read at a time: 2 MiB."""


Scan = Callable[..., Generator[Piece, None, int]]
"""The scan of a journal, or of a segment whose number is given already."""


ScanColumns = Callable[..., Generator[PieceColumns, None, int]]
"""The same in columns."""


class _Scanned(Generic[T]):
    """What a scan yields; ``end`` is where it stopped, once it is used up."""

    def __init__(self, scan: Generator[T, None, int]) -> None:
        self._scan = scan
        self.end = 0

    def __iter__(self) -> Iterator[T]:
        self.end = yield from self._scan


# --- journals and segments -----------------------------------------------------------------------


def segment_scan(number: int, entry_count: int) -> Scan:
    """Return the scan of the segment with this number."""
    return partial(segment.scan, segment=number, entry_count=entry_count)


def scan_index_file(
    file: File,
    scan: Scan,
    *,
    progress: Progress = no_progress,
    window: int = WINDOW,
    window_max: int = EMBEDDED_MAX,
) -> Iterator[Piece]:
    """Yield every piece of a journal or a segment; offsets count from the start of the file.

    Behind damage the scan goes on at the next record that its message proves.
    """

    def judge(
        base: int, data: bytes, size: int, trust: int
    ) -> Generator[Piece, None, tuple[int, bool]]:
        pieces = _Scanned(scan(data, size=size))
        for piece in pieces:
            if base + piece.offset >= trust and _is_doubtful(data, piece):
                return piece.offset, True
            yield piece._replace(offset=base + piece.offset) if base else piece
        return pieces.end, False

    def pieces_in(data: bytes) -> list[Piece]:
        return list(scan(data))

    def mended(base: int, data: bytes) -> Piece:
        return next(scan(data))._replace(offset=base, status=Status.BAD_LENGTH)

    make = _Made(judge, pieces_in, _rest, mended)
    return _judged(file, make, progress, window, window_max)


class IndexWindow(NamedTuple):
    """Pieces of an index in columns, and the bytes that their offsets count in, from ``base`` on."""

    base: int
    data: NDArray[np.uint8]
    pieces: PieceColumns


def segment_scan_columns(number: int, entry_count: int) -> ScanColumns:
    """Return the scan of the segment with this number, in columns."""
    return partial(segment.scan_segment_columns, segment=number, entry_count=entry_count)


def scan_index_columns(
    file: File,
    scan: ScanColumns,
    *,
    progress: Progress = no_progress,
    window: int = WINDOW,
    window_max: int = EMBEDDED_MAX,
) -> Iterator[IndexWindow]:
    """Yield what ``scan_index_file`` yields, in columns. Raises ``DependencyMissing``."""
    if file.size() == 0:
        return iter(())
    np = _numpy()

    def judge(
        base: int, raw: bytes, size: int, trust: int
    ) -> Generator[IndexWindow, None, tuple[int, bool]]:
        data = np.frombuffer(raw, dtype=np.uint8)
        batches = _Scanned(scan(data, size=size))
        for pieces in batches:
            first = _first_doubtful(raw, data, pieces, trust - base)
            if first is None:
                yield IndexWindow(base, data, pieces)
                continue
            if first:
                yield IndexWindow(base, data, pieces.take(slice(0, first)))
            return int(pieces.offset[first]), True
        return batches.end, False

    def pieces_in(raw: bytes) -> list[Piece]:
        data = np.frombuffer(raw, dtype=np.uint8)
        return [
            piece for found in scan(data) for piece in records_in(data, found, base=0).to_pieces()
        ]

    def mended(base: int, raw: bytes) -> IndexWindow:
        data = np.frombuffer(raw, dtype=np.uint8)
        (pieces,) = scan(data)
        status = np.full(1, Status.BAD_LENGTH, dtype=np.int64)
        return IndexWindow(base, data, replace(pieces, status=status))

    def rest(base: int, size: int, status: Status) -> IndexWindow:
        row = (0, size - base, status, Kind.NONE, 0, 0, 0, 0)
        pieces = PieceColumns.of_rows(np.array([row], dtype=np.int64).T)
        return IndexWindow(base, np.empty(0, dtype=np.uint8), pieces)

    return _judged(file, _Made(judge, pieces_in, rest, mended), progress, window, window_max)


class _Made(NamedTuple, Generic[T]):
    """How the pieces of an index are found and made, one by one or in columns."""

    # Given where a window begins, its bytes, how many are left of the file, and up to where records are taken as they
    # are: yields what is found, and returns how far it came, and whether a record is in doubt there.
    judge: Callable[[int, bytes, int, int], Generator[T, None, tuple[int, bool]]]
    pieces_in: Callable[[bytes], list[Piece]]  # of bytes that are a whole file
    rest: Callable[[int, int, Status], T]  # a stretch that is no record
    mended: Callable[[int, bytes], T]  # a record that has another length than it says


def _judged(
    file: File, make: _Made[T], progress: Progress, window: int, window_max: int
) -> Iterator[T]:
    """Yield what is judged of each window, and what is left where nothing more can be judged."""
    base, size, room = 0, file.size(), window
    trust = 0  # up to here records are taken as they are: nothing behind them proves otherwise
    while base < size:
        data, size = _read(file, base, room, size)
        position, is_doubtful = yield from make.judge(base, data, size - base, trust)
        progress(position)
        base += position
        is_full = room >= window_max
        room = window if position or is_doubtful else min(2 * room, window_max)
        status = None
        if not is_doubtful and position == 0 and base < size:
            status = _hopeless(file, data, base, size, is_full)
        if is_doubtful or (status is Status.BAD_RECORD and base >= trust):
            made, base, trust = _resynchronised(file, make, base, size)
            yield from made
        elif status is not None:
            yield make.rest(base, size, status)
            return


def _resynchronised(file: File, make: _Made[T], base: int, size: int) -> tuple[list[T], int, int]:
    """Return what is known of a record in doubt, where the scan goes on, and up to where records are then trusted."""
    head = file.read(base, journal.PUBLISH_SIZE + proof.FOUND_MAX)
    for publish_size in (segment.PUBLISH_SIZE, journal.PUBLISH_SIZE):
        length = proof.true_length(head, publish_size)
        if length is not None:
            body = publish_size + length
            patched = head[: publish_size - 4] + UINT32.pack(length) + head[publish_size:body]
            pieces = make.pieces_in(patched)
            if len(pieces) == 1 and pieces[0].length == length:
                return [make.mended(base, patched)], base + body, 0
    found = _next_proven(file, make, base, size)
    if found is None:
        return [], base, size  # nothing behind it is proven either
    between = file.read(base, found - base) if found - base <= EMBEDDED_MAX else b""
    pieces = make.pieces_in(between)
    if pieces and all(piece.kind is not Kind.NONE for piece in pieces):
        # Its message is damaged, but records follow each other from here to the one that is proven.
        return [], base, found
    return [make.rest(base, found, Status.BAD_RECORD)], found, 0


def _next_proven(file: File, make: _Made[Any], base: int, size: int) -> int | None:
    """Return where the first record behind ``base`` begins that its embedded message proves."""
    start = base + 1
    while start < size:
        offset = file.next_data(start)
        if offset is None or offset >= size:
            return None
        start = max(start, offset - journal.PUBLISH_SIZE)
        data = file.read(start, min(WINDOW + proof.FOUND_MAX, size - start))
        for body, length in proof.find_proven(data):
            for publish_size in (segment.PUBLISH_SIZE, journal.PUBLISH_SIZE):
                if body >= publish_size:
                    pieces = make.pieces_in(data[body - publish_size : body + length])
                    if len(pieces) == 1 and pieces[0].length == length:
                        return start + body - publish_size
        if len(data) <= proof.FOUND_MAX or start + len(data) >= size:
            return None
        start += len(data) - proof.FOUND_MAX
    return None


def _is_doubtful(data: Bytes, piece: Piece) -> bool:
    """Return whether a piece is no record, or a publish that its embedded message does not prove."""
    if piece.kind is Kind.NONE:
        return piece.status is not Status.ZEROS
    end = piece.offset + piece.size
    if not piece.length or proof.ends_with_id(data, end, piece.message_id):
        return False
    return not proof.is_whole_term(data[end - piece.length : end])


def _first_doubtful(
    raw: bytes, data: NDArray[np.uint8], pieces: PieceColumns, trust: int
) -> int | None:
    """Return the first row from the offset ``trust`` on that ``_is_doubtful`` would doubt."""
    is_none = pieces.kind == int(Kind.NONE)
    rows = {*proof.unproven(data, pieces).tolist(), *is_none.nonzero()[0].tolist()}
    for row in sorted(rows):
        if pieces.offset[row] >= trust:
            (piece,) = records_in(data, pieces.take(slice(row, row + 1)), base=0).to_pieces()
            if _is_doubtful(raw, piece):
                return int(row)
    return None


def _hopeless(file: File, data: bytes, base: int, size: int, is_full: bool) -> Status | None:
    """Return what the rest of a file is, if the window cannot be judged and more of it will not help."""
    is_zero = not data.strip(b"\x00")
    if not is_zero and not is_full:
        return None
    is_end = is_zero and end_of_data(file, base, size) == base
    return Status.ZEROS if is_end else Status.BAD_RECORD


def _read(file: File, base: int, room: int, size: int) -> tuple[bytes, int]:
    """Return a window, and the size of the file as far as that is known now."""
    wanted = min(room, size - base)
    data = file.read(base, wanted)
    return data, size if len(data) == wanted else base + len(data)


def _rest(base: int, size: int, status: Status) -> Piece:
    return Piece(base, size - base, status, Kind.NONE, SequenceNumber(0), 0, 0, 0, b"")


# --- store files ---------------------------------------------------------------------------------


class StoreWindow(NamedTuple):
    """Pieces of a store file in columns, and the bytes that their offsets count in, from ``base`` on."""

    base: int
    data: NDArray[np.uint8]
    pieces: StoreColumns


def scan_store_file(
    file: File,
    *,
    progress: Progress = no_progress,
    window: int = WINDOW,
    window_max: int = STORE_WINDOW_MAX,
) -> Iterator[StoreWindow]:
    """Yield every record and every gap of a store file. Raises ``DependencyMissing``."""
    base, size, room = 0, file.size(), window
    if size == 0:
        return
    np = _numpy()
    while base < size:
        raw, size = _read(file, base, room, size)
        data = np.frombuffer(raw, dtype=np.uint8)
        batches = _Scanned(message_store.scan_store_columns(data, size=size - base))
        for pieces in batches:
            yield StoreWindow(base, data, pieces)
        position = batches.end
        is_full = room >= window_max
        room = window if position else min(2 * room, window_max)
        if position == 0 and base < size:
            gap = _gap(file, raw, base, size, is_full)
            if gap is not None:
                status, position = gap
                yield StoreWindow(base, data[:0], _lone_gap(position, status))
        base += position
        progress(position)


def _numpy() -> Any:
    with bulk():
        import numba  # noqa: F401 - the scan is compiled with it
        import numpy as np
    return np


def _gap(
    file: File, raw: bytes, base: int, size: int, is_full: bool
) -> tuple[message_store.Status, int] | None:
    """Return what can be said of a window that the scan cannot judge; ``None`` is: look at more of it."""
    if not raw.strip(b"\x00"):
        data = _first_data(file, base, size)
        # Eight zeros remain, as a length of zero: what follows them is then searched, not taken as it is.
        return message_store.Status.ZEROS, (size if data is None else data - 8) - base
    if not is_full:
        return None
    # No record is so large. As if the file ended here: the next record, or nothing in all that is held.
    found = next(message_store.scan_store_columns(raw))
    skipped = int(found.size[0])
    is_found = skipped < len(raw)
    return message_store.Status.BAD_LENGTH, skipped if is_found else len(raw) // 3


def _first_data(file: File, start: int, stop: int) -> int | None:
    """Return the place of the first byte from ``start`` on that is not zero."""
    for offset, data in read_data(file, start, stop):
        stripped = data.lstrip(b"\x00")
        if stripped:
            return offset + len(data) - len(stripped)
    return None


def _lone_gap(size: int, status: message_store.Status) -> StoreColumns:
    np = _numpy()
    offset, sizes, statuses, length = np.array([[0], [size], [status], [0]], dtype=np.int64)
    return StoreColumns(offset=offset, size=sizes, status=statuses, length=length)


# --- indexes of version 2 ------------------------------------------------------------------------


def scan_slots(
    file: File, header: queue_v2.Header, *, progress: Progress = no_progress, slots: int = SLOTS
) -> Iterator[queue_v2.Slot]:
    """Yield every slot of a version 2 index that is not empty; offsets count from the file's start."""
    size = file.size()
    slots_end = queue_v2.HEADER_SIZE + queue_v2.SLOT.size * (header.end - header.first)
    first, offset = int(header.first), queue_v2.HEADER_SIZE
    while offset < min(size, slots_end):
        data = file.read(offset, min(slots * queue_v2.SLOT.size, slots_end - offset))
        if not data:
            break
        end = min(first + slots, int(header.end))
        part = queue_v2.Header(first=SequenceNumber(first), end=SequenceNumber(end))
        # A header's room stands before, for that is where slots are counted from.
        for slot in queue_v2.scan_index(bytes(queue_v2.HEADER_SIZE) + data, part):
            yield slot._replace(offset=slot.offset + offset - queue_v2.HEADER_SIZE)
        progress(len(data))
        first, offset = end, offset + len(data)
    if end_of_data(file, slots_end, size) > slots_end:
        yield queue_v2.Slot(
            slots_end, size - slots_end, queue_v2.SlotStatus.LEFTOVER, header.end,
            False, queue_v2.Location.MEMORY, b"", 0, 0, 0, 0,
        )  # fmt: skip


def scan_queue_store(
    file: File, *, progress: Progress = no_progress, record_max: int = EMBEDDED_MAX
) -> Iterator[tuple[queue_v2.Record, bytes]]:
    """Yield every record of a queue's own store and its message; the rest of the file without one."""
    size, position, head_size = file.size(), queue_v2.HEADER_SIZE, queue_v2.RECORD_HEAD.size
    while position < size:
        head = file.read(position, head_size)
        length, room = int.from_bytes(head[:4], "big"), size - position - head_size
        if not (len(head) == head_size and 0 < length <= min(room, record_max)):
            status = queue_v2.RecordStatus.TORN
            if end_of_data(file, position, size) == position:
                status = queue_v2.RecordStatus.ZEROS
            elif len(head) == head_size and length <= room:
                status = queue_v2.RecordStatus.BAD_LENGTH
            yield queue_v2.Record(position, size - position, status, 0), b""
            return
        data = file.read(position, head_size + length)
        record = next(queue_v2.scan_store(bytes(queue_v2.HEADER_SIZE) + data))
        yield record._replace(offset=position), data[head_size:]
        progress(record.size)
        position += record.size


# --- what a file begins with ---------------------------------------------------------------------


def begins_with_record(path: Path, kind: str) -> bool:
    """Return whether the first window of a file holds what a file of this kind must hold."""
    with opened(path) as file:
        data, size = file.read(0, WINDOW), file.size()
    match kind:
        case "journal":
            return _is_index(data, journal.scan, size)
        case "segment":
            return _is_index(data, segment_scan(0, segment.ENTRY_COUNT_MAX), size)
        case "store-file":
            pieces = message_store.scan(data, size=size)
            return any(piece.status is message_store.Status.OK for piece in pieces)
        case _:
            return True  # its marker says so


def _is_index(data: Bytes, scan: Scan, size: int) -> bool:
    """Return whether the file begins with a record: nothing else can tell it from any other bytes."""
    first = next(scan(data, size=size), None)
    return first is not None and first.kind is not Kind.NONE
