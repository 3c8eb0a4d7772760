"""The message store, ``N.rdq`` and ``N.rdt``: messages that are too large for an index.

This module owns the store's records. ``scan`` yields pieces one by one, ``scan_store_columns`` columns; both judge
records and gaps by the same functions. What a message means is not known here (docs/formats/rabbitmq.md). The rules for what is no whole record:

* A record is whole if its length fits the file, its message begins like a message and its end marker
  is there. What lies between has no checksum: it may be anything.
* One with a wrong end marker or a wrong beginning of its message is a single bad record if a whole record, zeros or
  the end follow it; else the scan searches.
* The search takes the first whole record that is not too long to be believed. Zeros are no end:
  an interrupted merge and a compaction in place leave records behind them.

An id may occur several times in a file, and every copy is yielded. To know them would make the
answer depend on all that stands before, and any whole copy is as good as the other.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.binary import UINT64, Bytes
from penstock.formats.kernel import BATCH_ROWS, compiled_as, scan_in_batches
from penstock.formats.kernel_bytes import emit, u32
from penstock.formats.rabbitmq.journal import MESSAGE_ID_SIZE, begins_like_message, zeros_end

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD: Final = Struct(">Q16s")
"""Size of id and message together, and the id."""

END_MARKER: Final = 255
_HEAD_SIZE: Final = HEAD.size
FRAMING_SIZE: Final = HEAD.size + 1
"""A record without its message."""

RECORD_SIZE_BELIEVED: Final = 512 * 2**20 + 2**20
"""How long a record may be to be believed behind damage: the largest body that a broker can be told to
take, and room for its properties. No wrong length can then make a reader hold all of a huge file.
"""

SUFFIX: Final = ".rdq"
MERGE_SUFFIX: Final = ".rdt"
"""What a merge keeps while it rewrites the file of the same number; a source like any other."""


def parse_store_name(name: str) -> int | None:
    """Return the number of the store file with this name, or ``None`` if it is none."""
    digits = name.removesuffix(SUFFIX)
    digits = name.removesuffix(MERGE_SUFFIX) if digits == name else digits
    if digits == name or len(digits) > 19 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) if str(int(digits)) == digits else None


def store_name(number: int) -> str:
    """Return the file name of a store file."""
    return f"{number}{SUFFIX}"


class Status(IntEnum):
    """What is to be said of a record, or of a stretch of a store file that is none."""

    OK = 0
    BAD_MESSAGE = 1  # the message does not begin like a message
    BAD_MARKER = 2  # the end marker is not there
    BAD_LENGTH = 3  # a length that cannot be
    TORN = 4  # the file ends inside the record
    ZEROS = 5  # zeros: room that was never filled, or a hole
    LEFTOVER = 6  # zeros, and behind them bytes that are no records

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


class Piece(NamedTuple):
    """A record, or a stretch of the file that is none: that has no id, and length 0."""

    offset: int
    size: int
    status: Status
    length: int  # of the message; it stands before the last byte of the piece
    message_id: bytes


# --- what stands somewhere in a file -------------------------------------------------------------

_OK, _BAD_MESSAGE, _BAD_MARKER, _BAD_LENGTH, _TORN, _ZEROS, _LEFTOVER = map(int, Status)
_UNDECIDED: Final = -1  # only more data can tell
_BEYOND: Final = 2**62
_STATUSES: Final = tuple(Status)
_read_length: Final = Struct(">q").unpack_from


def _judge(data: Any, position: Any, end: Any, size: Any, behind_damage: Any) -> Any:
    """Return status, and length of the message, of what would be a record at ``position``.

    Runs interpreted for ``scan`` and compiled as a part of the kernel; less is believed ``behind_damage``.
    """
    if position + 8 > end:
        if end < size:
            return _UNDECIDED, 0
        return (_ZEROS if zeros_end(data, position, end) == end else _TORN), 0
    (counted,) = _read_length(data, position)
    if 0 <= counted <= MESSAGE_ID_SIZE:
        return (_ZEROS if counted == 0 else _BAD_LENGTH), 0
    if counted < 0 or counted > _BEYOND:
        counted = _BEYOND
    length = counted - MESSAGE_ID_SIZE
    follower = position + FRAMING_SIZE + length
    if follower > size or (behind_damage and follower - position > RECORD_SIZE_BELIEVED):
        return _TORN, 0
    if behind_damage and length < 2:
        return _BAD_MESSAGE, 0
    if follower > end:
        return _UNDECIDED, 0
    if data[follower - 1] != END_MARKER:
        return _BAD_MARKER, length
    is_message = begins_like_message(data, position + _HEAD_SIZE, length)
    return (_OK if is_message else _BAD_MESSAGE), length


def _gap(data: Any, position: Any, end: Any, size: Any, status: Any, length: Any) -> Any:
    """Return size, status and length of what stands at ``position`` and is no whole record."""
    if status == _UNDECIDED:
        return 0, status, 0
    if status == _BAD_MARKER or status == _BAD_MESSAGE:
        piece_size = FRAMING_SIZE + length
        follower = position + piece_size
        after = _OK
        if follower < size:
            after, _ = _judge(data, follower, end, size, False)
        if after == _OK or after == _ZEROS:
            return piece_size, status, length
        if after == _UNDECIDED:
            return 0, after, 0
    found, after = _next_record(data, position + 1, end, size)
    if after == _OK:
        return found - position, (_BAD_LENGTH if status == _TORN else status), 0
    if after == _UNDECIDED:
        return 0, after, 0
    if status == _ZEROS and zeros_end(data, position, end) < end:
        status = _LEFTOVER
    return size - position, status, 0


_CANDIDATE_SIZE: Final = 26  # a length, an id, and what a message begins with


def _next_record_compiled(data: Any, position: Any, end: Any, size: Any) -> Any:
    """Do as ``_next_record`` without a pattern, which numba does not know.

    Only four zeros, a length and what a message begins with are worth a closer look.
    """
    while True:
        while position + _CANDIDATE_SIZE <= end and not (
            begins_like_message(data, position + _HEAD_SIZE, 2) and u32(data, position) == 0
        ):
            position += 1
        if position + _CANDIDATE_SIZE > end:
            return position, (_UNDECIDED if end < size else _TORN)
        status, _ = _judge(data, position, end, size, True)
        if status == _OK or status == _UNDECIDED:
            return position, status
        position += 1


_CANDIDATE: Final = re.compile(rb"(?=\x00{4}(?!\x00{4}).{20}\x83[\x50\x68])", re.DOTALL)
"""A length that can be believed, an id, and what a message begins with."""


@compiled_as(_next_record_compiled)
def _next_record(data: Bytes, position: int, end: int, size: int) -> tuple[int, int]:
    """Return where the first believable record from ``position`` on begins, and a status: ``_OK`` if there is one."""
    # In a long run of zeros only its last bytes can begin a length.
    begin = max(position, zeros_end(data, position, end) - UINT64.size + 1)
    for match in _CANDIDATE.finditer(data, begin):
        status, _ = _judge(data, match.start(), end, size, True)
        if status in (_OK, _UNDECIDED):
            return match.start(), status
    return end, _UNDECIDED if end < size else _TORN


# --- one by one ----------------------------------------------------------------------------------


def scan(
    data: Bytes, *, start: int = 0, stop: int | None = None, size: int | None = None
) -> Generator[Piece, None, int]:
    """Yield every record and every gap that begins in ``[start, stop)``; together they cover the file.

    ``start`` must be a true boundary: 0, or what a scan returned. ``size`` is the file's end if the data
    ends earlier. Returns where it stopped: before ``stop`` and the file's end only if more data is
    needed to judge what is there.
    """
    end = len(data)
    size = end if size is None else size
    stop = size if stop is None else min(stop, size)
    position = start
    while position < stop:
        code, length = _judge(data, position, end, size, False)
        piece_size = FRAMING_SIZE + length
        if code != _OK:
            piece_size, code, length = _gap(data, position, end, size, code, length)
            if code == _UNDECIDED:
                return position
        id_end = position + _HEAD_SIZE
        message_id = bytes(data[id_end - MESSAGE_ID_SIZE : id_end]) if length else b""
        yield Piece(position, piece_size, _STATUSES[code], length, message_id)
        position += piece_size
    return position


def decode_message(data: Bytes, piece: Piece) -> bytes:
    """Return the message of a record of status ``OK``, as it is."""
    assert piece.status is Status.OK
    body = piece.offset + HEAD.size
    return bytes(data[body : body + piece.length])


def encode_record(message_id: bytes, message: bytes) -> bytes:
    assert len(message_id) == MESSAGE_ID_SIZE
    assert begins_like_message(message, 0, len(message))
    head = HEAD.pack(MESSAGE_ID_SIZE + len(message), message_id)
    return head + message + bytes((END_MARKER,))


# --- in columns ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreColumns:
    """What ``scan`` yields as one array per field; offsets count from the start of the buffer.

    The id has no column: it is the 16 bytes behind the first 8 of a piece whose length is not 0.
    """

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    status: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def of_rows(cls, rows: NDArray[np.int64]) -> StoreColumns:
        """Return what the kernel wrote."""
        offset, size, status, length = rows
        return cls(offset=offset, size=size, status=status, length=length)


def scan_store_columns(
    data: Bytes | NDArray[np.uint8],
    *,
    start: int = 0,
    stop: int | None = None,
    size: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Generator[StoreColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns what ``scan`` returns.

    Needs numpy and numba, which the ``tables`` extra brings.
    """
    # No two gaps touch, so there are at most two pieces for each record that fits.
    return scan_in_batches(
        _store_kernel,
        data,
        start=start,
        stop=stop,
        size=size,
        fields=4,
        make=StoreColumns.of_rows,
        room=lambda left: 2 * (left // FRAMING_SIZE) + 2,
        batch_rows=batch_rows,
    )


def _store_kernel(data: Any, position: Any, stop: Any, end: Any, size: Any, rows: Any) -> Any:
    """Scan as the module says, into ``rows``; return rows, position, and whether more are to come."""
    count = 0
    while position < stop and position < size:
        if count == rows.shape[1]:
            return count, position, True
        status, length = _judge(data, position, end, size, False)
        piece_size = FRAMING_SIZE + length
        if status != _OK:
            piece_size, status, length = _gap(data, position, end, size, status, length)
            if status == _UNDECIDED:
                return count, position, False
        emit(rows, count, (position, piece_size, status, length))
        count += 1
        position += piece_size
    return count, position, False
