"""Logs of both generations on a real or a simulated disk, for tests that hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import segment_name
from penstock.formats.taskflux.sync_point import SIZE, SyncPoint, encode_sync_point
from penstock.model import Index, SnapshotPoint, Term
from penstock.storage.files import Files
from penstock.storage.log import LogLimits
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog

AnyLog = SingleLog | SegmentedLog
Content = dict[int, tuple[int, bytes]]
"""Index -> (term, payload)."""

SMALL = LogLimits(soft=512, hard=1024, growth=256)
WIDE = LogLimits(soft=2**20, hard=2**21, growth=2**20)
"""Files that never have to grow or to be sealed in a small test."""

# The example of the format pages: three entries of two terms. In generation 2 two of them are committed.
EXAMPLE_2 = bytes.fromhex(
    "1276AD55 00000001 00000001"
    "AAF534C4 00000001 A6E07439 00000025"
    "43066F726465727300000001 00000064FFFFFFFF01 FFFFFFFFFFFFFFF6 000000000000000A"
    "AAF534C4 00000001 C26B0C99 00000016 41066F7264657273 0000000000000005 000000026869"
    "AAF534C4 00000002 D2490BA5 00000016 52066F7264657273 0000000000000005 000000026869"
    "00000000"
)
EXAMPLE_3 = bytes.fromhex(
    "1276AD55 00000001"
    "AAF534C4 0000000000000001 A6E07439 00000025"
    "43066F726465727300000001 00000064FFFFFFFF01 FFFFFFFFFFFFFFF6 000000000000000A"
    "AAF534C4 0000000000000001 C26B0C99 00000016 41066F7264657273 0000000000000005 000000026869"
    "AAF534C4 0000000000000002 F6AA1075 00000010 52066F7264657273 0000000000000001"
    "00000000"
)
SEGMENT = segment_name(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStore:
    """Where one log is kept; ``open`` opens it as often as a test likes."""

    generation: Generation
    files: Files
    directory: Path
    limits: LogLimits = SMALL

    @property
    def path(self) -> Path:
        """What the log is opened by: a file in generation 2, a directory in generation 3."""
        return self.directory / "log.raft" if self.generation is Generation.TWO else self.directory

    def open(self, snapshot: SnapshotPoint | None = None) -> AnyLog:
        kind = SingleLog if self.generation is Generation.TWO else SegmentedLog
        return kind(self.files, self.path, snapshot, self.limits)


def content(log: AnyLog) -> Content:
    """Return everything that a log holds."""
    found: Content = {}
    index = log.first
    while index < log.end:
        for entry in log.read(index, log.end):
            found[entry.index] = (entry.term, entry.payload)
            index = Index(entry.index + 1)
    return found


def append(log: AnyLog, term: int, *payloads: bytes) -> None:
    log.append(Term(term), payloads)


def point(index: int, term: int = 1) -> SnapshotPoint:
    return SnapshotPoint(index=Index(index), term=Term(term))


def sync_point_file(
    synced: int, committed: int = -1, snapshot: SnapshotPoint | None = None
) -> bytes:
    """Return the companion file that vouches for entries up to ``synced``, and for a snapshot."""
    known = SyncPoint(
        sequence=1, synced=Index(synced), committed=Index(committed), snapshot=snapshot
    )
    offset, slot = encode_sync_point(known)
    return (bytes(offset) + slot).ljust(SIZE, b"\x00")


def flipped(data: bytes, bit: int) -> bytes:
    """Return ``data`` with one bit turned over; bits count from the first byte's lowest."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
