"""D: snapshots and logs on the disk: where they meet, and what a start makes of them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from penstock import errors
from penstock.errors import CorruptData
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record, segment_name
from penstock.formats.taskflux.snapshot import Patch, encode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    HardState,
    Index,
    QueueHead,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.protocol import version2 as v2
from penstock.raft.core import Raft
from penstock.raft.log import Compacted, Log, Unavailable
from penstock.raft.messages import HardState as CoreState
from penstock.raft.messages import Snapshot
from penstock.raft.refusals import InvariantBroken
from penstock.server.disk import LaterDisk
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import TEMPORARY_SUFFIX
from penstock.storage.segmented_log import SegmentedLog
from penstock.testing.disk import Image, MemoryFiles
from raft.groups import THREE
from raft.stepping import entries
from raft.world import Disk
from support.log_stores import SMALL, append, content, point
from support.node_rig import Rig, rebuilt

ROOT = Path("/node")
GENERATIONS = [Generation.TWO, Generation.THREE]


def pieces(at: SnapshotPoint, generation: Generation) -> Generator[bytes, None, Patch | None]:
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(1), count=1)
    return encode_snapshot(at, 1, [(head, [(1, 0, b"task")])], WRITTEN[generation].snapshot)


def directory(generation: Generation, *, snapshots: tuple[int, ...] = (4,)) -> MemoryFiles:
    """Return the disk of a node with ten entries of terms 1 to 5, and snapshots of some."""
    files = MemoryFiles()
    node = NodeDirectory(files, ROOT, generation=generation, limits=SMALL)
    node.metadata.replace(HardState(term=Term(5)))
    for index in range(10):
        append(node.log, index // 2 + 1, b"%d" % index * 200)
        node.log.sync()
        node.log.set_committed(Index(index))
    for index in snapshots:
        at = point(index, node.log.term(Index(index)))
        node.save_snapshot(at, pieces(at, generation))
    node.close()
    return files


# Compaction.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_d17_compaction_bounds(generation: Generation) -> None:
    node = NodeDirectory(directory(generation), ROOT, limits=SMALL)
    log = node.log
    assert 0 < log.first <= 5
    for call in (log.term, lambda index: log.read(index, log.end)):
        with pytest.raises(errors.Compacted):
            call(Index(log.first - 1))
        with pytest.raises(errors.OutOfRange) as caught:
            call(log.end)
        assert not isinstance(caught.value, errors.Compacted)
    assert [log.term(Index(index)) for index in range(5, 10)] == [3, 4, 4, 5, 5]
    assert [entry.index for entry in log.read(Index(9), Index(10))] == [9]
    # The term of the entry before the first that counts is what the snapshot says.
    assert node.snapshot.point == point(4, term=3)
    # There is no way back: what a snapshot covered is gone.
    with pytest.raises(AssertionError, match="never go back"):
        log.begin_compaction(point(log.first - 2))
    with pytest.raises(AssertionError, match="never go back"):
        log.drop_prefix(point(log.first - 2))


def test_d17_a_member_tells_compacted_from_not_there_yet() -> None:
    disk = Disk(THREE)
    disk.stored_snapshot, disk.kept = Snapshot(3, 2, THREE), entries([2, 3, 3], first=4)
    log = Log(disk, committed=5, applied=4)
    log.append(entries([4], first=7))  # not on the disk yet
    for index in (1, 2):
        with pytest.raises(Compacted):
            log.term(index)
    assert [log.term(index) for index in range(3, 8)] == [2, 2, 3, 3, 4]
    with pytest.raises(Unavailable):
        log.term(8)
    with pytest.raises(Compacted):
        log.entries(3, 5, size_max=100)
    assert [entry.index for entry in log.entries(4, 8, size_max=100)] == [4, 5, 6, 7]


def test_d17_a_member_whose_log_was_compacted_beyond_what_it_applied_does_not_start() -> None:
    disk = Disk(THREE)
    disk.stored_snapshot, disk.kept = Snapshot(3, 2, THREE), entries([2, 3], first=4)
    for applied in (0, 2):
        with pytest.raises(InvariantBroken):
            Raft(
                1,
                disk,
                hard_state=CoreState(3, 0, 5),
                configuration=THREE,
                applied=applied,
                draw=lambda _: 0,
            )


@pytest.mark.parametrize("generation", GENERATIONS)
def test_d17_a_node_never_compacts_beyond_what_it_applied(generation: Generation) -> None:
    rig = Rig(generation, later=LaterDisk())
    rig.sync()
    caller = rig.caller()
    for _ in range(2):  # one batch for the disk, and one behind it
        rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"on its way"]))
        rig.replica.advance()
    assert rig.later is not None
    assert rig.replica.snapshot_point().index == rig.replica.applied
    job, done = rig.later.waiting.popleft()
    job()  # written and synced, but nobody was told yet
    assert rig.directory.log.end > rig.replica.applied + 1
    assert rig.replica.snapshot_point().index == rig.replica.applied
    done(None)
    assert rig.replica.snapshot_point().index == rig.replica.applied == rig.directory.log.end - 1


# Starting.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_d19_temp_snapshot_ignored_at_start(generation: Generation) -> None:
    newer = directory(generation, snapshots=(4, 7)).image()
    files = directory(generation)
    image = files.image()
    (path,) = [path for path in image if path.endswith(".snapshot")]
    whole = newer[path]
    for size in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
        half = {path + TEMPORARY_SUFFIX: whole[:size]}
        files = MemoryFiles(image | half)
        node = NodeDirectory(files, ROOT, limits=SMALL)
        assert node.snapshot.point == point(4, term=3)
        assert content(node.log).keys() >= set(range(5, 10))
        assert path + TEMPORARY_SUFFIX not in files.image()
        assert files.image()[path] == image[path]
        node.close()


def chain(*firsts: int, end: int) -> Image:
    """Return segments of generation 3 that begin at these entries, all of term 1."""
    image: Image = {}
    for first, stop in zip(firsts, (*firsts[1:], end), strict=True):
        records = (
            encode_record(LogLayout.THREE, term=1, payload=b"%d" % n) for n in range(first, stop)
        )
        image[str(ROOT / segment_name(first))] = encode_header(LogLayout.THREE) + b"".join(records)
    return image


def test_d20_log_must_meet_snapshot() -> None:
    for firsts in ((13,), (12, 13), (13, 14)):
        gap = chain(*firsts, end=20)
        files = MemoryFiles(gap)
        with pytest.raises(CorruptData, match="missing between the snapshot and the log"):
            SegmentedLog(files, ROOT, point(10), SMALL)
        assert {path: files.image()[path] for path in gap} == gap
    for firsts in ((8,), (8, 10), (8, 11), (11,)):
        log = SegmentedLog(MemoryFiles(chain(*firsts, end=20)), ROOT, point(10), SMALL)
        found = content(log)
        assert [found[index] for index in range(11, 20)] == [(1, b"%d" % n) for n in range(11, 20)]
        assert (log.end, log.committed) == (20, 10)  # nothing up to 10 is handed out again
    overlap = chain(8, end=20)
    files = MemoryFiles(overlap)
    with pytest.raises(CorruptData, match="disagree on the term of entry 10"):
        SegmentedLog(files, ROOT, point(10, term=2), SMALL)
    assert {path: files.image()[path] for path in overlap} == overlap


@pytest.mark.parametrize("generation", GENERATIONS)
def test_d20_entries_that_a_snapshot_covers_are_not_applied_again(generation: Generation) -> None:
    rig = Rig(generation)
    caller = rig.caller()
    for number in range(5):
        rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [0], [b"%d" % number]))
    rig.snapshot()
    renamed = [n for n, o in enumerate(rig.files.operations) if o.target.endswith(".snapshot")]
    # A crash right behind the rename: the log still holds all that the snapshot covers.
    image = rig.files.after(renamed[-1] + 1).image()
    assert len(rebuilt(image, generation).by_name[DEFAULT_QUEUE]) == 5
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [0], [b"after"]))
    assert len(rebuilt(rig.files.image(), generation).by_name[DEFAULT_QUEUE]) == 6


def test_d20_a_member_does_not_start_with_a_gap() -> None:
    disk = Disk(THREE)
    disk.stored_snapshot, disk.kept = Snapshot(10, 1, THREE), entries([1, 1], first=13)
    with pytest.raises(InvariantBroken):
        Raft(
            1, disk, hard_state=CoreState(1, 0, 10), configuration=THREE, applied=10,
            draw=lambda _: 0,
        )  # fmt: skip
