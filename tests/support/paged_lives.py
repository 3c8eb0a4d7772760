"""Lives of a paged store on a recording disk, with an account of what it was promised and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from penstock.formats.rabbitmq.checkpoint import NO_MARK
from penstock.storage.paged import directory as paged_directory
from penstock.storage.paged.directory import LATEST, AtMark, PagedDirectory
from penstock.storage.paged.limits import IndexLimits
from penstock.storage.paged.queue_index import QueueIndex
from penstock.testing.disk import CrashState, MemoryFiles

T = TypeVar("T")

ROOT = Path("/paged")
LIMITS = IndexLimits(entry_count=8, journal_entries_max=20, embed_below=300, buffer_size=700)
STORE_FILE_LIMIT = 2500


@dataclass(frozen=True)
class Held:
    """What is known of a message that is not acked."""

    message_id: bytes
    message: bytes
    expiry_us: int
    body_size: int
    is_delivered: bool = False


Content = dict[int, Held]
"""The messages of a queue that are not acked, by sequence number."""

State = dict[int, Content]
"""The queues, by number."""


def message_id(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(7) + b"\x01"


def message(number: int, size: int) -> bytes:
    """Return a message of ``size`` bytes or a few more; no two are alike."""
    text = b"\x83h%d." % number
    return (text * (size // len(text) + 1))[: max(size, len(text))]


def open_store(files: MemoryFiles, at_mark: AtMark) -> PagedDirectory:
    return PagedDirectory(
        files, ROOT, at_mark=at_mark, limits=LIMITS, store_file_limit=STORE_FILE_LIMIT
    )


def content_of(queue: QueueIndex) -> Content:
    """Return everything that a queue tells of its messages."""
    found: Content = {}
    for part in queue.unacked():
        messages = queue.read_many(part.sequence)
        columns = (part.sequence, part.message_id, part.expiry_us, part.body_size)
        rows = zip(*(column.tolist() for column in columns), messages, strict=True)
        for (sequence, id_, expiry, size, one), delivered in zip(
            rows, part.is_delivered.tolist(), strict=True
        ):
            assert sequence not in found
            found[sequence] = Held(bytes(id_), one, expiry, size, delivered)
    assert list(found) == sorted(found)
    assert len(queue) == len(found)
    return found


def state_of(store: PagedDirectory) -> State:
    return {queue.number: content_of(queue) for queue in store.queues}


@dataclass
class Event:
    """Something that was done: from which operation to which, and the state after it."""

    kind: str
    begin: int
    end: int
    state: State = field(default_factory=dict)
    mark: int = NO_MARK


class Life:
    """Drives a real ``PagedDirectory`` and keeps its own account."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.journals = (
            alone  # under a log only what earlier versions wrote has messages in journals
        )
        self.files = MemoryFiles()
        self.events: list[Event] = []
        self.state: State = {}
        self.mark = NO_MARK
        self.next: dict[int, int] = {}
        self._ids = 0
        self._write: Callable[[], None]
        self._pending_state: State = {}
        self.store = self._do("open", lambda: open_store(self.files, LATEST if alone else None))

    def _do(self, kind: str, action: Callable[[], T]) -> T:
        begin = len(self.files.operations)
        event = Event(kind, begin, 10**9, _copied(self.state), self.mark)
        self.events.append(event)
        result = action()
        event.end = len(self.files.operations)
        return result

    def _do_event(self, kind: str, action: Callable[[], object]) -> Event:
        self._do(kind, action)
        return self.events[-1]

    def queue(self, number: int) -> QueueIndex:
        queue = self._do("queue", lambda: self.store.open_queue(number, b"queue %d" % number))
        queue._is_under_log = not self.journals
        self.state.setdefault(number, {})
        self.next.setdefault(number, 0)
        return queue

    def delete(self, number: int) -> None:
        del self.state[number]
        self._do("delete", lambda: self.store.delete_queue(number))

    def publish(self, number: int, sizes: list[int], *, gap: int = 0) -> None:
        first = self.next[number] + gap
        ids = [message_id(self._ids + 1 + n) for n in range(len(sizes))]
        messages = [message(self._ids + 1 + n, size) for n, size in enumerate(sizes)]
        self._ids += len(sizes)
        self.next[number] = first + len(sizes)
        expiries = [0 if n % 3 else 10**15 + n for n in range(len(sizes))]
        for n, (id_, one) in enumerate(zip(ids, messages, strict=True)):
            self.state[number][first + n] = Held(id_, one, expiries[n], len(one) - 2)
        body_sizes = [len(one) - 2 for one in messages]
        queue = self.store.open_queue(number, b"queue %d" % number)
        self._do("publish", lambda: queue.publish_many(first, ids, messages, body_sizes, expiries))

    def publish_to_all(self, numbers: list[int], size: int) -> None:
        """Publish one message to several queues: the store holds it once."""
        self._ids += 1
        id_, one = message_id(self._ids), message(self._ids, size)
        for number in numbers:
            first = self.next[number]
            self.next[number] += 1
            self.state[number][first] = Held(id_, one, 0, len(one) - 2)
            queue = self.store.open_queue(number, b"queue %d" % number)
            self._do("publish", partial(queue.publish_many, first, [id_], [one], [len(one) - 2]))

    def deliver(self, number: int, sequences: list[int]) -> None:
        content = self.state[number]
        for sequence in sequences:
            held = content[sequence]
            content[sequence] = Held(
                held.message_id, held.message, held.expiry_us, held.body_size, True
            )
        queue = self.store.open_queue(number, b"queue %d" % number)
        self._do("deliver", lambda: queue.deliver_many(sequences))

    def ack(self, number: int, sequences: list[int]) -> None:
        for sequence in sequences:
            del self.state[number][sequence]
        queue = self.store.open_queue(number, b"queue %d" % number)
        self._do("ack", lambda: queue.ack_many(sequences))

    def flush(self, number: int) -> None:
        queue = self.store.open_queue(number, b"queue %d" % number)
        self._do("flush", queue.flush)

    def collect(self, budget: int = STORE_FILE_LIMIT) -> None:
        self._do("collect", lambda: self.store.store.collect(budget))

    def sync(self) -> None:
        """Make everything durable, in the way that this life has."""
        if self.alone:
            self._do("sync", self.store.sync)
        else:
            self.checkpoint()

    def checkpoint(self) -> None:
        self.begin()
        self.write()
        self.finish()

    # A checkpoint in parts, between which the store goes on.

    def begin(self) -> None:
        if not self.alone:
            self.mark += 7
        self._pending_state = _copied(self.state)
        self._write = self._do("begin", lambda: self.store.begin_checkpoint(self.mark))

    def write(self) -> None:
        event = self._do_event("write", self._write)
        event.state = self._pending_state

    def finish(self) -> None:
        """Let the checkpoint count; under a log, its snapshot is in place by now."""
        event = self._do_event("finish", self.store.finish_checkpoint)
        event.state = self._pending_state

    def abandon(self) -> None:
        self._do("abandon", self.store.abandon_checkpoint)

    def restart(self) -> None:
        """Close and open again, after everything was made durable."""
        self.sync()
        self.store.close()
        at_mark: AtMark = LATEST if self.alone else self.mark
        self.store = self._do("open", lambda: open_store(self.files, at_mark))


