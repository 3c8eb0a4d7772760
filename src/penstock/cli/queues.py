"""``penstock queue``: create, list, delete, purge and look at queues. The rows of queues are here too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.connection import NODE, NameArgument, NodeOption, connected
from penstock.cli.output import Exit, cell, emit, say

if TYPE_CHECKING:
    from penstock.protocol.version2 import QueueStat


def settings_row(stat: QueueStat) -> dict[str, Any]:
    """Return what a queue was created with; ``None`` is no limit."""
    policy, options = stat.policy, stat.options
    return {
        "queue": stat.name,
        "implementation": policy.implementation.name.lower(),
        "size_max": policy.size_max,
        "payload_size_max": policy.payload_size_max,
        "keys": None if policy.keys is None else [policy.keys.lowest, policy.keys.highest],
        "lease_ms": options.lease_ms,
        "attempts_max": options.attempts_max,
        "dead_letter": options.dead_letter,
    }


def counts_row(stat: QueueStat) -> dict[str, Any]:
    """Return how a queue is doing."""
    return {
        "queue": stat.name,
        "count": stat.count,
        "ready": ready(stat),
        "leased": stat.leased,
        "delayed": stat.delayed,
        "size": stat.size,
        "last_id": stat.last_id,
        "enqueued": stat.enqueued,
        "delivered": stat.delivered,
        "acked": stat.acked,
        "returned": stat.returned,
        "expired": stat.expired,
        "dead_lettered": stat.dead_lettered,
    }


def ready(stat: QueueStat) -> int:
    """Return how many tasks could be delivered now."""
    return stat.count - stat.leased - stat.delayed


def create(
    queue: NameArgument,
    implementation: Annotated[
        Literal["heap", "array", "paged"],
        typer.Option(
            "--implementation",
            help="An array needs --keys and suits few keys; paged may outgrow memory.",
        ),
    ] = "heap",
    max_size: Annotated[
        int | None, typer.Option("--max-size", metavar="N", help="Tasks it may hold.")
    ] = None,
    max_payload: Annotated[
        int | None, typer.Option("--max-payload", metavar="BYTES", help="Of one task.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", metavar="LOW:HIGH", help="Keys it takes, both included.")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option("--lease", metavar="SECONDS", help="After which a task comes back."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="Attempts of one task.")
    ] = None,
    dead_letter: Annotated[
        str | None,
        typer.Option("--dead-letter", metavar="NAME", help="Where tasks go that failed for good."),
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Take a queue that is there as it is.")
    ] = False,
    node: NodeOption = NODE,
) -> None:
    """Create a queue and print what it was created with.

    \b
    Examples:
      penstock queue create failed
      penstock queue create letters --max-attempts 3 --dead-letter failed --lease 30
      penstock queue create alarms --implementation array --keys 0:9 --max-size 1000 --exist-ok
      penstock queue create backlog --implementation paged
    """
    with connected(node) as client:
        client.create_queue(
            queue,
            implementation=implementation,
            size_max=max_size,
            payload_size_max=max_payload,
            keys=None if keys is None else _key_range(keys),
            lease=lease,
            attempts_max=max_attempts,
            dead_letter=dead_letter,
            exist_ok=exist_ok,
        )
        emit(settings_row(client.stat(queue)))


def _key_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a range of keys; write LOW:HIGH, such as 0:9", param_hint="--keys"
        ) from None


def list_(
    table: Annotated[bool, typer.Option("--table", help="A table for people.")] = False,
    node: NodeOption = NODE,
) -> None:
    """Print what each queue was created with, and how many tasks it holds.

    \b
    Examples:
      penstock queue list
      penstock queue list --table
    """
    with connected(node) as client:
        stats = sorted(client.queues(), key=lambda stat: stat.name)
    rows = [settings_row(stat) | {"count": stat.count} for stat in stats]
    if not table:
        for row in rows:
            emit(row)
        return
    shown = Table(box=SIMPLE_HEAD)
    shown.add_column("queue", overflow="fold", min_width=len(_DEFAULT))
    for name in _COLUMNS:
        shown.add_column(name, overflow="fold", justify="right")
    for row in rows:
        shown.add_row(*(_cell(name, value) for name, value in row.items()))
    Console(file=sys.stdout).print(shown)


_DEFAULT: Final = "(default)"
_COLUMNS: Final = (
    "kind", "max size", "max payload", "keys", "lease", "max attempts", "dead letter", "tasks",
)  # fmt: skip


def _cell(name: str, value: Any) -> Text | str:
    match name, value:
        case _, None:
            return "–"
        case "queue", "":
            return _DEFAULT
        case "keys", [low, high]:
            return f"{low}:{high}"
        case "lease_ms", int():
            return f"{value / 1000:g} s"
        case _:
            return cell(value)


def delete(
    queue: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Delete its tasks with it.")] = False,
    node: NodeOption = NODE,
) -> None:
    """Delete a queue; one that holds tasks only by force.

    \b
    Examples:
      penstock queue delete done
      penstock queue delete orders --force
    """
    with connected(node) as client:
        count = client.stat(queue).count
        if count and not force:
            say(f"queue {queue!r} holds {count} tasks; --force deletes them with it")
            raise typer.Exit(Exit.DAMAGE)
        client.delete_queue(queue)
    emit({"queue": queue, "deleted": count})


def purge(queue: NameArgument, node: NodeOption = NODE) -> None:
    """Drop every task of a queue that is not out on lease.

    \b
    Examples:
      penstock queue purge orders
    """
    with connected(node) as client:
        emit({"queue": queue, "purged": client.purge(queue)})


def stat(queue: NameArgument, node: NodeOption = NODE) -> None:
    """Print all about one queue: what it was created with, and how it is doing.

    \b
    Examples:
      penstock queue stat orders
      penstock queue stat ""
    """
    with connected(node) as client:
        found = client.stat(queue)
    emit(settings_row(found) | counts_row(found))
