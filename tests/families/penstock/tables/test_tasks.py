"""The table of tasks: what a naive account says is alive, at the end, at an index, at a time; rows of snapshots."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from penstock.errors import Compacted, OutOfRange
from penstock.tables import read
from support.record_directories import write_directory
from support.record_lives import Entry, Leader, NaiveLives


def account(entries: list[Entry]) -> NaiveLives:
    found = NaiveLives()
    for stamp, change in entries:
        found.apply(stamp, change)
    return found


def alive(entries: list[Entry]) -> list[tuple[object, ...]]:
    tasks = account(entries).alive.values()
    return sorted((t.queue, t.key, t.id, t.payload, t.failed, t.first) for t in tasks)


def told(path: Path, **how: object) -> list[tuple[object, ...]]:
    rows = read(path, **how).read_all().to_pylist()  # type: ignore[arg-type]
    found = []
    for row in rows:
        said = dict(row["properties"])
        own = said["queue_id"], row["task_id"]
        first = said.get("born_queue_id", own[0]), said.get("born_id", own[1])
        attempts = int(said.get("attempts", 0))
        found.append(
            (
                row["queue"],
                row["key"],
                row["task_id"],
                row["payload"],
                attempts,
                tuple(map(int, first)),
            )
        )
    return sorted(found)


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return Leader(Random(8)).run(600)


def test_tasks_are_those_of_a_naive_account(tmp_path: Path, entries: list[Entry]) -> None:
    node = write_directory(tmp_path / "node", entries, segment_size=20_000)
    assert told(node) == alive(entries)
    for at in (0, 1, 77, 300, 600):
        assert told(node, at=at) == alive(entries[:at])
    stamp = entries[399][0]
    last = max(each.index for each, _ in entries if each.time_ms <= stamp.time_ms)
    time = datetime.fromtimestamp(stamp.time_ms / 1000, UTC)
    assert told(node, at=time) == alive(entries[:last])


def test_a_moment_begins_with_the_newest_snapshot_before_it(
    tmp_path: Path, entries: list[Entry]
) -> None:
    node = write_directory(
        tmp_path / "node", entries, segment_size=20_000, snapshots=[200, 400], first=150
    )
    for at in (200, 399, 400, 555):
        assert told(node, at=at) == alive(entries[:at])
    with pytest.raises(Compacted):
        told(node, at=199)
    with pytest.raises(OutOfRange):
        told(node, at=601)


def test_rows_of_a_snapshot_are_its_queues_and_tasks(tmp_path: Path, entries: list[Entry]) -> None:
    node = write_directory(tmp_path / "node", entries, snapshots=[400], first=401)
    rows = read(node, "entries", where=[("op", "in", ["queue", "task"])]).read_all().to_pylist()
    known = account(entries[:400])
    assert {row["log_index"] for row in rows} == {400}
    queues = {row["queue"]: dict(row["properties"]) for row in rows if row["op"] == "queue"}
    assert queues.keys() == {name for name, _ in known.names.values()}
    for queue_id, (name, _) in known.names.items():
        assert queues[name]["queue_id"] == str(queue_id)
        assert queues[name]["last_id"] == str(known.last_ids[queue_id])
    tasks = sorted((r["queue"], r["task_id"], r["key"], r["payload"]) for r in rows if r["op"] == "task")  # fmt: skip
    assert tasks == sorted((t.queue, t.id, t.key, t.payload) for t in known.alive.values())
    times = {(r["queue"], r["task_id"]): r["event_time"] for r in rows if r["op"] == "task"}
    for task in known.alive.values():
        if task.first == (task.queue_id, task.id):
            assert times[task.queue, task.id].timestamp() * 1000 == task.added_ms


def test_queues_filter_the_table(tmp_path: Path, entries: list[Entry]) -> None:
    node = write_directory(tmp_path / "node", entries)
    mail = [task for task in alive(entries) if task[0] == "mail"]
    assert told(node, where=[("queue", "=", "mail")]) == mail
