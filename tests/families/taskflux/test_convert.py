"""Conversion: the same tasks in another generation, the same indexes where both have them, or a refusal."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock.errors import BadData, CannotConvert, CorruptData, PathRefused
from penstock.families.taskflux.convert import Converted, convert
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux.compaction import Compaction, encode_compaction
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import (
    COMMIT,
    LogLayout,
    encode_header,
    encode_record,
    segment_name,
)
from penstock.formats.taskflux.metadata import MetadataLayout, decode_metadata, encode_metadata
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    AddTask,
    CreateQueue,
    DeleteQueue,
    HardState,
    Implementation,
    Index,
    KeyRange,
    NodeId,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)
from support.at_rest import damage_of, identified, listed, opens, tree
from support.damage import flipped, overwritten
from support.histories import nodes
from support.naive_queues import Change
from support.node_files import Files, Node, payload_of, write_files
from support.samples import NODES, QUEUE, THREE, TWO

ONE, TWO_, THREE_ = Generation
History = list[tuple[int, Change]]


def converted(path: Path, to: Generation, out: Path, *, uncommitted: bool = False) -> Converted:
    return convert(read_history(resolve(path)), WRITTEN[to], out, uncommitted=uncommitted)


def add(payload: bytes, queue: QueueName = DEFAULT_QUEUE) -> AddTask:
    return AddTask(queue=queue, key=0, payload=payload)


def by_value(payload: bytes) -> RemoveEqualTask:
    return RemoveEqualTask(queue=DEFAULT_QUEUE, key=0, payload=payload)


# --- every pair ----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", list(Generation))
@pytest.mark.parametrize("layout", list(LogLayout), ids=lambda layout: layout.variant)
@settings(max_examples=12)
@given(data=st.data())
def test_the_tasks_are_the_same_in_every_generation(
    layout: LogLayout, to: Generation, data: st.DataObject
) -> None:
    node = data.draw(nodes(layout, is_plain=to is ONE))
    with TemporaryDirectory() as place:
        root, out = node.write(Path(place) / "node"), Path(place) / "out"
        before = tree(root)
        done = converted(root, to, out)
        assert tree(root) == before
        assert damage_of(out) == []
        assert inspect(resolve(out))["generation"] == to
        assert listed(out) == node.tasks
        assert done.tasks == len(node.tasks)
        assert done.left_uncommitted == node.last - node.committed
        assert done.tail is None
        if to is not ONE:
            assert opens(out)


@pytest.mark.parametrize("is_all", [False, True])
@pytest.mark.parametrize("to", [TWO_, THREE_])
@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
@settings(max_examples=12)
@given(data=st.data())
def test_between_generations_2_and_3_every_index_keeps_its_state(
    layout: LogLayout, to: Generation, is_all: bool, data: st.DataObject
) -> None:
    node = data.draw(nodes(layout))
    with TemporaryDirectory() as place:
        root, out = node.write(Path(place) / "node"), Path(place) / "out"
        done = converted(root, to, out, uncommitted=is_all)
        last = node.last if is_all else node.committed
        assert done.entries == last - max(node.snapshot_at, node.log_first - 1)
        assert done.left_uncommitted == node.last - last
        for index in range(node.snapshot_at, last + 1):
            assert listed(out, at=index) == node.at(index)
        assert listed(out, uncommitted=True) == node.at(last)
        if layout is LogLayout.THREE and to is THREE_:
            assert identified(out) == node.states[-1].identified()


def is_exact(node: Node) -> bool:
    """Return whether every removal takes the oldest of its equals, as one by value has to."""
    for (_, change), state in zip(node.history, node.states, strict=False):
        if isinstance(change, RemoveEqualTask) and change.payload == b"never there":
            return False
        if isinstance(change, RemoveTask):
            tasks = state.queues[change.queue].tasks
            (meant,) = [task for task in tasks if task[0] == change.id]
            if next(task for task in tasks if task[1:] == meant[1:]) != meant:
                return False
    return True


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_there_and_back_again_gives_the_same_bytes(layout: LogLayout, data: st.DataObject) -> None:
    # 3.6: a removal becomes the id of the oldest equal task, and back. Ids in a snapshot are numbered anew.
    node = data.draw(nodes(layout))
    assume(is_exact(node))
    home, other = (TWO_, THREE_) if layout is LogLayout.TWO else (THREE_, TWO_)
    assume(home is TWO_ or node.snapshot_at < 0)
    with TemporaryDirectory() as place:
        root = node.write(Path(place) / "node")
        converted(root, home, Path(place) / "plain")
        converted(root, other, Path(place) / "there")
        converted(Path(place) / "there", home, Path(place) / "back")
        assert files_of(Path(place) / "back") == files_of(Path(place) / "plain")
        if home is TWO_:
            written = b"".join(node.records(node.snapshot_at + 1, node.committed + 1))
            log = (Path(place) / "back/consensus/log.raft").read_bytes()
            assert log[12 : 12 + len(written)] == written
            assert not log[12 + len(written) :].strip(b"\x00")


def files_of(root: Path) -> Files:
    """Return the node's own files, without our companions."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith("penstock.")
    }


