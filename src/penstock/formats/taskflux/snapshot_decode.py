"""Reading snapshots: queue heads and batches of tasks (docs/formats/snapshot.md).

``decode_snapshot`` is a stream that reads through a function, so that memory does not grow with the state. The
checksum is known to match only when it has ended. ``scan_snapshot`` yields the tasks in columns: by the same code,
the loop over the tasks compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.binary import INT32, Reader, checksum, decode_queue_name, hexadecimal
from penstock.errors import BadData, CorruptData, InvalidQueueName, InvalidValue, TruncatedData
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.taskflux.deltas import (
    decode_implementation,
    decode_limits,
    decode_optional_limits,
)
from penstock.formats.taskflux.snapshot import WINDOW, QueueForm, SnapshotLayout, StoredTask
from penstock.model import (
    DEFAULT_QUEUE,
    Index,
    Policy,
    QueueHead,
    QueueName,
    SnapshotPoint,
    TaskId,
    Term,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ReadAt = Callable[[int, int], bytes]
"""Returns the bytes of a file at an offset: as many as asked for, fewer only at its end."""

TASKS_PER_BATCH: Final = 4096  # that a decoder yields at a time

_unpack_task = QueueForm.POLICY.task_header.unpack_from
_unpack_task_with_id = QueueForm.POLICY_AND_IDS.task_header.unpack_from


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """What a snapshot's first bytes say."""

    layout: SnapshotLayout
    point: SnapshotPoint


class Batch(NamedTuple):
    """Some tasks of the queue whose head came last, with the place of the first in the file."""

    offset: int
    tasks: list[StoredTask]


def decode_header(read: ReadAt, layout: SnapshotLayout) -> SnapshotHeader:
    """Return the point that a snapshot covers. Raises ``BadData``."""
    start = read(0, layout.state_offset)
    if start[:4] != layout.marker[: len(start)]:
        raise CorruptData(
            "wrong snapshot marker",
            offset=0,
            expected=hexadecimal(layout.marker),
            found=hexadecimal(start[:4]),
        )
    if len(start) < layout.state_offset:
        raise TruncatedData(
            "the file ends inside the snapshot header",
            offset=len(start),
            expected=f"{layout.state_offset} bytes",
            found=str(len(start)),
        )
    index, term = layout.point.unpack_from(start, 4)
    try:
        point = SnapshotPoint(index=Index(index), term=Term(term))
    except InvalidValue as error:
        raise CorruptData(str(error), offset=4) from None
    return SnapshotHeader(layout=layout, point=point)


def decode_snapshot(
    read: ReadAt, size: int, layout: SnapshotLayout
) -> Iterator[SnapshotHeader | QueueHead | Batch]:
    """Yield the header, then each queue's head and its tasks in batches. Raises ``BadData``.

    Everything is checked on the way, the checksum last: what was yielded counts only when the
    iterator has ended without an error.
    """
    return _walk_snapshot(read, size, layout, _decode_tasks)


T = TypeVar("T")
_DecodeTasks = Callable[["Window", QueueForm, QueueHead], Iterator[T]]


def _walk_snapshot(
    read: ReadAt, size: int, layout: SnapshotLayout, decode: _DecodeTasks[T], width: int = WINDOW
) -> Iterator[SnapshotHeader | QueueHead | T]:
    """Yield the header, then each queue's head and what ``decode`` makes of the tasks behind it. Raises ``BadData``."""
    yield decode_header(read, layout)
    window = Window(read, layout, size, width)
    problem: BadData | None = None
    try:
        yield from _decode_queues(window, layout, decode)
    except BadData as error:
        if not layout.is_checked:
            raise
        # A wrong byte often shows first as an impossible value; the checksum then says what it is.
        window.drain()
        problem = error
    if layout.is_checked and window.register != window.stored():
        first = f"; first impossible value: {problem.reason}" if problem else ""
        raise CorruptData(
            f"snapshot checksum does not match{first}",
            offset=problem.offset if problem else size - 4,
            expected=f"{window.register:08X}",
            found=f"{window.stored():08X}",
        )
    if problem:
        raise problem


