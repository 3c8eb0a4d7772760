"""The commands over files of generation 4 that need a node."""

from __future__ import annotations

from pathlib import Path

from support.command import penstock, refused
from support.node_process import NodeProcess
from support.record_directories import Changes, write_directory


def drained(node: NodeProcess, queue: str) -> list[tuple[int, bytes]]:
    """Take everything out of a queue."""
    found: list[tuple[int, bytes]] = []
    with node.client() as client:
        while deliveries := client.dequeue_many(queue, 500):
            found += [(delivery.key, delivery.payload) for delivery in deliveries]
            client.ack(deliveries)
    return found


def test_enqueue_puts_every_task_in_once_however_often_it_runs(
    tmp_path: Path, node: NodeProcess
) -> None:
    made = Changes()
    made.begin()
    many, few = made.queue("records-many"), made.queue("records-few")
    made.queue("records-empty")
    for first in range(0, 2400, 100):
        made.add(many, [b"%d" % number for number in range(first, first + 100)], first % 3)
    made.add(few, [b"a", b"b"], [2, 1], expires=10**9)
    made.remove(many, range(1, 101))
    root = write_directory(tmp_path / "records", made.entries)
    for _ in range(3):
        outcome = penstock("enqueue", "--from", root)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.rows == [
            {"queue": "records-few", "count": 2, "left_too_large": 0, "left_details": 2},
            {"queue": "records-many", "count": 2300, "left_too_large": 0, "left_details": 0},
        ]
    expected = [(first % 3, b"%d" % n) for first in range(100, 2400, 100) for n in range(first, first + 100)]  # fmt: skip
    assert drained(node, "records-many") == sorted(expected, key=lambda task: task[0])
    assert drained(node, "records-few") == [(1, b"b"), (2, b"a")]
    made.remove(many, range(101, 201))
    changed = write_directory(tmp_path / "changed", made.entries)
    repeated = penstock("enqueue", "--from", changed)
    assert (repeated.code, "an earlier run sent other messages" in repeated.err) == (1, True)
    one = penstock("enqueue", "--from", root, "--queue", "records-few", "--producer", "again")
    assert [row["count"] for row in one.rows] == [2]
    assert "no queue" in refused("enqueue", "--from", root, "--queue", "missing")
