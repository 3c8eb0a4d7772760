"""SIGSTOP and SIGCONT: a node stands still for 0.1 to 5 seconds and goes on as if nothing had been."""

from __future__ import annotations

import time
from threading import Event
from typing import Final

from rigs.cluster.processes import Cluster
from rigs.cluster.stage import Stage

ROUNDS: Final = 12
SECONDS: Final = (0.1, 0.3, 1.0, 2.0, 5.0)
ELECTION_SECONDS: Final = 2.0
"""A pause of this and more must bring a new leader: twice the election timeout at its default."""


def run(
    stage: Stage,
    rounds: int,
    *flags: str | float,
    seconds: tuple[float, ...] = SECONDS,
    election_seconds: float = ELECTION_SECONDS,
) -> None:
    """Pause the leader every second time, else a follower, for times that go round."""
    waits: list[float] = []
    with stage.group(*flags) as group, stage.work(group) as load:
        for number in range(rounds):
            load.wait_for_more(stage.random.randint(20, 100))
            leader = group.wait_leader()
            is_leader = number % 2 == 0
            node = leader if is_leader else stage.another_than(leader)
            length = seconds[(number // 2) % len(seconds)]
            kind = "leader" if is_leader else "follower"
            stage.say(f"round {number + 1} of {rounds}: pause node {node}, the {kind}, {length} s")
            with stage.fault(f"pause {kind} {length} s"):
                must_change = is_leader and length > election_seconds
                waits += _pause(group, node, length, must_change=must_change)
            load.wait_for_more(10)
            group.wait_whole()
        stage.figures["pauses"] = rounds
    stage.figures["pauses_that_changed_the_leader"] = len(waits)
    stage.note_waits("new_leader", waits)


def _pause(group: Cluster, node: int, length: float, *, must_change: bool) -> list[float]:
    """Let a node stand still; return after how long another led, if one did."""
    paused = time.monotonic()
    group.pause(node)
    try:
        found: list[float] = []
        if must_change:
            found.append(group.wait_new_leader(since=paused, without=node))
        Event().wait(max(0.0, paused + length - time.monotonic()))  # the length is what is tried
        return found
    finally:
        group.resume(node)
