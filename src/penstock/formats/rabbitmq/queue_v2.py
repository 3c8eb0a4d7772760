"""Classic queues of version 2: the index ``N.qi`` and the queue's own store ``N.qs``, to be read.

This module owns both layouts. An index has a slot for every sequence number of its segment; an ack
clears the slot, so there is no journal and nothing to merge. A message is in the queue's own store, or
in the shared one if it is large. What a message means is not known here (docs/formats/rabbitmq.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from penstock.binary import Bytes, hexadecimal
from penstock.errors import CorruptData, TruncatedData, UnknownFormat, UnsupportedVersion
from penstock.formats.rabbitmq.journal import (
    SEQUENCE_MAX,
    SequenceNumber,
    begins_like_message,
)

INDEX_MARKER: Final = b"RCQI"
STORE_MARKER: Final = b"RCQS"
VERSION: Final = 2

HEADER: Final = Struct(">4sBQQ")
HEADER_SIZE: Final = 64
"""Room that a header takes: what its fields leave over is zero."""

SLOT: Final = Struct(">BBBB16sIQ")
"""Status, flags, zero, location, where the message is, size of the body, expiry in microseconds."""

RECORD_HEAD: Final = Struct(">IBHB")
"""Length of the message, flags, checksum, zero."""

INDEX_SUFFIX: Final = ".qi"
STORE_SUFFIX: Final = ".qs"

_FLAG: Final = 1
"""The only flag: in a slot the message is persistent, in a store's record there is a checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The sequence numbers of a segment: ``first`` to ``end``."""

    first: SequenceNumber
    end: SequenceNumber


def decode_index_header(data: Bytes) -> Header:
    """Return the header of a ``.qi`` file. Raises ``BadData``."""
    return _decode_header(data, INDEX_MARKER)


def decode_store_header(data: Bytes) -> Header:
    """Return the header of a ``.qs`` file. Raises ``BadData``."""
    return _decode_header(data, STORE_MARKER)


def _decode_header(data: Bytes, marker: bytes) -> Header:
    begin = bytes(data[: len(marker)])
    if not marker.startswith(begin):
        raise UnknownFormat(
            "no file of a version 2 queue",
            offset=0,
            expected=hexadecimal(marker),
            found=hexadecimal(begin),
        )
    if len(data) < HEADER_SIZE:
        raise TruncatedData(
            "the file ends inside the header",
            offset=len(data),
            expected=f"{HEADER_SIZE} bytes",
            found=f"{len(data)}",
        )
    _, version, first, end = HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersion(
            "a queue of another version", offset=4, expected=f"{VERSION}", found=f"{version}"
        )
    if not first < end <= SEQUENCE_MAX + 1:
        raise CorruptData(
            "sequence numbers that cannot be",
            offset=5,
            expected="the first below the end",
            found=f"{first} and {end}",
        )
    return Header(first=SequenceNumber(first), end=SequenceNumber(end))


# --- the index -----------------------------------------------------------------------------------


class Location(IntEnum):
    """Where the message of a slot is."""

    MEMORY = 0  # nowhere on the disk: it was transient
    SHARED_STORE = 1
    QUEUE_STORE = 2


class SlotStatus(IntEnum):
    """What is to be said of a slot that is not empty, or of what is behind the slots."""

    OK = 0
    BAD_STATUS = 1  # neither there nor empty
    BAD_LOCATION = 2  # a location that is none of the three
    TORN = 3  # the file ends inside the slot
    LEFTOVER = 4  # bytes behind the last slot

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


class Slot(NamedTuple):
    """A message of the queue, or damage. Fields that it does not have are 0 or empty."""

    offset: int
    size: int
    status: SlotStatus
    sequence: SequenceNumber
    is_persistent: bool
    location: Location
    message_id: bytes  # in the shared store
    message_offset: int  # in the queue's own store: where the record begins
    message_length: int  # in the queue's own store: without the record's head
    body_size: int
    expiry_us: int


