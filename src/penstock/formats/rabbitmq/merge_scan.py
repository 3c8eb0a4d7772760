"""Journal and segment together, in columns: what ``merge`` says, without an object a record.

Files that a broker left in order are joined by a kernel. As soon as there is anything to find in them, ``merge``
itself is asked, so the two cannot differ in what they find (docs/formats/rabbitmq.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from penstock.formats.kernel import bulk, compiled
from penstock.formats.rabbitmq.journal import (
    MESSAGE_ID_SIZE,
    PUBLISH_FIELDS,
    Kind,
    Piece,
    PieceColumns,
    SequenceNumber,
    Status,
)
from penstock.formats.rabbitmq.merge import Entry, Finding, Merged, merge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEW: Final = 64
"""Records that are merged one by one: a call of a kernel costs as much."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """Records of an index in columns, with what ``PieceColumns`` leaves in the buffer: their ids."""

    pieces: PieceColumns
    message_id: NDArray[np.void]  # 16 bytes each; zeros for a record that has none

    def __len__(self) -> int:
        return len(self.pieces)

    def take(self, rows: NDArray[np.int64] | slice) -> RecordColumns:
        """Return some of the records."""
        return RecordColumns(pieces=self.pieces.take(rows), message_id=self.message_id[rows])

    def to_pieces(self) -> Iterator[Piece]:
        """Yield the records as the plain scan yields them."""
        columns = (getattr(self.pieces, each.name).tolist() for each in fields(PieceColumns))
        for row, message_id in zip(
            zip(*columns, strict=True), self.message_id.tolist(), strict=True
        ):
            offset, size, status, kind, sequence, expiry_us, body_size, length = row
            yield Piece(
                offset, size, Status(status), Kind(kind), SequenceNumber(sequence), expiry_us,
                body_size, length, message_id if kind in PUBLISHES else b"",
            )  # fmt: skip


PUBLISHES: Final = (Kind.PUBLISH_PERSISTENT, Kind.PUBLISH_TRANSIENT)


def records_in(data: NDArray[np.uint8], pieces: PieceColumns, *, base: int) -> RecordColumns:
    """Return pieces of a window with their ids; offsets then count from the start of the file.

    A piece that is no record comes along with an id of zeros.
    """
    with bulk():
        import numpy as np

    ids = np.zeros(len(pieces), dtype=f"V{MESSAGE_ID_SIZE}")
    is_publish = pieces.kind <= Kind.PUBLISH_TRANSIENT
    if is_publish.any():
        ends = pieces.offset[is_publish] + pieces.size[is_publish]
        places = ends - pieces.length[is_publish] - PUBLISH_FIELDS.size
        # Every place of the buffer as the start of an id: a view, of which some are copied.
        overlapping = np.ndarray(
            (len(data) - MESSAGE_ID_SIZE + 1,), dtype=ids.dtype, buffer=data, strides=(1,)
        )
        ids[is_publish] = overlapping[places]
    columns = {each.name: getattr(pieces, each.name) for each in fields(PieceColumns)}
    columns["offset"] = pieces.offset + base
    return RecordColumns(pieces=PieceColumns(**columns), message_id=ids)


def joined(parts: Sequence[RecordColumns]) -> RecordColumns:
    """Return the records of all parts in their order."""
    with bulk():
        import numpy as np

    if len(parts) == 1:
        return parts[0]
    if not parts:
        rows = np.empty((len(fields(PieceColumns)), 0), dtype=np.int64)
        ids = np.empty(0, dtype=f"V{MESSAGE_ID_SIZE}")
        return RecordColumns(pieces=PieceColumns.of_rows(rows), message_id=ids)
    columns = {
        each.name: np.concatenate([getattr(part.pieces, each.name) for part in parts])
        for each in fields(PieceColumns)
    }
    ids = np.concatenate([part.message_id for part in parts])
    return RecordColumns(pieces=PieceColumns(**columns), message_id=ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryColumns:
    """What ``merge`` calls entries, as one array per field."""

    sequence: NDArray[np.int64]
    message_id: NDArray[np.void]
    is_persistent: NDArray[np.bool_]
    expiry_us: NDArray[np.uint64]
    body_size: NDArray[np.int64]
    length: NDArray[np.int64]  # of the embedded message; 0 if it is in the message store
    is_journaled: NDArray[np.bool_]  # whether the publish record stands in the journal
    offset: NDArray[np.int64]  # of the publish record in its file
    size: NDArray[np.int64]  # of the publish record; the embedded message is its last part
    is_delivered: NDArray[np.bool_]
    is_acked: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.sequence)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> EntryColumns:
        """Return some of the entries."""
        return EntryColumns(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def merge_columns(
    journal: RecordColumns,
    segment: RecordColumns,
    *,
    number: int,
    entry_count: int,
) -> tuple[EntryColumns, list[Finding]]:
    """Return what ``merge`` returns for the segment with this number and the journal's records of it.

    Pieces that are no records are not to be among them. Needs numpy and numba, which the ``tables`` extra brings.
    """
    if len(journal) + len(segment) > FEW:
        entries = _merge_in_order(journal, segment, number * entry_count, entry_count)
        if entries is not None:
            return entries, []
    merged = merge(journal.to_pieces(), {number: segment.to_pieces()})
    return _entry_columns(merged), merged.findings


def _merge_in_order(
    journal: RecordColumns,
    segment: RecordColumns,
    first: int,
    entry_count: int,
) -> EntryColumns | None:
    """Return the entries, or ``None`` if there is something to find."""
    with bulk():
        import numpy as np

    records = joined([segment, journal])
    pieces = records.pieces
    if len(pieces) == 0 or bool((pieces.status != Status.OK).any()):
        return None
    states = np.zeros((3, entry_count), dtype=np.int64)
    count = compiled(_merge_kernel)(pieces.kind, pieces.sequence, first, len(segment), states)
    if count < 0:
        return None
    rows, is_delivered, is_acked = states[:, :count]
    return EntryColumns(
        sequence=pieces.sequence[rows],
        message_id=records.message_id[rows],
        is_persistent=pieces.kind[rows] == Kind.PUBLISH_PERSISTENT,
        expiry_us=pieces.expiry_us[rows],
        body_size=pieces.body_size[rows],
        length=pieces.length[rows],
        is_journaled=rows >= len(segment),
        offset=pieces.offset[rows],
        size=pieces.size[rows],
        is_delivered=is_delivered.astype(bool),
        is_acked=is_acked.astype(bool),
    )


# What the kernel knows as plain numbers.
_TRANSIENT, _DELIVER, _ACK = int(Kind.PUBLISH_TRANSIENT), int(Kind.DELIVER), int(Kind.ACK)


def _merge_kernel(kind: Any, sequence: Any, first: Any, flushed: Any, states: Any) -> Any:
    """Note what becomes of each message; return how many there are, or -1 if anything is odd.

    The first ``flushed`` records are the segment's. ``states`` has a column for each sequence number: the row
    of its publish record and one, whether it was delivered, and whether acked. In the end the columns
    of messages stand in front, with the row itself.
    """
    for row in range(len(kind)):
        at = sequence[row] - first
        if kind[row] <= _TRANSIENT:
            if states[0, at] > 0 or (row < flushed and states[1, at] > 0):
                return -1
            states[0, at] = row + 1
        elif kind[row] == _ACK or (kind[row] != _DELIVER and states[1, at] > 0):
            if states[2, at] > 0:
                return -1
            states[2, at] = 1
        else:
            if states[1, at] > 0:
                return -1
            states[1, at] = 1
    count = 0
    for at in range(states.shape[1]):
        published = states[0, at]
        delivered = states[1, at]
        acked = states[2, at]
        if acked > delivered or (published == 0 and delivered > 0):
            return -1
        if published > 0:
            states[0, count] = published - 1
            states[1, count] = delivered
            states[2, count] = acked
            count += 1
    return count


def _entry_columns(merged: Merged) -> EntryColumns:
    import numpy as np

    entries = merged.entries
    by_field: dict[str, list[Any]] = {
        name: [getattr(entry, name) for entry in entries] for name in Entry._fields
    }
    places = by_field.pop("place")
    ids = by_field.pop("message_id")
    columns: dict[str, NDArray[Any]] = {
        name: np.array(values, dtype=_TYPES.get(name, "i8")) for name, values in by_field.items()
    }
    return EntryColumns(
        message_id=np.frombuffer(b"".join(ids), dtype=f"V{MESSAGE_ID_SIZE}"),
        is_journaled=np.array([place.segment is None for place in places], dtype=bool),
        offset=np.array([place.offset for place in places], dtype=np.int64),
        **columns,
    )


_TYPES: Final = {
    "expiry_us": "u8",
    "is_persistent": "?",
    "is_delivered": "?",
    "is_acked": "?",
}
