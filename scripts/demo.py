"""The demonstration: files of every generation, what the tools see in them, damage found, a conversion."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.model import (
    AddTask,
    Command,
    CreateCommand,
    CreateQueue,
    Delta,
    Dequeue,
    Enqueue,
    HardState,
    Index,
    NodeId,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.queues.replay import Queues
from penstock.tools.new_directory import new_directory

console = Console()
ORDERS = QueueName("orders")
STATE = HardState(term=Term(2), vote=NodeId(1))


def write_generation_1(root: Path) -> None:
    """A log of requests: create, three enqueues, one dequeue."""
    home = root / "consensus"
    home.mkdir(parents=True)
    commands: list[Command] = [
        CreateCommand(queue=ORDERS, size_max=100),
        Enqueue(queue=ORDERS, key=5, payload=b"write the invoice"),
        Enqueue(queue=ORDERS, key=1, payload=b"answer the phone"),
        Enqueue(queue=ORDERS, key=5, payload=b"send the invoice"),
        Dequeue(queue=ORDERS),
    ]
    records = [
        encode_record(LogLayout.ONE_B, term=1, payload=encode_command(command))
        for command in commands
    ]
    (home / "raft.log").write_bytes(encode_header(LogLayout.ONE_B) + b"".join(records))
    (home / "raft.metadata").write_bytes(encode_metadata(STATE, Generation.ONE))


def write_generation(root: Path, generation: Generation) -> None:
    """A snapshot of two tasks, and a log of what changed since."""
    add_first = AddTask(queue=ORDERS, key=5, payload=b"write the invoice")
    add_second = AddTask(queue=ORDERS, key=1, payload=b"answer the phone")
    queues = Queues()
    for delta in (CreateQueue(queue=ORDERS, policy=Policy(size_max=100)), add_first, add_second):
        queues.apply(delta)
    removal: Delta = RemoveTask(queue=ORDERS, id=TaskId(2))
    if generation is Generation.TWO:
        removal = RemoveEqualTask(queue=ORDERS, key=add_second.key, payload=add_second.payload)
    with new_directory(root, generation) as new:
        new.write_snapshot(SnapshotPoint(index=Index(2), term=Term(1)), queues)
        new.append(2, encode_delta(AddTask(queue=ORDERS, key=5, payload=b"send the invoice")))
        new.append(2, encode_delta(removal))
        new.commit()
        new.write_metadata(STATE)


def penstock(*arguments: str, directory: Path) -> int:
    """Run the command as a person would, and show it."""
    console.print(f"[bold green]$ penstock {' '.join(arguments)}[/]")
    sys.stdout.flush()
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    code = subprocess.run(command, cwd=directory, check=False).returncode  # noqa: S603
    console.print(f"[dim](exit {code})[/]\n")
    return code


def flip_one_bit(path: Path) -> None:
    """Do to a log what a tired disk does: turn over one bit inside the first record's payload."""
    data = bytearray(path.read_bytes())
    place = data.index(b"send the invoice")
    data[place] ^= 0x10
    path.write_bytes(data)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="leave the files in this new directory"
    )
    with place_for_files(parser.parse_args().keep) as root:
        console.rule("[bold]The same queue in three generations of files")
        write_generation_1(root / "one")
        write_generation(root / "two", Generation.TWO)
        write_generation(root / "three", Generation.THREE)
        codes = []
        for node in ("one", "two", "three"):
            codes.append(penstock("inspect", node, "--table", directory=root))
            codes.append(penstock("tasks", node, directory=root))
        console.rule("[bold]One bit turns over")
        flip_one_bit(root / "two" / "consensus" / "log.raft")
        codes.append(penstock("verify", "two", directory=root) - 1)
        codes.append(penstock("repair", "two", "--out", "salvaged", directory=root) - 1)
        codes.append(penstock("tasks", "salvaged", directory=root))
        console.rule("[bold]From the oldest generation to the newest")
        codes.append(
            penstock("convert", "one", "--to", "taskflux-3", "--out", "new", directory=root)
        )
        codes.append(penstock("tasks", "new", directory=root))
        codes.append(penstock("verify", "new", directory=root))
    if any(codes):
        sys.exit("the demonstration did not go as it should")
    console.print("[bold green]Everything went as it should.[/]")


if __name__ == "__main__":
    main()
