"""The spool beside appending the same bytes, persist-queue and diskcache, at equal durability; and the bulk scan.

Run by ``bench/spool``; prints tables and, with ``--write``, puts them into docs/benchmarks.md. Every system gets the same
payloads, of frames of 806 bytes, and has each batch synced to the disk before the next one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from formats import RESULTS, machine
from peers.base import Unavailable, say
from peers.packages import cache
from penstock.formats.beats.frame import FRAMING, Verdict, encode_frames
from penstock.formats.beats.frame_scan import scan_frames
from penstock.formats.beats.segment import Options
from penstock.formats.beats.task_event import encode_tasks
from penstock.storage.spool import Spool, SpoolSettings

FRAME_SIZE = 806
"""What Beats' own figures were taken with, on average."""

BATCHES = (1, 100, 2000)
READ_AT_ONCE = 2000
ROUNDS = 3
SECONDS = 3.0
"""A system that has not got through by then is stopped; its rate is that of the time it had."""

COUNTS = {1: 3_000, 100: 60_000, 2000: 300_000}
SCAN_SIZE = 512 * 10**6

LIBRARIES = {
    "persistqueue": (
        "persist-queue==1.1.0"
        " --hash=sha256:be431ad90cd57621be5563dcd2424e21d81db3bb8cdfb918ade722369d640763"
    ),
    "diskcache": (
        "diskcache==5.6.3"
        " --hash=sha256:5e31b2d5fbad117cc363ebaf6b689474db18a1f6438bc82358b024abd4c2ca19"
    ),
}
BEGIN, END = "<!-- spool:begin -->", "<!-- spool:end -->"

GOALS = {"publish": 150_000, "read": 300_000, "times": 5, "scan": 700}


def payloads(count: int) -> list[bytes]:
    """Return events whose frames have the size: log lines, which compress as such lines do."""
    random = Random(1)
    words = [bytes(random.choices(b"etaoinshrdlu", k=random.randint(2, 9))) for _ in range(400)]
    lines = []
    for number in range(min(count, 7_000)):
        line = b"%d " % number + b" ".join(random.choices(words, k=160))
        lines.append(line)
    size = FRAME_SIZE - FRAMING
    # The head of the event is as long for all of them.
    head = len(encode_tasks("orders", [b"x" * 700], [5], timestamp=10**18)[0]) - 700
    tasks = [line[: size - head].ljust(size - head, b".") for line in lines]
    events = encode_tasks("orders", tasks, [5] * len(tasks), timestamp=10**18)
    assert all(len(event) == size for event in events)
    return [events[number % len(events)] for number in range(count)]


class System(ABC):
    """A queue on a disk."""

    name: str

    @abstractmethod
    def open(self, home: Path) -> None: ...

    @abstractmethod
    def publish(self, batch: list[bytes]) -> None:
        """Return when the batch is on the disk."""

    def take(self, count: int) -> int:
        """Take payloads out for good. Return how many."""
        raise Unavailable(f"{self.name} cannot be read {count} at a time")

    @abstractmethod
    def close(self) -> None: ...


class Ours(System):
    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._settings = SpoolSettings(max_size=2**32, options=options, key=bytes(range(16)))

    def open(self, home: Path) -> None:
        self._spool = Spool(home, self._settings)

    def publish(self, batch: list[bytes]) -> None:
        self._spool.publish(batch)

    def take(self, count: int) -> int:
        batch = self._spool.read(count, timeout=0)
        if batch is None:
            return 0
        self._spool.acknowledge(batch)
        return len(batch)

    def close(self) -> None:
        self._spool.close()


class Raw(System):
    """No queue at all: the same bytes, encoded before, appended and synced."""

    name = "append and fdatasync"

    def open(self, home: Path) -> None:
        home.mkdir()
        self._file = os.open(home / "raw", os.O_CREAT | os.O_RDWR, 0o600)
        self._known: dict[int, bytes] = {}
        self._end = 0

    def publish(self, batch: list[bytes]) -> None:
        data = self._known.get(len(batch))
        if data is None:
            data = self._known[len(batch)] = encode_frames(batch)
        os.pwrite(self._file, data, self._end)
        os.fdatasync(self._file)
        self._end += len(data)

    def close(self) -> None:
        os.close(self._file)


