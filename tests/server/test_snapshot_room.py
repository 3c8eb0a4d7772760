"""A node without room for a snapshot goes on by its log, says so once, and takes the snapshot when there is room."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import NoRoom, PenstockError, StorageFailed
from penstock.model import DEFAULT_QUEUE, Implementation, Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.raft.configuration import Configuration
from penstock.raft.messages import Snapshot
from penstock.server.disk import InlineDisk
from penstock.server.node import Node
from penstock.server.settings import Settings
from penstock.server.shortage import REST_SECONDS, REST_SECONDS_MAX, Shortage
from penstock.server.snapshot_exchange import SentSnapshot, SnapshotReceipt
from penstock.server.snapshots import Snapshots, Spares
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import TEMPORARY_SUFFIX
from penstock.storage.log import LogLimits
from penstock.testing.disk import MemoryFiles, Operation
from support.node_rig import RecordingCaller

ROOT = Path("/node")
SNAPSHOT_BYTES = 10_000
LIMITS = LogLimits(soft=2**18, hard=2**23, growth=2**16)
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


class FullDisk(MemoryFiles):
    """A disk that can be without room for snapshots or another kind of file, or fail them otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None
        self.kinds = {"write"}
        self.name = "snapshot"  # of the files that it fails
        self.attempts = 0
        self.fault = self._judge

    def _judge(self, operation: Operation) -> None:
        is_sibling = self.name in operation.path and operation.path.endswith(TEMPORARY_SUFFIX)
        if is_sibling and operation.kind in self.kinds and self.error is not None:
            self.attempts += 1
            raise self.error

    def siblings(self) -> list[str]:
        return [name for name in self.image() if name.endswith(TEMPORARY_SUFFIX)]


class Life:
    """A node that is alone, its clock, and what was put off."""

    def __init__(self, files: MemoryFiles, *, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
        self.files = files
        self.now = 0.0
        self.room = math.inf
        self.said: list[str] = []
        self.failures: list[PenstockError] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        settings = Settings(data=ROOT, snapshot_bytes=snapshot_bytes)
        self.node = Node(
            settings,
            InlineDisk(),
            on_failure=self.failures.append,
            files=files,
            log_limits=LIMITS,
        )
        self.snapshots = Snapshots(
            self.node,
            InlineDisk(),
            lambda seconds, call: self.later.append((self.now + seconds, call)),
            self.said.append,
            now=lambda: self.now,
            room=lambda: self.room,
        )
        self._caller = RecordingCaller([])

    def enqueue(self, payload: bytes, queue: QueueName = DEFAULT_QUEUE) -> v2.Answer:
        request = v2.Enqueue(queue, [0], [payload])
        number = self._caller.number()
        self.node.broker.enqueue(self._caller, number, request)
        self.node.replica.advance()
        self.node.broker.flush()
        return self._caller.answers[number][0]

    def create(self, queue: QueueName, policy: Policy) -> None:
        self.node.broker.create(self._caller, self._caller.number(), v2.Create(queue, policy))
        self.node.replica.advance()

    def run_slices(self) -> None:
        """Do what was put off for the moment only."""
        while due := [each for each in self.later if each[0] < self.now + REST_SECONDS]:
            for each in due:
                self.later.remove(each)
                each[1]()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self.later if each[0] <= self.now]
        self.later = [each for each in self.later if each[0] > self.now]
        for _, call in due:
            call()
        self.run_slices()

    def payloads(self, queue: QueueName = DEFAULT_QUEUE) -> list[bytes]:
        return [payload for _, _, payload in self.node.replica.state.find(queue).tasks]


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


def life_with_a_snapshot(disk: FullDisk) -> tuple[Life, list[bytes]]:
    life = Life(disk)
    kept = [b"first"]
    life.enqueue(kept[0])
    life.snapshots.begin()
    life.run_slices()
    assert life.said[-1].startswith("snapshot at entry")
    life.said.clear()
    return life, kept


def fill_once(life: Life, kept: list[bytes]) -> v2.Answer:
    """Enqueue one more task."""
    payload = bytes([len(kept) % 251]) * 6000
    kept.append(payload)
    return life.enqueue(payload)


def fill(life: Life, kept: list[bytes]) -> None:
    """Enqueue until a snapshot is due, and more."""
    for _ in range(4):
        answer = fill_once(life, kept)
        assert isinstance(answer, v2.Enqueued)
        life.run_slices()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", ["write", "create"])
