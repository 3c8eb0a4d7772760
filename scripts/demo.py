"""The demonstration: a node is killed in the middle of its work, and nothing is lost, nothing comes twice.

100,000 tasks go in, workers take some of them out, and an account is kept of what they were promised. Then
`kill -9`, a new process on the same directory, and a comparison of what is left with the account, task by
task, first through the node and then in its files at rest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import demo_files
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import penstock
from penstock.client.blocking import Client
from penstock.client.values import Delivery

console = Console()

QUEUE = "orders"
COUNT = 100_000
KEYS = 10  # task i has the key i % 10; the smallest key comes out first
ACKED_BEFORE_KILL = 35_000
BATCH = 500
HELD = 250  # tasks that a slow worker has in its hands when the node dies

Task = tuple[int, int, bytes]
"""(key, id, payload): sorts in the order of delivery."""


class DemoFailed(Exception):
    """Something is not as it should be."""


class NodeProcess:
    """``penstock serve`` in a process of its own."""

    def __init__(self, data: Path, listen: str = "127.0.0.1:0") -> None:
        words = ["serve", "--data", str(data), "--listen", listen]
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "penstock.cli.main", *words], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        heard: list[str] = []
        for line in self._process.stderr:
            heard.append(line)
            if '"listening"' in line:
                self.started: dict[str, Any] = json.loads(line)
                self.address: str = self.started["address"]
                break
        else:
            raise DemoFailed("the node did not start: " + "".join(heard))
        self._words = Thread(target=self._process.stderr.read, daemon=True)
        self._words.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Do what `kill -9` does; harmless when it has ended."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end, as `kill` does."""
        self._process.terminate()
        if self._process.wait(timeout=60):
            raise DemoFailed("the node did not stop as it should")


@dataclass
class Account:
    """What the workers were promised."""

    enqueued: dict[int, Task] = field(default_factory=dict)  # by id
    acked: set[int] = field(default_factory=set)  # the node said: done
    # An ack was under way when the node died: done or not, and both are right.
    asked: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)  # out on lease, never acked
    problem: DemoFailed | None = None  # what the worker saw


def payload_of(number: int) -> bytes:
    return b"order %06d: %s" % (number, b"." * (number % 64))


def enqueue(client: Client, account: Account) -> None:
    """Put all tasks in, and show how it goes."""
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
    console.print(f"{COUNT:,} tasks are in and on the disk, {COUNT / seconds:,.0f} a second.")


def work(address: str, account: Account, has_done_enough: Event) -> None:
    """Take tasks out and ack them until the node is gone."""
    with penstock.connect(address, retry=0.0) as client:
        try:
            while True:  # It ends with the node.
                deliveries = client.dequeue_many(QUEUE, BATCH)
                check_order(deliveries, account)
                account.asked = {each.id for each in deliveries}
                client.ack(deliveries)
                account.acked |= account.asked
                account.asked = set()
                if len(account.acked) >= ACKED_BEFORE_KILL:
                    has_done_enough.set()
        except (penstock.ConnectionFailed, penstock.LeaseLost):
            return
        except DemoFailed as error:
            account.problem = error
        finally:
            has_done_enough.set()


def check_order(deliveries: list[Delivery], account: Account) -> None:
    """Compare what was delivered with what was enqueued."""
    for each in deliveries:
        if account.enqueued[each.id] != (each.key, each.id, each.payload):
            raise DemoFailed(f"task {each.id} came out as something else")


