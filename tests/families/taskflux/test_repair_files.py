"""Salvage where whole files are lost or spoilt, of single files, and of generation 1."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import PathRefused
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux.compaction import Compaction, encode_compaction
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import COMMIT, LogLayout
from penstock.formats.taskflux.metadata import decode_metadata
from penstock.model import (
    DEFAULT_QUEUE,
    CreateCommand,
    CreateQueue,
    DeleteQueue,
    Dequeue,
    Enqueue,
    HardState,
    Implementation,
    Index,
    KeyRange,
    Policy,
    QueueName,
    SnapshotPoint,
    Term,
)
from support.at_rest import damage_of, listed, opens, repaired, tree
from support.damage import flipped, overwritten
from support.naive_queues import Change
from support.node_files import Node, write_files
from support.salvage import (
    CREATE,
    Changes,
    add,
    by_value,
    payloads,
    remove,
    salvaged,
    segment,
    spoil,
    three,
)
from support.samples import NODES, QUEUE, THREE, TWO

History = list[tuple[int, Change]]

OMEGA = QueueName("omega")


# --- lost files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "gone", "spoilt"])
def test_a_lost_snapshot_costs_its_tasks_and_no_others(tmp_path: Path, how: str) -> None:
    # Removal of 1 meant a task of the snapshot. The first one added behind it must not stand in for it.
    node = three(
        [CREATE, add(b"old"), add(b"new"), remove(1), add(b"newer")], snapshot_at=1, starts=(2,)
    )
    files = node.files()
    data = files.pop("data/tflux.snapshot")
    if how != "gone":
        files["data/tflux.snapshot"] = data[:30] if how == "cut" else flipped(data, 8 * 40)
    out, left = salvaged(tmp_path, files)
    assert payloads(out) == [b"new", b"newer"]
    assert left == ([] if how == "gone" else ["bad-snapshot"]) + ["missing", "not-applied"]
    assert inspect(resolve(out))["snapshot_index"] == 4
    assert opens(out)


def test_a_lost_snapshot_costs_nothing_if_the_log_still_has_everything(tmp_path: Path) -> None:
    node = three([CREATE, add(b"old"), add(b"new"), remove(1)], snapshot_at=1, starts=(0,))
    files = node.files()
    out, left = salvaged(tmp_path, spoil(files, "data/tflux.snapshot", b"old"))
    assert payloads(out) == [b"new"]
    assert left == ["bad-snapshot"]


def test_a_lost_snapshot_of_generation_2_does_not_make_twins_of_its_tasks_removable(
    tmp_path: Path,
) -> None:
    same = add(b"same", DEFAULT_QUEUE)
    history: History = [(1, same), (1, same), (1, by_value(b"same"))]
    node = Node(layout=LogLayout.TWO, history=history, snapshot_at=0)
    files = node.files()
    out, left = salvaged(tmp_path, spoil(files, "consensus/raft.snapshot", b"same"))
    assert payloads(out) == [b"same"]
    assert left == ["bad-snapshot", "missing", "not-applied"]


@pytest.mark.parametrize("name", ["1b", "2", "3"])
def test_lost_metadata_costs_the_vote_and_is_said(tmp_path: Path, name: str) -> None:
    node = NODES[name]
    files = node.files()
    (metadata,) = [file for file in files if file.endswith("metadata")]
    root = write_files(tmp_path / "node", files | {metadata: files[metadata][:7]})
    rows, account = repaired(root, tmp_path / "out")
    assert [row["status"] for row in rows] == ["bad-metadata"]
    assert account.notes == [
        "the vote is lost: let this node join as a new member, not under its old id"
    ]
    assert listed(tmp_path / "out") == node.tasks
    state = decode_metadata((tmp_path / "out" / metadata).read_bytes()).state
    assert state == HardState(term=Term(4))


def test_a_missing_segment_costs_its_tasks_and_no_others(tmp_path: Path) -> None:
    changes: Changes = [CREATE, add(b"aa"), add(b"bb"), add(b"cc"), remove(2), remove(3), remove(1)]
    node = three(changes, starts=(0, 2, 3))
    files = node.files()
    del files[segment(2)]
    out, left = salvaged(tmp_path, files)
    # Removal of 2 meant the lost one, and of 3 the one that is left: nobody can tell, so it stays.
    assert payloads(out) == [b"cc"]
    assert left == ["missing", "not-applied", "not-applied"]
    assert inspect(resolve(out))["snapshot_index"] == 6
    assert opens(out)


def test_a_queue_whose_creation_is_lost_is_made_anew(tmp_path: Path) -> None:
    node = three([CreateQueue(queue=OMEGA, policy=Policy()), add(b"aa", OMEGA), remove(1, OMEGA)])
    root = write_files(tmp_path / "node", spoil(node.files(), segment(0), b"C\x05omega"))
    rows, account = repaired(root, tmp_path / "out")
    assert payloads(tmp_path / "out") == [b"aa"]
    assert account.notes[0] == "queue 'omega': its creation is lost; made anew without limits"
    assert [row["status"] for row in rows] == ["bad-checksum", "not-applied"]


def test_a_queue_whose_deletion_is_lost_keeps_what_it_holds(tmp_path: Path) -> None:
    again: Changes = [DeleteQueue(queue=QUEUE), CREATE, add(b"bb"), add(b"cc"), remove(2)]
    node = three([CREATE, add(b"aa"), *again])
    out, left = salvaged(tmp_path, spoil(node.files(), segment(0), b"D\x01q"))
    # Ids began anew: removal of 2 meant "cc", not the second task that is there now.
    assert set(payloads(out)) >= {b"bb"}
    assert set(payloads(out)) <= {b"aa", b"bb", b"cc"}
    assert left == ["bad-checksum", "not-applied", "not-applied"]


# --- headers and companions ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1a", "1b", "1c", "2", "3"])
def test_a_spoilt_header_costs_no_entry(tmp_path: Path, name: str) -> None:
    node = NODES[name]
    files = node.files()
    log = min(file for file in files if "log" in Path(file).name)
    out, left = salvaged(tmp_path, files | {log: b"no marker"[:8] + files[log][8:]})
    if node.generation is Generation.TWO:
        # With the header the commit index is gone: no removal is sure any more.
        assert Counter(node.tasks) <= Counter(listed(out)) <= Counter(node.ever)
        assert set(left) == {"bad-header", "not-applied"}
    else:
        assert listed(out) == node.tasks
        assert left == ["bad-header"]


def test_a_commit_index_that_cannot_be_lets_nothing_be_taken_away(tmp_path: Path) -> None:
    for number, commit in enumerate((-2, 77)):
        files = TWO.files()
        files["consensus/log.raft"] = overwritten(
            files["consensus/log.raft"], 8, COMMIT.pack(commit)
        )
        out, _ = salvaged(tmp_path / str(number), files)
        assert Counter(TWO.tasks) <= Counter(listed(out)) <= Counter(TWO.ever)


def test_a_commit_index_beyond_a_log_that_was_cut_is_believed(tmp_path: Path) -> None:
    files = TWO.files()
    log = files["consensus/log.raft"]
    out, left = salvaged(tmp_path, files | {"consensus/log.raft": log[:120]})
    assert listed(out) == TWO.at(4)
    assert left == ["torn"]


def test_a_spoilt_sidecar_lets_nothing_be_taken_away_twice(tmp_path: Path) -> None:
    history: History = [
        (1, add(b"a", DEFAULT_QUEUE)),
        (1, add(b"a", DEFAULT_QUEUE)),
        (1, by_value(b"a")),
    ]
    node = Node(layout=LogLayout.TWO, history=history, snapshot_at=2)
    point = SnapshotPoint(index=Index(2), term=Term(1))
    sidecar = encode_compaction(Compaction(point=point, first=Index(2), count=None))
    files = node.files() | {
        "consensus/log.raft": node.log(2, 3),
        "consensus/penstock.compaction": flipped(sidecar, 100),
    }
    out, left = salvaged(tmp_path, files)
    assert payloads(out) == [b"a"]
    assert left == ["bad-sidecar", "not-applied"]


# --- generation 1 --------------------------------------------------------------------------------


def test_variant_1a_keeps_its_snapshot_if_the_log_is_shorter(tmp_path: Path) -> None:
    node = NODES["1a"]
    out, left = salvaged(tmp_path, node.files() | {"consensus/raft.log": node.log(0, 1)})
    assert listed(out) == node.at(1)
    assert left == []


def test_variant_1c_keeps_its_policies(tmp_path: Path) -> None:
    policy = Policy(
        implementation=Implementation.ARRAY, payload_size_max=9, keys=KeyRange(lowest=0, highest=5)
    )
    history: History = [(1, CreateQueue(queue=QUEUE, policy=policy)), (1, add(b"aa"))]
    out, left = salvaged(tmp_path, Node(layout=LogLayout.ONE_C, history=history).files())
    assert left == []
    assert payloads(out) == [b"aa"]
    assert inspect(resolve(out))["variant"]["snapshot"] == "1c"


def test_behind_a_command_that_cannot_be_read_nothing_is_dequeued(tmp_path: Path) -> None:
    node = NODES["1b"]
    data = node.files()["consensus/raft.log"]
    at = data.index(b"E\x01q")
    files = node.files() | {"consensus/raft.log": flipped(data, 8 * at)}
    root = write_files(tmp_path / "node", files)
    rows, _ = repaired(root, tmp_path / "out")
    assert [row["status"] for row in rows] == ["not-applied", "not-applied"]
    assert set(listed(tmp_path / "out")) == {("", 0, b"d"), ("q", 1, b"c"), ("q", 5, b"a")}


def test_a_full_queue_behind_a_loss_still_takes_its_tasks(tmp_path: Path) -> None:
    history: History = [
        (1, CreateCommand(queue=QUEUE, size_max=1)),
        (1, Enqueue(queue=QUEUE, key=0, payload=b"xx")),
        (1, Dequeue(queue=DEFAULT_QUEUE)),
        (1, Dequeue(queue=QUEUE)),
        (1, Enqueue(queue=QUEUE, key=0, payload=b"yy")),
    ]
    files = Node(layout=LogLayout.ONE_B, history=history).files()
    damaged = files["consensus/raft.log"].replace(b"D\x00", b"X\x00")
    out, _ = salvaged(tmp_path, files | {"consensus/raft.log": damaged})
    assert payloads(out) == [b"xx", b"yy"]


# --- single files and places ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tflux.snapshot", "log/0000000000000000002.log", "tflux.metadata"]
)
def test_a_single_file_is_salvaged_alone(tmp_path: Path, name: str) -> None:
    root = THREE.write(tmp_path / "node")
    repaired(root / "data" / name, tmp_path / "out")
    assert damage_of(tmp_path / "out") == []
    expected = {"tflux.snapshot": [b"a"], "log/0000000000000000002.log": [b"b"]}
    assert payloads(tmp_path / "out") == expected.get(name, [])
    if name.startswith("log"):  # its indexes are kept, though nobody knows what came before
        assert inspect(resolve(tmp_path / "out"))["snapshot_index"] == 3


@pytest.mark.parametrize("out", [".", "..", "node", "node/new", "taken", "no/such", "file"])
def test_a_place_that_is_taken_inside_or_nowhere_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    THREE.write(tmp_path / "node")
    write_files(tmp_path, {"taken/something": b"", "file": b""})
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(PathRefused):
        repaired(tmp_path / "node", Path(out) if out in (".", "..") else tmp_path / out)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["empty", "link"])
def test_an_empty_directory_is_filled(tmp_path: Path, kind: str) -> None:
    root = THREE.write(tmp_path / "node")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    repaired(root, tmp_path / kind)
    assert listed(tmp_path / "empty") == THREE.tasks
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link", "node"]
