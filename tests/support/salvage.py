"""Small damaged nodes, and what salvage makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.formats.taskflux.log import LogLayout, segment_name
from penstock.model import (
    DEFAULT_QUEUE,
    AddTask,
    CreateQueue,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)
from support.at_rest import damage_of, listed, repaired, tree
from support.damage import flipped
from support.naive_queues import Change
from support.node_files import Files, Node, write_files
from support.samples import QUEUE

Changes = list[Change]

CREATE: Final = CreateQueue(queue=QUEUE, policy=Policy())


def add(payload: bytes, queue: QueueName = QUEUE) -> AddTask:
    return AddTask(queue=queue, key=0, payload=payload)


def remove(task_id: int, queue: QueueName = QUEUE) -> RemoveTask:
    return RemoveTask(queue=queue, id=TaskId(task_id))


def by_value(payload: bytes) -> RemoveEqualTask:
    return RemoveEqualTask(queue=DEFAULT_QUEUE, key=0, payload=payload)


def three(changes: Changes, **more: object) -> Node:
    """Return a node of generation 3 with a history of one term."""
    history = [(1, change) for change in changes]
    return Node(layout=LogLayout.THREE, history=history, **more)  # type: ignore[arg-type]


def segment(first: int) -> str:
    return f"data/log/{segment_name(first)}"


def spoil(files: Files, name: str, mark: bytes) -> Files:
    """Return the files with the lowest bit of the first byte of ``mark`` turned over."""
    data = files[name]
    assert data.count(mark) == 1
    return files | {name: flipped(data, 8 * data.index(mark))}


def salvaged(place: Path, files: Files) -> tuple[Path, list[str]]:
    """Write the files, repair them, and return the result and the statuses of what was left."""
    root = write_files(place / "node", files)
    before = tree(root)
    rows, account = repaired(root, place / "out")
    assert tree(root) == before
    assert damage_of(place / "out") == []
    assert account.left == sum(row["severity"] != "harmless" for row in rows)
    assert account.tasks == len(listed(place / "out", uncommitted=True))
    return place / "out", [row["status"] for row in rows]


def payloads(root: Path) -> list[bytes]:
    return [payload for _, _, payload in listed(root)]
