"""The journal of a classic queue, ``journal.jif``: what was published, delivered and acknowledged.

This module owns the journal's records, and what index segments have in common with it: statuses,
kinds, pieces, columns and the fields of a publish record. ``scan`` is the plain reader;
``scan_journal_columns`` gives the same answers in columns, by a kernel (a property test holds the
two together). What an embedded message means is not known here (docs/formats/rabbitmq.md).

There is no checksum and no marker, so a scan cannot go on behind damage. It ends in one piece that
holds the rest of the file: torn, zeros, or no record. ``proof`` tells where records begin again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NewType

from penstock.binary import UINT64, Bytes, hexadecimal
from penstock.errors import InvalidValue
from penstock.formats.kernel import BATCH_ROWS, scan_in_batches
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

PUBLISH_FIELDS: Final = Struct(">16sQII")
"""Message id, expiry in microseconds, size of the body, length of the embedded message."""

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


def begins_like_message(data: Bytes, offset: int, length: int) -> bool:
    """Return whether what could be a message begins like one; nothing behind that is looked at."""
    return length >= 2 and data[offset] == TERM_MARKER and data[offset + 1] in TERM_TAGS


# --- one by one ----------------------------------------------------------------------------------


def scan(
    data: Bytes, *, start: int = 0, stop: int | None = None, size: int | None = None
) -> Generator[Piece, None, int]:
    """Yield every piece that begins in ``[start, stop)``; together they cover the file.

    ``start`` must be a true boundary: 0, or what a scan returned. ``size`` is the file's end if the data
    ends earlier. Returns where it stopped: before ``stop`` and the file's end only if more data is
    needed to judge what is there.
    """
    end = len(data)
    size = end if size is None else size
    stop = size if stop is None else stop
    position = start
    while position < stop and position < size:
        piece = _piece(data, position, end, size)
        if piece is None:
            return position
        yield piece
        position += piece.size
    return position


def _piece(data: Bytes, position: int, end: int, size: int) -> Piece | None:
    """Return the piece at ``position``, or ``None`` if only more data can tell what it is."""
    if position + WORD_SIZE > size:
        return rest(data, position, Status.TORN, size)
    if position + WORD_SIZE > end:
        return None
    (word,) = UINT64.unpack_from(data, position)
    kind, sequence = Kind(word >> 62), SequenceNumber(word & SEQUENCE_MAX)
    if kind in (Kind.DELIVER, Kind.ACK):
        return Piece(position, WORD_SIZE, Status.OK, kind, sequence, 0, 0, 0, b"")
    body = position + PUBLISH_SIZE
    if body > size:
        return rest(data, position, Status.TORN, size)
    if body > end:
        return None
    if not any(data[position:body]):
        return rest(data, position, Status.BAD_RECORD, size)
    return publish_piece(data, position, PUBLISH_SIZE, kind, sequence, size)


def publish_piece(
    data: Bytes,
    position: int,
    publish_size: int,
    kind: Kind,
    sequence: SequenceNumber,
    size: int,
) -> Piece | None:
    """Return a publish record whose fields are there, in a journal and in a segment alike."""
    body = position + publish_size
    fields = PUBLISH_FIELDS.unpack_from(data, body - PUBLISH_FIELDS.size)
    message_id, expiry_us, body_size, length = fields
    follower = body + length
    if follower > size:
        return rest(data, position, Status.TORN, size)
    if follower > len(data):
        return None
    is_good = length == 0 or begins_like_message(data, body, length)
    status = Status.OK if is_good else Status.BAD_MESSAGE
    return Piece(
        position, follower - position, status, kind, sequence,
        expiry_us, body_size, length, message_id,
    )  # fmt: skip


def rest(data: Bytes, position: int, status: Status, size: int) -> Piece | None:
    """Return the rest of the file as one piece: zeros if it is only zeros, else of ``status``.

    ``None`` means that the data ends before the file and holds only zeros so far.
    """
    end = len(data)
    if not bytes(data[position:end]).strip(b"\x00"):
        if end < size:
            return None
        status = Status.ZEROS
    return Piece(position, size - position, status, Kind.NONE, SequenceNumber(0), 0, 0, 0, b"")


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
    interpreted: bool = False,
) -> Generator[PieceColumns, None, int]:
    """Yield what ``scan`` yields, in batches of columns; returns what ``scan`` returns.

    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
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
        interpreted=interpreted,
    )


# What the kernel knows as plain numbers.
_OK, _BAD_MESSAGE, _BAD_RECORD, _TORN, _ZEROS, _ = map(int, Status)
_NONE = int(Kind.NONE)


def _journal_kernel(data: Any, position: Any, stop: Any, end: Any, size: Any, rows: Any) -> Any:
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
        kind = _NONE
        sequence = 0
        expiry = 0
        body_size = 0
        length = 0
        follower = size
        body = position + 40
        if position + 8 > size:
            status = _TORN
        elif position + 8 > end:
            return count, position, False
        elif data[position] >= 128:
            kind = data[position] // 64 * 1
            follower = position + 8
        elif body > size:
            status = _TORN
        elif body > end:
            return count, position, False
        else:
            i = position + 24
            high = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            i += 4
            low = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            expiry = ((high - ((high >> 31) << 32)) << 32) | low
            i += 4
            body_size = (
                data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            )
            i += 4
            length = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            zero = expiry == 0 and body_size == 0 and length == 0
            i = position
            while zero and i < position + 24:
                zero = data[i] == 0
                i += 1
            if zero:
                status = _BAD_RECORD
            elif body + length > size:
                status = _TORN
                expiry = 0
                body_size = 0
                length = 0
            elif body + length > end:
                return count, position, False
            else:
                kind = data[position] // 64 * 1
                follower = body + length
                if length > 0:
                    tag = data[body + 1] if length >= 2 else 0
                    if data[body] != 131 or (tag != 104 and tag != 80):
                        status = _BAD_MESSAGE
        if kind == _NONE:
            i = position
            while i < end and data[i] == 0:
                i += 1
            if i == end:
                if end < size:
                    return count, position, False
                status = _ZEROS
        else:
            high = (
                data[position] % 64 * 0x1000000
                + data[position + 1] * 0x10000
                + data[position + 2] * 0x100
                + data[position + 3]
            )
            i = position + 4
            low = data[i] * 0x1000000 + data[i + 1] * 0x10000 + data[i + 2] * 0x100 + data[i + 3]
            sequence = high * 0x100000000 + low
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
