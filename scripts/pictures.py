"""Draws the pictures of the documentation, each from a real run.

docs/images/inspect.svg: a terminal in which a flipped bit is found; docs/images/stat.svg: a node at work.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from rich.console import Console
from rich.text import Text

import demo
import demo_files
import penstock
from penstock.cli.node import chosen
from penstock.cli.watch import Sample, Screen, watch
from penstock.client.blocking import Client
from penstock.formats.taskflux.generation import Generation

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH = 110
WATCHED_SECONDS = 6.0
CELL = 12.2  # the width of a letter in rich's pictures
LEADING = re.compile(
    r'(<text [^>]*\bx=")([\d.]+)("[^>]*textLength=")([\d.]+)("[^>]*>)((?:&#160;)+)(?=[^<&])'
)


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        draw_inspect(Path(name))
    with tempfile.TemporaryDirectory() as name:
        draw_stat(Path(name))


def draw_inspect(root: Path) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    demo_files.write_generation(root / "node", Generation.TWO)
    demo_files.flip_one_bit(root / "node" / "consensus" / "log.raft")
    for arguments in (
        ["tasks", "node", "--at", "2"],
        ["verify", "node"],
        ["inspect", "node", "--table"],
    ):
        console.print(Text(f"$ penstock {' '.join(arguments)}", style="bold green"))
        command = [sys.executable, "-m", "penstock.cli.main", *arguments]
        done = subprocess.run(  # noqa: S603
            command,
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={"COLUMNS": f"{WIDTH}", "PATH": ""},
        )
        console.print(Text.from_ansi(done.stdout.rstrip()))
        console.print()
    save(console, "inspect.svg")


def draw_stat(root: Path) -> None:
    """Let workers work on a node, watch it as ``penstock stat --watch`` does, and keep the last view."""
    node = demo.NodeProcess(root / "node")
    try:
        with penstock.connect(node.address) as client:
            for queue in ("invoices", "letters", "failed", "reminders"):
                client.create_queue(queue)
            client.enqueue_many("reminders", [b"remind"] * 1200, delay=3600)
            client.enqueue_many("invoices", [b"invoice"] * 30_000)
            screen = Screen(node.address, Console(width=WIDTH, height=40, file=io.StringIO()))
            is_over = Event()
            workers = [
                Thread(target=work, args=(node.address, is_over, step))
                for step in (produce, consume)
            ]
            for worker in workers:
                worker.start()
            watch(
                lambda: Sample.take(client.node(), chosen(client, [])),
                screen,
                interval=WATCHED_SECONDS / 20,
                seconds=WATCHED_SECONDS,
            )
            is_over.set()
            for worker in workers:
                worker.join()
    finally:
        node.kill()
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ penstock stat --watch", style="bold green"))
    console.print(screen.view())
    save(console, "stat.svg")


def work(address: str, is_over: Event, step: Callable[[Client, int], None]) -> None:
    turn = 0
    with penstock.connect(address) as client:
        while not is_over.wait(0.02):
            turn += 1
            step(client, turn)


def produce(client: Client, turn: int) -> None:
    client.enqueue_many("letters", [b"letter"] * (40 + turn % 30))
    if turn % 10 == 0:
        client.enqueue_many("failed", [b"no such address"])


def consume(client: Client, turn: int) -> None:
    client.ack(client.dequeue_many("invoices", 100))
    letters = client.dequeue_many("letters", 50)
    client.nack(letters[:1])
    if turn % 12:
        client.ack(letters[1:])  # else they stay out on lease


def save(console: Console, name: str) -> None:
    svg = console.export_svg(title="penstock")
    # The picture must show without the network, so fonts come from the reader's machine.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    (IMAGES / name).write_text(LEADING.sub(_indent, svg))


def _indent(found: re.Match[str]) -> str:
    """Begin a text where its first letter is: some programs drop the blanks before it."""
    before, x, between, length, after, blanks = found.groups()
    width = CELL * blanks.count(";")
    return f"{before}{float(x) + width:g}{between}{float(length) - width:g}{after}"


if __name__ == "__main__":
    main()
