"""Real nodes, three if not said otherwise: started, killed, paused, started again, and heard. Loopback, or places that a rig has made.

Nothing here sleeps for a condition: nodes are asked, or their log lines are waited for.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final, Self

from penstock.client.blocking import Client, connect
from penstock.errors import PenstockError
from penstock.protocol.version2 import ClusterInfo
from support.group_processes import wait_until
from support.node_process import NodeProcess

NODES: Final = (1, 2, 3)
PORTS: Final = range(20_000, 32_000)
"""Below those that the system gives to whoever connects: a node that is down must not lose its own."""

SILENCE_SECONDS: Final = 1.0
"""How long a client of a rig waits for a node that says nothing before it turns to another one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node lives."""

    client: str  # HOST:PORT
    peer: str
    enter: Callable[[], None] | None = None  # runs in the node's process before it starts
    data: Path | None = None  # its directory, if not beside those of the others


def loopback_places(random: Random) -> dict[int, Place]:
    """Return a place on loopback for each node, with ports that nobody has."""
    ports: list[int] = []
    while len(ports) < 2 * len(NODES):
        port = random.choice(PORTS)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    pairs = zip(NODES, ports[::2], ports[1::2], strict=True)
    return {node: Place(f"127.0.0.1:{one}", f"127.0.0.1:{two}") for node, one, two in pairs}


def heard(row: Mapping[str, Any]) -> float:
    """Return when a node wrote a line of its log, on this process's monotonic clock."""
    stamp = datetime.strptime(row["time"], "%Y-%m-%dT%H:%M:%S.%f%z")
    return stamp.timestamp() - _AHEAD


_AHEAD: Final = time.time() - time.monotonic()


def _elections(node: int, life: NodeProcess) -> list[tuple[float, int, int]]:
    return [(heard(row), node, row["term"]) for row in life.said("role") if row["role"] == "leader"]


class NodeEnded(Exception):
    """A node that should run does not."""


