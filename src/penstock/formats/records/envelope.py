"""The body of an envelope: several changes under one index (docs/formats/records.md)."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.binary import Bytes
from penstock.errors import BadRecord
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.columns import TWO_U32, ColumnReader, padded
from penstock.formats.records.header import Kind

COUNT_MAX: Final = 16_384
"""Changes of one envelope: bounds the work of one entry."""

KINDS: Final = frozenset((Kind.ADD, Kind.REMOVE, Kind.RETURN, Kind.MOVE, Kind.SET))
"""What an envelope may contain."""

_FRONT: Final = TWO_U32  # count, 0
_PART: Final = Struct("<B3sIQIIII")  # kind, 0, queue, first id, principal, size, checksum, 0
_ZEROS: Final = bytes(3)


class PartBody(NamedTuple):
    """One change of an envelope: what its own record would say of it, and where its body is."""

    kind: int
    queue_id: int
    first_id: int
    principal_id: int
    checksum: int  # of the body; of an add the client's
    start: int
    end: int


def decode_envelope(data: Bytes, start: int, end: int) -> list[PartBody]:
    """Check the frame of an envelope in ``data[start:end]``, and its checksums. Raises ``BadRecord``."""
    reader = ColumnReader(data, start, end, 0)
    at = reader.take(_FRONT.size, "an envelope")
    count, zero = _FRONT.unpack_from(data, at)
    if zero or not 1 <= count <= COUNT_MAX:
        raise BadRecord(
            "impossible number of changes in an envelope",
            offset=at,
            expected=f"1 to {COUNT_MAX}, and 0 behind it",
            found=f"{count}, {zero}",
        )
    parts = [_decode_part(reader) for _ in range(count)]
    if reader.at != end:
        raise BadRecord("bytes left over behind the last change of an envelope", offset=reader.at)
    return parts


def _decode_part(reader: ColumnReader) -> PartBody:
    data = reader.data
    at = reader.take(_PART.size, "an envelope")
    kind, zeros, queue_id, first_id, principal_id, size, checksum, zero = _PART.unpack_from(
        data, at
    )
    if kind not in KINDS or zeros != _ZEROS or zero:
        raise BadRecord("an envelope cannot contain this", offset=at, found=f"kind {kind}")
    start = reader.take(size, "a change in an envelope")
    actual = crc32c(data[start : start + size])
    if actual != checksum:
        raise BadRecord(
            "checksum of a change in an envelope does not match",
            offset=at + 24,
            expected=f"{actual:08X}",
            found=f"{checksum:08X}",
        )
    return PartBody(kind, queue_id, first_id, principal_id, checksum, start, start + size)


class EncodedPart(NamedTuple):
    """One change that goes into an envelope."""

    kind: int
    queue_id: int
    first_id: int
    principal_id: int
    body: bytes
    checksum: int


def encode_envelope(parts: Sequence[EncodedPart]) -> bytes:
    """Return the body of an envelope."""
    pieces = [_FRONT.pack(len(parts), 0)]
    for part in parts:
        front = _PART.pack(
            part.kind, _ZEROS, part.queue_id, part.first_id, part.principal_id,
            len(part.body), part.checksum, 0,
        )  # fmt: skip
        pieces += (front, padded(part.body))
    return b"".join(pieces)