def _copied(state: State) -> State:
    return {number: dict(content) for number, content in state.items()}


@dataclass(frozen=True)
class Promise:
    """What a start may ask for after a cut, and the states that it may then find."""

    at_mark: AtMark
    states: list[State]


def promises(life: Life, operations: int) -> list[Promise]:
    """Return what must hold when the power is cut after ``operations``."""
    return [_alone(life, operations)] if life.alone else _under_a_log(life, operations)


def _alone(life: Life, operations: int) -> Promise:
    """The last state that was made durable, or one that is on its way."""
    states: list[State] = [{}]
    for event in life.events:
        if event.begin < operations and event.kind in ("sync", "write"):
            states = [event.state] if event.end <= operations else [*states, event.state]
    return Promise(LATEST, states)


def _under_a_log(life: Life, operations: int) -> list[Promise]:
    """The last checkpoint whose snapshot must be in place; and one that is written, whose snapshot may be."""
    found = [Promise(None, [{}])]
    for event in life.events:
        if event.kind == "write" and event.end <= operations:
            found = [found[0], Promise(event.mark, [event.state])]
        elif event.kind == "finish" and event.begin < operations:
            found = [Promise(event.mark, [event.state])]
        elif event.kind == "abandon" and event.begin < operations:
            found = found[:1]
    return found


def check(life: Life, crash: CrashState, *, goes_on: bool = True) -> None:
    """Open what a cut left, and hold it to what was promised."""
    for promise in promises(life, crash.operations):
        files = MemoryFiles(crash.image)
        check_promise(files, promise)
        if goes_on:
            _check_that_it_goes_on(files, promise.at_mark)


def check_promise(files: MemoryFiles, promise: Promise) -> State:
    """Open a store, hold it to a promise, and return its state."""
    store = open_store(files, promise.at_mark)
    state = state_of(store)
    allowed = promise.states
    assert state.keys() in [one.keys() for one in allowed], "not the queues that there were"
    for number, content in state.items():
        # Journals are sealed one by one, so of two states each queue has one.
        assert content in [one.get(number) for one in allowed], (
            f"not the messages of queue {number}"
        )
    store.close()
    return state


