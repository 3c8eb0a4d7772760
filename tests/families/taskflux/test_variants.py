"""Variants that only programs wrote: read, verified, converted and salvaged like the others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import open as open_node
from penstock.errors import CannotConvert, PathRefused
from penstock.families.taskflux.convert import convert
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.formats.taskflux.variant import VARIANTS, Variant
from penstock.model import Command, CreateWithPolicy, Enqueue, KeyRange, Policy, QueueName
from support.at_rest import listed
from support.command import penstock, refused
from support.node_files import write_files
from support.snapshot_files import decoded
from support.taskflux_golden import Case, by_queue
from support.taskflux_vectors import SNAPSHOT_1D

QUEUE = QueueName("narrow")
NARROW = Policy(size_max=2, payload_size_max=3, keys=KeyRange(lowest=0, highest=9))
MIXED = ["2-mixed-big", "2-mixed-empty", "2-mixed-killed", "2-mixed-policies", "2-mixed-snapshot"]


def variant(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = inspect(resolve(path))["variant"]
    return found


def log_1d() -> bytes:
    """Return a log of variant 1d: a queue with every limit, tasks that they refuse, and one that they let in."""
    commands: list[Command] = [
        CreateWithPolicy(queue=QUEUE, policy=NARROW),
        Enqueue(queue=QUEUE, key=10, payload=b"key"),
        Enqueue(queue=QUEUE, key=9, payload=b"long"),
        Enqueue(queue=QUEUE, key=9, payload=b"fit"),
        Enqueue(queue=QUEUE, key=0, payload=b""),
        Enqueue(queue=QUEUE, key=1, payload=b"3rd"),
    ]
    layout = LogLayout.ONE_D
    records = [encode_record(layout, term=2, payload=encode_command(c)) for c in commands]
    return encode_header(layout) + b"".join(records)


# --- variant 1d ----------------------------------------------------------------------------------


def test_a_creation_with_policies_was_refused_as_bytes_left_over(tmp_path: Path) -> None:
    """The leader had created these queues and acknowledged their tasks, though its loader forgets them."""
    root = Case("1b-policies-queues").unpack(tmp_path)
    assert penstock("verify", root).code == 0
    done = penstock("tasks", root)
    assert done.code == 0
    # The same history as in 1b-queues, whose truth is what the leader had acknowledged.
    truth = Case("1b-queues").truth
    assert truth is not None
    found = by_queue(done.rows)
    assert {name: sorted(tasks) for name, tasks in found.items()} == {
        name: sorted(tasks) for name, tasks in truth.items()
    }
    assert variant(root) == {"log": "1d", "metadata": "1b"}


def test_the_limits_of_1d_are_decided_when_its_requests_are_replayed(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"consensus/raft.log": log_1d()})
    assert listed(root) == [("narrow", 0, b""), ("narrow", 9, b"fit")]
    (created, *_) = [row for row in penstock("dump", root).rows if row["kind"] == "entry"]
    assert created["op"] == "create"
    assert created["policy"]["keys"] == [0, 9]
    assert created["policy"]["payload_size_max"] == 3


@pytest.mark.parametrize("to", ["taskflux-1c", "taskflux-2", "taskflux-2-code", "taskflux-3"])
def test_a_conversion_of_1d_keeps_its_policies(tmp_path: Path, to: str) -> None:
    root, out = write_files(tmp_path / "in", {"consensus/raft.log": log_1d()}), tmp_path / "out"
    assert penstock("convert", root, "--to", to, "--out", out).code == 0
    assert listed(out) == listed(root)
    (row,) = [row for row in penstock("dump", out).rows if row.get("queue") == "narrow"
              and row["kind"] == "queue"]  # fmt: skip
    assert row["policy"] == {
        "implementation": "heap", "size_max": 2, "payload_size_max": 3, "keys": [0, 9],
    }  # fmt: skip


def test_1d_is_upgraded_when_it_is_served(tmp_path: Path) -> None:
    root = write_files(
        tmp_path, {"consensus/raft.log": log_1d(), "consensus/raft.snapshot": SNAPSHOT_1D}
    )
    expected = listed(root)
    assert ("orders", 5, b"hi") in expected
    with open_node(root) as client:
        assert client.stat("orders").count == 2
        assert client.stat("narrow").count == 2
    assert listed(root / "data") == expected
    assert (root / "consensus" / "raft.log").read_bytes() == log_1d()


def test_a_snapshot_of_1d_shows_the_variant_of_the_log_beside_it(tmp_path: Path) -> None:
    root = write_files(
        tmp_path,
        {"consensus/raft.log": encode_header(LogLayout.ONE_D), "consensus/raft.snapshot": SNAPSHOT_1D},
    )  # fmt: skip
    assert variant(root) == {"log": "1d", "snapshot": "1d"}
    assert listed(root) == [("orders", -1, b""), ("orders", 5, b"hi")]


def test_the_example_of_a_default_queue_of_1d() -> None:
    example = "00 FFFFFFFF 00 00 00000001 0000000000000001 00000001 64"
    found = decoded(SNAPSHOT_1D[:12] + bytes.fromhex(example))
    assert found.layout is SnapshotLayout.ONE_D
    ((head, tasks),) = found.queues
    assert head.policy == Policy()
    assert tasks == [(1, 1, b"d")]


def test_a_repair_of_1d_keeps_its_policies(tmp_path: Path) -> None:
    root = write_files(tmp_path / "in", {"consensus/raft.log": log_1d()})
    out = tmp_path / "out"
    assert penstock("repair", root, "--out", out).code == 0
    assert listed(out) == listed(root)
    assert variant(out) == {"log": "1c", "snapshot": "1c", "metadata": "1b"}


# --- 2-mixed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MIXED)
def test_the_mix_of_one_day_is_read_verified_and_converted(tmp_path: Path, name: str) -> None:
    case = Case(name)
    root, truth = case.unpack(tmp_path / "in"), case.truth
    assert truth is not None
    assert penstock("verify", root).code == 0
    expected = {queue: sorted(tasks) for queue, tasks in truth.items()}
    for to in ("taskflux-1c", "taskflux-2", "taskflux-2-code", "taskflux-3"):
        out = tmp_path / to
        assert penstock("convert", root, "--to", to, "--out", out).code == 0
        found = by_queue(penstock("tasks", out).rows)
        assert {queue: sorted(tasks) for queue, tasks in found.items()} == expected
        assert penstock("verify", out).code == 0


def test_a_repair_of_generation_2_keeps_its_names_and_layouts(tmp_path: Path) -> None:
    for name in ("2-mixed-snapshot", "2-snapshot-keeps-tail"):
        root, out = Case(name).unpack(tmp_path / name), tmp_path / f"{name}-out"
        assert penstock("repair", root, "--out", out).code == 0
        assert variant(out) == variant(root)
        assert listed(out) == listed(root)
        names = {path.name for path in root.rglob("*.*") if path.stat().st_size}
        assert names <= {path.name for path in out.rglob("*.*")}


# --- conversion to what programs open ------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("taskflux-1", {"log": "1b", "snapshot": "1", "metadata": "1"}),
        ("taskflux-1a", {"log": "1a", "metadata": "1a"}),
        ("taskflux-1b", {"log": "1b", "snapshot": "1b", "metadata": "1b"}),
        ("taskflux-1c", {"log": "1c", "snapshot": "1c", "metadata": "1b"}),
        ("taskflux-2", {"log": "2", "snapshot": "seed", "metadata": "seed"}),
        ("taskflux-2-code", {"log": "2", "snapshot": "code", "metadata": "code"}),
        ("taskflux-3", {"log": "3", "snapshot": "3", "metadata": "3"}),
    ],
)
def test_a_directory_is_written_as_every_variant(
    tmp_path: Path, to: str, expected: dict[str, str]
) -> None:
    root, out = Case("2-snapshot-keeps-tail").unpack(tmp_path / "in"), tmp_path / "out"
    assert penstock("convert", root, "--to", to, "--out", out).code == 0
    assert variant(out) == expected
    assert penstock("verify", out).code == 0
    assert sorted(listed(out)) == sorted(listed(root))
    state, was = inspect(resolve(out)), inspect(resolve(root))
    assert (state["term"], state["vote"]) == (was["term"], was["vote"])


def test_every_variant_but_the_mix_can_be_asked_for() -> None:
    assert {variant for variant in Variant if variant not in VARIANTS.values()} == {
        Variant.TWO_MIXED
    }
    assert sorted(VARIANTS) == [
        f"taskflux-{word}" for word in ("1", "1a", "1b", "1c", "2", "2-code", "3")
    ]


@pytest.mark.parametrize("name", ["2-snapshot-keeps-tail", "2-late-leader-snapshot"])
def test_a_directory_of_taskflux_written_as_its_own_layout_is_byte_for_byte_its_own(
    tmp_path: Path, name: str
) -> None:
    root, out = Case(name).unpack(tmp_path / "in"), tmp_path / "out"
    assert penstock("convert", root, "--to", "taskflux-2-code", "--out", out).code == 0
    for kind in ("metadata", "snapshot"):
        theirs, ours = (where / "data" / f"tflux.{kind}" for where in (root, out))
        assert ours.read_bytes() == theirs.read_bytes()
    theirs, ours = (where / "data" / "tflux.log" for where in (root, out))
    log = theirs.read_bytes()
    assert ours.read_bytes()[: len(log)] == log


def test_variant_1a_is_written_as_a_log_because_its_program_ignores_snapshots(
    tmp_path: Path,
) -> None:
    root, out = Case("2-snapshot-keeps-tail").unpack(tmp_path / "in"), tmp_path / "out"
    assert penstock("convert", root, "--to", "taskflux-1a", "--out", out).code == 0
    assert not (out / "consensus" / "raft.snapshot").exists()
    assert (out / "consensus" / "raft.metadata").stat().st_size == 17
    rows = [row for row in penstock("dump", out).rows if row["kind"] == "entry"]
    assert {row["op"] for row in rows} == {"enqueue"}


def test_variant_1a_takes_no_queue_that_its_program_would_lose(tmp_path: Path) -> None:
    history = read_history(resolve(Case("1c-queues").unpack(tmp_path / "in")))
    with pytest.raises(CannotConvert):
        convert(history, Variant.ONE_A, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["taskflux-1", "taskflux-1b", "taskflux-1c"])
def test_a_queue_with_the_name_of_our_notes_is_never_written_as_notes(
    tmp_path: Path, to: str
) -> None:
    """The conversion succeeded, and what it wrote was damaged."""
    root, out = Case("3-names").unpack(tmp_path / "in"), tmp_path / "out"
    assert "!penstock.notes" in refused("convert", root, "--to", to, "--out", out)
    assert not out.exists()
    assert penstock("convert", root, "--to", "taskflux-2-code", "--out", out).code == 0
    assert listed(out) == listed(root)


# --- names of variant 1a -------------------------------------------------------------------------


def test_log_and_metadata_of_1a_are_known_under_any_name(tmp_path: Path) -> None:
    """Its deployment calls them wal.log and metadata.log; the latter was taken for a torn log."""
    root = Case("1a-host-node1").unpack(tmp_path / "in")
    log, metadata = tmp_path / "wal.log", tmp_path / "metadata.log"
    shutil.copy(root / "consensus" / "raft.log", log)
    shutil.copy(root / "consensus" / "raft.metadata", metadata)
    assert listed(log) == listed(root)
    assert penstock("verify", log).code == 0
    row = inspect(resolve(metadata))
    assert (row["kind"], row["variant"], row["term"], row["vote"], row["damage"]) == (
        "metadata", {"metadata": "1a"}, 3, 3, [],
    )  # fmt: skip


def test_a_log_of_one_command_is_no_metadata(tmp_path: Path) -> None:
    """One command of one byte makes a file as long as metadata."""
    for layout, size in ((LogLayout.ONE_A, 17), (LogLayout.ONE_B, 17)):
        path = tmp_path / f"wal-{layout.variant}.log"
        path.write_bytes(encode_header(layout) + encode_record(layout, term=1, payload=b"L"))
        assert path.stat().st_size == size
        assert inspect(resolve(path))["kind"] == "log"


# --- two sets of files ---------------------------------------------------------------------------


def both(tmp_path: Path, old: str, new: str | None) -> Path:
    """Return a directory with ``consensus`` of one case and ``data`` of another."""
    root = Case(old).unpack(tmp_path / "root")
    if new is None:
        # As TaskFlux of May 2024 begins beside an older directory.
        write_files(root, {f"data/log/{0:019d}.log": encode_header(LogLayout.THREE) + bytes(64)})
    else:
        other = Case(new).unpack(tmp_path / "other")
        shutil.copytree(other / "data", root / "data")
    return root


def test_an_empty_directory_of_the_newest_taskflux_does_not_hide_the_older_files(
    tmp_path: Path,
) -> None:
    root = both(tmp_path, "2-mixed-killed", None)
    done = penstock("tasks", root)
    assert done.code == 0
    assert len(done.rows) == 18
    assert str(root / "consensus") in done.err
    assert str(root / "data") in done.err
    for command in ("inspect", "dump", "verify"):
        told = penstock(command, root)
        assert told.code == 0
        assert str(root / "consensus") in told.err
        assert str(root / "data") in told.err
    with open_node(root) as client:
        assert client.stat("").count == 18


def beside_tflux_log(root: Path) -> Path:
    """Add an empty segment where TaskFlux of May 2024 keeps its log."""
    segment = encode_header(LogLayout.THREE) + bytes(64)
    return write_files(root, {f"data/log/{0:019d}.log": segment})


def test_an_empty_segment_of_the_newest_taskflux_does_not_hide_a_log_in_the_same_directory(
    tmp_path: Path,
) -> None:
    """Every command listed no task and exited 0, and a node served none of them."""
    root = Case("2-late-host").unpack(tmp_path)
    expected = listed(root)
    beside_tflux_log(root)
    for command in ("inspect", "dump", "verify", "tasks"):
        told = penstock(command, root)
        assert told.code == 0
        assert str(root / "data" / "tflux.log") in told.err
        assert str(root / "data" / "log") in told.err
    assert listed(root) == listed(root / "data") == expected
    assert penstock("tasks", root, "--generation", "3").rows == []
    with open_node(root) as client:
        assert client.stat("").count == len(expected)
    assert (root / "data" / "tflux.metadata").stat().st_size == 16


def test_a_snapshot_that_two_logs_may_belong_to_is_refused_unless_a_generation_is_named(
    tmp_path: Path,
) -> None:
    root = Case("2-late-leader-snapshot").unpack(tmp_path)
    expected = listed(root)
    beside_tflux_log(root)
    assert str(root / "data" / "tflux.log") in refused("tasks", root)
    with pytest.raises(PathRefused):
        open_node(root)
    with open_node(root, generation=2) as client:
        assert sum(queue.count for queue in client.queues()) == len(expected)
    assert len(penstock("tasks", root, "--generation", "2").rows) == len(expected)


def test_an_empty_log_beside_segments_is_no_second_set(tmp_path: Path) -> None:
    root = Case("3-snapshot-follower").unpack(tmp_path)
    (root / "data" / "tflux.log").touch()
    done = penstock("verify", root)
    assert (done.code, done.rows) == (0, [])
    assert "tflux.log" not in done.err


@pytest.mark.parametrize("command", ["inspect", "dump", "tasks", "verify", "repair", "convert"])
def test_two_sets_with_tasks_are_refused_unless_a_generation_is_named(
    tmp_path: Path, command: str
) -> None:
    root = both(tmp_path, "2-mixed-killed", "3-policies")
    flags: list[str | Path] = []
    if command in ("repair", "convert"):
        flags += ["--out", tmp_path / "out"]
    if command == "convert":
        flags += ["--to", "taskflux-3"]
    done = penstock(command, root, *flags)
    assert (done.code, done.out) == (1, "")
    assert str(root / "consensus") in done.err
    assert str(root / "data") in done.err
    chosen = penstock(command, root, *flags, "--generation", "2")
    assert chosen.code == 0
    assert str(root / "data") in chosen.err


def test_the_generation_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    root = both(tmp_path, "2-mixed-killed", "3-policies")
    for generation, below in (("2", "consensus"), ("3", "data")):
        chosen = penstock("tasks", root, "--generation", generation)
        assert chosen.out == penstock("tasks", root / below).out
    assert str(root) in refused("tasks", root, "--generation", "1")
    assert str(root) in refused("tasks", root / "data", "--generation", "2")


def test_a_node_serves_one_of_two_sets_if_it_is_told_which(tmp_path: Path) -> None:
    root = both(tmp_path, "2-mixed-killed", "3-policies")
    with pytest.raises(PathRefused):
        open_node(root)
    assert str(root / "data") in refused("serve", "--data", root, "--listen", "127.0.0.1:0")
    for generation, below in ((2, "consensus"), (3, "data")):
        expected = len(listed(root / below))
        with open_node(root, generation=generation) as client:
            assert sum(queue.count for queue in client.queues()) == expected


def test_an_upgrade_does_not_write_over_an_empty_directory_of_another_program(
    tmp_path: Path,
) -> None:
    root = both(tmp_path, "1c-queues", None)
    before = (root / "data" / "log" / f"{0:019d}.log").read_bytes()
    with pytest.raises(PathRefused):
        open_node(root)
    assert (root / "data" / "log" / f"{0:019d}.log").read_bytes() == before
    shutil.rmtree(root / "data")
    with open_node(root) as client:
        assert client.stat("orders").count == 2


def test_a_directory_that_was_upgraded_is_read_and_served_without_being_asked(
    tmp_path: Path,
) -> None:
    root = Case("1c-queues").unpack(tmp_path)
    expected = listed(root)
    for _ in range(2):
        with open_node(root) as client:
            assert client.stat("orders").count == 2
    done = penstock("tasks", root)
    assert done.code == 0
    assert str(root / "consensus") in done.err
    assert sorted(listed(root)) == sorted(expected)
    assert len(penstock("tasks", root, "--generation", "1").rows) == len(expected)
