"""A directory of generation 2 keeps its layout and its names, so that TaskFlux and a node of ours can take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import open as open_node
from penstock.client.blocking import Client
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.metadata import MetadataLayout, encode_metadata
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.model import NO_LIMITS, AddTask, HardState, QueueHead, QueueName, TaskId, Term
from support.at_rest import listed
from support.command import penstock
from support.log_stores import point
from support.node_process import start
from support.snapshot_files import encoded
from support.taskflux_golden import Case
from support.taskflux_program import Program

DEFAULT = QueueName("")
PADDING = b"p" * 2**17

each_case = pytest.mark.parametrize(
    "name",
    ["2-basic", "2-late-leader-snapshot", "2-mixed-empty", "2-mixed-policies", "2-mixed-snapshot"],
)


def variant(root: Path) -> dict[str, Any]:
    row = inspect(resolve(root))
    assert row["damage"] == []
    found: dict[str, Any] = row["variant"]
    return found


def served_until_a_snapshot(root: Path) -> None:
    """Serve a directory, log more than a mebibyte that leaves no tasks, and stop: the node leaves a snapshot."""
    with start(root) as node, node.client() as client:
        client.enqueue("", b"ours", key=7)
        log_a_mebibyte(client)
        assert node.stop() == 0


def log_a_mebibyte(client: Client) -> None:
    client.create_queue("padding")
    for _ in range(10):
        client.enqueue("padding", PADDING)
    client.delete_queue("padding")


def add(payload: bytes, key: int = 3) -> bytes:
    return encode_delta(AddTask(queue=DEFAULT, key=key, payload=payload))


@each_case
def test_a_node_that_serves_generation_2_leaves_its_layouts_and_names_alone(
    tmp_path: Path, name: str
) -> None:
    root = Case(name).unpack(tmp_path)
    before, tasks, names = variant(root), listed(root), set(root.rglob("*"))
    served_until_a_snapshot(root)
    is_mixed = "mixed" in name
    snapshot = "1c" if is_mixed else "code"
    assert variant(root) == before | {"snapshot": snapshot}
    assert before["metadata"] == ("1b" if is_mixed else "code")
    assert sorted(listed(root)) == sorted([*tasks, ("", 7, b"ours")])
    ours = {"penstock.lock", "penstock.synced", "tflux.snapshot"}
    assert {path.name for path in set(root.rglob("*")) - names} <= ours
    (metadata,) = root.rglob("*.metadata")
    assert metadata.stat().st_size == 16


@each_case
def test_taskflux_and_a_node_take_turns_and_nothing_is_refused(tmp_path: Path, name: str) -> None:
    """The harm: metadata that we grew to 20 bytes was refused after the next vote of TaskFlux."""
    root, is_mixed = Case(name).unpack(tmp_path), "mixed" in name
    expected = [*listed(root), ("", 7, b"ours")]
    served_until_a_snapshot(root)
    for turn in range(3):
        program = Program(root, is_mixed)
        program.vote(2)
        program.append(add(b"theirs %d" % turn), add(b"more"))
        expected += [("", 3, b"theirs %d" % turn), ("", 3, b"more")]
        assert penstock("verify", root).code == 0
        with open_node(root) as client:
            client.enqueue("", b"again", key=turn)
        expected.append(("", turn, b"again"))
        assert sorted(listed(root)) == sorted(expected)
    Program(root, is_mixed)  # opens once more


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_snapshot_that_taskflux_takes_of_our_entries_is_followed(
    tmp_path: Path, is_mixed: bool
) -> None:
    root = Case("2-mixed-empty" if is_mixed else "2-basic").unpack(tmp_path)
    with open_node(root) as client:
        client.enqueue("", b"ours", key=7)
    program = Program(root, is_mixed)
    program.vote(1)
    program.append(add(b"theirs"))
    head = QueueHead(name=DEFAULT, policy=NO_LIMITS, last_id=TaskId(1), count=1)
    layout = SnapshotLayout.ONE_C if is_mixed else SnapshotLayout.TWO_CODE
    last = point(len(program.records) - 1, program.term)
    program.save_snapshot(encoded(last, [(head, [(1, 5, b"all that is left")])], layout))
    assert penstock("verify", root).code == 0
    with open_node(root) as client:
        assert [task.payload for task in client.peek("", 9)] == [b"all that is left"]
        client.enqueue("", b"behind it", key=6)
    assert listed(root) == [("", 5, b"all that is left"), ("", 6, b"behind it")]
    Program(root, is_mixed)


def test_metadata_that_an_older_version_grew_gets_its_16_bytes_back(tmp_path: Path) -> None:
    root = Case("2-basic").unpack(tmp_path)
    metadata, state = root / "data" / "tflux.metadata", HardState(term=Term(4))
    metadata.write_bytes(encode_metadata(state, MetadataLayout.TWO_SEED))
    with open_node(root) as client:
        client.ping()
    assert metadata.stat().st_size == 16
    Program(root).vote(1)
    assert penstock("verify", root).code == 0


def test_the_layout_of_the_document_stays_where_it_is(tmp_path: Path) -> None:
    out = tmp_path / "seed"
    assert penstock("convert", Case("2-snapshot-keeps-tail").unpack(tmp_path / "in"),
                    "--to", "taskflux-2", "--out", out).code == 0  # fmt: skip
    served_until_a_snapshot(out)
    assert variant(out) == {"log": "2", "snapshot": "seed", "metadata": "seed"}
    assert (out / "consensus" / "log.raft").exists()


def test_a_queue_of_taskflux_with_the_name_of_our_notes_ended_all_snapshots(tmp_path: Path) -> None:
    """An assertion failed, or the snapshot held the tasks in place of notes and the next start refused it."""
    root = Case("3-names").unpack(tmp_path)
    kept = [task for task in listed(root) if task[0] != "!penstock.notes"]
    with start(root, "--snapshot-bytes", 2**20) as node, node.client() as client:
        log_a_mebibyte(client)
        assert "!penstock.notes" in node.wait_said("snapshot")["text"]
        assert inspect(resolve(root))["snapshot_index"] is None
        # What the message says to do.
        client.delete_queue("!penstock.notes")
        log_a_mebibyte(client)
        node.wait_said("snapshot", count=2)
        assert node.said("bug") == []
        assert node.stop() == 0
    assert inspect(resolve(root))["snapshot_index"] is not None
    assert sorted(listed(root)) == sorted(kept)
