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
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.binary import Bytes, checksum
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
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
    position, why = start, _FULL
    while why == _FULL:
        room = max(2, min(batch_rows, (end - position) // header_size + 2))
        rows = np.empty((5, room), dtype=np.int64)
        count, position, term, why = kernel(
            buffer, position, stop, end, size, term, header_size, layout.is_marked,
            layout is LogLayout.ONE_A, _checksum_tables(), rows,
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


_CHECKSUM_STEP: Final = 16


@cache
def _checksum_tables() -> NDArray[np.int64]:
    """Return the tables that take the checksum 16 bytes further at a step (CRC-32/MPEG-2)."""
    import numpy as np

    tables = np.zeros((_CHECKSUM_STEP, 256), dtype=np.int64)
    for value in range(256):
        register = value << 24
        for _ in range(8):
            register = (register << 1) ^ (0x104C11DB7 if register & 0x80000000 else 0)
        tables[0, value] = register
    for step in range(1, _CHECKSUM_STEP):
        for value in range(256):
            before = int(tables[step - 1, value])
            tables[step, value] = ((before << 8) & 0xFFFFFFFF) ^ int(tables[0, before >> 24])
    return tables


# What the kernel knows as plain numbers: why it returned, and the members of ``Status``.
_DONE, _FULL, _MORE = 0, 1, 2
_OK, _BAD_CHECKSUM, _BAD_MARKER, _BAD_TERM, _FALLING, _BAD_LENGTH, _TORN, _ZEROS, _LEFTOVER = map(
    int, list(Status)[:9]
)
_M0, _M1, _M2, _M3 = RECORD_MARKER
_JUDGE, _FRAME, _SEARCH = 0, 1, 2


def _scan_kernel(
    data: Any, position: Any, stop: Any, end: Any, size: Any, previous: Any, header_size: Any,
    marked: Any, little: Any, tables: Any, rows: Any,
) -> Any:  # fmt: skip
    """Scan as the module says, into ``rows``; return rows, position, last term, and why it stopped.

    One loop in three modes. JUDGE takes the record at ``position`` as it is. FRAME asks whether a
    whole record begins there, to learn whether the bad one at ``held`` ends there. SEARCH looks
    for a record behind the gap that begins at ``held``. Bytes are multiplied, not shifted, into
    integers: a shifted byte is unsigned to numba, and mixing the signs makes it a float.
    """
    room = rows.shape[1]
    count = 0
    mode = _JUDGE
    held = position
    held_status = _OK
    held_term = previous
    held_length = 0
    while True:
        here = held if mode else position
        if count == room:
            return count, here, previous, _FULL
        if mode == _JUDGE and (position >= stop or position >= size):
            return count, position, previous, _DONE
        if mode == _SEARCH:
            while position + 4 <= end and not (
                data[position] == _M0
                and data[position + 1] == _M1
                and data[position + 2] == _M2
                and data[position + 3] == _M3
            ):
                position += 1
            if position + 4 > end or not marked:
                if end < size and marked:
                    return count, held, previous, _MORE
                if held_status == _ZEROS:
                    position = held
                    while position < end and data[position] == 0:
                        position += 1
                    if position == end:
                        return count, size, previous, _DONE
                    held_status = _LEFTOVER
                rows[0, count] = held
                rows[1, count] = size - held
                rows[2, count] = held_status
                rows[3, count] = 0
                rows[4, count] = 0
                return count + 1, size, previous, _DONE

        status = _OK
        term = 0
        length = 0
        body = position + header_size
        if body > end:
            if end < size:
                return count, here, previous, _MORE
            status = _TORN
        elif little:
            i = position
            term = data[i + 3] * 0x1000000 + data[i + 2] * 0x10000 + data[i + 1] * 0x100 + data[i]
            i += 4
            length = data[i + 3] * 0x1000000 + data[i + 2] * 0x10000 + data[i + 1] * 0x100 + data[i]
        else:
            i = position + 4 if marked else position
            term = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            i = body - 4
            length = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
        term -= (term >> 31) << 32
        length -= (length >> 31) << 32
        follower = body + length
        if marked:
            zero = True
            prefix = True
            for i in range(min(4, end - position)):
                byte = data[position + i]
                zero = zero and byte == 0
                prefix = prefix and byte == (_M0, _M1, _M2, _M3)[i]
            if zero:
                if position + 4 <= end:
                    status = _ZEROS
            elif not prefix:
                status = _BAD_MARKER
            elif status == _OK:
                if header_size == 20:
                    i = position + 8
                    low = (
                        data[i] * 0x1000000
                        + data[i + 1] * 0x10000
                        + data[i + 2] * 0x100
                        + data[i + 3]
                    )
                    term = (term << 32) | low
                if length < 0:
                    status = _BAD_LENGTH
                elif mode != _JUDGE and term < 1:
                    status = _BAD_TERM  # No record, however it goes on: more data cannot help.
                elif follower > size or (mode != _JUDGE and length > RECORD_SIZE_BELIEVED):
                    status = _TORN
                elif follower > end:
                    return count, here, previous, _MORE
                else:
                    i = body - 8
                    stored = (
                        data[i] * 0x1000000
                        + data[i + 1] * 0x10000
                        + data[i + 2] * 0x100
                        + data[i + 3]
                    )
                    register = 0xFFFFFFFF
                    i = body
                    while i + 16 <= follower:
                        register = (
                            tables[15, (register >> 24) ^ data[i]]
                            ^ tables[14, ((register >> 16) & 0xFF) ^ data[i + 1]]
                            ^ tables[13, ((register >> 8) & 0xFF) ^ data[i + 2]]
                            ^ tables[12, (register & 0xFF) ^ data[i + 3]]
                            ^ tables[11, data[i + 4]]
                            ^ tables[10, data[i + 5]]
                            ^ tables[9, data[i + 6]]
                            ^ tables[8, data[i + 7]]
                            ^ tables[7, data[i + 8]]
                            ^ tables[6, data[i + 9]]
                            ^ tables[5, data[i + 10]]
                            ^ tables[4, data[i + 11]]
                            ^ tables[3, data[i + 12]]
                            ^ tables[2, data[i + 13]]
                            ^ tables[1, data[i + 14]]
                            ^ tables[0, data[i + 15]]
                        )
                        i += 16
                    while i + 8 <= follower:
                        register = (
                            tables[7, (register >> 24) ^ data[i]]
                            ^ tables[6, ((register >> 16) & 0xFF) ^ data[i + 1]]
                            ^ tables[5, ((register >> 8) & 0xFF) ^ data[i + 2]]
                            ^ tables[4, (register & 0xFF) ^ data[i + 3]]
                            ^ tables[3, data[i + 4]]
                            ^ tables[2, data[i + 5]]
                            ^ tables[1, data[i + 6]]
                            ^ tables[0, data[i + 7]]
                        )
                        i += 8
                    while i < follower:
                        register = ((register << 8) & 0xFFFFFFFF) ^ tables[
                            0, (register >> 24) ^ data[i]
                        ]
                        i += 1
                    if register != stored:
                        status = _BAD_CHECKSUM
                    elif term < 1:
                        status = _BAD_TERM
                    elif term < previous:
                        status = _FALLING
        elif status == _OK:
            if term < 1:
                status = _BAD_TERM
            elif term < previous:
                status = _FALLING
            elif length < 0:
                status = _BAD_LENGTH
            elif follower > size:
                status = _TORN
            elif follower > end:
                return count, here, previous, _MORE

        if mode == _FRAME:
            if status == _OK or status == _FALLING:
                rows[0, count] = held
                rows[1, count] = position - held
                rows[2, count] = held_status
                rows[3, count] = held_term
                rows[4, count] = held_length
                count += 1
                if held_term >= 1:
                    previous = held_term
                mode = _JUDGE
            else:
                mode = _SEARCH
                position = held + 1
        elif mode == _SEARCH:
            believable = status == _OK or status == _FALLING
            if believable:
                if follower + 4 > end and end < size:
                    return count, held, previous, _MORE
                zero = True
                prefix = True
                for i in range(min(4, end - follower)):
                    byte = data[follower + i]
                    zero = zero and byte == 0
                    prefix = prefix and byte == (_M0, _M1, _M2, _M3)[i]
                believable = zero or prefix
            if believable:
                rows[0, count] = held
                rows[1, count] = position - held
                rows[2, count] = held_status
                rows[3, count] = 0
                rows[4, count] = 0
                count += 1
                mode = _JUDGE
            else:
                position += 1
        elif status == _OK or (marked and (status == _BAD_TERM or status == _FALLING)):
            rows[0, count] = position
            rows[1, count] = header_size + length
            rows[2, count] = status
            rows[3, count] = term
            rows[4, count] = length
            count += 1
            if term >= 1:
                previous = term
            position = follower
        else:
            held = position
            held_status = status
            held_term = term
            held_length = length
            if marked and status == _BAD_CHECKSUM:
                mode = _FRAME
                position = follower
            else:
                mode = _SEARCH
                position += 1
