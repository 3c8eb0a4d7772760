"""Snapshots: the state of all queues at one index (docs/formats/snapshot.md).

Both directions are streams, so that memory does not grow with the state: ``encode_snapshot`` takes
queues one by one and yields pieces; ``decode_snapshot`` reads through a function and yields queue
heads and batches of tasks. The checksum is known to match only when the decoder has ended.
``snapshot_scan`` yields the tasks in columns; all but the tasks it takes from ``walk_snapshot``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from penstock.binary import (
    CHECKSUM_START,
    INT32,
    UINT32,
    UINT64,
    Reader,
    checksum,
    decode_queue_name,
    encode_queue_name,
    hexadecimal,
)
from penstock.errors import (
    BadData,
    CannotConvert,
    CorruptData,
    InvalidQueueName,
    InvalidValue,
    TruncatedData,
    UnknownFormat,
)
from penstock.formats.taskflux.deltas import (
    decode_implementation,
    decode_limits,
    encode_limits,
    encode_policy,
)
from penstock.formats.taskflux.generation import Generation
from penstock.model import (
    DEFAULT_QUEUE,
    INT32_MAX,
    Implementation,
    Index,
    Policy,
    QueueHead,
    QueueName,
    SnapshotPoint,
    TaskId,
    Term,
)

MARKER_1: Final = bytes.fromhex("2F6F0F2F")
MARKER_1A: Final = bytes.fromhex("2F0F6F2F")
MARKER: Final = bytes.fromhex("B6380FC9")

ReadAt = Callable[[int, int], bytes]
"""Returns the bytes of a file at an offset: as many as asked for, fewer only at its end."""

WINDOW: Final = 2**20  # bytes read at a time
TASKS_PER_BATCH: Final = 4096  # that a decoder yields at a time
TASKS_PER_PIECE: Final = 256
"""What an encoder yields at a time: a fraction of a millisecond, so that a node can serve in between."""


class QueueForm(Enum):
    """How a queue is laid out: with a bare limit, with a policy, with a policy and ids."""

    LIMIT = ("LIMIT", ">qi")
    POLICY = ("POLICY", ">qi")
    POLICY_AND_IDS = ("POLICY_AND_IDS", ">Qqi")

    def __init__(self, _name: str, task_header: str) -> None:
        self.task_header = Struct(task_header)
        self.has_ids = task_header.startswith(">Q")


class SnapshotLayout(Enum):
    """A layout: generation, variant, marker, header, queue count stored, queue form, framing."""

    ONE_A = (Generation.ONE, "1a", MARKER_1A, "<ii", False, QueueForm.LIMIT, "none")
    ONE_A_COUNTED = (Generation.ONE, "1a counted", MARKER_1A, "<ii", True, QueueForm.LIMIT, "none")
    ONE_COUNTED = (Generation.ONE, "1", MARKER_1, ">ii", True, QueueForm.LIMIT, "none")
    ONE_B = (Generation.ONE, "1b", MARKER_1, ">ii", False, QueueForm.LIMIT, "none")
    ONE_C = (Generation.ONE, "1c", MARKER_1, ">ii", True, QueueForm.POLICY, "none")
    TWO_SEED = (Generation.TWO, "seed", MARKER, ">ii", True, QueueForm.POLICY, "all")
    TWO_CODE = (Generation.TWO, "code", MARKER, ">ii", True, QueueForm.POLICY, "state")
    THREE = (Generation.THREE, "3", MARKER, ">qq", True, QueueForm.POLICY_AND_IDS, "state")

    def __init__(
        self,
        generation: Generation,
        variant: str,
        marker: bytes,
        point: str,
        is_counted: bool,
        form: QueueForm,
        covered: str,
    ) -> None:
        self.generation = generation
        self.variant = variant
        self.marker = marker
        self.point = Struct(point)
        self.is_counted = is_counted
        self.form = form
        self.is_checked = covered != "none"
        self.has_length = covered == "state"
        self.state_offset = 4 + self.point.size + 4 * self.has_length
        self.covered_offset = self.state_offset if covered == "state" else 4


WRITTEN: Final = {
    Generation.ONE: SnapshotLayout.ONE_COUNTED,
    Generation.TWO: SnapshotLayout.TWO_SEED,
    Generation.THREE: SnapshotLayout.THREE,
}

StoredTask = tuple[int, int, bytes]
"""(id, key, payload); the id counts from 1 within its queue where the layout stores none."""


# --- encoding ------------------------------------------------------------------------------------


class Patch(NamedTuple):
    """Bytes that belong at an offset that was written before they were known."""

    offset: int
    data: bytes


def encode_snapshot(
    point: SnapshotPoint,
    queue_count: int,
    queues: Iterable[tuple[QueueHead, Iterable[StoredTask]]],
    layout: SnapshotLayout,
) -> Generator[bytes, None, Patch | None]:
    """Yield a snapshot's bytes in order; returns what must be patched before the file is synced.

    Tasks of a queue come in the order of their ids. Raises ``CannotConvert`` for what the layout
    has no bytes for.
    """
    return encode_frame(point, _encode_state(queue_count, queues, layout), layout)


def encode_frame(
    point: SnapshotPoint, state: Iterable[bytes], layout: SnapshotLayout
) -> Generator[bytes, None, Patch | None]:
    """Yield a snapshot around the bytes of its state, as ``encode_snapshot`` does."""
    if layout.generation is not Generation.THREE and max(point.index, point.term) > INT32_MAX:
        raise CannotConvert(
            f"index {point.index} or term {point.term} does not fit generation {layout.generation};"
            f" both end at {INT32_MAX}"
        )
    fixed = layout.point.pack(point.index, point.term)
    yield layout.marker + fixed + bytes(4 * layout.has_length)
    register = CHECKSUM_START if layout.has_length else checksum(fixed)
    size = 0
    for piece in state:
        register = checksum(piece, register)
        size += len(piece)
        if layout.has_length and size > INT32_MAX:
            raise CannotConvert("the state is larger than the 2 GiB that this snapshot can hold")
        yield piece
    if layout.is_checked:
        yield UINT32.pack(register)
    return Patch(4 + layout.point.size, INT32.pack(size)) if layout.has_length else None


def encode_count(queue_count: int, layout: SnapshotLayout) -> bytes:
    """Return what stands before the first queue."""
    return INT32.pack(queue_count) if layout.is_counted else b""


def _encode_state(
    queue_count: int,
    queues: Iterable[tuple[QueueHead, Iterable[StoredTask]]],
    layout: SnapshotLayout,
) -> Iterator[bytes]:
    yield encode_count(queue_count, layout)
    names: set[QueueName] = set()
    for head, tasks in queues:
        names.add(head.name)
        yield encode_head(head, layout.form)
        written = 0
        batch: list[bytes] = []
        batch_size = 0
        pack = layout.form.task_header.pack
        for task_id, key, payload in tasks:
            if layout.form.has_ids:
                batch.append(pack(task_id, key, len(payload)))
            else:
                batch.append(pack(key, len(payload)))
            batch.append(payload)
            batch_size += len(payload)
            if len(batch) >= 2 * TASKS_PER_PIECE or batch_size >= WINDOW:
                written += len(batch) // 2
                yield b"".join(batch)
                batch.clear()
                batch_size = 0
        written += len(batch) // 2
        yield b"".join(batch)
        assert written == head.count, "a queue's head promised another number of tasks"
    assert len(names) == queue_count, "a name twice, or another number of queues than promised"
    assert DEFAULT_QUEUE in names, "a snapshot always holds the default queue"


def encode_head(head: QueueHead, form: QueueForm) -> bytes:
    """Return the bytes that stand before a queue's tasks. Raises ``CannotConvert``."""
    name, policy = encode_queue_name(head.name), head.policy
    if form is QueueForm.LIMIT:
        refuse_policy_beyond_limit(head.name, policy)
        return name + UINT32.pack(policy.size_max or 0) + UINT32.pack(head.count)
    if max(policy.size_max or 0, policy.payload_size_max or 0, head.count) > INT32_MAX:
        raise CannotConvert(f"queue {head.name!r} has a limit or a size beyond {INT32_MAX}")
    if form is QueueForm.POLICY:
        return name + encode_policy(policy) + INT32.pack(head.count)
    return (
        name
        + INT32.pack(policy.implementation)
        + UINT64.pack(head.last_id)
        + encode_limits(policy)
        + INT32.pack(head.count)
    )


