"""The rigs find what they are for: a leader that counts itself as a majority, a node that votes without its files, nodes
that do not sync.
"""

from __future__ import annotations

import contextlib

import pytest

from rigs.cluster import kill, power, wipe
from rigs.cluster.processes import NodeEnded
from rigs.cluster.showing import shown
from rigs.cluster.stage import stage
from rigs.loop_disk import FILE_SYSTEMS

pytestmark = pytest.mark.heavy

FAST = ("--heartbeat", 50, "--election-timeout", 1000)

COUNTS_ALONE = """
from penstock.raft import quorum
quorum._majority_index = lambda voters, acknowledged: max(acknowledged.get(v, 0) for v in voters)
"""

VOTES_AT_ONCE = """
from penstock.server import membership
membership.Membership.is_barred = property(lambda self: False)
"""

SYNCS_NOTHING = """
import os
os.fsync = os.fdatasync = lambda descriptor: None
"""

SYNCS_NO_LOG = """
import os
_sync = os.fdatasync
def _sync_others(descriptor):
    if "/data/log/" not in os.readlink(f"/proc/self/fd/{descriptor}"):
        _sync(descriptor)
os.fdatasync = _sync_others
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


def test_a_wiped_node_that_votes_for_one_that_lacks_entries_is_found_out() -> None:
    with stage("seeded", 3, is_short=True) as made:
        # The old leader, or what clients were told, then contradicts the new one in one way or another.
        with contextlib.suppress(AssertionError, NodeEnded):
            wipe.run(made, 1, kinds=("witness",), before=VOTES_AT_ONCE)
        assert any("by the vote of a wiped one" in problem for problem in made.problems)
        made.problems.clear()


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
@pytest.mark.parametrize("wrong", [SYNCS_NOTHING, SYNCS_NO_LOG], ids=["nothing", "no-log"])
def test_nodes_that_do_not_sync_are_found_to_lose_tasks_when_the_power_is_cut(
    wrong: str, file_system: str
) -> None:
    with shown("seeded", 1) as made:
        power.run(made, 1, *FAST, file_system=file_system, kinds=(power.ALL,), before=wrong)
        assert made.figures["lost"] > 0
        assert any(problem.startswith("lost: task") for problem in made.problems)
        made.problems.clear()
