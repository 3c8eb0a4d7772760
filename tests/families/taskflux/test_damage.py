"""Every bit of every file of a directory turned over, and every file cut at every length.

``verify`` sees it, or the format has no byte that could tell: those bits are listed here, exactly. What is left
is salvaged: the result is whole, a node opens it, and no task is missing whose bytes were not hit.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, parse_segment_name
from support.at_rest import damage_of, listed, listed_or_refused, opens, repaired, tree
from support.damage import all_of, bits, flipped, name_bits, number, turns_into
from support.node_files import STATE, Files, Node
from support.report import report
from support.samples import NODES, ONE_B, THREE, THREE_SYNCED, TWO, TWO_SYNCED

LOG_2 = "consensus/log.raft"
LOG_3 = ("data/log/0000000000000000002.log", "data/log/0000000000000000004.log")
SNAPSHOT_3 = "data/tflux.snapshot"

Bits = dict[str, set[int]]


class Record(NamedTuple):
    """Where a record of a node's log is."""

    entry: int  # its index
    offset: int
    end: int


def records_of(node: Node, name: str) -> list[Record]:
    """Return the records of one log file; none if the file is no log."""
    segment = parse_segment_name(Path(name).name)
    if segment is None and not name.endswith(("log.raft", "raft.log")):
        return []
    first = node.log_first if segment is None else segment
    ends = [start for start in (*node.starts, len(node.history)) if start > first]
    end = len(node.history) if segment is None else ends[0]
    found, offset = [], node.layout.header_size
    for index, data in enumerate(node.records(first, end), first):
        found.append(Record(index, offset, offset + len(data)))
        offset += len(data)
    return found


def terms_unseen(node: Node, name: str, files: Files) -> set[int]:
    """Return the bits of terms that turn into another term which may stand there.

    Terms are under no checksum; they must not fall, nor be above the one in the metadata.
    """
    layout, history = node.layout, node.history
    size = 8 if node.generation is Generation.THREE else 4
    place = 4 if layout.is_marked else 0
    unseen: list[set[int]] = []
    for index, offset, _ in records_of(node, name):
        lowest = history[index - 1][0] if index > node.log_first or layout.is_marked else 1
        highest = history[index + 1][0] if index < node.last else STATE.term
        first = offset + place
        allowed = _between(lowest, highest)
        unseen.append(turns_into(files[name], first, first + size, allowed))
    return all_of(unseen)


def _between(lowest: int, highest: int) -> Callable[[bytes], bool]:
    return lambda raw: lowest <= number(raw) <= highest


def seen_by(node: Node, root: Path) -> Callable[[str, bytes], tuple[bool, bool]]:
    """Return a function that writes damage and says whether it is seen, and whether the tasks are right."""

    def look(name: str, data: bytes) -> tuple[bool, bool]:
        (root / name).write_bytes(data)
        return bool(damage_of(root)), listed_or_refused(root) == node.tasks

    return look


def sweep(node: Node, root: Path, files: Files) -> tuple[Bits, Bits]:
    """Turn over every bit; return those that nobody sees, and those of them that change the tasks."""
    look = seen_by(node, root)
    unseen: Bits = {name: set() for name in files}
    wrong: Bits = {name: set() for name in files}
    for name, data in files.items():
        for bit in range(8 * len(data)):
            is_seen, is_right = look(name, flipped(data, bit))
            if not is_seen:
                unseen[name].add(bit)
                if not is_right:
                    wrong[name].add(bit)
        (root / name).write_bytes(data)
    report(
        f"bits turned over in {node.layout.variant}: {sum(8 * len(d) for d in files.values())},"
        f" unseen {sum(map(len, unseen.values()))}, of which change the tasks"
        f" {sum(map(len, wrong.values()))}"
    )
    return unseen, wrong


def only(found: Bits) -> Bits:
    return {name: found_bits for name, found_bits in found.items() if found_bits}


def test_generation_2_hides_nothing_but_a_smaller_commit_index_and_possible_terms(
    tmp_path: Path,
) -> None:
    files = TWO.files()
    unseen, wrong = sweep(TWO, TWO.write(tmp_path), files)
    # Local to the file: 5 entries, so -1 to 4 may be there instead of 3.
    commit = turns_into(files[LOG_2], 8, 12, _between(-1, 4))
    assert only(wrong) == {LOG_2: commit}
    assert only(unseen) == {LOG_2: commit | terms_unseen(TWO, LOG_2, files)}


