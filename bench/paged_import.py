"""Figures of reading a RabbitMQ directory in bulk: of many small embedded messages, and of large stored ones.

Run by ``bench/paged``; prints a table and, with ``--write``, puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from formats import RESULTS, best, machine
from penstock.families.rabbitmq.columns import read_columns
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Bodies, Wanted, read_queue
from penstock.formats.rabbitmq import message_store, segment
from penstock.formats.rabbitmq.journal import Publish
from penstock.formats.rabbitmq.messages import Content, Message, encode_message
from penstock.formats.rabbitmq.names import (
    StoredQueue,
    encode_config,
    encode_queue_name,
    vhost_directory,
)
from penstock.formats.rabbitmq.properties import (
    Header,
    Kind,
    Properties,
    Value,
    encode_properties,
)
from penstock.storage.files import OpenFiles

VHOST = b"/"
QUEUE = b"orders"
SMALL_BODY = 100
LARGE_BODY = 100_000
STORE_FILE_SIZE = 16 * 2**20
BLOCK = 4 * 2**20
GOAL_MESSAGES, GOAL_MB = 400_000, 300
BEGIN, END = "<!-- paged-import:begin -->", "<!-- paged-import:end -->"

# Values that are found again in an encoded message, and replaced by each message's own.
KEY_MARK, CHECKSUM_MARK = 0x0102030405060708, 0x1112131415161718
ID_MARK = bytes(range(0xC0, 0xD0))


@dataclass
class Figure:
    """One line of the table."""

    what: str
    seconds: float
    cpu_seconds: float  # of all threads and children; it says more than the time on a busy machine
    messages: int
    size: int

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def byte_rate(self) -> float:
        return self.size / self.seconds / 1e6

    @property
    def is_enough(self) -> bool:
        """Whether the goal is met: so many small messages, or so many bytes, whichever binds."""
        return self.rate >= GOAL_MESSAGES or self.byte_rate >= GOAL_MB


# --- directories ---------------------------------------------------------------------------------


def message_of(body_size: int) -> bytes:
    """Return a message as a paged queue stores a task: its properties are of no two messages the same."""
    headers = (
        Header(b"key", Value(Kind.INT64, KEY_MARK)),
        Header(b"checksum", Value(Kind.INT64, CHECKSUM_MARK)),
    )
    block = encode_properties(Properties(headers=headers, delivery_mode=2))
    return encode_message(
        Message(
            vhost=VHOST,
            exchange=b"",
            routing_keys=(QUEUE,),
            content=Content(stored_properties=block, fragments=(b"\xa5" * body_size,)),
            id=ID_MARK,
            is_persistent=True,
        )
    )


def numbered(template: bytes, numbers: NDArray[np.int64], random: Random) -> NDArray[np.uint8]:
    """Return a record for each number, with an id, a checksum and a body of its own."""
    records = np.tile(np.frombuffer(template, dtype=np.uint8), (len(numbers), 1))
    digits = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    hashed = (numbers * 2654435761 % 2**32).astype(">u8").view(np.uint8).reshape(-1, 8)
    for mark, value in (
        (KEY_MARK.to_bytes(8, "big"), digits * 0),
        (CHECKSUM_MARK.to_bytes(8, "big"), hashed),
        (ID_MARK[:8], hashed),
        (ID_MARK[8:], digits),
    ):
        place = template.find(mark)
        while place >= 0:
            records[:, place : place + 8] = value
            place = template.find(mark, place + 1)
    place, end = template.find(b"\xa5" * 16), template.rfind(b"\xa5") + 1
    if place >= 0:
        bodies = np.frombuffer(random.randbytes((end - place) * min(len(numbers), 64)), np.uint8)
        bodies = bodies.reshape(-1, end - place)
        records[:, place:end] = bodies[np.arange(len(numbers)) % len(bodies)]
    return records


def empty_queue(root: Path, entry_count: int) -> Path:
    """Return the directory of a queue in a new data directory."""
    home = root / "msg_stores" / "vhosts" / vhost_directory(VHOST)
    stored = StoredQueue(vhost=VHOST, queue=QUEUE, priority=None, version=1)
    queue = home / "queues" / stored.directory
    queue.mkdir(parents=True)
    (home / "msg_store_persistent").mkdir()
    (home / ".vhost").write_bytes(VHOST)
    (home / ".config").write_bytes(encode_config(entry_count))
    (queue / ".queue_name").write_bytes(encode_queue_name(stored))
    return queue


def write_segments(queue: Path, count: int, entry_count: int, body_size: int, term: bytes) -> None:
    """Write the index of ``count`` messages, each published and delivered."""
    publish = Publish(
        message_id=ID_MARK, is_persistent=True, expiry_us=0, body_size=body_size, embedded=term
    )
    template = segment.encode_publish(0, publish) + segment.encode_deliver_or_ack(0)
    random = Random(7)
    for first in range(0, count, entry_count):
        numbers = np.arange(first, min(first + entry_count, count), dtype=np.int64)
        records = numbered(template, numbers, random)
        relative = (numbers - first).astype(">u2").view(np.uint8).reshape(-1, 2)
        records[:, :2] |= relative
        records[:, -2:] |= relative
        path = queue / segment.segment_name(first // entry_count)
        # A broker writes what it flushes from the highest number down.
        path.write_bytes(np.ascontiguousarray(records[::-1]).tobytes())


def write_store(queue: Path, count: int, body_size: int) -> None:
    """Write the messages themselves in the order in which they were published."""
    template = message_store.encode_record(ID_MARK, message_of(body_size))
    random = Random(7)
    step = max(1, STORE_FILE_SIZE // len(template))
    store = queue.parent.parent / "msg_store_persistent"
    for number, first in enumerate(range(0, count, step)):
        numbers = np.arange(first, min(first + step, count), dtype=np.int64)
        path = store / message_store.store_name(number)
        path.write_bytes(numbered(template, numbers, random).tobytes())


def small_messages(root: Path, count: int, entry_count: int) -> None:
    queue = empty_queue(root, entry_count)
    write_segments(queue, count, entry_count, SMALL_BODY, message_of(SMALL_BODY))


def large_messages(root: Path, count: int, entry_count: int) -> None:
    queue = empty_queue(root, entry_count)
    write_segments(queue, count, entry_count, LARGE_BODY, b"")
    write_store(queue, count, LARGE_BODY)


# --- measuring -----------------------------------------------------------------------------------


def read_only(root: Path) -> int:
    """Read every file into one buffer, over and over."""
    buffer = bytearray(BLOCK)
    for path in sorted(root.rglob("*")):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return 0


def in_columns(root: Path) -> int:
    return _count(root, lambda *given: sum(map(len, read_columns(*given, report=_refuse))))


def one_by_one(root: Path) -> int:
    return _count(root, lambda *given: sum(1 for _ in read_queue(*given, report=_refuse)))


def _count(root: Path, count: Callable[..., int]) -> int:
    total = 0
    for vhost in resolve(root).vhosts:
        with OpenFiles() as files:
            bodies = Bodies(vhost=vhost, files=files, report=_refuse)
            total += sum(count(queue, bodies, Wanted(as_of_us=0)) for queue in vhost.queues)
    return total


def _refuse(damage: Any) -> None:
    raise AssertionError(f"the directory is not whole: {damage}")


def command(root: Path) -> int:
    """Run the command itself, its start included."""
    penstock = str(Path(sys.executable).with_name("penstock"))
    with open(os.devnull, "wb") as nowhere:
        subprocess.run([penstock, "tasks", str(root)], stdout=nowhere, check=True)
    return 0


def cpu_seconds() -> float:
    """Return the processor time of this process and of the children that have ended."""
    mine, theirs = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def measure(
    root: Path, count: int, rounds: int, *, scalar: bool, advance: Callable[[], None]
) -> list[Figure]:
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    actions: list[tuple[str, Callable[[Path], int], int]] = [
        ("reading the files, no parsing", read_only, rounds),
        ("read_columns", in_columns, rounds),
        ("penstock tasks > /dev/null", command, rounds),
    ]
    if scalar:
        actions.append(("read_queue, an object a message", one_by_one, 1))
    in_columns(root)  # loads the kernels
    figures = []
    for what, action, times in actions:
        before = cpu_seconds()
        seconds, counted = best(times, lambda action=action: action(root))  # type: ignore[misc]
        assert counted in (0, count), f"{what} counted {counted} of {count}"
        used = (cpu_seconds() - before) / times
        figures.append(Figure(what, seconds, used, count, size))
        advance()
    return figures


# --- showing -------------------------------------------------------------------------------------


def show(title: str, figures: list[Figure]) -> list[str]:
    """Print a table and return it as Markdown lines."""
    table = Table(title=title, title_justify="left")
    names = ("seconds", "CPU seconds", "messages/s", "MB/s", "times reading alone")
    table.add_column("what")
    for name in names:
        table.add_column(name, justify="right")
    lines = [f"| what | {' | '.join(names)} |", "|---|---:|---:|---:|---:|---:|"]
    for figure in figures:
        row = [
            figure.what,
            f"{figure.seconds:.2f}",
            f"{figure.cpu_seconds:.2f}",
            f"{figure.rate:,.0f}",
            f"{figure.byte_rate:,.0f}",
            f"{figure.seconds / figures[0].seconds:.1f}",
        ]
        table.add_row(*row)
        lines.append(f"| {' | '.join(row)} |")
    Console().print(table)
    imported = figures[2]
    word = "met" if imported.is_enough else "missed"
    goal = f"Goal, {GOAL_MESSAGES:,} messages/s or {GOAL_MB} MB/s with the command: {word}."
    Console().print(goal)
    return [f"{title}:", "", *lines, "", goal, ""]


def write(lines: list[str], rounds: int, loads: tuple[float, float]) -> None:
    """Put the figures into their place of the page, or at its end."""
    head = [
        BEGIN,
        "## Reading a RabbitMQ directory: `bench/paged --write`",
        "",
        f"Machine: {machine()}.",
        f"Best of {rounds} runs, processor time on average, files in the page cache. The command's time has the start",
        f"of the process in it. Load of the machine before and after: {loads[0]:.1f} and {loads[1]:.1f}.",
        "",
    ]
    section = "\n".join([*head, *lines, END])
    page = RESULTS.read_text()
    if BEGIN in page:
        before, _, rest = page.partition(BEGIN)
        _, _, behind = rest.partition(END)
        page = before + section + behind
    else:
        page = page.rstrip("\n") + "\n\n" + section + "\n"
    RESULTS.write_text(page)
    sys.stderr.write(f"wrote {RESULTS.name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=1_000_000, help="small messages; 0 is none")
    parser.add_argument("--large", type=int, default=20_000, help="large messages; 0 is none")
    parser.add_argument("--entry-count", type=int, default=16_384, help="entries of a segment")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scalar", action="store_true", help="also read one message at a time")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    kinds = [
        ("small", options.small, SMALL_BODY, small_messages),
        ("large", options.large, LARGE_BODY, large_messages),
    ]
    kinds = [kind for kind in kinds if kind[1]]
    lines: list[str] = []
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("measuring", total=len(kinds) * (4 + options.scalar))
        for kind, count, body_size, make in kinds:
            root = Path(name) / kind
            make(root, count, options.entry_count)
            progress.advance(task)
            figures = measure(
                root,
                count,
                options.rounds,
                scalar=options.scalar,
                advance=lambda: progress.advance(task),
            )
            where = "embedded in the index" if kind == "small" else "in the message store"
            title = f"{count:,} messages of {body_size:,} bytes, {where}"
            lines += show(title, figures)
    loads = (load, os.getloadavg()[0])
    Console().print(f"Load of the machine before and after: {loads[0]:.1f} and {loads[1]:.1f}.")
    if options.write:
        write(lines, options.rounds, loads)


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    sys.stderr.write(f"took {time.perf_counter() - started:.0f} s\n")
