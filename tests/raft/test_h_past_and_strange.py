"""H: changes that were never agreed on, and those who are gone or never were there."""

from __future__ import annotations

import pytest

from penstock.raft.configuration import Configuration, Step
from penstock.raft.core import Raft
from penstock.raft.messages import Kind, Message, Snapshot
from penstock.raft.refusals import BadMessage
from penstock.raft.roles import Role
from raft.groups import THREE, agree, changes, check, go_on, leading, one_step, run
from raft.stepping import Stepped

SEEDS = range(6)


# What was not agreed on was never in force.


@pytest.mark.parametrize("seed", SEEDS)
def test_h20_truncated_change_is_undone(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "beat 1", "isolate 1", "conf 1 +4 -2")
    check(world, "1 last 2", "1 voters 1,2,3")
    go_on(world, "campaign 2", "propose 2 x", "heal", "beat 2", "beat 2")
    check(world, "1 log 1,2,2", "1,2,3 voters 1,2,3", "1 state follower")
    assert not changes(world.core(1))
    go_on(world, "campaign 1")
    check(world, "1 state leader", "1,2,3 voters 1,2,3")
    go_on(world, "conf 1 +4", "beat 1", "beat 1")  # and nothing is taken to be pending
    check(world, "* voters 1,2,3,4")


@pytest.mark.parametrize("seed", SEEDS)
def test_h21_snapshot_has_committed_config_only(seed: int) -> None:
    world = run(
        seed, "cluster 3", "campaign 1", "isolate 3", "conf 1 l+5", "propose 1 x", "conf! 1 -5",
    )  # fmt: skip
    core, disk = world.core(1), world.members[1].disk
    assert (core.log.applied, core.log.last) == (3, 4)
    known = Configuration(voters=(1, 2, 3), learners=(5,))
    # A snapshot is taken of what is applied, with the configuration in force.
    assert core.configuration == known
    disk.stored_snapshot = Snapshot(core.log.applied, 1, core.configuration)
    disk.kept = [entry for entry in disk.kept if entry.index > core.log.applied]
    world.settle()
    assert core.configuration == THREE
    # The one that gets it knows what was agreed on up to there, and no more.
    three = Stepped(3)
    three.asked(Kind.SNAPSHOT, 1, term=1, snapshot=disk.stored_snapshot)
    assert three.core.configuration == known
    go_on(world, "heal", "beat 1", "beat 1")
    check(world, "1,2,3 voters 1,2,3", "1,2,3 learners none", "3 first 4", "3 commit @1")


# Those who are gone.


def test_h22_removed_peers_do_not_count() -> None:
    one = leading(Configuration(voters=(1, 2, 3, 4)))
    one.core.propose_conf(one_step(Step.REMOVE, 4))
    one.core.propose([b"x"])
    one.pump()
    one.asked(Kind.APPEND_REPLY, 4, index=3)  # it has the entry behind its removal, too
    for peer in (2, 3):
        one.asked(Kind.APPEND_REPLY, peer, index=2)
    assert one.core.configuration.voters == (1, 2, 3)
    assert one.core.log.committed == 2
    with pytest.raises(BadMessage):
        one.tell(Kind.APPEND_REPLY, 4, index=3)
    assert one.core.log.committed == 2
    one.asked(Kind.APPEND_REPLY, 3, index=3)
    assert one.core.log.committed == 3


def test_h22_the_vote_of_a_removed_peer_does_not_count() -> None:
    one = leading(Configuration(voters=(1, 2, 3, 4)))
    one.core.propose_conf(one_step(Step.REMOVE, 4))
    agree(one, 2, 3)
    one.asked(Kind.HEARTBEAT, 3, term=2)
    one.core.campaign()
    one.pump()
    with pytest.raises(BadMessage):
        one.tell(Kind.VOTE_REPLY, 4)
    assert one.core.role is Role.CANDIDATE
    one.asked(Kind.VOTE_REPLY, 2)
    assert one.core.is_leader


@pytest.mark.parametrize("seed", SEEDS)
def test_h22_who_was_removed_and_does_not_know_it_disturbs_nobody(seed: int) -> None:
    world = run(
        seed, "cluster 4", "option prevote=true", "option checkquorum=true", "campaign 1", "beat 1",
        "isolate 4", "conf 1 -4", "beat 1", "heal",
    )  # fmt: skip
    check(world, "1,2,3 voters 1,2,3", "4 voters 1,2,3,4")
    for _ in range(60):
        go_on(world, "tick 1 1", "tick 2 1", "tick 3 1", "tick 4 1")
    check(world, "* term 1", "1 state leader", "2,3 state follower")
    assert world.core(4).role is Role.PRE_CANDIDATE


def state(core: Raft) -> tuple[object, ...]:
    """Return all that a message could change."""
    log = core.log
    known = {} if core.leadership is None else core.leadership.progress
    return (
        core.term, core.vote, core.role, core.leader, dict(core.votes), core.configuration,
        log.first, log.last, log.committed, log.applied, repr(known), core._elapsed, core.has_ready,
    )  # fmt: skip


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_h23_unknown_sender_refused(role: Role) -> None:
    one = Stepped(log=[1], term=1)
    if role is Role.LEADER:
        one.lead()
    elif role is Role.CANDIDATE:
        one.core.campaign()
        one.pump()
    assert one.core.role is role
    before = state(one.core)
    replies = (
        Kind.VOTE_REPLY,
        Kind.PRE_VOTE_REPLY,
        Kind.APPEND_REPLY,
        Kind.HEARTBEAT_REPLY,
        Kind.READ_REPLY,
    )
    for kind in replies:
        for term in (one.core.term, one.core.term + 5):
            with pytest.raises(BadMessage):
                one.tell(kind, 9, term=term, index=1)
            assert state(one.core) == before


@pytest.mark.parametrize("kind", list(Kind))
def test_h23_what_a_member_says_to_itself_does_not_come_from_outside(kind: Kind) -> None:
    # Its own vote and its own entries are the local messages of this core.
    one = Stepped(log=[1], term=1)
    one.core.campaign()
    one.pump()
    before = state(one.core)
    for sender, to in ((1, 1), (0, 1), (2, 3)):
        with pytest.raises(BadMessage):
            one.core.step(Message(kind=kind, sender=sender, to=to, term=9, index=1))
        assert state(one.core) == before
