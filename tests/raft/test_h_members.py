"""H: members that come, go and change, one at a time."""

from __future__ import annotations

from itertools import combinations

import pytest

from penstock.raft.configuration import Change, Configuration, Step, encode_change
from penstock.raft.messages import Entry, EntryKind, Kind
from penstock.raft.refusals import Busy, InvalidChange, NotLeading
from penstock.raft.roles import Role
from raft.groups import THREE, agree, changes, check, go_on, leading, one_step, run
from raft.stepping import Stepped
from raft.world import World

SEEDS = range(6)


# One change at a time.


def test_h01_one_change_at_a_time() -> None:
    one = leading()
    assert one.core.propose_conf(one_step(Step.VOTER, 4)) == 2
    assert one.leadership.pending_change == 2
    one.pump()
    for change in (one_step(Step.VOTER, 5), one_step(Step.REMOVE, 2), Change()):
        with pytest.raises(Busy, match="under way"):
            one.core.propose_conf(change)
    assert (one.core.log.last, one.leadership.pending_change) == (2, 2)
    assert one.core.configuration == THREE
    one.core.propose([b"x"])  # anything else is taken
    agree(one, 2)
    assert one.core.configuration.voters == (1, 2, 3, 4)
    assert one.core.propose_conf(one_step(Step.REMOVE, 4)) == 4


def test_h02_new_leader_assumes_pending() -> None:
    one = Stepped(log=[1, 1, 1], term=1, commit=1)
    one.pump()
    one.lead()
    assert (one.leadership.pending_change, one.core.log.last) == (3, 4)
    one.tell(Kind.APPEND_REPLY, index=4)
    ready = one.core.ready()
    assert one.core.log.committed == 4
    for applied in (1, 2):
        if applied > 1:
            one.core.persisted(ready.token)
            one.core.applied(applied)
        with pytest.raises(Busy, match=f"{applied} of 3 applied"):
            one.core.propose_conf(one_step(Step.VOTER, 4))
    one.core.applied(3)
    assert one.core.propose_conf(one_step(Step.VOTER, 4)) == 5


def test_h02_a_change_in_an_old_tail_keeps_another_from_being_made() -> None:
    one = Stepped(voters=1)
    one.lead()
    one.core.propose_conf(one_step(Step.VOTER, 2))
    one.pump()
    # The next leader finds it in its log, applied by nobody.
    two = Stepped(2, configuration=Configuration(voters=(1, 2, 3)), term=1)
    entry = Entry(1, 1, encode_change(one_step(Step.VOTER, 4)), EntryKind.CONFIGURATION)
    two.asked(Kind.APPEND, 1, entries=(entry,))
    two.lead()
    with pytest.raises(Busy):
        two.core.propose_conf(one_step(Step.REMOVE, 1))
    two.asked(Kind.APPEND_REPLY, 3, index=2)
    assert two.core.configuration.voters == (1, 2, 3, 4)
    assert two.core.propose_conf(one_step(Step.REMOVE, 1)) == 3


