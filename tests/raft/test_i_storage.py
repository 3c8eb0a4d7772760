"""I: the log and the hard state on the disk, and disks that fail."""

from __future__ import annotations

import errno
from itertools import product
from pathlib import Path

import pytest

from penstock import errors
from penstock.errors import BadData, CorruptData, StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, HardState, Index, NodeId, Term
from penstock.protocol import version2 as v2
from penstock.raft.core import Raft
from penstock.raft.log import Compacted, Log, Unavailable
from penstock.raft.messages import HardState as CoreState
from penstock.raft.messages import Kind, Snapshot
from penstock.raft.refusals import InvariantBroken, OutstandingReady
from penstock.storage.directory import NodeDirectory
from penstock.storage.log import LogLimits
from penstock.storage.metadata import MetadataStore
from penstock.storage.single_log import SingleLog
from penstock.testing.disk import SECTOR, Image, MemoryFiles, Operation
from raft.groups import THREE
from raft.stepping import Stepped, entries
from raft.world import Disk
from support.log_stores import SMALL, Content, LogStore, append, content, flipped, point
from support.node_rig import Rig

ROOT = Path("/node")
GENERATIONS = [Generation.TWO, Generation.THREE]
LAYOUTS = {Generation.TWO: LogLayout.TWO, Generation.THREE: LogLayout.THREE}
LIMITS = LogLimits(soft=4096, hard=8192, growth=4096)


def stored(index: int, term: int, terms: list[int]) -> Disk:
    """Return a disk with a snapshot and the entries behind it."""
    disk = Disk(THREE)
    disk.stored_snapshot, disk.kept = Snapshot(index, term, THREE), entries(terms, first=index + 1)
    return disk


def start(disk: Disk, commit: int, applied: int | None = None) -> Raft:
    state = CoreState(9, 0, commit)
    return Raft(
        1, disk, hard_state=state, configuration=THREE, applied=applied, draw=lambda _: 0
    )  # fmt: skip


# Edges.


@pytest.mark.parametrize("commit", [6, 100])
def test_i08_hard_state_commit_out_of_range(commit: int) -> None:
    with pytest.raises(InvariantBroken, match=f"commit {commit}"):
        start(stored(3, 1, [1, 1]), commit)


def test_i08_a_commit_index_below_the_snapshot_is_learned_from_it() -> None:
    core = start(stored(3, 1, [1, 1]), 1)
    assert (core.log.committed, core.log.applied, core.has_ready) == (3, 3, False)
    assert start(stored(3, 1, [1, 1]), 5).log.committed == 5


def test_i08_a_stored_log_that_ends_before_its_commit_index_is_refused() -> None:
    path = ROOT / "log.raft"
    records = b"".join(encode_record(LogLayout.TWO, term=1, payload=b"x") for _ in range(2))
    for commit, is_there in ((1, True), (2, False), (100, False)):
        data = encode_header(LogLayout.TWO, commit=commit) + records + bytes(64)
        files = MemoryFiles({str(path): data})
        if is_there:
            assert SingleLog(files, path, None, SMALL).committed == commit
            continue
        with pytest.raises(CorruptData):
            SingleLog(files, path, None, SMALL)
        assert files.image()[str(path)] == data


