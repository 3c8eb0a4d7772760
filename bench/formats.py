"""Figures of the formats and the storage: scanning, recovering, appending, each beside a yardstick.

Run by ``bench/formats``; prints a table and, with ``--write``, puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from fastcrc import crc32
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from penstock.formats.taskflux.deltas import decode_delta, encode_delta
from penstock.formats.taskflux.entries import scan_entries
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_records
from penstock.model import AddTask, CreateQueue, Policy, QueueName, Term
from penstock.server.rebuild import rebuild
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import OsFiles
from penstock.storage.reading import walk_windows

LAYOUT = LogLayout.THREE
WINDOW = 64 * 2**20
PAYLOAD_SIZE = 100
ROUNDS = 5
RESULTS = Path(__file__).parent.parent / "docs" / "benchmarks.md"


@dataclass
class Figure:
    """One line of the table."""

    what: str
    seconds: float
    entries: int
    size: int  # bytes; 0 where they mean nothing

    @property
    def entry_rate(self) -> float:
        return self.entries / self.seconds

    @property
    def byte_rate(self) -> float:
        return self.size / self.seconds / 1e6


def payloads(count: int, seed: int = 7) -> list[bytes]:
    random = Random(seed)
    names = [QueueName(f"queue-{number}") for number in range(8)]
    return [
        encode_delta(
            AddTask(
                queue=names[number % 8],
                key=random.randrange(10),
                payload=random.randbytes(PAYLOAD_SIZE),
            )
        )
        for number in range(count)
    ]


def write_log(path: Path, size: int) -> int:
    """Write a log of about ``size`` bytes and return the number of its entries."""
    block_entries = payloads(50_000)
    block = b"".join(encode_records(LAYOUT, 3, block_entries))
    blocks = max(1, size // len(block))
    with open(path, "wb") as file:
        file.write(encode_header(LAYOUT))
        file.writelines(block for _ in range(blocks))
        file.write(bytes(4096))
    return blocks * len(block_entries)


def best(rounds: int, action: Callable[[], int]) -> tuple[float, int]:
    """Return the shortest of several runs, and what the action counted."""
    shortest, count = float("inf"), 0
    for _ in range(rounds):
        start = time.perf_counter()
        count = action()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest, count


def windows(path: Path) -> Iterator[bytearray]:
    """Yield a file in one buffer that is filled again and again."""
    buffer = bytearray(WINDOW)
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            yield buffer if size == WINDOW else buffer[:size]


def read_only(path: Path) -> int:
    return sum(len(window) for window in windows(path)) * 0


def zlib_only(path: Path) -> int:
    register = 0
    for window in windows(path):
        register = zlib.crc32(window, register)
    return register * 0


def bulk_scan(path: Path) -> int:
    """Scan the whole file with the kernels, window by window, as a reader of a split does."""
    count, base, size = 0, LAYOUT.header_size, path.stat().st_size
    buffer = bytearray(WINDOW)
    array = np.frombuffer(buffer, dtype=np.uint8)
    with open(path, "rb", buffering=0) as file:
        while base < size:
            got = os.preadv(file.fileno(), [buffer], base)
            batches = scan_entries(array[:got], LAYOUT, start=0, size=size - base)
            position = 0
            while True:
                try:
                    count += int((next(batches).changes.op != 0).sum())
                except StopIteration as done:
                    position = done.value
                    break
            if base + position >= size or position == 0:
                return count
            base += position
    return count


def scalar_decode(path: Path) -> int:
    """Walk and decode every delta into its value, as code that wants objects does."""
    count, header = 0, LAYOUT.record_header.size
    with_file = OsFiles().open(path, write=False)
    for window in walk_windows(with_file, path, LAYOUT):
        ends = [*window.found.offsets[1:], window.found.position]
        for offset, end in zip(window.found.offsets, ends, strict=True):
            decode_delta(window.data[offset + header : end], LAYOUT.contents)
            count += 1
    with_file.close()
    return count


def plain_loop(path: Path) -> int:
    """The same answers as the bulk scan by a loop over ``struct``: what one writes first."""
    unpack_header = struct.Struct(">4sqIi").unpack_from
    unpack_body = struct.Struct(">qi").unpack_from
    checksum = crc32.mpeg_2
    rows: list[tuple[int, int, bool, int, int, int, int, int, int]] = []
    count, base, size = 0, LAYOUT.header_size, path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        while base < size:
            data = os.pread(file.fileno(), WINDOW, base)
            position, end = 0, len(data)
            rows.clear()
            while position + 20 <= end:
                marker, term, stored, length = unpack_header(data, position)
                if marker != b"\xaa\xf5\x34\xc4":
                    return count + len(rows)
                body = position + 20
                if body + length > end:
                    break
                good = checksum(data[body : body + length]) == stored
                name_size = data[body + 1]
                key, payload_size = unpack_body(data, body + 2 + name_size)
                rows.append(
                    (
                        position,
                        term,
                        good,
                        data[body],
                        body + 2,
                        name_size,
                        key,
                        body + 14 + name_size,
                        payload_size,
                    )
                )
                position = body + length
            count += len(rows)
            base += position
    return count


def recover(root: Path) -> int:
    """Open a directory as a node does and rebuild its queues."""
    node = NodeDirectory(OsFiles(), root)
    state = rebuild(node)
    node.close()
    return sum(map(len, state.queues()))


def list_tasks(root: Path) -> int:
    """Print the tasks of a directory with the command, and return the size of the output."""
    command = [sys.executable, "-m", "penstock.cli.main", "tasks", str(root)]
    with tempfile.TemporaryFile() as out:
        subprocess.run(command, stdout=out, check=True)
        return out.tell()


def append(root: Path, batches: list[list[bytes]], *, sync: bool) -> float:
    """Append batches to a fresh generation 3 log and return the seconds it took."""
    node = NodeDirectory(OsFiles(), root)
    start = time.perf_counter()
    for batch in batches:
        node.log.append(Term(1), batch)
        if sync:
            node.log.sync()
    seconds = time.perf_counter() - start
    node.close()
    return seconds


def encode_and_append(root: Path, tasks: list[list[AddTask]]) -> float:
    """Encode deltas and append them, as a node does with what it was asked."""
    node = NodeDirectory(OsFiles(), root)
    start = time.perf_counter()
    for batch in tasks:
        node.log.append(Term(1), [encode_delta(task) for task in batch])
    seconds = time.perf_counter() - start
    node.close()
    return seconds


def scans(directory: Path, size: int) -> list[Figure]:
    path = directory / "0000000000000000000.log"
    entries = write_log(path, size)
    total = path.stat().st_size
    start = time.perf_counter()
    bulk_scan(_head(path, directory))
    warm_up = time.perf_counter() - start
    figures = []
    actions: list[tuple[str, Callable[[Path], int], int]] = [
        ("reading the file, no parsing", read_only, ROUNDS),
        ("zlib.crc32 alone", zlib_only, ROUNDS),
        ("bulk scan (kernels, checksums on)", bulk_scan, ROUNDS),
        ("plain loop with struct, same columns", plain_loop, 2),
        ("scalar decode to values", scalar_decode, 1),
    ]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("scanning", total=len(actions))
        for what, action, rounds in actions:
            seconds, count = best(rounds, lambda action=action: action(path))  # type: ignore[misc]
            assert count in (0, entries), f"{what} counted {count} of {entries}"
            figures.append(Figure(what, seconds, entries, total))
            progress.advance(task)
    figures.append(
        Figure("first use of the kernels in a process, import of numba included", warm_up, 0, 0)
    )
    return figures


def _head(path: Path, directory: Path) -> Path:
    """Return a small log, to load the kernels before anything is timed."""
    small = directory / "head.log"
    small.write_bytes(path.read_bytes()[: 2**20])
    return small


def stores(directory: Path, count: int) -> list[Figure]:
    batch_payloads = payloads(1000)
    batches = [batch_payloads] * (count // 1000)
    size = sum(map(len, batch_payloads)) * len(batches)
    figures = [
        Figure(
            "append, batches of 1000, no sync",
            min(append(directory / f"append{n}", batches, sync=False) for n in range(ROUNDS)),
            count,
            size,
        ),
        Figure(
            "append, batches of 1000, a sync each",
            min(append(directory / f"synced{n}", batches[:300], sync=True) for n in range(ROUNDS)),
            300_000,
            size * 300 // len(batches),
        ),
    ]
    random = Random(3)
    queue = QueueName("orders")
    tasks = [
        [
            AddTask(queue=queue, key=random.randrange(10), payload=random.randbytes(100))
            for _ in range(1000)
        ]
        for _ in range(100)
    ] * (count // 100_000)
    figures.append(
        Figure(
            "encode and append, batches of 1000, no sync",
            min(encode_and_append(directory / f"encode{n}", tasks) for n in range(ROUNDS)),
            len(tasks) * 1000,
            0,
        )
    )
    node = NodeDirectory(OsFiles(), directory / "recover")
    create = encode_delta(CreateQueue(queue=queue, policy=Policy()))
    node.log.append(Term(1), [create])
    for batch in tasks:
        node.log.append(Term(1), [encode_delta(task) for task in batch])
    node.log.sync()
    node.close()
    seconds, recovered = best(ROUNDS, lambda: recover(directory / "recover"))
    assert recovered == len(tasks) * 1000
    figures.append(Figure("recovery: open, scan, rebuild the queues", seconds, recovered, 0))
    seconds, size = best(ROUNDS, lambda: list_tasks(directory / "recover"))
    figures.append(
        Figure("penstock tasks, its start and output included", seconds, recovered, size)
    )
    return figures


def machine() -> str:
    """Say what the figures were taken on, as far as it matters."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release().split('-')[0]},"
        f" CPython {platform.python_version()}"
    )


