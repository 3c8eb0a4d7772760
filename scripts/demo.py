"""The demonstration: a node is killed in the middle of its work, and no task is lost or delivered twice.

It enqueues 100,000 tasks, lets workers dequeue some of them, and records what the node acknowledged. Then it kills the node
with `kill -9`, starts a new one on the same directory, and compares the remaining tasks with its record, task by task: first
through the node, then in the files at rest. Spark turns the same files into tables and a page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import webbrowser
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import demo_files
import penstock
from penstock.client.blocking import Client
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.verify import inspect

console = Console()

REPORT = Path("demo/report.html").absolute()
QUEUE = "orders"
COUNT = 100_000
KEYS = 10  # task i has the key i % 10; the smallest key comes out first
ACKED_BEFORE_KILL = 35_000
WORKERS = 3
BATCH = 500
HELD = 250  # tasks that one more worker, a slow one, has in its hands when the node dies

STEPS = (
    ("A node is killed and loses nothing", 10),
    ("Files of three generations, damage and repair", 8),
    ("The same files as Spark tables", 60),
)
"""Titles, and the seconds that each usually takes on two cores."""

Task = tuple[int, int, bytes]
"""(key, id, payload): sorts in the order of delivery."""


class DemoFailed(Exception):
    """A result differs from what it must be."""


def announce() -> None:
    """Print the steps and how long they usually take."""
    total = sum(seconds for _, seconds in STEPS)
    console.print(f"[bold]Penstock[/]: {len(STEPS)} steps, usually {total} s in all.")
    for number, (title, seconds) in enumerate(STEPS, 1):
        console.print(f"  {number}. {title} [dim]({seconds} s)[/]")
    console.print()


@contextmanager
def step(number: int) -> Iterator[None]:
    """Print the title of a step before it, and how long it took after it."""
    title, usual = STEPS[number - 1]
    console.rule(f"[bold]{number}. {title}")
    begun = time.monotonic()
    yield
    taken = time.monotonic() - begun
    console.print(f"[dim]Step {number} took {taken:.0f} s; {usual} s are usual.[/]\n")


class NodeProcess:
    """``penstock serve`` in a process of its own."""

    def __init__(self, data: Path, listen: str = "127.0.0.1:0") -> None:
        words = ["serve", "--data", str(data), "--listen", listen]
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "penstock.cli.main", *words], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        lines: list[str] = []
        for line in self._process.stderr:
            lines.append(line)
            if '"listening"' in line:
                self.started: dict[str, Any] = json.loads(line)
                self.address: str = self.started["address"]
                break
        else:
            raise DemoFailed("the node did not start: " + "".join(lines))
        self._words = Thread(target=self._process.stderr.read, daemon=True)
        self._words.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End the process as `kill -9` does. Does nothing if it has ended."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the node as `kill` does."""
        self._process.terminate()
        if self._process.wait(timeout=60):
            raise DemoFailed("the node did not stop with exit code 0")


@dataclass
class Account:
    """What the node acknowledged."""

    enqueued: dict[int, Task] = field(default_factory=dict)  # by id
    acked: set[int] = field(default_factory=set)  # the node confirmed the ack
    # The node was killed between the ack and its answer: removed or not, both are correct.
    asked: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)  # leased, never acked


def payload_of(number: int) -> bytes:
    return b"order %06d: %s" % (number, b"." * (number % 64))


