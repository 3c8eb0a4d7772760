"""Both log stores against a dictionary, in whatever order their methods are called.

Hypothesis draws the calls, among them clean stops and kills. The limits are tiny, so that files
grow, segments are sealed and compaction removes some.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import Compacted, OutOfRange
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.sync_point import FILE_NAME, SIZE, SyncPoint, decode_sync_point
from penstock.model import Index, SnapshotPoint
from penstock.storage.files import Files, OsFiles, read_whole
from penstock.storage.log import LogLimits
from penstock.testing.disk import MemoryFiles
from support.log_stores import Content, LogStore, append, content, point

LIMITS = LogLimits(soft=150, hard=400, growth=128)
FRACTIONS = st.floats(min_value=0, max_value=1, exclude_max=True)


def pick(first: int, end: int, fraction: float) -> int:
    return first + int((end - first) * fraction)


class LogMachine(RuleBasedStateMachine):
    """A log, and what a naive reader of its promises expects of it."""

    generation: ClassVar[Generation]
    is_real: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp()) if self.is_real else Path("/node")
        files: Files = OsFiles() if self.is_real else MemoryFiles()
        self.files = files
        self.store = LogStore(
            generation=self.generation, files=files, directory=self.directory, limits=LIMITS
        )
        self.log = self.store.open()
        self.entries: Content = {}
        self.end = 0
        self.term = 1
        self.committed = -1
        self.snapshot: SnapshotPoint | None = None
        self.synced_end = 0

    def teardown(self) -> None:
        self.log.close()
        if self.is_real:
            shutil.rmtree(self.directory)

    @property
    def covered(self) -> int:
        return -1 if self.snapshot is None else self.snapshot.index

    @property
    def kept(self) -> int:
        """The last entry that nobody truncates: it was committed, perhaps before the last start."""
        return max(self.committed, self._sync_point().committed)

    @rule(
        sizes=st.lists(st.sampled_from([0, 1, 20, 100, 130]), min_size=1, max_size=6),
        step=st.sampled_from([0, 0, 0, 1, 3]),
    )
    def append_a_batch(self, sizes: list[int], step: int) -> None:
        self.term += step
        payloads = [bytes([(self.end + n) % 251]) * size for n, size in enumerate(sizes)]
        append(self.log, self.term, *payloads)
        for payload in payloads:
            self.entries[self.end] = (self.term, payload)
            self.end += 1

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.synced_end = self.end
        assert self._sync_point().synced == self.end - 1

    @precondition(lambda self: self.end > self.kept + 1)
    @rule(fraction=FRACTIONS)
    def truncate(self, fraction: float) -> None:
        index = pick(self.kept + 1, self.end, fraction)
        self.log.truncate(Index(index))
        for number in range(index, self.end):
            del self.entries[number]
        self.end = index
        assert self._sync_point().synced < index

    @precondition(lambda self: self._sync_point().synced > self.committed)
    @rule(fraction=FRACTIONS)
    def commit(self, fraction: float) -> None:
        self.committed = pick(self.committed + 1, self._sync_point().synced + 1, fraction)
        self.log.set_committed(Index(self.committed))

    @precondition(lambda self: self.committed > self.covered)
    @rule(fraction=FRACTIONS)
    def compact(self, fraction: float) -> None:
        index = pick(self.covered + 1, self.committed + 1, fraction)
        self._install(point(index, self.entries[index][0]))

    @rule(distance=st.integers(min_value=0, max_value=9))
    def install_a_snapshot_ahead(self, distance: int) -> None:
        self._install(point(self.end + distance, self.term))
        self.entries.clear()
        self.end = self.covered + 1

    def _install(self, at: SnapshotPoint) -> None:
        self.log.begin_compaction(at)
        self.snapshot = at
        self.log.drop_prefix(at)
        self.committed = max(self.committed, at.index)

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self._start()

    @rule()
    def be_killed_and_start(self) -> None:
        self.log._let_go()
        self._start()

    def _start(self) -> None:
        self.log = self.store.open(self.snapshot)
        assert self.log.cuts == []
        if self.generation is Generation.THREE:
            self.committed = self.covered  # the files store none; it is learned again

    @precondition(lambda self: self.log.end > self.log.first)
    @rule(
        start=FRACTIONS,
        length=st.integers(1, 8),
        size_max=st.sampled_from([0, 1, 60, 200, 500, 2**20]),
    )
    def read_some(self, start: float, length: int, size_max: int) -> None:
        first = pick(self.log.first, self.log.end, start)
        found = self.log.read(Index(first), Index(first + length), size_max=size_max)
        assert 1 <= len(found) <= length
        for number, entry in enumerate(found, first):
            assert entry.index == number
            if number in self.entries:
                assert (entry.term, entry.payload) == self.entries[number]
        if len(found) > 1:
            assert sum(len(entry.payload) for entry in found) <= size_max

    @rule(distance=st.integers(min_value=1, max_value=5))
    def read_outside(self, distance: int) -> None:
        before, behind = Index(self.log.first - distance), Index(self.end + distance - 1)
        for index, error in ((before, Compacted), (behind, OutOfRange)):
            for call in (self.log.term, lambda i: self.log.read(i, Index(i + 1))):
                with pytest.raises(error) as caught:
                    call(index)
                assert isinstance(caught.value, Compacted) == (index == before)

    @invariant()
    def bounds_are_as_expected(self) -> None:
        assert self.log.end == self.end
        assert self.log.committed == self.committed
        if self.generation is Generation.TWO:
            assert self.log.first == self.covered + 1
        else:
            assert self.log.first <= self.covered + 1

    @invariant()
    def entries_are_as_expected(self) -> None:
        found = content(self.log)
        assert found == {n: e for n, e in self.entries.items() if n >= self.log.first}
        for index, (term, _) in found.items():
            assert self.log.term(Index(index)) == term

    @invariant()
    def stretches_tell_the_same(self) -> None:
        found: dict[int, bytes] = {}
        for stretch in self.log.stretches(self.log.first):
            for number, (start, end) in enumerate(zip(stretch.starts, stretch.ends, strict=True)):
                found[stretch.first + number] = stretch.data[start:end]
        assert found == {n: p for n, (_, p) in self.entries.items() if n >= self.log.first}

    @invariant()
    def the_sync_point_never_claims_more_than_is_there(self) -> None:
        assert self._sync_point().synced < self.end

    def _sync_point(self) -> SyncPoint:
        data = read_whole(self.files, self.directory / FILE_NAME, size_max=SIZE)
        assert data is not None
        return decode_sync_point(data) or SyncPoint()


def machine(generation: Generation, *, is_real: bool) -> type[RuleBasedStateMachine]:
    name = f"Log{generation}{'OnDisk' if is_real else 'InMemory'}"
    return type(name, (LogMachine,), {"generation": generation, "is_real": is_real})


_STEPS = settings(stateful_step_count=40)

TestSingleLogOnDisk = machine(Generation.TWO, is_real=True).TestCase
TestSegmentedLogOnDisk = machine(Generation.THREE, is_real=True).TestCase
TestSingleLogInMemory = machine(Generation.TWO, is_real=False).TestCase
TestSegmentedLogInMemory = machine(Generation.THREE, is_real=False).TestCase
TestSingleLogOnDisk.settings = TestSegmentedLogOnDisk.settings = _STEPS
TestSingleLogInMemory.settings = TestSegmentedLogInMemory.settings = _STEPS
