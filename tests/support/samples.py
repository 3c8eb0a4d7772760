"""Small nodes of every variant that hold the same story, for tests that damage every byte of them."""

from __future__ import annotations

from typing import Final

from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.model import (
    DEFAULT_QUEUE,
    AddTask,
    CreateCommand,
    CreateQueue,
    Dequeue,
    Enqueue,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)
from support.naive_queues import Change
from support.node_files import Node

History = list[tuple[int, Change]]

QUEUE: Final = QueueName("q")


def deltas(*, by_id: bool) -> History:
    """Two tasks come, the first goes, two more come; what follows is for an uncommitted tail."""

    def removal(task_id: int, payload: bytes) -> Change:
        if by_id:
            return RemoveTask(queue=QUEUE, id=TaskId(task_id))
        return RemoveEqualTask(queue=QUEUE, key=5, payload=payload)

    return [
        (1, CreateQueue(queue=QUEUE, policy=Policy(size_max=9))),
        (1, AddTask(queue=QUEUE, key=5, payload=b"a")),
        (2, AddTask(queue=QUEUE, key=5, payload=b"b")),
        (2, removal(1, b"a")),
        (4, AddTask(queue=QUEUE, key=1, payload=b"c")),
        (4, AddTask(queue=DEFAULT_QUEUE, key=0, payload=b"d")),
        (4, removal(2, b"b")),
    ]


def commands() -> History:
    """The same as generation 1 logs it."""
    return [
        (1, CreateCommand(queue=QUEUE, size_max=9)),
        (1, Enqueue(queue=QUEUE, key=5, payload=b"a")),
        (2, Enqueue(queue=QUEUE, key=5, payload=b"b")),
        (2, Dequeue(queue=QUEUE)),
        (4, Enqueue(queue=QUEUE, key=1, payload=b"c")),
        (4, Enqueue(queue=DEFAULT_QUEUE, key=0, payload=b"d")),
    ]


# The last entry of generation 2 is not committed: it would take a task away that is still there.
TWO: Final = Node(layout=LogLayout.TWO, history=deltas(by_id=False), snapshot_at=1, commit=5)
TWO_SYNCED: Final = Node(
    layout=LogLayout.TWO,
    history=deltas(by_id=False),
    snapshot_at=1,
    commit=5,
    snapshot_layout=SnapshotLayout.TWO_CODE,
    synced=6,
)
THREE: Final = Node(
    layout=LogLayout.THREE, history=deltas(by_id=True)[:6], snapshot_at=1, starts=(2, 4)
)
THREE_SYNCED: Final = Node(
    layout=LogLayout.THREE, history=deltas(by_id=True)[:6], snapshot_at=1, starts=(1, 4), synced=5
)
ONE_A: Final = Node(layout=LogLayout.ONE_A, history=commands(), snapshot_at=1)
ONE_B: Final = Node(layout=LogLayout.ONE_B, history=commands(), snapshot_at=1)
ONE_C: Final = Node(layout=LogLayout.ONE_C, history=deltas(by_id=False)[:6], snapshot_at=1)

NODES: Final = {
    "1a": ONE_A,
    "1b": ONE_B,
    "1c": ONE_C,
    "2": TWO,
    "2 synced": TWO_SYNCED,
    "3": THREE,
    "3 synced": THREE_SYNCED,
}
