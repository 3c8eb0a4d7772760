"""A group of real nodes on disks in memory: messages are carried by hand, time passes when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from penstock.errors import PenstockError
from penstock.protocol import version2 as v2
from penstock.raft.messages import Kind, Message
from penstock.server.caller import SinglesCaller
from penstock.server.disk import InlineDisk
from penstock.server.group import Group
from penstock.server.node import Node
from penstock.server.settings import GroupSettings, Settings
from penstock.server.snapshots import Snapshots
from penstock.storage.log import LogLimits
from penstock.testing.disk import MemoryFiles

SMALL = LogLimits(soft=4096, hard=8192, growth=4096)


class Asker(SinglesCaller):
    """Somebody who asks a node, and keeps what was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[int, Any]] = []

    @property
    def is_full(self) -> bool:
        return False

    def answer(self, number: int, answer: v2.Answer) -> None:
        self.answers.append((number, answer))

    def answer_singles(self, numbers: Sequence[int], first: int) -> None:
        self.answers += [(number, first) for number in numbers]

    def flush(self) -> None:
        pass

    @property
    def last(self) -> Any:
        return self.answers[-1][1]


class GroupRig:
    """Nodes by number; those in ``cut`` hear nobody and are not heard, those that are ``down`` do not run."""

    def __init__(self, count: int = 3, *, seed: int = 1, **group: Any) -> None:
        self.peers = {number: f"host{number}:5000" for number in range(1, count + 1)}
        self.files = {number: MemoryFiles() for number in self.peers}
        self.nodes: dict[int, Node] = {}
        self.failures: dict[int, PenstockError] = {}
        self.cut: set[int] = set()
        self.now = 1_000_000
        self._group = group
        self._random = Random(seed)
        self._queue: deque[Message] = deque()
        self._slices: list[Callable[[], None]] = []
        for number in self.peers:
            self.start(number)
        self.introduce()

    def start(self, number: int, **group: Any) -> Node:
        """Start a node with the disk as it is."""
        settings = {"peers": self.peers, "client_address": f"client{number}:2602"}
        place = GroupSettings(**{"node": number, **settings, **self._group, **group})
        node = Node(
            Settings(data=Path("/node"), group=place, snapshot_bytes=2**14),
            InlineDisk(),
            on_failure=lambda error: self.failures.__setitem__(number, error),
            clock=lambda: self.now,
            steady=lambda: self.now,
            files=self.files.setdefault(number, MemoryFiles()),
            draw=self._random.randrange,
            log_limits=SMALL,
        )
        Snapshots(node, InlineDisk(), lambda _, call: self._slices.append(call), lambda _: None)
        self.replica(node).transmit = self._queue.append
        self.nodes[number] = node
        return node

    def group(self, number: int) -> Group:
        group = self.nodes[number].group
        assert group is not None
        return group

    def replica(self, node: Node) -> Any:
        assert node.group is not None
        return node.group.replica

    def introduce(self) -> None:
        """Let all who can hear each other shake hands."""
        for one in self.up:
            for other in self.up:
                if one != other:
                    own, told = self.group(one), self.group(other).membership
                    own.hear(other, told.incarnation, told.known(one))

    @property
    def up(self) -> list[int]:
        return [number for number in sorted(self.nodes) if number not in self.cut]

    def stop(self, number: int) -> None:
        """Let a node die; what is on its way to it is lost."""
        self.nodes.pop(number).close()

    # --- time and messages ---

    def carry(self) -> None:
        """Carry all messages, and those that they lead to."""
        while self._queue:
            message = self._queue.popleft()
            if message.to in self.up and message.sender not in self.cut:
                self._deliver(message)
        while self._slices:
            self._slices.pop(0)()

    def _deliver(self, message: Message) -> None:
        if message.kind is Kind.SNAPSHOT:
            self._carry_snapshot(message)
        else:
            self.replica(self.nodes[message.to]).step(message)

    def _carry_snapshot(self, message: Message) -> None:
        snapshot = message.snapshot
        assert snapshot is not None
        sender = self.replica(self.nodes[message.sender])
        receiver = self.replica(self.nodes[message.to])
        sent = sender.offers.open(snapshot)
        if sent is None:
            sender.snapshot_sent(message.to, False)
            return
        offset = receiver.receipt.offset(snapshot, sent.size, sent.checksum)
        while offset < sent.size:
            data = sent.read(offset, 1000)
            receiver.receipt.write(offset, data)
            offset += len(data)
        sent.close()

        def then(ok: bool) -> None:
            assert ok
            receiver.step(message)
            sender.snapshot_sent(message.to, True)

        receiver.receipt.finish(then)

    def tick(self, count: int = 1) -> None:
        """Let time pass for all, and carry what they say."""
        for _ in range(count):
            self.now += 100
            for number in list(self.nodes):
                if number in self.nodes and number not in self.failures:
                    self.group(number).tick()
                    self.nodes[number].broker.tick()
                    self.carry()

    def tick_until(self, condition: Callable[[], Any], *, ticks_max: int = 400) -> None:
        for _ in range(ticks_max):
            if condition():
                return
            self.tick()
        raise AssertionError(f"not within {ticks_max} ticks")

    @property
    def leaders(self) -> list[int]:
        return [number for number in self.nodes if self.nodes[number].replica.is_leading]

    def elect(self) -> int:
        """Wait until one of those that hear each other leads, and return it."""
        self.tick_until(lambda: [one for one in self.leaders if one not in self.cut])
        return next(one for one in self.leaders if one not in self.cut)

    # --- asking ---

    def ask(
        self, number: int, what: Callable[[Any, Asker], None], asker: Asker | None = None
    ) -> Asker:
        """Ask a node's broker something, as a session does, and carry what follows."""
        asker = asker or Asker()
        node = self.nodes[number]
        refusal = node.broker.leader_refusal()
        if refusal is not None:
            asker.answer(0, refusal)
            return asker
        what(node.broker, asker)
        self.settle(number)
        return asker

    def send(self, number: int, what: str, request: Any, asker: Asker | None = None) -> Asker:
        """Ask a node's broker by the name of what is asked."""
        return self.ask(number, lambda broker, who: getattr(broker, what)(who, 3, request), asker)

    def settle(self, number: int) -> None:
        node = self.nodes[number]
        node.broker.serve()
        node.replica.advance()
        self.carry()
        node.broker.flush()

    def enqueue(self, number: int, *payloads: bytes, queue: Any = "", key: int = 0) -> Asker:
        request = v2.Enqueue(queue, (key,) * len(payloads), payloads)
        return self.ask(number, lambda broker, asker: broker.enqueue(asker, 1, request))

    def dequeue(self, number: int, count: int = 1, *, asker: Asker | None = None) -> Asker:
        request = v2.Dequeue("", count, 0, 0, 0)  # type: ignore[arg-type]
        return self.ask(number, lambda broker, who: broker.dequeue(who, 2, request), asker)

    def payloads(self, number: int) -> list[bytes]:
        """Return what the default queue holds, in the order of ids."""
        queue = self.nodes[number].replica.state.by_name[""]  # type: ignore[index]
        return [payload for _, _, payload in queue.tasks]

    def agree(self) -> None:
        """Wait until all that run have applied the same, and check that they hold the same."""

        def same() -> bool:
            return len({self.nodes[one].replica.applied for one in self.up}) == 1

        self.tick_until(same)
        digests = {self.nodes[one].state_digest() for one in self.up}
        assert len(digests) == 1
        assert not self.failures
