"""Reading log files of any size in windows, so that memory stays bounded whatever a length claims.

Recovery walks (``walk_file``), tools scan (``scan_file``). Holes of sparse files are passed over
without being read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise
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
from penstock.formats.taskflux.log_scan import (
    LOOKBACK,
    RECORD_SIZE_BELIEVED,
    Piece,
    PieceColumns,
    scan,
)
from penstock.storage.files import File
from penstock.storage.log_end import Behind, EndRule, find_record_in_file, size_now
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
        size = size_now(data, base, width, size)
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


NO_RULE: Final = EndRule()
"""For a log of which nothing is known but its bytes."""


def scan_file(
    file: File,
    layout: LogLayout,
    *,
    start: int,
    size: int,
    term: int = 0,
    rule: EndRule = NO_RULE,
) -> Iterator[tuple[Piece, bytes]]:
    """Yield every record and gap from ``start`` on, with the bytes of its payload (none for a gap).

    ``start`` is the end of the header; ``term`` is that of the entry before. ``rule`` judges what stands behind an end
    marker: the records there are yielded only if they are entries of the log.
    """
    header_size = layout.record_header.size
    base, window = start, WINDOW
    count: int | None = 0
    while base < size:
        data = file.read(base, min(window, size - base))
        size = size_now(data, base, window, size)
        pieces = scan(data, layout, start=0, term=term, size=size - base)
        position = 0
        while True:
            try:
                piece = next(pieces)
            except StopIteration as done:
                position = done.value
                break
            payload = piece.offset + header_size
            piece = piece._replace(offset=base + piece.offset)
            if piece.status in (Status.ZEROS, Status.LEFTOVER):
                judged = _judged(file, layout, rule, piece.offset, size, count, term)
                if judged is None or judged.status is not Status.ZEROS:
                    yield from () if judged is None else ((judged, b""),)
                    return
            yield piece, data[payload : payload + piece.length]
            count = None if count is None or not is_record(piece, layout) else count + 1
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
            base, window, count = stop, WINDOW, None
            continue
        if layout.is_marked and base < size and file.read(base, 4) == END_MARKER:
            gap = _judged(file, layout, rule, base, size, count, term)
            if gap is None:
                return
            yield gap, b""
            base, count = base + gap.size, None


def is_record(piece: Piece, layout: LogLayout) -> bool:
    """Return whether a piece is one record; a gap may hold any number of them."""
    if piece.term != 0 or piece.length > 0 or piece.status is Status.OK:
        return True
    return piece.status is Status.BAD_TERM and layout.is_marked


class Batch(NamedTuple):
    """Entries in columns, and the bytes that its offsets count in; those begin at ``base``."""

    base: int
    data: NDArray[np.uint8]
    entries: EntryColumns


def scan_file_columns(
    file: File,
    layout: LogLayout,
    *,
    start: int,
    stop: int,
    size: int,
    term: int = 0,
    rule: EndRule = NO_RULE,
    count: int | None = 0,
) -> Generator[Batch, None, int]:
    """Yield what ``scan_file`` yields of ``[start, stop)`` in batches of columns; return where it ended.

    ``start`` is a true boundary, ``term`` that of the entry before it, ``count`` the number of records before it. The
    place where it ends is a boundary again: at or behind ``stop``, or the end of what the file holds.
    """
    with bulk():
        import numpy as np

    base, window = start, WINDOW
    while base < min(stop, size):
        raw = file.read(base, min(window, size - base))
        size = size_now(raw, base, window, size)
        data = np.frombuffer(raw, dtype=np.uint8)
        batches = scan_entries(raw, layout, start=0, stop=stop - base, term=term, size=size - base)
        position = 0
        while True:
            try:
                entries = next(batches)
            except StopIteration as done:
                position = done.value
                break
            for part in _parts(entries):
                first = int(part.pieces.status[0])
                if first in (int(Status.ZEROS), int(Status.LEFTOVER)):
                    at = base + int(part.pieces.offset[0])
                    judged = _judged(file, layout, rule, at, size, count, term)
                    if judged is None or judged.status is not Status.ZEROS:
                        if judged is not None:
                            yield Batch(0, data[:0], lone_piece(judged))
                        return size
                yield Batch(base, data, part)
                is_all = count is not None and bool(are_records(part.pieces, layout).all())
                count = count + len(part) if count is not None and is_all else None
                terms = part.pieces.term[part.pieces.term >= 1]
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
            piece = _judged(file, layout, rule, base, size, count, term)
            if piece is None:
                return size
        if piece is not None:
            yield Batch(0, data[:0], lone_piece(piece))
            base, window, count = base + piece.size, WINDOW, None
    return base


def _parts(entries: EntryColumns) -> Iterator[EntryColumns]:
    """Yield a batch in parts, so that an end marker with something behind it begins a part."""
    import numpy as np

    status = entries.pieces.status
    ends = np.flatnonzero((status == int(Status.ZEROS)) | (status == int(Status.LEFTOVER)))
    edges = sorted({0, *ends.tolist(), len(entries)})
    if len(edges) <= 2:
        yield entries
        return
    for start, stop in pairwise(edges):
        yield entries.part(start, stop)


def are_records(pieces: PieceColumns, layout: LogLayout) -> NDArray[np.bool_]:
    """Return which pieces are one record each, as ``is_record`` does."""
    found: NDArray[np.bool_]
    found = (pieces.term != 0) | (pieces.length > 0) | (pieces.status == int(Status.OK))
    return found | (pieces.status == int(Status.BAD_TERM)) if layout.is_marked else found


_BEHIND: Final = {
    Behind.STALE: Status.STALE,
    Behind.UNDECIDED: Status.UNDECIDED,
    Behind.DAMAGE: Status.LEFTOVER,
}


def _judged(
    file: File,
    layout: LogLayout,
    rule: EndRule,
    position: int,
    size: int,
    count: int | None,
    term: int,
) -> Piece | None:
    """Return what begins with the end marker at ``position``, or ``None`` if only zeros follow."""
    end = rule.judge(file, layout, position=position, size=size, count=count, term=term)
    if end.behind is Behind.NOTHING:
        return None
    if end.behind is Behind.DAMAGE and end.resumed is not None:
        return Piece(position, end.resumed - position, Status.ZEROS, 0, 0)
    return Piece(position, size - position, _BEHIND[end.behind], 0, 0)


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