class Window:
    """A moving view of the state's bytes that takes their checksum as they pass."""

    def __init__(self, read: ReadAt, layout: SnapshotLayout, size: int, width: int) -> None:
        self.read = read
        self.size = size
        self.width = width  # bytes read at a time, if no single value is larger
        # The state ends before the checksum; nothing behind it may be taken for a task.
        self.end = max(layout.state_offset, size - 4 * layout.is_checked)
        self.base = layout.state_offset  # place in the file of the window's first byte
        self.data = b""
        self.used = 0  # bytes of the window already decoded
        header = read(layout.covered_offset, layout.state_offset - layout.covered_offset)
        self.register = checksum(header)

    @property
    def offset(self) -> int:
        return self.base + self.used

    @property
    def remaining(self) -> int:
        return self.end - self.offset

    def need(self, size: int, what: str) -> None:
        """Make at least ``size`` bytes available in the window from ``used`` on."""
        if len(self.data) - self.used >= size:
            return
        if size > self.remaining:
            raise TruncatedData(
                f"the state ends inside {what}",
                offset=self.offset,
                expected=f"{size} bytes",
                found=str(self.remaining),
            )
        self._advance(max(size, min(self.width, self.remaining)))

    def _advance(self, size: int) -> None:
        kept = self.data[self.used :]
        self.base += self.used
        self.used = 0
        start = self.base + len(kept)
        fresh = self.read(start, size - len(kept))
        self.register = checksum(fresh, self.register)
        self.data = kept + fresh
        if len(self.data) < size:
            raise TruncatedData("the file became shorter while it was read", offset=start)

    def drain(self) -> None:
        """Read on to the end, for the checksum alone."""
        self.used = len(self.data)
        while self.remaining:
            self._advance(min(self.width, self.remaining))
            self.used = len(self.data)

    def stored(self) -> int:
        return int.from_bytes(self.read(self.end, 4), "big")


# The longest head: name 256, implementation 4, last id 8, limits 8, range 17, count 4.
_HEAD_SIZE_MAX: Final = 297


def _decode_queues(
    window: Window, layout: SnapshotLayout, decode: _DecodeTasks[T]
) -> Iterator[QueueHead | T]:
    count: int | None = None
    check_length(window.read, window.size, layout)
    if layout.is_counted:
        window.need(4, "the queue count")
        count = INT32.unpack_from(window.data, window.used)[0]
        window.used += 4
    names: set[QueueName] = set()
    while window.remaining if count is None else len(names) < count:
        head = _decode_head(window, layout.form)
        if head.name in names:
            raise CorruptData(f"queue {head.name!r} stands twice", offset=window.offset)
        names.add(head.name)
        yield head
        yield from decode(window, layout.form, head)
    if window.remaining:
        raise CorruptData(
            "bytes left over after the last queue",
            offset=window.offset,
            expected="the end",
            found=f"{window.remaining} more",
        )
    if DEFAULT_QUEUE not in names:
        raise CorruptData("the default queue is missing", offset=window.offset)


def check_length(read: ReadAt, size: int, layout: SnapshotLayout) -> None:
    """Raise ``CorruptData`` unless the length that a layout stores, if it does, fits the file."""
    if layout.has_length:
        stored, actual = read(layout.state_offset - 4, 4), size - layout.state_offset - 4
        if stored != INT32.pack(max(0, actual)):
            raise CorruptData(
                "the state's length does not fit the file",
                offset=layout.state_offset - 4,
                expected=str(actual),
                found=str(int.from_bytes(stored, "big", signed=True)),
            )


def _decode_head(window: Window, form: QueueForm) -> QueueHead:
    window.need(min(_HEAD_SIZE_MAX, window.remaining), "a queue")
    reader = Reader(window.data, window.used)
    try:
        head = _read_head(reader, form)
    except BadData as error:
        if error.offset is not None:
            error.offset += window.base
        raise
    if head.count * form.task_header.size > window.end - window.base - reader.offset:
        raise TruncatedData(
            f"the state ends inside queue {head.name!r}",
            offset=window.base + reader.offset - 4,
            expected=f"{head.count} tasks",
            found=f"{window.end - window.base - reader.offset} bytes",
        )
    window.used = reader.offset
    return head


def _read_head(reader: Reader, form: QueueForm) -> QueueHead:
    offset = reader.offset
    raw = reader.take(reader.byte("a queue name"), "a queue name")
    try:
        name = decode_queue_name(raw)
    except InvalidQueueName as error:
        raise CorruptData(str(error), offset=offset) from None
    if form is QueueForm.LIMIT:
        policy = Policy(size_max=reader.uint32("a size limit") or None)
        count = reader.uint32("a queue's size")
        return QueueHead(name=name, policy=policy, last_id=TaskId(count), count=count)
    last_id = None
    if form is QueueForm.OPTIONAL_LIMITS:
        policy = decode_optional_limits(reader)
    else:
        implementation = decode_implementation(reader)
        last_id = reader.uint64("a last id") if form.has_ids else None
        policy = decode_limits(reader, implementation)
    offset = reader.offset
    count = reader.int32("a queue's size")
    if count < 0 or (last_id is not None and last_id < count):
        raise CorruptData(
            f"queue {name!r} claims an impossible number of tasks", offset=offset, found=str(count)
        )
    last_id = count if last_id is None else last_id
    return QueueHead(name=name, policy=policy, last_id=TaskId(last_id), count=count)


