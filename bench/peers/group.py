"""What the systems of several nodes have in common: which node leads, and which processes are whose."""

from __future__ import annotations

from peers.base import Peer, Server

NODES = 3


class Group(Peer):
    """A system of several nodes on this machine. Connections go to the node that leads."""

    def __init__(self) -> None:
        super().__init__()
        self.client_ports: list[int] = []  # by node

    @property
    def running(self) -> Server:
        assert self.server is not None, "started"
        return self.server

    @property
    def leading(self) -> int:
        """The place in ``client_ports`` of the node that the last connection went to."""
        return self.client_ports.index(self.running.port)

    def node_pids(self) -> list[list[int]]:
        """Return the processes of each node, in the order of ``client_ports``."""
        last = self.running.processes[-len(self.client_ports) :]
        return [self.running.tree([process]) for process in last]
