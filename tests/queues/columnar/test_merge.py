"""Merging and compaction: nothing of it is visible."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.records.changes import RemoveTasks, SetTasks
from penstock.formats.records.ids import RemoveReason
from penstock.queues.columnar.gather import gather, grouped
from penstock.queues.columnar.merge import split
from penstock.queues.columnar.queue import CHUNK_TASKS
from penstock.queues.columnar.task import task_at
from support.state_examples import TIME_MS, Example, chunk
from support.states import ids_in_order, snapshot_of, tasks_in_order, tidied

COLUMNS: dict[str, Any] = {
    "not_before": [5, 10] * 20,
    "expires": 50,
    "headers": [{"a": b"1"}, {}] * 20,
    "attempts": [0, 3] * 20,
    "entries": [4] * 10 + [5] * 30,
    "principals": [1] * 20 + [2] * 20,
    "born": [None, (9, 9)] * 20,
    "origins": [b"", b"{}"] * 20,
}


def sizes_of(example: Example) -> list[int]:
    return [chunk.count for chunk in example.state.queues[1].directory]


def test_small_chunks_are_merged_in_two_tiers() -> None:
    example = Example()
    for _ in range(32):
        example.add(1)
    tidied(example.state)
    assert sizes_of(example) == [32]
    for _ in range(CHUNK_TASKS - 32):
        example.add(1)
    tidied(example.state)
    assert sizes_of(example) == [CHUNK_TASKS]


def test_batches_are_merged_up_to_a_size_of_payloads() -> None:
    example = Example()
    for _ in range(6):
        example.add(100, size=1000)
    tidied(example.state)
    assert sizes_of(example) == [300, 300]


def test_a_sparse_chunk_gives_its_bytes_back() -> None:
    example = Example()
    example.add(4000, size=50)
    for start in range(1, 4001, 5):
        change = RemoveTasks(1, range(start, start + 4), RemoveReason.ACKED)
        assert example.apply(change) == 0
    before = tasks_in_order(example.state.queues[1])
    tidied(example.state)
    queue = example.state.queues[1]
    assert sum(len(chunk.data) for chunk in queue.directory) == queue.size == 800 * 50
    assert tasks_in_order(queue) == before


def test_a_step_of_housekeeping_copies_a_bounded_number_of_tasks() -> None:
    example = Example()
    example.add(16_000, size=10, keys=list(range(16_000)))
    scattered = array("Q", [task_id for task_id in range(1, 16_001) if task_id % 6])
    assert example.apply(RemoveTasks(1, scattered, RemoveReason.ACKED)) == 0
    calls = 0
    while example.state.tidy(256):
        calls += 1
        assert max(sizes_of(example)) <= 16_000
    assert calls > 20
    assert max(sizes_of(example)) <= 2 * CHUNK_TASKS


@given(st.integers(1, 39), st.sets(st.integers(0, 39)))
def test_both_parts_of_a_chunk_keep_every_column(cut: int, gone: set[int]) -> None:
    whole = chunk(10, 40, keys=[1, 2, 3, 4] * 10, **COLUMNS)
    whole.own_details().set_headers({3: b"", 30: b""})
    whole.remove(sorted(gone))
    parts = split(whole, cut)
    tasks = [task_at(part, place) for part in parts for place in range(part.count)]
    assert tasks == [task_at(whole, place) for place in range(40)]
    assert [part.live for part in parts] == [part.status.count(0) for part in parts]
    assert sum(part.live_size for part in parts) == whole.live_size


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 50), st.integers(0, 90))
def test_groups_do_not_depend_on_chunks(sizes: list[int], count_max: int, size_max: int) -> None:
    total = sum(sizes)
    whole = chunk(1, total)
    chunks, first = [], 1
    for size in sizes:
        chunks.append(chunk(first, size))
        first += size
    cuts = [
        [[task_id for part, places in group for task_id in part.ids_at(places)] for group in groups]
        for groups in (
            grouped([(whole, range(total))], count_max=count_max, size_max=size_max),
            grouped(
                [(part, list(range(part.count))) for part in chunks],
                count_max=count_max,
                size_max=size_max,
            ),
        )
    ]
    assert cuts[0] == cuts[1]
    assert [task_id for group in cuts[0] for task_id in group] == list(range(1, total + 1))
    for group, following in zip(cuts[0], [*cuts[0][1:], None], strict=True):
        size = sum(len(str(task_id)) for task_id in group)
        assert len(group) <= count_max
        assert size <= size_max or len(group) == 1
        if following is not None:  # it ended because the next task would not fit
            assert len(group) == count_max or size + len(str(following[0])) > size_max


def test_gathered_columns_have_one_form() -> None:
    parts = [chunk(1, 2, keys=[3, 3], entry=1), chunk(3, 2, keys=3, entry=2, attempts=[0, 0])]
    new = gather([(part, range(2)) for part in parts], TIME_MS)
    assert (new.keys, new.sizes, new.ids) == (3, 1, None)
    assert new.details is not None
    assert new.details.attempts is None
    assert new.details.sources is not None
    assert list(new.details.sources.entries) == [1, 2]


def test_a_merged_task_is_not_delivered_under_its_old_key() -> None:
    example = Example()
    for _ in range(31):
        example.add(1)
    assert len(ids_in_order(example.state.queues[1])) == 31
    example.apply(SetTasks(1, range(10, 11), keys=9))
    example.add(1)
    tidied(example.state)
    assert sizes_of(example) == [32]
    expected = [(5, task_id) for task_id in range(1, 33) if task_id != 10]
    assert ids_in_order(example.state.queues[1]) == [*expected, (9, 10)]


def test_housekeeping_leaves_the_snapshot_as_it_is() -> None:
    example = Example()
    for number in range(40):
        example.add(30, keys=[number % 3, 7, 8] * 10, not_before=number, size=number)
    example.apply(RemoveTasks(1, range(100, 1100), RemoveReason.ACKED))
    before = snapshot_of(example.state)
    while example.state.tidy(1):
        assert snapshot_of(example.state) == before
    assert len(sizes_of(example)) < 10