def refuse_policy_beyond_limit(name: QueueName, policy: Policy) -> None:
    """Raise ``CannotConvert`` unless generation 1 has bytes for this queue's policy."""
    if (
        policy.implementation is not Implementation.HEAP
        or policy.payload_size_max is not None
        or policy.keys is not None
    ):
        raise CannotConvert(
            f"queue {name!r} has an implementation, payload limit or key range;"
            " generation 1 knows only a size limit"
        )
    if policy.size_max == 0:
        raise CannotConvert(
            f"queue {name!r} takes no tasks (size limit 0); in generation 1 that means no limit"
        )


# --- decoding ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """What a snapshot's first bytes say."""

    layout: SnapshotLayout
    point: SnapshotPoint


class Batch(NamedTuple):
    """Some tasks of the queue whose head came last, with the place of the first in the file."""

    offset: int
    tasks: list[StoredTask]


def detect_layout(read: ReadAt, size: int) -> SnapshotLayout:
    """Return the layout of a snapshot file of ``size`` bytes. Raises ``BadData``.

    The marked layouts are told apart by length and checksum; a damaged file is of the layout whose
    length fits. Generation 1 has neither: there the layout is the one that accounts for the whole file.
    """
    start = read(0, 32)
    marker = start[:4]
    if marker in (MARKER_1, MARKER_1A):
        return _detect_unmarked(read, size, marker)
    if marker != MARKER:
        if len(marker) < 4 and any(m.startswith(marker) for m in (MARKER, MARKER_1, MARKER_1A)):
            raise TruncatedData("the file ends inside the marker", offset=len(marker))
        raise UnknownFormat(
            "not a snapshot",
            offset=0,
            expected=f"{hexadecimal(MARKER)} or {hexadecimal(MARKER_1)}",
            found=hexadecimal(marker),
        )
    fitting = [
        layout
        for layout in (SnapshotLayout.TWO_CODE, SnapshotLayout.THREE)
        if size >= layout.state_offset + 8
        and INT32.unpack_from(start, layout.state_offset - 4)[0] == size - layout.state_offset - 4
    ]
    # What looks like a length may be a part of the seed layout: the Int32 at 20 can be a limit of its
    # first queue. The one at 12 is its queue count, which is neither 0 nor as large as the file.
    if len(fitting) == 1 and (SnapshotLayout.TWO_CODE in fitting or start[12:16] == bytes(4)):
        return fitting[0]
    for layout in (*fitting, SnapshotLayout.TWO_SEED):
        if size >= layout.covered_offset + 8 and _checksum_matches(read, size, layout):
            return layout
    return fitting[0] if fitting else _likely_damaged(start)