class Cluster:
    """Nodes 1 to 3, or as many as there are places, each in a directory of its own, over all their lives."""

    def __init__(
        self, data: Path, places: Mapping[int, Place], *flags: str | float, before: str = ""
    ) -> None:
        """``before`` is Python that runs in each node's process ahead of it."""
        self._data = data
        self._places = places
        self._flags = flags
        self._before = before
        self.nodes = tuple(sorted(places))
        self.lives: dict[int, list[NodeProcess]] = {node: [] for node in self.nodes}
        # Of lives that have ended: who waits for a leader must not read hundreds of logs each time.
        self._past_elections: list[tuple[float, int, int]] = []
        self.paused: set[int] = set()
        self.expected_failures: set[int] = set()  # process ids of nodes that a rig let fail

    # --- one node ---

    def start(self, node: int) -> NodeProcess:
        """Start a node, new or again."""
        assert not self.is_running(node), f"node {node} runs"
        if self.lives[node]:
            self.life(node).wait()  # until all that it said was heard
            self._past_elections += _elections(node, self.life(node))
        place = self._places[node]
        peers = ",".join(f"{each}={self._places[each].peer}" for each in self.nodes)
        life = NodeProcess(
            self.data(node),
            *("--node", node, "--peers", peers, *self._flags),
            listen=place.client,
            before=self._before,
            prepare=place.enter,
        )
        self.lives[node].append(life)
        return life

    def peer_address(self, node: int) -> tuple[str, int]:
        """Return where a node listens for its peers."""
        host, port = self._places[node].peer.rsplit(":", 1)
        return host, int(port)

    def life(self, node: int) -> NodeProcess:
        return self.lives[node][-1]

    def data(self, node: int) -> Path:
        return self._places[node].data or self._data / f"node-{node}"

    def is_running(self, node: int) -> bool:
        return bool(self.lives[node]) and self.life(node).is_running

    @property
    def running(self) -> list[int]:
        return [node for node in self.nodes if self.is_running(node)]

    def kill(self, node: int) -> None:
        self.life(node).kill()
        self.paused.discard(node)

    def pause(self, node: int) -> None:
        self.life(node).send_signal(signal.SIGSTOP)
        self.paused.add(node)

    def resume(self, node: int) -> None:
        self.life(node).send_signal(signal.SIGCONT)
        self.paused.discard(node)

    def wipe(self, node: int) -> None:
        """Remove all that a node has; it must be down."""
        assert not self.is_running(node)
        for entry in self.data(node).iterdir():  # the directory itself may be a mount
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    # --- all of them ---

    def start_all(self) -> None:
        for node in self.nodes:
            self.start(node)
        for node in self.nodes:
            self.life(node).wait_listening()
        self.wait_whole()

    def stop_all(self) -> None:
        """Ask all that run to stop; each must end as asked."""
        for node in self.running:
            code = self.life(node).stop()
            assert code == 0, f"node {node} ended with {code}: {self.life(node).events[-3:]}"

    @property
    def addresses(self) -> str:
        return ",".join(self._places[node].client for node in self.nodes)

    def client(
        self, *, retry: float = 0.0, timeout: float = SILENCE_SECONDS, by: Random | None = None
    ) -> Client:
        """Return a client of the group; ``by`` draws which node it asks first."""
        addresses = self.addresses
        if by is not None:
            texts = addresses.split(",")
            by.shuffle(texts)
            addresses = ",".join(texts)
        return connect(addresses, retry=retry, timeout=timeout)

    def asked(self, node: int) -> ClusterInfo | None:
        """Return the group as one node sees it, ``None`` if it does not say."""
        try:
            with connect(self._places[node].client, retry=0.0, timeout=SILENCE_SECONDS) as client:
                return client.cluster(own=True)
        except PenstockError:
            return None

    def leader(self) -> int | None:
        """Return who leads by what the nodes have said, without asking: for a blow at once."""
        said = [(self._last_role(node), node) for node in self.running if node not in self.paused]
        leading = [(role["term"], node) for role, node in said if role.get("role") == "leader"]
        return max(leading)[1] if leading else None

    def _last_role(self, node: int) -> dict[str, Any]:
        roles = self.life(node).said("role")
        return roles[-1] if roles else {}

    def wait_leader(self) -> int:
        wait_until(lambda: self.leader() is not None, "a node leads")
        leader = self.leader()
        return self.wait_leader() if leader is None else leader

    def wait_new_leader(self, *, since: float, without: int) -> float:
        """Wait until another node than ``without`` has said that it leads; return the seconds since ``since``."""
        found: list[float] = []

        def has_come() -> bool:
            found[:] = [
                time for time, node, _ in self.elections() if time > since and node != without
            ]
            return bool(found)

        wait_until(has_come, f"another node than {without} leads")
        return found[0] - since

    def elections(self) -> list[tuple[float, int, int]]:
        """Return (when, node, term) of every leader so far, in order."""
        present = [
            election
            for node, lives in self.lives.items()
            if lives
            for election in _elections(node, lives[-1])
        ]
        return sorted(self._past_elections + present)

    def leading(self) -> ClusterInfo | None:
        """Return what the leader says, ``None`` while nobody leads and answers."""
        for node in self.running:
            info = None if node in self.paused else self.asked(node)
            if info is not None and info.is_leading:
                return info
        return None

    def wait_whole(self) -> ClusterInfo:
        """Wait until all nodes are voters that have what the leader had when this began, and keep up."""
        goal: list[int] = []
        found: list[ClusterInfo] = []

        def is_whole() -> bool:
            self._expect_all_running()
            info = self.leading()
            if info is None:
                return False
            found[:] = [info]
            if not goal:
                goal.append(info.last)
            others = [each for each in info.members if each.node != info.node]
            return (
                not info.is_joint
                and [each.node for each in info.members] == list(self.nodes)
                and all(each.standing == "voter" for each in info.members)
                and all(e.pace == "replicate" and (e.match or 0) >= goal[0] for e in others)
            )

        try:
            wait_until(is_whole, f"{len(self.nodes)} voters that have everything")
        except AssertionError as error:
            seen = [str(self.asked(node)) for node in self.nodes]
            raise AssertionError("\n".join([f"{error}; goal {goal}", *seen])) from None
        return found[0]

    def _expect_all_running(self) -> None:
        for node in self.nodes:
            if not self.is_running(node):
                life = self.life(node)
                last = life.events[-1:] + life.said("failed")
                raise NodeEnded(
                    f"node {node} ended by itself with {life.wait()}: {last} {life.words}"
                )

    def wait_equal(self) -> int:
        """Wait until all have applied the same entries, which needs an end of the load; return the last index."""
        found: list[int] = []

        def is_equal() -> bool:
            infos = [self.asked(node) for node in self.nodes]
            found[:] = [-1 if info is None else info.applied for info in infos]
            lasts = {None if info is None else info.last for info in infos}
            return len(set(found) | lasts) == 1

        wait_until(is_equal, "all nodes have applied the same")
        return found[0]

    # --- what they said ---

    def problems(self) -> list[str]:
        """Return what no node should ever say."""
        found: list[str] = []
        for node, lives in self.lives.items():
            for life in lives:
                found += [f"node {node} said: {row}" for row in life.said("bug")]
                if life.pid not in self.expected_failures:
                    found += [f"node {node} said: {row}" for row in life.said("failed")]
                    found += [f"node {node} said: {line}" for line in life.words]
        return found

    def keep_logs(self) -> None:
        """Write what each node has said beside its directory."""
        for node, lives in self.lives.items():
            lines = [json.dumps(row) for life in lives for row in life.events]
            lines += [line for life in lives for line in life.words]
            (self._data / f"node-{node}.log").write_text("\n".join(lines) + "\n")

    def count(self, event: str) -> int:
        return sum(len(life.said(event)) for lives in self.lives.values() for life in lives)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lives in self.lives.values():
            for life in lives:
                life.kill()  # harmless if it has ended; it ends a paused one too


@contextlib.contextmanager
def cluster(
    data: Path, places: Mapping[int, Place], *flags: str | float, before: str = ""
) -> Iterator[Cluster]:
    """Run nodes that have found a leader, and end them whatever happens."""
    with Cluster(data, places, *flags, before=before) as made:
        made.start_all()
        yield made
