"""What the systems of several nodes have in common: nodes that are started, killed and started again one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import abstractmethod
from pathlib import Path

from peers.base import Peer, Server, Wire

NODES = 3


class Group(Peer):
    """A system of several nodes on this machine, numbered from 0. ``connect`` reaches the one that leads the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path()
        self.client_ports: list[int] = []  # by node
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by node

    @abstractmethod
    def plan(self, home: Path) -> None:
        """Choose ports and write settings, before the first node starts."""

    @abstractmethod
    def launch_node(self, node: int) -> None:
        """Start one process, on the ports and in the directory that it had before."""

    @abstractmethod
    def connect_to(self, node: int, queue: str) -> Wire:
        """Return a connection to one node, which need not lead a queue that is there already."""

    @abstractmethod
    def wait_whole(self, queue: str) -> None:
        """Wait until all nodes are back and have all that the leader has. Raises ``Unavailable``."""

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        assert sync, "a group is measured with real syncs only"
        self.home = home
        self._processes.clear()
        self.plan(home)
        server.port = self.client_ports[0]
        for node in range(NODES):
            self.start_node(node)

    def start_node(self, node: int) -> None:
        """Start a node, for the first time or again."""
        before = self._processes.pop(node, None)
        if before is not None:
            self.running.processes.remove(before)
        self.launch_node(node)
        self._processes[node] = self.running.processes[-1]

    def kill_node(self, node: int) -> None:
        """End a node without a word."""
        for pid in self.node_pids(node):
            with contextlib.suppress(ProcessLookupError):  # A helper may go with its server.
                os.kill(pid, signal.SIGKILL)

    @property
    def running(self) -> Server:
        assert self.server is not None, "started"
        return self.server

    @property
    def leading(self) -> int:
        """The node that the last connection went to."""
        return self.client_ports.index(self.running.port)

    def node_pids(self, node: int) -> list[int]:
        """Return the processes of a node, the first of them its server."""
        return self.running.tree([self._processes[node]])
