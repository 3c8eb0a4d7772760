"""Random changes, applied to the state machine and to the naive model: they agree on everything that is replicated."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.formats.records.changes import (
    Change,
    DeleteQueue,
    Empty,
    MoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    Stamp,
)
from penstock.formats.records.ids import MoveReason, ReturnReason
from penstock.formats.records.settings import (
    AccessSettings,
    ClusterSettings,
    MemberSettings,
    QueueSettings,
)
from penstock.model import QueueName
from penstock.queues.columnar.producers import PRODUCERS_MAX
from penstock.queues.columnar.snapshot import View, freeze
from penstock.queues.columnar.state import State
from support.naive_state import NaiveState
from support.state_changes import deliveries, envelopes, some_ids, task_changes
from support.states import (
    ids_in_order,
    last_requests,
    recoded,
    replayed,
    restored,
    snapshot_of,
    tasks_in_order,
    tidied,
)

NAMES = ("a", "b", "c")


class StateMachine(RuleBasedStateMachine):
    """Applies every change to both, and keeps the log and some snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.model = NaiveState(PRODUCERS_MAX)
        self.log: list[tuple[Change, Stamp]] = []
        self.snapshots: dict[int, bytes] = {}  # by the number of entries in front of it
        self.views: list[tuple[View, bytes]] = []
        self.time_ms = 1_700_000_000_000
        self.term = 1
        for name in NAMES[:2]:
            self.run(SetQueue(self.model.next_queue_id, QueueSettings(name=QueueName(name))))

    def run(self, change: Change, *, principal_id: int = 0, passed_ms: int = 1) -> None:
        self.time_ms += passed_ms
        stamp = Stamp(len(self.log) + 1, self.term, self.time_ms, principal_id)
        change = recoded(change, stamp)
        self.log.append((change, stamp))
        self.state.apply(change, stamp)
        self.model.apply(change, stamp)

    @rule(data=st.data(), principal_id=st.integers(0, 2), passed_ms=st.sampled_from((0, 1, 60)))
    def change_tasks(self, data: st.DataObject, principal_id: int, passed_ms: int) -> None:
        change = data.draw(task_changes(self.model))
        self.run(change, principal_id=principal_id, passed_ms=passed_ms)

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.run(data.draw(deliveries(self.model)))

    @rule(data=st.data(), reason=st.sampled_from(ReturnReason))
    def deliver_and_return(self, data: st.DataObject, reason: ReturnReason) -> None:
        change = data.draw(deliveries(self.model))
        self.run(change)
        self.run(ReturnTasks(change.queue_id, change.ids[: len(change.ids) // 2 + 1], reason))

    @rule(data=st.data(), queue_ids=st.permutations((1, 2)))
    def move_twice(self, data: st.DataObject, queue_ids: list[int]) -> None:
        """Move tasks to another queue and back."""
        for source, target in (queue_ids, queue_ids[::-1]):
            ids = data.draw(some_ids(self.model, source))
            known = self.model.queues.get(target)
            first_id = 1 if known is None else known.last_id + 1
            reason = data.draw(st.sampled_from(MoveReason))
            self.run(MoveTasks(source, ids, reason, target, first_id))

    @rule(data=st.data())
    def change_together(self, data: st.DataObject) -> None:
        self.run(data.draw(envelopes(self.model)))

    @rule()
    def begin_term(self) -> None:
        self.term += 1
        self.run(Empty())

    @rule(
        name=st.sampled_from(NAMES), gap=st.sampled_from((-2, -1, 0, 0, 2)), limit=st.integers(0, 2)
    )
    def set_queue(self, name: str, gap: int, limit: int) -> None:
        queue_id = max(1, self.model.next_queue_id + gap)
        settings = QueueSettings(name=QueueName(name), policy={"limit": limit}, other={"new": 1})
        self.run(SetQueue(queue_id, settings))

    @precondition(lambda self: len(self.model.queues) > 1)
    @rule(data=st.data())
    def delete_queue(self, data: st.DataObject) -> None:
        self.run(DeleteQueue(data.draw(st.sampled_from((*self.model.queues, 77)))))

    @rule(cluster_id=st.sampled_from((None, b"c" * 16)), number=st.integers(1, 3))
    def set_members(self, cluster_id: bytes | None, number: int) -> None:
        members = (MemberSettings(number=number, roles=("voter",)),)
        self.run(
            SetMembers(ClusterSettings(members=members, feature_level=1, cluster_id=cluster_id))
        )

    @rule(name=st.sampled_from(("ann", "bob")))
    def set_access(self, name: str) -> None:
        self.run(SetAccess(AccessSettings(principals={1: name})))

    @rule(budget=st.sampled_from((1, 50, 2048)))
    def tidy(self, budget: int) -> None:
        self.state.tidy(budget)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots[len(self.log)] = snapshot_of(self.state)

    @rule()
    def freeze(self) -> None:
        self.views.append((freeze(self.state), snapshot_of(self.state)))

    @rule()
    def compare_tasks(self) -> None:
        self.compare(self.state)

    def compare(self, state: State) -> None:
        """Compare every field of every task with the model."""
        for queue_id, queue in self.model.queues.items():
            found = [tuple(task) for task in tasks_in_order(state.queues[queue_id])]
            assert found == [task.fields for task in queue.in_order()]

    @rule(count=st.integers(1, 30), data=st.data())
    def read_the_next_tasks(self, count: int, data: st.DataObject) -> None:
        queue_id = data.draw(st.sampled_from(list(self.model.queues)))
        expected = [(task.key, task.id) for task in self.model.queues[queue_id].in_order()]
        after = data.draw(st.none() | st.sampled_from(expected)) if expected else None
        start = 0 if after is None else expected.index(after) + 1
        runs = self.state.queues[queue_id].next_runs(count, after)
        found = [(tasks.key, task_id) for tasks in runs for task_id in tasks.ids]
        assert found == expected[start : start + count]

    @rule(ahead_ms=st.sampled_from((0, 10, 100, 10_000)))
    def compare_times(self, ahead_ms: int) -> None:
        now_ms = self.time_ms + ahead_ms
        for queue_id, naive in self.model.queues.items():
            queue = self.state.queues[queue_id]
            over = [
                task.id
                for task in naive.tasks.values()
                if (task.expires_ms or now_ms + 1) <= now_ms
            ]
            found = [
                task_id
                for chunk, places in queue.expired(now_ms, 10**6)
                for task_id in chunk.ids_at(places)
            ]
            assert found == sorted(over)
            expiries = [
                task.expires_ms for task in naive.tasks.values() if task.expires_ms is not None
            ]
            bound = queue.next_expiry_ms(now_ms)
            assert (bound is not None and bound <= now_ms) == bool(over)
            assert bound is None or not expiries or bound <= min(expiries)
            assert (bound is None) <= (not expiries)

    @invariant()
    def agree(self) -> None:
        state, model = self.state, self.model
        assert state.without_effect == model.without_effect
        assert (state.next_queue_id, state.members, state.access) == (
            model.next_queue_id,
            model.members,
            model.access,
        )
        assert list(state.queues) == list(model.queues)
        for queue_id, queue in state.queues.items():
            naive = model.queues[queue_id]
            assert (queue.settings, queue.last_id) == (naive.settings, naive.last_id)
            assert queue.count == len(naive.tasks)
            assert queue.size == sum(len(task.payload) for task in naive.tasks.values())
            assert state.by_name[queue.name] is queue
            assert ids_in_order(queue) == [(task.key, task.id) for task in naive.in_order()]
        assert last_requests(state) == [
            (producer, *request) for producer, request in model.producers.items()
        ]

    def teardown(self) -> None:
        """Replay, and every snapshot with the rest of the log, give the same bytes; views did not change."""
        self.compare(self.state)
        final = snapshot_of(self.state)
        self.compare(restored(final))
        assert snapshot_of(replayed(self.log)) == final
        assert snapshot_of(tidied(replayed(self.log))) == final
        for cut, snapshot in self.snapshots.items():
            again = restored(snapshot)
            assert snapshot_of(again) == snapshot
            assert snapshot_of(replayed(self.log[cut:], again)) == final
        for view, snapshot in self.views:
            assert snapshot_of(view) == snapshot
        assert snapshot_of(tidied(self.state)) == final
        self.compare(self.state)


TestStateMachine: Any = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=30, stateful_step_count=40)
