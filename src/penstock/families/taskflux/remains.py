"""What is provably whole in a place of a log that is not.

A checksum covers a record's payload alone. Where marker or length is wrong, it still proves the payload, if
one can guess where that ends.
"""

from __future__ import annotations

from penstock.binary import CHECKSUM_START, checksum
from penstock.families.taskflux.read import Found, follower
from penstock.formats.taskflux.log import RECORD_MARKER, Status
from penstock.formats.taskflux.log_scan import RECORD_SIZE_BELIEVED, scan
from penstock.storage.files import opened


def is_whole(found: Found) -> bool:
    """Return whether the checksum proves what an entry says, whatever its term is."""
    is_late = found.status in (Status.FALLING_TERM, Status.BAD_TERM) and found.is_record
    return found.status is Status.OK or is_late


def remains(found: Found) -> list[Found]:
    """Return what is whole in a place that is not, if its first checksum still matches something.

    Marker and length are not covered by it: with one of them wrong the payload is proven all the same,
    and behind a length that was too large stand the records that it swallowed.
    """
    layout, header = found.log.layout, found.log.layout.record_header
    if not layout.is_marked or found.size < header.size:
        return []
    with opened(found.log.path) as file:
        data = file.read(found.offset, min(found.size, RECORD_SIZE_BELIEVED))
    _, term, stored, length = header.unpack_from(data)
    end = _proven_end(data, header.size, length, stored)
    if end is None:
        return []
    payload = data[header.size : end]
    kept = [Found(found.log, found.offset, end, Status.OK, found.index, term, payload)]
    rest = scan(data, layout, start=end, term=max(0, term), size=found.size)
    for offset, size, status, term, length in rest:
        payload = data[offset + size - length : offset + size]
        index = follower(kept[-1])
        kept.append(Found(found.log, found.offset + offset, size, status, index, term, payload))
    return kept


def _proven_end(data: bytes, start: int, length: int, stored: int) -> int | None:
    """Return where a payload that begins at ``start`` ends, if some place is proven by the checksum."""
    ends = {start + length, len(data)}
    end = data.find(RECORD_MARKER, start)
    while end >= 0:
        ends.add(end)
        end = data.find(RECORD_MARKER, end + 1)
    register, last = CHECKSUM_START, start
    for end in sorted(ends):
        if start <= end <= len(data):
            register, last = checksum(data[last:end], register), end
            if register == stored:
                return end
    return None
