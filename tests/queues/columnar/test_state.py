"""Rules of ``State.apply``, one by one. The state machine test holds all of them together."""

from __future__ import annotations

import json
from array import array

import pytest

from penstock.formats.records.changes import (
    DeleteQueue,
    Deliver,
    Empty,
    Envelope,
    MoveTasks,
    Part,
    RemoveTasks,
    ReturnTasks,
    SetMembers,
    SetQueue,
    SetTasks,
)
from penstock.formats.records.columns import NONE
from penstock.formats.records.ids import DeliverReason, MoveReason, RemoveReason, ReturnReason
from penstock.formats.records.settings import ClusterSettings, QueueSettings
from penstock.model import QueueName
from penstock.queues.columnar.envelope import ID_MAX
from penstock.queues.columnar.task import Task
from support.state_examples import TIME_MS, Example, added
from support.states import ids_in_order, snapshot_of, tasks_in_order

PRODUCER = b"p" * 16


def task(example: Example, task_id: int, queue_id: int = 1) -> Task:
    tasks = tasks_in_order(example.state.queues[queue_id])
    return next(task for task in tasks if task.id == task_id)


def test_an_add_behind_a_delete_has_no_effect_and_uses_up_no_sequence() -> None:
    example = Example()
    example.apply(DeleteQueue(1))
    assert example.apply(added(1, 1, 5, [b"x", b"y"], producer=(PRODUCER, 0))) == 2
    assert example.state.producers.find(PRODUCER) is None
    assert example.state.without_effect == 2


def test_ids_of_queues_are_never_reused() -> None:
    example = Example()
    example.apply(DeleteQueue(2))
    settings = QueueSettings(name=QueueName("b"))
    assert example.apply(SetQueue(2, settings)) == 1
    assert example.apply(SetQueue(3, settings)) == 0
    assert sorted(example.state.queues) == [1, 3]
    assert example.state.next_queue_id == 4


def test_a_queue_keeps_its_name_and_a_name_its_queue() -> None:
    example = Example()
    assert example.apply(SetQueue(1, QueueSettings(name=QueueName("c")))) == 1
    assert example.apply(SetQueue(9, QueueSettings(name=QueueName("a")))) == 1
    assert example.apply(SetQueue(1, QueueSettings(name=QueueName("a"), policy={"x": 1}))) == 0
    assert example.state.by_name[b"a"].settings.policy == {"x": 1}


@pytest.mark.parametrize("first_id", [1, 3, ID_MAX])
def test_ids_that_a_queue_cannot_give_out_have_no_effect(first_id: int) -> None:
    example = Example()
    example.add(3)
    assert example.apply(added(1, first_id, 5, [b"x", b"y"])) == 2
    assert example.state.queues[1].last_id == 3


def test_the_last_request_of_a_producer_is_known_with_its_ids() -> None:
    example = Example()
    example.add(3, producer=(PRODUCER, 7))
    found = example.state.producers.find(PRODUCER)
    assert found is not None
    assert found[1:] == (9, 1, 1, 3, TIME_MS)


@pytest.mark.parametrize(
    ("reason", "attempts"),
    [(ReturnReason.FAILED, 1), (ReturnReason.LEASE_ENDED, 1), (ReturnReason.RELEASED, 0)],
)
def test_a_return_counts_started_deliveries(reason: ReturnReason, attempts: int) -> None:
    example = Example()
    example.add(3)
    assert example.apply(ReturnTasks(1, array("Q", [1, 3, 9]), reason)) == 1
    assert [task.attempts for task in tasks_in_order(example.state.queues[1])] == [
        attempts,
        0,
        attempts,
    ]


def test_a_returned_task_goes_to_its_place_under_another_key() -> None:
    example = Example()
    example.add(3)
    assert ids_in_order(example.state.queues[1]) == [(5, 1), (5, 2), (5, 3)]
    example.apply(ReturnTasks(1, range(2, 3), ReturnReason.FAILED, keys=1))
    example.apply(ReturnTasks(1, range(1, 2), ReturnReason.FAILED, keys=9))
    assert ids_in_order(example.state.queues[1]) == [(1, 2), (5, 3), (9, 1)]
    example.apply(SetTasks(1, range(1, 3), keys=[5, 5]))
    assert ids_in_order(example.state.queues[1]) == [(5, 1), (5, 2), (5, 3)]


def test_a_time_that_is_not_given_stays_and_none_takes_it_away() -> None:
    example = Example()
    example.add(2, not_before=10, expires=100)
    example.time_ms += 5
    example.apply(ReturnTasks(1, range(1, 2), ReturnReason.RELEASED))
    example.apply(SetTasks(1, range(2, 3), not_before=NONE, expires=1))
    first, second = tasks_in_order(example.state.queues[1])
    assert (first.not_before_ms, first.expires_ms) == (TIME_MS + 10, TIME_MS + 100)
    assert (second.not_before_ms, second.expires_ms) == (None, TIME_MS + 6)


