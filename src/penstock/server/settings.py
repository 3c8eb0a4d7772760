"""What a node can be told, with the defaults and their reasons."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import InvalidValue
from penstock.protocol.frames import FRAME_SIZE_MAX
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX, PORT
from penstock.raft.settings import Settings as CoreSettings
from penstock.storage.paged.limits import PagedLimits

SNAPSHOT_BYTES: Final = 80 * 2**20  # five segments, as TaskFlux has it

FRAME_SIZE_MIN: Final = 4096
"""Below this a limit of frames would refuse requests that hold no payload at all."""

QUEUES_MAX: Final = 40_000
"""More do not fit one answer to a stat."""

_FLAGS: Final = {
    "connections_max": "--max-connections",
    "queues_max": "--max-queues",
    "frame_size_max": "--max-frame",
    "payload_size_max": "--max-payload",
    "connection_bytes_max": "--max-connection-bytes",
    "total_bytes_max": "--max-total-bytes",
    "free_bytes_min": "--min-free",
    "idle_seconds": "--idle-timeout",
    "stall_seconds": "--stall-timeout",
}
"""The flag that sets each limit, as messages name it."""

EXCESS_SIZE_MAX: Final = 64 * 2**20
"""The longest payload or frame above the limit that is read and dropped, so that its sender gets an answer."""

EXCESS_SECONDS: Final = 10.0
"""How long that may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What callers may cost the node. Each is a flag of ``penstock serve``."""

    connections_max: int = 1024
    queues_max: int = 10_000
    frame_size_max: int = FRAME_SIZE_MAX
    payload_size_max: int = PAYLOAD_SIZE_MAX
    # Bytes of requests that were read and not answered yet; beyond, reading stops until some are.
    connection_bytes_max: int = 32 * 2**20
    total_bytes_max: int = 256 * 2**20
    # Below this much room on the disk nothing more is taken in; what is there can still be taken out.
    free_bytes_min: int = 64 * 2**20
    # A connection without leases, subscriptions and requests under way is closed after this.
    idle_seconds: float = 60.0
    # The greeting and every packet that has begun must be whole within this, and an answer must be taken within it.
    # TaskFlux waits as long, so a client that was slow there is not too slow here.
    stall_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < math.inf:  # which is not true of "nan" either
                raise InvalidValue(f"{_FLAGS[name]} must be a number above 0")
        if not FRAME_SIZE_MIN <= self.frame_size_max <= FRAME_SIZE_MAX:
            raise InvalidValue(f"--max-frame is {FRAME_SIZE_MIN} to {FRAME_SIZE_MAX} bytes")
        if self.queues_max > QUEUES_MAX:
            raise InvalidValue(f"--max-queues is at most {QUEUES_MAX}")
        if self.payload_size_max > PAYLOAD_SIZE_MAX:
            raise InvalidValue(f"--max-payload is at most {PAYLOAD_SIZE_MAX} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """A node's place in a group of several."""

    node: int
    # Where the members of a new group hear each other: all of its voters by number, this node counted. For one that
    # joins a group that is there: some or all of its members.
    peers: dict[int, str]
    is_joining: bool = False
    listen: str = ""  # where this node hears its peers, if not at its own place in ``peers``
    client_address: str = ""  # told to clients of other nodes
    tick_ms: int = 100
    election_ticks: int = 10
    heartbeat_ticks: int = 1
    kept_bytes: int = 32 * 2**20  # of the log behind a snapshot: who is a little behind needs none
    core: CoreSettings = field(default_factory=CoreSettings)  # its ticks are those above

    def __post_init__(self) -> None:
        if self.node < 1 or min(self.peers, default=1) < 1:
            raise InvalidValue("nodes are numbered from 1 on")
        if self.node not in self.peers and not self.is_joining:
            raise InvalidValue(f"node {self.node} is not among the peers {sorted(self.peers)}")
        if self.is_joining and not (self.listen or self.node in self.peers):
            raise InvalidValue("a node that joins must say where it hears its peers")
        if len(set(self.peers.values())) != len(self.peers):
            raise InvalidValue("two peers have one address")
        if not 0 < self.heartbeat_ticks < self.election_ticks or self.tick_ms < 1:
            raise InvalidValue("the election timeout must be longer than the heartbeat's")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A node's settings."""

    data: Path
    host: str = "127.0.0.1"
    port: int = PORT
    is_open: bool = False  # whether an address that others can reach is allowed
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    node: int = 1
    # Of a new directory, 3 if None. An old one keeps its own; of two sets of files this one is served.
    generation: int | None = None
    snapshot_bytes: int = SNAPSHOT_BYTES  # log behind the last snapshot that leads to the next
    with_ids: bool = True  # whether version 1's deliveries hold the task's id
    limits: Limits = field(default_factory=Limits)
    paged: PagedLimits = field(default_factory=PagedLimits)
    group: GroupSettings | None = None  # None: a group of one

    def refuse_reachable(self) -> None:
        """Raise ``InvalidValue`` for an address that others can reach: there is no access control yet."""
        for host in (self.host, self.metrics_host):
            if not self.is_open and not _is_loopback(host):
                raise InvalidValue(
                    f"{host} is reachable from other machines, and a node has no access control;"
                    " listen on 127.0.0.1, or add --allow-remote if the network keeps others out"
                )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
