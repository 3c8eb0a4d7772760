"""What the scenarios of group A say between their lines; seeded bugs showed that nothing else asked for it."""

from __future__ import annotations

import pytest

from penstock.raft.messages import Kind
from penstock.raft.roles import Role
from raft.stepping import Stepped


@pytest.mark.parametrize("leader", [0, 3])
def test_a09_a_candidate_that_steps_down_keeps_its_vote_for_the_term(leader: int) -> None:
    # Its vote for itself is on the disk and was told to all: whoever else it gave one would have a second.
    node = Stepped()
    node.core.campaign()
    node.pump()
    if leader:
        node.asked(Kind.HEARTBEAT, leader, term=1)
    else:
        for voter in (2, 3):
            node.tell(Kind.VOTE_REPLY, voter, term=1, is_rejected=True)
    assert (node.core.role, node.core.term, node.core.vote) == (Role.FOLLOWER, 1, 1)
    (answer,) = node.asked(Kind.VOTE, 2, term=1, index=9, log_term=1)
    assert (answer.kind, answer.is_rejected) == (Kind.VOTE_REPLY, True)
    assert node.core.vote == node.disk.hard_state.vote == 1
