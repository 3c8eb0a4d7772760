"""Scanning a log behind damage: every record and every gap, one by one or in columns.

``scan`` is the plain reader; ``scan_columns`` gives the same answers for a whole buffer in one call,
by a kernel that numba compiles when it is first used (a property test holds the two together).
Both can begin at any byte of a file: ``find_boundary`` finds where a scan of the whole file
would have come by. The rules for what follows damage:

* A record whose checksum matches ends where it says. One whose checksum does not match is a single
  bad record if a whole record follows it; else the scan searches.
* The search takes the first whole record that is followed by a record marker, zeros or the end.
* Zeros are the end of the log, unless records follow them.

Generation 1 has no markers: there the first bad record takes all that follows with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.binary import CHECKSUM_START, Bytes, checksum
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.kernel_bytes import (
    crc,
    crc_tables,
    emit,
    i64,
    signed,
    u32,
    u32_little,
    zeros_end,
)
from penstock.formats.taskflux.log import END_MARKER, RECORD_MARKER, LogLayout, Status, Walk, walk

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

    ``start`` must be a true boundary: the header's end, or what ``find_boundary`` returned.
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
        found = walk(data, layout, offset=position, end=end, term=term, size=size)
        for offset, record_term, follower in zip(
            found.offsets, found.terms, [*found.offsets, found.position][1:], strict=True
        ):
            if offset >= stop:
                return offset
            piece_size = follower - offset
            yield Piece(offset, piece_size, Status.OK, record_term, piece_size - header_size)
            term = record_term
        position = found.position
        if position >= stop or position == size:
            return position
        try:
            piece = _damage(data, layout, found, size)
        except _Undecided:
            return position
        if piece is None:
            return size
        yield piece
        term = piece.term if piece.term >= 1 else term
        position += piece.size
    return position


def _damage(data: Bytes, layout: LogLayout, found: Walk, size: int) -> Piece | None:
    """Return the piece that begins where a walk stopped, or ``None`` if only zeros follow."""
    position, status, end = found.position, found.stop, len(data)
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


def search(data: Bytes, layout: LogLayout, start: int, size: int) -> tuple[int, bool]:
    """Look for a believable record from ``start`` on; return its place and ``True``.

    Else return ``False`` and where to go on with more data: nothing believable begins before.
    """
    raw = data if isinstance(data, bytes | bytearray) else bytes(data)
    end = len(raw)
    offset = raw.find(RECORD_MARKER, start)
    while offset >= 0:
        try:
            if _whole(raw, layout, offset, size):
                _, _, _, length = layout.record_header.unpack_from(raw, offset)
                follower = offset + layout.record_header.size + length
                rest = raw[follower : follower + 4]
                if len(rest) < 4 and end < size:
                    return offset, False
                if rest in (RECORD_MARKER[: len(rest)], END_MARKER[: len(rest)]):
                    return offset, True
        except _Undecided:
            return offset, False
        offset = raw.find(RECORD_MARKER, offset + 1)
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
"""How far before a split to begin: records that fill half of it cannot all be inside one payload."""


class Boundary(NamedTuple):
    """A true record boundary, and the term of the record before it (0 if there is none)."""

    position: int
    term: int


def find_boundary(
    data: Bytes,
    layout: LogLayout,
    *,
    at: int,
    low: int,
    size: int | None = None,
    bulk: bool = False,
) -> Boundary | None:
    """Return the first boundary at or behind ``at`` that a scan of the whole file would also find.

    The bytes before ``at`` decide: a payload may hold whole records, so what looks like a boundary
    may be inside a record that began earlier. ``low`` is where the look back begins: the
    header's end, or any place at least twice as far before ``at`` as the largest record is long.
    Returns ``None`` if nothing between ``low`` and ``at`` proves a boundary: look back further.
    ``bulk`` walks by the kernel, which pays from some thousand records on.
    """
    size = len(data) if size is None else size
    known: Boundary | None = Boundary(low, 0)
    if low != layout.header_size:
        known = _find_run(data, layout, low, at, size, bulk=bulk)
    if known is None or known.position >= at:
        return known
    walked = _walk_to(data, layout, known, at, size, bulk=bulk)
    return walked if walked.position >= min(at, size) else None


def _walk_to(
    data: Bytes, layout: LogLayout, start: Boundary, at: int, size: int, *, bulk: bool
) -> Boundary:
    """Scan from a true boundary up to ``at``; return where that ended, and the term before it."""
    scanner: Callable[..., Generator[Any, None, int]] = scan_columns if bulk else scan
    position, term = start
    found = scanner(data, layout, start=position, stop=at, term=term, size=size)
    while True:
        try:
            piece = next(found)
        except StopIteration as done:
            return Boundary(done.value, term)
        terms = piece.term[piece.term >= 1] if bulk else [piece.term][: piece.term >= 1]
        term = int(terms[-1]) if len(terms) else term


def _find_run(
    data: Bytes, layout: LogLayout, low: int, at: int, size: int, *, bulk: bool
) -> Boundary | None:
    """Return the end of a run of records, without a gap, over half of the way from ``low`` to ``at``.

    Such a run is longer than any payload, so it ends at a true boundary. Fewer records prove nothing:
    a payload may hold several in a row, and damage behind it can keep a scan that began
    among them from ever meeting the true boundaries.
    """
    needed = (at - low) // 2
    position = low
    while True:
        start, is_found = search(data, layout, position, size)
        if not is_found or start >= at:
            return None
        for terms, followers in _runs(data, layout, start, at, size, bulk=bulk):
            first = bisect_right(followers, start + needed)
            if first < len(followers):
                return Boundary(int(followers[first]), int(terms[first]))
            position = int(followers[-1])
        position = max(position, start + 1)


def _runs(
    data: Bytes, layout: LogLayout, start: int, at: int, size: int, *, bulk: bool
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield terms and ends of the records that follow each other from ``start`` on, before ``at``."""
    if not bulk:
        found = walk(data, layout, offset=start, end=min(at, len(data)), size=size)
        if found.offsets:
            yield found.terms, [*found.offsets, found.position][1:]
        return
    for batch in scan_columns(data, layout, start=start, stop=at, size=size):
        followers = batch.offset + batch.size
        is_run = (batch.status == int(Status.OK)) & (followers <= at)
        count = len(batch) if is_run.all() else int(is_run.argmin())
        if count:
            yield batch.term[:count], followers[:count]  # type: ignore[misc]
        if count < len(batch):
            return


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
    interpreted: bool = False,
) -> Generator[PieceColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns what ``scan`` returns.

    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
    """
    with bulk():
        import numpy as np

    if interpreted:
        buffer: Any = bytes(data)
        kernel: Callable[..., Any] = _scan_kernel
    else:
        buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        kernel = compiled(_scan_kernel)
    end = len(buffer)
    size = end if size is None else size
    stop = size if stop is None else stop
    header_size = layout.record_header.size
    tables = crc_tables(_POLYNOMIAL, is_reflected=False, interpreted=interpreted)
    position, why = start, _FULL
    while why == _FULL:
        room = max(2, min(batch_rows, (end - position) // header_size + 2))
        rows = np.empty((5, room), dtype=np.int64)
        count, position, term, why = kernel(
            buffer, position, stop, end, size, term, header_size, layout.is_marked,
            layout is LogLayout.ONE_A, tables, rows,
        )  # fmt: skip
        if count:
            yield PieceColumns(
                offset=rows[0, :count],
                size=rows[1, :count],
                status=rows[2, :count],
                term=rows[3, :count],
                length=rows[4, :count],
            )
    return int(position)


# What the kernel knows as plain numbers: why it returned, the members of ``Status``, and that more data is needed.
_DONE, _FULL, _MORE = 0, 1, 2
_OK, _BAD_CHECKSUM, _BAD_MARKER, _BAD_TERM, _FALLING, _BAD_LENGTH, _TORN, _ZEROS, _LEFTOVER = map(
    int, list(Status)[:9]
)
_UNDECIDED: Final = -1
_MARKER: Final = int.from_bytes(RECORD_MARKER, "big")
_MARKER_START: Final = RECORD_MARKER[0]
_POLYNOMIAL: Final = 0x104C11DB7  # of CRC-32/MPEG-2, highest bit first


def _scan_kernel(
    data: Any, position: Any, stop: Any, end: Any, size: Any, previous: Any, header_size: Any,
    marked: Any, little: Any, tables: Any, rows: Any,
) -> Any:  # fmt: skip
    """Scan as the module says, into ``rows``; return rows, position, last term, and why it stopped."""
    count = 0
    while position < stop and position < size:
        if count == rows.shape[1]:
            return count, position, previous, _FULL
        if marked:
            status, term, length = _marked_record(
                data, position, end, size, previous, header_size, False, tables
            )
        else:
            status, term, length = _plain_record(data, position, end, size, previous, little)
        piece_size = header_size + length
        if status != _OK and not (marked and (status == _BAD_TERM or status == _FALLING)):
            if status != _UNDECIDED and marked:
                piece_size, status, term, length = _gap(
                    data, position, end, size, status, term, length, header_size, tables
                )
            else:
                piece_size, term, length = size - position, 0, 0
            if status == _UNDECIDED:
                return count, position, previous, _MORE
            if status == _ZEROS and position + piece_size == size:
                return count, size, previous, _DONE
        emit(rows, count, (position, piece_size, status, term, length))
        count += 1
        previous = term if term >= 1 else previous
        position += piece_size
    return count, position, previous, _DONE


def _plain_record(
    data: Any, position: Any, end: Any, size: Any, previous: Any, little: Any
) -> Any:  # fmt: skip
    """Return status, term and length of the record of generation 1 at ``position``."""
    body = position + 8
    if body > end:
        return (_UNDECIDED if end < size else _TORN), 0, 0
    if little:
        term, length = signed(u32_little(data, position)), signed(u32_little(data, position + 4))
    else:
        term, length = signed(u32(data, position)), signed(u32(data, position + 4))
    status = _OK
    if term < 1:
        status = _BAD_TERM
    elif term < previous:
        status = _FALLING
    elif length < 0:
        status = _BAD_LENGTH
    elif body + length > size:
        status = _TORN
    elif body + length > end:
        status = _UNDECIDED
    return status, term, length


def _marked_record(
    data: Any, position: Any, end: Any, size: Any, previous: Any, header_size: Any, behind_damage: Any,
    tables: Any,
) -> Any:  # fmt: skip
    """Return status, term and length of the record at ``position``; less is believed ``behind_damage``."""
    body = position + header_size
    if body > end and end < size:
        return _UNDECIDED, 0, 0
    status = _marker(data, position, end)
    if status != _OK or body > end:
        return (_TORN if status == _OK else status), 0, 0
    term = i64(data, position + 4) if header_size == 20 else signed(u32(data, position + 4))
    length = signed(u32(data, body - 4))
    follower = body + length
    if length < 0:
        status = _BAD_LENGTH
    elif behind_damage and term < 1:
        status = _BAD_TERM  # No record, however it goes on: more data cannot help.
    elif follower > size or (behind_damage and length > RECORD_SIZE_BELIEVED):
        status = _TORN
    elif follower > end:
        status = _UNDECIDED
    elif crc(data, body, follower, CHECKSUM_START, tables) != u32_little(data, body - 8):
        status = _BAD_CHECKSUM
    elif term < 1:
        status = _BAD_TERM
    elif term < previous:
        status = _FALLING
    return status, term, length


def _marker(data: Any, position: Any, end: Any) -> Any:
    """Return ``_OK`` for a record marker, ``_ZEROS`` for zeros, and ``_TORN`` if either is cut off by the end."""
    if position + 4 <= end:
        word = u32(data, position)
        return _OK if word == _MARKER else _ZEROS if word == 0 else _BAD_MARKER
    word = 0
    for i in range(position, end):
        word = word * 0x100 + data[i]
    is_marker = word == _MARKER >> (8 * (position + 4 - end))
    return _TORN if is_marker or word == 0 else _BAD_MARKER


def _gap(
    data: Any, position: Any, end: Any, size: Any, status: Any, term: Any, length: Any,
    header_size: Any, tables: Any,
) -> Any:  # fmt: skip
    """Return size, status, term and length of what stands at ``position`` and is no whole record."""
    if status == _BAD_CHECKSUM:
        piece_size = header_size + length
        follower = position + piece_size
        after, _, _ = _marked_record(data, follower, end, size, 0, header_size, True, tables)
        if after == _OK or after == _UNDECIDED:
            return piece_size, (status if after == _OK else after), term, length
    resumed, is_found = _search(data, position + 1, end, size, header_size, tables)
    if is_found:
        return resumed - position, status, 0, 0
    if end < size:
        return 0, _UNDECIDED, 0, 0
    if status == _ZEROS and zeros_end(data, position, end) < end:
        status = _LEFTOVER
    return size - position, status, 0, 0


def _search(data: Any, position: Any, end: Any, size: Any, header_size: Any, tables: Any) -> Any:
    """Return where the first believable record from ``position`` on begins, and whether there is one."""
    while True:
        position = _next_marker(data, position, end)
        if position + 4 > end:
            return position, False
        status, _, length = _marked_record(data, position, end, size, 0, header_size, True, tables)
        follower = position + header_size + length
        if status == _UNDECIDED or (status == _OK and follower + 4 > end and end < size):
            return position, False
        if status == _OK and _marker(data, follower, end) != _BAD_MARKER:
            return position, True
        position += 1


def _next_marker(data: Any, position: Any, end: Any) -> Any:
    """Return where the next record marker from ``position`` on begins; if there is none, what is near the end."""
    while position + 4 <= end:
        if data[position] == _MARKER_START and u32(data, position) == _MARKER:
            break
        position += 1
    return position