def test_a_removal_that_found_nothing_keeps_its_index(tmp_path: Path) -> None:
    # Generation 2 ignores it, generation 3 would not: it becomes an entry without effect.
    history: History = [(1, add(b"a")), (1, by_value(b"never there")), (1, add(b"b"))]
    root = Node(layout=LogLayout.TWO, history=history).write(tmp_path / "node")
    converted(root, THREE_, tmp_path / "out")
    assert damage_of(tmp_path / "out") == []
    assert [listed(tmp_path / "out", at=i) for i in (0, 1)] == [[("", 0, b"a")], [("", 0, b"a")]]
    assert inspect(resolve(tmp_path / "out"))["last_index"] == 2


def test_a_large_log_becomes_several_segments(tmp_path: Path) -> None:
    records = [
        encode_record(LogLayout.TWO, term=1, payload=payload_of(add(b"%06d" % number)))
        for number in range(3000)
    ]
    log = encode_header(LogLayout.TWO, commit=2999) + b"".join(records)
    root = write_files(tmp_path / "node", {"consensus/log.raft": log})
    converted(root, THREE_, tmp_path / "out")
    assert inspect(resolve(tmp_path / "out"))["log_files"] > 1
    assert [payload for _, _, payload in listed(tmp_path / "out")] == [
        b"%06d" % number for number in range(3000)
    ]
    assert opens(tmp_path / "out")


# --- metadata and single files -------------------------------------------------------------------


@pytest.mark.parametrize("to", list(Generation))
@pytest.mark.parametrize("name", list(NODES))
def test_term_and_vote_are_kept(tmp_path: Path, name: str, to: Generation) -> None:
    node = NODES[name]
    converted(node.write(tmp_path / "node"), to, tmp_path / "out")
    (metadata,) = (tmp_path / "out").rglob("*.metadata")
    assert decode_metadata(metadata.read_bytes()).state == node.state


def test_without_metadata_the_term_of_the_log_is_kept(tmp_path: Path) -> None:
    for number, name in enumerate(["1b", "2", "3"]):
        files = {n: data for n, data in NODES[name].files().items() if "metadata" not in n}
        root = write_files(tmp_path / f"node{number}", files)
        converted(root, THREE_, tmp_path / f"out{number}")
        assert inspect(resolve(tmp_path / f"out{number}"))["term"] == 4


def test_a_single_file_is_converted_alone(tmp_path: Path) -> None:
    root = THREE.write(tmp_path / "node")
    converted(root / "data/tflux.snapshot", TWO_, tmp_path / "snapshot")
    assert listed(tmp_path / "snapshot") == THREE.at(1)
    done = converted(root / "data/tflux.metadata", TWO_, tmp_path / "metadata")
    assert (done.entries, done.tasks) == (0, 0)
    assert inspect(resolve(tmp_path / "metadata"))["vote"] == 2
    with pytest.raises(CorruptData, match="missing"):
        converted(root / "data/log" / segment_name(4), TWO_, tmp_path / "segment")


