"""``kill -9`` under load: mostly the leader, or a follower, or two nodes, or all three at once."""

from __future__ import annotations

import time
from typing import Final

from rigs.cluster.processes import NODES, Cluster
from rigs.cluster.stage import Stage

ROUNDS: Final = 25
KINDS: Final = ("leader", "leader", "leader", "follower", "two", "all")


def run(stage: Stage, rounds: int, *flags: str | float) -> None:
    """Kill and start again ``rounds`` times; each time the group must answer again."""
    waits: list[float] = []
    with stage.group("--snapshot-bytes", 2**20, *flags) as group, stage.work(group) as load:
        for number in range(rounds):
            load.wait_for_more(stage.random.randint(20, 150))
            kind = "leader" if number == 0 else stage.random.choice(KINDS)
            victims = _victims(stage, group, kind)
            stage.say(f"cycle {number + 1} of {rounds}: kill {kind}, node {victims}")
            with stage.fault(f"kill {kind}"):
                killed = time.monotonic()
                for node in victims:
                    group.kill(node)
                if kind == "leader":
                    waits.append(group.wait_new_leader(since=killed, without=victims[0]))
                    load.wait_for_more(10)  # two of three go on without it
                for node in victims:
                    group.start(node)
                for node in victims:
                    group.life(node).wait_listening()
                listening = time.monotonic() - killed
                load.wait_for_more(10)
                answered = time.monotonic() - killed
            stage.say(f"all listen after {listening:.1f} s, answers after {answered:.1f} s")
            if stage.random.random() < 0.7:
                group.wait_whole()
            else:
                group.wait_leader()  # the next blow comes while one may still lack entries
        stage.figures["cycles"] = rounds
        stage.figures["snapshots"] = group.count("snapshot")
    waits.sort()
    stage.figures["new_leader_p50_s"] = round(waits[len(waits) // 2], 2)
    stage.figures["new_leader_max_s"] = round(waits[-1], 2)


def _victims(stage: Stage, group: Cluster, kind: str) -> list[int]:
    leader = group.wait_leader()
    others = [node for node in NODES if node != leader]
    match kind:
        case "leader":
            return [leader]
        case "follower":
            return [stage.random.choice(others)]
        case "two":
            return [leader, stage.random.choice(others)]
        case _:
            return list(NODES)