def _check_that_it_goes_on(files: MemoryFiles, at_mark: AtMark) -> None:
    """A recovered store takes messages, delivers and acks, and gives back what is left."""
    store = open_store(files, at_mark)
    state = state_of(store)
    for number in state:
        queue = store.open_queue(number, b"queue %d" % number)
        first = queue.next_sequence
        sizes = [40, 900]
        messages = [message(10**6 + first + n, size) for n, size in enumerate(sizes)]
        ids = [message_id(10**6 + 1000 * number + first + n) for n in range(2)]
        queue.publish_many(first, ids, messages, [len(m) - 2 for m in messages])
        held = sorted(state[number])
        queue.deliver_many([*held[::2], first])
        queue.ack_many(held[:2])
        state[number] = content_of(queue)
        assert {first, first + 1} <= state[number].keys()
        queue.flush()
    if at_mark is LATEST:
        store.sync()
    else:
        at_mark = 10**6
        store.checkpoint(at_mark)
    store.close()
    again = open_store(files, at_mark)
    assert state_of(again) == state
    again.close()


def scripted(*, alone: bool) -> Life:
    """A life with everything that can happen to a store, small enough to cut everywhere."""
    life = Life(alone=alone)
    life.queue(1)
    life.publish(1, [20, 150, 20])
    life.sync()
    life.publish(1, [600, 10, 800])
    life.queue(2)
    life.deliver(1, [0, 1, 3])
    life.sync()
    life.publish_to_all([1, 2], 700)
    life.ack(1, [0, 3])
    life.publish(2, [10] * 9)
    life.sync()
    life.flush(2)
    life.deliver(2, [1, 2])
    life.ack(2, [1])
    life.checkpoint()
    life.deliver(2, [3])
    life.flush(2)
    life.sync()
    life.deliver(2, [4])
    life.flush(2)
    life.checkpoint()
    life.publish(1, [900, 900, 30], gap=2)
    life.ack(1, [1, 2, 4, 5])
    life.ack(2, [0])
    life.sync()
    life.collect()
    life.publish(2, [1000])
    life.sync()
    life.collect()
    life.checkpoint()
    life.ack(2, sorted(life.state[2])[:7])
    life.flush(2)
    life.publish(2, [30, 30])
    life.checkpoint()
    life.delete(1)
    life.publish(2, [400])
    life.sync()
    life.restart()
    life.queue(3)
    life.publish(3, [20] * 10)
    life.ack(3, list(range(8)))
    life.checkpoint()
    life.ack(3, [8, 9])
    life.flush(3)
    life.checkpoint()
    life.publish(3, [25])
    life.flush(3)
    life.checkpoint()
    return life


def overlapping(*, alone: bool) -> Life:
    """A life in which everything goes on while checkpoints are on their way to the disk."""
    life = Life(alone=alone)
    life.queue(1)
    life.queue(2)
    life.publish(1, [20, 700, 20, 20, 900, 900, 900])
    life.publish(2, [20] * 4)
    life.flush(1)
    life.ack(2, [0, 1, 2, 3])
    life.flush(2)
    life.begin()
    life.publish(1, [30, 800])
    life.deliver(1, [0, 1, 7])
    life.publish(2, [50])
    life.write()
    life.ack(1, [0, 8])
    life.flush(1)
    life.finish()
    life.sync()
    life.ack(1, [1, 4, 5])
    life.flush(1)
    life.flush(2)
    life.begin()
    life.publish(1, [280] * 4)
    life.collect()
    life.write()
    life.collect()
    life.delete(2)
    life.publish(1, [600] * 4)
    life.finish()
    life.sync()
    life.publish(1, [30])
    life.begin()
    life.write()
    life.finish()
    if not alone:
        _abandoned(life)
    life.ack(1, sorted(life.state[1]))
    life.flush(1)
    life.begin()
    life.publish(1, [40])
    life.ack(1, [life.next[1] - 1])
    life.write()
    life.finish()
    life.sync()
    return life


def _abandoned(life: Life) -> None:
    """Two checkpoints that never count, one of them written, and one that does."""
    life.publish(1, [290] * 3)
    life.flush(1)
    life.begin()
    life.publish(1, [290] * 3)
    life.abandon()
    life.publish(1, [900, 20])
    life.begin()
    life.publish(1, [290] * 3)
    life.ack(1, sorted(life.state[1])[:2])
    life.write()
    life.abandon()
    life.publish(1, [45])
    life.begin()
    life.publish(1, [290] * 3)
    life.write()
    life.finish()


