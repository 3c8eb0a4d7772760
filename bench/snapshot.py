"""What a snapshot costs those who enqueue meanwhile: latencies before it, during it, and behind it.

Run by ``bench/snapshot``; prints a table and, with ``--write``, puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import penstock
from formats import RESULTS

PAYLOAD_SIZE = 100
BATCH = 50_000
SAMPLES = 3000
GOAL = 3.0
BEGIN, END = "<!-- snapshot:begin -->", "<!-- snapshot:end -->"


class Node:
    """A node process, and what it says."""

    def __init__(self, data: Path, snapshot_bytes: int) -> None:
        self.data = data
        command = [str(Path(sys.executable).with_name("penstock")), "serve", "--data", str(data)]
        command += ["--listen", "127.0.0.1:0", "--snapshot-bytes", str(snapshot_bytes)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.lines: list[dict[str, str]] = []
        for line in self._process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == "listening":
                break
        self.address = self.lines[-1]["address"]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(json.loads(line))

    @property
    def is_writing(self) -> bool:
        """Whether a snapshot is on its way to the disk."""
        names = os.listdir(self.data / "data")
        return any(name.startswith("tflux.snapshot.") for name in names)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()


def latencies(client: penstock.Client, go_on: Callable[[int], bool]) -> list[float]:
    """Enqueue one task after the other and return the milliseconds that each took."""
    payload, taken = bytes(PAYLOAD_SIZE), list[float]()
    while go_on(len(taken)):
        begin = time.perf_counter()
        client.enqueue("", payload)
        taken.append((time.perf_counter() - begin) * 1000)
    return sorted(taken)


def measure(directory: Path, tasks: int) -> dict[str, list[float]]:
    """Fill a node and return latencies before, during and behind its first snapshot."""
    node = Node(directory / "node", tasks * (PAYLOAD_SIZE + 64))
    try:
        with penstock.connect(node.address) as client:
            payloads = [os.urandom(PAYLOAD_SIZE) for _ in range(BATCH)]
            for number in range(tasks // BATCH):
                client.enqueue_many("", payloads, key=number % 5)
            found = {"before": latencies(client, lambda count: count < SAMPLES)}
            while not node.is_writing:
                client.enqueue_many("", payloads[:1000])
            found["during"] = latencies(client, lambda count: node.is_writing or count < 100)
            found["behind"] = latencies(client, lambda count: count < SAMPLES)
    finally:
        node.stop()
    return found


def percentile(taken: list[float], share: float) -> float:
    return taken[min(len(taken) - 1, int(len(taken) * share))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=1_000_000)
    options.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory), chosen.tasks)
    usual = percentile(sorted(found["before"] + found["behind"]), 0.99)
    ratio = percentile(found["during"], 0.99) / usual
    rows = [
        (name, f"{len(taken):,}", *(f"{percentile(taken, s):.2f}" for s in (0.5, 0.99, 1)))
        for name, taken in found.items()
    ]
    table = Table(title=f"Enqueue beside a snapshot of {chosen.tasks:,} tasks, ms")
    titles = ("when", "enqueues", "p50", "p99", "slowest")
    for title in titles:
        table.add_column(title, justify="left" if title == "when" else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    verdict = "met" if ratio <= GOAL else "missed"
    words = f"p99 during the snapshot is {ratio:.2f} times the usual one; wanted {GOAL:.0f} or less: {verdict}."
    console.print(words)
    if chosen.write:
        lines = [
            BEGIN,
            "## Snapshots: `bench/snapshot --write`",
            "",
            f"One connection enqueues one 100-byte task after the other while a snapshot of {chosen.tasks:,}",
            "tasks is written; milliseconds.",
            "",
            f"| {' | '.join(titles)} |",
            "|---|---:|---:|---:|---:|",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            words,
            END,
        ]
        write("\n".join(lines))


def write(section: str) -> None:
    """Put the section in place of the old one, or in front of the node's."""
    text = RESULTS.read_text()
    if BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        text = before + section + rest.partition(END)[2]
    else:
        before, mark, rest = text.partition("<!-- node:begin -->")
        text = before.rstrip() + "\n\n" + section + "\n" + ("\n" + mark + rest if mark else "")
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
