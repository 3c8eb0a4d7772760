"""``penstock node`` and ``penstock stat``: what a node says of itself and of its queues."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import NODE, NodeOption, connected
from penstock.cli.output import Exit, emit
from penstock.cli.queues import counts_row

if TYPE_CHECKING:
    from penstock.client.blocking import Client
    from penstock.protocol.version2 import QueueStat


def node(node: NodeOption = NODE) -> None:
    """Print what a node says of itself.

    \b
    Examples:
      penstock node
      penstock node --node 127.0.0.1:2602
    """
    with connected(node) as client:
        info = client.node()
    emit(
        {
            "address": node,
            "node": info.node,
            "leader": info.leader,
            "version": info.version,
            "generation": info.generation,
            "term": info.term,
            "first_index": info.first,
            "commit_index": info.committed,
            "frame_size_max": info.frame_size_max,
            "payload_size_max": info.payload_size_max,
            "addresses": list(info.addresses),
        }
    )


def stat(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="Only these queues; '' is the default queue."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on until Ctrl-C; a live view if seen by a person.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.05, help="With --watch: how often."),
    ] = 1.0,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0, help="With --watch: for how long."),
    ] = None,
    node: NodeOption = NODE,
) -> None:
    """Print how queues are doing, one line a queue; counters begin when the node starts.

    \b
    Examples:
      penstock stat
      penstock stat orders
      penstock stat --watch --interval 0.1 --for 0.3
    """
    if seconds is not None and not watch:
        raise typer.BadParameter("--for needs --watch")
    if not watch:
        with connected(node) as client:
            for each in chosen(client, queues or []):
                emit(counts_row(each))
        return
    from penstock.cli import watch as live

    show = live.Screen(node) if sys.stdout.isatty() else live.Rows()
    # Without patience: an answer that does not come is shown, and asked for again.
    with connected(node, retry=0.0) as client, show:
        is_well = live.watch(
            lambda: live.Sample.take(client.node(), chosen(client, queues or [])),
            show,
            interval=interval,
            seconds=seconds,
        )
    raise typer.Exit(Exit.OK if is_well else Exit.DAMAGE)


def chosen(client: Client, names: list[str]) -> list[QueueStat]:
    """Return how these queues are doing, or all by name. Raises ``QueueMissing``."""
    if names:
        return [client.stat(name) for name in dict.fromkeys(names)]
    return sorted(client.queues(), key=lambda each: each.name)