def scan_index(data: Bytes, header: Header) -> Iterator[Slot]:
    """Yield every slot that is not empty, damage included.

    An empty slot was never written, or its message is acked. The file may end behind any slot: those
    that are missing are empty.
    """
    slots_end = HEADER_SIZE + SLOT.size * (header.end - header.first)
    end = min(len(data), slots_end)
    for offset in range(HEADER_SIZE, end - SLOT.size + 1, SLOT.size):
        # What an ack clears is the first byte; the others may stay.
        if data[offset]:
            sequence = SequenceNumber(header.first + (offset - HEADER_SIZE) // SLOT.size)
            yield _decode_slot(data, offset, sequence)
    torn = end - (end - HEADER_SIZE) % SLOT.size
    if torn < end and data[torn]:
        sequence = SequenceNumber(header.first + (torn - HEADER_SIZE) // SLOT.size)
        yield _bad_slot(torn, end - torn, SlotStatus.TORN, sequence)
    if len(data) > slots_end and any(data[slots_end:]):
        yield _bad_slot(slots_end, len(data) - slots_end, SlotStatus.LEFTOVER, header.end)


def _decode_slot(data: Bytes, offset: int, sequence: SequenceNumber) -> Slot:
    status, flags, _, code, where, body_size, expiry_us = SLOT.unpack_from(data, offset)
    if status != 1:
        return _bad_slot(offset, SLOT.size, SlotStatus.BAD_STATUS, sequence)
    if code > max(Location):
        return _bad_slot(offset, SLOT.size, SlotStatus.BAD_LOCATION, sequence)
    location = Location(code)
    message_offset, message_length = 0, 0
    if location is Location.QUEUE_STORE:
        message_offset, message_length = _STORE_PLACE.unpack_from(where)
    return Slot(
        offset=offset,
        size=SLOT.size,
        status=SlotStatus.OK,
        sequence=sequence,
        is_persistent=bool(flags & _FLAG),
        location=location,
        message_id=where if location is Location.SHARED_STORE else b"",
        message_offset=message_offset,
        message_length=message_length,
        body_size=body_size,
        expiry_us=expiry_us,
    )


_STORE_PLACE: Final = Struct(">QI")


def _bad_slot(offset: int, size: int, status: SlotStatus, sequence: SequenceNumber) -> Slot:
    return Slot(offset, size, status, sequence, False, Location.MEMORY, b"", 0, 0, 0, 0)


# --- the store -----------------------------------------------------------------------------------


class RecordStatus(IntEnum):
    """What is to be said of a record in the queue's own store."""

    OK = 0
    BAD_CHECKSUM = 1  # the message does not match its checksum
    BAD_LENGTH = 2  # not the length that the index says, or one that cannot be
    BAD_MESSAGE = 3  # without a checksum, and the message does not begin like a message
    TORN = 4  # the file ends inside the record
    ZEROS = 5  # nothing but zeros up to the end

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


class Record(NamedTuple):
    """A record of the store, or the rest of the file."""

    offset: int
    size: int
    status: RecordStatus
    length: int  # of the message, which is the last part of the record


def find_record(data: Bytes, slot: Slot) -> Record:
    """Return the record that a slot with location ``QUEUE_STORE`` points to, whatever is there."""
    assert slot.status is SlotStatus.OK
    assert slot.location is Location.QUEUE_STORE
    offset = slot.message_offset
    if not HEADER_SIZE <= offset < len(data):
        return Record(offset, 0, RecordStatus.TORN, 0)
    record = _record(data, offset)
    if record.status is not RecordStatus.TORN and record.length != slot.message_length:
        return record._replace(status=RecordStatus.BAD_LENGTH)
    return record


def scan_store(data: Bytes) -> Iterator[Record]:
    """Yield every record behind the header, one after the other; they cover the file.

    A length that cannot be takes the rest of the file with it; the index still knows the others.
    """
    position, end = HEADER_SIZE, len(data)
    while position < end:
        record = _record(data, position)
        is_end = record.offset + record.size == end
        if is_end and not bytes(data[position:end]).strip(b"\x00"):
            record = record._replace(status=RecordStatus.ZEROS)
        yield record
        position += record.size


def _record(data: Bytes, offset: int) -> Record:
    end = len(data)
    body = offset + RECORD_HEAD.size
    if body > end:
        return Record(offset, end - offset, RecordStatus.TORN, 0)
    length, flags, stored, _ = RECORD_HEAD.unpack_from(data, offset)
    if length == 0:
        return Record(offset, end - offset, RecordStatus.BAD_LENGTH, 0)
    if length > end - body:
        return Record(offset, end - offset, RecordStatus.TORN, 0)
    message = data[body : body + length]
    if flags & _FLAG:
        is_whole = crc32(message) & 0xFFFF == stored
        status = RecordStatus.OK if is_whole else RecordStatus.BAD_CHECKSUM
    else:
        is_whole = begins_like_message(message, 0, length)
        status = RecordStatus.OK if is_whole else RecordStatus.BAD_MESSAGE
    return Record(offset, RECORD_HEAD.size + length, status, length)


def decode_message(data: Bytes, record: Record) -> bytes:
    """Return the message of a record of status ``OK``, as it is."""
    assert record.status is RecordStatus.OK
    end = record.offset + record.size
    return bytes(data[end - record.length : end])
