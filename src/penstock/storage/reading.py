"""Reading log files of any size in windows, so that memory stays bounded whatever a length claims.

Recovery walks (``walk_file``), tools scan (``scan_file``). Holes of sparse files are passed over
without being read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.binary import CHECKSUM_START, checksum
from penstock.errors import BadData
from penstock.formats.kernel import bulk
from penstock.formats.taskflux.entries import EntryColumns, lone_piece, scan_entries
from penstock.formats.taskflux.log import (
    END_MARKER,
    Header,
    LogLayout,
    Status,
    Walk,
    decode_header,
    walk,
)
from penstock.formats.taskflux.log_scan import LOOKBACK, RECORD_SIZE_BELIEVED, Piece, scan, search
from penstock.storage.files import File
from penstock.storage.records import Records

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW: Final = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """A log file that was walked to its end, or to the first place that is not whole."""

    records: Records
    commit: int | None  # local to the file, as generation 2 stores it
    stop: Status | None  # None: zeros or the end of the file


def walk_file(file: File, path: Path, layout: LogLayout) -> Walked:
    """Check every record of a log file, window by window. Raises ``BadData`` for a bad header."""
    records = Records(layout.header_size)
    stop: Status | None = None
    for window in walk_windows(file, path, layout):
        found = window.found
        offsets = [window.base + offset for offset in found.offsets]
        records.extend(offsets, found.terms, window.base + found.position)
        stop = found.stop
    return Walked(records=records, commit=read_header(file, path, layout).commit, stop=stop)


def read_header(file: File, path: Path, layout: LogLayout | None = None) -> Header:
    """Return a log file's header. Raises ``BadData`` that names the file."""
    try:
        return decode_header(file.read(0, 16), layout)
    except BadData as error:
        raise error.located(str(path)) from None


class Window(NamedTuple):
    """A stretch of a log file and the whole records in it; offsets count from ``base``."""

    base: int
    data: bytes
    found: Walk


def walk_windows(file: File, path: Path, layout: LogLayout) -> Iterator[Window]:
    """Yield a log file's records window by window, up to its end or the first that is not whole."""
    read_header(file, path, layout)
    size = file.size()
    base, term, width = layout.header_size, 0, WINDOW
    while True:
        data = file.read(base, min(width, size - base))
        size = _size_now(data, base, width, size)
        found = walk(data, layout, offset=0, end=len(data), term=term, size=size - base)
        yield Window(base, data, found)
        is_end_mark = layout.is_marked and data[found.position : found.position + 4] == END_MARKER
        if found.stop is not None or is_end_mark or base + len(data) >= size:
            return
        base += found.position
        term = found.terms[-1] if found.terms else term
        # Without a single record the window is smaller than the one that begins here.
        width = WINDOW if found.offsets else 2 * width
        if width > RECORD_SIZE_BELIEVED and is_false_giant(file, layout, base, size):
            yield Window(base, b"", Walk([], [], 0, _giant_status(layout)))
            return


def scan_file(
    file: File, layout: LogLayout, *, start: int, size: int, term: int = 0
) -> Iterator[tuple[Piece, bytes]]:
    """Yield every record and gap from ``start`` on, with the bytes of its payload (none for a gap).

    ``term`` is that of the entry before ``start``.
    """
    header_size = layout.record_header.size
    base, window = start, WINDOW
    while base < size:
        data = file.read(base, min(window, size - base))
        size = _size_now(data, base, window, size)
        pieces = scan(data, layout, start=0, term=term, size=size - base)
        position = 0
        while True:
            try:
                piece = next(pieces)
            except StopIteration as done:
                position = done.value
                break
            payload = piece.offset + header_size
            yield (
                piece._replace(offset=base + piece.offset),
                data[payload : payload + piece.length],
            )
            term = piece.term if piece.term >= 1 else term
        base += position
        window = WINDOW if position else 2 * window
        damage = None if position else _damage(file, layout, data, base, size, term)
        if damage is not None:
            resumed = None
            if layout.is_marked:
                resumed = find_record_in_file(file, layout, base + 1, size)
            stop = size if resumed is None else resumed
            yield Piece(base, stop - base, damage, 0, 0), b""
            base, window = stop, WINDOW
            continue
        if layout.is_marked and base < size and file.read(base, 4) == END_MARKER:
            gap = _gap_of_zeros(file, layout, base, size)
            if gap is None:
                return
            yield gap, b""
            base += gap.size


class Batch(NamedTuple):
    """Entries in columns, and the bytes that its offsets count in; those begin at ``base``."""

    base: int
    data: NDArray[np.uint8]
    entries: EntryColumns


