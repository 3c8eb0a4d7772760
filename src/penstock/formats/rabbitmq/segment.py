"""An index segment of a classic queue, ``N.idx``: what the journal said, after it was flushed.

This module owns the segment's records and how sequence numbers are spread over segments. Pieces,
columns and the fields of a publish record are the journal's. ``scan`` yields pieces one by one,
``scan_segment_columns`` columns; both judge what is there by the same function (docs/formats/rabbitmq.md).

Records stand in no order, and a deliver looks like an ack: ``merge`` says what they add up to. There is
no checksum and no marker, so a scan cannot go on behind a record that is torn or cannot be. Nothing
is lost by a tear: the journal still holds what was being flushed.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.errors import InvalidValue
from penstock.formats.kernel import BATCH_ROWS, scan_in_batches
from penstock.formats.kernel_bytes import emit
from penstock.formats.rabbitmq.journal import (
    PUBLISH_FIELDS,
    SEQUENCE_MAX,
    UNDECIDED,
    Kind,
    Piece,
    PieceColumns,
    Publish,
    SequenceNumber,
    Status,
    encode_publish_fields,
    judge_publish,
    no_record,
    scan_by,
    settled,
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

_HEAD_SIZE: Final = HEAD.size
_read_head: Final = HEAD.unpack_from

_OK, _BAD_RECORD, _TORN = map(int, (Status.OK, Status.BAD_RECORD, Status.TORN))
_KIND_PERSISTENT, _KIND_TRANSIENT = int(Kind.PUBLISH_PERSISTENT), int(Kind.PUBLISH_TRANSIENT)
_DELIVER_OR_ACK: Final = int(Kind.DELIVER_OR_ACK)

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
    judge = partial(_judge, first, entry_count)
    return scan_by(judge, data, start=start, stop=stop, size=size)


def _judge(
    first: Any, entry_count: Any, data: Any, position: Any, end: Any, size: Any
) -> Any:  # fmt: skip
    """Return the row of what stands at ``position``, as ``journal`` has them. Runs interpreted and compiled."""
    if position + _HEAD_SIZE > end:
        return no_record(position, _TORN if position + _HEAD_SIZE > size else UNDECIDED, size)
    (head,) = _read_head(data, position)
    relative = head & _RELATIVE
    if head < _PERSISTENT or relative >= entry_count:
        return no_record(position, _BAD_RECORD, size)
    if head < _PUBLISH:
        return position, _HEAD_SIZE, _OK, _DELIVER_OR_ACK, first + relative, 0, 0, 0
    kind = _KIND_PERSISTENT if head & _PERSISTENT else _KIND_TRANSIENT
    body = position + PUBLISH_SIZE
    return judge_publish(data, position, body, kind, first + relative, end, size)


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
) -> Generator[PieceColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns and raises what ``scan`` does.

    Needs numpy and numba, which the ``tables`` extra brings.
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
    )


def _segment_kernel(
    data: Any, first: Any, entry_count: Any, position: Any, stop: Any, end: Any, size: Any, rows: Any
) -> Any:  # fmt: skip
    """Scan as ``scan`` does, into ``rows``; return rows, position, and whether more rows are to come."""
    count = 0
    while position < stop and position < size:
        if count == rows.shape[1]:
            return count, position, True
        piece = _judge(first, entry_count, data, position, end, size)
        status = settled(data, piece, end, size)
        if status == UNDECIDED:
            return count, position, False
        emit(rows, count, piece)
        rows[2, count] = status
        count += 1
        position += piece[1]
    return count, position, False
