"""The lines of the benchmark: what is done to each system, and which figure comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from peers import drive
from peers.base import Peer

BATCH = 100
CONNECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one line measured of one system."""

    value: float  # p50 in µs, or tasks a second
    second: float = 0.0  # p99 in µs, or the part of the rate that is removals


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One way to load a system."""

    key: str
    title: str
    unit: str
    measure: Callable[[Peer, int, float], Figure]
    less_is_better: bool = False

    def better(self, one: Figure, other: Figure) -> Figure:
        return one if (one.value < other.value) == self.less_is_better else other


def payloads(size: int, count: int = drive.BLOCK) -> list[bytes]:
    random = Random(size)
    return [random.randbytes(size) for _ in range(count)]


def percentiles(taken: list[float]) -> Figure:
    """Return p50 and p99 in microseconds."""
    taken = sorted(taken)
    return Figure(value=taken[len(taken) // 2] * 1e6, second=taken[len(taken) * 99 // 100] * 1e6)


def one_at_a_time(peer: Peer, size: int, seconds: float) -> Figure:
    wire = peer.connect(f"q{size}")
    requests = [wire.put(payload) for payload in payloads(size, 16)]
    try:
        drive.latencies(wire, requests, seconds / 10)  # warms up
        return percentiles(drive.latencies(wire, requests, seconds))
    finally:
        wire.close()


def pipelined(peer: Peer, size: int, seconds: float) -> Figure:
    wire = peer.connect(f"q{size}")
    contents = payloads(size)
    pieces = range(drive.requests_under_way(drive.BLOCK) + 1)
    streams = [wire.put_stream(contents) for _ in pieces]
    requests, answers = [request for request, _ in streams], streams[0][1]
    deadline = time.perf_counter() + seconds
    try:
        rate = drive.pipelined(
            wire,
            requests,
            answers=answers,
            tasks=drive.BLOCK,
            more=lambda _: time.perf_counter() < deadline,
        )
    finally:
        wire.close()
    return Figure(value=rate.per_second)


def many_connections(peer: Peer, size: int, seconds: float) -> Figure:
    wires = [peer.connect(f"q{size}") for _ in range(CONNECTIONS)]
    requests = [wires[0].put(payload) for payload in payloads(size)]
    actors = [drive.Producer(wire, requests) for wire in wires]
    try:
        spent = drive.together([*actors], seconds)
    finally:
        for wire in wires:
            wire.close()
    return Figure(value=sum(actor.count for actor in actors) / spent)


def batches(peer: Peer, size: int, seconds: float, *, batch: int = BATCH) -> Figure:
    wire = peer.connect(f"q{size}")
    request, answers = wire.put_many(payloads(size, batch))
    try:
        rate = drive.batches(wire, request, answers=answers, tasks=batch, seconds=seconds)
    finally:
        wire.close()
    return Figure(value=rate.per_second)


def removals(peer: Peer, size: int, seconds: float) -> Figure:
    batches(peer, size, seconds)  # so that there is something to remove
    wire = peer.connect(f"q{size}")
    try:
        rate = drive.drain(wire, batch=BATCH, seconds=seconds)
    finally:
        wire.close()
    return Figure(value=rate.per_second)


def mixed(peer: Peer, size: int, seconds: float) -> Figure:
    wires = [peer.connect(f"m{size}") for _ in range(CONNECTIONS)]
    half = CONNECTIONS // 2
    requests = [wires[0].put(payload) for payload in payloads(size)]
    producers = [drive.Producer(wire, requests) for wire in wires[:half]]
    consumers = [drive.Consumer(wire) for wire in wires[half:]]
    try:
        spent = drive.together([*producers, *consumers], seconds)
    finally:
        for wire in wires:
            wire.close()
    removed = sum(actor.count for actor in consumers)
    total = removed + sum(actor.count for actor in producers)
    return Figure(value=total / spent, second=removed / spent)


LINES = (
    Line(
        key="a",
        title="One connection, one at a time: a durable enqueue, until its answer",
        unit="µs",
        measure=one_at_a_time,
        less_is_better=True,
    ),
    Line(
        key="b",
        title=f"One connection, pipelined: up to {drive.WINDOW:,} enqueues under way",
        unit="tasks/s",
        measure=pipelined,
    ),
    Line(
        key="c",
        title=f"{CONNECTIONS} connections, each one at a time",
        unit="tasks/s",
        measure=many_connections,
    ),
    Line(
        key="d",
        title=f"Enqueues in batches of {BATCH}: one connection, one batch at a time",
        unit="tasks/s",
        measure=batches,
    ),
    Line(
        key="e",
        title=f"Dequeue and acknowledge in batches of {BATCH}: one connection",
        unit="tasks/s",
        measure=removals,
    ),
    Line(
        key="f",
        title="Mixed: 8 producers and 8 consumers, each one at a time",
        unit="enqueues and removals/s",
        measure=mixed,
    ),
)