def scan_file_columns(
    file: File, layout: LogLayout, *, start: int, stop: int, size: int, term: int = 0
) -> Generator[Batch, None, int]:
    """Yield what ``scan_file`` yields of ``[start, stop)`` in batches of columns; return where it ended.

    ``start`` is a true boundary and ``term`` that of the entry before it. The place where it ends is one
    again: at or behind ``stop``, or the end of what the file holds.
    """
    with bulk():
        import numpy as np

    base, window = start, WINDOW
    while base < min(stop, size):
        raw = file.read(base, min(window, size - base))
        size = _size_now(raw, base, window, size)
        data = np.frombuffer(raw, dtype=np.uint8)
        batches = scan_entries(data, layout, start=0, stop=stop - base, term=term, size=size - base)
        position = 0
        while True:
            try:
                entries = next(batches)
            except StopIteration as done:
                position = done.value
                break
            yield Batch(base, data, entries)
            terms = entries.pieces.term[entries.pieces.term >= 1]
            term = int(terms[-1]) if len(terms) else term
        base += position
        if base >= stop:
            break
        window = WINDOW if position else 2 * window
        damage = None if position else _damage(file, layout, raw, base, size, term)
        piece: Piece | None = None
        if damage is not None:
            resumed = (
                find_record_in_file(file, layout, base + 1, size) if layout.is_marked else None
            )
            piece = Piece(base, (size if resumed is None else resumed) - base, damage, 0, 0)
        elif layout.is_marked and base < size and file.read(base, 4) == END_MARKER:
            piece = _gap_of_zeros(file, layout, base, size)
            if piece is None:
                return size
        if piece is not None:
            yield Batch(0, data[:0], lone_piece(piece))
            base, window = base + piece.size, WINDOW
    return base


def _size_now(data: bytes, base: int, window: int, size: int) -> int:
    """Return how large the file is, given what a read brought: somebody may cut it while it is read.

    Asking for more of what is gone would never end.
    """
    return size if len(data) == min(window, size - base) else base + len(data)


def _damage(
    file: File, layout: LogLayout, data: bytes, base: int, size: int, term: int
) -> Status | None:
    """Return what is wrong at ``base``, once ``data`` is so large that more of it cannot change that.

    From there on the search behind the damage is for ``find_record_in_file``, which passes over holes.
    """
    if len(data) > RECORD_SIZE_BELIEVED // 2 and is_false_giant(file, layout, base, size):
        return _giant_status(layout)
    if len(data) <= LOOKBACK:
        return None
    return walk(data, layout, offset=0, end=len(data), term=term, size=size - base).stop


def is_false_giant(file: File, layout: LogLayout, offset: int, size: int) -> bool:
    """Return whether a record claims more than any is believed to hold and its checksum disproves it.

    The checksum is taken as a stream: a wrong length must not bring the rest of a large file into memory.
    Generation 1 has none, so there no giant is believed.
    """
    header = layout.record_header
    if offset + header.size > size:
        return False
    if not layout.is_marked:
        _, length = header.unpack(file.read(offset, header.size))
        return bool(length > RECORD_SIZE_BELIEVED)
    _, _, stored, length = header.unpack(file.read(offset, header.size))
    start = offset + header.size
    if length <= RECORD_SIZE_BELIEVED or start + length > size:
        return False
    register = CHECKSUM_START
    for at in range(start, start + length, WINDOW):
        register = checksum(file.read(at, min(WINDOW, start + length - at)), register)
    return register != int(stored)


def _giant_status(layout: LogLayout) -> Status:
    return Status.BAD_CHECKSUM if layout.is_marked else Status.BAD_LENGTH


def _gap_of_zeros(file: File, layout: LogLayout, start: int, size: int) -> Piece | None:
    """Return what the zeros at ``start`` are: the end (``None``), a gap, or the end with leftovers."""
    if end_of_data(file, start, size) == start:
        return None
    resumed = find_record_in_file(file, layout, start + 1, size)
    if resumed is not None:
        return Piece(start, resumed - start, Status.ZEROS, 0, 0)
    return Piece(start, size - start, Status.LEFTOVER, 0, 0)


def read_data(file: File, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield what a file holds between two places, piece by piece, holes left out."""
    offset: int | None = start
    while offset is not None and offset < stop:
        offset = file.next_data(offset)
        if offset is None or offset >= stop:
            return
        data = file.read(offset, min(WINDOW, stop - offset))
        if not data:
            return
        yield offset, data
        offset += len(data)


def end_of_data(file: File, start: int, stop: int) -> int:
    """Return where the last byte other than zero behind ``start`` ends; ``start`` if there is none."""
    last = start
    for offset, data in read_data(file, start, stop):
        stripped = data.rstrip(b"\x00")
        if stripped:
            last = offset + len(stripped)
    return last


def find_record_in_file(file: File, layout: LogLayout, start: int, size: int) -> int | None:
    """Return where the first believable record from ``start`` on begins, or ``None``."""
    base: int | None = start
    window = WINDOW
    while base is not None and base < size:
        data = file.read(base, min(window, size - base))
        size = _size_now(data, base, window, size)
        offset, is_found = search(data, layout, 0, size - base)
        if is_found:
            return base + offset
        if base + len(data) >= size:
            return None
        window = WINDOW if offset else 2 * window
        base = (
            _before_data(file, base + offset) if not data[offset:].strip(b"\x00") else base + offset
        )
    return None


def _before_data(file: File, offset: int) -> int | None:
    """Return a place at or shortly before the next data, so that a marker across a hole's end is met."""
    following = file.next_data(offset)
    return None if following is None else max(offset, following - 3)
