"""Small node directories of every generation with known content, for tests of tools and commands."""

from __future__ import annotations

from pathlib import Path

from penstock.families.taskflux.new_directory import new_directory
from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    AddTask,
    Command,
    CreateCommand,
    CreateQueue,
    Delta,
    Dequeue,
    Enqueue,
    HardState,
    Index,
    KeyRange,
    NodeId,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.queues.replay import Queues
from support.deltas import apply_delta

ORDERS = QueueName("orders")
MAIL = QueueName("mail")
STATE = HardState(term=Term(4), vote=NodeId(2))
POLICY = Policy(size_max=100, keys=KeyRange(lowest=-10, highest=10))

# What the queues hold in the end, in the order of delivery: (queue, key, payload).
EXPECTED = [
    ("", 7, b"default"),
    ("mail", 0, b""),
    ("orders", -1, b"urgent"),
    ("orders", 5, b"second"),
    ("orders", 5, b"third"),
]


def deltas(generation: Generation) -> list[tuple[int, Delta]]:
    """The sample history as deltas with their terms; only the removal differs by generation."""
    removal: Delta = RemoveTask(queue=ORDERS, id=TaskId(1))
    if generation is Generation.TWO:
        removal = RemoveEqualTask(queue=ORDERS, key=5, payload=b"first")
    return [
        (1, CreateQueue(queue=ORDERS, policy=POLICY)),
        (1, AddTask(queue=ORDERS, key=5, payload=b"first")),
        (1, AddTask(queue=ORDERS, key=5, payload=b"second")),
        (2, AddTask(queue=ORDERS, key=5, payload=b"third")),
        (2, CreateQueue(queue=MAIL, policy=Policy())),
        (2, removal),
        (4, AddTask(queue=ORDERS, key=-1, payload=b"urgent")),
        (4, AddTask(queue=DEFAULT_QUEUE, key=7, payload=b"default")),
        (4, AddTask(queue=MAIL, key=0, payload=b"")),
    ]


def commands() -> list[tuple[int, Command]]:
    """The same history as generation 1 logs it: requests, one of which fails."""
    return [
        (1, CreateCommand(queue=ORDERS, size_max=100)),
        (1, Enqueue(queue=ORDERS, key=5, payload=b"first")),
        # The heap of these programs delivers the last of equal keys right behind the first.
        (1, Enqueue(queue=ORDERS, key=5, payload=b"third")),
        (2, Enqueue(queue=ORDERS, key=5, payload=b"second")),
        (2, CreateCommand(queue=MAIL, size_max=None)),
        (2, Dequeue(queue=ORDERS)),
        (4, Enqueue(queue=ORDERS, key=-1, payload=b"urgent")),
        (4, Enqueue(queue=DEFAULT_QUEUE, key=7, payload=b"default")),
        (4, Enqueue(queue=MAIL, key=0, payload=b"")),
    ]


def build(root: Path, generation: Generation, *, snapshot_after: int | None = None) -> Path:
    """Write the sample history; with ``snapshot_after`` the entries up to it are in a snapshot."""
    if generation is Generation.ONE:
        return build_1(root)
    history = deltas(generation)
    with new_directory(root, WRITTEN[generation]) as new:
        start = 0
        if snapshot_after is not None:
            start = snapshot_after + 1
            queues = Queues()
            for _, delta in history[:start]:
                apply_delta(queues, delta)
            term = Term(history[snapshot_after][0])
            new.write_snapshot(SnapshotPoint(index=Index(snapshot_after), term=term), queues)
        for term_number, delta in history[start:]:
            new.append(term_number, encode_delta(delta))
        new.commit()
        new.write_metadata(STATE)
    return root


def build_1(root: Path, layout: LogLayout = LogLayout.ONE_B) -> Path:
    """Write the sample history as generation 1 has it."""
    home = root / "consensus"
    home.mkdir(parents=True)
    records = [
        encode_record(layout, term=term, payload=encode_command(command))
        for term, command in commands()
    ]
    (home / "raft.log").write_bytes(encode_header(layout) + b"".join(records))
    (home / "raft.metadata").write_bytes(encode_metadata(STATE, WRITTEN[Generation.ONE].metadata))
    return root