def crash(node: NodeProcess, account: Account) -> None:
    """Let two workers work, and kill the node while they do."""
    with penstock.connect(node.address, retry=0.0) as slow:
        account.held = {each.id for each in slow.dequeue_many(QUEUE, HELD)}
        has_done_enough = Event()
        worker = Thread(target=work, args=(node.address, account, has_done_enough))
        worker.start()
        has_done_enough.wait()
        node.kill()
        worker.join()
    if account.problem is not None:
        raise account.problem
    if len(account.acked) < ACKED_BEFORE_KILL:
        raise DemoFailed("the worker ended before the node did")
    console.print(f"[bold red]kill -9 {node.pid}[/] in the middle of it.")
    console.print(f"  {len(account.acked):>7,} tasks were acked: these must be gone")
    console.print(f"  {len(account.held):>7,} tasks were out on lease: these must come back")
    console.print(
        f"  {len(account.asked):>7,} tasks had an ack under way: gone or not, both are right"
    )


def drain(client: Client) -> list[Task]:
    """Return all that the queue delivers, in its order; nothing is acked, so all of it goes back."""
    tasks: list[Task] = []
    while deliveries := client.dequeue_many(QUEUE, 1000):
        tasks += [(each.key, each.id, each.payload) for each in deliveries]
    return tasks


def compare(found: list[Task], account: Account, where: str) -> None:
    """Say whether exactly the right tasks are there, in the right order. Raises ``DemoFailed``."""
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
    expected = sorted(account.enqueued[task_id] for task_id in there)
    if found != expected:
        wrong = next(
            n for n, pair in enumerate(zip(found, expected, strict=False)) if len(set(pair)) > 1
        )
        raise DemoFailed(
            f"{where}: number {wrong} is {found[wrong]} and should be {expected[wrong]}"
        )
    console.print(
        f"[bold green]✓[/] {where}: {len(found):,} tasks, exactly those that must be there,"
        " in order, byte for byte."
    )


def read_at_rest(root: Path) -> list[Task]:
    """Return what the command line finds in the files of a node that does not run."""
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
        raise DemoFailed(f"penstock tasks ended with {done.returncode}")
    rows = map(json.loads, lines)
    return [(row["key"], row["id"], b64decode(row["payload"])) for row in rows]


def survive(root: Path) -> None:
    """The first act. Raises ``DemoFailed``."""
    console.rule("[bold]A node dies in the middle of its work")
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
        node.stop()
    finally:
        node.kill()
    console.print()
    console.rule("[bold]The same, read from its files")
    if demo_files.penstock(console, "inspect", "node", "--table", directory=root):
        raise DemoFailed("penstock inspect found damage")
    console.print(
        "[dim]Its count has the notes in it that a node keeps for itself: attempts, settings.[/]"
    )
    compare(read_at_rest(root), account, "in the files at rest")
    console.print()


@contextmanager
def place_for_files(keep: Path | None) -> Iterator[Path]:
    """Give a new directory, kept if a name was given, else gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
            yield Path(name)
    else:
        if keep.exists():
            sys.exit(f"{keep} is there already; name a new directory")
        keep.mkdir()
        yield keep


def say_what_next(keep: Path | None) -> None:
    console.rule("[bold]What to try next")
    if keep is None:
        console.print(
            "scripts/demo --keep example                 [dim]# the same, and the files stay[/]"
        )
    root = keep or "example"
    console.print(
        f".venv/bin/penstock serve --data {root}/node    [dim]# a node; in another terminal:[/]\n"
        ".venv/bin/penstock stat --watch\n"
        f".venv/bin/penstock enqueue {QUEUE} --key -1 'answer the phone'\n"
        f".venv/bin/penstock dequeue {QUEUE}\n"
        ".venv/bin/penstock --help",
        highlight=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="leave the files in this new directory"
    )
    keep = parser.parse_args().keep
    with place_for_files(keep) as root:
        try:
            survive(root)
            if not demo_files.show(console, root):
                raise DemoFailed("a command did not end as it should")
        except (DemoFailed, penstock.PenstockError) as error:
            console.print(
                f"[bold red]✗ The demonstration did not go as it should:[/] {escape(str(error))}"
            )
            sys.exit(1)
    console.print("[bold green]Everything went as it should.[/]\n")
    say_what_next(keep)


if __name__ == "__main__":
    main()
