"""Three of our nodes that agree, and the ways to reach the one that leads, to kill it and to start it again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from peers.base import START_SECONDS_MAX, Refused, Server, Unavailable, Wire, free_ports
from peers.group import NODES, Group
from peers.penstock import Penstock, PenstockWire
from penstock.protocol.frames import FrameReader
from penstock.protocol.version2 import Cluster, ClusterInfo, decode_answer

# Between two looks at what the nodes say of themselves.
LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one node of the group is."""

    number: int
    client_port: int
    peer_port: int


class PenstockGroup(Group, Penstock):
    name = "Penstock, three nodes"
    promise = "synced by two of three nodes before the answer; the rest as with one node"

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place] = []
        self._home = Path()

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        del sync  # It cannot be told not to.
        ports = free_ports(2 * NODES)
        self._home = home
        self.places = [
            Place(number=number, client_port=ports[number - 1], peer_port=ports[NODES + number - 1])
            for number in range(1, NODES + 1)
        ]
        self.client_ports = [place.client_port for place in self.places]
        server.port = self.client_ports[0]
        for place in self.places:
            self.start_node(place)

    def start_node(self, place: Place) -> None:
        """Start a node, new or again."""
        assert self.server is not None, "started"
        peers = ",".join(f"{each.number}=127.0.0.1:{each.peer_port}" for each in self.places)
        command = [str(self._program), "serve", "--data", str(self._home / f"node-{place.number}")]
        command += ["--listen", f"127.0.0.1:{place.client_port}"]
        command += ["--node", str(place.number), "--peers", peers]
        self.server.run(command, cwd=self._home, env=None, ours=True)
        # Processes stand in the order of the nodes.
        process = self.server.processes.pop()
        self.server.processes[place.number - 1 : place.number] = [process]

    def kill_node(self, place: Place) -> None:
        """End a node without a word, and return when it is gone."""
        assert self.server is not None, "started"
        process = self.server.processes[place.number - 1]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def connect(self, queue: str) -> Wire:
        """Return a connection to the leader. Raises ``Refused`` or ``OSError`` if none leads just now."""
        assert self.server is not None, "started"
        failure: Exception = Refused("no node leads")
        ports = [self.server.port, *(place.client_port for place in self.places)]
        for port in dict.fromkeys(ports):
            try:
                wire = PenstockWire(port, queue)
            except (OSError, Refused) as reason:
                failure = reason
            else:
                self.server.port = port
                return wire
        raise failure

    def pid(self, place: Place) -> int:
        assert self.server is not None, "started"
        return self.server.processes[place.number - 1].pid

    def leader(self) -> Place:
        """Return where the node is that leads, once one does and all others have all that it has."""
        deadline = time.perf_counter() + START_SECONDS_MAX
        while time.perf_counter() < deadline:
            for place in self.places:
                with contextlib.suppress(OSError, Refused):
                    if _leads_all(ask(place.client_port)):
                        return place
            time.sleep(LOOK_SECONDS)
        raise Unavailable("the nodes do not come together")


def _leads_all(info: ClusterInfo) -> bool:
    """Whether this node leads and all members follow closely."""
    others = [member for member in info.members if member.node != info.node]
    return info.is_leading and all(
        member.pace == "replicate" and member.lag == 0 for member in others
    )


def ask(port: int) -> ClusterInfo:
    """Ask a node about its group. Raises ``OSError`` or ``Refused``."""
    with contextlib.closing(Questioner(port, "")) as wire:
        return wire.ask()


class Questioner(PenstockWire):
    """A connection without a queue."""

    def prepare(self) -> None:
        pass

    def ask(self) -> ClusterInfo:
        self.socket.sendall(self._request(Cluster()))
        reader = FrameReader()
        while not (frames := reader.receive(self.receive())):
            pass
        answer = decode_answer(frames[0][0], frames[0][2])
        if not isinstance(answer, ClusterInfo):
            raise Refused(f"no word about the group: {answer}")
        return answer
