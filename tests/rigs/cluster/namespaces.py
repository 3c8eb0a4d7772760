"""A network namespace for each node on a bridge in one more, and packet filters between them. Needs root, ``ip`` and ``iptables``.

Addresses are of 192.0.2.0/24 (for documentation) and exist inside these namespaces only. The rig itself enters
that of the bridge: its clients reach every node, whatever is cut between the nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rigs.cluster.processes import Place
from rigs.cluster.splits import Link
from rigs.cluster.stage import Skipped

NAMES: Final = Path("/run/netns")
NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET
LIBRARY: Final = ctypes.CDLL(None, use_errno=True)


def address(node: int) -> str:
    return f"192.0.2.{node}"


def enter(path: Path) -> None:
    """Move the calling thread, and all that it starts, into a namespace."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if LIBRARY.setns(descriptor, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(descriptor)


class Network:
    """The namespaces of one rig."""

    def __init__(self, tag: str, nodes: Sequence[int]) -> None:
        self._tag = tag
        self._nodes = nodes
        self.dropped: frozenset[Link] = frozenset()  # what is cut at present

    def name(self, node: int) -> str:
        """Return the namespace of a node; that of the bridge is number 0."""
        return f"{self._tag}-{node}"

    def places(self) -> dict[int, Place]:
        return {
            node: Place(f"{address(node)}:2602", f"{address(node)}:2702", self._enter(node))
            for node in self._nodes
        }

    def _enter(self, node: int) -> Callable[[], None]:
        return lambda: enter(NAMES / self.name(node))

    def make(self) -> None:
        hub = self.name(0)
        for number in (0, *self._nodes):
            _ip("netns", "add", self.name(number))
            _ip("-n", self.name(number), "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{address(254)}/24", "dev", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for node in self._nodes:
            own, port = self.name(node), f"port{node}"
            peer = ("peer", "name", "eth0", "netns", own)
            _ip("-n", hub, "link", "add", port, "type", "veth", *peer)
            _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", own, "addr", "add", f"{address(node)}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for number in (0, *self._nodes):
            if (NAMES / self.name(number)).exists():
                _ip("netns", "del", self.name(number))

    def cut(self, links: Iterable[Link]) -> None:
        """Drop what each (from, to) sends, and nothing else any more: what was cut before is mended after that."""
        wanted = frozenset(links)
        for sender, receiver in wanted - self.dropped:
            self._filter("-A", sender, receiver)
        for sender, receiver in self.dropped - wanted:
            self._filter("-D", sender, receiver)
        self.dropped = wanted

    def _filter(self, what: str, sender: int, receiver: int) -> None:
        rule = ("INPUT", "-s", address(sender), "-j", "DROP")
        _ip("netns", "exec", self.name(receiver), "iptables", "-w", what, *rule)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def network(nodes: Sequence[int]) -> Iterator[Network]:
    """Make the namespaces, enter the bridge's, and leave and remove all of them whatever happens."""
    if os.geteuid() != 0:
        raise Skipped("needs root: network namespaces")
    for tool in ("ip", "iptables"):
        if shutil.which(tool) is None:
            raise Skipped(f"needs {tool}: it is not installed")
    made = Network(f"penstock-{os.getpid()}", nodes)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        try:
            made.make()
        except OSError as error:
            raise Skipped(f"needs network namespaces: {error}") from None
        enter(NAMES / made.name(0))
        yield made
    finally:
        LIBRARY.setns(home, NEW_NETWORK)
        os.close(home)
        made.remove()
