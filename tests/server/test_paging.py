"""The flush rules of paged queues in a node, and the merging of their store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from penstock.client.blocking import Client
from penstock.model import Implementation, Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.server.disk import InlineDisk
from penstock.server.embedded import EmbeddedNode
from penstock.server.node import Node
from penstock.server.paging import IdleFlush
from penstock.server.settings import Settings
from penstock.server.snapshots import Snapshots
from penstock.storage.paged.flush_rules import FlushReason
from penstock.storage.paged.limits import PagedLimits
from penstock.storage.paged.queue_index import QueueIndex
from penstock.storage.paged.task_pages import DIRECTORY
from penstock.testing.disk import MemoryFiles
from support.node_rig import RecordingCaller

ROOT = Path("/node")
NAME = QueueName("large")
OTHER = QueueName("other")
LARGE = 200_000  # of these, 21 are more than half of a store file's limit of 16 MiB, and 84 fill it
PAGED = Policy(implementation=Implementation.PAGED)


@dataclass
class Loop:
    """A clock that is moved by hand, and calls that wait for their time."""

    now_ms: int = 0
    calls: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def clock(self) -> int:
        return self.now_ms

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append((self.now_ms + round(seconds * 1000), call))

    def advance(self, ms: int) -> None:
        """Let time pass, with every call made when it is due."""
        end = self.now_ms + ms
        while self.calls and min(self.calls, key=itemgetter(0))[0] <= end:
            due = min(self.calls, key=itemgetter(0))
            self.calls.remove(due)
            self.now_ms = due[0]
            due[1]()
        self.now_ms = end


class Paged:
    """A node in memory with two paged queues."""

    def __init__(self, files: MemoryFiles | None = None, limits: PagedLimits | None = None) -> None:
        self.files, self.loop = MemoryFiles() if files is None else files, Loop()
        self.said: list[str] = []
        self.node = Node(
            Settings(data=ROOT, paged=limits or PagedLimits()),
            InlineDisk(),
            on_failure=lambda _: None,
            files=self.files,
            steady=self.loop.clock,
        )
        IdleFlush(self.node, self.loop.call_later)
        self.snapshots = Snapshots(
            self.node, InlineDisk(), lambda _, call: call(), self.said.append
        )
        self.caller = RecordingCaller([])
        for name in (NAME, OTHER):
            if name not in self.node.replica.state.by_name:
                self.node.broker.create(self.caller, 1, v2.Create(name, PAGED))
                self.node.replica.advance()

    def add(self, payloads: list[bytes], name: QueueName = NAME) -> None:
        request = v2.Enqueue(name, [0] * len(payloads), payloads)
        self.node.broker.enqueue(self.caller, self.caller.number() + 1, request)
        self.node.replica.advance()

    def remove(self, count: int, name: QueueName = NAME) -> None:
        queue = self.node.replica.state.find(name)
        ids, _, _ = queue.take_many(count, 2**40)
        queue.remove_out(ids)

    def index(self, name: QueueName = NAME) -> QueueIndex:
        """Return a queue's index."""
        shelf = self.node.shelf
        assert shelf is not None
        assert shelf._store is not None
        (found,) = (queue for queue in shelf._store.queues if queue.name == name.encode())
        return found

    @property
    def flushes(self) -> dict[str, int]:
        """The flushes that took place, by reason."""
        assert self.node.shelf is not None
        return {str(reason): count for reason, count in self.node.shelf.flushes.items() if count}

    def sizes(self, ending: str) -> dict[str, int]:
        """Return the sizes of the pages' files by name."""
        image = self.files.image()
        return {
            Path(name).name: len(data)
            for name, data in image.items()
            if f"/{DIRECTORY}/" in name and name.endswith(ending)
        }


def test_a_queue_without_traffic_is_flushed_while_others_are_busy() -> None:
    paged = Paged()
    paged.add([b"x" * 100] * 10)
    assert paged.sizes(".idx") == {}
    for _ in range(9):
        paged.loop.advance(100)
        paged.add([b"y" * 100], OTHER)
    assert paged.flushes == {}
    assert paged.index().dirty_count == 10
    for _ in range(20):
        paged.loop.advance(100)
        paged.add([b"y" * 100], OTHER)
    assert paged.flushes == {"idle": 1}
    assert paged.index().dirty_count == 0
    assert paged.index(OTHER).dirty_count == 29
    assert paged.sizes(".idx")["0.idx"] > 1000
    paged.loop.advance(1000)
    assert paged.flushes == {"idle": 2}


def test_an_idle_node_flushes_and_then_schedules_nothing() -> None:
    paged = Paged()
    paged.add([b"x" * 100] * 10)
    paged.loop.advance(900)
    paged.add([b"x" * 100] * 10)  # the second begins again
    paged.loop.advance(900)
    assert paged.sizes(".idx") == {}
    paged.loop.advance(200)
    assert paged.sizes(".idx")["0.idx"] > 2000
    paged.loop.advance(2000)
    assert paged.loop.calls == []
    paged.add([b"y"])
    assert len(paged.loop.calls) == 1


