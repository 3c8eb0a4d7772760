"""Snapshots: the state of all queues at one index, its layouts and how they are written (docs/formats/snapshot.md).

``encode_snapshot`` is a stream, so that memory does not grow with the state: it takes queues one by one and
yields pieces. ``snapshot_decode`` reads them, ``snapshot_frame`` tells layouts apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.binary import CHECKSUM_START, INT32, UINT32, UINT64, checksum, encode_queue_name
from penstock.errors import CannotConvert
from penstock.formats.kernel import bulk, compiled
from penstock.formats.kernel_bytes import copy, put
from penstock.formats.taskflux.deltas import encode_limits, encode_optional_limits, encode_policy
from penstock.formats.taskflux.generation import Generation
from penstock.model import (
    DEFAULT_QUEUE,
    INT32_MAX,
    Implementation,
    Policy,
    QueueHead,
    QueueName,
    SnapshotPoint,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MARKER_1: Final = bytes.fromhex("2F6F0F2F")
MARKER_1A: Final = bytes.fromhex("2F0F6F2F")
MARKER: Final = bytes.fromhex("B6380FC9")

WINDOW: Final = 2**20  # bytes read or written at a time
TASKS_PER_PIECE: Final = 256
"""What an encoder yields at a time: a fraction of a millisecond, so that a node can serve in between."""


class QueueForm(Enum):
    """How a queue is laid out: with a bare limit, with optional limits, with a policy, with a policy and ids."""

    LIMIT = ("LIMIT", ">qi")
    OPTIONAL_LIMITS = ("OPTIONAL_LIMITS", ">qi")
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
    ONE_D = (Generation.ONE, "1d", MARKER_1, ">ii", False, QueueForm.OPTIONAL_LIMITS, "none")
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


ARRAY_HEAPS: Final = (SnapshotLayout.ONE_A, SnapshotLayout.ONE_B)
"""Layouts of programs that list the array of their heap, and fill it again in the order of the file."""

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
    if form is QueueForm.OPTIONAL_LIMITS:
        if policy.implementation is not Implementation.HEAP:
            raise CannotConvert(
                f"queue {head.name!r} is no heap; variant 1d stores no implementation"
            )
        return name + encode_optional_limits(policy) + INT32.pack(head.count)
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


def encode_task_columns(
    form: QueueForm,
    ids: NDArray[np.int64],
    keys: NDArray[np.int64],
    bounds: NDArray[np.int32],
    data: NDArray[np.uint8],
    *,
    interpreted: bool = False,
) -> NDArray[np.uint8]:
    """Return the bytes of tasks; the payload of task ``i`` is ``data[bounds[i]:bounds[i + 1]]``."""
    with bulk():
        import numpy as np

    header_size = form.task_header.size
    size = int(bounds[-1]) - int(bounds[0]) if len(bounds) else 0
    encoded = np.empty(len(keys) * header_size + size, dtype=np.uint8)
    kernel: Callable[..., Any] = _encode_kernel if interpreted else compiled(_encode_kernel)
    kernel(ids, keys, bounds, data, form.has_ids, encoded)
    return encoded


def _encode_kernel(ids: Any, keys: Any, bounds: Any, data: Any, has_ids: Any, encoded: Any) -> None:
    """Write each task: its id where the form has ids, its key, the payload's size, the payload."""
    position = 0
    for row in range(len(keys)):
        start = bounds[row]
        size = bounds[row + 1] - start
        if has_ids:
            position = put(encoded, position, ids[row], 8)
        position = put(encoded, position, keys[row], 8)
        position = put(encoded, position, size, 4)
        position = copy(data, start, encoded, position, size)
