"""A real node that stays, a spool on a recording disk that is opened again and again, and ways to break things."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock.client.blocking import Client
from penstock.client.transport import Transport
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.beats.task_event import encode_tasks
from penstock.model import QueueName
from penstock.server.embedded import EmbeddedNode
from penstock.spooling.forwarder import PASSING, Forwarder
from penstock.spooling.refused import DIRECTORY_NAME
from penstock.spooling.task_reader import read_task
from penstock.storage.spool import Spool, SpoolSettings
from penstock.testing.disk import MemoryFiles

ROOT = Path("/spool")
SMALL = SpoolSettings(max_size=2**20, segment_size=4096)
QUEUES = ("orders", "mail", "few")


class Crash(BaseException):
    """The process ended here."""


@dataclass
class Steps:
    """Counts what happens, and ends everything at one of these steps."""

    last: int | None = None
    count: int = 0

    def step(self, *_: object) -> None:
        self.count += 1
        if self.last is not None and self.count >= self.last:
            raise Crash


class CutTransport:
    """A way to the node that breaks at its n-th message: before the node has it, or before the answer is back."""

    def __init__(self, inner: Transport, cuts: Cuts) -> None:
        self._inner = inner
        self._cuts = cuts

    def send(self, data: bytes) -> None:
        self._cuts.sent += 1
        cut = self._cuts.at.pop(self._cuts.sent, None)
        if cut != "before":
            self._inner.send(data)
        if cut is not None:
            raise ConnectionResetError("cut")

    def receive(self, timeout: float | None) -> bytes:
        return self._inner.receive(timeout)

    def close(self) -> None:
        self._inner.close()


@dataclass
class Cuts:
    at: dict[int, str] = field(default_factory=dict)
    sent: int = 0


class StepClient(Client):
    """A client that takes part in the count."""

    steps = Steps()

    def enqueue_numbered(self, requests: Any) -> int:
        self.steps.step("before it is sent")
        count = super().enqueue_numbered(requests)
        self.steps.step("after the answer")
        return count


class World:
    """A node that stays, and a spool that is opened again and again."""

    def __init__(self, node: EmbeddedNode, suffix: str = "") -> None:
        """``suffix``: of the names of the queues that are made, so that many worlds can share a node."""
        self.node = node
        self.suffix = suffix
        self.observer = Client(self.node.connect)
        self.observer.create_queue("orders" + suffix)
        self.observer.create_queue("mail" + suffix)
        self.observer.create_queue("few" + suffix, keys=(0, 4))
        self.files = MemoryFiles()
        self.told: list[str] = []
        self.cuts = Cuts()
        self.steps = Steps()

    def close(self) -> None:
        self.observer.close()

    def connect(self) -> Client:
        client = StepClient(lambda: CutTransport(self.node.connect(), self.cuts), retry=0.0)
        client.steps = self.steps
        return client

    def open(self, settings: SpoolSettings = SMALL) -> Spool:
        return Spool(ROOT, settings, files=self.files, tell=self.told.append)

    def forwarder(self, spool: Spool, *, others: str | None = None) -> Forwarder:
        return Forwarder(
            spool,
            self.connect,
            others=None if others is None else QueueName(others),
            files=self.files,
            tell=self.told.append,
        )

    def held(self, queue: str) -> list[tuple[int, bytes]]:
        """Return what a queue holds, in order of delivery; nothing is taken out for good."""
        name = queue + self.suffix
        count = self.observer.stat(name).count
        return [(t.key, t.payload) for t in self.observer.peek(name, max(1, count))]

    def refused(self) -> list[bytes]:
        directory = ROOT / DIRECTORY_NAME
        if not self.files.is_directory(directory):
            return []
        with Spool(directory, SMALL, files=self.files) as spool:
            found = []
            while (batch := spool.read(1000, timeout=0)) is not None:
                found += batch.payloads
            spool.rewind()
        tasks = [read_task(payload, PayloadFormat.CBOR) for payload in found]
        return [task.task.payload for task in tasks if task is not None]


def run_empty(forwarder: Forwarder, *, tries: int = 1) -> int:
    """Forward until nothing is left, as often as it is refused for a while; return how often it was."""
    failures = 0
    while True:
        try:
            if forwarder.forward() == 0:
                return failures
        except PASSING:
            failures += 1
            assert failures <= tries


Told = list[tuple[str, int, bytes]]


def some_tasks(count: int = 160, *, seed: int = 7) -> Told:
    """Return tasks of several queues and keys; a few have keys that their queue refuses."""
    random = Random(seed)
    tasks = []
    for number in range(count):
        queue = random.choice(QUEUES)
        key = random.choice((0, 1, 1, 9 if random.random() < 0.2 else 2))
        tasks.append((queue, key, b"%06d" % number + bytes(random.randrange(60))))
    return tasks


def publish(spool: Spool, tasks: Told, *, timestamp: int = 10**18) -> None:
    for queue, key, payload in tasks:
        spool.publish(encode_tasks(queue, [payload], [key], timestamp=timestamp))


def check(world: World, tasks: Told, *, refused_once: bool = True) -> None:
    """All tasks are there once, in order within their keys, and those that the node refuses are set aside."""
    for queue in QUEUES:
        expected = [
            (key, payload)
            for name, key, payload in tasks
            if name == queue and not (queue == "few" and key > 4)
        ]
        assert world.held(queue) == sorted(expected, key=lambda task: task[0])
    bad = [payload for queue, key, payload in tasks if queue == "few" and key > 4]
    found = world.refused()
    assert sorted(set(found)) == sorted(bad)
    if refused_once:
        assert found == bad
