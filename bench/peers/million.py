"""A full queue: what it costs in memory and on the disk, and how fast it is back after a kill."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from peers import drive
from peers.base import Peer, Wire
from peers.lines import BATCH, payloads

PAYLOAD_SIZE = 100
# Servers write behind and collect garbage for a moment after the last task.
SETTLE_SECONDS = 3.0
QUEUE = "million"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A server with ``count`` tasks of 100 bytes."""

    count: int
    memory: int  # bytes, the whole process tree
    memory_empty: int  # the same before the first task
    disk: int  # allocated bytes, all files; some systems reserve before the first task
    restart_seconds: float  # from the start after a kill to the first task taken

    @property
    def memory_per_million(self) -> float:
        """Bytes with a million tasks; in proportion where fewer were put."""
        return self.memory_empty + (self.memory - self.memory_empty) * 1e6 / self.count


def load(peer: Peer, home: Path, count: int) -> Load:
    """Fill a fresh server, weigh it, kill it, and time its return."""
    peer.start(home, sync=False)
    assert peer.server is not None, "started"
    empty = peer.server.memory()
    wire, _ = fill(peer, count)
    time.sleep(SETTLE_SECONDS)
    # With the connection open: memory that only its process has touched would not be counted else.
    memory, disk = peer.server.memory(), allocated(home)
    wire.close()
    peer.kill()
    begin = time.perf_counter()
    peer.start(home, sync=True)
    wire = peer.connect(QUEUE)
    drive.first(wire)
    seconds = time.perf_counter() - begin
    wire.close()
    peer.kill()
    return Load(count=count, memory=memory, memory_empty=empty, disk=disk, restart_seconds=seconds)


def fill(peer: Peer, count: int, size: int = PAYLOAD_SIZE) -> tuple[Wire, drive.Rate]:
    """Put so many tasks; return the connection that did it, and how fast it was."""
    wire = peer.connect(QUEUE)
    contents = payloads(size, BATCH)
    made = [wire.put_many(contents) for _ in range(drive.requests_under_way(BATCH) + 1)]
    requests, answers = [request for request, _ in made], made[0][1]
    rate = drive.pipelined(
        wire, requests, answers=answers, tasks=BATCH, more=lambda sent: sent < count
    )
    return wire, rate


def allocated(directory: Path) -> int:
    """Return what a directory takes on the disk."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:  # The server tidies up while we count.
            continue
    return total
