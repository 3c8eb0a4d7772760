"""``penstock dequeue`` and ``penstock peek``: tasks out of a queue, or only looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.connection import NODE, NodeOption, QueueArgument, connected, task_row
from penstock.cli.output import emit_rows, say
from penstock.cli.task_table import show_tasks

if TYPE_CHECKING:
    from penstock.client.blocking import Client
    from penstock.client.values import Delivery

BATCH_COUNT: Final = 500
"""Tasks taken at a time: they are all out on lease until the last of them was written."""


def dequeue(
    queue: QueueArgument = "",
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="How many, 1 if not given.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Until the queue is empty.")] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="For a task when there is none."),
    ] = 0.0,
    lease: Annotated[
        float | None,
        typer.Option(
            "--lease", metavar="SECONDS", help="Time to write a task; else as QUEUE says."
        ),
    ] = None,
    ack: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack", help="Whether tasks are done once written, or go back to the queue."
        ),
    ] = True,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the bare payloads in place of JSON.")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="With --raw: a newline after each payload.")
    ] = False,
    node: NodeOption = NODE,
) -> None:
    """Take tasks out of a queue; each is done only after it was written out.

    \b
    Examples:
      penstock dequeue orders
      penstock dequeue orders --count 10 --no-ack
      penstock dequeue orders --raw --lines --wait 0.5
      penstock dequeue orders --all | penstock enqueue archive --json
    """
    if everything and count is not None:
        raise typer.BadParameter("give --all or --count, not both")
    if everything and not ack:
        raise typer.BadParameter(
            "--all with --no-ack would never end: the tasks return to the queue"
        )
    if lines and not raw:
        raise typer.BadParameter("--lines needs --raw; JSON output has one line per task")
    limit = None if everything else count or 1
    taken = 0
    with connected(node) as client:
        for deliveries in _batches(client, queue, limit, wait=wait, lease=lease):
            _write(deliveries, raw=raw, end=b"\n" if lines else b"")
            if ack:
                client.ack(deliveries)  # Only now: a task whose line got lost must come again.
            taken += len(deliveries)
    if not taken:
        say(f"queue {queue!r} has nothing to deliver")
    elif not ack:
        say(f"{taken} tasks were not acked: they go back to queue {queue!r} now")


def _batches(
    client: Client, queue: str, limit: int | None, *, wait: float, lease: float | None
) -> Iterator[list[Delivery]]:
    """Yield tasks as they come, until there are ``limit``, or none came for ``wait`` seconds."""
    taken = 0
    while limit is None or taken < limit:
        wanted = BATCH_COUNT if limit is None else min(BATCH_COUNT, limit - taken)
        deliveries = client.dequeue_many(queue, wanted, wait=wait, lease=lease)
        if not deliveries:
            return
        taken += len(deliveries)
        yield deliveries


def _write(deliveries: Sequence[Delivery], *, raw: bool, end: bytes) -> None:
    """Write tasks out, all the way. Raises ``OSError``."""
    if raw:
        for each in deliveries:
            sys.stdout.buffer.write(each.payload + end)
    else:
        emit_rows(
            task_row(each.queue, each.id, each.key, each.payload, attempt=each.attempt)
            for each in deliveries
        )
    sys.stdout.flush()


def peek(
    queue: QueueArgument = "",
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, help="How many; a node shows up to 1024.")
    ] = 1,
    table: Annotated[bool, typer.Option("--table", help="A table for people.")] = False,
    node: NodeOption = NODE,
) -> None:
    """Show the tasks that would be delivered next, and leave them where they are.

    \b
    Examples:
      penstock peek
      penstock peek orders --count 10 --table
    """
    with connected(node) as client:
        tasks = client.peek(queue, count)
    rows = [
        task_row(queue, each.id, each.key, each.payload, attempts=each.attempts) for each in tasks
    ]
    if table:
        show_tasks(rows)
    else:
        emit_rows(rows)
    if not tasks:
        say(f"queue {queue!r} has nothing to deliver")
