"""RabbitMQ, three nodes: a quorum queue with a member on each of them, publisher confirms."""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path

from peers.base import (
    START_SECONDS_MAX,
    Refused,
    Server,
    Unavailable,
    Wire,
    free_port,
    free_ports,
    give_away,
    unprivileged,
)
from peers.group import NODES, Group
from peers.rabbitmq import Rabbitmq, RabbitmqWire, long, short

COOKIE = "bench"
MEMBERS_SECONDS_MAX = 10.0


def _text(name: str, words: str) -> bytes:
    return short(name) + b"S" + long(words.encode())


class QuorumWire(RabbitmqWire):
    arguments = (
        _text("x-queue-type", "quorum")
        + _text("x-queue-leader-locator", "client-local")
        + short("x-quorum-initial-group-size")
        + b"I"
        + struct.pack(">i", NODES)
    )


class RabbitmqGroup(Group, Rabbitmq):
    name = "RabbitMQ, quorum queue"
    promise = (
        "quorum queue of three members, its leader on the node that we connect to; confirms; prefetch 100, acknowledged"
        " together (RabbitMQ does not answer acknowledgements)"
    )

    def prepare(self, home: Path) -> None:
        """Give the nodes one secret, before three of them make one each."""
        cookie = home / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        give_away(cookie)
        words = ["cluster_formation.peer_discovery_backend = classic_config"]
        words += [
            f"cluster_formation.classic_config.nodes.{node + 1} = {_name(node)}@localhost"
            for node in range(NODES)
        ]
        (home / "rabbitmq.conf").write_text("\n".join(words) + "\n")

    def plan(self, home: Path) -> None:
        self.client_ports = free_ports(NODES)
        names = free_port()
        self._environments = [
            self.environment(home, names=names, node=_name(node), port=port)
            for node, port in enumerate(self.client_ports)
        ]

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        super().launch(server, home, sync=sync)
        self._wait_joined()

    def launch_node(self, node: int) -> None:
        env = self._environments[node]
        if not self.running.processes:
            self.launch_names(self.running, self.home, env)
        self.launch_one(self.running, self.home, env)

    def _wait_joined(self) -> None:
        """Wait until all nodes are in one cluster: a queue that is made before that has fewer members."""
        owner = unprivileged()
        deadline = time.perf_counter() + START_SECONDS_MAX
        while True:
            asked = subprocess.run(
                ["sh", str(self.tool("rabbitmqctl")), "await_online_nodes", str(NODES)],
                cwd=self.home,
                env=self._environments[0],
                capture_output=True,
                text=True,
                check=False,
                user=owner and owner[0],
                group=owner and owner[1],
                extra_groups=owner and [],
            )
            if not asked.returncode:
                return
            if time.perf_counter() > deadline:
                raise Unavailable(f"the nodes do not come together: {asked.stderr.strip()[-500:]}")

    def connect(self, queue: str) -> Wire:
        return self.connect_to(self.leading, queue)

    def connect_to(self, node: int, queue: str) -> Wire:
        """Return a connection to one node, which leads the queue if that is new."""
        wire = QuorumWire(self.client_ports[node], queue)
        deadline = time.perf_counter() + MEMBERS_SECONDS_MAX
        while self._members(queue) < NODES:
            if time.perf_counter() > deadline:
                wire.close()
                raise Refused(f"the queue has fewer than {NODES} members")
            time.sleep(0.01)
        return wire

    def _members(self, queue: str) -> int:
        """Return how many members a queue has, by what each of them keeps of its settings on the disk."""
        settings = self.home.glob("mnesia/*/quorum/*/*/config")
        return sum(f"'{queue}'" in path.read_text(errors="replace") for path in settings)

    def wait_whole(self, queue: str) -> None:
        del queue  # Each kill has a new one.
        self._wait_joined()


def _name(node: int) -> str:
    return f"bench{node + 1}"
