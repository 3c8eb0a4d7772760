"""Tables without Spark: tasks to Parquet, beside pyarrow writing the same rows from memory.

Run by ``bench/tables``; prints a table and, with ``--write``, puts it into docs/benchmarks.md. The goal is a million tasks
in 3 s or less on two idle cores, with the start of the process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from formats import RESULTS, machine
from penstock.tables import read
from penstock.tables.export import export
from penstock.tables.scan import make_scan
from spark_source import fill

ROUNDS = 3
QUEUES = 8
GOAL_S = 3.0
START, END = "<!-- bench/tables -->", "<!-- end of bench/tables -->"


def best(work: Callable[[], object]) -> tuple[float, float]:
    """Return the shortest time of some rounds, and the least processor time, children included."""
    found = []
    for _ in range(ROUNDS):
        begin, used = time.perf_counter(), sum(os.times()[:4])
        work()
        found.append((time.perf_counter() - begin, sum(os.times()[:4]) - used))
    return min(wall for wall, _ in found), min(cpu for _, cpu in found)


def measure(node: Path, place: Path) -> dict[str, tuple[float, float]]:
    target = place / "tasks.parquet"
    scan = make_scan(node)
    rows = read(node).read_all()  # also loads the kernels
    command = [sys.executable, "-m", "penstock.cli.main", "export", str(node), "--to", str(target)]
    process = [*command, "--overwrite"]
    return {
        "pyarrow, rows in memory to Parquet": best(lambda: pq.write_table(rows, target)),
        "`read`, all columns": best(lambda: [None for _ in read(node)]),
        "export to Parquet, in this process": best(
            lambda: export(scan, target, overwrite=True, advance=lambda _: None)
        ),
        "`penstock export`, a new process": best(
            lambda: subprocess.run(process, check=True, stdout=subprocess.DEVNULL)
        ),
    }


def shown(found: dict[str, tuple[float, float]], tasks: int) -> str:
    memory, _ = found["pyarrow, rows in memory to Parquet"]
    lines = [
        f"{tasks:,} tasks of 100 bytes in {QUEUES} queues, best of {ROUNDS}, {machine()}; goal: {GOAL_S:.0f} s for the command.",
        "",
        "| | time | processor | times pyarrow |",
        "|---|---:|---:|---:|",
    ]
    for name, (wall, cpu) in found.items():
        lines.append(f"| {name} | {wall:.2f} s | {cpu:.2f} s | {wall / memory:.1f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/tables")
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        node = Path(place) / "node"
        fill(node, entries=asked.tasks + QUEUES, removed=0)
        text = shown(measure(node, Path(place)), asked.tasks)
    print(text)
    if asked.write:
        page = RESULTS.read_text()
        before, _, rest = page.partition(START)
        _, _, after = rest.partition(END)
        RESULTS.write_text(f"{before}{START}\n{text}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