def tabled(*, alone: bool) -> Life:
    """A life of full segments and store files, whose tables are made, outlive changes, and go with their files."""
    life = Life(alone=alone)
    life.queue(1)
    life.publish(1, [20] * 8 + [900] * 8 + [30] * 3)
    life.flush(1)
    life.checkpoint()
    life.deliver(1, [0, 1, 9])
    life.ack(1, [1, 2, 8])
    life.flush(1)
    life.checkpoint()
    life.ack(1, [0, 3, 12, 13])
    life.publish(1, [20] * 6)
    life.flush(1)
    life.begin()
    life.ack(1, [4, 16])
    life.deliver(1, [17, 18])
    life.flush(1)
    life.write()
    life.ack(1, [5, 17])
    life.flush(1)
    life.finish()
    life.restart()
    life.ack(1, [6, 9])
    life.flush(1)
    if not alone:
        _abandoned_tables(life)
    life.collect()
    life.checkpoint()
    life.restart()
    life.publish(1, [700])  # to a file that has a table: what was merged is appended to
    life.checkpoint()
    life.ack(1, [n for n in life.state[1] if n < 16])
    life.flush(1)
    life.checkpoint()
    life.delete(1)
    life.queue(2)
    life.publish(2, [20] * 9)
    life.flush(2)
    life.checkpoint()
    return life


def _abandoned_tables(life: Life) -> None:
    """Tables of a checkpoint that never counts: others of the same files, as long, count in their place."""
    life.publish(1, [25] * 8)
    life.flush(1)
    life.begin()
    life.write()
    life.deliver(1, [26])
    life.flush(1)
    life.abandon()
    life.deliver(1, [27])
    life.flush(1)


def replayed(*, alone: bool) -> Life:
    """A life with a crash in it, behind a checkpoint that did not count: what follows is as long, but not the same."""
    assert not alone
    life = Life(alone=False)
    life.queue(1)
    life.publish(1, [20] * 6)
    life.checkpoint()
    mark, state, following = life.mark, _copied(life.state), dict(life.next)
    life.publish(1, [20] * 4)
    life.ack(1, [2])
    life.begin()
    life.write()
    life.store.close()
    life.mark, life.state, life.next = mark, state, following
    life.store = life._do("abandon", lambda: open_store(life.files, mark))
    life.publish(1, [20] * 4)
    life.ack(1, [3])
    with pytest.MonkeyPatch.context() as patch:
        # Else the table is made anew before anybody could take the old one for it.
        patch.setattr(paged_directory, "TABLES_MAX", 0)
        life.checkpoint()
        life.deliver(1, [4])
        life.checkpoint()
    life.checkpoint()
    return life


def upgraded(*, alone: bool) -> Life:
    """A life that an earlier version began under a log: with messages in journals, and checkpoints that need them."""
    assert not alone
    life = Life(alone=False)
    life.journals = True
    life.queue(1)
    life.queue(2)
    life.publish(1, [20, 700, 20, 280])
    life.publish(2, [30] * 9)
    life.checkpoint()
    life.deliver(1, [0, 1])
    life.ack(1, [0])
    life.flush(2)
    life.publish(2, [40, 600])
    life.checkpoint()
    life.publish(1, [20] * 3)
    life.ack(2, [1, 2])
    life.journals = False
    life.restart()
    life.queue(1)
    life.publish(1, [20, 800] * 3)
    life.ack(1, [1, 5, 7])
    life.publish(2, [20])
    life.begin()
    life.publish(1, [50])
    life.write()
    life.deliver(2, [3])
    life.finish()
    life.flush(1)
    life.checkpoint()
    return life


def random_life(seed: int, *, alone: bool, length: int = 30) -> Life:
    """A life drawn by ``seed``."""
    random = Random(seed)
    life = Life(alone=alone)
    fresh = 1
    for _ in range(length):
        choice = random.random()
        numbers = sorted(life.state)
        number = random.choice(numbers) if numbers else 0
        held = sorted(life.state.get(number, ()))
        if not numbers or (choice < 0.05 and len(numbers) < 3):
            life.queue(fresh)
            fresh += 1
        elif choice < 0.3:
            sizes = [random.choice((5, 60, 290, 400, 900)) for _ in range(random.randint(1, 7))]
            life.publish(number, sizes, gap=random.choice((0, 0, 0, 3)))
        elif choice < 0.34:
            life.publish_to_all(numbers, random.choice((100, 700)))
        elif choice < 0.45 and held:
            life.deliver(number, random.sample(held, random.randint(1, min(4, len(held)))))
        elif choice < 0.63 and held:
            life.ack(number, random.sample(held, random.randint(1, len(held))))
        elif choice < 0.71:
            life.flush(number)
        elif choice < 0.78:
            life.collect(random.choice((1, 800, STORE_FILE_LIMIT)))
        elif choice < 0.88:
            life.sync()
        elif choice < 0.95:
            life.checkpoint()
        elif choice < 0.97:
            life.begin()
            life.publish_to_all(numbers, 500)
            life.write()
            life.flush(number)
            life.finish()
        elif choice < 0.985:
            life.restart()
        else:
            life.delete(number)
    life.checkpoint()
    return life
