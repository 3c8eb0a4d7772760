"""F: reads that see everything that was acknowledged before they were asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.configuration import Configuration
from penstock.raft.messages import Kind, Message, ReadState
from penstock.raft.refusals import Busy
from penstock.raft.roles import Role
from penstock.raft.settings import Settings
from raft.groups import check, go_on, run
from raft.stepping import Stepped, of_kind
from raft.world import SCRIPT_SETTINGS

SEEDS = range(6)


@pytest.mark.parametrize("has_check_quorum", [False, True])
def test_f02_lease_needs_check_quorum(has_check_quorum: bool) -> None:
    # Reads by lease are not offered at all, with check-quorum neither.
    with pytest.raises(ValueError, match="lease"):
        Settings(has_lease_reads=True, has_check_quorum=has_check_quorum)


@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_f03_new_leader_defers_reads(seed: int, asked: int) -> None:
    world = run(
        seed,
        "cluster 3",
        "set 1 term=1 log=1,1 commit=1",  # what 2 and 3 know to be committed, 1 does not
        "set 2 term=1 log=1,1 commit=2",
        "set 3 term=1 log=1,1 commit=2",
        "drop MsgApp",
        "campaign 1",
        "beat 1",
        f"read {asked} r",
        "beat 1",
        "beat 1",
        f"expect {asked} read none",
        "expect 1 commit 1",
        "heal",
        "propose! 1 x",
        "beat 1",
    )
    check(world, f"{asked} read 4")
    check(world, "1 commit 4")


@pytest.mark.parametrize("seed", SEEDS)
def test_f04_read_needs_fresh_heartbeat_round(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "propose 1 x", "beat 1")
    stale = world.core(1)
    asking = Message(kind=Kind.READ, sender=3, to=1, context=70)  # read A, of member 3
    del world.trace[:]
    world.give(asking)
    go_on(world, "deliver 1>2", "deliver 1>3")
    late = [*world.mail[2, 1], *world.mail[3, 1]]
    assert [message.kind for message in late] == [Kind.HEARTBEAT_REPLY] * 2
    assert all(message.context for message in late)
    world.mail[2, 1].clear()
    world.mail[3, 1].clear()
    go_on(world, "isolate 1", "campaign 2", "propose 2 y", "beat 2")
    check(world, "2,3 commit 4")
    assert (stale.role, stale.log.committed) == (Role.LEADER, 2)
    b = world.read(1)
    world.pump_all()
    world.give(asking)  # the duplicate of A
    for message in late:
        world.give(message)
    # A is answered, once, with what was committed when it was asked; what came later is not.
    answers = of_kind(world.trace, Kind.READ_REPLY)
    assert [(answer.to, answer.context, answer.index) for answer in answers] == [(3, 70, 2)]
    assert b not in world.members[1].reads
    go_on(world, "beat! 1", "heal", "beat 1", "beat 2", "beat 2")
    assert b not in world.members[1].reads
    assert len(of_kind(world.trace, Kind.READ_REPLY)) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_f04_what_the_caller_calls_a_read_proves_nothing(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "propose 1 x", "beat 1")
    core = world.core(1)
    core.read_index(5)
    world.pump_all()
    go_on(world, "deliver 1>2")
    (late,) = world.mail[2, 1]
    world.mail[2, 1].clear()
    go_on(world, "isolate 1", "campaign 2", "propose 2 y")
    core.read_index(5)  # tried again under the same name
    world.pump_all()
    world.give(late)
    assert world.members[1].reads == {5: 2}  # the first try; the second still waits
    core.beat()
    (beat,) = of_kind(core.ready().messages, Kind.HEARTBEAT)[:1]
    assert beat.context > late.context


@pytest.mark.parametrize("seed", SEEDS)
def test_f05_learner_may_read(seed: int) -> None:
    world = run(seed, "cluster voters=1 learners=2", "campaign 1")
    for round_ in range(1, 5):
        go_on(world, "repeat 10 propose 1 x", f"read {1 + round_ % 2} r")
        check(world, f"{1 + round_ % 2} read {10 * round_ + 1}")


@pytest.mark.parametrize("seed", SEEDS)
def test_f05_a_learner_does_not_vouch_for_a_leader(seed: int) -> None:
    world = run(seed, "cluster voters=1,2,3 learners=4", "campaign 1", "beat 1")
    go_on(world, "isolate 2", "isolate 3", "read 1 a", "beat 1", "read 4 b", "beat 1")
    check(world, "1,4 read none")
    go_on(world, "heal", "beat 1")
    check(world, "1,4 read 1")


def test_f06_reads_are_freed() -> None:
    one = Stepped(settings=replace(SCRIPT_SETTINGS, reads_max=2))
    one.lead()
    for peer in (2, 3):
        one.asked(Kind.APPEND_REPLY, peer, index=1)
    for first in (10, 20, 30):
        one.core.read_index(first)
        one.core.read_index(first + 1)
        with pytest.raises(Busy):
            one.core.read_index(first + 2)
        (beat, *_) = reversed(of_kind(one.core.ready().messages, Kind.HEARTBEAT))
        one.core.advance()
        one.tell(Kind.HEARTBEAT_REPLY, context=beat.context)
        ready = one.core.ready()
        assert ready.read_states == [ReadState(first, 1), ReadState(first + 1, 1)]
        one.core.advance()
        one.tell(Kind.HEARTBEAT_REPLY, 3, context=beat.context)
        assert not one.pump()
        one.core.beat()
        assert {message.context for message in one.pump()} == {0}  # no read waits for an echo


def test_f06_reads_before_the_first_commit_are_bounded_too() -> None:
    one = Stepped(settings=replace(SCRIPT_SETTINGS, reads_max=2))
    one.lead()
    one.core.read_index(1)
    one.tell(Kind.READ, 3, term=0, context=2)
    with pytest.raises(Busy):
        one.core.read_index(3)
    one.tell(Kind.READ, 3, term=0, context=4)  # one too many: its sender asks again
    one.asked(Kind.APPEND_REPLY, index=1)
    one.core.beat()
    (beat, *_) = one.pump()
    one.tell(Kind.HEARTBEAT_REPLY, context=beat.context)
    ready = one.core.ready()
    assert ready.read_states == [ReadState(1, 1)]
    assert [message.context for message in of_kind(ready.messages, Kind.READ_REPLY)] == [2]


def test_f06_waiting_reads_end_with_the_role() -> None:
    one = Stepped()
    one.lead()
    one.asked(Kind.APPEND_REPLY, index=1)
    one.core.read_index(1)
    (beat, *_) = one.pump()
    one.asked(Kind.HEARTBEAT, term=5)
    one.lead()
    one.asked(Kind.APPEND_REPLY, index=2)
    one.tell(Kind.HEARTBEAT_REPLY, context=beat.context)
    assert not one.core.has_ready


@pytest.mark.parametrize("seed", SEEDS)
def test_f07_read_via_old_leader(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "propose 1 x", "campaign 2", "beat 2")
    check(world, "1 lead 2")
    del world.trace[:]
    # Member 3 asks the one that it took for the leader, in the term of that time.
    world.give(Message(kind=Kind.READ, sender=3, to=1, term=1, context=9))
    (forwarded,) = of_kind(world.trace, Kind.READ)
    assert (forwarded.to, forwarded.sender, forwarded.term) == (2, 3, 0)
    world.settle()
    assert world.members[3].reads == {9: 3}
    check(world, "* term 2")


def test_f08_single_voter_reads_at_once() -> None:
    one = Stepped(voters=1)
    one.lead()
    one.core.propose([b"x"])
    one.pump()
    one.core.read_index(4)
    ready = one.core.ready()
    assert ready.read_states == [ReadState(4, 2)]
    assert (ready.messages, ready.messages_after) == ([], [])


def test_f08_a_single_voter_asks_no_learner() -> None:
    one = Stepped(configuration=Configuration(voters=(1,), learners=(2,)))
    one.lead()
    one.core.read_index(4)
    ready = one.core.ready()
    assert ready.read_states == [ReadState(4, 1)]
    assert not of_kind(ready.messages, Kind.HEARTBEAT)


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_f10_paused_leader_serves_nothing_stale(seed: int, is_guarded: bool) -> None:
    options = ("option prevote=true", "option checkquorum=true") if is_guarded else ()
    world = run(seed, "cluster 3", *options, "campaign 1", "propose 1 x", "beat 1")
    # What reached it before the pause still lies there: answers to an earlier round.
    world.read(1)
    world.pump_all()
    go_on(world, "deliver 1>2", "deliver 1>3")
    waiting = [*world.mail[2, 1], *world.mail[3, 1]]
    world.mail[2, 1].clear()
    world.mail[3, 1].clear()
    go_on(world, "isolate 1", *["tick 2 1", "tick 3 1"] * 40)
    (leader,) = [
        one.number for one in world.up() if one.number > 1 and world.core(one.number).is_leader
    ]
    go_on(world, f"propose {leader} y", f"beat {leader}", "heal")
    newest = world.core(leader).log.committed
    assert newest > world.core(1).log.committed
    assert world.core(1).is_leader  # it has not noticed anything
    context = world.read(1)
    for message in waiting:
        world.give(message)
    assert context not in world.members[1].reads
    world.settle()
    go_on(world, *["tick 1 1", f"tick {leader} 1"] * 5)
    assert world.members[1].reads.get(context, newest) >= newest
    assert not world.core(1).is_leader
    fresh = world.read(1)
    world.settle()
    assert world.members[1].reads[fresh] >= newest
