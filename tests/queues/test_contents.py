"""One queue against the plainest model there is: a list that is sorted whenever it matters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import ReplayConflict
from penstock.model import INT64_MAX, INT64_MIN, NO_LIMITS, Policy, QueueHead, QueueName, TaskId
from penstock.queues.contents import QueueContents

# Few values, so that equal tasks and equal keys are the rule.
keys = st.sampled_from([INT64_MIN, INT64_MAX])
payloads = st.sampled_from([b"", b"a"])


def empty(last_id: int = 0) -> QueueContents:
    return QueueContents(QueueName("q"), NO_LIMITS, last_id)


class ContentsMachine(RuleBasedStateMachine):
    """Any sequence of operations leaves the queue and the list with the same tasks and answers."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = empty()
        self.tasks: list[tuple[int, int, bytes]] = []  # id, key, payload
        self.gone: list[tuple[int, int, bytes]] = []
        self.last_id = 0

    @rule(key=keys, payload=payloads)
    def add(self, key: int, payload: bytes) -> None:
        self.last_id += 1
        assert self.queue.add(key, payload) == self.last_id
        self.tasks.append((self.last_id, key, payload))

    @rule()
    def pop(self) -> None:
        first = min(self.tasks, key=lambda task: (task[1], task[0]), default=None)
        assert self.queue.pop() == first
        if first is not None:
            self._take(first)

    @rule(key=keys, payload=payloads)
    def remove_equal(self, key: int, payload: bytes) -> None:
        equal = [task for task in self.tasks if task[1:] == (key, payload)]
        oldest = min(equal, default=None)
        assert self.queue.remove_equal(key, payload) == (None if oldest is None else oldest[0])
        if oldest is not None:
            self._take(oldest)

    @rule(task_id=st.integers(0, 12))
    def remove(self, task_id: int) -> None:
        task = next((task for task in self.tasks if task[0] == task_id), None)
        assert self.queue.remove(task_id) == (None if task is None else task[1:])
        if task is not None:
            self._take(task)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.gone))
        self.queue.restore(*task)
        self.gone.remove(task)
        self.tasks.append(task)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def restore_what_is_there(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        with pytest.raises(ReplayConflict):
            self.queue.restore(*task)

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.queue) == len(self.tasks)
        assert list(self.queue.by_age()) == sorted(self.tasks)
        assert list(self.queue.in_order()) == sorted(self.tasks, key=lambda t: (t[1], t[0]))
        assert self.queue.head == QueueHead(
            name=QueueName("q"),
            policy=NO_LIMITS,
            last_id=TaskId(self.last_id),
            count=len(self.tasks),
        )

    def _take(self, task: tuple[int, int, bytes]) -> None:
        self.tasks.remove(task)
        self.gone.append(task)


TestContents = pytest.mark.slow(ContentsMachine.TestCase)
TestContents.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)


# --- order ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(INT64_MIN, INT64_MAX), st.binary(max_size=3)), max_size=30))
def test_tasks_come_out_by_key_and_within_a_key_as_they_came_in(
    added: list[tuple[int, bytes]],
) -> None:
    queue = empty()
    for key, payload in added:
        queue.add(key, payload)
    expected = [(i, *task) for i, task in enumerate(added, 1)]
    expected.sort(key=lambda task: (task[1], task[0]))
    assert list(queue.in_order()) == expected
    assert [queue.pop() for _ in added] == expected
    assert queue.pop() is None
    assert len(queue) == 0


def test_ids_go_on_from_the_last_one_given_out() -> None:
    queue = empty(last_id=41)
    assert queue.add(0, b"") == 42
    assert queue.remove(42) == (0, b"")
    assert queue.add(0, b"") == 43
    assert queue.last_id == 43


def test_a_restored_task_takes_its_old_place() -> None:
    queue = empty(last_id=3)
    for task_id in (2, 3, 1):
        queue.restore(task_id, 7, b"%d" % task_id)
    assert [task_id for task_id, _, _ in queue.by_age()] == [1, 2, 3]
    assert [queue.pop() for _ in range(3)] == [(1, 7, b"1"), (2, 7, b"2"), (3, 7, b"3")]


def test_a_task_restored_late_is_still_the_oldest_of_its_equals() -> None:
    """It once went behind all equal tasks, so that the wrong one was removed by value."""
    queue = empty()
    for _ in range(3):
        queue.add(5, b"same")
    assert queue.remove_equal(5, b"same") == 1
    assert queue.remove(2) == (5, b"same")
    queue.restore(1, 5, b"same")
    assert queue.remove_equal(5, b"same") == 1
    assert queue.remove_equal(5, b"same") == 3
    assert queue.remove_equal(5, b"same") is None


def test_the_oldest_of_equal_tasks_is_removed_by_value() -> None:
    queue = empty()
    for key, payload in ((1, b"a"), (1, b"b"), (1, b"a"), (2, b"a")):
        queue.add(key, payload)
    assert queue.remove_equal(1, b"a") == 1
    assert queue.remove_equal(1, b"a") == 3
    assert queue.remove_equal(1, b"a") is None
    assert [task_id for task_id, _, _ in queue.by_age()] == [2, 4]


@pytest.mark.parametrize("first", ["pop", "remove_equal", "none"])
def test_indexes_made_early_or_late_give_the_same_order(first: str) -> None:
    queue = empty()
    if first == "pop":
        assert queue.pop() is None
    if first == "remove_equal":
        assert queue.remove_equal(0, b"") is None
    for key in (3, 1, 2, 1):
        queue.add(key, b"x")
    assert queue.remove_equal(1, b"x") == 2
    assert queue.pop() == (4, 1, b"x")
    assert queue.remove(1) == (3, b"x")
    assert queue.pop() == (3, 2, b"x")
    assert queue.pop() is None


def test_the_head_says_all_but_the_tasks() -> None:
    policy = Policy(size_max=5)
    queue = QueueContents(QueueName("orders"), policy, 7)
    queue.add(1, b"x")
    assert queue.head == QueueHead(
        name=QueueName("orders"), policy=policy, last_id=TaskId(8), count=1
    )
