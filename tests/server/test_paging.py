"""A node that is idle tidies its pages up: what is in memory only goes to the segments, garbage of the store away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model import Implementation, Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.server.disk import InlineDisk
from penstock.server.node import Node
from penstock.server.paging import IDLE_SECONDS, IdleFlush
from penstock.server.settings import Settings
from penstock.server.snapshots import Snapshots
from penstock.storage.task_pages import DIRECTORY
from penstock.testing.disk import MemoryFiles
from support.node_rig import RecordingCaller

ROOT = Path("/node")
NAME = QueueName("large")
LARGE = 200_000  # of these, 21 are more than half of a store file's limit of 16 MiB, and 84 fill it


@dataclass
class Loop:
    """Calls that wait for their time."""

    calls: list[Callable[[], None]] = field(default_factory=list)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == IDLE_SECONDS
        self.calls.append(call)

    def turn(self) -> None:
        """Let a moment of idleness pass."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Paged:
    """A node in memory with a paged queue."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self.files, self.loop = MemoryFiles() if files is None else files, Loop()
        self.said: list[str] = []
        settings = Settings(data=ROOT)
        failures: list[object] = []
        self.node = Node(settings, InlineDisk(), on_failure=failures.append, files=self.files)
        IdleFlush(self.node, self.loop.call_later)
        self.snapshots = Snapshots(
            self.node, InlineDisk(), lambda _, call: call(), self.said.append
        )
        self.caller = RecordingCaller([])
        policy = Policy(implementation=Implementation.PAGED)
        self.node.broker.create(self.caller, 1, v2.Create(NAME, policy))
        self.node.replica.advance()

    def add(self, payloads: list[bytes]) -> None:
        request = v2.Enqueue(NAME, [0] * len(payloads), payloads)
        self.node.broker.enqueue(self.caller, self.caller.number() + 1, request)
        self.node.replica.advance()

    def remove(self, count: int) -> None:
        queue = self.node.replica.state.find(NAME)
        ids, _, _ = queue.take_many(count, 2**40)
        queue.remove_out(ids)

    def sizes(self, ending: str) -> dict[str, int]:
        """Return the sizes of the pages' files by name."""
        image = self.files.image()
        return {
            Path(name).name: len(data)
            for name, data in image.items()
            if f"/{DIRECTORY}/" in name and name.endswith(ending)
        }


def test_what_waits_in_memory_is_flushed_when_the_node_is_idle_and_not_before() -> None:
    paged = Paged()
    paged.add([b"x" * 100] * 10)
    assert paged.sizes(".idx") == {}
    paged.add([b"x" * 100] * 10)
    assert len(paged.loop.calls) == 1
    paged.loop.turn()  # something was applied since: not idle
    assert paged.sizes(".idx") == {}
    paged.loop.turn()
    assert paged.sizes(".idx")["0.idx"] > 2000
    paged.loop.turn()
    assert paged.loop.calls == []  # nothing is left to do, so nobody waits
    paged.add([b"y"])
    assert len(paged.loop.calls) == 1


def test_garbage_of_the_store_is_merged_when_idle_and_gone_with_the_next_checkpoint() -> None:
    paged = Paged()
    for _ in range(100):  # more than one file of the store
        paged.add([b"z" * LARGE])
    assert set(paged.sizes(".rdq")) == {"0.rdq", "1.rdq"}
    paged.remove(80)
    for _ in range(10):
        paged.loop.turn()
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
