"""A paged queue beside the heap and RabbitMQ: enqueue, dequeue, memory, disk, and the return after ``kill -9``.

Run by ``bench/paged``; prints a table and, with ``--write``, puts it into docs/benchmarks.md. Every system gets the same
tasks over a socket, synced before the answer, and the same loops drive it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from formats import RESULTS, machine
from peers import drive
from peers.base import Peer, Unavailable, say
from peers.lines import BATCH
from peers.million import QUEUE, SETTLE_SECONDS, allocated, fill
from peers.penstock import Penstock, PenstockPaged
from peers.rabbitmq import Rabbitmq

DRAIN_SECONDS = 10.0
BEGIN, END = "<!-- paged-queue:begin -->", "<!-- paged-queue:end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one system did with so many tasks."""

    name: str
    count: int
    enqueued: float  # a second
    dequeued: float  # a second, acknowledged
    memory: int  # bytes with all tasks, the whole process tree
    memory_empty: int
    disk: int
    restart: float  # seconds from the start after a kill to the first task taken

    def row(self, size: int) -> str:
        return (
            f"| {self.name} | {self.count:,} | {self.enqueued:,.0f} | {self.dequeued:,.0f}"
            f" | {(self.memory - self.memory_empty) / self.count * 1e6 / 2**20:,.0f}"
            f" | {self.memory / 2**20:,.0f} | {self.disk / self.count:,.0f} ({self.disk / self.count / size:.2f})"
            f" | {self.restart:.2f} |"
        )


def measure(peer: Peer, home: Path, count: int, size: int) -> Figures:
    """Fill a fresh server, weigh it, kill it, time its return, and take tasks out."""
    peer.start(home, sync=True)
    assert peer.server is not None, "started"
    empty = peer.server.memory()
    wire, filled = fill(peer, count, size)
    time.sleep(SETTLE_SECONDS)  # servers write behind for a moment
    memory, disk = peer.server.memory(), allocated(home)
    wire.close()
    peer.kill()
    begin = time.perf_counter()
    peer.start(home, sync=True)
    wire = peer.connect(QUEUE)
    drive.first(wire)
    restart = time.perf_counter() - begin
    wire.close()
    wire = peer.connect(QUEUE)
    drained = drive.drain(wire, batch=BATCH, seconds=DRAIN_SECONDS)
    wire.close()
    peer.kill()
    return Figures(
        name=peer.name,
        count=filled.count,
        enqueued=filled.per_second,
        dequeued=drained.per_second,
        memory=memory,
        memory_empty=empty,
        disk=disk,
        restart=restart,
    )


def goals(found: Sequence[Figures]) -> list[str]:
    """Return the goals that can be told from what was measured."""
    by_name = {figures.name: figures for figures in reversed(found)}  # the smallest count last
    heap, paged = by_name[Penstock.name], by_name[PenstockPaged.name]
    lines = ["| goal | wanted | measured |", "|---|---:|---:|"]
    lines.append(_goal("enqueue, times the heap", 0.5, paged.enqueued / heap.enqueued))
    rabbit = by_name.get(Rabbitmq.name)
    if rabbit is not None and rabbit.count == paged.count:
        ratio = rabbit.restart / paged.restart
        lines.append(_goal(f"restart with {paged.count:,}, times faster than RabbitMQ", 3, ratio))
    return lines


def _goal(what: str, wanted: float, measured: float) -> str:
    return f"| {what} | {wanted:g} | {measured:.2f} ({'met' if measured >= wanted else 'missed'}) |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/paged queue", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="tasks, default 1,000,000")
    parser.add_argument(
        "--large", type=int, default=5_000_000, help="more tasks for the paged queue; 0: none"
    )
    parser.add_argument("--size", type=int, default=1000, help="bytes of a task, default 1000")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    runs: list[tuple[type[Peer], int]] = [
        (Penstock, options.count),
        (PenstockPaged, options.count),
        (Rabbitmq, options.count),
    ]
    if options.large:
        runs.append((PenstockPaged, options.large))
    found: list[Figures] = []
    versions: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-paged-") as name:
        Path(name).chmod(0o755)  # other servers run as somebody else
        for number, (kind, count) in enumerate(runs):
            peer = kind()
            say(f"{peer.name}: {count:,} tasks of {options.size} bytes")
            try:
                versions.append(f"{peer.name} {peer.obtain()}")
                figures = measure(peer, Path(name) / str(number), count, options.size)
            except Unavailable as problem:
                say(f"{peer.name} is left out: {problem}")
                continue
            finally:
                peer.kill()
            say("  " + figures.row(options.size))
            found.append(figures)
    words = [
        f"{machine()}; {', '.join(dict.fromkeys(versions))}; tasks of {options.size} bytes, batches of {BATCH}.",
        "",
        (
            "| queue | tasks | enqueued/s | dequeued and acked/s | MiB a million tasks | MiB in all"
            " | bytes on disk a task (times its size) | restart, s |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(figures.row(options.size) for figures in found),
        "",
        *goals(found),
    ]
    sys.stdout.write("\n".join(words) + "\n")
    if options.write:
        text = RESULTS.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        assert rest, f"{RESULTS.name} has no place for it"
        RESULTS.write_text(f"{before}{BEGIN}\n" + "\n".join(words) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
