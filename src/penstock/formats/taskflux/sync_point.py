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
from penstock.model import NO_INDEX, Index

FILE_NAME: Final = "penstock.synced"
MARKER: Final = b"PSSY"
VERSION: Final = 1
SLOT_SIZE: Final = 512  # a sector, so that a torn write spoils one slot and leaves the other
SIZE: Final = 2 * SLOT_SIZE
# version, sequence, last synced index, last committed index known
_FIELDS: Final = Struct(">iqqq")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPoint:
    """Every entry up to ``synced`` was on the disk, every entry up to ``committed`` on a majority."""

    sequence: int = 0  # grows with every write; the two slots take turns
    synced: Index = NO_INDEX
    committed: Index = NO_INDEX

    def __post_init__(self) -> None:
        if self.sequence < 0 or min(self.synced, self.committed) < NO_INDEX:
            raise InvalidValue(f"a sync point at {self.synced} and {self.committed} cannot be")


def encode_sync_point(point: SyncPoint) -> tuple[int, bytes]:
    """Return the offset of the slot whose turn it is, and its bytes."""
    fields = _FIELDS.pack(VERSION, point.sequence, point.synced, point.committed)
    slot = MARKER + fields + checksum(fields).to_bytes(4, "big")
    return (point.sequence % 2) * SLOT_SIZE, slot


def decode_sync_point(data: Bytes) -> SyncPoint | None:
    """Return the newest whole slot; ``None`` if there is none, which a crash at its birth may leave."""
    points = [_decode_slot(data[at : at + SLOT_SIZE]) for at in (0, SLOT_SIZE)]
    return max((p for p in points if p is not None), key=lambda p: p.sequence, default=None)


def _decode_slot(slot: Bytes) -> SyncPoint | None:
    fields = bytes(slot[4 : 4 + _FIELDS.size])
    stored = bytes(slot[4 + _FIELDS.size : 8 + _FIELDS.size])
    if bytes(slot[:4]) != MARKER or checksum(fields).to_bytes(4, "big") != stored:
        return None
    version, sequence, synced, committed = _FIELDS.unpack(fields)
    if version != VERSION:
        return None
    try:
        return SyncPoint(sequence=sequence, synced=Index(synced), committed=Index(committed))
    except InvalidValue:
        return None