def test_the_sidecar_of_an_interrupted_compaction_is_respected(tmp_path: Path) -> None:
    history: History = [(1, add(b"a")), (1, add(b"b")), (1, by_value(b"a")), (1, add(b"c"))]
    node = Node(layout=LogLayout.TWO, history=history, snapshot_at=2)
    point = SnapshotPoint(index=Index(2), term=Term(1))
    files = node.files() | {
        "consensus/log.raft": node.log(0, 4),
        "consensus/penstock.compaction": encode_compaction(
            Compaction(point=point, first=Index(0), count=4)
        ),
    }
    root = write_files(tmp_path / "node", files)
    before = tree(root)
    for to in Generation:
        converted(root, to, tmp_path / f"out{to}")
        assert listed(tmp_path / f"out{to}") == [("", 0, b"b"), ("", 0, b"c")]
    assert tree(root) == before


# --- what is not committed -----------------------------------------------------------------------


def test_an_uncommitted_tail_is_left_out_and_counted(tmp_path: Path) -> None:
    root = Node(layout=LogLayout.TWO, history=[(1, add(b"a")), (1, add(b"b"))], commit=0).write(
        tmp_path / "node"
    )
    for to in Generation:
        done = converted(root, to, tmp_path / f"out{to}")
        assert done.left_uncommitted == 1
        assert listed(tmp_path / f"out{to}", uncommitted=True) == [("", 0, b"a")]
        done = converted(root, to, tmp_path / f"all{to}", uncommitted=True)
        assert done.left_uncommitted == 0
        assert len(listed(tmp_path / f"all{to}", uncommitted=True)) == 2


def test_an_entry_does_not_become_committed_by_being_copied(tmp_path: Path) -> None:
    root = TWO.write(tmp_path / "node")
    converted(root, TWO_, tmp_path / "out", uncommitted=True)
    assert inspect(resolve(tmp_path / "out"))["commit_index"] == 5
    assert listed(tmp_path / "out") == TWO.at(5)
    assert listed(tmp_path / "out", uncommitted=True) == TWO.at(6)


def test_a_torn_tail_is_left_out_and_said(tmp_path: Path) -> None:
    for name in ("1b", "2", "3"):
        node = NODES[name]
        files = node.files()
        log = max(file for file in files if "log" in Path(file).name)
        root = write_files(tmp_path / name, files | {log: files[log][:-6]})
        for to in Generation:
            if (
                to is ONE
                and name != "1b"
                and any(queue.policy.keys for queue in node.states[-1].queues.values())
            ):
                continue
            done = converted(root, to, tmp_path / f"{name}{to}", uncommitted=True)
            assert done.tail is not None
            assert "torn" in done.tail
            assert listed(tmp_path / f"{name}{to}", uncommitted=True) == node.at(node.last - 1)


# --- refusals ------------------------------------------------------------------------------------


def refused(
    tmp_path: Path,
    files: Files,
    to: Generation,
    *,
    kind: type[Exception] = CannotConvert,
    match: str,
) -> None:
    """Convert, expect a refusal, and see that nothing was left behind."""
    root = write_files(tmp_path / "node", files)
    before = tree(tmp_path)
    with pytest.raises(kind, match=match):
        converted(root, to, tmp_path / "out")
    assert tree(tmp_path) == before


ARRAY = Policy(implementation=Implementation.ARRAY, keys=KeyRange(lowest=0, highest=9))


