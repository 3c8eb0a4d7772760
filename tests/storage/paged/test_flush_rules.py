"""The flush rules A, B and C over queues of a directory in memory, and the measured size of an unflushed action."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from penstock.storage.paged.directory import LATEST, AtMark, PagedDirectory
from penstock.storage.paged.flush_rules import IDLE_FLUSHES_MAX, IDLE_MS, FlushReason, FlushRules
from penstock.storage.paged.limits import IndexLimits
from penstock.storage.paged.queue_index import QueueIndex
from penstock.testing.disk import MemoryFiles
from support.paged_lives import message, message_id

ROOT = Path("/paged")
MIB = 2**20


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class Rig:
    """Queues of a directory and their rules."""

    def __init__(
        self, *, memory: int = 2**30, at_mark: AtMark = None, journal_entries_max: int = 1000
    ) -> None:
        limits = IndexLimits(journal_entries_max=journal_entries_max, buffer_size=2**30)
        self.store = PagedDirectory(MemoryFiles(), ROOT, at_mark=at_mark, limits=limits)
        self.clock = Clock()
        self.rules = FlushRules(memory=memory, clock_ms=self.clock)

    def queue(self, number: int) -> QueueIndex:
        return self.store.open_queue(number, b"queue %d" % number)

    def publish(self, number: int, count: int, size: int = 100) -> None:
        queue = self.queue(number)
        first = queue.next_sequence
        ids = [message_id(10**6 * number + first + n) for n in range(count)]
        messages = [message(first + n, size) for n in range(count)]
        queue.publish_many(first, ids, messages, [size] * count)
        self.rules.note_actions(queue)

    def ack(self, number: int, sequences: list[int]) -> None:
        self.queue(number).ack_many(sequences)
        self.rules.note_actions(self.queue(number))

    @property
    def dirty(self) -> list[int]:
        return [queue.dirty_count for queue in self.store.queues]

    @property
    def counts(self) -> dict[FlushReason, int]:
        return {reason: count for reason, count in self.rules.counts.items() if count}


def test_the_limit_of_actions_is_passed_not_reached_and_acks_count_too() -> None:
    rig = Rig(journal_entries_max=10)
    rig.publish(1, 6)
    rig.ack(1, [0, 1, 2, 3])
    assert rig.dirty == [10]
    rig.ack(1, [4])
    assert rig.dirty == [0]
    assert rig.counts == {FlushReason.COUNT: 1}


def test_above_the_memory_the_dirtiest_queues_are_flushed_first() -> None:
    rig = Rig(memory=MIB, journal_entries_max=10**6)
    for number, count in ((1, 1000), (2, 1300), (3, 100), (4, 1200)):
        rig.publish(number, count)
    assert rig.counts == {}
    most = rig.rules.dirty_max
    assert 4000 < most < 6000  # 1 MiB, and some 230 bytes for each
    while not rig.counts:
        rig.publish(3, 10)
    assert rig.counts == {FlushReason.MEMORY: 1}
    assert [bool(count) for count in rig.dirty] == [True, False, True, True]
    while rig.counts == {FlushReason.MEMORY: 1}:
        rig.publish(2, 10)
    assert rig.dirty[1] == 0  # again the one with the most
    assert sum(rig.dirty) <= most


def test_memory_is_relieved_whatever_the_sizes_of_messages() -> None:
    rig = Rig(memory=MIB)
    for number in range(1, 200):
        rig.publish(number, 1, size=50 if number % 2 else 3000)
        assert sum(queue.dirty_size for queue in rig.store.queues) <= MIB
    rig.publish(200, 1000, size=4000)  # one request above the whole budget
    assert rig.dirty[-1] == 0
    assert rig.counts[FlushReason.MEMORY] >= 1


def test_records_that_a_read_wrote_out_do_not_press_on_memory() -> None:
    rig = Rig(memory=MIB)
    rig.publish(1, 300, size=3000)
    rig.queue(1).read_many([0])  # writes what waits
    rig.publish(2, 100, size=3000)
    assert rig.counts == {}


@pytest.mark.parametrize("at_mark", [None, LATEST], ids=["under a log", "alone"])
@pytest.mark.parametrize("size", [10, 100, 1000])
def test_the_size_of_an_unflushed_action_is_what_python_allocates(
    at_mark: AtMark, size: int
) -> None:
    rig = Rig(at_mark=at_mark, journal_entries_max=10**6)
    rig.publish(1, 16)
    rig.queue(1).flush()
    tracemalloc.start()
    for _ in range(100):
        rig.publish(1, 100, size)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.7 * taken < rig.queue(1).dirty_size < 1.3 * taken
    rig.queue(1).flush()
    assert rig.queue(1).dirty_size == 0


def test_idle_queues_are_flushed_longest_idle_first_and_some_at_a_time() -> None:
    rig = Rig()
    count = IDLE_FLUSHES_MAX + 2
    for number in range(1, count + 1):
        rig.publish(number, 1)
        rig.clock.now_ms += 10
    rig.publish(1, 1)  # acts again, so it is last
    rig.clock.now_ms = 10 + IDLE_MS  # the second queue is due, and the third in 10 ms
    assert rig.rules.flush_idle() == 10
    assert rig.dirty == [2, 0, *[1] * (count - 2)]
    rig.clock.now_ms += IDLE_MS
    assert rig.rules.flush_idle() == 0  # one is left that is due
    assert rig.dirty == [2, *[0] * (count - 1)]
    assert rig.rules.flush_idle() is None
    assert rig.counts == {FlushReason.IDLE: count}


def test_a_checkpoint_counts_the_queues_that_it_flushed() -> None:
    rig = Rig()
    rig.publish(1, 3)
    rig.publish(2, 3)
    rig.publish(3, 3)
    rig.clock.now_ms = IDLE_MS
    rig.publish(3, 1)
    rig.rules.flush_idle()
    write = rig.store.begin_checkpoint(1)
    rig.rules.note_checkpoint()
    write()
    rig.store.finish_checkpoint()
    assert rig.counts == {FlushReason.IDLE: 2, FlushReason.CHECKPOINT: 1}
    assert not rig.rules.is_dirty


def test_a_deleted_queue_is_not_flushed() -> None:
    rig = Rig(memory=MIB)
    rig.publish(1, 900, size=1000)
    rig.rules.forget(rig.queue(1))
    rig.store.delete_queue(1)
    rig.clock.now_ms = IDLE_MS
    assert rig.rules.flush_idle() is None
    rig.publish(2, 500, size=1000)
    assert rig.counts == {}
