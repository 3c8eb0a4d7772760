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
            f"cluster_formation.classic_config.nodes.{number} = {_name(number)}@localhost"
            for number in range(1, NODES + 1)
        ]
        (home / "rabbitmq.conf").write_text("\n".join(words) + "\n")

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        del sync  # It cannot be told not to.
        self._home = home
        self.client_ports = free_ports(NODES)
        server.port = self.client_ports[0]
        names = free_port()
        environments = [
            self.environment(home, names=names, node=_name(number), port=port)
            for number, port in enumerate(self.client_ports, 1)
        ]
        self.launch_names(server, home, environments[0])
        for env in environments:
            self.launch_one(server, home, env)
        self._wait_joined(environments[0])

    def _wait_joined(self, env: dict[str, str]) -> None:
        """Wait until all nodes are in one cluster: a queue that is made before that has fewer members."""
        owner = unprivileged()
        deadline = time.perf_counter() + START_SECONDS_MAX
        while True:
            asked = subprocess.run(
                ["sh", str(self.tool("rabbitmqctl")), "await_online_nodes", str(NODES)],
                cwd=self._home,
                env=env,
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
        wire = QuorumWire(self.port, queue)
        deadline = time.perf_counter() + MEMBERS_SECONDS_MAX
        while self._members(queue) < NODES:
            if time.perf_counter() > deadline:
                wire.close()
                raise Refused(f"the queue has fewer than {NODES} members")
            time.sleep(0.01)
        return wire

    def _members(self, queue: str) -> int:
        """Return how many members a queue has, by what each of them keeps of its settings on the disk."""
        settings = self._home.glob("mnesia/*/quorum/*/*/config")
        return sum(f"'{queue}'" in path.read_text(errors="replace") for path in settings)


def _name(number: int) -> str:
    return f"bench{number}"
