"""A new snapshot and the log behind it stay in step wherever a crash comes between them (R13).

A log of generation 2 does not say at which index it begins; docs/formats/compaction.md tells how the
sidecar bridges the time in which the snapshot is new and the log still old.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from penstock.errors import BadData, CorruptData, ForeignWrite
from penstock.formats.taskflux.compaction import FILE_NAME, Compaction, encode_compaction
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import Patch, encode_snapshot
from penstock.formats.taskflux.snapshot_decode import decode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, Index, QueueHead, SnapshotPoint, TaskId
from penstock.storage.directory import NodeDirectory
from penstock.testing.disk import Image, MemoryFiles, Operation, crash_states
from support.log_stores import SMALL, append, content, flipped, point

ROOT = Path("/node")
HOME = ROOT / "consensus"
LOG, SIDECAR = str(HOME / "log.raft"), str(HOME / FILE_NAME)
ENTRIES = {n: (1, b"entry %d" % n) for n in range(9)}
GENERATIONS = [Generation.TWO, Generation.THREE]


def pieces_of(at: SnapshotPoint, generation: Generation) -> Generator[bytes, None, Patch | None]:
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(1), count=1)
    state = [(head, [(1, 0, b"state at %d" % at.index)])]
    return encode_snapshot(at, 1, state, WRITTEN[generation].snapshot)


def save(node: NodeDirectory, index: int, term: int = 1) -> None:
    at = point(index, term)
    node.save_snapshot(at, pieces_of(at, node.layout.generation))


def open_node(image: Image | MemoryFiles, generation: Generation = Generation.TWO) -> NodeDirectory:
    files = image if isinstance(image, MemoryFiles) else MemoryFiles(image)
    return NodeDirectory(files, ROOT, generation=generation, limits=SMALL)


def filled(generation: Generation = Generation.TWO) -> tuple[MemoryFiles, NodeDirectory]:
    """Return a node with nine synced and committed entries and a snapshot of the first three."""
    files = MemoryFiles()
    node = open_node(files, generation)
    append(node.log, 1, *(payload for _, payload in ENTRIES.values()))
    node.log.sync()
    node.log.set_committed(Index(7))
    save(node, 2)
    node.log.sync()
    del files.operations[:]
    return MemoryFiles(files.image()), node


def check_in_step(node: NodeDirectory) -> int:
    """The snapshot tells the state up to its index, the log every entry behind it, once."""
    at, header = node.snapshot.point, node.snapshot.header
    assert at is not None
    assert header is not None
    file = node.snapshot.open()
    *_, batch = decode_snapshot(file.read, file.size(), header.layout)
    assert isinstance(batch, tuple)
    assert batch.tasks[0][2] == b"state at %d" % at.index
    behind = {n: entry for n, entry in content(node.log).items() if n > at.index}
    assert behind == {n: entry for n, entry in ENTRIES.items() if n > at.index}
    assert node.log.first <= at.index + 1
    return at.index


def steps() -> list[tuple[str, Image]]:
    """Return the disk before a compaction to entry 5 and after each of its operations."""
    files, node = filled()
    node.close()
    node = open_node(files)
    found = [("before", files.image())]
    begin = len(files.operations)
    save(node, 5)
    for number in range(begin, len(files.operations)):
        operation = files.operations[number]
        found.append((step_name(operation), files.after(number + 1).image()))
    return found


def step_name(operation: Operation) -> str:
    return f"{operation.kind} {Path(operation.target or operation.path).name}"


def test_r13_a_compaction_interrupted_after_any_step_is_finished_or_undone() -> None:
    seen = set()
    for name, image in steps():
        files = MemoryFiles(image)
        node = open_node(files)
        seen.add((check_in_step(node), SIDECAR in image))
        assert node.log.first == check_in_step(node) + 1, name
        assert SIDECAR not in files.image(), name
        assert node.cuts == [], name
    # Both endings occur, each with the sidecar and without.
    assert seen == {(2, False), (2, True), (5, False), (5, True)}


def test_r13_the_steps_come_in_the_order_that_makes_this_possible() -> None:
    names = [name for name, _ in steps()]
    order = [
        "sync raft.snapshot.penstock-temporary",
        "rename penstock.compaction",
        "rename raft.snapshot",
        "rename log.raft",
        "remove penstock.compaction",
    ]
    assert [name for name in names if name in order] == [
        order[0], order[1], order[2], order[1], order[3], order[4],
    ]  # fmt: skip
    for name in order[1:]:
        for place in [n for n, found in enumerate(names) if found == name]:
            assert names[place + 1] == "sync_directory consensus"


def test_r13_without_the_sidecar_entries_would_be_applied_twice() -> None:
    # The damage that the sidecar prevents: the old log taken for what follows the new snapshot.
    wrong = 0
    for _, image in steps():
        if SIDECAR in image:
            image = {path: data for path, data in image.items() if path != SIDECAR}
            node = open_node(image)
            if node.snapshot.point == point(5) and node.log.end != 9:
                assert content(node.log)[6] == ENTRIES[3]
                wrong += 1
    assert wrong > 0


def test_r13_a_log_that_is_neither_the_old_nor_the_shortened_one_is_refused() -> None:
    compaction = Compaction(point=point(5), first=Index(3), count=6)
    for count in range(9):
        if count in (3, 6):
            expected = 3 if count == 6 else None
            assert compaction.log_first(point(5), count) == expected
        else:
            with pytest.raises(CorruptData, match="neither") as caught:
                compaction.log_first(point(5), count)
            assert caught.value.expected == "6 or 3 whole records"
            assert caught.value.found == str(count)


def test_r13_before_the_log_is_touched_any_number_of_records_will_do() -> None:
    compaction = Compaction(point=point(5), first=Index(3), count=None)
    assert [compaction.log_first(point(5), count) for count in (0, 3, 6, 100)] == [3] * 4


@pytest.mark.parametrize("found", [None, point(2), point(5, term=2), point(6)])
def test_r13_with_another_snapshot_in_place_the_sidecar_says_nothing(
    found: SnapshotPoint | None,
) -> None:
    compaction = Compaction(point=point(5), first=Index(3), count=6)
    assert [compaction.log_first(found, count) for count in (0, 3, 6, 100)] == [None] * 4


def test_r13_a_log_of_another_length_stops_the_start_and_nothing_is_changed() -> None:
    image = next(image for name, image in steps() if name == "rename log.raft")
    sidecar = encode_compaction(Compaction(point=point(5), first=Index(3), count=5))
    image = image | {SIDECAR: sidecar}
    files = MemoryFiles(image)
    with pytest.raises(CorruptData, match="neither") as caught:
        open_node(files)
    assert caught.value.path == LOG
    assert files.image() == image


def test_r13_a_damaged_sidecar_stops_the_start_and_nothing_is_changed() -> None:
    image = next(image for name, image in steps() if name == "rename raft.snapshot")
    for bit in range(len(image[SIDECAR]) * 8):
        damaged = image | {SIDECAR: flipped(image[SIDECAR], bit)}
        files = MemoryFiles(damaged)
        with pytest.raises(BadData) as caught:
            open_node(files)
        assert caught.value.path == SIDECAR
        assert caught.value.offset is not None
        assert files.image() == damaged


def test_r13_an_empty_sidecar_is_none() -> None:
    files, node = filled()
    node.close()
    node = open_node(files.image() | {SIDECAR: b""})
    assert check_in_step(node) == 2


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("index", [9, 20])
def test_a_snapshot_ahead_of_the_log_replaces_it_wherever_the_power_is_cut(
    generation: Generation, index: int
) -> None:
    files, node = filled(generation)
    node.close()
    node = open_node(files, generation)
    begin = len(files.operations)
    save(node, index)
    assert (node.log.first, node.log.end) == (index + 1, index + 1)
    found = set()
    for crash in crash_states(files, seed=index, random_states=3):
        if crash.operations < begin:
            continue
        again = open_node(crash.image, generation)
        assert again.snapshot.point in (point(2), point(index))
        if again.snapshot.point == point(2):
            assert check_in_step(again) == 2
        else:
            assert (again.log.first, again.log.end) == (index + 1, index + 1)
            append(again.log, 1, b"next")
            again.log.sync()
            assert content(again.log) == {index + 1: (1, b"next")}
        found.add(again.snapshot.point)
    assert found == {point(2), point(index)}


def test_a_snapshot_index_that_leaps_ahead_of_a_log_in_use_is_refused_not_believed() -> None:
    # Generation 3 has no checksum over a snapshot's index. Believed, it would cost the whole log.
    files, node = filled(Generation.THREE)
    node.close()
    image = files.image()
    path = str(ROOT / "data" / "tflux.snapshot")
    wrong = image | {path: image[path][:4] + (2**40 + 2).to_bytes(8, "big") + image[path][12:]}
    files = MemoryFiles(wrong)
    with pytest.raises(ForeignWrite) as caught:
        open_node(files, Generation.THREE)
    assert (caught.value.path, caught.value.offset) == (path, 4)
    assert (caught.value.expected, caught.value.found) == ("2, 1", f"{2**40 + 2}, 1")
    assert files.image() == wrong


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_snapshot_from_before_the_log_is_our_own_mistake(generation: Generation) -> None:
    node = open_node(MemoryFiles(), generation)
    for n in range(6):
        append(node.log, 1, b"x" * 600)
        node.log.sync()
        node.log.set_committed(Index(n))
    save(node, 5)
    with pytest.raises(AssertionError, match="never go back"):
        save(node, 2)
    assert node.snapshot.point == point(5)
    with pytest.raises(AssertionError, match="never go back"):
        node.log.drop_prefix(point(2))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_snapshot_that_cannot_be_encoded_leaves_nothing_behind(generation: Generation) -> None:
    files = MemoryFiles()
    node = open_node(files, generation)
    append(node.log, 1, b"a")
    node.log.sync()
    before = files.image()

    def broken() -> Generator[bytes, None, Patch | None]:
        yield b"some bytes"
        raise CorruptData("the state cannot be read")

    with pytest.raises(CorruptData, match="cannot be read"):
        node.save_snapshot(point(0), broken())
    assert files.image() == before
    save(node, 0)
    assert node.snapshot.point == point(0)


def test_a_patch_is_written_before_the_file_is_synced() -> None:
    files, node = filled(Generation.THREE)
    files = MemoryFiles(files.image())
    node = open_node(files, Generation.THREE)
    begin = len(files.operations)
    save(node, 5)
    kinds = [
        (o.kind, o.offset)
        for o in files.operations[begin:]
        if o.path.endswith("tflux.snapshot.penstock-temporary")
    ]
    assert kinds == [
        ("create", 0), ("truncate", 0), ("write", 0), ("write", 20), ("sync", 0), ("rename", 0),
    ]  # fmt: skip
