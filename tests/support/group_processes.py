"""A group of nodes, each in a process of its own, on ports that were free."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from penstock.client.blocking import Client, connect
from penstock.errors import ConnectionFailed
from penstock.protocol.version2 import ClusterInfo, ClusterMember
from penstock.server.membership import FILE_NAME
from support.node_process import PATIENCE_SECONDS, NodeProcess

LOOK_SECONDS: Final = 0.02
CHECKSUM_DIGITS: Final = 8  # at the start of a node's file about its group


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has at this moment."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in held]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look until something is so; what other processes do is not told to us in any other way."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(LOOK_SECONDS)


class GroupProcesses:
    """Nodes 1 to ``count``; more can be started to join."""

    def __init__(self, data: Path, count: int = 3, *flags: str | float) -> None:
        self._data = data
        self._flags = flags
        self._ports: dict[int, tuple[int, int]] = {}  # for clients, for peers
        self.nodes: dict[int, NodeProcess] = {}
        self._first = range(1, count + 1)
        for number in self._first:
            self._ports[number] = self._choose_ports()
        for number in self._first:
            self.start(number)

    def _choose_ports(self) -> tuple[int, int]:
        used = {port for both in self._ports.values() for port in both}
        while True:
            first, second = free_ports(2)
            if not {first, second} & used:
                return first, second

    def start(
        self, number: int, *, is_joining: bool = False, known: Sequence[int] | None = None
    ) -> NodeProcess:
        """Start a node, new or again. ``known``: whose addresses it is given besides its own, else those of the first."""
        if number not in self._ports:
            self._ports[number] = self._choose_ports()
        members = sorted({*(self._first if known is None else known), number})
        peers = ",".join(f"{each}={self.peer_address(each)}" for each in members)
        flags = ["--node", number, "--peers", peers, *self._flags]
        self.nodes[number] = NodeProcess(
            self._data / f"node-{number}",
            *flags,
            *(["--join"] if is_joining else []),
            listen=self.address(number),
        )
        return self.nodes[number]

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self._ports[number][0]}"

    def peer_address(self, number: int) -> str:
        return f"127.0.0.1:{self._ports[number][1]}"

    def data(self, number: int) -> Path:
        return self._data / f"node-{number}"

    @property
    def connect(self) -> str:
        """The addresses of all, for a client."""
        return ",".join(self.address(number) for number in self._ports)

    def client(self, *, retry: float = PATIENCE_SECONDS, timeout: float = 10.0) -> Client:
        return connect(self.connect, retry=retry, timeout=timeout)

    def wait_led(self) -> int:
        """Wait until a node leads, and return its number."""
        found: list[int] = []

        def is_led() -> bool:
            with contextlib.suppress(ConnectionFailed), self.client(retry=0.0) as client:
                info = client.cluster()
                if info.is_leading:
                    found.append(info.node)
            return bool(found)

        wait_until(is_led, "a node leads")
        return found[0]

    def wait_caught_up(self, client: Client, number: int) -> None:
        """Wait until a node has all that the leader has."""

        def has_all() -> bool:
            found = member(client.cluster(), number)
            return found is not None and found.pace in (None, "replicate") and found.lag == 0

        wait_until(has_all, f"node {number} has caught up")

    def stop_all(self) -> dict[int, int]:
        """Ask all nodes to stop, and return their exit codes."""
        running = {number: node for number, node in self.nodes.items() if node.is_running}
        return {number: node.stop() for number, node in running.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.kill()


def incarnation_of(data: Path) -> str:
    """Return the incarnation in a node's directory; no node tells it to clients."""
    file = data / "data" / FILE_NAME
    return str(json.loads(file.read_bytes()[CHECKSUM_DIGITS + 1 :])["incarnation"])


def member(info: ClusterInfo, number: int) -> ClusterMember | None:
    return next((each for each in info.members if each.node == number), None)


@contextlib.contextmanager
def group_processes(data: Path, count: int = 3, *flags: str | float) -> Iterator[GroupProcesses]:
    """Run a group whose nodes have found a leader."""
    with GroupProcesses(data, count, *flags) as group:
        for node in group.nodes.values():
            node.wait_listening()
        group.wait_led()
        yield group