def test_the_first_entry_of_a_term_counts_started_tasks_and_clears_all_marks() -> None:
    example = Example()
    example.add(3)
    example.apply(Deliver(1, range(1, 4), DeliverReason.DELIVERED, b"c", 1000))
    example.apply(Deliver(1, range(2, 3), DeliverReason.STARTED, b"c", 1000))
    mark = task(example, 2).mark
    assert mark is not None
    assert (mark.reason, mark.deadline_ms) == (DeliverReason.STARTED, TIME_MS + 1000)
    example.term += 1
    example.apply(Empty())
    tasks = tasks_in_order(example.state.queues[1])
    assert [task.attempts for task in tasks] == [0, 1, 0]
    assert [task.mark for task in tasks] == [None] * 3


@pytest.mark.parametrize("reason", ReturnReason)
def test_the_mark_of_a_delivery_ends_with_it(reason: ReturnReason) -> None:
    example = Example()
    example.add(2)
    example.apply(Deliver(1, range(1, 3), DeliverReason.STARTED, b"c", 1000))
    example.apply(ReturnTasks(1, range(1, 2), reason))
    assert [task.mark is None for task in tasks_in_order(example.state.queues[1])] == [True, False]
    before = task(example, 1).attempts
    example.term += 1
    example.apply(Empty())
    assert task(example, 1).attempts == before


def test_an_expiry_removes_only_tasks_whose_life_is_over() -> None:
    example = Example()
    example.add(4, expires=[5, NONE, 20, 10])
    example.time_ms += 10
    example.apply(RemoveTasks(1, range(1, 100), RemoveReason.EXPIRED, is_span=True))
    assert [task_id for _, task_id in ids_in_order(example.state.queues[1])] == [2, 3]


def test_identity_and_origin_follow_a_task_over_moves() -> None:
    example = Example()
    example.add(2, headers=[{"h": b"1"}, {}], not_before=5)
    dead = MoveTasks(1, range(1, 4), MoveReason.DEAD_FAILED, 2, 10, errors=b'no "luck"')
    assert example.apply(dead) == 1
    assert example.state.queues[2].last_id == 12
    moved = task(example, 10, 2)
    assert (moved.born, moved.attempts, moved.not_before_ms) == ((1, 1), 1, None)
    assert moved.headers == {"h": b"1"}
    assert json.loads(moved.origin) == {
        "attempts": 0, "error": 'no "luck"', "id": 1, "queue": 1, "reason": 1, "time_ms": TIME_MS,
    }  # fmt: skip
    assert example.apply(MoveTasks(2, range(10, 11), MoveReason.REDRIVEN, 1, 3, keys=8)) == 0
    back = task(example, 3)
    assert (back.key, back.born, back.attempts) == (8, (1, 1), 0)
    assert (back.enqueued_ms, back.entry, back.payload) == (TIME_MS, 3, b"0001")
    assert json.loads(back.origin) == {
        "attempts": 1, "id": 10, "queue": 2, "reason": 5, "time_ms": TIME_MS,
    }  # fmt: skip


def test_a_missing_id_leaves_its_new_id_unused() -> None:
    example = Example()
    example.add(3)
    example.apply(RemoveTasks(1, range(2, 3), RemoveReason.ACKED))
    assert example.apply(MoveTasks(1, range(1, 4), MoveReason.MOVED, 2, 5)) == 1
    assert [task_id for _, task_id in ids_in_order(example.state.queues[2])] == [5, 7]


@pytest.mark.parametrize(
    "change",
    [
        RemoveTasks(1, range(3, 5), RemoveReason.ACKED),
        ReturnTasks(9, range(1, 2), ReturnReason.FAILED),
        MoveTasks(1, range(1, 2), MoveReason.MOVED, 9, 1),
        added(2, 0, 1, [b"z"]),
        SetTasks(1, range(2, 3), keys=1),  # the part in front of it removes the task
    ],
)
def test_an_envelope_takes_effect_whole_or_not_at_all(change: object) -> None:
    example = Example()
    example.add(3)
    before = snapshot_of(example.state)
    good = (Part(RemoveTasks(1, range(2, 3), RemoveReason.ACKED)), Part(added(2, 1, 1, [b"x"])))
    assert example.apply(Envelope((*good, Part(change)))) == 3  # type: ignore[arg-type]
    example.state.index -= 1
    assert snapshot_of(example.state) == before
    assert example.apply(Envelope(good)) == 0
    assert (example.state.queues[1].count, example.state.queues[2].count) == (2, 1)


def test_later_members_records_keep_the_cluster_id() -> None:
    example = Example()
    example.apply(SetMembers(ClusterSettings(members=(), feature_level=1, cluster_id=b"c" * 16)))
    example.apply(SetMembers(ClusterSettings(members=(), feature_level=2)))
    assert example.state.members == ClusterSettings(
        members=(), feature_level=2, cluster_id=b"c" * 16
    )