def test_i09_storage_edges() -> None:
    log = Log(stored(2, 2, [3, 4, 5]), committed=2, applied=2)
    with pytest.raises(Compacted):
        log.term(1)
    assert [log.term(index) for index in range(2, 6)] == [2, 3, 4, 5]
    with pytest.raises(Unavailable):
        log.term(6)
    with pytest.raises(Compacted):
        log.entries(2, 4, size_max=100)
    assert [e.index for e in log.entries(3, 6, size_max=0)] == [3, 4, 5]  # empty ones fit
    log.append(entries([6, 6], first=6))
    assert [e.index for e in log.entries(3, 9, size_max=100)] == [3, 4, 5, 6, 7]
    log.append(entries([7], first=5))  # cuts from there on
    assert [log.term(index) for index in range(3, log.last + 1)] == [3, 4, 7]
    log.append(entries([8, 8], first=5))
    assert [log.term(index) for index in range(3, log.last + 1)] == [3, 4, 8, 8]
    for first in (8, 20):
        with pytest.raises(InvariantBroken, match="gap"):
            log.append(entries([9], first=first))
    with pytest.raises(InvariantBroken, match="committed"):
        log.append(entries([9], first=2))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_i09_edges_of_a_stored_log(generation: Generation) -> None:
    files = MemoryFiles()
    log = LogStore(generation=generation, files=files, directory=ROOT).open(point(2, term=2))
    for term in (3, 4, 5):
        append(log, term, b"%d" % term * 50)
    log.sync()
    assert (log.first, log.end) == (3, 6)
    for index in (0, 2):
        with pytest.raises(errors.Compacted):
            log.term(Index(index))
        with pytest.raises(errors.Compacted):
            log.read(Index(index), Index(4))
    for index in (6, 7, 100):
        with pytest.raises(errors.OutOfRange) as caught:
            log.term(Index(index))
        assert not isinstance(caught.value, errors.Compacted)
    assert [log.term(Index(index)) for index in (3, 4, 5)] == [3, 4, 5]
    for size_max, found in ((0, [3]), (1, [3]), (160, [3, 4]), (2**20, [3, 4, 5])):
        read = log.read(Index(3), Index(6), size_max=size_max)
        assert [entry.index for entry in read] == found
    assert [entry.index for entry in log.read(Index(4), Index(5))] == [4]
    log.set_committed(Index(3))
    with pytest.raises(AssertionError, match="committed"):
        log.truncate(Index(3))
    with pytest.raises(AssertionError, match="terms never fall"):
        append(log, 4, b"older")
    log.truncate(Index(4))
    append(log, 6, b"new")  # an append has no index: behind the last one there is no gap
    log.sync()
    assert {index: term for index, (term, _) in content(log).items()} == {3: 3, 4: 6}


def test_i09_a_size_limit_returns_at_least_one() -> None:
    one = Stepped(voters=1)
    one.lead()
    one.core.propose([b"x" * 100] * 4)
    log = one.core.log
    for _ in range(2):
        for size_max, last in ((0, 2), (1, 2), (199, 2), (200, 3), (399, 4), (400, 5)):
            found = log.entries(2, 6, size_max=size_max)
            assert [entry.index for entry in found] == list(range(2, last + 1))
        one.pump()  # first in memory, then from the disk


# Entries that are on their way to the disk.


def writing(*terms: int) -> Log:
    """Return a log behind entry 4 of term 1, with entries of these terms handed out as write 1."""
    log = Log(stored(4, 1, []), committed=4, applied=4)
    log.append(entries(terms, first=5))
    log.begin_write(1, with_snapshot=False)
    return log


def test_i10_unstable_log_rules() -> None:
    log = writing(1, 1)
    assert (log.stable, log.has_unwritten) == (4, False)
    log.end_write(1)
    assert (log.offset, log.stable) == (7, 6)  # right index and term: both are free

    log = writing(1, 1)
    log.append(entries([1], first=7))  # more behind those that are under way
    assert [entry.index for entry in log.unwritten()] == [7]
    log.end_write(1)
    assert (log.stable, log.last) == (6, 7)
    assert [entry.index for entry in log.unwritten()] == [7]

    log = writing(1, 1)
    log.append(entries([2, 2], first=5))  # replaced as a whole
    assert [entry.index for entry in log.unwritten()] == [5, 6]
    log.end_write(1)
    assert (log.stable, log.last) == (4, 6)

    log = writing(1, 1)
    log.append(entries([2], first=6))  # replaced in part
    assert [entry.index for entry in log.unwritten()] == [6]
    log.end_write(1)
    assert (log.stable, log.last, log.term(6)) == (5, 6, 2)