class PersistQueueFile(System):
    """It flushes each payload and syncs only at the end of a chunk; so batch and position are synced for it."""

    name = "persist-queue, file"

    def open(self, home: Path) -> None:
        module = library("persistqueue")
        self._home = home
        (home.parent / "tmp").mkdir(exist_ok=True)
        self._queue = module.Queue(str(home), tempdir=str(home.parent / "tmp"))

    def publish(self, batch: list[bytes]) -> None:
        for payload in batch:
            self._queue.put(payload)
        os.fdatasync(self._queue.headf.fileno())

    def take(self, count: int) -> int:
        taken = min(count, int(self._queue.qsize()))
        for _ in range(taken):
            self._queue.get()
        if taken:
            self._queue.task_done()
            with (self._home / "info").open("rb") as info:
                os.fdatasync(info.fileno())
        return taken

    def close(self) -> None:
        self._queue.headf.close()
        self._queue.tailf.close()


class PersistQueueSqlite(System):
    """It has no batches: every payload is a transaction of its own, synced."""

    name = "persist-queue, SQLite"

    def open(self, home: Path) -> None:
        module = library("persistqueue")
        self._queue = module.SQLiteQueue(str(home), auto_commit=False)
        self._queue._putter.execute("PRAGMA synchronous=FULL")  # noqa: SLF001 - it has no setting

    def publish(self, batch: list[bytes]) -> None:
        for payload in batch:
            self._queue.put(payload)

    def take(self, count: int) -> int:
        taken = min(count, int(self._queue.size))
        for _ in range(taken):
            self._queue.get()
        if taken:
            self._queue.task_done()
        return taken

    def close(self) -> None:
        self._queue.close()


class DiskcacheDeque(System):
    name = "diskcache.Deque"

    def open(self, home: Path) -> None:
        module = library("diskcache")
        cache_ = module.Cache(str(home), eviction_policy="none", sqlite_synchronous=2)
        self._deque = module.Deque.fromcache(cache_)

    def publish(self, batch: list[bytes]) -> None:
        with self._deque.transact():
            self._deque.extend(batch)

    def take(self, count: int) -> int:
        taken = min(count, len(self._deque))
        with self._deque.transact():
            for _ in range(taken):
                self._deque.popleft()
        return taken

    def close(self) -> None:
        self._deque.cache.close()