def test_the_programmed_snapshot_of_generation_2_also_hides_its_index(tmp_path: Path) -> None:
    # Its checksum covers the state alone. The index only shifts those of the log, whose sync point it
    # must not undercut.
    files = {n: data for n, data in TWO_SYNCED.files().items() if not n.endswith("synced")}
    unseen, wrong = sweep(TWO_SYNCED, TWO_SYNCED.write(tmp_path), files)
    index = turns_into(files["consensus/raft.snapshot"], 4, 8, _between(2, 2**31))
    assert only(unseen) == {
        LOG_2: turns_into(files[LOG_2], 8, 12, _between(-1, 4)) | terms_unseen(TWO, LOG_2, files),
        "consensus/raft.snapshot": index,
    }
    assert set(only(wrong)) == {LOG_2}


def test_generation_3_hides_nothing_but_a_snapshot_ahead_of_its_log_and_possible_terms(
    tmp_path: Path,
) -> None:
    files = THREE.files()
    unseen, wrong = sweep(THREE, THREE.write(tmp_path), files)
    # Index and term are under no checksum. An index inside the log is given away by the term there.
    index = turns_into(files[SNAPSHOT_3], 4, 12, lambda raw: number(raw) > THREE.last)
    assert only(wrong) == {SNAPSHOT_3: index}
    assert only(unseen) == {SNAPSHOT_3: index} | {
        name: terms_unseen(THREE, name, files) for name in LOG_3
    }


def test_with_a_sync_point_every_flip_in_a_snapshot_is_seen(tmp_path: Path) -> None:
    # Index and term of a generation 3 snapshot have no checksum, but a copy in the sync point.
    files = {SNAPSHOT_3: THREE_SYNCED.files()[SNAPSHOT_3]}
    unseen, wrong = sweep(THREE_SYNCED, THREE_SYNCED.write(tmp_path), files)
    assert unseen == wrong == {SNAPSHOT_3: set()}


def test_generation_1_sees_what_breaks_its_framing_and_nothing_else(tmp_path: Path) -> None:
    # It has no checksums: names, keys, payloads, limits, the snapshot's point, term and vote are bare.
    files = ONE_B.files()
    log, metadata = files["consensus/raft.log"], files["consensus/raft.metadata"]
    snapshot = files["consensus/raft.snapshot"]
    unseen, _ = sweep(ONE_B, ONE_B.write(tmp_path), files)
    bare = [
        part
        for record in records_of(ONE_B, "consensus/raft.log")
        for part in _bare_of_command(log, record.offset + 8, record.end)
    ]
    assert unseen["consensus/raft.log"] == all_of(bare) | terms_unseen(
        ONE_B, "consensus/raft.log", files
    )
    highest = max(term for term, _ in ONE_B.history)
    assert unseen["consensus/raft.metadata"] == all_of(
        [
            turns_into(metadata, 8, 12, _between(highest, 2**31)),
            bits(
                12, 13
            ),  # any byte but 0 says that there is a vote; with 0 the vote is passed over
            turns_into(metadata, 13, 17, _between(0, 2**31)),
        ]
    )
    assert unseen["consensus/raft.snapshot"] == all_of(
        [
            turns_into(snapshot, 4, 8, _between(0, 2**31)),
            turns_into(snapshot, 8, 12, _between(1, STATE.term)),
            bits(13, 17),  # the default queue's limit
            name_bits(snapshot, 22, 23),
            bits(23, 27),  # the limit of "q"
            bits(31, 39),  # a key
            bits(43, 44),  # a payload
        ]
    )


def _bare_of_command(data: bytes, start: int, end: int) -> Iterator[set[int]]:
    """Yield the bits of a command that may be anything: its name, and if it enqueues key and payload."""
    body = start + 2 + data[start + 1]
    yield name_bits(data, start + 2, body)
    if data[start] == ord("E"):
        yield bits(body, body + 8)
        yield bits(body + 12, end)


@pytest.mark.parametrize("name", ["1a", "1c"])
def test_in_no_variant_is_there_a_bit_that_stops_the_tools(tmp_path: Path, name: str) -> None:
    node = NODES[name]
    unseen, wrong = sweep(node, node.write(tmp_path), node.files())
    assert all(wrong[file] <= unseen[file] for file in unseen)


