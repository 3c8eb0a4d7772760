"""Snapshots in columns: the answers of the plain decoder, whatever the file, the window or the damage."""

from __future__ import annotations

import tracemalloc
from random import Random
from struct import pack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, TruncatedData
from penstock.formats.kernel import BATCH_ROWS
from penstock.formats.taskflux.snapshot import WINDOW, SnapshotLayout
from penstock.formats.taskflux.snapshot_decode import (
    Batch,
    ReadAt,
    SnapshotHeader,
    TaskColumns,
    decode_snapshot,
    scan_snapshot,
)
from penstock.model import NO_LIMITS, UINT64_MAX, QueueHead, QueueName, TaskId
from support.damage import cuts, flipped, overwritten, random_damage
from support.snapshot_files import encoded, reader_of
from support.taskflux_strategies import snapshots
from support.taskflux_vectors import POINT, SNAPSHOT_3

each_layout = pytest.mark.parametrize("layout", SnapshotLayout, ids=lambda layout: layout.name)

Said = list[object]
"""The header, the heads and the tasks, one by one, each task with its place; an error last, as text."""


@pytest.fixture(scope="module", autouse=True)
def _warm_kernel() -> None:
    """Compile before any test is timed."""
    list(scan_snapshot(reader_of(SNAPSHOT_3), len(SNAPSHOT_3), SnapshotLayout.THREE))


def plainly(read: ReadAt, size: int, layout: SnapshotLayout) -> Said:
    """Return what the plain decoder says."""
    said: Said = []
    header_size = layout.form.task_header.size
    try:
        for part in decode_snapshot(read, size, layout):
            if not isinstance(part, Batch):
                said.append(part)
                continue
            offset = part.offset
            for task_id, key, payload in part.tasks:
                said.append((offset, header_size + len(payload), task_id, key, payload))
                offset += header_size + len(payload)
    except BadData as error:
        said.append((type(error), str(error)))
    return said


def in_columns(
    read: ReadAt,
    size: int,
    layout: SnapshotLayout,
    *,
    window_size: int = WINDOW,
    batch_rows: int = BATCH_ROWS,
) -> Said:
    """Return what the scan says."""
    said: Said = []
    head: QueueHead | None = None
    scanned = scan_snapshot(
        read,
        size,
        layout,
        window_size=window_size,
        batch_rows=batch_rows,
    )
    try:
        for part in scanned:
            if isinstance(part, TaskColumns):
                assert part.head is head
                assert 0 < len(part) <= batch_rows
                said += rows_of(part)
                continue
            head = part if isinstance(part, QueueHead) else None
            said.append(part)
    except BadData as error:
        said.append((type(error), str(error)))
    return said


