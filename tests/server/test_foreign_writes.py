"""Another program wrote into a directory of ours: what a start and the tools then say, and that it helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import open as open_node
from penstock.errors import ForeignWrite
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux.log import segment_name
from penstock.formats.taskflux.metadata import MetadataLayout, encode_metadata
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.model import NO_LIMITS, HardState, QueueHead, QueueName, TaskId, Term
from support.at_rest import listed
from support.command import penstock, refused
from support.log_stores import point
from support.snapshot_files import encoded
from support.taskflux_golden import Case


def served(root: Path, generation: int) -> Path:
    with open_node(root, generation=generation) as client:
        for number in range(5):
            client.enqueue("", b"task %d" % number, key=number)
    return root


def test_a_snapshot_of_taskflux_in_our_directory_is_named_as_such(tmp_path: Path) -> None:
    root = served(tmp_path / "node", 3)
    head = QueueHead(name=QueueName(""), policy=NO_LIMITS, last_id=TaskId(9), count=1)
    was = inspect(resolve(root))
    last = point(was["last_index"], was["term"])
    snapshot = encoded(last, [(head, [(9, 5, b"theirs")])], SnapshotLayout.THREE)
    (root / "data" / "tflux.snapshot").write_bytes(snapshot)
    noted = root / "data" / "log" / "penstock.synced"
    with pytest.raises(ForeignWrite) as caught:
        open_node(root)
    assert caught.value.path == str(root / "data" / "tflux.snapshot")
    assert str(noted) in str(caught.value)
    for command in ("tasks", "verify", "inspect"):
        done = penstock(command, root)
        assert done.code == 1
        assert str(noted) in done.out + done.err
    # What the message says to do.
    noted.unlink()
    with open_node(root) as client:
        assert [task.payload for task in client.peek("", 9)] == [b"theirs"]


@pytest.mark.parametrize("generation", [2, 3])
def test_a_log_that_another_program_shortened_is_named_as_such(
    tmp_path: Path, generation: int
) -> None:
    """A follower of TaskFlux removes what its leader does not have, and writes an end marker there."""
    root = served(tmp_path / "node", generation)
    log = root / ("consensus/log.raft" if generation == 2 else f"data/log/{segment_name(0)}")
    data = log.read_bytes()
    last = data.rindex(b"\xaa\xf5\x34\xc4")
    data = data[:last] + bytes(len(data) - last)
    if generation == 2:
        data = data[:8] + (int.from_bytes(data[8:12], "big") - 1).to_bytes(4, "big") + data[12:]
    log.write_bytes(data)
    with pytest.raises(ForeignWrite) as caught:
        open_node(root)
    assert (caught.value.path, caught.value.offset) == (str(log), last)
    noted = log.parent / "penstock.synced"
    assert str(noted) in str(caught.value)
    assert penstock("verify", root).code == 1
    noted.unlink()
    with open_node(root) as client:
        assert [task.key for task in client.peek("", 9)] == [0, 1, 2, 3]


def test_metadata_that_taskflux_rewrote_in_front_of_our_checksum_is_named_as_such(
    tmp_path: Path,
) -> None:
    root = Case("2-basic").unpack(tmp_path)
    tasks = listed(root)
    metadata = root / "data" / "tflux.metadata"
    grown = encode_metadata(HardState(term=Term(4)), MetadataLayout.TWO_SEED)
    metadata.write_bytes(grown[:8] + (5).to_bytes(4, "big") + grown[12:])
    with pytest.raises(ForeignWrite) as caught:
        open_node(root)
    assert (caught.value.path, caught.value.offset) == (str(metadata), 16)
    assert "16 bytes" in refused("tasks", root)
    assert penstock("verify", root).code == 1
    # What the message says to do.
    metadata.write_bytes(metadata.read_bytes()[:16])
    with open_node(root) as client:
        assert client.stat("").count == len(tasks)
