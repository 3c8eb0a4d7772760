"""Snapshots in columns: the tasks of each queue as arrays (docs/formats/snapshot.md).

``scan_snapshot`` gives the answers of ``decode_snapshot``, errors included, without a value per task:
heads, lengths and the checksum are its code, and a kernel walks the tasks (a property test holds the
two together). Never holds more of the file than a window, or than one task that is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.kernel_bytes import emit, i64, u32
from penstock.formats.taskflux.snapshot import WINDOW, QueueForm, SnapshotLayout
from penstock.formats.taskflux.snapshot_decode import (
    ReadAt,
    SnapshotHeader,
    Window,
    need_task,
    walk_snapshot,
)
from penstock.model import QueueHead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskColumns:
    """Some tasks of one queue, in the order of the file. Offsets count from the start of ``data``."""

    head: QueueHead
    data: NDArray[np.uint8]
    base: int  # place in the file of the first byte of ``data``
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    task_id: NDArray[np.uint64]  # counts from 1 within the queue where the layout stores none
    key: NDArray[np.int64]
    payload_offset: NDArray[np.int64]
    payload_size: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)


def scan_snapshot(
    read: ReadAt,
    size: int,
    layout: SnapshotLayout,
    *,
    window_size: int = WINDOW,
    batch_rows: int = BATCH_ROWS,
    interpreted: bool = False,
) -> Iterator[SnapshotHeader | QueueHead | TaskColumns]:
    """Yield the header, then each queue's head and its tasks in batches. Raises ``BadData``.

    What was yielded counts only when the iterator has ended without an error: the checksum comes last.
    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
    """

    def decode(window: Window, form: QueueForm, head: QueueHead) -> Iterator[TaskColumns]:
        return _scan_tasks(window, form, head, batch_rows, interpreted=interpreted)

    return walk_snapshot(read, size, layout, decode, window_size)


def _scan_tasks(
    window: Window, form: QueueForm, head: QueueHead, batch_rows: int, *, interpreted: bool
) -> Iterator[TaskColumns]:
    with bulk():
        import numpy as np

    kernel: Callable[..., Any] = _task_kernel if interpreted else compiled(_task_kernel)
    header_size = form.task_header.size
    last_high, last_low = divmod(head.last_id, 2**32)
    done = 0
    while done < head.count:
        window.need(header_size, "a task")
        data = np.frombuffer(window.data, dtype=np.uint8)
        room = min(head.count - done, batch_rows, (len(data) - window.used) // header_size)
        rows = np.empty((6, room), dtype=np.int64)
        source: Any = window.data if interpreted else data
        count, window.used = kernel(
            source, window.used, form.has_ids, done, last_high, last_low, rows
        )
        if not count:
            need_task(window, form, head)
            continue
        done += count
        yield TaskColumns(
            head=head,
            data=data,
            base=window.base,
            offset=rows[0, :count],
            size=rows[1, :count],
            task_id=rows[2, :count].view(np.uint64),
            key=rows[3, :count],
            payload_offset=rows[4, :count],
            payload_size=rows[5, :count],
        )


def _task_kernel(
    data: Any, position: Any, has_ids: Any, done: Any, last_high: Any, last_low: Any, rows: Any
) -> Any:
    """Decode tasks from ``position`` on into ``rows``; return how many, and where the next begins.

    Stops at one that is not whole in ``data``, has a negative length, or an id that is 0 or above the
    last, whose two halves the caller gives: 64 bits without a sign are compared in parts.
    """
    end = len(data)
    header_size = 20 if has_ids else 12
    count = 0
    while count < rows.shape[1] and position + header_size <= end:
        task_id = done + count + 1
        if has_ids:
            high, low = u32(data, position), u32(data, position + 4)
            if high > last_high or (high == last_high and low > last_low) or high + low == 0:
                break
            task_id = i64(data, position)
        body = position + header_size
        length = u32(data, body - 4)
        if length >= 0x80000000 or body + length > end:
            break
        key = i64(data, body - 12)
        emit(rows, count, (position, header_size + length, task_id, key, body, length))
        count += 1
        position = body + length
    return count, position