def _decode_tasks(window: Window, form: QueueForm, head: QueueHead) -> Iterator[Batch]:
    header_size, left = form.task_header.size, head.count
    while left:
        window.need(header_size, "a task")
        start, data = window.offset, window.data
        room = min(left, TASKS_PER_BATCH, (len(data) - window.used) // header_size)
        offsets, ids, keys = [0] * room, [0] * room, [0] * room
        done = head.count - left
        count, window.used = _task_kernel(
            data, window.used, form.has_ids, done, head.last_id, offsets, ids, keys
        )
        if count:
            left -= count
            bounds = [*offsets[:count], window.used]
            payloads = [
                data[offset + header_size : following] for offset, following in pairwise(bounds)
            ]
            yield Batch(start, list(zip(ids, keys, payloads, strict=False)))
        else:
            _need_task(window, form, head)


def _task_kernel(
    data: Any, position: Any, has_ids: Any, done: Any, last_id: Any, offsets: Any, ids: Any, keys: Any
) -> Any:  # fmt: skip
    """Note where tasks begin from ``position`` on, their ids and keys; return how many, and where the next begins.

    Stops at one that is not whole in ``data``, has a negative length, or an id that its queue never gave out.
    """
    end = len(data)
    header_size = 20 if has_ids else 12
    count = 0
    while count < len(offsets) and position + header_size <= end:
        if has_ids:
            task_id, key, length = _unpack_task_with_id(data, position)
            if task_id == 0 or task_id > last_id:
                break
            ids[count] = task_id
        else:
            key, length = _unpack_task(data, position)
            ids[count] = done + count + 1
        follower = position + header_size + length
        if length < 0 or follower > end:
            break
        offsets[count] = position
        keys[count] = key
        count += 1
        position = follower
    return count, position


def _need_task(window: Window, form: QueueForm, head: QueueHead) -> None:
    """Make the window's next task available, whose header is; raise ``BadData`` for one that cannot be.

    An id must be one that the queue gave out. That none stands twice shows when they are restored.
    """
    header = form.task_header
    *ids, _, length = header.unpack_from(window.data, window.used)
    if length < 0:
        at = window.offset + header.size - 4
        raise CorruptData("negative length of a payload", offset=at, found=str(length))
    window.need(header.size + length, "a payload")
    if any(not 1 <= task_id <= head.last_id for task_id in ids):
        raise CorruptData(
            f"an id that queue {head.name!r} never gave out",
            offset=window.offset,
            expected=f"1 to {head.last_id}",
            found=str(ids[0]),
        )


# --- in columns ----------------------------------------------------------------------------------


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
) -> Iterator[SnapshotHeader | QueueHead | TaskColumns]:
    """Yield the header, then each queue's head and its tasks in batches. Raises ``BadData``.

    What was yielded counts only when the iterator has ended without an error: the checksum comes last.
    Needs numpy and numba, which the ``tables`` extra brings.
    """

    def decode(window: Window, form: QueueForm, head: QueueHead) -> Iterator[TaskColumns]:
        return _scan_tasks(window, form, head, batch_rows)

    return _walk_snapshot(read, size, layout, decode, window_size)


def _scan_tasks(
    window: Window, form: QueueForm, head: QueueHead, batch_rows: int
) -> Iterator[TaskColumns]:
    with bulk():
        import numpy as np

    kernel = compiled(_task_kernel)
    header_size, done = form.task_header.size, 0
    while done < head.count:
        window.need(header_size, "a task")
        data = np.frombuffer(window.data, dtype=np.uint8)
        room = min(head.count - done, batch_rows, (len(data) - window.used) // header_size)
        offsets, ids = np.empty(room + 1, dtype=np.int64), np.empty(room, dtype=np.uint64)
        keys = np.empty(room, dtype=np.int64)
        count, window.used = kernel(
            data,
            window.used,
            form.has_ids,
            done,
            np.uint64(head.last_id),
            offsets[:room],
            ids,
            keys,
        )
        if not count:
            _need_task(window, form, head)
            continue
        done += count
        offsets[count] = window.used
        sizes = np.diff(offsets[: count + 1])
        yield TaskColumns(
            head=head,
            data=data,
            base=window.base,
            offset=offsets[:count],
            size=sizes,
            task_id=ids[:count],
            key=keys[:count],
            payload_offset=offsets[:count] + header_size,
            payload_size=sizes - header_size,
        )
