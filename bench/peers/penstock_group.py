"""Three of our nodes that agree."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from peers.base import START_SECONDS_MAX, Refused, Unavailable, Wire, free_ports
from peers.group import NODES, Group
from peers.penstock import Penstock, PenstockWire
from penstock.protocol.frames import FrameReader
from penstock.protocol.version2 import Cluster, ClusterInfo, decode_answer

# Between two looks at what the nodes say of themselves.
LOOK_SECONDS = 0.01


class OpenWire(PenstockWire):
    """A connection to any node, which may lead or not: the queue is there, or is not needed."""

    def prepare(self) -> None:
        pass

    def ask(self) -> ClusterInfo:
        """Ask the node about its group. Raises ``OSError`` or ``Refused``."""
        self.socket.sendall(self._request(Cluster()))
        reader = FrameReader()
        while not (frames := reader.receive(self.receive())):
            pass
        answer = decode_answer(frames[0][0], frames[0][2])
        if not isinstance(answer, ClusterInfo):
            raise Refused(f"no word about the group: {answer}")
        return answer


class PenstockGroup(Group, Penstock):
    name = "Penstock, three nodes"
    promise = "synced by two of three nodes before the answer; the rest as with one node"

    def plan(self, home: Path) -> None:
        del home  # Nodes make their own directories.
        ports = free_ports(2 * NODES)
        self.client_ports, self._peer_ports = ports[:NODES], ports[NODES:]

    def launch_node(self, node: int) -> None:
        peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(self._peer_ports, 1))
        command = [str(self._program), "serve", "--data", str(self.home / f"node-{node + 1}")]
        command += ["--listen", f"127.0.0.1:{self.client_ports[node]}"]
        command += ["--node", str(node + 1), "--peers", peers]
        self.running.run(command, cwd=self.home, env=None, ours=True)

    def connect(self, queue: str) -> Wire:
        """Return a connection to the leader. Raises ``Refused`` or ``OSError`` if none leads just now."""
        failure: Exception = Refused("no node leads")
        for port in dict.fromkeys([self.port, *self.client_ports]):
            try:
                wire = PenstockWire(port, queue)
            except (OSError, Refused) as reason:
                failure = reason
            else:
                self.running.port = port
                return wire
        raise failure

    def connect_to(self, node: int, queue: str) -> Wire:
        return OpenWire(self.client_ports[node], queue)

    def wait_whole(self, queue: str) -> None:
        del queue  # All queues have one log.
        deadline = time.perf_counter() + START_SECONDS_MAX
        while time.perf_counter() < deadline:
            for port in self.client_ports:
                with (
                    contextlib.suppress(OSError, Refused),
                    contextlib.closing(OpenWire(port, "")) as wire,
                ):
                    if _leads_all(wire.ask()):
                        return
            time.sleep(LOOK_SECONDS)
        raise Unavailable("the nodes do not come together")


def _leads_all(info: ClusterInfo) -> bool:
    """Whether this node leads, and all members follow closely."""
    others = [member for member in info.members if member.node != info.node]
    return info.is_leading and all(
        member.pace == "replicate" and member.lag == 0 for member in others
    )
