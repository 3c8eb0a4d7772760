"""The lines of the benchmark of groups, and what a group spends while it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from peers import drive
from peers.base import Peer
from peers.group import Group
from peers.lines import BATCH, Figure, Line, batches, payloads, removals
from peers.lines import LINES as NODE_LINES
from peers.usage import Usage, usage

LARGE_BATCH = 2_000
QUEUE = "cost"


def large_batches(peer: Peer, size: int, seconds: float) -> Figure:
    return batches(peer, size, seconds, batch=LARGE_BATCH)


LINES = (
    *NODE_LINES[:3],  # one at a time, pipelined, 16 connections: as with one node
    Line(
        key="d",
        title=f"Enqueues in batches of {BATCH}, one at a time",
        unit="tasks/s",
        measure=batches,
    ),
    Line(
        key="e",
        title=f"Enqueues in batches of {LARGE_BATCH:,}, one at a time",
        unit="tasks/s",
        measure=large_batches,
    ),
    Line(
        key="f",
        title=f"Dequeue and acknowledge in batches of {BATCH}",
        unit="tasks/s",
        measure=removals,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a system spent on so many tasks: the node that led, and all others together."""

    tasks: int
    leader: Usage
    followers: tuple[Usage, ...]


def cost(peer: Peer, size: int, seconds: float) -> Cost:
    """Enqueue in batches, and return what the nodes spent on it."""
    wire = peer.connect(QUEUE)
    request, answers = wire.put_many(payloads(size, BATCH))
    try:
        drive.batches(wire, request, answers=answers, tasks=BATCH, seconds=seconds / 10)
        before = _usages(peer)
        rate = drive.batches(wire, request, answers=answers, tasks=BATCH, seconds=seconds)
        after = _usages(peer)
    finally:
        wire.close()
    spent = [now.since(then) for now, then in zip(after, before, strict=True)]
    leader = spent.pop(peer.leading if isinstance(peer, Group) else 0)
    return Cost(tasks=rate.count, leader=leader, followers=tuple(spent))


def _usages(peer: Peer) -> list[Usage]:
    if isinstance(peer, Group):
        ports = peer.client_ports
        return [usage(peer.node_pids(node), ports) for node in range(len(ports))]
    assert peer.server is not None, "started"
    return [usage(peer.server.pids(), [peer.server.port])]
