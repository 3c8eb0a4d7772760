"""The canonical snapshot: one form for a state, however it came about; and what a restore refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import BadRecord
from penstock.formats.records import add
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Deliver,
    RemoveTasks,
    ReturnTasks,
    SetQueue,
    encode_change,
)
from penstock.formats.records.columns import NONE
from penstock.formats.records.header import Kind
from penstock.formats.records.ids import DeliverReason, RemoveReason, ReturnReason
from penstock.formats.records.read import decode_entry, read_snapshot
from penstock.formats.records.settings import QueueSettings, SnapshotStart
from penstock.formats.records.writer import write_snapshot
from penstock.model import QueueName
from penstock.queues.columnar.snapshot import PAYLOADS_MAX, TASKS_MAX, freeze
from support.state_examples import TIME_MS, Example, added
from support.states import restored, snapshot_of, tasks_in_order, tidied


def changes_of(data: bytes) -> list[Change]:
    records = [r for r in read_snapshot(data).records if r.header.kind != Kind.PRODUCERS]
    return [decode_entry(data, record)[1] for record in records]


def adds_of(data: bytes) -> list[AddTasks]:
    return [change for change in changes_of(data) if isinstance(change, AddTasks)]


def test_plain_tasks_have_no_columns_but_those_that_tell_where_they_come_from() -> None:
    example = Example()
    example.add(3)
    (change,) = adds_of(snapshot_of(example.state))
    assert change.body.columns == add.KEY_ONE  # of the entry that the snapshot covers
    example.time_ms += 1
    example.apply(ReturnTasks(1, range(2, 3), ReturnReason.FAILED))
    (change,) = adds_of(snapshot_of(example.state))
    assert change.body.columns == add.KEY_ONE | add.ATTEMPTS | add.ENQUEUED | add.ENTRY_EACH


def test_an_unknown_enqueue_time_stays_unknown() -> None:
    example = Example()
    example.add(2, enqueued=[NONE, -5])
    found = [
        task.enqueued_ms for task in tasks_in_order(restored(snapshot_of(example.state)).queues[1])
    ]
    assert found == [0, TIME_MS - 5]
    converted = Example()
    converted.time_ms = 0
    converted.add(2)
    data = snapshot_of(converted.state)
    assert [task.enqueued_ms for task in tasks_in_order(restored(data).queues[1])] == [0, 0]
    assert adds_of(data)[0].body.columns == add.KEY_ONE


def test_a_record_ends_before_the_task_that_would_exceed_it() -> None:
    example = Example()
    for _ in range(5):
        example.add(1000)
    assert [change.body.count for change in adds_of(snapshot_of(example.state))] == [TASKS_MAX, 904]
    large = Example()
    large.add(3, size=PAYLOADS_MAX // 2)
    large.add(1, size=PAYLOADS_MAX + 1)
    large.add(1)
    assert [change.body.count for change in adds_of(snapshot_of(large.state))] == [2, 1, 1, 1]


def test_equal_states_have_equal_bytes_whatever_their_chunks_are() -> None:
    one, other = Example(), Example()
    one.add(600, keys=list(range(600)))
    other.add(600, keys=list(range(600)))
    for example in (one, other):
        example.apply(RemoveTasks(1, range(11, 590), RemoveReason.ACKED))
    tidied(other.state)
    chunks = [[chunk.count for chunk in e.state.queues[1].directory] for e in (one, other)]
    assert chunks == [[600], [21]]
    assert snapshot_of(one.state) == snapshot_of(other.state)
    assert (
        read_snapshot(snapshot_of(one.state)).end.digest
        == read_snapshot(snapshot_of(restored(snapshot_of(other.state)))).end.digest
    )


def test_marks_are_records_ordered_by_their_first_id() -> None:
    example = Example()
    example.add(6)
    example.apply(Deliver(1, range(3, 7), DeliverReason.DELIVERED, b"late", 9))
    example.apply(Deliver(1, range(1, 3), DeliverReason.DELIVERED, b"early", 9))
    example.apply(Deliver(1, range(4, 5), DeliverReason.STARTED, b"late", 9))
    marks = [c for c in changes_of(snapshot_of(example.state)) if isinstance(c, Deliver)]
    found = [(mark.consumer, mark.reason, list(mark.ids)) for mark in marks]
    assert found == [
        (b"early", DeliverReason.DELIVERED, [1, 2]),
        (b"late", DeliverReason.DELIVERED, [3, 5, 6]),
        (b"late", DeliverReason.STARTED, [4]),
    ]
    state = restored(snapshot_of(example.state))
    assert tasks_in_order(state.queues[1]) == tasks_in_order(example.state.queues[1])


def test_a_view_is_not_touched_by_later_changes() -> None:
    example = Example()
    example.add(100, producer=(b"p" * 16, 0))
    view, before = freeze(example.state), snapshot_of(example.state)
    example.add(5, producer=(b"p" * 16, 100))
    example.apply(RemoveTasks(1, range(1, 60), RemoveReason.ACKED))
    example.apply(ReturnTasks(1, range(60, 80), ReturnReason.FAILED, keys=1, not_before=5))
    tidied(example.state)
    example.apply(DeleteQueue(1))
    tidied(example.state)
    assert snapshot_of(view) == before


START = SnapshotStart(
    last_index=5,
    last_term=1,
    last_checksum=1,
    time_ms=TIME_MS,
    next_queue_id=2,
    feature_level=1,
    cluster_id=bytes(16),
    counts={"queues": 1, "tasks": 2, "producers": 0},
)
QUEUE = SetQueue(1, QueueSettings(name=QueueName("a"), last_id=2))
TASKS = added(1, 1, 5, [b"x", b"y"])


def test_a_snapshot_of_these_records_is_restored() -> None:
    state = restored(file_of(START, QUEUE, TASKS))
    assert (state.queues[1].count, state.queues[1].last_id, state.index) == (2, 2, 5)


@pytest.mark.parametrize(
    "changes",
    [
        (TASKS,),
        (QUEUE,),
        (QUEUE, QUEUE, TASKS),
        (QUEUE, TASKS, TASKS),
        (QUEUE, added(1, 2, 5, [b"x", b"y"])),
        (SetQueue(1, QueueSettings(name=QueueName("a"))), TASKS),
        (SetQueue(2, QueueSettings(name=QueueName("a"), last_id=2)), added(2, 1, 5, [b"x", b"y"])),
        (QUEUE, TASKS, Deliver(1, range(3, 4), DeliverReason.STARTED, b"c", 0)),
    ],
)
def test_records_that_contradict_each_other_are_refused(changes: tuple[Change, ...]) -> None:
    with pytest.raises(BadRecord):
        restored(file_of(START, *changes))


def test_counts_that_do_not_fit_are_refused() -> None:
    start = replace(START, counts={"queues": 1, "tasks": 3, "producers": 0})
    with pytest.raises(BadRecord):
        restored(file_of(start, QUEUE, TASKS))


def file_of(start: SnapshotStart, *changes: Change) -> bytes:
    return b"".join(write_snapshot(start, [encode_change(change) for change in changes]))