def enqueue(client: Client, account: Account) -> None:
    """Enqueue all tasks with a progress bar."""
    client.create_queue(QUEUE)
    begun = time.monotonic()
    with Progress(
        TextColumn("enqueueing"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as progress:
        shown = progress.add_task("", total=COUNT)
        for first in range(0, COUNT, 10_000):
            numbers = range(first, first + 10_000)
            payloads = [payload_of(number) for number in numbers]
            keys = [number % KEYS for number in numbers]
            ids = client.enqueue_many(QUEUE, payloads, keys=keys)
            for task_id, key, payload in zip(ids, keys, payloads, strict=True):
                account.enqueued[task_id] = (key, task_id, payload)
            progress.advance(shown, len(numbers))
    seconds = time.monotonic() - begun
    console.print(f"{COUNT:,} tasks enqueued and synced, {COUNT / seconds:,.0f} a second.")


class Worker(Thread):
    """Dequeues and acks tasks until the node is gone."""

    def __init__(self, address: str, enqueued: dict[int, Task], done: Semaphore) -> None:
        super().__init__()
        self._client = penstock.connect(address, retry=0.0)
        self._enqueued = enqueued
        self._done = done  # released for every batch
        self.acked: set[int] = set()
        self.asked: set[int] = set()
        self.problem: str | None = None

    def run(self) -> None:
        with self._client:
            try:
                while self.problem is None:  # It ends with the node.
                    self._work(self._client)
                    self._done.release()
            except (penstock.ConnectionFailed, penstock.LeaseLost):
                return
            finally:
                self._done.release(
                    ACKED_BEFORE_KILL
                )  # the main thread must not wait for a worker that has ended

    def _work(self, client: Client) -> None:
        deliveries = client.dequeue_many(QUEUE, BATCH)
        for each in deliveries:
            if self._enqueued[each.id] != (each.key, each.id, each.payload):
                self.problem = f"task {each.id} was delivered with another key or payload"
        self.asked = {each.id for each in deliveries}
        client.ack(deliveries)
        self.acked |= self.asked
        self.asked = set()


def crash(node: NodeProcess, account: Account) -> None:
    """Start workers, and kill the node while they work. Raises ``DemoFailed``."""
    done = Semaphore(0)
    with penstock.connect(node.address, retry=0.0) as slow:
        account.held = {each.id for each in slow.dequeue_many(QUEUE, HELD)}
        workers = [Worker(node.address, account.enqueued, done) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for _ in range(ACKED_BEFORE_KILL // BATCH):
            done.acquire()
        node.kill()
        for worker in workers:
            worker.join()
    for worker in workers:
        account.acked |= worker.acked
        account.asked |= worker.asked
        if worker.problem is not None:
            raise DemoFailed(worker.problem)
    if len(account.acked) < ACKED_BEFORE_KILL:
        raise DemoFailed("the workers ended before the node did")
    console.print(f"[bold red]kill -9 {node.pid}[/] while {WORKERS} workers dequeue tasks.")
    console.print(f"  {len(account.acked):>7,} tasks were acked: they must be gone")
    console.print(f"  {len(account.held):>7,} tasks were leased: they must be back")
    console.print(
        f"  {len(account.asked):>7,} acks were not answered yet: their tasks may be gone or not"
    )


def drain(client: Client) -> list[Task]:
    """Return all that the queue delivers, in order. Nothing is acked, so all tasks return to the queue."""
    tasks: list[Task] = []
    while deliveries := client.dequeue_many(QUEUE, 1000):
        tasks += [(each.key, each.id, each.payload) for each in deliveries]
    return tasks


def compare(found: list[Task], account: Account, where: str) -> None:
    """Check that exactly the right tasks are there, in order. Raises ``DemoFailed``."""
    there = {task_id for _, task_id, _ in found}
    lost = account.enqueued.keys() - account.acked - account.asked - there
    undead = there & account.acked
    strangers = there - account.enqueued.keys()
    for what, which in (
        ("lost", lost),
        ("back from the dead", undead),
        ("never enqueued", strangers),
    ):
        if which:
            raise DemoFailed(f"{where}: {len(which)} tasks are {what}: {sorted(which)[:5]} …")
    if len(there) != len(found):
        raise DemoFailed(f"{where}: {len(found) - len(there)} tasks came twice")
    expected = sorted(account.enqueued[task_id] for task_id in there)
    if found != expected:
        wrong = next(
            n for n, pair in enumerate(zip(found, expected, strict=False)) if len(set(pair)) > 1
        )
        raise DemoFailed(
            f"{where}: number {wrong} is {found[wrong]} and should be {expected[wrong]}"
        )
    console.print(
        f"[bold green]✓[/] {where}: {len(found):,} tasks, exactly those that must remain, in order."
    )


def read_at_rest(root: Path) -> list[Task]:
    """Return the tasks that the command line reads from the files, without a node."""
    words = ["tasks", "node", "--queue", QUEUE]
    console.print(f"[bold green]$ penstock {' '.join(words)} | head --lines 3[/]")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "penstock.cli.main", *words],
        cwd=root,
        stdout=subprocess.PIPE,
        check=False,
    )
    lines = done.stdout.splitlines()
    for line in lines[:3]:
        console.print(escape(line.decode()), highlight=False, soft_wrap=True)
    if done.returncode:
        raise DemoFailed(f"penstock tasks exited with {done.returncode}")
    rows = map(json.loads, lines)
    return [(row["key"], row["id"], b64decode(row["payload"])) for row in rows]


def survive(root: Path) -> None:
    """Kill a node under load and compare what remains. Raises ``DemoFailed``."""
    account = Account()
    node = NodeProcess(root / "node")
    try:
        console.print(f"A node listens on {node.address} and keeps its files in {root / 'node'}.")
        with penstock.connect(node.address) as client:
            enqueue(client, account)
        crash(node, account)
        node = NodeProcess(root / "node", node.address)
        seconds = node.started["recovery_seconds"]
        console.print(f"A new process on the same directory was ready after {seconds:.2f} s.")
        with penstock.connect(node.address) as client:
            compare(drain(client), account, "through the node")
        words = ["peek", QUEUE, "--count", "3", "--table", "--node", node.address]
        if demo_files.penstock(console, *words, directory=root):
            raise DemoFailed("penstock peek failed")
        node.stop()
    finally:
        node.kill()
    console.print("The node has stopped. The commands below read its files.")
    if demo_files.penstock(console, "inspect", "node", "--table", directory=root):
        raise DemoFailed("penstock inspect found damage")
    found = read_at_rest(root)
    compare(found, account, "in the files at rest")
    counted = inspect(resolve(root / "node"))["tasks"]
    if counted != len(found):
        raise DemoFailed(f"penstock inspect counts {counted} tasks, penstock tasks {len(found)}")


@contextmanager
def place_for_files(keep: Path | None) -> Iterator[Path]:
    """Yield a new directory: ``keep``, or a temporary one that is removed at the end."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
            yield Path(name)
    else:
        if keep.exists():
            sys.exit(f"{keep} exists; name a new directory")
        keep.mkdir()
        yield keep


def report(root: Path) -> Path:
    """Run the pipeline over the files and return the page that it made. Raises ``DemoFailed``."""
    words = ["pipeline", "run", "--in", "node", "--out", "tables"]
    if demo_files.penstock(console, *words, directory=root):
        raise DemoFailed("penstock pipeline run failed")
    REPORT.parent.mkdir(exist_ok=True)
    page = (root / "tables" / "current" / "report.html").read_bytes()
    REPORT.write_bytes(page)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(REPORT.as_uri())
    return REPORT


def suggest(keep: Path | None) -> None:
    """Print commands to try next."""
    console.rule("[bold]What to try next")
    if keep is None:
        console.print(
            "scripts/demo --keep example                 [dim]# run again and keep the files[/]"
        )
    root = keep or "example"
    console.print(
        f".venv/bin/penstock serve --data {root}/node    [dim]# a node; then, in another terminal:[/]\n"
        ".venv/bin/penstock stat --watch\n"
        f".venv/bin/penstock enqueue {QUEUE} --key -1 'answer the phone'\n"
        f".venv/bin/penstock dequeue {QUEUE} --raw --lines\n"
        ".venv/bin/penstock --help",
        highlight=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="leave the files in this new directory"
    )
    keep = parser.parse_args().keep
    announce()
    with place_for_files(keep) as root:
        try:
            with step(1):
                survive(root)
            with step(2):
                if not demo_files.show(console, root):
                    raise DemoFailed("a command did not exit as expected")
            with step(3):
                page = report(root)
        except (DemoFailed, penstock.PenstockError) as error:
            console.print(f"[bold red]✗ The demonstration failed:[/] {escape(str(error))}")
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(130)
    console.print("[bold green]✓ All checks passed.[/] The page about the node's files:")
    console.print(f"  {escape(str(page))}\n", soft_wrap=True)
    suggest(keep)


if __name__ == "__main__":
    main()
