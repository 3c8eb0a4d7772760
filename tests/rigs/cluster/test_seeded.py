"""The rigs find what they are for: a leader that is made to count itself as a majority."""

from __future__ import annotations

import pytest

from rigs.cluster import kill
from rigs.cluster.processes import NodeEnded
from rigs.cluster.stage import stage

pytestmark = pytest.mark.heavy

FAST = ("--heartbeat", 50, "--election-timeout", 1000)

COUNTS_ALONE = """
from penstock.raft import quorum
quorum._majority_index = lambda voters, acknowledged: max(acknowledged.get(v, 0) for v in voters)
"""


def test_an_old_leader_that_committed_alone_stops_when_it_meets_the_new_one() -> None:
    with stage("seeded", 1, is_short=True) as made:
        with pytest.raises(NodeEnded, match="is committed, but not of term"):
            kill.run(made, 1, *FAST, kinds=(kill.LONELY,), before=COUNTS_ALONE)
        assert made.problems == []


def test_what_a_leader_answered_alone_and_took_with_it_is_found_to_be_lost() -> None:
    with stage("seeded", 1, is_short=True) as made:
        with made.group(*FAST, before=COUNTS_ALONE) as group, made.work(group) as load:
            load.wait_for_more(30)
            leader = group.wait_leader()
            with made.fault("kill and wipe the lonely leader"):
                kill.kill_alone(group, leader)
                group.wipe(leader)
                group.start(leader).wait_listening()
                group.wait_whole()
        assert made.figures["lost"] > 0
        assert any(problem.startswith("lost: task") for problem in made.problems)
        made.problems.clear()  # they are as they should be: nothing to keep