def test_the_sync_point_only_ever_takes_an_excuse_away(tmp_path: Path) -> None:
    # A slot that fails its checksum is passed over: the file promises nothing by itself.
    node = THREE_SYNCED
    root = node.write(tmp_path)
    data = node.files()["data/log/penstock.synced"]
    look = seen_by(node, root)
    for bit in (*range(8 * 40), *range(8 * 512, 8 * 552)):
        assert look("data/log/penstock.synced", flipped(data, bit)) == (False, True)


# --- salvage -------------------------------------------------------------------------------------


def hit_by_flip(node: Node, name: str, data: bytes, bit: int) -> Counter[tuple[str, int, bytes]]:
    """Return the tasks that turning over a bit may cost: those whose own bytes, or whose proof, it hits."""
    if name.endswith("snapshot"):
        return Counter(node.at(node.snapshot_at))
    for index, offset, end in records_of(node, name):
        if not offset <= bit // 8 < end:
            continue
        if (
            node.generation is Generation.ONE
        ):  # without markers nothing behind it can be found again
            return Counter(node.tasks) - Counter(node.at(index - 1))
        header = node.layout.record_header.size
        is_last = data[end:].strip(b"\x00") == b""
        # Marker and term are not needed, nor is the length if a record follows: the checksum proves the rest.
        proof = range(offset + header - 8, end if is_last else offset + header - 4)
        if bit // 8 in proof or offset + header <= bit // 8:
            return Counter(node.at(index)) - Counter(node.at(index - 1))
    return Counter()


def one_of_each_byte(size: int) -> Iterable[int]:
    return (8 * byte + byte % 8 for byte in range(size))


def every_bit(size: int) -> Iterable[int]:
    return range(8 * size)


@pytest.mark.parametrize(
    "chosen", [one_of_each_byte, pytest.param(every_bit, marks=pytest.mark.heavy)]
)
@pytest.mark.parametrize("name", ["1b", "2", "3"])
def test_what_a_turned_bit_leaves_is_salvaged_and_nothing_else(
    tmp_path: Path, name: str, chosen: Callable[[int], Iterable[int]]
) -> None:
    node = NODES[name]
    root, out = node.write(tmp_path / "node"), tmp_path / "out"
    ever, truth = Counter(node.ever), Counter(node.tasks)
    seen = 0
    for file, data in node.files().items():
        for bit in chosen(len(data)):
            damaged = flipped(data, bit)
            (root / file).write_bytes(damaged)
            if not damage_of(root):
                continue
            seen += 1
            repaired(root, out)
            assert (root / file).read_bytes() == damaged
            where = f"{file}, bit {bit % 8} of byte {bit // 8}"
            assert damage_of(out) == [], where
            found = Counter(listed(out))
            assert truth - hit_by_flip(node, file, data, bit) <= found, where
            if node.generation is not Generation.ONE:
                assert found <= ever, where
                assert opens(out), where
            shutil.rmtree(out)
        (root / file).write_bytes(data)
    assert tree(root) == tree(node.write(tmp_path / "again"))
    report(f"directories of generation {name} salvaged after a turned bit: {seen}")


def test_a_sync_point_makes_a_wrong_index_and_term_right_again(tmp_path: Path) -> None:
    node = THREE_SYNCED
    root, out = node.write(tmp_path / "node"), tmp_path / "out"
    data = node.files()[SNAPSHOT_3]
    possible = turns_into(data, 4, 12, _between(0, 2**63)) | turns_into(
        data, 12, 20, _between(1, 2**63)
    )
    for bit in possible:
        (root / SNAPSHOT_3).write_bytes(flipped(data, bit))
        rows, _ = repaired(root, out)
        assert [row["status"] for row in rows] == ["bad-snapshot"]
        assert damage_of(out) == []
        assert opens(out)
        for index in range(node.snapshot_at, node.last + 1):
            assert listed(out, at=index) == node.at(index)
        shutil.rmtree(out)


def test_where_snapshot_and_log_disagree_no_task_is_lost(tmp_path: Path) -> None:
    # Nothing tells which of the log's entries the snapshot holds: tasks may stand twice then.
    node = Node(layout=LogLayout.THREE, history=THREE.history, snapshot_at=1, starts=(0,))
    root, out = node.write(tmp_path / "node"), tmp_path / "out"
    data = node.files()[SNAPSHOT_3]
    for bit in bits(4, 20):
        (root / SNAPSHOT_3).write_bytes(flipped(data, bit))
        if damage_of(root):
            repaired(root, out)
            assert damage_of(out) == []
            assert opens(out)
            assert Counter(node.tasks) <= Counter(listed(out))
            assert set(listed(out)) <= set(node.ever)
            shutil.rmtree(out)


