"""Directories that a node wrote, read by the tools for files at rest: the same tasks, in the same order.

What is ours in them shows as nothing else: no queue, no task, no damage. And what the tools write of such a
directory, a node serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock.errors import BadData, ReplayConflict
from penstock.families.taskflux.convert import convert
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.rows import dump as dumped
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.extensions import encode_extension
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    Adding,
    AddTask,
    CreateQueue,
    Creating,
    DeleteQueue,
    Delta,
    Entry,
    Index,
    Policy,
    QueueHead,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    Removing,
    Returning,
    SnapshotPoint,
    TaskId,
    Term,
    Terms,
)
from penstock.protocol import version2 as v2
from penstock.queues.state import State
from penstock.server.rebuild import rebuild
from penstock.storage.directory import NodeDirectory
from penstock.testing.disk import MemoryFiles
from server.test_state_model import Life
from support.at_rest import (
    QuickFiles,
    damage_of,
    identified,
    listed,
    quick_writing,
    repaired,
    statuses,
)
from support.command import penstock as command
from support.lives import Entries, write_image
from support.node_rig import LIMITS, Dump, Rig, delivered_order, dump, shelf_of
from support.report import report

GENERATIONS = [Generation.TWO, Generation.THREE]
Tasks = list[tuple[str, int, int, bytes]]


@pytest.fixture(autouse=True)
def _writes_quickly() -> Iterator[None]:
    with quick_writing():
        yield


def tasks_of(state: State) -> Tasks:
    """Return all tasks of a node by queue and place, delayed ones and all."""
    return [
        (str(name), task_id, key, payload)
        for name in sorted(state.by_name)
        for task_id, key, payload in sorted(
            state.by_name[name].tasks, key=lambda task: (task[1], task[0])
        )
    ]


def without_policies(dumped: Dump) -> Dump:
    """Return a dump that says nothing of how queues keep their tasks: a repair makes heaps of paged ones."""
    queues = {number: queue | {"policy": None} for number, queue in dumped["queues"].items()}
    return dumped | {"queues": queues}


def served(path: Path) -> State:
    """Return the state that a node begins with in a real directory."""
    files = QuickFiles()
    directory = NodeDirectory(files, path, limits=LIMITS)
    try:
        assert not directory.cuts
        return rebuild(directory, shelf_of(files, directory))
    finally:
        directory.close()


def last_index(path: Path) -> int:
    row = inspect(resolve(path))
    return max(-1 if row[name] is None else row[name] for name in ("last_index", "snapshot_index"))


def lives(generation: Generation, seeds: range, tmp_path: Path) -> Iterator[tuple[Life, Path]]:
    """Yield nodes in the middle of their lives, and their files."""
    for seed in seeds:
        life = Life(generation, seed)
        for moment in range(3):
            for _ in range(40):
                life.step()
            if moment == 1:
                life.rig.snapshot()
            yield life, write_image(life.rig.files.image(), tmp_path / f"{seed}-{moment}")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_plain_replay_lists_what_the_node_holds(generation: Generation, tmp_path: Path) -> None:
    figures: Counter[str] = Counter()
    for life, path in lives(generation, range(40, 48), tmp_path):
        state = life.rig.state
        assert identified(path) == tasks_of(state)
        assert damage_of(path) == []
        found = inspect(resolve(path))
        assert (found["queues"], found["tasks"]) == (len(state.by_name), len(tasks_of(state)))
        figures += Counter(extensions=found["extensions"], notes=found["notes"], directories=1)
        rows = list(dumped(resolve(path)))
        assert all(row["status"] == "ok" for row in rows)
        assert sum("extension" in row for row in rows) == found["extensions"]
        assert sum("note" in row for row in rows) == found["notes"]
    assert figures["extensions"]
    assert figures["notes"]
    report(f"plain replay of a node's files, generation {generation}: {dict(figures)}")


@pytest.mark.parametrize("to", GENERATIONS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_converted_directory_is_served_and_holds_the_same_tasks(
    generation: Generation, to: Generation, tmp_path: Path
) -> None:
    for number, (life, path) in enumerate(lives(generation, range(60, 63), tmp_path)):
        out = tmp_path / f"out{number}"
        done = convert(read_history(resolve(path)), WRITTEN[to], out)
        covered = -1 if done.snapshot_index is None else done.snapshot_index
        rows = [row for row in dumped(resolve(path)) if "extension" in row]
        assert done.dropped_extensions == sum(row["index"] > covered for row in rows)
        assert done.dropped_notes == inspect(resolve(path))["notes"]
        assert damage_of(out) == []
        assert last_index(out) == last_index(path)
        expected = listed(path)
        if to is Generation.THREE:
            assert listed(out) == expected
        # Generation 2 removes the oldest of equals: what is left is the same, but for its place.
        assert Counter(listed(out)) == Counter(expected)
        state = served(out)
        assert tasks_of(state) == identified(out)
        assert not any(q.attempts or len(q.delayed) or len(q.expiring) for q in state.queues())
        assert len(state.producers) == 0
        order = [(n, i) for n, ids in delivered_order(state, life.now).items() for i in ids]
        assert sorted(order) == sorted((name, i) for name, i, _, _ in identified(out))


def test_a_converted_directory_of_generation_1_holds_the_same_tasks(tmp_path: Path) -> None:
    rig = Rig(Generation.THREE)
    caller = rig.caller()
    rig.ask(caller, v2.Create(QueueName("q"), Policy(size_max=9), 500))
    rig.ask(caller, v2.Enqueue(QueueName("q"), [2, 1], [b"b", b"a"], 10**6))
    rig.snapshot()
    rig.ask(caller, v2.Enqueue(QueueName("q"), [0], [b"c"], None, 10**6))
    path = write_image(rig.files.image(), tmp_path / "node")
    done = convert(read_history(resolve(path)), WRITTEN[Generation.ONE], tmp_path / "out")
    assert (done.dropped_extensions, done.queues, done.tasks) == (1, 2, 3)
    assert done.dropped_notes == inspect(resolve(path))["notes"] == 4
    assert listed(tmp_path / "out") == [("q", 0, b"c"), ("q", 1, b"a"), ("q", 2, b"b")]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_whole_directory_is_repaired_with_all_that_is_ours(
    generation: Generation, tmp_path: Path
) -> None:
    for number, (life, path) in enumerate(lives(generation, range(70, 73), tmp_path)):
        out = tmp_path / f"out{number}"
        rows, result = repaired(path, out)
        assert rows == []
        assert all("paged queues are heaps now" in note for note in result.notes)
        assert result.tasks == len(tasks_of(life.rig.state))
        assert result.queues == len(life.rig.state.by_name)
        assert without_policies(dump(served(out), life.now)) == without_policies(life.rig.dump())
        assert damage_of(out) == []


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_is_salvaged_from_a_damaged_log_is_plain_and_served(
    generation: Generation, tmp_path: Path
) -> None:
    count = 0
    for number, (life, path) in enumerate(lives(generation, range(80, 84), tmp_path)):
        (log,) = [*path.rglob("log.raft"), *sorted(path.rglob("*.log"))[-1:]]
        data = bytearray(log.read_bytes())
        point = life.rig.directory.snapshot.point
        covered = -1 if point is None else point.index
        entries = Entries.of(life.rig.directory).entries
        single = [
            entry
            for entry in entries[:-1]
            if entry.index > covered and data.count(entry.payload) == 1 and entry.payload[0] == 0x41
        ]
        if not single or not inspect(resolve(path))["extensions"]:
            continue
        data[data.find(single[0].payload) + len(single[0].payload) - 1] ^= 0x10
        log.write_bytes(data)
        out = tmp_path / f"out{number}"
        rows, result = repaired(path, out)
        assert rows
        assert any("retries are lost" in note for note in result.notes)
        assert damage_of(out) == []
        found = inspect(resolve(out))
        assert (found["extensions"], found["notes"]) == (0, 0)
        assert (found["queues"], found["tasks"]) == (result.queues, result.tasks)
        state = served(out)
        assert tasks_of(state) == identified(out)
        assert all(not name.startswith("!penstock.") for name in state.by_name)
        count += 1
    assert count


def small(generation: Generation, *payloads: bytes) -> Entries:
    return Entries(
        generation,
        [Entry(index=Index(i), term=Term(1), payload=data) for i, data in enumerate(payloads)],
    )


def add(payload: bytes) -> bytes:
    return encode_delta(AddTask(queue=DEFAULT_QUEUE, key=0, payload=payload))


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (b"\x44\x10!penstock.1.####", "bad-delta"),
        (b"\x44\x0c!penstock.1.", "bad-delta"),
        (b"\x44\x10!penstock.1.AAAA", "bad-delta"),
        (b"\x44\x10!penstock.2.AQAA", "bad-delta"),
        (encode_extension(Returning(queue=0, ids=(9,))), "conflict"),
    ],
    ids=["base64", "empty", "unknown kind", "later version", "task that is not there"],
)
def test_an_extension_that_means_nothing_is_damage_and_costs_no_task(
    generation: Generation, bad: bytes, status: str, tmp_path: Path
) -> None:
    files = MemoryFiles()
    small(generation, add(b"a"), bad, add(b"b")).directory(files, 3)
    path = write_image(files.image(), tmp_path / "node")
    assert statuses(path) == [status]
    rows, _ = repaired(path, tmp_path / "out")
    assert damage_of(tmp_path / "out") == []
    assert [payload for _, _, _, payload in tasks_of(served(tmp_path / "out"))] == [b"a", b"b"]
    assert bool(rows) == (status == "bad-delta")


def noted(generation: Generation, found: list[tuple[int, bytes]], root: Path) -> Path:
    """Write a directory of three tasks, two of them in a snapshot with these notes."""
    files = MemoryFiles()
    small(generation, add(b"a"), add(b"b"), add(b"c")).directory(files, 3, snapshot_at=1)
    path = write_image(files.image(), root)
    point = SnapshotPoint(index=Index(1), term=Term(1))
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(2), count=2)
    own = QueueHead(name=notes.QUEUE, policy=NO_LIMITS, last_id=TaskId(99), count=len(found))
    tasks = [(number, *note) for number, note in enumerate(found, 1)]
    store = NodeDirectory(QuickFiles(), path, limits=LIMITS)
    parts = [(head, [(1, 0, b"a"), (2, 0, b"b")]), (own, tasks)]
    store.snapshot.write(encode_snapshot(point, 2, parts, WRITTEN[generation].snapshot)).install()
    store.close()
    return path


def random_note(random: Random) -> notes.Note:
    """Return a note of few numbers, which may or may not fit the snapshot."""
    number, other = random.choice([0, 0, 0, 1]), random.randint(0, 3)
    rows = [(random.randint(1, 3), 1, -1, random.choice([-1, 5])) for _ in range(other)]
    choices: list[notes.Note] = [
        notes.Header(next_number=other),
        notes.QueueNote(
            name=DEFAULT_QUEUE,
            number=number,
            last_id=other,
            lease_ms=5,
            attempts_max=None,
            dead_letter=random.choice([None, None, number]),
        ),
        notes.TaskNotes(queue=number, rows=rows),
        notes.Ids(queue=number, ids=tuple(random.sample(range(4), random.choice([0, 2, 3])))),
        notes.Ids(queue=number, ids=(1, 2)),
        notes.ProducerNote(id=b"p" * 16, forgotten=other, requests=[(1, 9, 2, [(1, 2)])]),
    ]
    return random.choice(choices)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_node_and_verify_agree_on_which_notes_fit(generation: Generation, tmp_path: Path) -> None:
    random, counts = Random(5), Counter[bool]()
    for number in range(120):
        found = [random_note(random) for _ in range(random.randint(1, 4))]
        if random.random() < 0.8:
            queue = notes.QueueNote(
                name=DEFAULT_QUEUE,
                number=0,
                last_id=random.randint(1, 4),
                lease_ms=5,
                attempts_max=None,
                dead_letter=None,
            )
            extra = [n for n in found if not isinstance(n, notes.Header | notes.QueueNote)]
            found = [notes.Header(next_number=random.randint(0, 2)), queue, *extra]
        path = noted(generation, list(notes.encode_notes(found)), tmp_path / f"{number}")
        try:
            state = served(path)
        except (BadData, ReplayConflict):
            assert statuses(path) == ["bad-snapshot"], found
            counts[False] += 1
        else:
            assert damage_of(path) == [], found
            assert identified(path) == tasks_of(state)
            counts[True] += 1
    report(f"notes at random, generation {generation}: {counts[True]} fit, {counts[False]} do not")
    assert min(counts.values()) > 10


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    "found",
    [
        [(0, b"short")],
        [(9, b"")],
        list(notes.encode_notes([notes.Header(next_number=1)])),
        list(
            notes.encode_notes(
                [
                    notes.Header(next_number=1),
                    notes.QueueNote(
                        name=DEFAULT_QUEUE,
                        number=0,
                        last_id=7,
                        lease_ms=1,
                        attempts_max=None,
                        dead_letter=None,
                    ),
                    notes.TaskNotes(queue=0, rows=[(6, 1, -1, -1)]),
                ]
            )
        ),
    ],
    ids=["cut", "unknown kind", "no queues", "a task that is not there"],
)
def test_notes_that_mean_nothing_are_damage_and_cost_no_task(
    generation: Generation, found: list[tuple[int, bytes]], tmp_path: Path
) -> None:
    path = noted(generation, found, tmp_path / "node")
    assert statuses(path) == ["bad-snapshot"]
    with pytest.raises(penstock.PenstockError):
        served(path)
    rows, _ = repaired(path, tmp_path / "out")
    assert [row["status"] for row in rows] == ["bad-snapshot"]
    assert damage_of(tmp_path / "out") == []
    assert [p for _, _, _, p in tasks_of(served(tmp_path / "out"))] == [b"a", b"b", b"c"]


def random_entry(random: Random, generation: Generation) -> bytes:
    """Return an entry that speaks of few queues and ids, which may or may not be there."""
    name = QueueName(random.choice(["", "", "a", "b"]))
    number, task_id = random.randint(0, 3), random.randint(1, 4)
    removal: Delta = RemoveTask(queue=name, id=TaskId(task_id))
    if generation is Generation.TWO:
        removal = RemoveEqualTask(queue=name, key=0, payload=random.choice([b"x", b"y"]))
    terms = Terms(not_before_ms=5, producer=b"p" * 16, sequence=task_id, total=9)
    dead_letter = random.choice([None, number])
    return random.choice(
        [
            encode_delta(AddTask(queue=name, key=0, payload=random.choice([b"x", b"y"]))),
            encode_delta(AddTask(queue=name, key=0, payload=b"x")),
            encode_delta(CreateQueue(queue=QueueName(random.choice("ab")), policy=Policy())),
            encode_delta(DeleteQueue(queue=QueueName(random.choice(["a", "b", ""])))),
            encode_delta(removal),
            encode_extension(Adding(count=number + 1, terms=terms)),
            encode_extension(Creating(lease_ms=9, attempts_max=None, dead_letter=dead_letter)),
            encode_extension(Returning(queue=number, ids=(task_id,))),
            encode_extension(Removing(ids=(task_id, 2))),
        ]
    )


def conflicts(path: Path) -> list[str]:
    """Return what ``verify`` reports but for deletions of the default queue.

    A node takes them for the deletion of its tasks; TaskFlux cannot rebuild its state then.
    """
    rows = damage_of(path)
    return [row["status"] for row in rows if (row.get("op"), row.get("queue")) != ("delete", "")]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_verify_calls_whole_a_node_starts_with_and_nothing_else(
    generation: Generation, tmp_path: Path
) -> None:
    random, counts = Random(7), Counter[bool]()
    for number in range(150):
        log = small(generation)
        is_good = True
        for _ in range(14):
            # Mostly entries that apply, so that a long log is met that is whole but for one of them.
            entry = Entry(
                index=Index(len(log.entries)),
                term=Term(1),
                payload=random_entry(random, generation),
            )
            tried = Entries(generation, [*log.entries, entry])
            try:
                tried.replayed(len(tried.entries))
            except ReplayConflict:
                if random.random() < 0.9:
                    continue
                is_good = False
            log = tried
            if not is_good:
                break
        if not log.entries:
            continue
        snapshot_at = None
        if is_good and random.random() < 0.5:
            snapshot_at = random.randrange(len(log.entries))
        files = MemoryFiles()
        log.directory(files, len(log.entries), snapshot_at)
        path = write_image(files.image(), tmp_path / f"{number}")
        try:
            state = served(path)
        except ReplayConflict:
            assert conflicts(path) == ["conflict"]
            counts[False] += 1
        else:
            assert conflicts(path) == []
            assert identified(path) == tasks_of(state)
            counts[True] += 1
        _, result = repaired(path, tmp_path / f"{number}-out")
        assert len(tasks_of(served(tmp_path / f"{number}-out"))) == result.tasks
    report(f"verify and a node, generation {generation}: {counts[True]} whole, {counts[False]} not")
    assert min(counts.values()) > 10


def test_a_dump_says_what_an_extension_says(tmp_path: Path) -> None:
    rig = Rig(Generation.TWO)
    caller, name = rig.caller(), QueueName("q")
    rig.ask(caller, v2.Create(name, Policy(), 700))
    rig.ask(caller, v2.Enqueue(name, [1], [b"x"], 5, 9, v2.Producer(b"p" * 16, 3)))
    rig.clock.now += 6
    got = rig.ask(caller, v2.Dequeue(name, 1))
    assert isinstance(got, v2.Delivered)
    rig.ask(caller, v2.Nack([got.token], None, None))
    got = rig.ask(caller, v2.Dequeue(name, 1))
    assert isinstance(got, v2.Delivered)
    rig.ask(caller, v2.Ack([got.token]))
    path = write_image(rig.files.image(), tmp_path / "node")
    rows = [row for row in dumped(resolve(path)) if "extension" in row]
    assert all(row["op"] == "delete" for row in rows)
    start = rig.clock.now - 6
    assert [row["extension"] for row in rows] == [
        {"kind": "creating", "lease_ms": 700},
        {
            "kind": "adding",
            "count": 1,
            "terms": {
                "not_before_ms": start + 5,
                "expires_ms": start + 9,
                "attempts": 0,
                "producer": "cHBwcHBwcHBwcHBwcHBwcA==",
                "sequence": 3,
                "total": 1,
            },
        },
        {"kind": "returning", "queue": 1, "ids": [1]},
        {"kind": "removing", "ids": [1]},
    ]


def test_the_commands_show_what_is_ours_apart_and_say_what_is_dropped(tmp_path: Path) -> None:
    rig = Rig(Generation.THREE)
    caller = rig.caller()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"x"], 5))
    rig.snapshot()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [2], [b"y"], 5))
    path = write_image(rig.files.image(), tmp_path / "node")
    (found,) = command("inspect", path).rows
    assert (found["queues"], found["tasks"], found["extensions"], found["notes"]) == (1, 2, 2, 3)
    assert [row["id"] for row in command("tasks", path).rows] == [1, 2]
    assert not command("tasks", path, "--queue", notes.QUEUE).rows
    rows = command("dump", path).rows
    assert [row["note"]["kind"] for row in rows if "note" in row] == ["header", "queue", "tasks"]
    assert command("verify", path).code == 0
    done = command("convert", path, "--to", "taskflux-2", "--out", tmp_path / "out")
    assert done.code == 0
    assert (done.rows[0]["dropped_extensions"], done.rows[0]["dropped_notes"]) == (1, 3)
    assert "1 extensions and 3 notes were dropped" in done.err


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_converted_directory_can_be_opened_and_drained(
    generation: Generation, tmp_path: Path
) -> None:
    rig = Rig(Generation.TWO)
    caller, name = rig.caller(), QueueName("q")
    rig.ask(caller, v2.Create(name, Policy(), 700))
    rig.ask(caller, v2.Enqueue(name, [2, 1, 1], [b"c", b"a", b"b"], 10**7))
    path = write_image(rig.files.image(), tmp_path / "node")
    convert(read_history(resolve(path)), WRITTEN[generation], tmp_path / "out")
    with penstock.open(tmp_path / "out") as client:
        found = []
        while batch := client.dequeue_many("q", 2):
            found += [task.payload for task in batch]
            client.ack(batch)
    assert found == [b"a", b"b", b"c"]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("is_noted", [False, True], ids=["log", "snapshot and log"])
def test_which_of_several_equal_tasks_was_acknowledged_is_known_afterwards(
    generation: Generation, is_noted: bool, tmp_path: Path
) -> None:
    # Generation 2 removes by value; without the extension the oldest would go, and "b" would be first.
    rig = Rig(generation)
    caller = rig.caller()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [0], [b"gone"]))
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [1, 1, 1], [b"a", b"b", b"a"]))
    got = rig.ask(caller, v2.Dequeue(DEFAULT_QUEUE, 4))
    assert isinstance(got, v2.Delivered)
    rig.ask(caller, v2.Ack([got.token]))
    if is_noted:
        rig.snapshot()
    rig.ask(caller, v2.Ack([got.token + 3]))
    path = write_image(rig.files.image(), tmp_path / "node")
    assert identified(path) == [("", 2, 1, b"a"), ("", 3, 1, b"b")] == tasks_of(rig.state)
    convert(read_history(resolve(path)), WRITTEN[Generation.THREE], tmp_path / "out")
    assert identified(tmp_path / "out") == identified(path)
