"""H: majorities and configurations, as arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.raft.configuration import (
    Change,
    Configuration,
    Leave,
    Step,
    apply_change,
    change_simply,
    enter_joint,
    leave_joint,
)
from penstock.raft.messages import Kind
from penstock.raft.quorum import committed_index, vote_outcome
from penstock.raft.refusals import InvalidChange
from raft.scenarios import rows
from raft.stepping import Stepped

VOTES = {"y": True, "n": False}


@pytest.mark.parametrize("row", rows("H06"))
def test_h06_promotable(row: dict[str, Any]) -> None:
    one = Stepped(configuration=Configuration(voters=tuple(row["voters"])))
    assert one.core.can_lead is row["promotable"]
    for _ in range(20):
        one.core.tick()
    assert (one.core.term == 1) is row["promotable"]


@pytest.mark.parametrize("row", rows("H11"))
def test_h11_joint_vote_table(row: dict[str, Any]) -> None:
    votes = {voter: VOTES[vote] for voter, vote in row["votes"].items()}
    for one, other in ((row["incoming"], row["outgoing"]), (row["outgoing"], row["incoming"])):
        assert vote_outcome(one, other, votes).value == row["result"]


@pytest.mark.parametrize("row", rows("H12"))
def test_h12_joint_commit_table(row: dict[str, Any]) -> None:
    for one, other in ((row["incoming"], row["outgoing"]), (row["outgoing"], row["incoming"])):
        assert committed_index(one, other, row["acked"]) == row["commit"]


def test_h13_joint_safety_errors() -> None:
    three = Configuration(voters=(1, 2, 3))
    joint = enter_joint(three, [(Step.VOTER, 4)], is_left_by_itself=False)
    everyone = [(Step.REMOVE, member) for member in (1, 2, 3)]
    refused: list[tuple[Configuration, Callable[[Configuration], Configuration]]] = [
        (three, leave_joint),
        (Configuration(), lambda c: enter_joint(c, [(Step.VOTER, 1)], is_left_by_itself=True)),
        (joint, lambda c: enter_joint(c, [(Step.VOTER, 5)], is_left_by_itself=True)),
        (joint, lambda c: change_simply(c, [(Step.VOTER, 5)])),
        (three, lambda c: change_simply(c, [(Step.VOTER, 4), (Step.VOTER, 5)])),
        (three, lambda c: enter_joint(c, everyone, is_left_by_itself=True)),
    ]
    said = set()
    for configuration, change in refused:
        before = repr(configuration)
        with pytest.raises(InvalidChange) as caught:
            change(configuration)
        assert repr(configuration) == before
        said.add(str(caught.value))
    assert len(said) == len(refused)
    with pytest.raises(InvalidChange, match="last voter"):
        change_simply(Configuration(voters=(1,)), [(Step.REMOVE, 1)])
    with pytest.raises(InvalidChange, match="more than one voter"):  # one comes and one goes
        change_simply(three, [(Step.VOTER, 4), (Step.REMOVE, 1)])


def test_h14_demotion_waits_for_leave() -> None:
    before = Configuration(voters=(1,))
    change = Change(((Step.VOTER, 2), (Step.LEARNER, 1)))
    joint = apply_change(before, change)
    assert (joint.voters, joint.outgoing) == ((2,), (1,))
    assert (joint.learners, joint.learners_next) == ((), (1,))
    assert joint.is_voter(1)
    left = apply_change(joint, Change())
    assert left == Configuration(voters=(2,), learners=(1,))
    assert not left.is_voter(1)


def test_h14_what_is_known_of_a_member_outlives_its_demotion() -> None:
    one = Stepped(voters=3)
    one.lead()
    for peer in (2, 3):
        one.asked(Kind.APPEND_REPLY, peer, index=1)
    known = one.leadership.progress[3]
    one.core.propose_conf(Change(((Step.VOTER, 4), (Step.LEARNER, 3)), Leave.EXPLICIT))
    one.pump()
    one.asked(Kind.APPEND_REPLY, index=2)
    assert one.core.configuration.learners_next == (3,)
    assert one.leadership.progress[3] is known
    one.core.propose_conf(Change())
    one.pump()
    for peer in (2, 4):
        one.asked(Kind.APPEND_REPLY, peer, index=3)
    assert one.core.configuration == Configuration(voters=(1, 2, 4), learners=(3,))
    assert one.leadership.progress[3] is known
    assert known.match == 1


def test_h15_changes_are_idempotent() -> None:
    before = Configuration(voters=(1, 2), learners=(3,))
    twice = [(Step.VOTER, 4), (Step.VOTER, 4)]
    assert change_simply(before, twice) == change_simply(before, twice[:1])
    assert change_simply(before, [(Step.VOTER, 2)]) == before
    assert change_simply(before, [(Step.REMOVE, 9)]) == before
    assert change_simply(before, [(Step.LEARNER, 3)]) == before
    for steps in (twice[:1], [(Step.REMOVE, 1)], [(Step.LEARNER, 2)]):
        once = enter_joint(before, steps, is_left_by_itself=True)
        assert enter_joint(before, [*steps, *steps], is_left_by_itself=True) == once


@pytest.mark.parametrize("step", [(Step.VOTER, 2), (Step.REMOVE, 9), (Step.LEARNER, 3)])
def test_h15_a_change_of_nothing_resets_no_progress(step: tuple[Step, int]) -> None:
    configuration = Configuration(voters=(1, 2), learners=(3,))
    one = Stepped(configuration=configuration)
    one.lead()
    for peer in (2, 3):
        one.asked(Kind.APPEND_REPLY, peer, index=1)
    known = {peer: one.leadership.progress[peer] for peer in (2, 3)}
    one.core.propose_conf(Change((step,)))
    one.pump()
    one.asked(Kind.APPEND_REPLY, index=2)
    assert one.core.log.applied == 2
    assert one.core.configuration == configuration
    for peer, match in ((2, 2), (3, 1)):
        assert one.leadership.progress[peer] is known[peer]
        assert known[peer].match == match