def hit_by_cut(node: Node, name: str, size: int) -> Counter[tuple[str, int, bytes]]:
    """Return the tasks whose bytes a cut takes away."""
    if name.endswith("snapshot"):
        return Counter(node.at(node.snapshot_at))
    lost: Counter[tuple[str, int, bytes]] = Counter()
    for index, _, end in records_of(node, name):
        if size < end:
            lost += Counter(node.at(index)) - Counter(node.at(index - 1))
    return lost


def cuts_unseen(node: Node, name: str, size: int) -> set[int]:
    """Return the lengths to which a file may be cut without anybody seeing it."""
    if name.endswith("metadata"):
        # Empty is a default (R1), but not beside a log of a later term; 16 bytes are another layout.
        cuts = {Generation.ONE: {0, 16}, Generation.TWO: {16}, Generation.THREE: set[int]()}
        return cuts[node.generation]
    if name.endswith("snapshot"):
        # Variant 1b reads queues up to the end of the file.
        return {0, 21} if name == "consensus/raft.snapshot" and node is ONE_B else set()
    ends = [node.layout.header_size, *(record.end for record in records_of(node, name))]
    unseen = {0, *ends} - {size}
    if node.layout.is_marked:
        # A commit index, a following segment or a sync point says that there was more.
        is_sealed = name == LOG_3[0]
        committed = [
            record.end for record in records_of(node, name) if record.entry <= node.committed
        ]
        if node.generation is Generation.TWO:
            return {0} | {cut for cut in unseen if cut >= committed[-1]}
        # A segment that ends with a record was cut: an end marker follows the last one.
        return set() if is_sealed else {0, node.layout.header_size}
    return unseen


@pytest.mark.parametrize("name", ["1b", "2", "3"])
def test_every_cut_is_seen_or_falls_between_two_records_and_is_salvaged(
    tmp_path: Path, name: str
) -> None:
    node = NODES[name]
    root, out = node.write(tmp_path / "node"), tmp_path / "out"
    ever, truth = Counter(node.ever), Counter(node.tasks)
    for file, data in node.files().items():
        unseen = set()
        for size in range(len(data)):
            (root / file).write_bytes(data[:size])
            is_seen = bool(damage_of(root))
            repaired(root, out)
            assert (root / file).read_bytes() == data[:size]
            assert damage_of(out) == []
            found = Counter(listed(out))
            assert found <= ever
            if is_seen:
                assert truth - hit_by_cut(node, file, size) <= found, f"{file} cut at {size}"
            else:
                unseen.add(size)
            if node.generation is not Generation.ONE:
                assert opens(out)
            shutil.rmtree(out)
        (root / file).write_bytes(data)
        assert unseen == cuts_unseen(node, file, len(data)), file


@pytest.mark.parametrize("name", ["2 synced", "3 synced"])
def test_with_a_sync_point_no_cut_of_the_log_is_unseen(tmp_path: Path, name: str) -> None:
    node = NODES[name]
    root = node.write(tmp_path)
    for file, data in node.files().items():
        for record in records_of(node, file):
            for size in range(record.offset, record.end):
                (root / file).write_bytes(data[:size])
                assert damage_of(root)
                assert isinstance(listed_or_refused(root), str) or node.committed < record.entry
        (root / file).write_bytes(data)


@pytest.mark.parametrize("name", ["2", "2 synced", "3", "3 synced"])
def test_a_directory_that_verify_finds_whole_is_opened_by_a_node(tmp_path: Path, name: str) -> None:
    node = NODES[name]
    root, copy = node.write(tmp_path / "node"), tmp_path / "copy"
    for file, data in node.files().items():
        for bit in range(8 * min(len(data), 40)):
            (root / file).write_bytes(flipped(data, bit))
            if not damage_of(root):
                shutil.copytree(root, copy)
                assert opens(copy), f"{file}, bit {bit % 8} of byte {bit // 8}"
                shutil.rmtree(copy)
        (root / file).write_bytes(data)