def show(title: str, figures: list[Figure]) -> list[str]:
    """Print a table and return it as Markdown lines."""
    table = Table(title=title, title_justify="left")
    lines = ["| what | seconds | entries/s | MB/s |", "|---|---:|---:|---:|"]
    table.add_column("what")
    for name in ("seconds", "entries/s", "MB/s"):
        table.add_column(name, justify="right")
    for figure in figures:
        row = [
            figure.what,
            f"{figure.seconds:.2f}",
            f"{figure.entry_rate:,.0f}" if figure.entries else "–",
            f"{figure.byte_rate:,.0f}" if figure.size else "–",
        ]
        table.add_row(*row)
        lines.append(f"| {' | '.join(row)} |")
    Console().print(table)
    return lines


def goals(scan: list[Figure], store: list[Figure]) -> list[str]:
    """Return the goals with what was measured, met or missed."""
    by_name = {figure.what: figure for figure in (*scan, *store)}
    bulk = by_name["bulk scan (kernels, checksums on)"]
    loop = by_name["plain loop with struct, same columns"]
    encode = by_name["encode and append, batches of 1000, no sync"]
    recovery = by_name["recovery: open, scan, rebuild the queues"]
    ratio = loop.seconds / bulk.seconds
    rows = [
        ("bulk scan, MB/s", "700 or more", f"{bulk.byte_rate:,.0f}", bulk.byte_rate >= 700),
        ("bulk scan, times the plain loop", "6 or more", f"{ratio:.1f}", ratio >= 6),
        (
            "recovery of 1 million tasks, s",
            "3 or less",
            f"{recovery.seconds:.2f}",
            recovery.seconds <= 3,
        ),
        (
            "encode and append, entries/s",
            "500,000 or more",
            f"{encode.entry_rate:,.0f}",
            encode.entry_rate >= 500_000,
        ),
    ]
    lines = ["| goal | wanted | measured | |", "|---|---:|---:|---|"]
    for what, wanted, measured, met in rows:
        word = "met" if met else "missed"
        lines.append(f"| {what} | {wanted} | {measured} | {word} |")
        Console().print(f"{what}: wanted {wanted}, measured {measured}: [bold]{word}[/]")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=int, default=1000, help="size of the scanned log")
    parser.add_argument(
        "--entries", type=int, default=1_000_000, help="entries appended and recovered"
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        scan = scans(Path(name), options.size_mb * 10**6)
        store = stores(Path(name), options.entries)
    title = f"a log of {options.size_mb} MB, {PAYLOAD_SIZE}-byte payloads, generation {Generation.THREE}"
    scan_lines = show(f"Scanning {title}", scan)
    store_lines = show("The generation 3 store", store)
    goal_lines = goals(scan, store)
    if options.write:
        text = [
            "# Benchmarks",
            "",
            "Every table here was written by the command above it; figures of another machine will differ,",
            "ratios less so.",
            "",
            "## Formats and storage: `bench/formats --write`",
            "",
            f"Machine: {machine()}.",
            f"Best of {ROUNDS} runs (of one or two for the slow loops), files in the page cache; the machine is a",
            "virtual one and its speed varies by half.",
            "",
            f"Scanning {title}, one core:",
            "",
            *scan_lines,
            "",
            f"The generation 3 store, {PAYLOAD_SIZE}-byte payloads:",
            "",
            *store_lines,
            "",
            *goal_lines,
            "",
        ]
        # What the other benchmarks wrote stands behind their marks and stays.
        _, mark, rest = RESULTS.read_text().partition("<!-- ")
        RESULTS.write_text("\n".join(text) + ("\n" + mark + rest if mark else ""))
        sys.stderr.write(f"wrote {RESULTS.name}\n")


if __name__ == "__main__":
    main()
