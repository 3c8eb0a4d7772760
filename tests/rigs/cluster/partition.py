"""Partitions between real nodes in network namespaces; clients reach all of them all the time.

Majority and minority, the leader alone, a follower alone, a bridge (both ends reach only the middle), one-way cuts
of what a node sends or of what it hears, and all three apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import Event
from typing import Final

from rigs.cluster.namespaces import Network, network
from rigs.cluster.processes import NODES, Cluster
from rigs.cluster.stage import Stage

SECONDS: Final = 10.0
LEADER_SECONDS_MAX: Final = 3.0
"""A majority that lost its leader has another within this."""

KINDS: Final = (
    "leader alone",
    "follower alone",
    "leader in the minority of a bridge",
    "leader in the middle of a bridge",
    "leader is not heard",
    "leader hears nothing",
    "follower is not heard",
    "follower hears nothing",
    "all apart",
)
ROUNDS: Final = len(KINDS)
CHANGING: Final = frozenset({"leader alone", "leader is not heard"})
"""Cuts after which the others must choose a new leader at once.

A leader that hears nothing is still heard: the others follow it until its own check of a majority makes it step down.
In a bridge one of the ends reaches the leader or can be elected by the middle; which is up to the group.
"""


def run(stage: Stage, rounds: int, *, seconds: float = SECONDS) -> None:
    """Cut as each kind says, ``rounds`` times in all."""
    waits: list[float] = []
    mended: list[float] = []
    with (
        network() as made,
        stage.group("--allow-remote", places=made.places()) as group,
        stage.work(group) as load,
    ):
        for number in range(rounds):
            load.wait_for_more(50)
            kind = KINDS[number % len(KINDS)]
            leader = group.wait_leader()
            stage.say(f"round {number + 1} of {rounds}: {kind}, node {leader} leads")
            with stage.fault(kind):
                waits += _cut(stage, group, made, kind, leader, seconds)
                healed = time.monotonic()
            load.wait_for_more(20)
            group.wait_whole()
            mended.append(time.monotonic() - healed)
            stage.say(f"whole again after {mended[-1]:.1f} s")
        stage.figures["partitions"] = rounds
    stage.note_waits("new_leader", waits)
    stage.note_waits("whole_again", mended)
    if max(waits, default=0.0) > LEADER_SECONDS_MAX:
        stage.problems.append(f"a new leader took {max(waits):.2f} s")


def _cut(
    stage: Stage, group: Cluster, made: Network, kind: str, leader: int, seconds: float
) -> list[float]:
    """Cut, hold, mend; return after how long there was a new leader, where there had to be one."""
    others = [node for node in NODES if node != leader]
    stage.random.shuffle(others)
    with made.cut(_links(kind, leader, others)):
        cut = time.monotonic()
        found: list[float] = []
        if kind in CHANGING:
            found.append(group.wait_new_leader(since=cut, without=leader))
        Event().wait(max(0.0, cut + seconds - time.monotonic()))  # the length is what is tried
    return found


def _links(kind: str, leader: int, others: list[int]) -> list[tuple[int, int]]:
    """Return (from, to) of all that is dropped."""
    one, other = others
    match kind:
        case "leader alone":
            return _both(leader, others)
        case "follower alone":
            return _both(one, [leader, other])
        case "leader in the minority of a bridge":
            return _both(leader, [one])
        case "leader in the middle of a bridge":
            return _both(one, [other])
        case "leader is not heard":
            return [(leader, one), (leader, other)]
        case "leader hears nothing":
            return [(one, leader), (other, leader)]
        case "follower is not heard":
            return [(one, leader), (one, other)]
        case "follower hears nothing":
            return [(leader, one), (other, one)]
        case _:
            return [*_both(leader, others), *_both(one, [other])]


def _both(node: int, others: Iterable[int]) -> list[tuple[int, int]]:
    return [pair for other in others for pair in ((node, other), (other, node))]
