"""Salvage of a log: what each kind of damage costs, and that it never costs a task that is still there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_record
from penstock.formats.taskflux.metadata import decode_metadata
from penstock.model import (
    DEFAULT_QUEUE,
    CreateQueue,
    HardState,
    NodeId,
    Policy,
    QueueName,
    Term,
)
from support.at_rest import damage_of, identified, listed, opens, repaired
from support.damage import flipped, overwritten
from support.histories import nodes
from support.naive_queues import Change
from support.node_files import Node, payload_of, write_files
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
from support.samples import NODES, TWO

History = list[tuple[int, Change]]

ALPHA = QueueName("alpha")


# --- nothing is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(LogLayout), ids=lambda layout: layout.variant)
@given(data=st.data())
def test_a_directory_without_damage_keeps_everything(
    layout: LogLayout, data: st.DataObject
) -> None:
    node = data.draw(nodes(layout))
    with TemporaryDirectory() as place:
        root, out = node.write(Path(place) / "node"), Path(place) / "out"
        rows, account = repaired(root, out)
        assert rows == []
        assert account.notes == []
        assert damage_of(out) == []
        assert listed(out) == node.tasks
        if node.generation is not Generation.ONE:
            assert opens(out)
            for index in range(node.snapshot_at, len(node.history)):
                assert listed(out, at=index) == node.at(index)
        if layout is LogLayout.THREE:
            assert identified(out) == node.states[-1].identified()


# --- the end of the log --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2", "3"])
def test_a_torn_tail_costs_its_own_entry_and_leaves_a_log(tmp_path: Path, name: str) -> None:
    node = NODES[name]
    files = node.files()
    log = max(file for file in files if "log" in Path(file).name)
    out, left = salvaged(tmp_path, files | {log: files[log][:-6]})
    assert left == ["torn"]
    assert listed(out, uncommitted=True) == node.at(node.last - 1)
    found = inspect(resolve(out))
    assert found["last_index"] == node.last - 1
    assert found["snapshot_index"] == node.snapshot_at
    assert opens(out)


def test_an_uncommitted_entry_stays_uncommitted(tmp_path: Path) -> None:
    out, left = salvaged(tmp_path, TWO.files())
    assert left == []
    assert inspect(resolve(out))["commit_index"] == 5
    assert listed(out) == TWO.at(5)
    assert listed(out, uncommitted=True) == TWO.at(6)


def test_records_behind_the_end_mark_take_no_task_away(tmp_path: Path) -> None:
    # Programs of the original leave older records there when a new tail is shorter (D18).
    node = three([CREATE, add(b"a"), add(b"b")])
    stale = encode_record(LogLayout.THREE, term=1, payload=payload_of(remove(1)))
    data = node.files()[segment(0)]
    out, left = salvaged(tmp_path, {segment(0): data + bytes(20) + stale + bytes(4)})
    assert payloads(out) == [b"a", b"b"]
    assert left == ["zeros", "not-applied"]


def test_leftovers_behind_a_sealed_segment_do_not_cost_the_next_one_an_entry(
    tmp_path: Path,
) -> None:
    node = three([CREATE, add(b"a"), add(b"b"), add(b"c")], starts=(0, 2))
    files = node.files()
    out, left = salvaged(tmp_path, files | {segment(0): files[segment(0)] + b"garbage"})
    assert payloads(out) == [b"a", b"b", b"c"]
    assert left == ["stale"]


# --- damage in the middle ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
@pytest.mark.parametrize("bad", [(b"bbb",), (b"bbb", b"ddd"), (b"bbb", b"ccc")])
def test_bad_records_in_the_middle_cost_their_own_tasks(
    tmp_path: Path, layout: LogLayout, bad: tuple[bytes, ...]
) -> None:
    changes: Changes = [CREATE, add(b"aaa"), add(b"bbb"), add(b"ccc"), add(b"ddd"), add(b"eee")]
    node = Node(layout=layout, history=[(1, change) for change in changes])
    files = node.files()
    (log,) = [file for file in files if "log" in Path(file).name]
    for mark in bad:
        files = spoil(files, log, mark)
    out, left = salvaged(tmp_path, files)
    kept = [mark for mark in (b"aaa", b"bbb", b"ccc", b"ddd", b"eee") if mark not in bad]
    assert payloads(out) == kept
    # Two bad ones in a row are one gap: nothing proves where the first ends.
    is_gap = bad == (b"bbb", b"ccc")
    assert left == ["bad-checksum"] * (1 if is_gap else len(bad))
    assert opens(out)
    if layout is LogLayout.THREE and not is_gap:
        assert inspect(resolve(out))["snapshot_index"] == 5
        truth = {task[3]: task[1] for task in node.states[-1].identified()}
        assert {task[3]: task[1] for task in identified(out)} == {
            mark: truth[mark] for mark in kept
        }


def test_a_removal_by_id_behind_a_bad_record_takes_the_task_that_it_meant(tmp_path: Path) -> None:
    node = three([CREATE, add(b"aa"), add(b"bb"), add(b"cc"), remove(3)])
    out, left = salvaged(tmp_path, spoil(node.files(), segment(0), b"bb"))
    assert payloads(out) == [b"aa"]
    assert left == ["bad-checksum"]


def test_a_wrong_byte_in_a_name_does_not_make_a_later_removal_take_another_task(
    tmp_path: Path,
) -> None:
    # The lost record now says "`lpha". Were "alpha" not to count it, removal of 1 would take "bb".
    node = three(
        [
            CreateQueue(queue=ALPHA, policy=Policy()),
            add(b"aa", ALPHA),
            add(b"bb", ALPHA),
            remove(1, ALPHA),
        ]
    )
    files = node.files()
    at = files[segment(0)].index(b"alpha", files[segment(0)].index(b"alpha") + 1)
    out, left = salvaged(tmp_path, files | {segment(0): flipped(files[segment(0)], 8 * at)})
    assert payloads(out) == [b"bb"]
    assert left == ["bad-checksum", "not-applied"]


def test_nor_does_a_wrong_byte_that_gives_the_name_of_another_queue(tmp_path: Path) -> None:
    first, second = QueueName("a"), QueueName("c")  # one bit apart
    changes: Changes = [CreateQueue(queue=name, policy=Policy()) for name in (first, second)]
    changes += [add(b"xx", first), add(b"yy", first), add(b"zz", second), remove(1, first)]
    node = three([*changes, remove(1, second)])
    files = node.files()
    at = files[segment(0)].index(b"A\x01a") + 2
    out, _ = salvaged(tmp_path, files | {segment(0): flipped(files[segment(0)], 8 * at + 1)})
    assert set(payloads(out)) == {b"yy", b"zz"}


def test_a_removal_by_value_does_not_take_the_twin_of_a_lost_task(tmp_path: Path) -> None:
    # Two equal tasks came, one was done. If the first record is lost, the second task must stay.
    history: History = [(1, add(b"same", DEFAULT_QUEUE)), (1, add(b"same", DEFAULT_QUEUE))]
    node = Node(layout=LogLayout.TWO, history=[*history, (1, by_value(b"same"))])
    files = node.files()
    data = files["consensus/log.raft"]
    out, left = salvaged(
        tmp_path, files | {"consensus/log.raft": flipped(data, 8 * data.index(b"same"))}
    )
    assert payloads(out) == [b"same"]
    assert left == ["bad-checksum"]


def test_a_removal_by_value_behind_a_bad_record_takes_the_task_that_it_meant(
    tmp_path: Path,
) -> None:
    # Of equal size, so that only the checksum of the lost record tells that it was another one.
    history: History = [(1, add(payload, DEFAULT_QUEUE)) for payload in (b"one", b"two")]
    node = Node(layout=LogLayout.TWO, history=[*history, (1, by_value(b"one"))])
    out, left = salvaged(tmp_path, spoil(node.files(), "consensus/log.raft", b"two"))
    assert payloads(out) == []
    assert left == ["bad-checksum"]


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
def test_a_zeroed_sector_costs_what_stood_in_it(tmp_path: Path, layout: LogLayout) -> None:
    changes: Changes = [CREATE, *(add(b"%04d" % number) for number in range(60))]
    node = Node(layout=layout, history=[(1, change) for change in changes])
    files = node.files()
    (log,) = [file for file in files if "log" in Path(file).name]
    out, left = salvaged(tmp_path, files | {log: overwritten(files[log], 1024, bytes(512))})
    record = layout.record_header.size + len(payload_of(changes[1]))
    kept = [int(payload) for payload in payloads(out)]
    lost = set(range(60)) - set(kept)
    assert 512 // record <= len(lost) <= 512 // record + 2
    assert lost == set(range(min(lost), max(lost) + 1))
    assert len(left) == 1
    assert opens(out)


def test_behind_a_gap_ids_are_not_guessed(tmp_path: Path) -> None:
    changes: Changes = [
        CREATE,
        add(b"first"),
        *(add(b"%04d" % number) for number in range(60)),
    ]
    node = three([*changes, remove(61), remove(1)])
    files = node.files()
    out, left = salvaged(
        tmp_path, files | {segment(0): overwritten(files[segment(0)], 1024, bytes(512))}
    )
    # The one added before the gap is removed; which one had id 61 nobody can tell.
    assert b"first" not in payloads(out)
    assert b"0059" in payloads(out)
    assert left[1:] == ["not-applied"]


def test_records_that_a_wrong_length_swallowed_are_found_again(tmp_path: Path) -> None:
    # The length of the first addition now covers the two that follow, up to a true boundary.
    node = three([CREATE, add(b"aa"), add(b"bb"), add(b"cc"), add(b"dd"), remove(3)])
    data = node.files()[segment(0)]
    sizes = [len(record) for record in node.records(0, 6)]
    at = 8 + sizes[0] + 16
    length = int.from_bytes(data[at : at + 4], "big") + sizes[2] + sizes[3]
    damaged = overwritten(data, at, length.to_bytes(4, "big"))
    assert [
        row["status"] for row in damage_of(write_files(tmp_path / "seen", {segment(0): damaged}))
    ]
    out, left = salvaged(tmp_path, {segment(0): damaged})
    assert payloads(out) == [b"aa", b"bb", b"dd"]
    assert left == []
    assert identified(out) == node.states[-1].identified()


@pytest.mark.parametrize("place", [0, 4, 16], ids=["marker", "term", "length"])
def test_a_record_whose_checksum_still_proves_it_is_taken_along(tmp_path: Path, place: int) -> None:
    node = three([CREATE, add(b"aa"), add(b"bb")])
    data = node.files()[segment(0)]
    at = 8 + len(node.records(0, 1)[0]) + place
    out, left = salvaged(tmp_path, {segment(0): overwritten(data, at, b"\x7f\x01\x02\x03")})
    assert payloads(out) == [b"aa", b"bb"]
    assert left == []


def test_a_raised_term_costs_neither_its_entry_nor_the_one_behind_it(tmp_path: Path) -> None:
    state = HardState(term=Term(3), vote=NodeId(1))
    node = three([CREATE, add(b"aa"), add(b"bb"), add(b"cc")], starts=(0, 2), state=state)
    files = node.files()
    # The last record of the first segment: the fall shows only in the next file.
    at = 8 + len(node.records(0, 1)[0]) + 11
    out, _ = salvaged(tmp_path, files | {segment(0): overwritten(files[segment(0)], at, b"\x09")})
    assert payloads(out) == [b"aa", b"bb", b"cc"]
    found = decode_metadata((out / "data/tflux.metadata").read_bytes()).state
    assert found == HardState(term=Term(9), vote=None)


def test_a_removal_in_an_entry_of_a_fallen_term_takes_nothing_away(tmp_path: Path) -> None:
    # It may be what an older leader wrote, and a newer one overwrote only in part.
    changes: list[tuple[int, Change]] = [
        (1, CREATE),
        (1, add(b"aa")),
        (3, add(b"bb")),
        (2, remove(1)),
    ]
    node = Node(layout=LogLayout.THREE, history=changes)
    out, left = salvaged(tmp_path, node.files())
    assert payloads(out) == [b"aa", b"bb"]
    assert left == ["not-applied"]


def test_a_zeroed_header_and_first_marker_hid_every_record_of_a_generation_2_log(
    tmp_path: Path,
) -> None:
    # The commit index is lost with the header, and the zeroed marker looked like the end of an empty log.
    files = TWO.files()
    name = next(name for name in files if Path(name).name.startswith("log"))
    out, left = salvaged(tmp_path, files | {name: bytes(16) + files[name][16:]})
    assert whole_tasks(TWO, {2}) <= Counter(listed(out))
    assert left[0] == "bad-header"


# --- any one damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
@given(data=st.data())
def test_one_damaged_stretch_costs_only_tasks_that_were_in_it(
    layout: LogLayout, data: st.DataObject
) -> None:
    node = data.draw(nodes(layout))
    files = node.files()
    log = data.draw(st.sampled_from([file for file in files if "log" in Path(file).name]))
    content = files[log]
    # Not in the middle of generation 2's header: nobody can see that a commit index is wrong.
    header = node.layout.header_size
    first = data.draw(st.just(0) | st.integers(header, max(header, len(content) - 1)))
    size = data.draw(st.integers(1, 80).filter(lambda size: first or size <= 4 or size >= header))
    noise = data.draw(st.sampled_from([bytes(size), b"\xff" * size, bytes(range(97, 97 + size))]))
    damaged = overwritten(content, first, noise)[: len(content)]
    hit = hit_entries(node, log, content, damaged)
    with TemporaryDirectory() as place:
        root, out = write_files(Path(place) / "node", files | {log: damaged}), Path(place) / "out"
        if not damage_of(root):
            return
        repaired(root, out)
        assert damage_of(out) == []
        assert opens(out)
        found = Counter(listed(out))
        assert whole_tasks(node, hit) <= found
        assert set(found) <= set(node.ever)


def hit_entries(node: Node, log: str, content: bytes, damaged: bytes) -> set[int]:
    """Return the entries whose records were changed."""
    name = Path(log).name
    index = int(name[:19]) if node.layout is LogLayout.THREE else node.log_first
    offset, hit = node.layout.header_size, set()
    while index <= node.last and offset < len(content):
        record = node.records(index, index + 1)[0]
        if damaged[offset : offset + len(record)] != record:
            hit.add(index)
        offset += len(record)
        index += 1
    return hit


def whole_tasks(node: Node, hit: set[int]) -> Counter[tuple[str, int, bytes]]:
    """Return the tasks that are still there in truth and whose own record, or snapshot, is whole."""
    whole: Counter[tuple[str, int, bytes]] = Counter()
    for name, task_id, key, payload in node.states[node.committed + 1].identified():
        added = next(
            index
            for index in range(node.committed, -1, -1)
            if not _holds(node, index - 1, name, task_id) and _holds(node, index, name, task_id)
        )
        if added <= node.snapshot_at or added not in hit:
            whole[name, key, payload] += 1
    return whole


def _holds(node: Node, index: int, name: str, task_id: int) -> bool:
    queue = node.states[index + 1].queues.get(QueueName(name))
    return queue is not None and any(task[0] == task_id for task in queue.tasks)
