"""Random histories that could have happened, and nodes that hold them in every variant."""

from __future__ import annotations

from typing import Final

from hypothesis import assume
from hypothesis import strategies as st

from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.model import (
    DEFAULT_QUEUE,
    NOTHING,
    AddTask,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    DeleteCommand,
    DeleteQueue,
    Dequeue,
    Enqueue,
    Implementation,
    KeyRange,
    ListQueues,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)
from support.naive_queues import Change, NaiveQueues
from support.node_files import STATE, Node

NAMES: Final = [DEFAULT_QUEUE, QueueName("a"), QueueName("b"), QueueName("mail")]
# Few values, so that tasks are often equal in key, in payload, or in both.
KEYS: Final = st.sampled_from([-(2**63), -1, 0, 0, 1, 2**63 - 1])
PAYLOADS: Final = st.sampled_from([b"", b"x", b"y", b"\x00\xff", b"\xaa\xf5\x34\xc4 like a record"])
POLICIES: Final = st.sampled_from(
    [
        Policy(),
        Policy(size_max=2),
        Policy(size_max=0, payload_size_max=7),
        Policy(implementation=Implementation.ARRAY, keys=KeyRange(lowest=-9, highest=9)),
    ]
)

_HEAPS: Final = POLICIES.filter(lambda policy: policy.implementation is Implementation.HEAP)
"""What a snapshot of variant 1d can hold."""

_SNAPSHOTS: Final = {
    LogLayout.ONE_A: (SnapshotLayout.ONE_A, SnapshotLayout.ONE_A_COUNTED),
    LogLayout.ONE_B: (SnapshotLayout.ONE_B, SnapshotLayout.ONE_COUNTED),
    LogLayout.ONE_C: (SnapshotLayout.ONE_C,),
    LogLayout.ONE_D: (SnapshotLayout.ONE_D,),
    LogLayout.TWO: (SnapshotLayout.TWO_SEED, SnapshotLayout.TWO_CODE),
    LogLayout.THREE: (SnapshotLayout.THREE,),
}


@st.composite
def histories(
    draw: st.DrawFn, layout: LogLayout, *, size_max: int = 12, is_plain: bool = False
) -> list[tuple[int, Change]]:
    """Return terms and changes. ``is_plain``: only queues that generation 1 has bytes for."""
    contents = layout.contents
    policies = st.sampled_from([Policy(), Policy(size_max=2)]) if is_plain else POLICIES
    state, term = NaiveQueues(), 1
    history: list[tuple[int, Change]] = []
    change: Change
    for number in range(draw(st.integers(0, size_max))):
        if layout is LogLayout.ONE_D and (number == 0 or draw(st.integers(0, 4)) == 0):
            # The first entry shows the variant: only a creation with a policy tells 1d from 1b.
            name, policy = st.sampled_from(NAMES), policies if is_plain else _HEAPS
            change = draw(st.builds(CreateWithPolicy, queue=name, policy=policy))
        elif contents is Contents.COMMANDS:
            change = draw(_command())
        else:
            change = draw(_delta(state, policies, by_id=contents is Contents.DELTAS_BY_ID))
        term = min(STATE.term, term + draw(st.sampled_from([0, 0, 0, 1, 3])))
        history.append((term, change))
        state.apply(change)
    return history


@st.composite
def _command(draw: st.DrawFn) -> Change:
    """Return a request; many of them fail or find nothing."""
    name = draw(st.sampled_from(NAMES))
    choices: list[st.SearchStrategy[Change]] = [
        st.builds(Enqueue, queue=st.just(name), key=KEYS, payload=PAYLOADS),
        st.builds(Enqueue, queue=st.just(DEFAULT_QUEUE), key=KEYS, payload=PAYLOADS),
        st.just(Dequeue(queue=name)),
        st.builds(CreateCommand, queue=st.just(name), size_max=st.sampled_from([None, 1, 2])),
        st.sampled_from(
            [DeleteCommand(queue=name or NAMES[1]), CountTasks(queue=name), ListQueues()]
        ),
    ]
    return draw(st.one_of(choices))


@st.composite
def _delta(
    draw: st.DrawFn, state: NaiveQueues, policies: st.SearchStrategy[Policy], *, by_id: bool
) -> Change:
    """Return a change that fits the state."""
    there = sorted(state.queues)
    absent = [name for name in NAMES if name not in state.queues]
    name = QueueName(draw(st.sampled_from(there)))
    kind = draw(st.sampled_from(["add", "add", "add", "remove", "remove", "create", "delete"]))
    if kind == "create" and absent:
        return CreateQueue(queue=draw(st.sampled_from(absent)), policy=draw(policies))
    if kind == "delete":
        # Deleting the default queue is a conflict: no program of TaskFlux can rebuild its state then.
        return NOTHING if name == DEFAULT_QUEUE else DeleteQueue(queue=name)
    tasks = state.queues[name].tasks
    if kind == "remove" and tasks:
        task_id, key, payload = draw(st.sampled_from(tasks))
        if by_id:
            return RemoveTask(queue=name, id=TaskId(task_id))
        return RemoveEqualTask(queue=name, key=key, payload=payload)
    if kind == "remove" and not by_id:
        return RemoveEqualTask(queue=name, key=draw(KEYS), payload=b"never there")
    return AddTask(queue=name, key=draw(KEYS), payload=draw(PAYLOADS))


@st.composite
def nodes(
    draw: st.DrawFn, layout: LogLayout, *, size_max: int = 12, is_plain: bool = False
) -> Node:
    """Return a node with a random history, cut into snapshot, segments and commit at random."""
    history = draw(histories(layout, size_max=size_max, is_plain=is_plain))
    last = len(history) - 1
    snapshot_at = draw(st.integers(-1, last))
    snapshot_layout = draw(st.sampled_from(_SNAPSHOTS[layout]))
    starts: tuple[int, ...] = (0,)
    if layout is LogLayout.THREE:
        first = draw(st.integers(0, snapshot_at + 1))
        later = draw(st.sets(st.integers(first + 1, max(first + 1, last + 1)), max_size=3))
        starts = (first, *sorted(start for start in later if start <= last + 1))
    commit = None
    if layout is LogLayout.TWO:
        commit = draw(st.integers(snapshot_at, last))
    node = Node(
        layout=layout,
        history=history,
        snapshot_at=snapshot_at,
        starts=starts,
        commit=commit,
        snapshot_layout=snapshot_layout,
        synced=draw(st.sampled_from([None, None if layout.generation == 1 else last])),
    )
    assume(not node.is_ambiguous)
    return node
