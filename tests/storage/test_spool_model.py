"""A spool beside a list: any order of publishing, reading, acknowledging, rewinding, restarts and power cuts."""

from __future__ import annotations

from random import Random

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.formats.beats.segment import Options
from penstock.storage.spool import Spool, SpoolBatch
from penstock.testing.disk import MemoryFiles, crash_states_now
from support.spool_lives import WINDOW, numbers_in, open_spool, payload


class SpoolMachine(RuleBasedStateMachine):
    """The model is what is published and not acknowledged without a gap, as numbers in order."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.options = Options(0)
        self.spool: Spool
        self.published: list[int] = []  # all that is durable
        self.acknowledged = 0  # of these, from the beginning on
        self.read = 0  # of these, since the last time that reading began anew
        self.out: list[SpoolBatch] = []
        self.acked: set[int] = set()
        self.next = 0

    @initialize(options=st.sampled_from([Options(0), Options(2), Options(1), Options(3)]))
    def begin(self, options: Options) -> None:
        self.options = options
        self.spool = open_spool(self.files, options)

    @rule(sizes=st.lists(st.integers(4, 1800), min_size=1, max_size=6))
    def publish(self, sizes: list[int]) -> None:
        numbers = range(self.next, self.next + len(sizes))
        self.next += len(sizes)
        self.spool.publish([payload(n, size) for n, size in zip(numbers, sizes, strict=True)])
        self.published += numbers

    @rule(count_max=st.integers(1, 9))
    def take(self, count_max: int) -> None:
        batch = self.spool.read(count_max, timeout=0)
        left = self.published[self.read :]
        if batch is None:
            assert left == []
            return
        found = numbers_in([batch])
        assert found == left[: len(found)]
        self.read += len(found)
        self.out.append(batch)

    @precondition(lambda self: len(self.acked) < len(self.out))
    @rule(which=st.integers(0, 5))
    def acknowledge(self, which: int) -> None:
        waiting = [batch for batch in self.out if batch.number not in self.acked]
        batch = waiting[which % len(waiting)]
        self.acked.add(batch.number)
        self.spool.acknowledge(batch)
        while self.out and self.out[0].number in self.acked:
            done = self.out.pop(0)
            self.acked.discard(done.number)
            self.acknowledged += len(done)

    @rule()
    def save(self) -> None:
        self.spool.save()

    @rule()
    def rewind(self) -> None:
        self.spool.rewind()
        self._read_anew()

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.spool = open_spool(self.files, self.options)
        self._read_anew()

    @rule(seed=st.integers(0, 2**16))
    def power_cut(self, seed: int) -> None:
        states = list(crash_states_now(self.files, seed=seed, random_states=2))
        self.files = MemoryFiles(Random(seed).choice(states).image)
        self.spool = open_spool(self.files, self.options)
        batches = []
        while (batch := self.spool.read(4, timeout=0)) is not None:
            batches.append(batch)
        found = numbers_in(batches)
        assert found == self.published[len(self.published) - len(found) :]
        first = len(self.published) - len(found)
        assert self.acknowledged - WINDOW <= first <= self.acknowledged
        self.acknowledged = first
        self.spool.rewind()
        self._read_anew()

    def _read_anew(self) -> None:
        self.read = self.acknowledged
        self.out.clear()
        self.acked.clear()

    @invariant()
    def stands_where_it_should(self) -> None:
        if not hasattr(self, "spool"):
            return
        stat = self.spool.stat()
        assert stat.damaged == stat.dropped == 0
        assert stat.size == sum(
            len(data) for path, data in self.files.image().items() if path.endswith(".seg")
        )

    def teardown(self) -> None:
        if hasattr(self, "spool"):
            self.spool.close()


SpoolMachine.TestCase.settings = hypothesis_settings(max_examples=25, stateful_step_count=40)
TestSpool = SpoolMachine.TestCase
