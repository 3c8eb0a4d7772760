"""Both majorities of a joint configuration are asked by the member itself, not only by the tables of H11 and H12."""

from __future__ import annotations

from penstock.raft.configuration import Configuration
from penstock.raft.messages import Kind
from penstock.raft.roles import Role
from raft.stepping import Stepped

JOINT = Configuration(voters=(1, 2, 3), outgoing=(1, 4, 5))


def test_h11_a_candidate_of_a_joint_group_needs_votes_of_both_sides() -> None:
    node = Stepped(configuration=JOINT)
    node.core.campaign()
    node.pump()
    for voter in (2, 3):
        node.asked(Kind.VOTE_REPLY, voter, term=1)
    assert node.core.role is Role.CANDIDATE
    node.asked(Kind.VOTE_REPLY, 4, term=1)
    assert node.core.is_leader


def test_h12_a_leader_of_a_joint_group_commits_what_both_sides_have() -> None:
    node = Stepped(configuration=JOINT)
    node.core.campaign()
    node.pump()
    for voter in (2, 4):
        node.asked(Kind.VOTE_REPLY, voter, term=1)
    for voter in (2, 3):
        node.asked(Kind.APPEND_REPLY, voter, index=1)
    assert node.core.log.committed == 0
    node.asked(Kind.APPEND_REPLY, 5, index=1)
    assert node.core.log.committed == 1
