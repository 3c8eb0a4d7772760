"""Entries in columns: the records of a log together with what their payloads say.

Compiles the decoders, ``log_scan`` for the framing and ``deltas`` or ``commands`` for the payloads, so that one call
turns a buffer into columns ready for Arrow.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.kernel_bytes import emit
from penstock.formats.taskflux.commands import command_row
from penstock.formats.taskflux.deltas import BAD_ROW, delta_row
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.log_scan import Piece, PieceColumns, scan_columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangeColumns:
    """What the payloads say. Offsets count from the start of the buffer; 0 where nothing applies."""

    op: NDArray[np.int64]  # the type byte, 0 for an empty payload or a bad record, or BAD_OP
    queue_offset: NDArray[np.int64]
    queue_size: NDArray[np.int64]
    key: NDArray[np.int64]  # of an add, of a removal by value, of an enqueue
    task_id: NDArray[np.uint64]  # of a removal by id
    payload_offset: NDArray[np.int64]
    payload_size: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryColumns:
    """A batch of records and gaps, and what the whole records among them say."""

    pieces: PieceColumns
    changes: ChangeColumns

    def __len__(self) -> int:
        return len(self.pieces)

    def part(self, start: int, stop: int) -> EntryColumns:
        """Return some of the rows, without copying them."""
        rows = slice(start, stop)
        return EntryColumns(
            pieces=PieceColumns(
                **{f.name: getattr(self.pieces, f.name)[rows] for f in fields(PieceColumns)}
            ),
            changes=ChangeColumns(
                **{f.name: getattr(self.changes, f.name)[rows] for f in fields(ChangeColumns)}
            ),
        )


def scan_entries(
    data: Bytes | NDArray[np.uint8],
    layout: LogLayout,
    *,
    start: int,
    stop: int | None = None,
    term: int = 0,
    size: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Generator[EntryColumns, None, int]:
    """Yield the entries that begin in ``[start, stop)`` in batches of columns; see ``scan_columns``."""
    with bulk():
        import numpy as np

    buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    batches = scan_columns(
        data,
        layout,
        start=start,
        stop=stop,
        term=term,
        size=size,
        batch_rows=batch_rows,
    )
    while True:
        try:
            pieces = next(batches)
        except StopIteration as done:
            return int(done.value)
        yield EntryColumns(pieces=pieces, changes=decode_changes(buffer, layout, pieces))


def lone_piece(piece: Piece) -> EntryColumns:
    """Return one piece in columns, as a scan would have, with nothing that its payload says."""
    with bulk():
        import numpy as np

    rows = np.array([piece], dtype=np.int64).T
    nothing = np.zeros(1, dtype=np.int64)
    pieces = PieceColumns(
        offset=rows[0], size=rows[1], status=rows[2], term=rows[3], length=rows[4]
    )
    changes = ChangeColumns(
        op=nothing,
        queue_offset=nothing,
        queue_size=nothing,
        key=nothing,
        task_id=nothing.view(np.uint64),
        payload_offset=nothing,
        payload_size=nothing,
    )
    return EntryColumns(pieces=pieces, changes=changes)


def decode_changes(
    buffer: NDArray[np.uint8], layout: LogLayout, pieces: PieceColumns
) -> ChangeColumns:
    """Return what the payloads of records say."""
    import numpy as np

    rows = np.empty((7, len(pieces)), dtype=np.int64)
    compiled(_change_kernel)(
        buffer,
        pieces.offset + layout.record_header.size,
        pieces.length,
        pieces.status,
        layout.contents is Contents.COMMANDS,
        layout.contents is Contents.DELTAS_BY_ID,
        rows,
    )
    return ChangeColumns(
        op=rows[0],
        queue_offset=rows[1],
        queue_size=rows[2],
        key=rows[3],
        task_id=rows[6].view(np.uint64),
        payload_offset=rows[4],
        payload_size=rows[5],
    )


_EMPTY_ROW: Final = (0, 0, 0, 0, 0, 0, 0)


def _change_kernel(
    data: Any, offset: Any, length: Any, status: Any, is_command: Any, by_id: Any, rows: Any
) -> None:  # fmt: skip
    """Decode a delta or command per row.

    A row of bad status or without bytes gets 0; one whose bytes are no delta or command gets BAD_OP.
    """
    for row in range(len(offset)):
        start, end = offset[row], offset[row] + length[row]
        values = _EMPTY_ROW
        if status[row] == 0 and length[row] > 0:
            values = (
                command_row(data, start, end) if is_command else delta_row(data, start, end, by_id)
            )
            if not _is_name(data, values[1], values[1] + values[2]):
                values = BAD_ROW
        emit(rows, row, values)


def _is_name(data: Any, start: Any, stop: Any) -> Any:
    """Return whether a queue can have the name in ``data[start:stop]``."""
    good = True
    for i in range(start, stop):
        if data[i] < 33 or data[i] > 126:
            good = False
    return good
