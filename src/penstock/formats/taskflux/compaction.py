"""The compaction sidecar: what ties a generation 2 log to the snapshot before it.

Ours, not TaskFlux's: a log of generation 2 does not store the index of its first record, so a crash
between the rename of a new snapshot and the shortening of the log would apply records twice. The
sidecar says where the log began before; docs/formats/compaction.md has its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.binary import Bytes, checksum, hexadecimal
from penstock.errors import (
    CorruptData,
    ForeignWrite,
    InvalidValue,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
from penstock.model import Index, SnapshotPoint, Term

FILE_NAME: Final = "penstock.compaction"
MARKER: Final = b"PSCW"
VERSION: Final = 1
# version, snapshot index, snapshot term, first index of the log, records in it or -1
_FIELDS: Final = Struct(">iqqqq")
SIZE: Final = 4 + _FIELDS.size + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction under way.

    While the snapshot on the disk is ``point``, the log begins at ``first``, unless it has been
    shortened: that happens only once ``count`` is set, and then it holds fewer records than that.
    """

    point: SnapshotPoint
    first: Index
    count: int | None  # records in the log when its shortening began; None before

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.point.index + 1 or (
            self.count is not None and self.count < 0
        ):
            raise InvalidValue(f"a log from {self.first} on with {self.count} records cannot be")

    def log_first(self, found: SnapshotPoint | None, count: int) -> Index | None:
        """Return the index of the log's first record, or ``None`` if the snapshot alone tells.

        ``found`` is the snapshot on the disk, ``count`` the number of whole records in the log.
        Raises ``CorruptData`` if that is neither the old log nor the shortened one.
        """
        if found != self.point:
            return None  # the new snapshot never came into place
        if self.count is None or count == self.count:
            return self.first
        shortened = max(0, self.count - (self.point.index + 1 - self.first))
        if count == shortened:
            return None
        raise ForeignWrite(
            "the log is neither the one before its compaction nor the one after: another program wrote here before the"
            " compaction was finished, or the disk lost data; salvage with 'penstock repair'",
            expected=f"{self.count} or {shortened} whole records",
            found=str(count),
        )


def encode_compaction(compaction: Compaction) -> bytes:
    """Return the sidecar file."""
    fields = _FIELDS.pack(
        VERSION,
        compaction.point.index,
        compaction.point.term,
        compaction.first,
        -1 if compaction.count is None else compaction.count,
    )
    return MARKER + fields + checksum(fields).to_bytes(4, "big")


def decode_compaction(data: Bytes) -> Compaction:
    """Return what a whole sidecar says. Raises ``BadData``."""
    if bytes(data[:4]) != MARKER[: len(data)]:
        raise UnknownFormat(
            "not a compaction sidecar",
            offset=0,
            expected=hexadecimal(MARKER),
            found=hexadecimal(data[:4]),
        )
    if len(data) < SIZE:
        raise TruncatedData(
            "the file ends inside the sidecar", offset=len(data), expected=f"{SIZE} bytes"
        )
    stored, actual = int.from_bytes(data[SIZE - 4 : SIZE], "big"), checksum(data[4 : SIZE - 4])
    if stored != actual or len(data) > SIZE:
        raise CorruptData(
            "sidecar checksum or size does not match",
            offset=SIZE - 4,
            expected=f"{actual:08X}, {SIZE} bytes",
            found=f"{stored:08X}, {len(data)} bytes",
        )
    version, index, term, first, count = _FIELDS.unpack(bytes(data[4 : SIZE - 4]))
    if version != VERSION:
        raise UnsupportedVersion(
            "unsupported sidecar version", offset=4, expected=str(VERSION), found=str(version)
        )
    try:
        return Compaction(
            point=SnapshotPoint(index=Index(index), term=Term(term)),
            first=Index(first),
            count=None if count == -1 else count,
        )
    except InvalidValue as error:
        raise CorruptData(str(error), offset=8) from None
