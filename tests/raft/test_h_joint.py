"""H: changes of several members at once, in two configurations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.configuration import Change, Configuration, Leave, Step, encode_change
from penstock.raft.messages import Entry, EntryKind, Kind, Message
from penstock.raft.refusals import BadMessage, Busy, InvalidChange
from penstock.raft.roles import Role
from raft.groups import agree, changes, check, go_on, leaders, leading, one_step, run
from raft.stepping import Stepped
from raft.world import SCRIPT_SETTINGS

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_h16_auto_leave(seed: int) -> None:
    world = run(seed, "cluster voters=1", "campaign 1")
    for number in (2, 3):
        world.add(number)
    go_on(world, "isolate 2", "isolate 3", "conf 1 +2 +3", "propose 1 a", "beat 1")
    core = world.core(1)
    assert (core.configuration.voters, core.configuration.outgoing) == ((1, 2, 3), (1,))
    check(world, "1 commit 2", "1 last 4")  # neither the leave nor the entry has both majorities
    go_on(world, "heal", "beat 1", "beat 1", "propose 1 b", "beat 1")
    check(world, "* voters 1,2,3", "* commit 5", "* log @1")
    assert not core.configuration.is_joint
    assert len(changes(core)) == 2
    go_on(world, "isolate 2", "isolate 3", "conf 1 -2 -3", "propose 1 c", "beat 1")
    check(world, "1 commit 5")  # of the three, one is no majority
    go_on(world, "heal", "beat 1", "beat 1", "beat 1", "propose 1 d")
    check(world, "1 voters 1", "1 commit 9", "1 last 9")
    assert [len(change.steps) for change in changes(core)] == [2, 0, 2, 0]
    with pytest.raises(BadMessage):
        core.step(Message(kind=Kind.APPEND_REPLY, sender=2, to=1, term=core.term, index=9))
    with pytest.raises(BadMessage):
        core.step(Message(kind=Kind.HEARTBEAT_REPLY, sender=3, to=1, term=core.term))


def test_h16_a_transfer_that_fails_does_not_leave_the_group_joint() -> None:
    one = leading()
    one.core.propose_conf(Change(((Step.VOTER, 4), (Step.REMOVE, 3))))
    one.pump()
    one.core.transfer(2)
    agree(one, 3)
    assert one.core.configuration.is_joint
    assert one.core.log.last == 2  # while the transfer is under way, nothing is added
    for _ in range(11):
        one.core.tick()
    agree(one, 2, 3, 4)
    assert one.core.configuration == Configuration(voters=(1, 2, 4))


@pytest.mark.parametrize("seed", SEEDS)
def test_h17_explicit_leave(seed: int) -> None:
    world = run(seed, "cluster voters=1", "campaign 1", "conf 1 +2 explicit", "beat 1", "beat 1")
    core = world.core(1)
    assert core.configuration == Configuration(voters=(1, 2), outgoing=(1,))
    go_on(world, "repeat 3 beat 1", "propose 1 x", "beat 1")
    assert core.configuration.is_joint
    with pytest.raises(Busy, match="joint"):
        core.propose_conf(one_step(Step.VOTER, 3))
    assert len(changes(core)) == 1
    go_on(world, "leave-joint 1", "beat 1")
    check(world, "* voters 1,2", "* commit 4")
    assert not core.configuration.is_joint
    with pytest.raises(InvalidChange, match="not joint"):
        core.propose_conf(Change())
    check(world, "1 last 4")


@pytest.mark.parametrize("seed", SEEDS)
def test_h18_leader_replaced_while_joint(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "conf 1 -1 +4 explicit", "beat 1", "beat 1")
    assert world.core(4).configuration == Configuration(voters=(2, 3, 4), outgoing=(1, 2, 3))
    go_on(world, "transfer via=1 to=4")
    check(world, "4 state leader", "1,2,3 state follower")
    go_on(world, "beat 4", "leave-joint 4", "beat 4", "beat 4")
    check(world, "* voters 2,3,4", "* log @4", "* commit @4")
    assert not any(one.core.configuration.is_joint for one in world.up() if one.core)
    go_on(world, "campaign 1", "tick 1 40")
    check(world, "1 state follower", "4 state leader", "* term 2")
    go_on(world, "propose 4 x")
    check(world, "2,3,4 last 5", "1 last 4")


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_h19_leader_lost_while_joint(seed: int, returns: bool) -> None:
    world = run(seed, "cluster 3", "campaign 1", "conf! 1 +4 -3")
    while not world.core(1).configuration.is_joint:
        boxes = [pair for pair in sorted(world.mail) if world.mail[pair]]
        world.deliver_one(world.random.choice(boxes))
    go_on(world, "restart! 1" if returns else "crash! 1")
    for candidate in (1, 2, 3, 2):
        if world.members[candidate].core is not None and not leaders(world):
            go_on(world, f"campaign {candidate}")
    (leader,) = leaders(world)
    assert leader == 1 or not returns
    go_on(world, f"beat {leader}", f"beat {leader}", f"propose {leader} x", f"beat {leader}")
    core = world.core(leader)
    assert core.configuration == Configuration(voters=(1, 2, 4))
    assert [len(change.steps) for change in changes(core)] == [2, 0]
    check(world, "2,4 voters 1,2,4", f"2,4 commit @{leader}")


@pytest.mark.parametrize("has_pre_vote", [False, True])
def test_h18_who_is_left_alone_learns_that_the_others_left_when_they_refuse_it(
    has_pre_vote: bool,
) -> None:
    # The leader left with the change and fell silent: 2 and 5 are learners with longer logs, 3 does not know.
    joint = Configuration(voters=(3,), outgoing=(2, 3, 5), learners_next=(2, 5))
    settings = replace(SCRIPT_SETTINGS, has_pre_vote=has_pre_vote)
    one = Stepped(3, configuration=joint, term=1, settings=settings)
    leave = Entry(2, 1, encode_change(Change()), EntryKind.CONFIGURATION)
    one.asked(Kind.APPEND, entries=(Entry(1, 1), leave, Entry(3, 1)), commit=1)
    other = Stepped(
        2, configuration=Configuration(voters=(3,), learners=(2, 5)), log=[1] * 4, term=1
    )
    other.asked(Kind.HEARTBEAT, 5, commit=2)
    one.core.campaign()
    asking = next(message for message in one.pump() if message.to == 2)
    other.core.step(asking)
    (refusal,) = other.pump()
    assert refusal.is_rejected
    one.core.step(refusal)
    assert (one.core.role, one.core.log.committed) == (Role.FOLLOWER, 2)
    one.pump()
    assert one.core.configuration == Configuration(voters=(3,), learners=(2, 5))
    one.core.campaign()
    one.pump()
    assert (one.core.role, one.core.log.committed) == (Role.LEADER, 4)


def test_h17_a_joint_change_of_one_step_can_be_asked_for() -> None:
    one = leading()
    one.core.propose_conf(Change(((Step.VOTER, 4),), Leave.AUTOMATIC))
    agree(one, 2, 3)
    assert one.core.configuration == Configuration(voters=(1, 2, 3, 4))
    assert len(changes(one.core)) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_h08_a_leader_that_is_on_its_way_out_of_a_joint_group_leads_until_it_is_left(
    seed: int,
) -> None:
    world = run(seed, "cluster 3", "campaign 1", "conf 1 -1 +4 explicit", "beat 1", "beat 1")
    check(world, "1 state leader", "* voters 2,3,4")
    # In force are 2, 3, 4 and 1, 2, 3: for the former 1 does not count.
    go_on(world, "isolate 3", "isolate 4", "propose 1 x", "beat 1")
    check(world, "1,2 last 3", "1 commit 2")
    go_on(world, "heal", "beat 1", "beat 1")
    check(world, "1 commit 3")
    go_on(world, "leave-joint 1", "beat 1")
    check(world, "1 state follower", "1 voters 2,3,4")
