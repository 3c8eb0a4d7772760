"""The state at an index: what ``tasks`` lists, against a model that does it the slow way."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Compacted, CorruptData, OutOfRange
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.replay import replay
from penstock.families.taskflux.rows import dump
from penstock.formats.taskflux.compaction import Compaction, encode_compaction
from penstock.formats.taskflux.log import LogLayout
from penstock.model import (
    DEFAULT_QUEUE,
    AddTask,
    CreateCommand,
    Dequeue,
    Enqueue,
    Index,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)
from support.at_rest import damage_of, identified, listed, statuses, tree
from support.histories import nodes
from support.naive_queues import Change
from support.node_files import Node, write_files

History = list[tuple[int, Change]]


@pytest.mark.parametrize("layout", list(LogLayout), ids=lambda layout: layout.variant)
@given(data=st.data())
def test_the_state_after_every_entry_is_that_of_the_model(
    layout: LogLayout, data: st.DataObject
) -> None:
    node = data.draw(nodes(layout))
    with TemporaryDirectory() as place:
        root = node.write(Path(place) / "node")
        before = tree(root)
        lowest = -1 if layout is LogLayout.ONE_A else node.snapshot_at
        # A removal that finds nothing behind a snapshot may mean that the snapshot covers it.
        assert {row["status"] for row in damage_of(root)} <= {"applied-twice"}
        assert listed(root) == node.tasks
        assert listed(root, uncommitted=True) == node.at(node.last)
        for index in range(lowest, len(node.history)):
            assert listed(root, at=index) == node.at(index)
        for index in range(-1, lowest):
            with pytest.raises(Compacted, match=f"ask for --at {node.snapshot_at} or later"):
                listed(root, at=index)
        with pytest.raises(OutOfRange, match=f"ask for --at {node.last}"):
            listed(root, at=len(node.history))
        assert tree(root) == before


@given(node=nodes(LogLayout.THREE))
def test_ids_are_those_that_the_queue_gave_out(node: Node) -> None:
    with TemporaryDirectory() as place:
        root = node.write(Path(place))
        for index in range(node.snapshot_at, len(node.history)):
            assert identified(root, at=index) == node.states[index + 1].identified()


def added(*payloads: bytes, key: int = 0) -> list[AddTask]:
    return [AddTask(queue=DEFAULT_QUEUE, key=key, payload=payload) for payload in payloads]


def test_within_a_key_the_first_in_is_the_first_out(tmp_path: Path) -> None:
    history = [(1, change) for change in [*added(b"b", b"a"), *added(b"c", key=-1), *added(b"d")]]
    for layout in (LogLayout.TWO, LogLayout.THREE):
        for snapshot_at in (-1, 1):
            node = Node(layout=layout, history=history, snapshot_at=snapshot_at)
            root = node.write(tmp_path / f"{layout.variant}{snapshot_at}")
            assert [payload for _, _, payload in listed(root)] == [b"c", b"b", b"a", b"d"]


def test_of_equal_tasks_the_oldest_is_removed(tmp_path: Path) -> None:
    # Equal in key and payload, so only what comes between them shows which one went.
    history: History = [
        *((1, change) for change in added(b"same", b"between", b"same")),
        (1, RemoveEqualTask(queue=DEFAULT_QUEUE, key=0, payload=b"same")),
    ]
    root = Node(layout=LogLayout.TWO, history=history, snapshot_at=1).write(tmp_path)
    assert [payload for _, _, payload in listed(root)] == [b"between", b"same"]


def test_variant_1a_is_replayed_from_its_whole_log_beside_a_snapshot(tmp_path: Path) -> None:
    history: History = [
        (1, Enqueue(queue=DEFAULT_QUEUE, key=1, payload=b"first")),
        (1, Enqueue(queue=DEFAULT_QUEUE, key=1, payload=b"second")),
        (2, Dequeue(queue=DEFAULT_QUEUE)),
    ]
    node = Node(layout=LogLayout.ONE_A, history=history, snapshot_at=1)
    root = node.write(tmp_path)
    assert listed(root) == [("", 1, b"second")]
    assert listed(root, at=0) == [("", 1, b"first")]
    assert listed(root, at=-1) == []


def test_variant_1a_falls_back_on_its_snapshot_when_the_log_is_shorter(tmp_path: Path) -> None:
    history: History = [
        (1, CreateCommand(queue=DEFAULT_QUEUE, size_max=None)),
        (1, Enqueue(queue=DEFAULT_QUEUE, key=1, payload=b"kept")),
    ]
    node = Node(layout=LogLayout.ONE_A, history=history, snapshot_at=1)
    files = node.files() | {"consensus/raft.log": node.log(0, 1)}
    root = write_files(tmp_path, files)
    assert listed(root) == [("", 1, b"kept")]
    with pytest.raises(Compacted):
        listed(root, at=0)


# --- interrupted compaction (rule R13) -----------------------------------------------------------


def interrupted(*, count: int | None) -> tuple[Node, dict[str, bytes]]:
    """Return a node whose log is still the one before the compaction, and its files with the sidecar."""
    history: History = [
        *((1, change) for change in added(b"a", b"a", b"b")),
        (2, RemoveEqualTask(queue=DEFAULT_QUEUE, key=0, payload=b"a")),
        *((2, change) for change in added(b"c")),
    ]
    node = Node(layout=LogLayout.TWO, history=history, snapshot_at=3)
    point = SnapshotPoint(index=Index(3), term=Term(2))
    files = node.files() | {
        "consensus/log.raft": node.log(0, 5),
        "consensus/penstock.compaction": encode_compaction(
            Compaction(point=point, first=Index(0), count=count)
        ),
    }
    return node, files


@pytest.mark.parametrize("count", [None, 5])
def test_records_that_an_interrupted_compaction_left_are_not_applied_twice(
    tmp_path: Path, count: int | None
) -> None:
    node, files = interrupted(count=count)
    root = write_files(tmp_path, files)
    before = tree(root)
    assert listed(root) == node.tasks == [("", 0, b"a"), ("", 0, b"b"), ("", 0, b"c")]
    assert listed(root, at=3) == node.at(3)
    assert damage_of(root) == []
    entries = [row for row in dump(resolve(root)) if row["kind"] == "entry"]
    assert [row["index"] for row in entries] == [0, 1, 2, 3, 4]
    assert tree(root) == before


def test_without_the_sidecar_the_log_shows_that_the_snapshot_covers_its_first_entries(
    tmp_path: Path,
) -> None:
    """TaskFlux applies them twice after a crash between snapshot and shortening the log."""
    node, files = interrupted(count=None)
    del files["consensus/penstock.compaction"]
    root = write_files(tmp_path, files)
    assert listed(root) == node.tasks


def test_a_log_that_was_already_shortened_begins_behind_the_snapshot(tmp_path: Path) -> None:
    node, files = interrupted(count=5)
    root = write_files(tmp_path, files | {"consensus/log.raft": node.log(4, 5)})
    assert listed(root) == node.tasks


def test_a_sidecar_of_a_snapshot_that_never_came_into_place_changes_nothing(tmp_path: Path) -> None:
    node, files = interrupted(count=None)
    del files["consensus/raft.snapshot"]
    root = write_files(tmp_path, files)
    assert listed(root) == node.tasks


def test_a_log_that_fits_no_step_of_the_compaction_is_refused(tmp_path: Path) -> None:
    node, files = interrupted(count=5)
    root = write_files(tmp_path, files | {"consensus/log.raft": node.log(0, 3)})
    with pytest.raises(
        CorruptData, match="neither the one before its compaction nor the one after"
    ):
        listed(root)
    assert statuses(root) == ["bad-sidecar"]


# --- damage in the way ---------------------------------------------------------------------------


def three(**changes: object) -> Node:
    history: History = [
        *((1, change) for change in added(b"a", b"b", b"c")),
        (2, RemoveTask(queue=DEFAULT_QUEUE, id=TaskId(1))),
        *((3, change) for change in added(b"d")),
    ]
    return Node(layout=LogLayout.THREE, history=history, **changes)  # type: ignore[arg-type]


def test_a_state_that_would_skip_an_entry_is_refused_whatever_the_generation(
    tmp_path: Path,
) -> None:
    node = three()
    files = node.files()
    (name,) = [name for name in files if name.endswith(".log")]
    data = bytearray(files[name])
    data[data.index(b"b")] ^= 1
    root = write_files(tmp_path, files | {name: bytes(data)})
    # Damage 0005: whole records follow, so this is no torn tail, sync point or not.
    with pytest.raises(CorruptData, match="entry 1 is not whole"):
        listed(root)
    assert listed(root, at=0) == node.at(0)


def test_a_torn_tail_is_left_out_and_said(tmp_path: Path) -> None:
    node = three()
    files = node.files()
    (name,) = [name for name in files if name.endswith(".log")]
    root = write_files(tmp_path, files | {name: files[name][:-10]})
    state = replay(read_history(resolve(root)))
    assert state.index == 3
    assert state.tail is not None
    assert "torn" in state.tail
    assert listed(root) == node.at(3)


@pytest.mark.parametrize("commit", [5, 2**31 - 1])
def test_a_commit_index_beyond_the_log_is_refused(tmp_path: Path, commit: int) -> None:
    # R7: committed data is missing.
    history = [(1, change) for change in added(b"a", b"b")]
    root = Node(layout=LogLayout.TWO, history=history, commit=commit).write(tmp_path)
    with pytest.raises(CorruptData, match=f"entries up to {commit} were committed"):
        listed(root)
    assert listed(root, at=1) == [("", 0, b"a"), ("", 0, b"b")]


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
def test_a_log_that_ends_before_its_sync_point_is_refused(
    tmp_path: Path, layout: LogLayout
) -> None:
    history = [(1, change) for change in added(b"a", b"b")]
    root = Node(layout=layout, history=history, synced=4).write(tmp_path)
    with pytest.raises(CorruptData, match="entries up to 4 were committed or synced"):
        listed(root, uncommitted=True)


@pytest.mark.parametrize(
    ("starts", "reason"), [((0, 4), "missing"), ((0, 2), "stand in the files")]
)
def test_segments_that_do_not_fit_together_are_refused(
    tmp_path: Path, starts: tuple[int, ...], reason: str
) -> None:
    node = three(starts=(0, 3))
    files = node.files()
    moved = f"data/log/{starts[1]:019d}.log"
    files[moved] = files.pop("data/log/0000000000000000003.log")
    root = write_files(tmp_path, files)
    with pytest.raises(CorruptData, match=reason):
        listed(root)
    assert statuses(root)[0] in ("missing", "overlap")


def test_a_gap_before_an_empty_segment_is_seen(tmp_path: Path) -> None:
    node = three()
    files = node.files() | {"data/log/0000000000000000009.log": node.log(5, 5)}
    root = write_files(tmp_path, files)
    with pytest.raises(CorruptData, match="entries 5 to 8 are missing"):
        listed(root)
    assert statuses(root) == ["missing"]
