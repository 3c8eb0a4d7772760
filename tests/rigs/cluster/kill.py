"""``kill -9`` under load: mostly the leader, or a follower, or two nodes, or all three at once.

Or the leader after both others: what it was asked for in between, it has alone, and may have answered nothing of it. The
others come back first, and choose a leader without it.
"""

from __future__ import annotations

import time
from threading import Event
from typing import Final

from rigs.cluster.processes import NODES, Cluster
from rigs.cluster.stage import Stage

ROUNDS: Final = 25
LONELY: Final = "lonely leader"
KINDS: Final = ("leader", "leader", "leader", LONELY, "follower", "two", "all")
ALONE_SECONDS: Final = 0.4
"""Short enough that a leader that hears nobody does not step down meanwhile."""


def run(
    stage: Stage,
    rounds: int,
    *flags: str | float,
    kinds: tuple[str, ...] = KINDS,
    before: str = "",
) -> None:
    """Kill and start again ``rounds`` times; each time the group must answer again.

    ``before`` runs in each node's process ahead of it: for a test that makes the nodes wrong.
    """
    waits: list[float] = []
    delays: list[float] = []
    flags = ("--snapshot-bytes", 2**20, *flags)
    with stage.group(*flags, before=before) as group, stage.work(group) as load:
        started = time.monotonic()
        for number in range(rounds):
            load.wait_for_more(stage.random.randint(20, 40 if stage.is_short else 150))
            kind = kinds[0] if number == 0 else stage.random.choice(kinds)
            hit = victims(stage, group, kind)
            stage.say(f"cycle {number + 1} of {rounds}: kill {kind}, node {hit}")
            with stage.fault(f"kill {kind}"):
                killed = time.monotonic()
                if kind == LONELY:
                    kill_alone(group, hit[0])
                for node in hit:
                    group.kill(node)  # harmless if it has ended
                if kind in ("leader", LONELY):
                    wait = group.wait_new_leader(since=killed, without=hit[0])
                    if kind == "leader":  # else two processes had to start first
                        waits.append(wait)
                    load.wait_for_more(10)  # two of three go on without it
                for node in hit:
                    group.start(node)
                for node in hit:
                    group.life(node).wait_listening()
                listening = time.monotonic() - killed
                load.wait_for_more(10)
                answered = time.monotonic() - killed
            delays.append(answered - listening)
            stage.say(f"all listen after {listening:.1f} s, answers after {answered:.1f} s")
            if stage.random.random() < 0.7:
                group.wait_whole()
            else:
                group.wait_leader()  # the next blow comes while one may still lack entries
        stage.note_cycles("cycles", rounds, started)
        stage.figures["snapshots"] = group.count("snapshot")
    # How long the processes take to start is the machine's affair.
    stage.note_waits("ten_answers_after_all_listen", delays)
    stage.note_waits("new_leader", waits)


def victims(stage: Stage, group: Cluster, kind: str) -> list[int]:
    """Return the nodes that a kind of blow hits, the leader first."""
    leader = group.wait_leader()
    match kind:
        case "leader" | "lonely leader":
            return [leader]
        case "follower":
            return [stage.another_than(leader)]
        case "two":
            return [leader, stage.another_than(leader)]
        case _:
            return list(NODES)


def kill_alone(group: Cluster, leader: int) -> None:
    """Kill the leader some time after the others, and let these come back first."""
    others = [node for node in NODES if node != leader]
    for node in others:
        group.kill(node)
    Event().wait(ALONE_SECONDS)  # the length is what is tried
    group.kill(leader)
    for node in others:
        group.start(node)
