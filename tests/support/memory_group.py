"""Nodes of a group in one thread, without sockets and clocks: their messages are handed over when a test says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from penstock.protocol import version1 as v1
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader
from penstock.raft.messages import Message
from penstock.raft.refusals import BadMessage
from penstock.server.disk import InlineDisk
from penstock.server.node import Node
from penstock.server.session1 import Session1
from penstock.server.session2 import Session2
from penstock.server.settings import GroupSettings, Settings

TICKS_MAX = 400
MESSAGES_MAX = 100_000


class MemoryGroup:
    """Nodes 1 to ``count``, of which those in ``started`` run; clients reach node n at ``n<n>:2602``."""

    def __init__(
        self, data: Path, count: int = 3, *, seed: int = 1, started: Collection[int] | None = None
    ) -> None:
        self.peers = {number: f"n{number}:2702" for number in range(1, count + 1)}
        self.data = data
        self.nodes: dict[int, Node] = {}
        self.cut: set[int] = set()  # nodes that nobody hears, and that hear nobody
        self._mail: deque[Message] = deque()
        self._chance = random.Random(seed)
        for number in self.peers if started is None else started:
            self.start(number)

    def start(self, number: int, *, is_joining: bool = False) -> None:
        """Start a node, and let it and the others know each other."""
        peers = self.peers if not is_joining else self.peers | {number: f"n{number}:2702"}
        settings = Settings(
            data=self.data / str(number),
            group=GroupSettings(
                node=number,
                peers=peers,
                is_joining=is_joining,
                client_address=f"n{number}:2602",
            ),
        )
        node = Node(settings, InlineDisk(), on_failure=_fail, draw=self._chance.randrange)
        self.nodes[number] = node
        node.replica.transmit = self._mail.append  # type: ignore[attr-defined]
        for other in self.nodes.values():
            if other is not node:
                _introduce(node, other)
                _introduce(other, node)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()

    # Time and messages.

    def tick(self, count: int = 1) -> None:
        """Let time pass, and deliver what is sent meanwhile."""
        for _ in range(count):
            for number, node in self.nodes.items():
                if number not in self.cut:
                    assert node.group is not None
                    node.group.tick()
                    node.replica.advance()
            self.deliver()

    def deliver(self) -> None:
        """Hand messages over until there are none."""
        for _ in range(MESSAGES_MAX):
            if not self._mail:
                break
            message = self._mail.popleft()
            if message.to in self.nodes and not {message.to, message.sender} & self.cut:
                node = self.nodes[message.to]
                with suppress(BadMessage):  # of one that was a member; a connection would end
                    node.replica.step(message)  # type: ignore[attr-defined]
                node.replica.advance()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Let time pass until something is so."""
        for _ in range(TICKS_MAX):
            if condition():
                return
            self.tick()
        raise AssertionError("this never came to be so")

    def leading(self, among: Collection[int] | None = None) -> int:
        """Return the node that leads; 0 if none does, or more than one."""
        numbers = self.nodes if among is None else among
        found = [number for number in numbers if self.nodes[number].replica.is_leading]
        return found[0] if len(found) == 1 else 0

    def elect(self, number: int | None = None) -> int:
        """Wait until a node leads that the others know, this one if it is named, and return it."""
        self.wait(lambda: bool(self.leading()) and all(map(self._agrees, self.nodes.values())))
        leader = self.leading()
        if number is not None and leader != number:
            reasons: list[str | None] = []
            group = self.nodes[leader].group
            assert group is not None
            group.transfer_leadership(number, reasons.append)
            self.wait(lambda: bool(reasons) and self.leading() == number)
            assert reasons == [None]
            self.tick(2)
        return self.leading()

    def _agrees(self, node: Node) -> bool:
        assert node.group is not None
        return node.group.status().leader == self.leading()

    # Callers.

    def caller2(self, number: int) -> Caller2:
        return Caller2(self, self.nodes[number])

    def caller1(self, number: int) -> Caller1:
        return Caller1(self, self.nodes[number])


class Caller2:
    """A connection of version 2, behind its greeting."""

    def __init__(self, group: MemoryGroup, node: Node) -> None:
        self._group = group
        self._node = node
        self._frames = FrameReader()
        self.answers: list[tuple[int, v2.Answer]] = []
        self.session = Session2(node.broker, self._take, node.group)
        self._last = 0

    def _take(self, data: bytes) -> None:
        for kind, number, body in self._frames.receive(data):
            self.answers.append((number, v2.decode_answer(kind, body)))

    def send(self, request: v2.Request) -> int:
        """Send a request and return its id; nothing is delivered between the nodes."""
        self._last += 1
        self.session.receive(v2.encode_request(request, self._last))
        _go_on(self._node)
        return self._last

    def ask(self, request: v2.Request) -> v2.Answer:
        """Send a request and return its answer, letting time pass as far as it needs."""
        number = self.send(request)
        self._group.deliver()
        self._group.wait(lambda: any(each[0] == number for each in self.answers))
        return self.answer(number)

    def answer(self, number: int) -> v2.Answer:
        (found,) = [answer for each, answer in self.answers if each == number]
        return found


class Caller1:
    """A connection of version 1, behind its greeting."""

    def __init__(self, group: MemoryGroup, node: Node) -> None:
        self._group = group
        self._node = node
        self._data = b""
        alone = v1.Cluster(addresses=("alone",), leader=0, node=0)
        self.session = Session1(node.broker, self._take, lambda: None, node=alone, group=node.group)

    def _take(self, data: bytes) -> None:
        self._data += data

    def send(self, request: v1.Request) -> None:
        self.session.receive(v1.encode_request(request))
        _go_on(self._node)

    def ask(self, request: v1.Request) -> v1.Response:
        """Send a request and return its answer."""
        self.send(request)
        self._group.deliver()
        self._group.wait(lambda: bool(self._data))
        return self.take()

    def take(self) -> v1.Response:
        found = v1.decode_response(self._data)
        assert found is not None
        self._data = self._data[found[1] :]
        return found[0]


def _go_on(node: Node) -> None:
    node.broker.serve()
    node.replica.advance()
    node.broker.flush()


def _introduce(node: Node, peer: Node) -> None:
    """Tell a node what the handshake with a peer would."""
    assert node.group is not None
    assert peer.group is not None
    number = peer.group.settings.node
    known_as = peer.group.membership.known(node.group.settings.node)
    node.group.membership.hear(number, peer.group.membership.incarnation, known_as)
    node.group.note_client_address(number, peer.group.settings.client_address)


def _fail(error: Exception) -> None:
    raise AssertionError(f"a disk failed: {error}")