def rows_of(batch: TaskColumns) -> list[tuple[object, ...]]:
    columns = (
        batch.offset,
        batch.size,
        batch.task_id,
        batch.key,
        batch.payload_offset,
        batch.payload_size,
    )
    return [
        (batch.base + offset, size, task_id, key, batch.data[start : start + length].tobytes())
        for offset, size, task_id, key, start, length in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def assert_same(
    data: bytes,
    layout: SnapshotLayout,
    *,
    window_size: int = WINDOW,
    batch_rows: int = BATCH_ROWS,
) -> Said:
    """Hold the scan, compiled, to the decoder, interpreted."""
    read = reader_of(data)
    expected = plainly(read, len(data), layout)
    found = in_columns(read, len(data), layout, window_size=window_size, batch_rows=batch_rows)
    assert found == expected
    return expected


def queue(name: str, tasks: int = 0, last_id: int | None = None) -> QueueHead:
    last = TaskId(tasks if last_id is None else last_id)
    return QueueHead(name=QueueName(name), policy=NO_LIMITS, last_id=last, count=tasks)


def small_file(layout: SnapshotLayout) -> bytes:
    """Return two queues with a few tasks, one of them without a payload."""
    tasks = [(1, 5, b"hi"), (2, -1, b""), (3, 2**63 - 1, b"longer")]
    queues = [(queue("", tasks=1), [(1, -(2**63), b"x")]), (queue("orders", tasks=3), tasks)]
    return encoded(POINT, queues, layout)


# --- whole files ---------------------------------------------------------------------------------


@each_layout
@given(
    data=st.data(),
    window_size=st.sampled_from([1, 7, 64, WINDOW]),
    batch_rows=st.sampled_from([1, 2, BATCH_ROWS]),
)
def test_columns_equal_tasks(
    layout: SnapshotLayout, data: st.DataObject, window_size: int, batch_rows: int
) -> None:
    point, queues = data.draw(snapshots(layout))
    raw = encoded(point, queues, layout)
    said = assert_same(raw, layout, window_size=window_size, batch_rows=batch_rows)
    assert [part for part in said if isinstance(part, QueueHead)] == [head for head, _ in queues]
    tasks = [part[2:] for part in said if isinstance(part, tuple)]
    assert tasks == [task for _, some in queues for task in some]


@each_layout
def test_every_window_gives_the_same(layout: SnapshotLayout) -> None:
    data = small_file(layout)
    for window_size in range(1, len(data) + 2):
        assert_same(data, layout, window_size=window_size)


@pytest.mark.parametrize("task_id", [1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, UINT64_MAX])
def test_ids_of_64_bits_come_through(task_id: int) -> None:
    for last_id in {task_id, UINT64_MAX}:
        head = queue("", tasks=1, last_id=last_id)
        raw = encoded(POINT, [(head, [(task_id, 0, b"")])], SnapshotLayout.THREE)
        said = assert_same(raw, SnapshotLayout.THREE)
        assert said[-1] == (54, 20, task_id, 0, b"")


def test_columns_are_arrays_of_the_types_they_claim() -> None:
    parts = list(scan_snapshot(reader_of(SNAPSHOT_3), len(SNAPSHOT_3), SnapshotLayout.THREE))
    assert isinstance(parts[0], SnapshotHeader)
    batch = parts[-1]
    assert isinstance(batch, TaskColumns)
    assert batch.task_id.dtype == np.uint64
    assert {batch.offset.dtype, batch.key.dtype, batch.payload_size.dtype} == {np.dtype(np.int64)}


# --- damage --------------------------------------------------------------------------------------


@each_layout
@pytest.mark.parametrize("window_size", [16, WINDOW])
def test_a_file_cut_anywhere_reads_the_same(layout: SnapshotLayout, window_size: int) -> None:
    for part in cuts(small_file(layout)):
        assert_same(part, layout, window_size=window_size)


@each_layout
@pytest.mark.parametrize("window_size", [16, WINDOW])
def test_a_file_with_any_bit_turned_reads_the_same(
    layout: SnapshotLayout, window_size: int
) -> None:
    data = small_file(layout)
    for bit in range(8 * len(data)):
        assert_same(flipped(data, bit), layout, window_size=window_size)


@each_layout
@given(data=st.data(), seed=st.integers(0, 2**32), window_size=st.sampled_from([5, 100, WINDOW]))
def test_a_damaged_file_reads_the_same(
    layout: SnapshotLayout, data: st.DataObject, seed: int, window_size: int
) -> None:
    point, queues = data.draw(snapshots(layout))
    raw = random_damage(Random(seed), encoded(point, queues, layout), start=0)
    assert_same(raw, layout, window_size=window_size)


@pytest.mark.parametrize("task_id", [0, 4, 2**32, 2**63, UINT64_MAX])
def test_an_id_that_was_never_given_out_is_refused_at_its_task(task_id: int) -> None:
    """The place was that of the batch once, which says nothing in a file of millions of tasks."""
    data = overwritten(SNAPSHOT_3, 124, pack(">Q", task_id))
    said = assert_same(data, SnapshotLayout.THREE)
    assert [part[2] for part in said if isinstance(part, tuple) and len(part) == 5] == [2]
    last = said[-1]
    assert isinstance(last, tuple)
    assert last[0] is CorruptData
    assert last[1].startswith("offset 124: snapshot checksum does not match; first impossible")


# --- bounds --------------------------------------------------------------------------------------


def test_a_state_larger_than_the_window_is_read_once_and_in_pieces() -> None:
    """Tasks straddle the windows, and one is larger than a window."""
    payloads = [bytes((i,)) * 300_000 for i in range(8)] + [b"L" * (2 * WINDOW + 7), b"", b"x"]
    tasks = [(i, i, payload) for i, payload in enumerate(payloads, 1)]
    raw = encoded(POINT, [(queue("", tasks=len(tasks)), tasks)], SnapshotLayout.THREE)
    sizes: list[int] = []

    def read(offset: int, size: int) -> bytes:
        sizes.append(size)
        return raw[offset : offset + size]

    found = in_columns(read, len(raw), SnapshotLayout.THREE)
    assert max(sizes) <= len(payloads[8]) + 20
    assert sorted(sizes)[-2] <= WINDOW
    assert sum(sizes) <= len(raw) + 100
    assert found == plainly(read, len(raw), SnapshotLayout.THREE)


def test_many_tasks_come_in_batches_of_bounded_size() -> None:
    count = 2 * BATCH_ROWS + 5
    tasks = [(i, -i, b"%d" % i) for i in range(1, count + 1)]
    raw = encoded(POINT, [(queue("", tasks=count), tasks)], SnapshotLayout.TWO_SEED)
    read = reader_of(raw)
    batches = [
        len(part)
        for part in scan_snapshot(read, len(raw), SnapshotLayout.TWO_SEED)
        if isinstance(part, TaskColumns)
    ]
    assert batches == [BATCH_ROWS, BATCH_ROWS, 5]
    assert in_columns(read, len(raw), SnapshotLayout.TWO_SEED) == plainly(
        read, len(raw), SnapshotLayout.TWO_SEED
    )


@pytest.mark.parametrize(("at", "field"), [(118, "a payload"), (98, "queue")])
def test_a_length_that_claims_2_gib_takes_no_memory(at: int, field: str) -> None:
    data = overwritten(SNAPSHOT_3, at, pack(">i", 2**31 - 1))
    if field == "queue":  # So many tasks need a last id that allows them.
        data = overwritten(data, 65, pack(">Q", UINT64_MAX))
    read = reader_of(data)
    scanned = scan_snapshot(read, len(data), SnapshotLayout.THREE)
    tracemalloc.start()
    try:
        with pytest.raises(BadData, match=f"ends inside {field}"):
            list(scanned)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert_same(data, SnapshotLayout.THREE)


def test_a_file_that_shrinks_while_it_is_read_is_truncated() -> None:
    read = reader_of(SNAPSHOT_3[:110])
    with pytest.raises(TruncatedData):
        list(scan_snapshot(read, len(SNAPSHOT_3), SnapshotLayout.THREE))
