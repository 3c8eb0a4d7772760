"""Figures of the commands over files of generation 4: a million tasks of 100 bytes in batches of 100."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.families.penstock.new_directory import lone_member, new_directory
from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import AddTasks, Change, SetMembers, SetQueue, Stamp
from penstock.formats.records.settings import QueueSettings
from penstock.formats.records.writer import write_log
from penstock.model import HardState, QueueName
from records_line import Line

TASKS, BATCH = 1_000_000, 100
CLUSTER = bytes(16)
TIME_MS = 1_795_000_000_000
GOAL_S = 3.0

PAYLOADS: dict[str, Callable[[int], bytes]] = {
    "text": lambda number: b"task %08d" % number + b"x" * 87,
    "JSON": lambda number: b'{"task":%d,"text":"%s"}' % (10**7 + number, b"x" * 73),
    "bytes": lambda number: b"\xff%08d" % number + bytes(91),
}


def entries(make: Callable[[int], bytes]) -> Iterator[tuple[Stamp, Change]]:
    """Yield a log that creates a queue and fills it."""
    yield Stamp(1, 1, TIME_MS), SetMembers(lone_member(1, CLUSTER))
    yield Stamp(2, 1, TIME_MS), SetQueue(1, QueueSettings(name=QueueName("orders")))
    for number in range(TASKS // BATCH):
        first = number * BATCH + 1
        payloads = [make(task_id) for task_id in range(first, first + BATCH)]
        body = encode_add(b"orders", number % 10, payloads, producer=(CLUSTER, first - 1))
        add = AddTasks(1, first, decode_add(body, 0, len(body), Rules.REQUEST))
        yield Stamp(3 + number, 1, TIME_MS + number), add


def write(root: Path, make: Callable[[int], bytes]) -> None:
    with new_directory(root) as new:
        new.write_log(write_log(entries(make), cluster_id=CLUSTER))
        last = 2 + TASKS // BATCH
        new.finish(node=1, cluster_id=CLUSTER, state=HardState(), last=last, committed=last)


def processor_s(*arguments: str | Path) -> float:
    """Run a command with its output in a file; return the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as directory, (Path(directory) / "out").open("wb") as out:
        penstock = Path(sys.executable).with_name("penstock")
        subprocess.run([penstock, *arguments], stdout=out, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tool_lines(rounds: int) -> list[Line]:
    """Return the figures of ``tasks``, ``verify`` and ``repair``."""
    lines: list[Line] = []
    with TemporaryDirectory() as directory:
        base = Path(directory)
        for name, make in PAYLOADS.items():
            write(base / name, make)
            values = [processor_s("tasks", base / name) for _ in range(rounds)]
            lines.append(_line(f"penstock tasks, 10^6 tasks of {name}", values))
        source = base / "text"
        values = [processor_s("verify", source) for _ in range(rounds)]
        lines.append(_line("penstock verify, 10^6 tasks", values))
        outs = [base / f"out-{number}" for number in range(rounds)]
        values = [processor_s("repair", source, "--out", out) for out in outs]
        lines.append(_line("penstock repair, 10^6 tasks", values))
    return lines


def _line(what: str, values: list[float]) -> Line:
    return Line(what=what, unit="s", values=values, goal="≤ 3 s", is_met=sorted(values)[len(values) // 2] <= GOAL_S)  # fmt: skip


if __name__ == "__main__":
    print(f"load {os.getloadavg()[0]:.1f}")
    for line in tool_lines(3):
        print(line.row())