def test_i10_of_two_writes_under_way_each_frees_its_own() -> None:
    log = writing(1, 1)
    log.append(entries([2, 2, 2], first=6))
    log.begin_write(2, with_snapshot=False)
    log.append(entries([3], first=8))
    assert [(entry.index, entry.term) for entry in log.unwritten()] == [(8, 3)]
    with pytest.raises(InvariantBroken):
        Log.end_write(writing(1), 2)
    log.end_write(1)
    assert log.stable == 5
    log.end_write(2)
    assert (log.stable, log.last) == (7, 8)
    log.begin_write(3, with_snapshot=False)
    log.end_write(3)
    assert (log.stable, log.has_unwritten) == (8, False)


def test_i10_a_snapshot_that_waits_for_the_disk() -> None:
    log = writing(1, 1)
    log.restore(Snapshot(9, 2, THREE))
    assert (log.first, log.last, log.term(9), log.stable) == (10, 9, 2, 0)
    log.append(entries([2], first=10))
    log.begin_write(2, with_snapshot=True)
    log.end_write(1)  # its entries are covered; it says nothing of what came since
    assert (log.pending_snapshot is not None, log.offset) == (True, 10)
    assert not log.committed_unapplied(size_max=100)
    disk = log._storage
    assert isinstance(disk, Disk)
    disk.stored_snapshot, disk.kept = Snapshot(9, 2, THREE), entries([2], first=10)
    log.end_write(2)
    assert (log.pending_snapshot, log.stable, log.applied) == (None, 10, 9)


# Disks that fail.


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_i11_write_error_silences_node(generation: Generation, kind: str) -> None:
    rig = Rig(generation)
    caller = rig.caller()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"before"]))
    attempts: list[Operation] = []

    def fail_once(operation: Operation) -> None:
        attempts.append(operation)
        if operation.kind == kind and len([o for o in attempts if o.kind == kind]) == 1:
            raise OSError(errno.EIO, "Input/output error")

    rig.files.fault = fail_once
    state, log = rig.directory.metadata.state, rig.directory.log
    number = rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"unknown"]))
    rig.replica.advance()
    assert number not in caller.answers
    assert [type(failure) for failure in rig.failures] == [StorageFailed]  # which ends the process
    failed, tried = attempts[-1], len(attempts)
    assert failed.kind == kind
    # The disk would work again. Nothing is answered, written or synced, and no term is begun.
    number = rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"later"]))
    rig.go_on()
    rig.replica.lead()
    assert number not in caller.answers
    assert (len(attempts), len(rig.failures)) == (tried, 1)
    assert rig.directory.metadata.state == state
    for call in (log.sync, lambda: append(log, 9, b"again")):
        with pytest.raises(StorageFailed):
            call()
    rig.directory.close()
    assert not [o for o in attempts[tried:] if o.path == failed.path]


def test_i11_a_member_whose_write_never_ends_says_nothing_more() -> None:
    one = Stepped(term=1)
    one.tell(Kind.APPEND, entries=tuple(entries([1])))
    lost = one.core.ready()  # and the write fails
    assert lost.messages == []
    one.tell(Kind.VOTE, 3, term=2, index=9, log_term=1)
    for _ in range(100):
        one.core.tick()
    one.core.campaign()
    with pytest.raises(OutstandingReady):
        one.core.ready()
    assert one.core.votes == {}  # not even its own


# Damage.


def images(generation: Generation, last: bytes) -> tuple[str, Image, bytes, int]:
    """Return a log's file, the disk before its last record, the file with that record, and where it begins."""
    files = MemoryFiles()
    store = LogStore(generation=generation, files=files, directory=ROOT, limits=LIMITS)
    log = store.open()
    for payload in (b"one" * 100, b"", b"three" * 100):
        append(log, 1, payload)
    log.sync()
    log.set_committed(Index(2))
    before, position = files.image(), log.size
    append(log, 1, last)
    after = files.image()
    (path,) = [path for path in before if before[path] != after[path]]
    return path, before, after[path], position


