"""The sync point: how far a log was known to be on the disk.

Ours, not TaskFlux's. A log cannot tell a torn tail, which nobody was promised, from damage to
entries that were acknowledged; its last records have nothing behind them that could vouch for them. This
small file beside the log vouches: what it covers was synced before it was written. It is itself written
without a sync of its own, so it may lag behind; it never runs ahead (docs/formats/sync-point.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.binary import Bytes, checksum
from penstock.errors import InvalidValue
from penstock.model import NO_INDEX, Index, SnapshotPoint, Term

FILE_NAME: Final = "penstock.synced"
MARKER: Final = b"PSSY"
VERSION: Final = 1
SLOT_SIZE: Final = 512  # a sector, so that a torn write spoils one slot and leaves the other
SIZE: Final = 2 * SLOT_SIZE
# version, sequence, last synced index, last committed index known, then index and term of the
# snapshot in place and of the one that is about to take its place; index -1 for none
_FIELDS: Final = Struct(">iqqqqqqq")


@dataclass(slots=True, kw_only=True)
class SyncPoint:
    """Every entry up to ``synced`` was on the disk, every entry up to ``committed`` on a majority."""

    sequence: int = 0  # grows with every write; the two slots take turns
    synced: Index = NO_INDEX
    committed: Index = NO_INDEX
    # Copies of what the snapshot says of itself: generation 3 has no checksum over that.
    snapshot: SnapshotPoint | None = None
    pending: SnapshotPoint | None = None  # one that may be in place already, or never be

    def __post_init__(self) -> None:
        if self.sequence < 0 or min(self.synced, self.committed) < NO_INDEX:
            raise InvalidValue(f"a sync point at {self.synced} and {self.committed} cannot be")


def encode_sync_point(point: SyncPoint) -> tuple[int, bytes]:
    """Return the offset of the slot whose turn it is, and its bytes."""
    fields = _FIELDS.pack(
        VERSION,
        point.sequence,
        point.synced,
        point.committed,
        *_pack(point.snapshot),
        *_pack(point.pending),
    )
    slot = MARKER + fields + checksum(fields).to_bytes(4, "big")
    return (point.sequence % 2) * SLOT_SIZE, slot


def _pack(point: SnapshotPoint | None) -> tuple[int, int]:
    return (NO_INDEX, 0) if point is None else (point.index, point.term)


def _unpack(index: int, term: int) -> SnapshotPoint | None:
    if index == NO_INDEX and term == 0:
        return None
    return SnapshotPoint(index=Index(index), term=Term(term))


def decode_sync_point(data: Bytes) -> SyncPoint | None:
    """Return the newest whole slot; ``None`` if there is none, which a crash at its birth may leave."""
    points = [_decode_slot(data[at : at + SLOT_SIZE]) for at in (0, SLOT_SIZE)]
    return max((p for p in points if p is not None), key=lambda p: p.sequence, default=None)


def _decode_slot(slot: Bytes) -> SyncPoint | None:
    fields = bytes(slot[4 : 4 + _FIELDS.size])
    stored = bytes(slot[4 + _FIELDS.size : 8 + _FIELDS.size])
    if bytes(slot[:4]) != MARKER or checksum(fields).to_bytes(4, "big") != stored:
        return None
    version, sequence, synced, committed, *points = _FIELDS.unpack(fields)
    if version != VERSION:
        return None
    try:
        return SyncPoint(
            sequence=sequence,
            synced=Index(synced),
            committed=Index(committed),
            snapshot=_unpack(*points[:2]),
            pending=_unpack(*points[2:]),
        )
    except InvalidValue:
        return None