def _likely_damaged(start: bytes) -> SnapshotLayout:
    """Choose the layout whose header could be true, so that damage is reported in its terms."""
    if len(start) >= 24 and start[4:8] == bytes(4) and start[12:16] == bytes(4):
        return SnapshotLayout.THREE
    return SnapshotLayout.TWO_SEED


def _checksum_of(read: ReadAt, size: int, layout: SnapshotLayout) -> int:
    """Return the checksum that the file should hold at its end; the bytes pass as a stream."""
    register, offset, end = CHECKSUM_START, layout.covered_offset, size - 4
    while offset < end and (piece := read(offset, min(WINDOW, end - offset))):
        register = checksum(piece, register)
        offset += len(piece)
    return register


def _checksum_matches(read: ReadAt, size: int, layout: SnapshotLayout) -> bool:
    return UINT32.pack(_checksum_of(read, size, layout)) == read(size - 4, 4)


def _check_length(read: ReadAt, size: int, layout: SnapshotLayout) -> None:
    if layout.has_length:
        stored, actual = read(layout.state_offset - 4, 4), size - layout.state_offset - 4
        if stored != INT32.pack(max(0, actual)):
            raise CorruptData(
                "the state's length does not fit the file",
                offset=layout.state_offset - 4,
                expected=str(actual),
                found=str(int.from_bytes(stored, "big", signed=True)),
            )


def check_frame(read: ReadAt, size: int, layout: SnapshotLayout) -> None:
    """Raise ``CorruptData`` unless length and checksum fit the file, without decoding what it holds."""
    _check_length(read, size, layout)
    if layout.is_checked:
        register = _checksum_of(read, size, layout)
        found = read(size - 4, 4) if size - 4 >= layout.state_offset else b""
        if found != UINT32.pack(register):
            raise CorruptData(
                "snapshot checksum does not match",
                offset=max(0, size - 4),
                expected=f"{register:08X}",
                found=found.hex().upper() or "the end of the file",
            )


def _detect_unmarked(read: ReadAt, size: int, marker: bytes) -> SnapshotLayout:
    candidates = [layout for layout in SnapshotLayout if layout.marker == marker]
    first_error: BadData | None = None
    # The layout that we write ourselves comes first, so that its errors are the ones reported.
    for layout in sorted(candidates, key=lambda layout: layout is not WRITTEN[Generation.ONE]):
        try:
            for _ in decode_snapshot(read, size, layout):
                pass
        except BadData as error:
            first_error = first_error or error
        else:
            return layout
    assert first_error is not None
    raise first_error


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
    return walk_snapshot(read, size, layout, _decode_tasks)


T = TypeVar("T")
DecodeTasks = Callable[["Window", QueueForm, QueueHead], Iterator[T]]


def walk_snapshot(
    read: ReadAt, size: int, layout: SnapshotLayout, decode: DecodeTasks[T], width: int = WINDOW
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
    window: Window, layout: SnapshotLayout, decode: DecodeTasks[T]
) -> Iterator[QueueHead | T]:
    count: int | None = None
    _check_length(window.read, window.size, layout)
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
    header, has_ids, last_id = form.task_header, form.has_ids, head.last_id
    unpack, header_size = header.unpack_from, header.size
    left, next_id = head.count, 1
    while left:
        window.need(header_size, "a task")
        tasks: list[StoredTask] = []
        start, used, data = window.offset, window.used, window.data
        last = len(data) - header_size
        while used <= last and len(tasks) < min(left, TASKS_PER_BATCH):
            if has_ids:
                task_id, key, length = unpack(data, used)
            else:
                key, length = unpack(data, used)
                task_id = next_id
            body = used + header_size
            if length < 0 or body + length > len(data) or not 1 <= task_id <= last_id:
                break
            tasks.append((task_id, key, data[body : body + length]))
            next_id += 1
            used = body + length
        window.used = used
        left -= len(tasks)
        if tasks:
            yield Batch(start, tasks)
        else:
            need_task(window, form, head)


def need_task(window: Window, form: QueueForm, head: QueueHead) -> None:
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
