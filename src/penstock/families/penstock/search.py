"""Behind damage: where the next entry of a log begins. Only ``verify``, ``repair`` and ``dump`` go on behind damage.

A payload may contain whole records, even whole logs. A record is believed to be an entry only if the chain proves it: the damaged
bytes in front of it still show the head checksum that it continues, or, where they were wiped out, the records from there on
lead to the end of the segment.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import BadData
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.header import (
    HEADER_SIZE,
    MARKER,
    Header,
    Kind,
    check_body,
    decode_header,
)
from penstock.formats.records.read import Chain, End, Stop, collect, find_record, walk

_CHECKSUM: Final = Struct("<I")
_PREVIOUS_AT: Final = 44


class Lost(NamedTuple):
    """A damaged place: where it begins, and the index of the entry that should be there."""

    offset: int
    next_index: int


def find_entry(data: bytes, lost: Lost, start: int) -> int | None:
    """Return where the first entry from ``start`` on begins, or None. Records in payloads are passed over."""
    offset = find_record(data, start)
    while offset is not None:
        header = whole_record(data, offset)
        behind = offset + 8
        if header is not None and header.kind < Kind.SNAPSHOT_START:
            end = run_end(data, offset)
            if _is_entry(data, lost, offset, header, end):
                return offset
            # What continues a record that is no entry is none either.
            behind = max(behind, end.position)
        offset = find_record(data, behind)
    return None


def whole_record(data: bytes, offset: int) -> Header | None:
    """Return the header of a whole record, or None."""
    try:
        header = decode_header(data, offset)
        check_body(data, offset, header)
    except BadData:
        return None
    return header


def run_end(data: bytes, offset: int) -> End:
    """Return where the records that continue each other from ``offset`` on end."""
    return collect(walk(data, offset=offset))[1]


def _is_entry(data: bytes, lost: Lost, offset: int, header: Header, end: End) -> bool:
    """Return whether a whole record behind a damaged place is an entry of the log."""
    lost_count = header.index - lost.next_index
    if not 1 <= lost_count <= (offset - lost.offset) // HEADER_SIZE:
        return False
    if _is_linked(data, lost.offset, offset, header.previous):
        return True
    return not _has_header(data, lost.offset) and reaches_end(data, end)


def _is_linked(data: bytes, start: int, stop: int, previous: int) -> bool:
    """Return whether a header in a damaged stretch shows this head checksum, stored or computed."""
    if crc32c(data[start + 8 : start + HEADER_SIZE]) == previous:
        return True
    wanted = _CHECKSUM.pack(previous)
    at = data.find(wanted, start, stop)
    while at >= 0:
        if at % 8 == 4:
            return True
        at = data.find(wanted, at + 1, stop)
    return False


def _has_header(data: bytes, offset: int) -> bool:
    """Return whether the beginning of a damaged record can be recognised: then its checksum must link what follows."""
    head = data[offset : offset + HEADER_SIZE]
    if head.startswith(MARKER):
        return True
    return len(head) == HEADER_SIZE and crc32c(head[8:]) == _CHECKSUM.unpack_from(head, 4)[0] != 0


def reaches_end(data: bytes, end: End) -> bool:
    """Return whether a run of records leads to the end of the segment, or to a damaged record that continues it."""
    if end.stop is not Stop.DAMAGE:
        return True
    chain, offset = end.chain, end.position
    if chain is None or whole_record(data, offset) is not None:
        return False
    return data[offset + _PREVIOUS_AT : offset + _PREVIOUS_AT + 4] == _CHECKSUM.pack(chain.checksum)


def continues(data: bytes, offset: int, chain: Chain | None) -> bool:
    """Return whether a whole record at ``offset`` is the next one of a chain."""
    header = whole_record(data, offset)
    if header is None or chain is None:
        return False
    return (header.previous, header.index) == (chain.checksum, chain.index + 1)
