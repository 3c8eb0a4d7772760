"""The journal of a classic queue, ``journal.jif``: what was published, delivered and acknowledged.

This module owns the journal's records, and what index segments have in common with it: statuses,
kinds, pieces, columns and the fields of a publish record. ``scan`` yields pieces one by one,
``scan_journal_columns`` columns; both judge what is there by the same functions, ``scan`` interpreted.
What an embedded message means is not known here (docs/formats/rabbitmq.md).

There is no checksum and no marker, so a scan cannot go on behind damage. It ends in one piece that
holds the rest of the file: torn, zeros, or no record. ``proof`` tells where records begin again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NewType

from penstock.binary import UINT64, Bytes, hexadecimal
from penstock.errors import InvalidValue
from penstock.formats import kernel_bytes
from penstock.formats.kernel import BATCH_ROWS, compiled_as, scan_in_batches
from penstock.formats.kernel_bytes import emit
from penstock.model import UINT64_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SequenceNumber = NewType("SequenceNumber", int)
"""The number of a message in its queue, from 0 on; a queue is read in the order of them."""

SEQUENCE_MAX: Final = 2**62 - 1
UINT32_MAX: Final = 2**32 - 1

MESSAGE_ID_SIZE: Final = 16
TERM_MARKER: Final = 131
"""The first byte of every message: the version of the external term format."""

TERM_TAGS: Final = (104, 80)
"""The second byte of every message: it is a tuple, or compressed."""

_TUPLE_TAG, _COMPRESSED_TAG = TERM_TAGS

PUBLISH_FIELDS: Final = Struct(">16sQII")
"""Message id, expiry in microseconds, size of the body, length of the embedded message."""

_FIELDS_BEHIND_ID: Final = PUBLISH_FIELDS.size - MESSAGE_ID_SIZE

WORD_SIZE: Final = UINT64.size
PUBLISH_SIZE: Final = WORD_SIZE + PUBLISH_FIELDS.size
"""A publish record without its embedded message. As many zeros are the end of a journal."""


class Kind(IntEnum):
    """What a record says. The first four are the two bits that a journal record begins with."""

    PUBLISH_PERSISTENT = 0
    PUBLISH_TRANSIENT = 1
    DELIVER = 2
    ACK = 3
    DELIVER_OR_ACK = 4  # in a segment: the first of a message is its deliver, the second its ack
    NONE = 5  # a stretch of the file that is no record


class Status(IntEnum):
    """What is to be said of a record, or of the rest of a file."""

    OK = 0
    BAD_MESSAGE = 1  # a record whose embedded message does not begin like a message
    BAD_RECORD = 2  # no record begins here; this takes the rest of the file with it
    TORN = 3  # the file ends inside the record
    ZEROS = 4  # nothing but zeros up to the end: never written
    BAD_LENGTH = 5  # a record whose message proves another length than it says; no scan yields it

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


class Piece(NamedTuple):
    """A record, or the rest of the file. Fields that its kind does not have are 0 or empty."""

    offset: int
    size: int
    status: Status
    kind: Kind
    sequence: SequenceNumber
    expiry_us: int
    body_size: int
    length: int  # of the embedded message, which is the last part of the piece
    message_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """What a publish record says of its message, in a journal and in a segment alike."""

    message_id: bytes
    is_persistent: bool
    expiry_us: int  # microseconds since 1970; 0 is never
    body_size: int  # of the body alone, wherever the message is
    embedded: bytes  # the message; empty if it is in the message store

    def __post_init__(self) -> None:
        if len(self.message_id) != MESSAGE_ID_SIZE:
            raise InvalidValue(f"a message id of {len(self.message_id)} bytes; it must have 16")
        if not 0 <= self.expiry_us <= UINT64_MAX:
            raise InvalidValue(f"expiry {self.expiry_us} is beyond 64 bits")
        if not 0 <= self.body_size <= UINT32_MAX:
            raise InvalidValue(f"a body of {self.body_size} bytes is beyond 32 bits")
        if len(self.embedded) > UINT32_MAX:
            raise InvalidValue(f"a message of {len(self.embedded)} bytes is beyond 32 bits")
        if self.embedded and not begins_like_message(self.embedded, 0, len(self.embedded)):
            raise InvalidValue(f"a message must be a term, not {hexadecimal(self.embedded[:2])}")


# --- what stands somewhere in a file -------------------------------------------------------------
#
# These functions run as they are for ``scan``, and compiled as parts of the kernels. They return a row: the fields of
# ``Piece`` but the last, as plain numbers, an expiry as the signed integer with its bits.

_OK, _BAD_MESSAGE, _BAD_RECORD, _TORN, _ZEROS, _ = map(int, Status)
_NONE: Final = int(Kind.NONE)
_TRANSIENT: Final = int(Kind.PUBLISH_TRANSIENT)
UNDECIDED: Final = -1
"""The status of a row where only more data can tell what is there."""


_NOT_ZERO: Final = re.compile(rb"[^\x00]")


@compiled_as(kernel_bytes.zeros_end)
def zeros_end(data: Any, start: Any, end: Any) -> Any:
    """Return where the first byte from ``start`` on stands that is not zero, or ``end``."""
    found = _NOT_ZERO.search(data, start, end)
    return end if found is None else found.start()


def begins_like_message(data: Any, offset: Any, length: Any) -> Any:
    """Return whether what could be a message begins like one; nothing behind that is looked at."""
    if length < 2 or data[offset] != TERM_MARKER:
        return False
    return data[offset + 1] == _TUPLE_TAG or data[offset + 1] == _COMPRESSED_TAG


_read_word: Final = Struct(">q").unpack_from
_read_numbers: Final = Struct(">qII").unpack_from
"""Returns the fields of a publish record behind its id."""


def _judge(data: Any, position: Any, end: Any, size: Any) -> Any:
    """Return the row of what stands at ``position`` in a journal."""
    if position + WORD_SIZE > end:
        return no_record(position, _TORN if position + WORD_SIZE > size else UNDECIDED, size)
    (word,) = _read_word(data, position)
    kind = (word >> 62) & 3
    if kind >= 2:
        return position, WORD_SIZE, _OK, kind, word & SEQUENCE_MAX, 0, 0, 0
    body = position + PUBLISH_SIZE
    if word == 0 and body <= end and zeros_end(data, position, body) == body:
        return no_record(position, _BAD_RECORD, size)
    return judge_publish(data, position, body, kind, word & SEQUENCE_MAX, end, size)


def judge_publish(
    data: Any, position: Any, body: Any, kind: Any, sequence: Any, end: Any, size: Any
) -> Any:
    """Return the row of a publish record whose fields end at ``body``, in a journal and in a segment alike."""
    if body > end:
        return no_record(position, _TORN if body > size else UNDECIDED, size)
    expiry, body_size, length = _read_numbers(data, body - _FIELDS_BEHIND_ID)
    follower = body + length
    if follower > end:
        return no_record(position, _TORN if follower > size else UNDECIDED, size)
    is_good = length == 0 or begins_like_message(data, body, length)
    status = _OK if is_good else _BAD_MESSAGE
    return position, follower - position, status, kind, sequence, expiry, body_size, length


def no_record(position: Any, status: Any, size: Any) -> Any:
    """Return the row of the rest of the file, if that is not only zeros."""
    return position, size - position, status, _NONE, 0, 0, 0, 0


def settled(data: Any, piece: Any, end: Any, size: Any) -> Any:
    """Return the status of a row: another than it has where only zeros follow."""
    if piece[3] == _NONE and zeros_end(data, piece[0], end) == end:
        return _ZEROS if end == size else UNDECIDED
    return piece[2]


# --- one by one ----------------------------------------------------------------------------------

Judge = Callable[[Bytes, int, int, int], tuple[int, int, int, int, SequenceNumber, int, int, int]]
"""Returns the row of what stands at a position, before the data's end and the file's."""


# Quicker to take a member from than the enumeration is.
_STATUSES: Final = tuple(Status)
_KINDS: Final = tuple(Kind)


def scan(
    data: Bytes, *, start: int = 0, stop: int | None = None, size: int | None = None
) -> Generator[Piece, None, int]:
    """Yield every piece that begins in ``[start, stop)``; together they cover the file.

    ``start`` must be a true boundary: 0, or what a scan returned. ``size`` is the file's end if the data
    ends earlier. Returns where it stopped: before ``stop`` and the file's end only if more data is
    needed to judge what is there.
    """
    return scan_by(_judge, data, start=start, stop=stop, size=size)


def scan_by(
    judge: Judge, data: Bytes, *, start: int, stop: int | None, size: int | None
) -> Generator[Piece, None, int]:
    """Scan a journal or a segment."""
    end = len(data)
    size = end if size is None else size
    stop = size if stop is None else min(stop, size)
    position = start
    while position < stop:
        row = judge(data, position, end, size)
        _, piece_size, code, kind, sequence, expiry, body_size, length = row
        message_id = b""
        if kind <= _TRANSIENT:
            id_end = position + piece_size - length - _FIELDS_BEHIND_ID
            message_id = bytes(data[id_end - MESSAGE_ID_SIZE : id_end])
        elif kind == _NONE:
            code = settled(data, row, end, size)
            if code == UNDECIDED:
                return position
        yield Piece(
            position, piece_size, _STATUSES[code], _KINDS[kind], sequence,
            expiry & UINT64_MAX, body_size, length, message_id,
        )  # fmt: skip
        position += piece_size
    return position


def decode_publish(data: Bytes, piece: Piece) -> Publish:
    """Return what a publish record of status ``OK`` says, in a journal and in a segment alike."""
    assert piece.status is Status.OK
    assert piece.kind in (Kind.PUBLISH_PERSISTENT, Kind.PUBLISH_TRANSIENT)
    end = piece.offset + piece.size
    return Publish(
        message_id=piece.message_id,
        is_persistent=piece.kind is Kind.PUBLISH_PERSISTENT,
        expiry_us=piece.expiry_us,
        body_size=piece.body_size,
        embedded=bytes(data[end - piece.length : end]),
    )


def encode_publish(sequence: SequenceNumber, publish: Publish) -> bytes:
    kind = Kind.PUBLISH_PERSISTENT if publish.is_persistent else Kind.PUBLISH_TRANSIENT
    record = _encode_word(kind, sequence) + encode_publish_fields(publish)
    # The only record that a reader takes for the end: no broker gives out such an id.
    assert any(record), "a journal cannot hold this record"
    return record


def encode_publish_fields(publish: Publish) -> bytes:
    """Return what follows the head of a publish record, in a journal and in a segment alike."""
    embedded = publish.embedded
    fields = PUBLISH_FIELDS.pack(
        publish.message_id, publish.expiry_us, publish.body_size, len(embedded)
    )
    return fields + embedded


def encode_deliver(sequence: SequenceNumber) -> bytes:
    return _encode_word(Kind.DELIVER, sequence)


def encode_ack(sequence: SequenceNumber) -> bytes:
    return _encode_word(Kind.ACK, sequence)


def _encode_word(kind: Kind, sequence: SequenceNumber) -> bytes:
    assert 0 <= sequence <= SEQUENCE_MAX
    return UINT64.pack(kind << 62 | sequence)


# --- in columns ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceColumns:
    """What ``scan`` yields as one array per field; offsets count from the start of the buffer.

    The message id of a publish record has no column: it is the 16 bytes that begin
    ``length + PUBLISH_FIELDS.size`` before the end of the piece.
    """

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    status: NDArray[np.int64]
    kind: NDArray[np.int64]
    sequence: NDArray[np.int64]
    expiry_us: NDArray[np.uint64]
    body_size: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: NDArray[np.int64] | slice) -> PieceColumns:
        """Return some of the pieces."""
        return PieceColumns(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})

    @classmethod
    def of_rows(cls, rows: NDArray[np.int64]) -> PieceColumns:
        """Return what a kernel wrote; it writes an expiry as the signed integer with its bits."""
        offset, size, status, kind, sequence, expiry_us, body_size, length = rows
        return cls(
            offset=offset,
            size=size,
            status=status,
            kind=kind,
            sequence=sequence,
            expiry_us=expiry_us.view("uint64"),
            body_size=body_size,
            length=length,
        )


def scan_journal_columns(
    data: Bytes | NDArray[np.uint8],
    *,
    start: int = 0,
    stop: int | None = None,
    size: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Generator[PieceColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns what ``scan`` returns.

    Needs numpy and numba, which the ``tables`` extra brings.
    """
    return scan_in_batches(
        _journal_kernel,
        data,
        start=start,
        stop=stop,
        size=size,
        fields=8,
        make=PieceColumns.of_rows,
        room=lambda left: left // WORD_SIZE + 1,
        batch_rows=batch_rows,
    )


def _journal_kernel(data: Any, position: Any, stop: Any, end: Any, size: Any, rows: Any) -> Any:
    """Scan as ``scan`` does, into ``rows``; return rows, position, and whether more rows are to come."""
    count = 0
    while position < stop and position < size:
        if count == rows.shape[1]:
            return count, position, True
        piece = _judge(data, position, end, size)
        status = settled(data, piece, end, size)
        if status == UNDECIDED:
            return count, position, False
        emit(rows, count, piece)
        rows[2, count] = status
        count += 1
        position += piece[1]
    return count, position, False
