"""Power cuts at every operation of the real storage code, on a disk that keeps what it likes.

A workload runs once on a recording disk and notes what it was promised, and when. Then the power is cut
after every single operation, with unsynced sectors and names kept, lost or torn, and the directory is
opened again: everything promised must be there, and nothing that was never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.snapshot_decode import decode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    HardState,
    Index,
    NodeId,
    QueueHead,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.storage.directory import NodeDirectory
from penstock.storage.log import LogLimits
from penstock.testing.disk import CrashState, MemoryFiles, crash_states
from support.report import report

T = TypeVar("T")

ROOT = Path("/node")
LIMITS = LogLimits(soft=2048, hard=4096, growth=1536)
GENERATIONS = [Generation.TWO, Generation.THREE]


@dataclass
class Event:
    """Something the workload did: from which operation to which, and what it was promised after."""

    kind: str
    begin: int
    end: int
    index: int = 0
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    state: HardState | None = None
    point: SnapshotPoint | None = None
    payload: bytes = b""


class Workload:
    """Drives a real ``NodeDirectory`` and keeps its own account of what it was promised."""

    def __init__(self, generation: Generation, files: MemoryFiles) -> None:
        self.generation = generation
        self.files = files
        self.events: list[Event] = []
        self.node = self._do(
            "open", lambda: NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
        )
        self.term = 1

    def _do(self, kind: str, action: Callable[[], T], **what: object) -> T:
        begin = len(self.files.operations)
        event = Event(kind, begin, 10**9, **what)  # type: ignore[arg-type]
        self.events.append(event)
        result = action()
        event.end = len(self.files.operations)
        return result

    def append(self, payloads: list[bytes]) -> None:
        log = self.node.log
        if log.wants_spare:  # as a node does, which has a thread for it
            self._do("spare", log.make_spare)
        entries = [(self.term, payload) for payload in payloads]
        self._do(
            "append",
            lambda: log.append(Term(self.term), payloads),
            index=log.end,
            entries=entries,
        )

    def sync(self) -> None:
        self._do("sync", self.node.log.sync, index=self.node.log.end)

    def commit(self, index: int) -> None:
        self._do("commit", lambda: self.node.log.set_committed(Index(index)), index=index)

    def truncate(self, index: int) -> None:
        self._do("truncate", lambda: self.node.log.truncate(Index(index)), index=index)

    def vote(self, term: int, node: int) -> None:
        state = HardState(term=Term(term), vote=NodeId(node))
        self._do("metadata", lambda: self.node.metadata.replace(state), state=state)
        self.term = term

    def snapshot(self, index: int) -> None:
        point = SnapshotPoint(index=Index(index), term=self.node.log.term(Index(index)))
        payload = f"state at {index}".encode() * 40
        head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(1), count=1)
        pieces = encode_snapshot(
            point, 1, [(head, [(1, 0, payload)])], WRITTEN[self.generation].snapshot
        )
        self._do(
            "snapshot",
            lambda: self.node.save_snapshot(point, pieces),
            point=point,
            payload=payload,
        )


def scripted(generation: Generation) -> Workload:
    """A life of a log with everything that can happen to it, small enough to cut everywhere."""
    work = Workload(generation, MemoryFiles())
    work.append([b"a", b"b" * 700, b""])
    work.sync()
    work.commit(1)
    work.append([b"c" * 30] * 5)
    work.sync()
    work.vote(2, 3)
    work.truncate(6)
    work.append([b"d" * 1300, b"e"])
    work.append([b"f" * 10])
    work.sync()
    work.commit(8)
    work.snapshot(4)
    work.append([b"g" * 600, b"h" * 600, b"i" * 600])
    work.sync()
    work.commit(10)
    work.append([b"j" * 900])
    work.sync()
    work.vote(5, 1)
    work.commit(12)
    work.append([b"k" * 20] * 3)
    work.sync()
    work.truncate(13)
    work.snapshot(12)
    work.append([b"l" * 100])
    work.sync()
    return work


def random_workload(generation: Generation, seed: int) -> Workload:
    """A life of a log drawn by ``seed``."""
    random = Random(seed)
    work = Workload(generation, MemoryFiles())
    term, synced = 1, 0
    for _ in range(24):
        log = work.node.log
        choice = random.random()
        if choice < 0.45:
            sizes = [random.choice((0, 5, 90, 500, 1100)) for _ in range(random.randint(1, 5))]
            work.append([random.randbytes(size) for size in sizes])
        elif choice < 0.7:
            work.sync()
            synced = log.end
        elif choice < 0.8 and synced - 1 > log.committed:
            work.commit(random.randint(log.committed + 1, synced - 1))
        elif choice < 0.87 and log.end > log.committed + 1:
            index = random.randint(log.committed + 1, log.end - 1)
            if index >= log.first:
                work.truncate(index)
                synced = min(synced, index)
        elif choice < 0.93:
            term += random.randint(1, 3)
            work.vote(term, random.randint(1, 5))
        elif log.committed >= log.first:
            work.snapshot(log.committed)
    work.sync()
    return work


@dataclass
class Promise:
    """What must be true after a cut: exact entries, and what else may stand where."""

    must: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    may: dict[int, set[tuple[int, bytes]]] = field(default_factory=dict)
    metadata: list[HardState] = field(default_factory=lambda: [HardState()])
    snapshots: list[tuple[SnapshotPoint | None, bytes]] = field(
        default_factory=lambda: [(None, b"")]
    )
    committed_low: int = -1
    committed_high: int = -1


def promised(work: Workload, operations: int) -> Promise:
    """Return what the workload may rely on when the power is cut after ``operations``."""
    promise = Promise()
    written: dict[int, tuple[int, bytes]] = {}
    committed = -1
    for event in work.events:
        if event.begin >= operations:
            break
        is_done = event.end <= operations
        match event.kind:
            case "append":
                for number, entry in enumerate(event.entries, event.index):
                    written[number] = entry
                    promise.may.setdefault(number, set()).add(entry)
            case "sync" if is_done:
                promise.must = dict(written)
                promise.committed_low = committed
            case "commit":
                committed = promise.committed_high = event.index
            case "truncate":
                written = {n: e for n, e in written.items() if n < event.index}
                promise.must = {n: e for n, e in promise.must.items() if n < event.index}
                if is_done:
                    promise.may = {n: s for n, s in promise.may.items() if n < event.index}
            case "metadata" if event.state is not None:
                promise.metadata = [event.state] if is_done else [*promise.metadata, event.state]
            case "snapshot":
                found = (event.point, event.payload)
                promise.snapshots = [found] if is_done else [*promise.snapshots, found]
    return promise


def check(work: Workload, crash: CrashState) -> MemoryFiles:
    """Open what a cut left and compare it with what was promised; return the disk as recovered."""
    promise = promised(work, crash.operations)
    files = MemoryFiles(crash.image)
    node = NodeDirectory(files, ROOT, generation=work.generation, limits=LIMITS)
    point = node.snapshot.point
    payloads = dict(promise.snapshots)
    assert point in payloads
    if point is not None:
        assert _snapshot_payload(node) == payloads[point]
    assert node.metadata.state in promise.metadata
    log = node.log
    covered = -1 if point is None else point.index
    assert log.first <= covered + 1
    for index in promise.must:
        if index > covered:
            assert log.first <= index < log.end, f"entry {index} was synced and is gone"
    for index, entry in _entries(node):
        allowed = {promise.must[index]} if index in promise.must else promise.may.get(index, set())
        assert entry in allowed, f"entry {index} was never written like this"
    if work.generation is Generation.TWO:
        assert log.committed <= promise.committed_high
        assert max(log.committed, covered) >= promise.committed_low
    _check_that_it_goes_on(node, files, work.generation)
    return files


def _entries(node: NodeDirectory) -> Iterator[tuple[int, tuple[int, bytes]]]:
    index = node.log.first
    while index < node.log.end:
        for entry in node.log.read(index, node.log.end):
            yield entry.index, (entry.term, entry.payload)
            index = Index(entry.index + 1)


def _snapshot_payload(node: NodeDirectory) -> bytes:
    header = node.snapshot.header
    assert header is not None
    file = node.snapshot.open()
    *_, batch = decode_snapshot(file.read, file.size(), header.layout)
    assert isinstance(batch, tuple)
    return batch.tasks[0][2]


def _check_that_it_goes_on(node: NodeDirectory, files: MemoryFiles, generation: Generation) -> None:
    """A recovered log takes entries and gives them back after a clean stop."""
    before = dict(_entries(node))
    end = node.log.end
    node.metadata.replace(HardState(term=Term(99)))
    node.log.append(Term(99), [b"after the crash", b"z" * 700])
    node.log.sync()
    node.close()
    again = NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
    after = {**before, end: (99, b"after the crash"), end + 1: (99, b"z" * 700)}
    covered = -1 if again.snapshot.point is None else again.snapshot.point.index
    assert again.log.first <= covered + 1
    assert dict(_entries(again)) == {n: e for n, e in after.items() if n >= again.log.first}
    assert again.cuts == []


@pytest.mark.parametrize("generation", GENERATIONS)
def test_nothing_synced_is_lost_and_nothing_invented_wherever_the_power_is_cut(
    generation: Generation,
) -> None:
    work = scripted(generation)
    count = 0
    for crash in crash_states(work.files, seed=1, random_states=6):
        check(work, crash)
        count += 1
    operations = len(work.files.operations)
    report(f"generation {generation}: {count} crash states of {operations} operations recovered")
    assert count > operations


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    "seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (1, *range(3, 8)))]
)
def test_random_lives_of_a_log_survive_every_cut(generation: Generation, seed: int) -> None:
    work = random_workload(generation, seed)
    count = 0
    for crash in crash_states(work.files, seed=seed, random_states=2):
        check(work, crash)
        count += 1
    report(f"generation {generation}, seed {seed}: {count} crash states recovered")
    assert count > len(work.files.operations)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_second_power_cut_during_recovery_loses_nothing_either(generation: Generation) -> None:
    work = scripted(generation)
    count = 0
    for number, crash in enumerate(crash_states(work.files, seed=2, random_states=1)):
        if number % 7:
            continue
        files = MemoryFiles(crash.image)
        NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
        for second in crash_states(files, seed=number, random_states=1):
            check(work, CrashState(crash.operations, second.survived, second.image))
            count += 1
    report(f"generation {generation}: {count} crash states of recovery itself recovered")
    assert count > 0
