"""An index segment of a classic queue, ``N.idx``: what the journal said, after it was flushed.

This module owns the segment's records and how sequence numbers are spread over segments. Pieces,
columns and the fields of a publish record are the journal's. ``scan`` is the plain reader;
``scan_segment_columns`` gives the same answers in columns, by a kernel (a property test holds
the two together; docs/formats/rabbitmq.md).

Records stand in no order, and a deliver looks like an ack: ``merge`` says what they add up to. There is
no checksum and no marker, so a scan cannot go on behind a record that is torn or cannot be. Nothing
is lost by a tear: the journal still holds what was being flushed.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.errors import InvalidValue
from penstock.formats.kernel import BATCH_ROWS, scan_in_batches
from penstock.formats.rabbitmq.journal import (
    PUBLISH_FIELDS,
    SEQUENCE_MAX,
    Kind,
    Piece,
    PieceColumns,
    Publish,
    SequenceNumber,
    Status,
    encode_publish_fields,
    publish_piece,
    rest,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENTRY_COUNT_MAX: Final = 16_384
"""Sequence numbers per segment, as far as 14 bits reach; also what holds where nothing else is said."""

HEAD: Final = Struct(">H")
PUBLISH_SIZE: Final = HEAD.size + PUBLISH_FIELDS.size
"""A publish record without its embedded message."""

SUFFIX: Final = ".idx"

_PUBLISH: Final = 0x8000
_PERSISTENT: Final = 0x4000  # of a publish; alone it is a deliver or an ack
_RELATIVE: Final = 0x3FFF


# --- sequence numbers ----------------------------------------------------------------------------


def check_entry_count(entry_count: int) -> None:
    """Raise ``InvalidValue`` unless segments can hold so many sequence numbers."""
    if not 1 <= entry_count <= ENTRY_COUNT_MAX:
        raise InvalidValue(f"{entry_count} entries in a segment; 1 to {ENTRY_COUNT_MAX} can be")


def segment_of(sequence: SequenceNumber, *, entry_count: int = ENTRY_COUNT_MAX) -> int:
    """Return the number of the segment that holds this message."""
    return sequence // entry_count


def relative_of(sequence: SequenceNumber, *, entry_count: int = ENTRY_COUNT_MAX) -> int:
    """Return the message's number within its segment."""
    return sequence % entry_count


def sequence_of(
    segment: int, relative: int, *, entry_count: int = ENTRY_COUNT_MAX
) -> SequenceNumber:
    assert 0 <= relative < entry_count
    return SequenceNumber(segment * entry_count + relative)


def _first_sequence(segment: int, entry_count: int) -> int:
    check_entry_count(entry_count)
    if not 0 <= segment <= SEQUENCE_MAX // entry_count - 1:
        raise InvalidValue(f"segment {segment} is beyond the sequence numbers")
    return segment * entry_count


def segment_name(segment: int) -> str:
    """Return the file name of a segment."""
    return f"{segment}{SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """Return the number of the segment with this file name, or ``None`` if it is no segment."""
    digits = name.removesuffix(SUFFIX)
    # More digits than 62 bits have are not even converted: that takes long for very many.
    if digits == name or len(digits) > 19 or not (digits.isascii() and digits.isdigit()):
        return None
    segment = int(digits)
    return segment if str(segment) == digits and segment <= SEQUENCE_MAX else None


# --- one by one ----------------------------------------------------------------------------------


def scan(
    data: Bytes,
    *,
    segment: int,
    entry_count: int = ENTRY_COUNT_MAX,
    start: int = 0,
    stop: int | None = None,
    size: int | None = None,
) -> Generator[Piece, None, int]:
    """Yield every piece that begins in ``[start, stop)``; together they cover the file.

    ``start`` must be a true boundary: 0, or what a scan returned. ``size`` is the file's end if the data
    ends earlier. Returns where it stopped: before ``stop`` and the file's end only if more data is
    needed to judge what is there. Raises ``InvalidValue`` if no such segment can be.
    """
    first = _first_sequence(segment, entry_count)
    end = len(data)
    size = end if size is None else size
    stop = size if stop is None else stop
    position = start
    while position < stop and position < size:
        piece = _piece(data, first, entry_count, position, end, size)
        if piece is None:
            return position
        yield piece
        position += piece.size
    return position


def _piece(
    data: Bytes, first: int, entry_count: int, position: int, end: int, size: int
) -> Piece | None:
    """Return the piece at ``position``, or ``None`` if only more data can tell what it is."""
    if position + HEAD.size > size:
        return rest(data, position, Status.TORN, size)
    if position + HEAD.size > end:
        return None
    (head,) = HEAD.unpack_from(data, position)
    relative = head & _RELATIVE
    if head < _PERSISTENT or relative >= entry_count:
        return rest(data, position, Status.BAD_RECORD, size)
    sequence = SequenceNumber(first + relative)
    if head < _PUBLISH:
        kind = Kind.DELIVER_OR_ACK
        return Piece(position, HEAD.size, Status.OK, kind, sequence, 0, 0, 0, b"")
    if position + PUBLISH_SIZE > size:
        return rest(data, position, Status.TORN, size)
    if position + PUBLISH_SIZE > end:
        return None
    kind = Kind.PUBLISH_PERSISTENT if head & _PERSISTENT else Kind.PUBLISH_TRANSIENT
    return publish_piece(data, position, PUBLISH_SIZE, kind, sequence, size)


def encode_publish(relative: int, publish: Publish) -> bytes:
    assert 0 <= relative < ENTRY_COUNT_MAX
    flags = _PUBLISH | _PERSISTENT if publish.is_persistent else _PUBLISH
    return HEAD.pack(flags | relative) + encode_publish_fields(publish)


def encode_deliver_or_ack(relative: int) -> bytes:
    """Return the record that is a message's deliver when it stands first, its ack when second."""
    assert 0 <= relative < ENTRY_COUNT_MAX
    return HEAD.pack(_PERSISTENT | relative)


