"""Scanning a log behind damage: every record and every gap, one by one or in columns.

``scan`` runs the kernel of ``log.walk`` interpreted, ``scan_columns`` compiled; both have the same code say what is
where a walk stops. The rules for what follows damage:

* A record whose checksum matches ends where it says. One whose checksum does not match is a single
  bad record if a whole record follows it; else the scan searches.
* The search takes the first whole record that is followed by a record marker, zeros or the end.
* Zeros are the end of the log, unless records follow them.

Generation 1 has no markers: there the first bad record takes all that follows with it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.binary import Bytes, checksum
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.taskflux.log import (
    END_MARKER,
    FULL,
    RECORD_MARKER,
    LogLayout,
    Status,
    checksum_tables,
    walk,
    walk_kernel,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Piece(NamedTuple):
    """A record, or a stretch of the file that is none. ``term`` and ``length`` are 0 for a stretch."""

    offset: int
    size: int
    status: Status
    term: int
    length: int  # of the payload; it is the last part of the piece


class _Undecided(Exception):
    """What follows can only be judged with more of the file."""


def scan(
    data: Bytes,
    layout: LogLayout,
    *,
    start: int,
    stop: int | None = None,
    term: int = 0,
    size: int | None = None,
) -> Generator[Piece, None, int]:
    """Yield every record and every gap that begins in ``[start, stop)``, damage included.

    ``start`` must be a true boundary: the header's end, or where another scan ended.
    ``term`` is the term of the record before ``start``; each record is compared with the one
    before it only, so that one wrong term costs at most two verdicts. ``size`` is the file's end if
    the data ends earlier. Returns where it stopped: before ``stop`` and the file's end only if
    more data is needed to judge what is there.
    """
    end = len(data)
    size = end if size is None else size
    stop = size if stop is None else stop
    header_size = layout.record_header.size
    position = start
    while position < stop:
        found = walk(data, layout, offset=position, end=end, stop=stop, term=term, size=size)
        position = found.position
        for offset, term, follower in zip(
            found.offsets, found.terms, [*found.offsets, position][1:], strict=True
        ):
            piece_size = follower - offset
            yield Piece(offset, piece_size, Status.OK, term, piece_size - header_size)
        if position >= stop or position == size:
            return position
        piece = _damage(data, layout, position, found.stop, size)
        if piece is None:
            return size
        if piece.size == 0:
            return position
        yield piece
        term = piece.term if piece.term >= 1 else term
        position += piece.size
    return position


def _damage(
    data: Bytes, layout: LogLayout, position: int, status: Status | None, size: int
) -> Piece | None:
    """Return the piece that begins where a walk stopped, or ``None`` if only zeros follow.

    Its size is 0 if more data is needed.
    """
    try:
        return _explained(data, layout, position, status, size)
    except _Undecided:
        return Piece(position, 0, Status.OK, 0, 0)


def _explained(
    data: Bytes, layout: LogLayout, position: int, status: Status | None, size: int
) -> Piece | None:
    end = len(data)
    if not layout.is_marked:
        if status is None:
            raise _Undecided
        return Piece(position, size - position, status, 0, 0)
    header = layout.record_header
    if status in (Status.FALLING_TERM, Status.BAD_TERM, Status.BAD_CHECKSUM):
        _, term, _, length = header.unpack_from(data, position)
        follower = position + header.size + length
        # A checksum that matches proves where the record ends; else a whole record must follow.
        if status is not Status.BAD_CHECKSUM or _whole(data, layout, follower, size):
            return Piece(position, follower - position, status, term, length)
    elif status is None and (bytes(data[position : position + 4]) != END_MARKER and end < size):
        raise _Undecided
    resumed = find_record(data, layout, position + 1, size)
    if resumed is not None:
        return Piece(position, resumed - position, status or Status.ZEROS, 0, 0)
    if status is None:
        if not bytes(data[position:end]).strip(b"\x00"):
            return None
        status = Status.LEFTOVER
    return Piece(position, size - position, status, 0, 0)


def find_record(data: Bytes, layout: LogLayout, start: int, size: int) -> int | None:
    """Return where the first believable record from ``start`` on begins, or ``None``.

    Believable means whole, no longer than ``RECORD_SIZE_BELIEVED``, and followed by a record marker,
    zeros or the end: payloads may hold anything, also whole records.
    """
    offset, is_found = search(data, layout, start, size)
    if is_found:
        return offset
    if len(data) < size:
        raise _Undecided
    return None


_MARKER_PATTERN: Final = re.compile(re.escape(RECORD_MARKER))


def search(data: Bytes, layout: LogLayout, start: int, size: int) -> tuple[int, bool]:
    """Look for a believable record from ``start`` on; return its place and ``True``.

    Else return ``False`` and where to go on with more data: nothing believable begins before.
    """
    end = len(data)
    # A pattern searches views too; bytes(data).find would copy a whole window for each damage.
    for found in _MARKER_PATTERN.finditer(data, start):
        offset = found.start()
        try:
            if _whole(data, layout, offset, size):
                _, _, _, length = layout.record_header.unpack_from(data, offset)
                follower = offset + layout.record_header.size + length
                rest = bytes(data[follower : follower + 4])
                if len(rest) < 4 and end < size:
                    return offset, False
                if rest in (RECORD_MARKER[: len(rest)], END_MARKER[: len(rest)]):
                    return offset, True
        except _Undecided:
            return offset, False
    return max(start, end - 3), False


def _whole(data: Bytes, layout: LogLayout, offset: int, size: int) -> bool:
    """Return whether a record with a matching checksum and a possible term begins at ``offset``."""
    header, end = layout.record_header, len(data)
    if offset + header.size > end:
        if end < size:
            raise _Undecided
        return False
    marker, term, stored, length = header.unpack_from(data, offset)
    body: int = offset + header.size
    if (
        marker != RECORD_MARKER
        or term < 1
        or not 0 <= length <= RECORD_SIZE_BELIEVED
        or body + length > size
    ):
        return False
    if body + length > end:
        raise _Undecided
    return checksum(data[body : body + length]) == int(stored)


RECORD_SIZE_BELIEVED: Final = 16 * 2**20 + 4096
"""How long a record may be to be believed behind damage: TaskFlux's largest message and its framing.

