"""The state machine: queues by name and number, and changes that contradict it."""

from __future__ import annotations

import pytest

from penstock.errors import ReplayConflict
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    NO_OPTIONS,
    Policy,
    QueueHead,
    QueueName,
    TaskId,
    Terms,
)
from penstock.queues.state import State

A, B = QueueName("a"), QueueName("b")


def test_a_number_is_used_once_and_a_name_again() -> None:
    state = State()
    first = state.create(A, NO_LIMITS, NO_OPTIONS)
    state.create(B, NO_LIMITS, NO_OPTIONS)
    state.delete(A)
    again = state.create(A, NO_LIMITS, NO_OPTIONS)
    assert (first.number, again.number, state.next_number) == (1, 3, 4)
    assert state.find_number(1) is None
    assert [queue.name for queue in state.queues()] == [DEFAULT_QUEUE, B, A]


def test_the_default_queue_always_exists_under_its_number() -> None:
    state = State()
    state.add(state.find(DEFAULT_QUEUE), [1], [b"x"])
    state.delete(DEFAULT_QUEUE)
    assert len(state.find(DEFAULT_QUEUE)) == 0
    assert state.find_number(0) is state.find(DEFAULT_QUEUE)


def test_what_contradicts_the_state_is_refused() -> None:
    state = State()
    with pytest.raises(ReplayConflict, match="does not exist"):
        state.find(A)
    state.create(A, NO_LIMITS, NO_OPTIONS)
    with pytest.raises(ReplayConflict, match="exists"):
        state.create(A, NO_LIMITS, NO_OPTIONS)
    with pytest.raises(ReplayConflict, match="not there"):
        state.return_(1, [1], not_before_ms=None)
    assert state.return_(9, [1], not_before_ms=None) is None
    state.delete(B)  # how logs say nothing


def test_terms_are_kept_for_each_task_of_a_run() -> None:
    state = State()
    queue = state.find(DEFAULT_QUEUE)
    terms = Terms(
        not_before_ms=50, expires_ms=90, attempts=2, producer=b"p" * 16, sequence=4, total=3
    )
    assert state.add(queue, [1, 1], [b"a", b"b"], terms) == 1
    assert dict(queue.delayed) == {1: 50, 2: 50}
    assert dict(queue.expiring) == {1: 90, 2: 90}
    assert queue.attempts == {1: 2, 2: 2}
    taken = state.producers.find(b"p" * 16, 4)
    assert taken is not None
    assert (taken.queue, taken.total, taken.runs) == (0, 3, ((1, 2),))


def head(name: QueueName, last_id: int = 0) -> QueueHead:
    return QueueHead(name=name, policy=Policy(), last_id=TaskId(last_id), count=0)


def restored() -> State:
    state = State()
    for name in (B, DEFAULT_QUEUE, A):
        state.restore(head(name))
    return state


def test_queues_of_a_plain_snapshot_are_numbered_as_they_stand() -> None:
    state = restored()
    assert {queue.name: queue.number for queue in state.queues()} == {B: 1, DEFAULT_QUEUE: 0, A: 2}
    assert state.next_number == 3


def test_notes_give_queues_the_numbers_they_had() -> None:
    state = restored()
    state.renumber({DEFAULT_QUEUE: 0, A: 7, B: 3}, 12)
    assert [queue.number for queue in state.queues()] == [0, 3, 7]
    assert state.create(QueueName("c"), NO_LIMITS, NO_OPTIONS).number == 12


@pytest.mark.parametrize(
    ("numbers", "following"),
    [
        ({DEFAULT_QUEUE: 0, A: 1}, 5),
        ({DEFAULT_QUEUE: 0, A: 1, B: 2, QueueName("c"): 3}, 5),
        ({DEFAULT_QUEUE: 0, A: 1, B: 1}, 5),
        ({DEFAULT_QUEUE: 3, A: 1, B: 2}, 5),
        ({DEFAULT_QUEUE: 0, A: 1, B: 5}, 5),
    ],
    ids=["one missing", "one too many", "twice", "default", "beyond the next"],
)
def test_notes_that_number_queues_impossibly_are_refused(
    numbers: dict[QueueName, int], following: int
) -> None:
    with pytest.raises(ReplayConflict, match="notes"):
        restored().renumber(numbers, following)
