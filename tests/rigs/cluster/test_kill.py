"""The rig that kills nodes, for two cycles."""

from __future__ import annotations

from rigs.cluster import kill
from rigs.cluster.stage import stage

FAST = ("--heartbeat", 50, "--election-timeout", 500)


def test_three_nodes_that_are_killed_lose_nothing_and_give_nothing_twice() -> None:
    with stage("kill", 1, is_short=True) as made:
        kill.run(made, 2, *FAST, kinds=("leader", "all"))
        assert made.problems == []
        assert made.figures["lost"] == made.figures["unexpected"] == 0
        assert made.figures["acks"] >= made.figures["enqueues"] > 50