No wrong length can then make a reader hold the rest of a large file in memory.
"""

LOOKBACK: Final = 2 * RECORD_SIZE_BELIEVED
"""How much data is enough to judge what is at its beginning."""


# --- in columns ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceColumns:
    """What ``scan`` yields as one array per field; offsets count from the start of the buffer."""

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    status: NDArray[np.int64]
    term: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)


def scan_columns(
    data: Bytes | NDArray[np.uint8],
    layout: LogLayout,
    *,
    start: int,
    stop: int | None = None,
    term: int = 0,
    size: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Generator[PieceColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns what ``scan`` returns.

    Needs numpy and numba, which the ``tables`` extra brings.
    """
    with bulk():
        import numpy as np

    buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    end, header_size = len(buffer), layout.record_header.size
    size = end if size is None else size
    stop = size if stop is None else stop
    kernel, tables = compiled(walk_kernel(layout)), checksum_tables()
    position, is_done = start, start >= stop
    while not is_done:
        room = max(2, min(batch_rows, (end - position) // header_size + 2))
        offsets, terms = np.empty(room + 1, dtype=np.int64), np.empty(room, dtype=np.int64)
        damage: list[tuple[int, Piece]] = []
        count = 0
        while not is_done and count < room:
            found, position, why = kernel(
                buffer, position, stop, end, size, term, layout.kind, tables, offsets[count:room], terms[count:]
            )  # fmt: skip
            count += found
            term = int(terms[count - 1]) if found else term
            offsets[count] = position
            is_done = position >= stop or position == size
            if is_done or why == FULL:
                continue
            raw = buffer.data if isinstance(data, np.ndarray) else data
            piece = _damage(raw, layout, position, Status(why) if why >= 0 else None, size)
            if piece is None or piece.size == 0:
                position, is_done = size if piece is None else position, True
                continue
            damage.append((count, piece))
            terms[count] = piece.term
            count, position = count + 1, position + piece.size
            offsets[count] = position
            term = piece.term if piece.term >= 1 else term
            is_done = position >= stop
        if count:
            yield _columns(offsets[: count + 1], terms[:count], header_size, damage)
    return int(position)


def _columns(
    offsets: NDArray[np.int64],
    terms: NDArray[np.int64],
    header_size: int,
    damage: Sequence[tuple[int, Piece]],
) -> PieceColumns:
    """Return pieces that follow each other, whole records but for the ``damage`` in some rows."""
    import numpy as np

    sizes = np.diff(offsets)
    status, lengths = np.zeros(len(terms), dtype=np.int64), sizes - header_size
    for row, piece in damage:
        status[row], lengths[row] = piece.status, piece.length
    return PieceColumns(offset=offsets[:-1], size=sizes, status=status, term=terms, length=lengths)