def test_a_node_without_room_for_a_snapshot_goes_on_and_takes_it_later(
    disk: FullDisk, code: int, kind: str
) -> None:
    life, kept = life_with_a_snapshot(disk)
    old = life.node.directory.snapshot.point
    disk.error, disk.kinds = OSError(code, "there is no room"), {kind}
    fill(life, kept)
    assert disk.attempts == 1  # entries that come meanwhile are no reason to try again
    assert disk.siblings() == []
    assert life.failures == []
    (words,) = life.said
    assert "there is no room" in words
    assert "no snapshot" in words
    assert life.node.directory.snapshot.point == old

    again = Life(MemoryFiles(disk.image()), snapshot_bytes=2**30)  # as after a kill
    assert again.payloads() == kept
    assert again.node.directory.snapshot.point == old

    life.pass_time(REST_SECONDS)
    assert disk.attempts == 2
    assert life.said == [words]  # once
    disk.error = None
    life.pass_time(2 * REST_SECONDS)  # nobody has asked for anything: the clock is enough
    assert life.said[1].startswith("snapshot at entry")
    assert life.node.directory.snapshot.point != old
    assert Life(MemoryFiles(disk.image()), snapshot_bytes=2**30).payloads() == kept


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        ({"write"}, OSError(errno.EIO, "Input/output error")),
        ({"sync"}, NO_ROOM),
        ({"rename"}, NO_ROOM),
    ],
)
def test_what_may_have_cost_more_than_the_snapshot_stops_the_node(
    disk: FullDisk, kinds: set[str], error: OSError
) -> None:
    life, _ = life_with_a_snapshot(disk)
    disk.error, disk.kinds = error, kinds
    for n in range(4):
        if not life.failures:
            life.enqueue(bytes([n]) * 6000)
            life.run_slices()
    assert len(life.failures) == 1
    assert disk.attempts == 1
    assert str(error.strerror) in str(life.failures[0])


def spare_life(disk: FullDisk) -> tuple[Life, list[bytes]]:
    """Return a node whose log wants its next file, and finds no room for it."""
    life, kept = life_with_a_snapshot(disk)
    disk.name, disk.error = "spare", NO_ROOM
    Spares(life.node, InlineDisk(), life.said.append, now=lambda: life.now, room=lambda: life.room)
    while not life.node.directory.log.wants_spare:
        fill(life, kept)
    life.said.clear()
    return life, kept


def test_a_log_without_room_for_its_next_file_goes_on_and_makes_it_later(disk: FullDisk) -> None:
    life, kept = spare_life(disk)
    fill(life, kept)
    assert disk.attempts == 1
    assert disk.siblings() == []
    assert life.failures == []
    life.now += REST_SECONDS
    life.room = LIMITS.soft - 1
    fill(life, kept)
    assert disk.attempts == 1  # it looked, and wrote nothing
    disk.error, life.room = None, math.inf
    life.now += REST_SECONDS
    fill(life, kept)
    assert not life.node.directory.log.wants_spare
    assert life.failures == []
    assert Life(MemoryFiles(disk.image()), snapshot_bytes=2**30).payloads() == kept


def test_a_failed_sync_of_the_logs_next_file_stops_the_node(disk: FullDisk) -> None:
    life, kept = life_with_a_snapshot(disk)
    disk.name, disk.error, disk.kinds = "spare", NO_ROOM, {"sync"}
    Spares(life.node, InlineDisk(), life.said.append)
    while not life.failures:
        fill_once(life, kept)
    assert "No space left on device" in str(life.failures[0])


def test_a_snapshot_that_cannot_be_read_for_another_node_ends_its_store(disk: FullDisk) -> None:
    life, _ = life_with_a_snapshot(disk)
    store = life.node.directory.snapshot
    sent = SentSnapshot(store)
    disk.read_fault = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageFailed, match="Input/output error"):
        sent.read(0, 10)
    disk.read_fault = None
    with pytest.raises(StorageFailed, match="Input/output error"):
        store.writer()


def test_after_an_attempt_that_failed_the_next_waits_for_room(disk: FullDisk) -> None:
    life, kept = life_with_a_snapshot(disk)
    disk.error, life.room = NO_ROOM, 0
    fill(life, kept)
    for _ in range(10):
        life.pass_time(REST_SECONDS)
    assert disk.attempts == 1  # it looked, and wrote nothing
    disk.error, life.room = None, 2**20
    life.pass_time(REST_SECONDS)
    assert life.said[-1].startswith("snapshot at entry")


