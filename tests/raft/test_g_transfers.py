"""G: leadership that is handed over."""

from __future__ import annotations

import pytest

from penstock.raft.configuration import Configuration
from penstock.raft.messages import Kind
from penstock.raft.refusals import Busy
from penstock.raft.roles import Role
from raft.groups import check, go_on, run
from raft.stepping import Stepped, of_kind
from raft.world import World

SEEDS = range(6)


def transferee(world: World) -> int:
    leadership = world.core(1).leadership
    assert leadership is not None, "1 does not lead"
    return leadership.transferee


@pytest.mark.parametrize("option", ["", "option prevote=true"])
@pytest.mark.parametrize("seed", SEEDS)
def test_g03_overrides_lease(seed: int, option: str) -> None:
    options = [option] if option else []
    world = run(seed, "cluster 3", "option checkquorum=true", *options, "campaign 1", "beat 1")
    # The lease holds: whoever runs by itself is not heard.
    go_on(world, "isolate 3")
    go_on(world, "campaign! 2")
    go_on(world, "deliver 2>1")
    assert world.core(1).is_leader
    world = run(seed, "cluster 3", "option checkquorum=true", *options, "campaign 1", "beat 1")
    del world.trace[:]
    go_on(world, "transfer via=1 to=2")
    votes = of_kind(world.trace, Kind.VOTE)
    assert {(vote.sender, vote.is_transfer) for vote in votes} == {(2, True)}
    assert not of_kind(world.trace, Kind.PRE_VOTE)  # which the others would refuse
    check(world, "2 state leader", "1,3 state follower", "* term 2", "* lead 2")


@pytest.mark.parametrize("seed", SEEDS)
def test_g05_after_snapshot(seed: int) -> None:
    world = run(
        seed,
        "cluster 3",
        "campaign 1",
        "crash 3",
        "repeat 5 propose 1 x",
        "compact 1 4",
        "restart 3",
        "transfer! via=1 to=3",
        "beat! 1",
        "deliver 1>3",
        "deliver 3>1",
        "hold! 3",
        "settle",
    )
    snapshots = of_kind(world.trace, Kind.SNAPSHOT)
    assert [message.to for message in snapshots] == [3]
    held = world.members[3].held
    assert held is not None
    assert held.snapshot is not None
    assert transferee(world) == 3
    check(world, "1 state leader")
    go_on(world, "beat 1")
    check(world, "1 state leader")
    assert not of_kind(world.trace, Kind.TIMEOUT_NOW)
    del world.trace[:]
    go_on(world, "release 3")
    check(world, "3 state leader", "1,2 state follower", "* term 2", "3 first 5", "* last 7")
    course = [(m.kind, m.index) for m in world.trace if m.sender == 3 or m.to == 3]
    (order,) = of_kind(world.trace, Kind.TIMEOUT_NOW)  # when it has what the snapshot lacks, too
    assert (Kind.APPEND_REPLY, 6) in course[: course.index((order.kind, order.index))]


@pytest.mark.parametrize("seed", SEEDS)
def test_g08_refuses_proposals_meanwhile(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "isolate 3", "propose 1 x", "transfer via=1 to=3")
    assert transferee(world) == 3
    core = world.core(1)
    with pytest.raises(Busy, match="goes to 3"):
        core.propose([b"y"])
    with pytest.raises(Busy, match="goes to 3"):
        core.propose([b""])
    world.settle()
    check(world, "1,2 log 1,1")
    go_on(world, "tick 1 10")
    assert transferee(world) == 0
    go_on(world, "propose 1 y")
    check(world, "1,2 log 1,1,1")


@pytest.mark.parametrize("seed", SEEDS)
def test_g09_higher_term_vote_ends_it(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "isolate 3", "transfer via=1 to=3")
    assert transferee(world) == 3
    go_on(world, "campaign 2")
    check(world, "2 state leader", "2 term 2", "1,2 transferee 0", "1 state follower")
    go_on(world, "heal", "beat 2", "beat 2", "propose 2 x")
    check(world, "* log 1,2,2")


@pytest.mark.parametrize("change", ["-3", "l+3"])
@pytest.mark.parametrize("seed", SEEDS)
def test_g10_target_removed_or_demoted(seed: int, change: str) -> None:
    world = run(
        seed,
        "cluster 3",
        "campaign 1",
        "isolate 3",
        f"conf! 1 {change}",  # logged, not agreed on yet
        "transfer! via=1 to=3",
    )
    assert transferee(world) == 3
    world.settle()
    assert transferee(world) == 0
    check(world, "1 state leader")
    go_on(world, "propose 1 x")
    check(world, "1,2 voters 1,2", "1 commit @2", "1 state leader")
    assert world.core(1).log.committed == world.core(1).log.last


def pending(seed: int) -> World:
    world = run(seed, "cluster 3", "campaign 1", "isolate 3", "transfer via=1 to=3", "tick 1 5")
    assert transferee(world) == 3
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_g11_second_request(seed: int) -> None:
    world = pending(seed)
    go_on(world, "transfer via=1 to=2")
    check(world, "2 state leader", "1 state follower", "1,2 transferee 0")

    world = pending(seed)
    go_on(world, "transfer via=1 to=1")
    assert transferee(world) == 0
    go_on(world, "propose 1 x")
    check(world, "1,2 log 1,1")

    world = pending(seed)
    go_on(world, "transfer via=1 to=3")
    go_on(world, "tick 1 4")
    assert transferee(world) == 3
    go_on(world, "tick 1 1")  # ten after the first request
    assert transferee(world) == 0


def test_g11_a_new_target_gets_its_own_time() -> None:
    one = Stepped(voters=5)
    one.lead()
    one.core.transfer(3)
    for _ in range(5):
        one.core.tick()
    one.core.transfer(2)
    for _ in range(9):
        one.core.tick()
    assert one.leadership.transferee == 2
    one.core.tick()
    assert one.leadership.transferee == 0


@pytest.mark.parametrize(
    "configuration",
    [Configuration(voters=(2, 3, 4)), Configuration(voters=(2, 3, 4), learners=(1,))],
    ids=["stranger", "learner"],
)
def test_g12_timeout_now_at_non_member(configuration: Configuration) -> None:
    one = Stepped(configuration=configuration, log=[1], term=1)
    said = one.asked(Kind.TIMEOUT_NOW)
    for peer in (2, 3):
        said += one.asked(Kind.VOTE_REPLY, peer)
    assert (one.core.role, one.core.term, said) == (Role.FOLLOWER, 1, [])


def test_g12_a_voter_runs_at_once() -> None:
    one = Stepped(log=[1], term=1)
    said = one.asked(Kind.TIMEOUT_NOW)
    assert [message.kind for message in said] == [Kind.VOTE] * 2
    assert (one.core.role, one.core.term) == (Role.CANDIDATE, 2)
