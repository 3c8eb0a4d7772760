"""Partitions between real nodes in network namespaces; clients reach all of them all the time.

Each kind of split once, ten seconds each. ``campaign`` holds each for minutes, in groups of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from typing import Final

from rigs.cluster.namespaces import Network, network
from rigs.cluster.processes import NODES, Cluster
from rigs.cluster.splits import Link, Split, is_cut_off, links
from rigs.cluster.stage import Stage

SECONDS: Final = 10.0
LEADER_SECONDS_MAX: Final = 3.0
"""A majority that lost its leader has another within this."""

KINDS: Final = (
    Split.LEADER_ALONE,
    Split.FOLLOWER_ALONE,
    Split.LEADER_AT_END,
    Split.LEADER_IN_MIDDLE,
    Split.LEADER_UNHEARD,
    Split.LEADER_DEAF,
    Split.FOLLOWER_UNHEARD,
    Split.FOLLOWER_DEAF,
    Split.ALL_APART,
)
ROUNDS: Final = len(KINDS)


def run(stage: Stage, rounds: int, *, seconds: float = SECONDS) -> None:
    """Cut as each kind says, ``rounds`` times in all."""
    waits: list[float] = []
    mended: list[float] = []
    with (
        network(NODES) as made,
        stage.group("--allow-remote", places=made.places()) as group,
        stage.work(group) as load,
    ):
        for number in range(rounds):
            load.wait_for_more(50)
            kind = KINDS[number % len(KINDS)]
            leader = group.wait_leader()
            stage.say(f"round {number + 1} of {rounds}: {kind}, node {leader} leads")
            cut = links(kind, leader, NODES, stage.random)
            with stage.fault(kind):
                is_due = is_cut_off(leader, cut, NODES)
                led = hold(group, made, leader, cut, seconds, is_due=is_due)
                made.cut(())
                healed = time.monotonic()
            waits += [led] if led is not None and is_due else []
            load.wait_for_more(20)
            group.wait_whole()
            mended.append(time.monotonic() - healed)
            stage.say(f"whole again after {mended[-1]:.1f} s")
        stage.figures["partitions"] = rounds
    stage.note_waits("whole_again", mended)
    note_new_leaders(stage, waits)


def hold(
    group: Cluster,
    made: Network,
    leader: int,
    cut: Sequence[Link],
    seconds: float,
    *,
    is_due: bool,
) -> float | None:
    """Cut and hold, at least until there is a new leader if one is due; return after how long another one led."""
    begun = time.monotonic()
    made.cut(cut)
    if is_due:
        group.wait_new_leader(since=begun, without=leader)
    Event().wait(max(0.0, begun + seconds - time.monotonic()))  # the length is what is tried
    later = (when for when, node, _ in group.elections() if when > begun and node != leader)
    return next((when - begun for when in later), None)


def note_new_leaders(stage: Stage, waits: list[float]) -> None:
    """Add how long it took where the old leader was cut off; too long is a problem."""
    stage.note_waits("new_leader", waits)
    if max(waits, default=0.0) > LEADER_SECONDS_MAX:
        stage.problems.append(f"a new leader took {max(waits):.2f} s")
