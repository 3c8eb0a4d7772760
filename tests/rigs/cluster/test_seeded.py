"""The rigs find what they are for: nodes that are made wrong."""

from __future__ import annotations

import pytest

from rigs.cluster import kill
from rigs.cluster.stage import stage

FAST = ("--heartbeat", 50, "--election-timeout", 1000)

COUNTS_ALONE = """
from penstock.raft import quorum
quorum._majority_index = lambda voters, acknowledged: max(acknowledged.get(v, 0) for v in voters)
"""


@pytest.mark.heavy
def test_a_leader_that_answers_before_a_majority_has_it_is_found_out() -> None:
    with stage("seeded", 1, is_short=True) as made:
        try:
            kill.run(made, 1, *FAST, kinds=(kill.LONELY,), before=COUNTS_ALONE)
        except AssertionError as error:
            made.problems.append(
                str(error)
            )  # the old leader finds the new one's log impossible, and stops
        assert made.problems != []
        made.problems.clear()  # nothing to keep
