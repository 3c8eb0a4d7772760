"""The rig that cuts the power, for one cut of all nodes."""

from __future__ import annotations

from random import Random

import pytest

from rigs.cluster import power
from rigs.cluster.showing import shown

FAST = ("--heartbeat", 50, "--election-timeout", 500)


def test_at_least_a_quarter_of_the_cuts_hits_all_nodes() -> None:
    for rounds in range(1, 30):
        kinds = power.drawn_kinds(Random(rounds), rounds)
        assert len(kinds) == rounds <= 4 * kinds.count(power.ALL)


@pytest.mark.parametrize("file_system", ["ext4", pytest.param("xfs", marks=pytest.mark.heavy)])
def test_a_group_whose_power_is_cut_loses_nothing_and_gives_nothing_twice(file_system: str) -> None:
    with shown("power", 1) as made:
        power.run(made, 1, *FAST, file_system=file_system, kinds=(power.ALL,))
        assert made.problems == []
        assert made.figures["lost"] == made.figures["unexpected"] == 0
        assert made.figures["acks"] >= made.figures["enqueues"] > 20