def library(name: str) -> Any:
    """Return a pure Python library of the package index, pinned by its hash, from our cache."""
    target = cache() / f"python-{name}"
    if not (target / name).exists():
        say(f"fetching {name} from the Python package index")
        target.mkdir(parents=True, exist_ok=True)
        wanted = target / "requirements.txt"
        wanted.write_text(LIBRARIES[name] + "\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--requirement", str(wanted), "--dest", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"pip failed: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
            archive.extractall(target)
    if str(target) not in sys.path:
        sys.path.append(str(target))
    return importlib.import_module(name)


@dataclass
class Figures:
    """Payloads a second of one system."""

    name: str
    published: dict[int, float] = field(default_factory=dict)  # by size of the batch
    taken: float | None = None
    both: float | None = None  # published and then taken, all in all
    # Microseconds of processor a payload, in the largest batches.
    cpu_published: float = 0.0
    cpu_taken: float = 0.0

    def row(self, raw: Figures) -> str:
        rates = " | ".join(f"{self.published[size]:,.0f}" for size in BATCHES)
        share = self.published[BATCHES[-1]] / raw.published[BATCHES[-1]]
        taken = "" if self.taken is None else f"{self.taken:,.0f}"
        both = "" if self.both is None else f"{self.both:,.0f}"
        cpu = f"{self.cpu_published:.1f}" + (f" and {self.cpu_taken:.1f}" if taken else "")
        return f"| {self.name} | {rates} | {share:.2f} | {taken} | {both} | {cpu} |"


@dataclass(frozen=True)
class Rate:
    per_second: float
    cpu: float  # microseconds of processor each


def rate(step: Callable[[], int], most: int, seconds: float) -> Rate:
    """Return how fast a step is that returns how many it did, 0 at the end."""
    done, cpu, begin = 0, time.process_time(), time.perf_counter()
    while done < most and time.perf_counter() - begin < seconds:
        more = step()
        if not more:
            break
        done += more
    elapsed = time.perf_counter() - begin
    return Rate(done / elapsed, (time.process_time() - cpu) / max(1, done) * 1e6)


def measure(system: System, all_payloads: Sequence[bytes], home: Path) -> Figures:
    """Measure everything ``ROUNDS`` times and keep the best of each."""
    figures = Figures(system.name, published=dict.fromkeys(BATCHES, 0.0))
    for round_ in range(ROUNDS):
        for size in BATCHES:
            directory = home / f"{round_} {size}"
            system.open(directory)
            _measure_one(system, figures, size, list(all_payloads[:size]))
            system.close()
            subprocess.run(["rm", "-rf", str(directory)], check=True)
    return figures


def _measure_one(system: System, figures: Figures, size: int, batch: list[bytes]) -> None:
    def publish() -> int:
        system.publish(batch)
        return size

    published = rate(publish, COUNTS[size], SECONDS)
    figures.published[size] = max(figures.published[size], published.per_second)
    if size != BATCHES[-1]:
        return
    figures.cpu_published = min(figures.cpu_published or published.cpu, published.cpu)
    try:
        taken = rate(lambda: system.take(READ_AT_ONCE), COUNTS[size], SECONDS)
    except Unavailable:
        return
    figures.taken = max(figures.taken or 0.0, taken.per_second)
    figures.cpu_taken = min(figures.cpu_taken or taken.cpu, taken.cpu)
    both = 1 / (1 / published.per_second + 1 / taken.per_second)
    figures.both = max(figures.both or 0.0, both)


def scan_rate() -> float:
    """Return the megabytes a second that the kernel scans, of frames in the page cache."""
    part = encode_frames(payloads(5000))
    data = np.frombuffer(part * (SCAN_SIZE // len(part)), np.uint8)
    best = 0.0
    list(scan_frames(data[: len(part)], offset=12))  # compiles
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        good = sum(
            int((columns.verdict == Verdict.GOOD).sum()) for columns in scan_frames(data, offset=12)
        )
        best = max(best, len(data) / (time.perf_counter() - begin) / 1e6)
        assert good == len(data) // FRAME_SIZE
    return best


def goals(found: dict[str, Figures], scanned: float) -> list[str]:
    plain = found["spool"]
    largest = BATCHES[-1]
    peers = [one for one in found.values() if one.name not in OURS and one.taken is not None]
    lines = ["| goal | wanted | measured |", "|---|---:|---:|"]
    lines.append(
        _goal(f"published/s in batches of {largest:,}", GOALS["publish"], plain.published[largest])
    )
    lines.append(_goal("read and acknowledged/s", GOALS["read"], plain.taken or 0))
    if peers:
        for size in BATCHES[1:]:  # with batches of one, all wait for the same sync
            best = max(peers, key=lambda one: one.published[size])
            ratio = plain.published[size] / best.published[size]
            what = f"batches of {size:,}, times the best library ({best.name})"
            lines.append(_goal(what, GOALS["times"], ratio))
        best = max(peers, key=lambda one: one.taken or 0)
        ratio = (plain.taken or 0) / (best.taken or 1)
        lines.append(_goal(f"read, times the best library ({best.name})", GOALS["times"], ratio))
    lines.append(_goal("bulk scan, MB/s", GOALS["scan"], scanned))
    return lines


def _goal(what: str, wanted: float, measured: float) -> str:
    words = "met" if measured >= wanted else "missed"
    shown = f"{measured:,.0f}" if measured >= 100 else f"{measured:.1f}"
    return f"| {what} | {wanted:,g} | {shown} ({words}) |"


OURS = ("spool", "spool, LZ4", "spool, encrypted", Raw.name)


def systems() -> list[System]:
    return [
        Raw(),
        Ours(OURS[0], Options(0)),
        Ours(OURS[1], Options.COMPRESSED),
        Ours(OURS[2], Options.ENCRYPTED),
        PersistQueueFile(),
        PersistQueueSqlite(),
        DiskcacheDeque(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/spool", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--only", help="measure systems whose names begin so, and no goals")
    options = parser.parse_args()
    found: dict[str, Figures] = {}
    load = os.getloadavg()[0]
    events = payloads(BATCHES[-1])
    with tempfile.TemporaryDirectory(prefix="penstock-spool-") as name:
        for number, system in enumerate(systems()):
            if options.only and not system.name.startswith((options.only, Raw.name)):
                continue
            home = Path(name) / str(number)
            home.mkdir()
            say(system.name)
            try:
                found[system.name] = measure(system, events, home)
            except Unavailable as problem:
                say(f"{system.name} is left out: {problem}")
                continue
            say("  " + found[system.name].row(found[Raw.name]))
    lines = [
        (
            f"{machine()}; frames of {FRAME_SIZE} bytes, each batch synced, one thread, the best of {ROUNDS}."
            f" Load of the machine before and after: {load:.1f} and {os.getloadavg()[0]:.1f}."
        ),
        "",
        "| system |" + "".join(f" batches of {size:,}, published/s |" for size in BATCHES)
        + " times appending | read and acked/s | published, then read/s | µs of CPU, published and read |",
        "|---|" + "---:|" * (len(BATCHES) + 4),
        *(one.row(found[Raw.name]) for one in found.values()),
    ]  # fmt: skip
    if not options.only:
        lines += ["", *goals(found, scan_rate())]
    sys.stdout.write("\n".join(lines) + "\n")
    if options.write:
        text = RESULTS.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        assert rest, f"{RESULTS.name} has no place for it"
        RESULTS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
