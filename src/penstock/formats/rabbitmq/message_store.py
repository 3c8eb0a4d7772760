"""The message store, ``N.rdq`` and ``N.rdt``: messages that are too large for an index.

This module owns the store's records. ``scan`` is the plain reader; ``scan_store_columns`` gives the
same answers in columns, by a kernel (a property test holds the two together). What a message means
is not known here (docs/formats/rabbitmq.md). The rules for what is no whole record:

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
from penstock.formats.kernel import BATCH_ROWS, scan_in_batches
from penstock.formats.rabbitmq.journal import (
    MESSAGE_ID_SIZE,
    begins_like_message,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD: Final = Struct(">Q16s")
"""Size of id and message together, and the id."""

END_MARKER: Final = 255
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


class _Undecided(Exception):
    """What follows can only be judged with more of the file."""


# --- one by one ----------------------------------------------------------------------------------


def scan(
    data: Bytes, *, start: int = 0, stop: int | None = None, size: int | None = None
) -> Generator[Piece, None, int]:
    """Yield every record and every gap that begins in ``[start, stop)``; together they cover the file.

    ``start`` must be a true boundary: 0, or what a scan returned. ``size`` is the file's end if the data
    ends earlier. Returns where it stopped: before ``stop`` and the file's end only if more data is
    needed to judge what is there.
    """
    size = len(data) if size is None else size
    stop = size if stop is None else stop
    position = start
    while position < stop and position < size:
        try:
            piece = _piece(data, position, size)
        except _Undecided:
            return position
        yield piece
        position += piece.size
    return position


def _piece(data: Bytes, position: int, size: int) -> Piece:
    """Return the record at ``position``, or the gap that begins there."""
    status, length, message_id = _judge(data, position, size)
    follower = position + FRAMING_SIZE + length
    if status is Status.OK:
        return Piece(position, follower - position, status, length, message_id)
    # The length of such a record is right if what must follow a record follows.
    if status in (Status.BAD_MESSAGE, Status.BAD_MARKER) and _is_boundary(data, follower, size):
        return Piece(position, follower - position, status, length, message_id)
    found = _search(data, position + 1, size)
    if found is not None:
        # The file does not end inside the record if records follow.
        status = Status.BAD_LENGTH if status is Status.TORN else status
        return Piece(position, found - position, status, 0, b"")
    if status is Status.ZEROS and _NOT_ZERO.search(data, position):
        status = Status.LEFTOVER
    return Piece(position, size - position, status, 0, b"")


def _judge(data: Bytes, position: int, size: int) -> tuple[Status, int, bytes]:
    """Return status, length of the message, and id of what would be a record at ``position``."""
    end = len(data)
    if position + UINT64.size > end:
        if end < size:
            raise _Undecided
        return (Status.TORN if any(data[position:end]) else Status.ZEROS), 0, b""
    (counted,) = UINT64.unpack_from(data, position)
    if counted == 0:
        return Status.ZEROS, 0, b""
    if counted <= MESSAGE_ID_SIZE:
        return Status.BAD_LENGTH, 0, b""
    length = counted - MESSAGE_ID_SIZE
    follower = position + FRAMING_SIZE + length
    if follower > size:
        return Status.TORN, 0, b""
    if follower > end:
        raise _Undecided
    message_id = bytes(data[position + UINT64.size : position + HEAD.size])
    if data[follower - 1] != END_MARKER:
        return Status.BAD_MARKER, length, message_id
    if not begins_like_message(data, position + HEAD.size, length):
        return Status.BAD_MESSAGE, length, message_id
    return Status.OK, length, message_id


def _is_boundary(data: Bytes, position: int, size: int) -> bool:
    """Return whether a whole record, zeros or the end are at ``position``."""
    if position == size:
        return True
    status, _, _ = _judge(data, position, size)
    return status in (Status.OK, Status.ZEROS)


_NOT_ZERO: Final = re.compile(rb"[^\x00]")
_CANDIDATE: Final = re.compile(rb"(?=\x00{4}(?!\x00{4}).{20}\x83[\x50\x68])", re.DOTALL)
"""A length that can be believed, an id, and what a message begins with."""


def _search(data: Bytes, start: int, size: int) -> int | None:
    """Return where the first believable record from ``start`` on begins, or ``None``."""
    end = len(data)
    # In a long run of zeros only its last bytes can begin a length.
    not_zero = _NOT_ZERO.search(data, start)
    begin = max(start, (not_zero.start() if not_zero else end) - UINT64.size + 1)
    for match in _CANDIDATE.finditer(data, begin):
        offset = match.start()
        (counted,) = UINT64.unpack_from(data, offset)
        follower = offset + UINT64.size + counted + 1
        if (
            counted < MESSAGE_ID_SIZE + 2
            or follower - offset > RECORD_SIZE_BELIEVED
            or follower > size
        ):
            continue
        if follower > end:
            raise _Undecided
        if data[follower - 1] == END_MARKER:
            return offset
    if end < size:
        raise _Undecided
    return None


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
    interpreted: bool = False,
) -> Generator[StoreColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns what ``scan`` returns.

    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
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
        interpreted=interpreted,
    )


# What the kernel knows as plain numbers.
_OK, _BAD_MESSAGE, _BAD_MARKER, _BAD_LENGTH, _TORN, _ZEROS, _LEFTOVER = map(int, Status)
_JUDGE, _FRAME, _SEARCH = 0, 1, 2
_BEYOND = 2**62


def _store_kernel(data: Any, position: Any, stop: Any, end: Any, size: Any, rows: Any) -> Any:
    """Scan as the module says, into ``rows``; return rows, position, and whether more are to come.

    One loop in three modes. JUDGE takes what is at ``position`` as it is. FRAME asks whether what
    must follow a record is there, to learn whether the bad one at ``held`` ends there. SEARCH looks
    for a record behind the gap that begins at ``held``. Bytes are multiplied, not shifted, into
    integers: a shifted byte is unsigned to numba, and mixing the signs makes it a float.
    """
    room = rows.shape[1]
    count = 0
    mode = _JUDGE
    held = position
    held_status = _OK
    held_length = 0
    while True:
        if mode == _JUDGE:
            if position >= stop or position >= size:
                return count, position, False
            if count == room:
                return count, position, True
            held = position
        elif mode == _SEARCH:
            # Only four zeros, a length and what a message begins with are worth a closer look.
            while position + 26 <= end and not (
                data[position + 24] == 131
                and (data[position + 25] == 104 or data[position + 25] == 80)
                and data[position] == 0
                and data[position + 1] == 0
                and data[position + 2] == 0
                and data[position + 3] == 0
            ):
                position += 1
            if position + 26 > end:
                if end < size:
                    return count, held, False
                if held_status == _ZEROS:
                    position = held
                    while position < end and data[position] == 0:
                        position += 1
                    if position < end:
                        held_status = _LEFTOVER
                rows[0, count] = held
                rows[1, count] = size - held
                rows[2, count] = held_status
                rows[3, count] = 0
                return count + 1, size, False

        status = _OK
        length = 0
        follower = position
        if mode == _FRAME and position == size:
            status = _OK
        elif position + 8 > end:
            if end < size:
                return count, held, False
            status = _ZEROS
            for i in range(position, end):
                if data[i] != 0:
                    status = _TORN
        else:
            i = position
            high = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            i += 4
            low = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            counted = high * 0x100000000 + low if high < 0x40000000 else _BEYOND
            follower = position + 9 + counted
            if counted == 0:
                status = _ZEROS
            elif counted <= 16:
                status = _BAD_LENGTH
            elif follower > size or (mode == _SEARCH and counted + 9 > RECORD_SIZE_BELIEVED):
                status = _TORN
            elif mode == _SEARCH and counted < 18:
                status = _BAD_MESSAGE
            elif follower > end:
                return count, held, False
            else:
                length = counted - 16
                if data[follower - 1] != 255:
                    status = _BAD_MARKER
                else:
                    tag = data[position + 25] if length >= 2 else 0
                    if data[position + 24] != 131 or (tag != 104 and tag != 80):
                        status = _BAD_MESSAGE

        if mode == _JUDGE:
            if status == _OK:
                rows[0, count] = position
                rows[1, count] = follower - position
                rows[2, count] = _OK
                rows[3, count] = length
                count += 1
                position = follower
            else:
                held_status = status
                held_length = length
                framed = status == _BAD_MARKER or status == _BAD_MESSAGE
                mode = _FRAME if framed else _SEARCH
                position = follower if framed else position + 1
        elif mode == _FRAME:
            if status == _OK or status == _ZEROS:
                rows[0, count] = held
                rows[1, count] = position - held
                rows[2, count] = held_status
                rows[3, count] = held_length
                count += 1
                mode = _JUDGE
            else:
                mode = _SEARCH
                position = held + 1
        elif status == _OK:
            rows[0, count] = held
            rows[1, count] = position - held
            rows[2, count] = _BAD_LENGTH if held_status == _TORN else held_status
            rows[3, count] = 0
            count += 1
            mode = _JUDGE
        else:
            position += 1