def test_a_hundred_queues_that_become_idle_together_are_flushed_within_a_second() -> None:
    paged = Paged()
    names = [QueueName(f"queue-{number}") for number in range(100)]
    for name in names:
        paged.node.broker.create(paged.caller, 1, v2.Create(name, PAGED))
        paged.add([b"x"], name)
    paged.loop.advance(2000)
    assert paged.flushes == {"idle": 100}


def test_a_node_in_process_flushes_an_idle_queue_with_the_next_call() -> None:
    loop = Loop()
    node = EmbeddedNode(Settings(data=ROOT), files=MemoryFiles(), steady=loop.clock)
    with Client(node.connect) as client:
        client.create_queue(NAME, implementation="paged")
        client.enqueue_many(NAME, [b"x"] * 10)
        assert node._node.shelf is not None
        loop.now_ms += 999
        client.enqueue("", b"on the heap")
        assert node._node.shelf.flushes[FlushReason.IDLE] == 0
        loop.now_ms += 1
        client.enqueue("", b"on the heap")
        assert node._node.shelf.flushes[FlushReason.IDLE] == 1


def test_what_a_start_replayed_is_flushed_without_any_traffic() -> None:
    paged = Paged()
    paged.add([b"x" * 100] * 10)
    again = Paged(MemoryFiles(paged.files.image()))
    assert again.index().dirty_count == 10
    again.loop.advance(1100)
    assert again.flushes == {"idle": 1}
    assert again.index().dirty_count == 0


def test_a_queue_that_is_only_drained_is_flushed_by_its_number_of_actions() -> None:
    paged = Paged()
    for _ in range(33):
        paged.add([b"x"] * 2000)
    assert paged.flushes == {"count": 1}
    assert paged.index().dirty_count == 0
    size = sum(paged.sizes(".idx").values())
    paged.remove(65_536)
    assert paged.flushes == {"count": 1}  # the limit is passed, not reached
    assert paged.index().dirty_count == 65_536
    paged.remove(1)
    assert paged.flushes == {"count": 2}
    assert paged.index().dirty_count == 0
    assert sum(paged.sizes(".idx").values()) > size


def test_above_the_memory_for_paged_queues_the_dirtiest_are_flushed_first() -> None:
    paged = Paged(limits=PagedLimits(memory=2**18))
    paged.add([b"x" * 100] * 500)
    paged.add([b"y" * 100] * 50, OTHER)
    assert paged.flushes == {}
    while not paged.flushes:
        paged.add([b"y" * 100] * 10, OTHER)
    assert paged.flushes == {"memory": 1}
    assert paged.index().dirty_count == 0
    assert 50 < paged.index(OTHER).dirty_count < 500


def test_a_snapshot_flushes_what_is_dirty_and_counts_it() -> None:
    paged = Paged()
    paged.add([b"x"])
    paged.snapshots.begin()
    assert paged.flushes == {"checkpoint": 1}
    assert paged.index().dirty_count == 0


def test_the_limits_of_a_node_are_those_of_its_queues() -> None:
    paged = Paged(limits=PagedLimits(journal_entries_max=10, store_file_size=100_000))
    paged.add([b"x"] * 10)
    assert paged.flushes == {}
    paged.remove(1)
    assert paged.flushes == {"count": 1}
    for _ in range(4):
        paged.add([b"z" * 60_000])
    assert len(paged.sizes(".rdq")) == 2


def test_garbage_of_the_store_is_merged_when_idle_and_gone_with_the_next_checkpoint() -> None:
    paged = Paged()
    for _ in range(100):  # more than one file of the store
        paged.add([b"z" * LARGE])
    assert set(paged.sizes(".rdq")) == {"0.rdq", "1.rdq"}
    paged.remove(80)
    paged.loop.advance(10_000)
    assert paged.loop.calls == []
    merged = paged.sizes(".rdq")
    assert merged.keys() - {"0.rdq", "1.rdq"}, merged
    paged.snapshots.begin()
    assert "0.rdq" not in paged.sizes(".rdq")
    assert sum(paged.sizes(".rdq").values()) < 30 * LARGE
    queue = paged.node.replica.state.find(NAME)
    assert [len(payload) for _, _, payload in queue.tasks] == [LARGE] * 20


def test_a_start_that_has_to_read_a_segment_says_so_and_the_next_snapshot_mends_it() -> None:
    paged = Paged()
    for _ in range(9):
        paged.add([b"t" * 10] * 2000)  # more than a segment's 16384
    paged.snapshots.begin()
    image = paged.files.image()
    (path,) = (name for name in image if name.endswith(".places"))
    again = Paged(MemoryFiles(image))
    assert again.said == []
    image[path] = image[path][:-1]
    again = Paged(MemoryFiles(image))
    assert [text.split(":")[0] for text in again.said] == [path]
    assert len(again.node.replica.state.find(NAME)) == 18_000
    again.snapshots.begin()
    assert Paged(MemoryFiles(again.files.image())).said == []


def test_a_node_without_paged_queues_waits_for_nothing() -> None:
    loop = Loop()
    node = Node(Settings(data=ROOT), InlineDisk(), on_failure=lambda _: None, files=MemoryFiles())
    IdleFlush(node, loop.call_later)
    caller = RecordingCaller([])
    node.broker.enqueue(caller, 1, v2.Enqueue(QueueName(""), [0], [b"x"]))
    node.replica.advance()
    assert loop.calls == []
