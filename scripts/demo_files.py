"""The second step of the demonstration: files of three generations, a flipped bit, repair and conversion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from penstock.families.taskflux.new_directory import new_directory
from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.variant import WRITTEN, Variant
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
    (home / "raft.metadata").write_bytes(encode_metadata(STATE, Variant.ONE.metadata))


def write_generation(root: Path, generation: Generation) -> None:
    """A snapshot of two tasks, and a log of what changed since."""
    add_first = AddTask(queue=ORDERS, key=5, payload=b"write the invoice")
    add_second = AddTask(queue=ORDERS, key=1, payload=b"answer the phone")
    queues = Queues()
    for delta in (CreateQueue(queue=ORDERS, policy=Policy(size_max=100)), add_first, add_second):
        queues.replay(encode_delta(delta), Contents.DELTAS_BY_ID)
    removal: Delta = RemoveTask(queue=ORDERS, id=TaskId(2))
    if generation is Generation.TWO:
        removal = RemoveEqualTask(queue=ORDERS, key=add_second.key, payload=add_second.payload)
    with new_directory(root, WRITTEN[generation]) as new:
        new.write_snapshot(SnapshotPoint(index=Index(2), term=Term(1)), queues)
        new.append(2, encode_delta(AddTask(queue=ORDERS, key=5, payload=b"send the invoice")))
        new.append(2, encode_delta(removal))
        new.commit()
        new.write_metadata(STATE)


def penstock(console: Console, *arguments: str, directory: Path) -> int:
    """Print a command, run it, and print its exit code."""
    console.print(f"[bold green]$ penstock {' '.join(arguments)}[/]")
    sys.stdout.flush()
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    code = subprocess.run(command, cwd=directory, check=False).returncode  # noqa: S603
    console.print(f"[dim](exit {code})[/]\n")
    return code


def flip_one_bit(path: Path) -> None:
    """Flip one bit of a payload in a log, as a failing disk does."""
    data = bytearray(path.read_bytes())
    place = data.index(b"send the invoice")
    data[place] ^= 0x10
    path.write_bytes(data)


def show(console: Console, root: Path) -> bool:
    """Run the tools over files at rest. Return whether every command exited as expected."""
    console.print("The same queue in three generations of TaskFlux's files:")
    write_generation_1(root / "one")
    write_generation(root / "two", Generation.TWO)
    write_generation(root / "three", Generation.THREE)
    codes = [penstock(console, "inspect", "three", "--table", directory=root)]
    codes += [
        penstock(console, "tasks", node, "--table", directory=root)
        for node in ("one", "two", "three")
    ]
    console.print("One bit of the log flips:")
    flip_one_bit(root / "two" / "consensus" / "log.raft")
    codes.append(penstock(console, "verify", "two", directory=root) - 1)
    codes.append(penstock(console, "repair", "two", "--out", "salvaged", directory=root) - 1)
    codes.append(penstock(console, "tasks", "salvaged", "--table", directory=root))
    console.print("From the oldest generation to the newest:")
    words = ("convert", "one", "--to", "taskflux-3", "--out", "new")
    codes.append(penstock(console, *words, directory=root))
    codes.append(penstock(console, "verify", "new", directory=root))
    return not any(codes)
