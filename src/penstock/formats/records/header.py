"""The 64 bytes in front of every record: size, kind, place in the log, checksums, chain (docs/formats/records.md).

The head checksum covers the header alone, so that ``size`` is proven before it is used. ``previous`` is the head
checksum of the record before: a swapped, stale or missing piece of a log is found.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

from google_crc32c import value as checksum_of_bytes

from penstock.binary import Bytes, hexadecimal
from penstock.errors import BadRecord, TruncatedData
from penstock.formats.records.checksum import crc32c

HEADER_SIZE: Final = 64
RECORD_SIZE_MAX: Final = 32 * 2**20
"""Bounds what a reader must hold to check one record."""

MARKER: Final = b"PSK4"
VERSION: Final = 1
TIME_MAX: Final = 2**53
"""The last millisecond of the log clock: the largest integer of canonical JSON, which a snapshot writes it in."""

COMPRESSED: Final = 0x01  # reserved
ENCRYPTED: Final = 0x02  # reserved
SKIPPABLE: Final = 0x80
"""A reader that does not know the kind may skip the record."""
FLAGS: Final = COMPRESSED | ENCRYPTED | SKIPPABLE

LOCAL_KIND_MIN: Final = 128
"""The first of the kinds that are local to a file: they are not replicated and not part of the log's chain."""

MARKER_NUMBER: Final = int.from_bytes(MARKER, "little")
unpack_header = Struct("<IIIBBHqqqIIIIQ").unpack_from  # for readers, interpreted and compiled
_CHECKED: Final = Struct(
    "<IBBHqqqIIIIQ"
)  # the same from the size on: what the head checksum covers
_FRONT: Final = Struct("<4sI")


class Kind(IntEnum):
    """What a record is."""

    EMPTY = 0
    ADD = 1
    REMOVE = 2
    RETURN = 3
    MOVE = 4
    QUEUE = 5
    DELETE = 6
    MEMBERS = 7
    ACCESS = 8
    DELIVER = 9
    SET = 10
    ENVELOPE = 11
    SNAPSHOT_START = 128
    SNAPSHOT_END = 129
    PRODUCERS = 130
    FOOTER = 131
    PAGE_CHECKPOINT = 132


class Header(NamedTuple):
    """A decoded header. A NamedTuple, because one is built for every record that is read."""

    size: int
    kind: int  # a number that ``Kind`` does not have is legal; ``decode_change`` judges it
    flags: int
    version: int
    index: int  # type: ignore[assignment] # hides a method of tuples that nothing calls
    term: int
    time_ms: int
    body_checksum: int
    previous: int
    queue_id: int
    principal_id: int
    first_id: int
    checksum: int  # the head checksum


def decode_header(data: Bytes, offset: int = 0) -> Header:
    """Check the header at ``offset`` and return it. Raises ``BadRecord``, or ``TruncatedData`` if the bytes end in it.

    The body is not looked at; ``check_body`` compares its checksum.
    """
    if len(data) - offset < HEADER_SIZE:
        raise TruncatedData(
            "the bytes end inside a record header",
            offset=offset,
            expected=f"{HEADER_SIZE} bytes",
            found=str(max(0, len(data) - offset)),
        )
    (
        marker, checksum, size, kind, flags, version, index, term, time_ms,
        body_checksum, previous, queue_id, principal_id, first_id,
    ) = unpack_header(data, offset)  # fmt: skip
    if marker != MARKER_NUMBER:
        raise BadRecord(
            "not a record",
            offset=offset,
            expected=hexadecimal(MARKER),
            found=hexadecimal(data[offset : offset + 4]),
        )
    actual = crc32c(data[offset + 8 : offset + HEADER_SIZE])
    if actual != checksum:
        raise BadRecord(
            "head checksum does not match",
            offset=offset + 4,
            expected=f"{actual:08X}",
            found=f"{checksum:08X}",
        )
    header = Header(
        size, kind, flags, version, index, term, time_ms,
        body_checksum, previous, queue_id, principal_id, first_id, checksum,
    )  # fmt: skip
    if not is_possible(size, flags, index, term, time_ms):
        raise _explained(header, offset)
    return header