@pytest.mark.parametrize(
    "policy",
    [
        ARRAY,
        Policy(keys=KeyRange(lowest=0, highest=9)),
        Policy(payload_size_max=5),
        Policy(size_max=0),
    ],
    ids=["array", "key range", "payload limit", "size 0"],
)
@pytest.mark.parametrize("layout", [LogLayout.ONE_C, LogLayout.TWO, LogLayout.THREE])
def test_generation_1_has_no_bytes_for_more_than_a_size_limit(
    tmp_path: Path, layout: LogLayout, policy: Policy
) -> None:
    history: History = [(1, CreateQueue(queue=QUEUE, policy=policy))]
    node = Node(layout=layout, history=history)
    refused(tmp_path, node.files(), ONE, match="queue 'q'")
    # Once the queue is gone nothing stands in the way.
    history.append((1, DeleteQueue(queue=QUEUE)))
    root = Node(layout=layout, history=history).write(tmp_path / "free")
    converted(root, ONE, tmp_path / "out")


@pytest.mark.parametrize("to", [ONE, TWO_])
def test_terms_and_indexes_beyond_32_bits_are_refused(tmp_path: Path, to: Generation) -> None:
    high = HardState(term=Term(2**31))
    history: History = [(1, add(b"a"))]
    metadata = Node(layout=LogLayout.THREE, history=history, state=high)
    refused(tmp_path / "1", metadata.files(), to, match="term 2147483648")
    entry = Node(layout=LogLayout.THREE, history=[(2**31, add(b"a"))], state=None)
    refused(tmp_path / "2", entry.files(), to, match="term 2147483648")
    node = Node(layout=LogLayout.THREE, history=history, snapshot_at=0, starts=(1,))
    snapshot = overwritten(node.files()["data/tflux.snapshot"], 4, (2**31).to_bytes(8, "big"))
    refused(tmp_path / "3", {"data/tflux.snapshot": snapshot}, to, match="index 2147483648")


def test_the_last_index_of_generation_2_can_be_reached_but_not_passed(tmp_path: Path) -> None:
    node = Node(layout=LogLayout.THREE, history=[(1, add(b"a"))], snapshot_at=0, starts=(0,))
    last = 2**31 - 2
    snapshot = overwritten(node.files()["data/tflux.snapshot"], 4, (last - 1).to_bytes(8, "big"))
    files = {
        "data/tflux.snapshot": snapshot,
        f"data/log/{segment_name(last)}": node.log(0, 1),
    }
    root = write_files(tmp_path / "fits", files)
    converted(root, TWO_, tmp_path / "out")
    assert inspect(resolve(tmp_path / "out"))["last_index"] == last
    files = {
        "data/tflux.snapshot": overwritten(snapshot, 4, last.to_bytes(8, "big")),
        f"data/log/{segment_name(last + 1)}": node.log(0, 1),
    }
    refused(tmp_path / "beyond", files, TWO_, match="no index beyond")


def test_a_vote_for_node_0_has_no_bytes_in_generation_2(tmp_path: Path) -> None:
    state = HardState(term=Term(3), vote=NodeId(0))
    node = Node(layout=LogLayout.THREE, history=[(1, add(b"a"))], state=state)
    refused(tmp_path, node.files(), TWO_, match="vote for node 0")
    converted(tmp_path / "node", ONE, tmp_path / "one")
    assert inspect(resolve(tmp_path / "one"))["vote"] == 0


def _metadata(state: HardState) -> bytes:
    assert MetadataLayout.THREE.size == 24
    return encode_metadata(state, WRITTEN[THREE_].metadata)


def damaged_three() -> dict[str, Files]:
    """Return directories of generation 3, each with one kind of damage."""
    files = THREE.files()
    first, second = (f"data/log/{segment_name(start)}" for start in (2, 4))
    snapshot = "data/tflux.snapshot"
    return {
        "payload": files | {first: flipped(files[first], 8 * (len(files[first]) - 20))},
        "sealed segment cut": files | {first: files[first][:40]},
        "header": files | {second: b"\x12\x76\xad\x55\x00\x00\x00\x02" + files[second][8:]},
        "snapshot": files | {snapshot: flipped(files[snapshot], 8 * 50)},
        "snapshot without default": files | {snapshot: files[snapshot][:60]},
        "metadata": files | {"data/tflux.metadata": bytes(24)},
        "metadata behind": files | {"data/tflux.metadata": _metadata(HardState(term=Term(3)))},
        "first segment gone": {name: data for name, data in files.items() if name != first},
        "term raised before a segment": files
        | {first: overwritten(files[first], 8 + 36 + 11, b"\x08")},
        "records behind zeros": files | {second: overwritten(files[second], 8, bytes(36))},
        "empty segment behind a gap": files | {f"data/log/{segment_name(9)}": THREE.log(6, 6)},
    }


