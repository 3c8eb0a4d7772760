"""Check-quorum and pre-vote: group E of the scenarios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.configuration import Change, Configuration, Step
from penstock.raft.messages import Kind, Snapshot
from penstock.raft.roles import Role
from raft.groups import go_on
from raft.script import run_line, run_script
from raft.stepping import Stepped, leader_of
from raft.world import SCRIPT_SETTINGS, World

CHECK_QUORUM = replace(SCRIPT_SETTINGS, has_check_quorum=True)
ELECTION_TICKS = SCRIPT_SETTINGS.election_ticks
SEEDS = 8


def pass_election_time(world: World, number: int) -> None:
    """Let a follower not hear its leader for an election timeout, and yet not run itself."""
    world.core(number)._timeout = 2 * ELECTION_TICKS - 1
    run_line(world, f"tick {number} {ELECTION_TICKS}")
    run_line(world, f"expect {number} state follower")


def test_e01_active_quorum_keeps_leader() -> None:
    node = Stepped(settings=CHECK_QUORUM)
    node.lead()
    for _ in range(3 * ELECTION_TICKS + 1):
        node.asked(Kind.HEARTBEAT_REPLY, 3)
        node.core.tick()
        assert node.core.is_leader


def test_e02_lost_quorum_steps_down() -> None:
    node = Stepped(settings=CHECK_QUORUM)
    node.lead()
    for _ in range(ELECTION_TICKS + 1):
        node.core.tick()
    assert (node.core.role, node.core.term, node.core.leader) == (Role.FOLLOWER, 1, 0)


def test_e02_a_leader_that_was_heard_steps_down_when_it_is_not_any_more() -> None:
    node = leader_of(3, settings=CHECK_QUORUM)
    for _ in range(ELECTION_TICKS):
        node.core.tick()
    assert node.core.is_leader
    for _ in range(ELECTION_TICKS):
        node.core.tick()
    assert (node.core.role, node.core.term, node.core.leader) == (Role.FOLLOWER, 1, 0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e03_lease_blocks_vote(seed: int) -> None:
    world = World(seed)
    go_on(world, "cluster 3", "option checkquorum=true", "campaign 1", "expect 1 state leader")
    world.trace.clear()
    go_on(world, "campaign 3", "expect 3 state candidate", "expect 3 term 2")
    go_on(world, "expect 1,2 term 1", "expect 1,2 lead 1", "expect 1 state leader")
    assert {one.kind for one in world.trace} == {Kind.VOTE}  # nobody answered
    pass_election_time(world, 2)
    go_on(world, "campaign 3", "expect 3 state leader", "expect * lead 3", "expect * term 3")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e04_stuck_candidate_is_freed(seed: int) -> None:
    world = World(seed)
    go_on(world, "cluster 3", "option checkquorum=true", "campaign 1", "isolate 1")
    go_on(world, "campaign 3", "campaign 3", "expect 3 state candidate", "expect 3 term 3")
    go_on(world, "expect 2 state follower", "expect 2 term 1", "expect 1 state leader", "heal")
    go_on(world, "beat! 1", "deliver 1>3", "deliver 3>1")
    go_on(world, "expect 1 state follower", "expect 1,3 term 3", "expect 1 lead 0")
    go_on(world, "settle", "campaign 3", "expect 3 state leader", "expect * lead 3")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e06_prevote_protects_leader(seed: int) -> None:
    lines = ["cluster 3", "option prevote=true", "option checkquorum=true", "campaign 1"]
    lines += ["isolate 3", "repeat 3 propose 1 x", "heal", "campaign 3"]
    lines += ["expect 1 state leader", "expect 3 state precandidate", "expect * term 1", "beat 1"]
    checks = ["1 state leader", "2,3 state follower", "* term 1", "* lead 1", "3 log @1"]
    run_script(lines, checks, seed=seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e07_prevote_needs_fresh_log(seed: int) -> None:
    lines = ["cluster 3", "option prevote=true", "campaign 1", "cut 1 3", "propose 1 x", "heal"]
    lines += ["expect 3 last 1", "expect 2 last 2", "campaign 3", "expect 3 state follower"]
    lines += ["expect * term 1", "expect 1 state leader", "campaign 2"]
    checks = ["2 state leader", "1,3 state follower", "* term 2", "* lead 2", "* log 1,1,2"]
    run_script(lines, checks, seed=seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e08_prevote_needs_silent_leader(seed: int) -> None:
    world = World(seed)
    go_on(world, "cluster 3", "option prevote=true", "option checkquorum=true", "campaign 1")
    go_on(world, "campaign 2", "expect 2 state precandidate", "expect 1 state leader")
    go_on(world, "expect * term 1", "beat 1", "expect 2 lead 1")
    pass_election_time(world, 2)
    go_on(world, "campaign 3", "expect 3 state leader", "expect * term 2", "expect * lead 3")
    go_on(world, "campaign 1", "expect 1 state precandidate", "expect 3 state leader")
    go_on(world, "campaign 2", "expect 2 state leader", "expect * term 3", "expect * lead 2")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e09_prevote_split_vote_resolves(seed: int) -> None:
    world = World(seed)
    go_on(world, "cluster 3", "option prevote=true", *(f"set {n} term=1" for n in (1, 2, 3)))
    go_on(world, "campaign 1", "expect 1 state leader", "expect * term 2", "crash 1")
    go_on(world, "campaign! 2", "campaign! 3", "expect 2,3 state precandidate")
    # Each hears the answer to its pre-vote before the other asks for its vote.
    go_on(world, "deliver 2>3", "deliver 3>2", "deliver 2>3", "settle")
    go_on(world, "expect 2,3 state candidate", "expect 2,3 term 3")
    go_on(world, "campaign 2", "expect 2 state leader", "expect 3 state follower")
    go_on(world, "expect 2,3 term 4", "expect 3 lead 2")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e11_smaller_term_node_completes_election(seed: int) -> None:
    world = World(seed)
    go_on(world, "cluster 3", "option prevote=true", *(f"set {n} term=1" for n in (1, 2, 3)))
    go_on(world, "isolate 3", "campaign 1", "expect 1 state leader", "campaign 3")
    go_on(world, "expect 3 state precandidate", "campaign 2", "expect 2 state leader")
    go_on(world, "expect 1,2 term 3", "expect 3 term 1", "heal", "isolate 2")
    # It is told the newer term: with its own, it could go on asking for ever.
    go_on(world, "campaign 3", "expect 3 state follower", "expect 3 term 3", "campaign 1")
    assert [n for n in (1, 3) if world.core(n).is_leader] == [1]  # 3 lacks entries
    go_on(world, "expect 3 lead 1", "expect 3 log @1")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_e12_non_promotable_votes_but_does_not_run(seed: int) -> None:
    world = World(seed)
    go_on(world, "cluster 2", "option checkquorum=true")
    member = world.members[2]
    member.disk.stored_snapshot = Snapshot(0, 0, Configuration(voters=(1,)))
    world.boot(member)
    go_on(world, f"tick 2 {3 * ELECTION_TICKS}", "expect 2 state follower", "expect 2 term 0")
    go_on(world, "campaign 1", "expect 1 state leader", "expect 2 vote 1")
    go_on(world, "expect 2 state follower", "expect 2 lead 1", "expect * log 1")
    go_on(world, f"tick 2 {3 * ELECTION_TICKS}", "campaign 2", "expect 2 state follower")
    go_on(world, "expect * term 1", "expect 1 state leader")


def test_e13_fresh_member_does_not_drop_leader() -> None:
    node = leader_of(1, settings=CHECK_QUORUM)
    for _ in range(ELECTION_TICKS - 1):
        node.core.tick()
        node.pump()
    node.core.propose_conf(Change(((Step.VOTER, 2),)))
    node.pump()
    assert node.core.configuration.voters == (1, 2)
    node.core.tick()
    assert node.core.is_leader
    for _ in range(ELECTION_TICKS - 1):
        node.core.tick()
        assert node.core.is_leader
    node.core.tick()
    assert (node.core.role, node.core.term, node.core.leader) == (Role.FOLLOWER, 1, 0)


TIMEOUT = ELECTION_TICKS + 5
"""Of the members whose timers are looked at."""


def waiting(role: Role) -> Stepped:
    """Return a member of term 2 that will run in three ticks, if nothing keeps it from that."""
    is_running = role is Role.CANDIDATE
    node = Stepped(
        log=[1, 2],
        term=2 - is_running,
        vote=3 * (not is_running),
        draw=lambda _: TIMEOUT - ELECTION_TICKS,
    )
    if is_running:
        node.core.campaign()
    for _ in range(TIMEOUT - 3):
        node.core.tick()
    node.pump()
    assert (node.core.role, node.core.term) == (role, 2)
    return node


def ticks_until_it_runs(node: Stepped) -> int:
    term, ticks = node.core.term, 0
    while node.core.term == term:
        node.core.tick()
        ticks += 1
        assert ticks <= TIMEOUT
    assert node.core.role is Role.CANDIDATE
    return ticks


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
@pytest.mark.parametrize(("term", "index", "log_term"), [(2, 2, 2), (3, 1, 2), (7, 9, 1)])
def test_e15_rejected_vote_does_not_reset_timer(
    role: Role, term: int, index: int, log_term: int
) -> None:
    node = waiting(
        role
    )  # it voted for another in term 2; in newer ones the log asked with is older
    (answer,) = node.asked(Kind.VOTE, term=term, index=index, log_term=log_term)
    assert (answer.is_rejected, node.core.term) == (True, term)
    assert ticks_until_it_runs(node) == 3


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_e15_granting_a_vote_resets_the_timer(role: Role) -> None:
    node = waiting(role)
    (answer,) = node.asked(Kind.VOTE, term=3, index=2, log_term=2)
    assert not answer.is_rejected
    assert ticks_until_it_runs(node) == TIMEOUT


def test_e15_a_leader_that_steps_down_starts_its_timer() -> None:
    node = Stepped(log=[1, 2], term=2, draw=lambda _: TIMEOUT - ELECTION_TICKS)
    node.lead()
    for _ in range(ELECTION_TICKS - 3):
        node.core.tick()
    node.pump()
    (answer,) = node.asked(Kind.VOTE, term=9, index=1, log_term=1)
    assert answer.is_rejected
    assert ticks_until_it_runs(node) == TIMEOUT
