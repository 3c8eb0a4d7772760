"""What a segment's file says, in columns: read from the file, or from the table of places beside it.

Both ways give the same records. A table is made of the file alone, by whichever thread writes the checkpoint that vouches
for it, and covers the file from its start to where it then ended; what stands behind is read from the file
(docs/formats/paged.md).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import CorruptData
from penstock.formats.rabbitmq.journal import PUBLISH_FIELDS, Kind, PieceColumns, Status
from penstock.formats.rabbitmq.places import Covers, PlaceTable, as_columns
from penstock.formats.rabbitmq.segment import scan_segment_columns
from penstock.storage.files import File
from penstock.storage.paged.bulk_reads import scan_windows

Numbers = NDArray[np.int64]

WINDOW: Final = 2**20
"""Bytes of a segment that are looked at together: with four times as many, the cache of a processor does not hold them,
and that takes half as long again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Publishes:
    """Publish records that were found: one array a field."""

    sequence: Numbers
    place: Numbers  # of the embedded message in its file
    length: Numbers  # of the embedded message; 0 if it is in the store
    expiry_us: NDArray[np.uint64]
    body_size: Numbers
    message_id: Numbers  # two integers each, as ``message_slots.id_columns`` makes them

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def of_pieces(cls, base: int, data: bytes, pieces: PieceColumns, rows: Numbers) -> Publishes:
        """Return those rows of what a scan found in ``data``, which begins at ``base`` of its file."""
        length = pieces.length[rows]
        ends = pieces.offset[rows] + pieces.size[rows]
        raw = np.frombuffer(data, dtype=np.uint8)
        ids = raw[(ends - length - PUBLISH_FIELDS.size)[:, None] + np.arange(16)]
        return cls(
            sequence=pieces.sequence[rows],
            place=base + ends - length,
            length=length,
            expiry_us=pieces.expiry_us[rows],
            body_size=pieces.body_size[rows],
            message_id=ids.view(np.int64).reshape(-1, 2),
        )

    @classmethod
    def joined(cls, parts: Sequence[Publishes]) -> Publishes:
        """Return all of them, one part behind the other; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            sequence=np.concatenate([part.sequence for part in parts]),
            place=np.concatenate([part.place for part in parts]),
            length=np.concatenate([part.length for part in parts]),
            expiry_us=np.concatenate([part.expiry_us for part in parts]),
            body_size=np.concatenate([part.body_size for part in parts]),
            message_id=np.concatenate([part.message_id for part in parts]),
        )

    def chosen(self, rows: NDArray[np.bool_] | Numbers) -> Publishes:
        return Publishes(
            sequence=self.sequence[rows],
            place=self.place[rows],
            length=self.length[rows],
            expiry_us=self.expiry_us[rows],
            body_size=self.body_size[rows],
            message_id=self.message_id[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """Which file it is, and what its numbers mean."""

    path: Path
    queue: int
    number: int
    entry_count: int

    @property
    def first(self) -> int:
        """The first sequence number of the segment."""
        return self.number * self.entry_count


def scan_segment(
    file: File, segment: SegmentFile, *, start: int, end: int
) -> Iterator[tuple[Publishes, Numbers]]:
    """Yield publish records, and the relative numbers of delivers and acks, from ``start`` to ``end``.

    Raises ``CorruptData`` if something there is no record.
    """

    def scan(data: bytes, size: int) -> Generator[PieceColumns, None, int]:
        return scan_segment_columns(
            data, segment=segment.number, entry_count=segment.entry_count, size=size
        )

    for base, data, pieces in scan_windows(file, start=start, end=end, scan=scan, window=WINDOW):
        bad = np.flatnonzero((pieces.status != Status.OK) | (pieces.kind == Kind.NONE))
        if len(bad):
            raise CorruptData(
                "no record of a segment, within what was synced; restore the file",
                path=str(segment.path),
                offset=base + int(pieces.offset[bad[0]]),
            )
        is_publish = pieces.kind != Kind.DELIVER_OR_ACK
        found = Publishes.of_pieces(base, data, pieces, np.flatnonzero(is_publish))
        yield found, pieces.sequence[~is_publish] - segment.first


def segment_table(file: File, segment: SegmentFile, length: int) -> PlaceTable | None:
    """Return the table of the first ``length`` bytes; ``None`` if they are damaged, which is for a start to say."""
    parts: list[Publishes] = []
    actions = np.zeros(segment.entry_count, dtype=np.int64)
    try:
        for found, relatives in scan_segment(file, segment, start=0, end=length):
            parts.append(found)
            actions += np.bincount(relatives, minlength=segment.entry_count)
    except CorruptData:
        return None
    rows = Publishes.joined(parts)
    relative = rows.sequence - segment.first
    ids = np.ascontiguousarray(rows.message_id).view(">u8")
    columns = (
        relative,
        np.minimum(actions[relative], 2),
        rows.place,
        rows.length,
        rows.expiry_us,
        rows.body_size,
        ids[:, 0],
        ids[:, 1],
    )
    return PlaceTable(
        covers=Covers.SEGMENT,
        queue=segment.queue,
        number=segment.number,
        length=length,
        columns=as_columns(columns),
    )


def records_of_table(table: PlaceTable, segment: SegmentFile) -> tuple[Publishes, Numbers] | None:
    """Return what ``scan_segment`` would find where the table was made; ``None`` if that cannot be."""
    if len(table.columns) != 8:
        return None
    columns = [column.view(np.int64) for column in table.columns]
    relative, actions, place, length, expiry, body_size, first_half, second_half = columns
    is_sound = (
        _within(relative, segment.entry_count - 1)
        and _within(actions, 2)
        and _within(length, table.length)
        and _within(place, table.length)
        and _within(place + length, table.length)
        and _within(body_size, 2**32 - 1)
    )
    if not is_sound:
        return None
    ids = np.stack([first_half, second_half], axis=1).astype(">i8").view(np.int64)
    found = Publishes(
        sequence=relative + segment.first,
        place=place,
        length=length,
        expiry_us=expiry.view(np.uint64),
        body_size=body_size,
        message_id=ids,
    )
    return found, np.repeat(relative, actions)


def _within(column: Numbers, highest: int) -> bool:
    return not len(column) or (int(column.min()) >= 0 and int(column.max()) <= highest)
