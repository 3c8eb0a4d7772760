"""The file ``sync-point``: how far the log is known to be synced and committed (docs/formats/records.md).

Two sectors are written in turn and not synced after appends, so that a crash destroys at most one. Behind the sync point a
tail may be torn; before it, what does not fit is damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from penstock.binary import Bytes
from penstock.formats.records.checksum import crc32c
from penstock.model import INT64_MAX

SLOT_SIZE: Final = 512
SIZE: Final = 2 * SLOT_SIZE
MARKER: Final = b"PSY4"
VERSION: Final = 1
_FIELDS: Final = Struct(
    "<4sIQQQQQ"
)  # marker, version, sequence, synced, segment, offset, committed
_CHECKSUM: Final = Struct("<II")  # checksum, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedTo:
    """Everything up to an entry is synced; everything up to the commit floor is committed."""

    sequence: int = 0  # grows with every write; the two sectors take turns
    index: int = 0  # of the last synced entry; 0: none
    segment: int = 0  # first index of the segment that the offset is in
    offset: int = 0  # where the next record begins
    commit_floor: int = 0

    def __post_init__(self) -> None:
        values = (self.sequence, self.index, self.segment, self.offset, self.commit_floor)
        assert all(0 <= value <= INT64_MAX for value in values)


class SyncPoints(NamedTuple):
    """What a file says: the newest whole sector, and the sectors that are damaged."""

    newest: SyncedTo | None
    damaged: tuple[int, ...]  # offsets of sectors; one alone is what a crash may leave


def encode_sync_point(point: SyncedTo) -> tuple[int, bytes]:
    """Return the offset of the sector whose turn it is, and its bytes."""
    fields = _FIELDS.pack(
        MARKER,
        VERSION,
        point.sequence,
        point.index,
        point.segment,
        point.offset,
        point.commit_floor,
    )
    sector = (fields + _CHECKSUM.pack(crc32c(fields), 0)).ljust(SLOT_SIZE, b"\x00")
    return (point.sequence % 2) * SLOT_SIZE, sector


def decode_sync_point(data: Bytes) -> SyncPoints:
    """Return what the file says. A sector of zeros was never written; anything else that is not whole is damaged."""
    points, damaged = [], []
    for at in (0, SLOT_SIZE):
        sector = bytes(data[at : at + SLOT_SIZE])
        point = _decode_sector(sector)
        if point is not None and point.sequence % 2 * SLOT_SIZE == at:
            points.append(point)
        elif point is not None or sector.strip(b"\x00") or len(sector) < SLOT_SIZE:
            damaged.append(at)
    newest = max(points, key=lambda point: point.sequence, default=None)
    return SyncPoints(newest, tuple(damaged))


def _decode_sector(sector: bytes) -> SyncedTo | None:
    if len(sector) < SLOT_SIZE or sector[_FIELDS.size + _CHECKSUM.size :].strip(b"\x00"):
        return None
    marker, version, sequence, index, segment, offset, committed = _FIELDS.unpack_from(sector)
    stored, zero = _CHECKSUM.unpack_from(sector, _FIELDS.size)
    if (marker, version, zero) != (MARKER, VERSION, 0) or crc32c(sector[: _FIELDS.size]) != stored:
        return None
    if max(sequence, index, segment, offset, committed) > INT64_MAX:
        return None
    return SyncedTo(
        sequence=sequence, index=index, segment=segment, offset=offset, commit_floor=committed
    )