def test_pages_of_a_snapshot_that_found_no_room_are_whole_and_go_with_the_next(
    disk: FullDisk,
) -> None:
    queue = QueueName("paged")
    life = Life(disk)
    life.create(queue, Policy(implementation=Implementation.PAGED))
    kept = [bytes([n]) * 5000 for n in range(6)]
    disk.error = NO_ROOM
    for payload in kept:
        life.enqueue(payload, queue)
        life.run_slices()
    assert disk.attempts == 1
    assert life.failures == []
    again = Life(MemoryFiles(disk.image()), snapshot_bytes=2**30)
    assert again.payloads(queue) == kept
    disk.error = None
    life.pass_time(REST_SECONDS)
    assert life.said[-1].startswith("snapshot at entry")
    assert Life(MemoryFiles(disk.image()), snapshot_bytes=2**30).payloads(queue) == kept


# --- one that a leader sends ---


class Arriving:
    """A snapshot of some MiB, and where it is to arrive."""

    def __init__(self) -> None:
        sender = MemoryFiles()
        source = Life(sender, snapshot_bytes=2**30)
        for n in range(3):
            source.enqueue(bytes([n]) * 2**20)
        source.snapshots.begin()
        source.run_slices()
        point = source.node.directory.snapshot.point
        assert point is not None
        self.snapshot = Snapshot(point.index + 1, point.term, Configuration(voters=(1,)))
        self.point = point
        self.sent = SentSnapshot(source.node.directory.snapshot)
        self.disk = FullDisk()
        self.directory = NodeDirectory(self.disk, ROOT, limits=LIMITS)
        self.failures: list[BaseException] = []
        self.receipt = SnapshotReceipt(self.directory, InlineDisk(), self.failures.append)
        self.now = 0.0
        self.said: list[str] = []
        self.receipt.shortage = Shortage(lambda: self.now, say=self.said.append)

    def offer(self) -> int | None:
        return self.receipt.offset(self.snapshot, self.sent.size, self.sent.checksum)

    def send(self) -> bool:
        offset = 0
        while offset < self.sent.size:
            data = self.sent.read(offset, 2**20)
            if not self.receipt.write(offset, data):
                return False
            offset += len(data)
        return True

    def finish(self) -> list[bool]:
        heard: list[bool] = []
        self.receipt.finish(heard.append)
        return heard


def test_a_snapshot_that_arrives_without_room_is_given_up_and_taken_later() -> None:
    arriving = Arriving()
    arriving.disk.error = NO_ROOM
    assert arriving.offer() == 0
    assert not arriving.send()
    assert arriving.disk.siblings() == []
    assert arriving.offer() is None  # not at once again
    assert arriving.disk.attempts == 1
    arriving.now += REST_SECONDS
    assert arriving.offer() == 0
    assert not arriving.send()
    assert len(arriving.said) == 1
    arriving.disk.error = None
    arriving.now += 2 * REST_SECONDS
    assert arriving.offer() == 0
    assert arriving.send()
    assert arriving.finish() == [True]
    arriving.receipt.install(arriving.point)
    assert arriving.directory.snapshot.point == arriving.point
    assert arriving.failures == []


def test_the_last_bytes_of_a_snapshot_that_arrives_may_find_no_room() -> None:
    arriving = Arriving()
    assert arriving.offer() == 0
    assert arriving.send()
    arriving.disk.error = NO_ROOM
    assert arriving.finish() == [False]
    assert arriving.disk.siblings() == []
    assert arriving.failures == []
    assert arriving.offer() is None


def test_no_name_for_a_snapshot_that_arrives_is_no_room_either() -> None:
    arriving = Arriving()
    arriving.disk.error, arriving.disk.kinds = NO_ROOM, {"create"}
    assert arriving.offer() is None
    assert arriving.failures == []
    assert len(arriving.said) == 1


@pytest.mark.parametrize("kinds", [{"sync"}, {"truncate"}])
def test_a_sync_without_room_of_a_snapshot_that_arrives_stops_the_node(kinds: set[str]) -> None:
    arriving = Arriving()
    arriving.disk.error, arriving.disk.kinds = NO_ROOM, kinds
    if arriving.offer() is not None:
        arriving.send()
        arriving.finish()
    assert len(arriving.failures) == 1


# --- the pace ---


def test_attempts_become_rare_and_a_success_forgets_them() -> None:
    now, said = 0.0, list[str]()
    shortage = Shortage(lambda: now, say=said.append)
    rests = []
    for _ in range(10):
        shortage.begin(NoRoom("full"))
        begun = now
        while shortage.is_resting:
            now += REST_SECONDS
        rests.append(now - begun)
        assert shortage.allows(2**40)
    assert rests[:3] == [REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS]
    assert rests[-1] == REST_SECONDS_MAX
    assert len(said) == 1
    shortage.end()
    shortage.begin(NoRoom("full"))
    assert len(said) == 2
    now += REST_SECONDS
    assert not shortage.is_resting


def test_the_first_attempt_asks_nobody_for_room() -> None:
    assert Shortage(lambda: 0.0, room=lambda: 0).allows(1)