def reopened(generation: Generation, image: Image) -> tuple[Content, int, Image]:
    """Start with a disk; return what the log holds, how much was cut, and the disk after that."""
    files = MemoryFiles(image)
    log = LogStore(generation=generation, files=files, directory=ROOT, limits=LIMITS).open()
    found = content(log)
    log.close()
    return found, len(log.cuts), files.image()


KEPT = {0: (1, b"one" * 100), 1: (1, b""), 2: (1, b"three" * 100)}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_i13_torn_tail(generation: Generation) -> None:
    payload = bytes(range(1, 61))
    path, before, after, start_of = images(generation, payload)
    size = len(encode_record(LAYOUTS[generation], term=1, payload=payload))
    for cut in range(size + 1):
        torn = after[: start_of + cut] + before[path][start_of + cut :]
        found, cuts, mended = reopened(generation, before | {path: torn})
        assert found == (KEPT if cut < size else KEPT | {3: (1, payload)}), f"after {cut} bytes"
        assert reopened(generation, mended)[:2] == (found, 0)
        assert cuts == (0 < cut < size)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_i13_a_tail_of_which_any_sectors_were_written(generation: Generation) -> None:
    payload = bytes(range(1, 251)) * 10
    path, before, after, start_of = images(generation, payload)
    first, end = start_of // SECTOR, -(-(start_of + len(payload) + 20) // SECTOR)
    assert end - first >= 5
    whole = 0
    for kept in product((False, True), repeat=end - first):
        torn = bytearray(before[path])
        for sector, is_kept in enumerate(kept, first):
            if is_kept:
                place = slice(sector * SECTOR, (sector + 1) * SECTOR)
                torn[place] = after[place]
        found, _, mended = reopened(generation, before | {path: bytes(torn)})
        assert found == (KEPT | {3: (1, payload)} if all(kept) else KEPT), f"sectors {kept}"
        assert reopened(generation, mended)[:2] == (found, 0)
        whole += all(kept)
    assert whole == 1


def node(generation: Generation) -> tuple[MemoryFiles, str, int, int]:
    """Return a disk with five synced entries, the file that holds them, and where the third of them is."""
    files = MemoryFiles()
    one = NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
    one.metadata.replace(HardState(term=Term(1), vote=NodeId(2)))
    places = []
    for index in range(5):
        places.append(one.log.size)
        append(one.log, 1, b"entry %d" % index)
        one.log.sync()
        one.log.set_committed(Index(index))
    one.close()
    (path,) = [path for path, data in files.image().items() if b"entry 2" in data]
    return files, path, places[2], places[3]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_i14_corrupt_middle_is_not_a_torn_tail(generation: Generation) -> None:
    files, path, first, end = node(generation)
    whole = files.image()
    damaged = [flipped(whole[path], bit) for bit in range(first * 8, end * 8)]
    damaged.append(whole[path][:first] + bytes(end - first) + whole[path][end:])
    for data in damaged:
        image = whole | {path: data}
        disk = MemoryFiles(image)
        # Without a directory there is no member that could vote or lead.
        with pytest.raises(BadData) as caught:
            NodeDirectory(disk, ROOT, limits=LIMITS)
        assert caught.value.path == path
        assert disk.image() == image
    NodeDirectory(MemoryFiles(whole), ROOT, limits=LIMITS).close()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_i15_corrupt_hard_state(generation: Generation) -> None:
    # There is one copy, replaced whole. If it is not whole, nobody knows what was voted.
    files, *_ = node(generation)
    whole = files.image()
    (path,) = [path for path in whole if path.endswith(".metadata")]
    for bit in range(len(whole[path]) * 8):
        image = whole | {path: flipped(whole[path], bit)}
        disk = MemoryFiles(image)
        with pytest.raises(BadData) as caught:
            NodeDirectory(disk, ROOT, limits=LIMITS)
        assert caught.value.path == path
        assert disk.image() == image
    store = MetadataStore(MemoryFiles(whole), Path(path), WRITTEN[generation].metadata)
    assert store.state == HardState(term=Term(1), vote=NodeId(2))