# --- in columns ----------------------------------------------------------------------------------


def scan_segment_columns(
    data: Bytes | NDArray[np.uint8],
    *,
    segment: int,
    entry_count: int = ENTRY_COUNT_MAX,
    start: int = 0,
    stop: int | None = None,
    size: int | None = None,
    batch_rows: int = BATCH_ROWS,
    interpreted: bool = False,
) -> Generator[PieceColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns and raises what ``scan`` does.

    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
    """
    return scan_in_batches(
        _segment_kernel,
        data,
        _first_sequence(segment, entry_count),
        entry_count,
        start=start,
        stop=stop,
        size=size,
        fields=8,
        make=PieceColumns.of_rows,
        room=lambda left: left // HEAD.size + 1,
        batch_rows=batch_rows,
        interpreted=interpreted,
    )


# What the kernel knows as plain numbers.
_OK, _BAD_MESSAGE, _BAD_RECORD, _TORN, _ZEROS, _ = map(int, Status)
_KIND_PERSISTENT, _KIND_TRANSIENT = int(Kind.PUBLISH_PERSISTENT), int(Kind.PUBLISH_TRANSIENT)
_KIND_DELIVER_OR_ACK, _KIND_NONE = int(Kind.DELIVER_OR_ACK), int(Kind.NONE)


def _segment_kernel(
    data: Any, first: Any, entry_count: Any, position: Any, stop: Any, end: Any, size: Any, rows: Any
) -> Any:  # fmt: skip
    """Scan as ``scan`` does, into ``rows``; return rows, position, and whether more rows are to come.

    Bytes are multiplied, not shifted, into integers: a shifted byte is unsigned to numba, and
    mixing the signs makes it a float. An expiry is written as the signed integer with its bits.
    """
    room = rows.shape[1]
    count = 0
    while position < stop and position < size:
        if count == room:
            return count, position, True
        status = _OK
        kind = _KIND_NONE
        sequence = 0
        expiry = 0
        body_size = 0
        length = 0
        follower = size
        body = position + 34
        if position + 2 > size:
            status = _TORN
        elif position + 2 > end:
            return count, position, False
        else:
            head = data[position] * 1
            relative = head % 64 * 0x100 + data[position + 1]
            sequence = first + relative
            if head < 64 or relative >= entry_count:
                status = _BAD_RECORD
            elif head < 128:
                kind = _KIND_DELIVER_OR_ACK
                follower = position + 2
            elif body > size:
                status = _TORN
            elif body > end:
                return count, position, False
            else:
                i = position + 30
                length = (
                    data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
                )
                if body + length > size:
                    status = _TORN
                    length = 0
                elif body + length > end:
                    return count, position, False
                else:
                    kind = _KIND_PERSISTENT if head >= 192 else _KIND_TRANSIENT
                    follower = body + length
                    if length > 0:
                        tag = data[body + 1] if length >= 2 else 0
                        if data[body] != 131 or (tag != 104 and tag != 80):
                            status = _BAD_MESSAGE
                    i = position + 18
                    high = (
                        data[i] * 0x1000000
                        + data[i + 1] * 0x10000
                        + data[i + 2] * 0x100
                        + data[i + 3]
                    )
                    i += 4
                    low = (
                        data[i] * 0x1000000
                        + data[i + 1] * 0x10000
                        + data[i + 2] * 0x100
                        + data[i + 3]
                    )
                    expiry = ((high - ((high >> 31) << 32)) << 32) | low
                    i += 4
                    body_size = (
                        data[i] * 0x1000000
                        + data[i + 1] * 0x10000
                        + data[i + 2] * 0x100
                        + data[i + 3]
                    )
        if kind == _KIND_NONE:
            sequence = 0
            i = position
            while i < end and data[i] == 0:
                i += 1
            if i == end:
                if end < size:
                    return count, position, False
                status = _ZEROS
        rows[0, count] = position
        rows[1, count] = follower - position
        rows[2, count] = status
        rows[3, count] = kind
        rows[4, count] = sequence
        rows[5, count] = expiry
        rows[6, count] = body_size
        rows[7, count] = length
        count += 1
        position = follower
    return count, position, False
