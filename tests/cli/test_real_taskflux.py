"""Directories of real TaskFlux programs: the commands show the tasks that those programs hold, and the damage that is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptData
from penstock.families.taskflux.location import choose
from penstock.formats.taskflux.log import RECORD_MARKER, LogLayout
from penstock.model import DEFAULT_QUEUE, AddTask, Enqueue, HardState, RemoveEqualTask, Term
from penstock.server.upgrade import upgrade
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import OsFiles
from support.command import penstock
from support.naive_queues import Change
from support.node_files import Node, write_files
from support.taskflux_golden import CASES, Case, Tasks, by_queue

# The program forgot the queues that its leader had created and acknowledged. Nothing acknowledged is lost: both logs make the
# same queues, and TaskFlux's leader held them (docs/decisions/0028).
ACKNOWLEDGED = {"1b-policies-queues": "1b-queues"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_commands_show_what_taskflux_holds(case: Case, tmp_path: Path) -> None:
    """Sets of tasks are compared, and the order of keys: TaskFlux restores equal keys in the order of a hash table."""
    root, expect = case.unpack(tmp_path), case.facts["expect"]
    found, checked = penstock("tasks", root), penstock("verify", root)
    tasks, truth = by_queue(found.rows), Case(ACKNOWLEDGED.get(case.name, case.name)).truth
    for held in tasks.values():
        assert [key for key, _ in held] == sorted(key for key, _ in held)
    is_same = truth is None or sorted_tasks(tasks) == sorted_tasks(truth)
    match expect:
        case "whole":
            assert is_same
            assert (found.code, checked.code) == (0, 0), checked.rows
        case "ambiguous":
            assert is_same
        case "torn" | "damaged":
            assert checked.code == 1
            assert is_same or found.code == 1
        case _:
            assert expect == "undecidable"
            assert {found.code, checked.code} <= {0, 1}


def upgraded(root: Path) -> str | None:
    """Do what a start does first; return where files of generation 1 are kept."""
    return upgrade(OsFiles(), root, choose(OsFiles(), root, None).layout)


def sorted_tasks(tasks: Tasks) -> Tasks:
    return {queue: sorted(held) for queue, held in tasks.items()}


INDEXES = ("last_index", "commit_index")
OPENED = [case for case in CASES if case.facts["expect"] == "whole"]


@pytest.mark.parametrize("case", OPENED, ids=lambda case: case.name)
def test_inspect_has_the_numbers_of_taskflux(case: Case, tmp_path: Path) -> None:
    facts = case.facts
    row = penstock("inspect", case.unpack(tmp_path)).rows[0]
    assert (row["term"], row["vote"]) == (facts["term"], facts["vote"])
    if facts["truth"] == "loader":  # else it forgets what the snapshot covers
        # TaskFlux says -1 where there is no entry.
        assert [row[name] for name in INDEXES if row[name] not in (None, -1)] == [
            facts[name] for name in INDEXES if facts[name] not in (None, -1)
        ]


def listed(root: Path) -> dict[str, list[tuple[int, str]]]:
    found = penstock("tasks", root)
    assert found.code == 0, found.err
    return by_queue(found.rows)


def test_dequeues_of_equal_keys_leave_the_tasks_that_taskflux_has_in_its_order(
    tmp_path: Path,
) -> None:
    """A dequeue of variant 1a names no task: the oldest of equal keys is not the one that clients received."""
    case = Case("1a-equal-keys")
    root = case.unpack(tmp_path / "old")
    assert listed(root) == case.truth
    for to in ("taskflux-1", "taskflux-2", "taskflux-3"):
        assert penstock("convert", root, "--to", to, "--out", tmp_path / to).code == 0
        assert listed(tmp_path / to) == case.truth
    assert penstock("repair", root, "--out", tmp_path / "repaired").code == 0
    assert listed(tmp_path / "repaired") == case.truth


def test_an_upgrade_keeps_the_order_of_delivery(tmp_path: Path) -> None:
    case = Case("1a-equal-keys")
    root = case.unpack(tmp_path)
    assert upgraded(root) == str(root / "consensus")
    assert (root / "data").is_dir()
    assert listed(root) == case.truth


# --- what stands behind an end marker ------------------------------------------------------------


LOG_2 = "data/tflux.log"
SEGMENT = "data/log/0000000000000000000.log"


@pytest.mark.parametrize("name", ["2-overwrite-shorter", "2-clear-then-append", "3-overwritten"])
def test_repair_and_convert_never_bring_overwritten_tasks_back(name: str, tmp_path: Path) -> None:
    """A follower leaves whole stale records behind the end marker; they were salvaged as tasks."""
    case = Case(name)
    assert case.truth is not None
    root = case.unpack(tmp_path / "old")
    rows = penstock("verify", root).rows
    assert [(row["status"], row["severity"]) for row in rows] == [("stale", "harmless")]
    assert penstock("dump", root).code == 0
    for out, words in (
        ("repaired", ("repair", root, "--out")),
        ("converted", ("convert", root, "--to", "taskflux-3", "--uncommitted", "--out")),
    ):
        done = penstock(*words, tmp_path / out)
        assert done.code == 0, done.err
        assert penstock("verify", tmp_path / out).code == 0
        held = penstock("tasks", tmp_path / out, *(["--uncommitted"] * (out == "repaired"))).rows
        assert sorted_tasks(by_queue(held)) == sorted_tasks(uncommitted(root))


def uncommitted(root: Path) -> Tasks:
    return by_queue(penstock("tasks", root, "--uncommitted").rows)


@pytest.mark.parametrize("name", ["2-overwrite-shorter", "3-overwritten"])
def test_a_start_never_takes_stale_records(name: str, tmp_path: Path) -> None:
    root = Case(name).unpack(tmp_path)
    before = uncommitted(root)
    directory = NodeDirectory(OsFiles(), root)
    reasons = [cut.reason for cut in directory.cuts]
    directory.close()
    assert reasons == ["stale bytes behind the end"]
    assert uncommitted(root) == before
    assert penstock("verify", root).rows == []


def zeroed_marker(path: Path, number: int) -> None:
    """Write zeros over the marker of a record, as a bad sector does."""
    data = bytearray(path.read_bytes())
    offset = 0
    for _ in range(number + 1):
        offset = data.index(RECORD_MARKER, offset + 1)
    data[offset : offset + 4] = bytes(4)
    path.write_bytes(bytes(data))


def test_whole_records_behind_a_zeroed_marker_of_generation_3_are_damage_and_saved(
    tmp_path: Path,
) -> None:
    """A start cut them, although ``verify`` reported them and ``repair`` would have saved them."""
    root = Case("3-keys").unpack(tmp_path / "old")
    whole = sum(map(len, by_queue(penstock("tasks", root).rows).values()))
    zeroed_marker(root / SEGMENT, 20)
    log = (root / SEGMENT).read_bytes()
    found = penstock("tasks", root)
    assert found.code == 1
    assert 0 < len(found.rows) < whole
    assert [row["status"] for row in penstock("verify", root).rows] == ["zeros"]
    assert penstock("convert", root, "--to", "taskflux-2", "--out", tmp_path / "two").code == 1
    with pytest.raises(CorruptData):
        NodeDirectory(OsFiles(), root)
    assert (root / SEGMENT).read_bytes() == log
    assert penstock("repair", root, "--out", tmp_path / "new").code == 0
    assert len(penstock("tasks", tmp_path / "new").rows) == whole


def test_records_behind_a_zeroed_marker_of_generation_2_are_undecided(tmp_path: Path) -> None:
    """The commit index is only a floor: records of the same term behind it may be stale, or entries."""
    history = [(1, AddTask(queue=DEFAULT_QUEUE, key=key, payload=b"x")) for key in range(4)]
    node = Node(layout=LogLayout.TWO, history=history, commit=0, state=HardState(term=Term(1)))
    root = write_files(tmp_path / "old", node.files())
    path = root / "consensus/log.raft"
    zeroed_marker(path, 1)
    log, committed, whole = path.read_bytes(), 1, 4
    found = penstock("tasks", root, "--uncommitted")
    assert (found.code, len(found.rows)) == (0, committed)
    assert "--uncommitted" in found.err
    assert [row["status"] for row in penstock("verify", root).rows] == ["undecided"]
    for flags, count, code in (((), committed, 1), (("--uncommitted",), whole, 0)):
        out = tmp_path / f"new{count}"
        assert penstock("repair", root, "--out", out, *flags).code == code
        assert len(penstock("tasks", out, "--uncommitted").rows) == count
    directory = NodeDirectory(OsFiles(), root)
    is_undecided = [cut.is_undecided for cut in directory.cuts]
    directory.close()
    assert is_undecided == [True]
    assert (root / "consensus/log.raft.undecided").read_bytes() == log
    assert penstock("verify", root).rows == []


def test_a_commit_index_beyond_the_end_marker_is_damage(tmp_path: Path) -> None:
    root = Case("2-damage-record-1-all-zero").unpack(tmp_path / "old")
    assert penstock("tasks", root).code == 1
    with pytest.raises(CorruptData):
        NodeDirectory(OsFiles(), root)


# --- emptied logs, and crashes between snapshot and shortening -----------------------------------


def test_a_log_emptied_behind_a_snapshot_continues_it(tmp_path: Path) -> None:
    """Acknowledged entries were dropped, with exit 0: a log of variant 1a was taken for a whole one."""
    case = Case("1a-emptied-log")
    root = case.unpack(tmp_path / "old")
    assert listed(root) == case.truth
    assert upgraded(root) is not None
    assert listed(root) == case.truth


@pytest.mark.parametrize("layout", [LogLayout.ONE_A, LogLayout.ONE_B])
def test_a_log_that_grew_past_the_snapshot_index_after_it_was_emptied_continues_the_snapshot(
    tmp_path: Path, layout: LogLayout
) -> None:
    """Its number of records proves nothing: taken for a whole log, it would drop the tasks of the snapshot."""
    history = [(1, Enqueue(queue=DEFAULT_QUEUE, key=key, payload=b"")) for key in range(5)]
    node = Node(layout=layout, history=history, snapshot_at=1)
    root = write_files(tmp_path, node.files() | {"consensus/raft.log": node.log(2, 5)})
    assert [key for key, _ in listed(root)[""]] == [0, 1, 2, 3, 4]
    assert upgraded(root) is not None
    assert [key for key, _ in listed(root)[""]] == [0, 1, 2, 3, 4]


def test_a_start_drops_entries_that_the_snapshot_covers(tmp_path: Path) -> None:
    """A crash between snapshot and shortening the log made TaskFlux, and a node of ours, apply them twice."""
    history = [
        (1, AddTask(queue=DEFAULT_QUEUE, key=1, payload=payload)) for payload in (b"a", b"b", b"c")
    ]
    node = Node(layout=LogLayout.TWO, history=history, snapshot_at=1)
    files = node.files()
    root = write_files(tmp_path, files | {"consensus/log.raft": node.log(0, 3)})
    assert [row["payload"] for row in penstock("tasks", root).rows] == ["YQ==", "Yg==", "Yw=="]
    assert upgraded(root) is None
    directory = NodeDirectory(OsFiles(), root)
    first, end = directory.log.first, directory.log.end
    directory.close()
    assert (first, end) == (2, 3)


def test_a_removal_without_its_task_behind_a_snapshot_is_reported(tmp_path: Path) -> None:
    """At later compactions the bytes do not tell; a removal that finds nothing gives it away."""
    history: list[tuple[int, Change]] = [
        (1, AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"a")),
        (1, AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"b")),
        (1, RemoveEqualTask(queue=DEFAULT_QUEUE, key=1, payload=b"a")),
    ]
    node = Node(layout=LogLayout.TWO, history=history, snapshot_at=2)
    log = node.files() | {"consensus/log.raft": node.log(2, 3)}
    checked = penstock("verify", write_files(tmp_path, log))
    assert (checked.code, [row["status"] for row in checked.rows]) == (1, ["applied-twice"])


# --- what verify reports, and repair takes -------------------------------------------------------


def statuses(root: Path) -> list[str]:
    checked = penstock("verify", root)
    assert checked.code == 1
    return [row["status"] for row in checked.rows]


@pytest.mark.parametrize(("name", "found"), [("2-basic", []), ("3-overwritten", ["stale"])])
def test_metadata_that_is_missing_beside_a_later_term_is_reported(
    tmp_path: Path, name: str, found: list[str]
) -> None:
    root = Case(name).unpack(tmp_path)
    (root / "data/tflux.metadata").write_bytes(b"")
    assert statuses(root) == [*found, "missing"]
    (root / "data/tflux.metadata").unlink()
    assert statuses(root) == [*found, "missing"]
    with pytest.raises(CorruptData):
        NodeDirectory(OsFiles(), root)


def test_a_segment_cut_at_a_record_is_reported(tmp_path: Path) -> None:
    root = Case("3-keys").unpack(tmp_path)
    data = (root / SEGMENT).read_bytes()
    (root / SEGMENT).write_bytes(data[: data.rindex(RECORD_MARKER)])
    assert statuses(root) == ["cut"]


@pytest.mark.parametrize("name", ["3-snapshot-follower", "3-overwritten"])
def test_no_segment_beside_a_snapshot_or_a_later_term_is_reported(
    tmp_path: Path, name: str
) -> None:
    root = Case(name).unpack(tmp_path)
    shutil.rmtree(root / "data/log")
    assert statuses(root) == ["missing"]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("name", "log"), [("2-basic", LOG_2), ("3-keys", SEGMENT)])
def test_half_an_end_marker_is_a_torn_tail(tmp_path: Path, name: str, log: str, size: int) -> None:
    root = Case(name).unpack(tmp_path)
    path = root / log
    path.write_bytes(path.read_bytes().rstrip(b"\x00") + bytes(size))
    assert statuses(root) == ["torn"]


def test_the_deleted_default_queue_is_reported(tmp_path: Path) -> None:
    assert statuses(Case("3-default-deleted").unpack(tmp_path)) == ["conflict"]


def test_a_repair_of_a_deleted_default_queue_was_still_damaged(tmp_path: Path) -> None:
    """It copied the deletion: TaskFlux could not rebuild its state from the result either."""
    root, out = Case("3-default-deleted").unpack(tmp_path / "old"), tmp_path / "new"
    assert penstock("repair", root, "--out", out).code == 0
    checked = penstock("verify", out)
    assert (checked.code, checked.rows) == (0, [])
    assert listed(out) == by_queue(penstock("tasks", root).rows)


@pytest.mark.parametrize(
    ("name", "status"), [("1b-queues", "perhaps-refused"), ("1b-policies-queues", "forgotten")]
)
def test_queues_that_a_program_of_generation_1_may_not_have_are_named(
    tmp_path: Path, name: str, status: str
) -> None:
    root = Case(name).unpack(tmp_path)
    checked = penstock("verify", root)
    assert checked.code == 0
    assert {row["status"] for row in checked.rows} == {status}
    assert "orders" in {row["queue"] for row in checked.rows}
    assert penstock("inspect", root).rows[0]["harmless"] == checked.rows


def test_repair_takes_a_snapshot_whose_term_alone_is_wrong(tmp_path: Path) -> None:
    case = Case("3-damaged-snapshot-term")
    assert case.truth is not None
    root = case.unpack(tmp_path / "old")
    assert penstock("repair", root, "--out", tmp_path / "new").code == 1
    assert sorted_tasks(listed(tmp_path / "new")) == sorted_tasks(case.truth)


def test_repair_takes_a_snapshot_with_bytes_behind_it(tmp_path: Path) -> None:
    case = Case("3-snapshot-follower")
    assert case.truth is not None
    root = case.unpack(tmp_path / "old")
    with (root / "data/tflux.snapshot").open("ab") as file:
        file.write(b"more")
    done = penstock("repair", root, "--out", tmp_path / "new")
    assert [row["status"] for row in done.rows] == ["leftover"]
    assert sorted_tasks(listed(tmp_path / "new")) == sorted_tasks(case.truth)


def test_garbage_at_the_end_of_a_middle_segment_costs_no_entry(tmp_path: Path) -> None:
    case = Case("3-segments")
    assert case.truth is not None
    root = case.unpack(tmp_path / "old")
    first = min((root / "data/log").iterdir())
    data = first.read_bytes().rstrip(b"\x00")
    first.write_bytes(data + b"\x01\x02\x03\x04")
    done = penstock("repair", root, "--out", tmp_path / "new")
    assert (done.code, len(done.rows)) == (1, 1)
    assert sorted_tasks(listed(tmp_path / "new")) == sorted_tasks(case.truth)