@pytest.mark.parametrize("to", list(Generation))
@pytest.mark.parametrize("name", list(damaged_three()))
def test_damage_is_refused_and_nothing_is_left_behind(
    tmp_path: Path, name: str, to: Generation
) -> None:
    files = damaged_three()[name]
    assert damage_of(write_files(tmp_path / "seen", files))
    is_folded = to is ONE and name in ("term raised before a segment", "records behind zeros")
    if is_folded:
        # Only the state is taken along, and that does not depend on it; zeros are an end (decision 0009).
        return
    refused(tmp_path, files, to, kind=BadData, match=".")


@pytest.mark.parametrize("commit", [0, 1, 5])
def test_committed_entries_that_are_not_whole_are_refused(tmp_path: Path, commit: int) -> None:
    node = Node(layout=LogLayout.TWO, history=[(1, add(b"a")), (1, add(b"b"))])
    files = node.files()
    log = overwritten(files["consensus/log.raft"], 8, COMMIT.pack(commit))
    size = 12 + (0 if commit == 0 else len(node.records(0, 1)[0])) + 20
    for to in Generation:
        place = tmp_path / str(int(to))
        refused(place, files | {"consensus/log.raft": log[:size]}, to, kind=BadData, match=".")


def test_a_snapshot_that_disagrees_with_the_log_is_refused(tmp_path: Path) -> None:
    node = Node(layout=LogLayout.THREE, history=THREE.history, snapshot_at=1, starts=(0,))
    files = node.files()
    snapshot = overwritten(files["data/tflux.snapshot"], 19, b"\x02")
    refused(
        tmp_path, files | {"data/tflux.snapshot": snapshot}, TWO_, kind=CorruptData, match="term 2"
    )


def test_an_entry_that_cannot_be_applied_is_refused(tmp_path: Path) -> None:
    node = Node(
        layout=LogLayout.THREE,
        history=[(1, CreateQueue(queue=QUEUE, policy=Policy())), (1, add(b"a", QUEUE))],
    )
    lone = {f"data/log/{segment_name(0)}": node.log(1, 2)}
    for to in Generation:
        refused(
            tmp_path / str(int(to)), lone, to, kind=CorruptData, match="entry 0 cannot be applied"
        )
    removal: History = [(1, RemoveTask(queue=DEFAULT_QUEUE, id=TaskId(7)))]
    gone = Node(layout=LogLayout.THREE, history=removal)
    refused(tmp_path / "id", gone.files(), TWO_, kind=CorruptData, match="task 7 is removed")


@pytest.mark.parametrize(
    "out", ["node", "node/new", "node/data/log/new", "link/new", "taken", "no/such"]
)
def test_a_place_inside_the_source_or_taken_is_refused(tmp_path: Path, out: str) -> None:
    root = THREE.write(tmp_path / "node")
    write_files(tmp_path, {"taken/something": b""})
    (tmp_path / "link").symlink_to(root)
    before = tree(tmp_path)
    with pytest.raises(PathRefused):
        converted(root, TWO_, tmp_path / out)
    assert tree(tmp_path) == before


def test_what_an_earlier_run_left_half_written_is_replaced(tmp_path: Path) -> None:
    root = THREE.write(tmp_path / "node")
    write_files(tmp_path, {"out.penstock-temporary/data/junk": b"x"})
    converted(root, TWO_, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node", "out"]
    assert sorted(files_of(tmp_path / "out")) == [
        "consensus/log.raft", "consensus/raft.metadata", "consensus/raft.snapshot",
    ]  # fmt: skip