def is_possible(size: Any, flags: Any, index: Any, term: Any, time_ms: Any) -> Any:
    """Return whether a header may have these values. Also a part of the kernel that scans records."""
    if size < HEADER_SIZE or size > RECORD_SIZE_MAX or size % 8 or flags & ~FLAGS:
        return False
    return index >= 0 and term >= 0 and 0 <= time_ms and time_ms <= TIME_MAX  # noqa: SIM300


def _explained(header: Header, offset: int) -> BadRecord:
    """Return the error for a header whose checksum matches and whose values cannot be."""
    if not HEADER_SIZE <= header.size <= RECORD_SIZE_MAX or header.size % 8:
        expected = f"a multiple of 8 from {HEADER_SIZE} to {RECORD_SIZE_MAX}"
        return BadRecord(
            "impossible record size", offset=offset + 8, expected=expected, found=str(header.size)
        )
    if header.flags & ~FLAGS:
        return BadRecord(
            "unknown flags",
            offset=offset + 13,
            expected=f"bits of {FLAGS:02X}",
            found=f"{header.flags:02X}",
        )
    return BadRecord(
        "index, term or time of a record is out of range",
        offset=offset + 16,
        expected=f"0 or more, and a time up to {TIME_MAX}",
        found=f"{header.index}, {header.term}, {header.time_ms}",
    )


def check_body(data: Bytes, offset: int, header: Header) -> None:
    """Compare the checksum of the body of the record at ``offset``. Raises ``BadRecord`` or ``TruncatedData``."""
    end = offset + header.size
    if end > len(data):
        raise TruncatedData(
            "the bytes end inside a record",
            offset=offset,
            expected=f"{header.size} bytes",
            found=str(len(data) - offset),
        )
    actual = crc32c(data[offset + HEADER_SIZE : end])
    if actual != header.body_checksum:
        raise BadRecord(
            "body checksum does not match",
            offset=offset + 40,
            expected=f"{actual:08X}",
            found=f"{header.body_checksum:08X}",
        )


def encode_header(
    kind: int,
    *,
    body_size: int,
    body_checksum: int,
    index: int,
    term: int,
    time_ms: int,
    previous: int,
    queue_id: int = 0,
    principal_id: int = 0,
    first_id: int = 0,
    flags: int = 0,
) -> bytes:
    """Return the header of a record whose body is written beside it, not copied.

    Its head checksum, which the next record needs as ``previous``, is ``head_checksum`` of it.
    """
    size = HEADER_SIZE + body_size
    assert size <= RECORD_SIZE_MAX
    assert size % 8 == 0
    checked = _CHECKED.pack(
        size, kind, flags, VERSION, index, term, time_ms,
        body_checksum, previous, queue_id, principal_id, first_id,
    )  # fmt: skip
    return _FRONT.pack(MARKER, checksum_of_bytes(checked)) + checked


def head_checksum(record: Bytes) -> int:
    """Return the head checksum that a header or a record has."""
    checksum: int = _FRONT.unpack_from(record)[1]
    return checksum


def encode_record(
    kind: int,
    body: bytes,
    *,
    index: int,
    term: int,
    time_ms: int,
    previous: int,
    queue_id: int = 0,
    principal_id: int = 0,
    first_id: int = 0,
    flags: int = 0,
    body_checksum: int | None = None,
) -> bytes:
    """Return a whole record. ``body_checksum`` is the client's where the body travelled whole."""
    header = encode_header(
        kind,
        body_size=len(body),
        body_checksum=crc32c(body) if body_checksum is None else body_checksum,
        index=index,
        term=term,
        time_ms=time_ms,
        previous=previous,
        queue_id=queue_id,
        principal_id=principal_id,
        first_id=first_id,
        flags=flags,
    )
    return header + body