def have_no_disjoint_majorities(world: World) -> bool:
    """Return whether any two members that could win an election need a voter in common."""
    voters = [set(one.core.configuration.voters) for one in world.up() if one.core]
    return all(len(a) // 2 + len(b) // 2 + 2 > len(a | b) for a, b in combinations(voters, 2))


@pytest.mark.parametrize("removed", [1, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_h03_no_change_before_own_term_commit(seed: int, removed: int) -> None:
    world = run(seed, "cluster 4", "campaign 1", "beat 1", "isolate 1", "conf 1 +5")
    assert len(changes(world.core(1))) == 1
    go_on(world, "drop MsgApp", "campaign 2")
    check(world, "2 state leader", "2 commit 1", "2 log 1,2")
    assert not world.change(2, one_step(Step.REMOVE, removed))
    with pytest.raises(Busy):
        world.core(2).propose_conf(one_step(Step.REMOVE, removed))
    assert (changes(world.core(2)), have_no_disjoint_majorities(world)) == ([], True)
    go_on(world, "heal", "isolate 1", "beat 2", "beat 2")
    check(world, "2 commit 2")
    go_on(world, f"conf 2 -{removed}")
    assert have_no_disjoint_majorities(world)
    check(world, "2 voters " + ",".join(str(n) for n in range(1, 5) if n != removed))
    # The old leader comes back: what it logged goes, and nobody else counts it.
    go_on(world, "beat 1", "heal", "beat 2", "beat 2", "campaign 1", "beat 2", "beat 2")
    assert have_no_disjoint_majorities(world)
    for one in world.up():
        assert one.core is not None
        assert 5 not in one.core.configuration.members
        if one.number != removed:  # who is removed is not told anything any more
            assert one_step(Step.VOTER, 5) not in changes(one.core)


def test_h04_add_promote_demote_remove() -> None:
    one = leading(Configuration(voters=(1,)))
    one.core.propose_conf(one_step(Step.VOTER, 2))
    one.pump()
    assert one.core.configuration == Configuration(voters=(1, 2))
    one.core.propose_conf(one_step(Step.REMOVE, 2))
    agree(one, 2)
    assert one.core.configuration == Configuration(voters=(1,))
    one.core.propose_conf(one_step(Step.LEARNER, 2))
    one.pump()
    assert one.core.configuration == Configuration(voters=(1,), learners=(2,))
    one.core.propose_conf(one_step(Step.VOTER, 2))
    one.pump()
    assert one.core.configuration == Configuration(voters=(1, 2))
    one.core.propose_conf(one_step(Step.LEARNER, 1))
    agree(one, 2)
    assert one.core.configuration == Configuration(voters=(2,), learners=(1,))
    assert (one.core.role, one.core.can_lead) == (Role.FOLLOWER, False)
    last, promotion = one.core.log.last, encode_change(one_step(Step.VOTER, 1))
    one.asked(
        Kind.APPEND,
        term=2,
        index=last,
        log_term=1,
        entries=(Entry(last + 1, 2, promotion, EntryKind.CONFIGURATION),),
        commit=last + 1,
    )
    assert one.core.configuration == Configuration(voters=(1, 2))
    assert one.core.can_lead


@pytest.mark.parametrize("step", [Step.REMOVE, Step.LEARNER])
def test_h04_the_last_voter_stays(step: Step) -> None:
    one = leading(Configuration(voters=(1,), learners=(2,)))
    with pytest.raises(InvalidChange, match="last voter"):
        one.core.propose_conf(one_step(step, 1))
    assert one.core.log.last == 1


def test_h05_smaller_quorum_commits_pending() -> None:
    one = leading(Configuration(voters=(1, 2)))
    one.core.propose_conf(one_step(Step.REMOVE, 2))
    one.pump()
    one.core.propose([b"x"])
    one.pump()
    assert one.core.log.committed == 1
    one.tell(Kind.APPEND_REPLY, index=2)
    assert one.core.log.committed == 2
    one.finish(one.core.ready())
    assert (one.core.configuration.voters, one.core.log.committed) == ((1,), 3)


# Who may run, and whose word counts.


@pytest.mark.parametrize("seed", SEEDS)
def test_h07_no_campaign_with_unapplied_change(seed: int) -> None:
    one = Stepped(2, draw=lambda n: seed % n)
    change = encode_change(one_step(Step.VOTER, 4))
    one.tell(
        Kind.APPEND,
        1,
        term=1,
        entries=(Entry(1, 1), Entry(2, 1, change, EntryKind.CONFIGURATION), Entry(3, 1)),
        commit=3,
    )
    one.finish(one.core.ready())
    ready = one.core.ready()  # all of it is to be applied, and is not yet
    assert [entry.index for entry in ready.committed] == [1, 2, 3]
    one.core.persisted(ready.token)
    for applied in (0, 1):
        if applied:
            one.core.applied(applied)
        for _ in range(40):
            one.core.tick()
        one.core.campaign()
        one.tell(Kind.TIMEOUT_NOW, 1)
        assert (one.core.role, one.core.term, one.core.has_ready) == (Role.FOLLOWER, 1, False)
    one.core.applied(2)
    assert one.core.configuration.voters == (1, 2, 3, 4)
    one.tell(Kind.TIMEOUT_NOW, 1)
    assert (one.core.role, one.core.term) == (Role.CANDIDATE, 2)
    assert [message.to for message in one.pump()] == [1, 3, 4]


@pytest.mark.parametrize("seed", SEEDS)
def test_h08_removed_leader_does_not_count_itself(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "isolate 3", "conf! 1 -1", "propose! 1 x")
    assert len(world.mail[1, 2]) == 2
    world.deliver_one((1, 2))
    world.deliver_one((2, 1))
    check(world, "1 commit 2", "1 state follower", "1 voters 2,3")
    world.settle()  # 2 acknowledges the entry behind it too
    check(world, "1,2 last 3", "1 commit 2", "1 state follower")
    with pytest.raises(NotLeading):
        world.core(1).propose([b"y"])
    go_on(world, "campaign 1", "tick 1 40")
    check(world, "1 state follower", "1 term 1")
    # Without 1 the entry is committed when 3 has it as well, and not before.
    go_on(world, "crash 1", "campaign 2", "beat 2")
    check(world, "2 state candidate", "2 commit 2")
    go_on(world, "heal", "campaign 2", "beat 2", "beat 2")
    check(world, "2 state leader", "3 log @2", "2,3 commit @2", "2,3 voters 2,3", "2 commit 4")


def test_h09_learner_rules() -> None:
    two = Stepped(2, configuration=Configuration(voters=(1,), learners=(2,)))
    for _ in range(50):
        two.core.tick()
    two.core.campaign()
    two.tell(Kind.TIMEOUT_NOW, 1, term=1)
    assert (two.core.role, two.pump()) == (Role.FOLLOWER, [])
    (answer,) = two.asked(Kind.VOTE, 1, term=2)
    assert (answer.kind, answer.is_rejected, two.core.vote) == (Kind.VOTE_REPLY, False, 1)
    (answer,) = two.asked(Kind.APPEND, 1, entries=(Entry(1, 2, b"x"),), commit=1)
    assert (answer.kind, answer.index, two.terms) == (Kind.APPEND_REPLY, 1, [2])


@pytest.mark.parametrize("seed", SEEDS)
def test_h09_a_learner_gets_everything_and_counts_nowhere(seed: int) -> None:
    world = run(seed, "cluster voters=1,3 learners=2", "campaign 1", "propose 1 x", "beat 1")
    check(world, "2 log 1,1", "2 commit 2", "2 state follower")
    go_on(world, "isolate 3", "propose 1 y", "beat 1")
    check(world, "2 log 1,1,1", "1,2 commit 2")  # 1 and 2 are no majority of 1 and 3
    go_on(world, "restart 1", "campaign 1")
    check(world, "1 state candidate", "2 vote 0")  # neither in an election
    go_on(world, "heal", "campaign 1", "beat 1", "conf 1 +2", "beat 1", "beat 1")
    check(world, "* voters 1,2,3", "* learners none", "2 log @1")
    go_on(world, "campaign 2")
    check(world, "2 state leader", "1,3 state follower")


@pytest.mark.parametrize("seed", SEEDS)
def test_h10_unaware_voter_must_vote(seed: int) -> None:
    world = run(
        seed, "cluster voters=1,2 learners=3", "campaign 1", "isolate 3", "conf 1 +3", "beat 1",
    )  # fmt: skip
    check(world, "1,2 voters 1,2,3", "3 learners 3", "3 voters 1,2")
    go_on(world, "crash 1", "heal", "campaign 2")
    check(world, "2 state leader", "3 vote 2")
    go_on(world, "beat 2", "beat 2")
    check(world, "3 log @2", "3 commit @2", "3 voters 1,2,3", "2 commit 3")
