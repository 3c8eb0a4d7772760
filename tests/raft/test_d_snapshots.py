"""D: snapshots between members: what one takes, what a leader sends, and how both go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.configuration import Configuration
from penstock.raft.messages import Kind, Message, Snapshot
from penstock.raft.progress import Pace, Progress
from penstock.raft.roles import Role
from raft.groups import THREE, check, go_on
from raft.stepping import Stepped, of_kind
from raft.world import SCRIPT_SETTINGS, World

SEEDS = range(6)


def taken(one: Stepped, snapshot: Snapshot) -> list[Message]:
    """Give it a snapshot of leader 2 and return what it answers once all is durable."""
    return one.asked(Kind.SNAPSHOT, term=max(snapshot.term, one.core.term), snapshot=snapshot)


# Taking one.


def test_d01_restore_resets_log_and_config() -> None:
    one = Stepped(configuration=Configuration(voters=(1, 2)))
    snapshot = Snapshot(11, 11, THREE)
    one.tell(Kind.SNAPSHOT, term=11, snapshot=snapshot)
    ready = one.core.ready()
    assert (ready.snapshot, ready.must_sync, ready.messages) == (snapshot, True, [])
    log = one.core.log
    assert (log.first, log.last, log.term(11), log.committed) == (12, 11, 11, 11)
    assert one.core.configuration == THREE
    for _ in range(40):
        one.core.tick()
    one.core.campaign()
    one.tell(Kind.TIMEOUT_NOW)
    assert (one.core.role, one.core.term) == (Role.FOLLOWER, 11)
    (answer,) = one.finish(ready)
    assert (answer.kind, answer.index, answer.is_rejected) == (Kind.APPEND_REPLY, 11, False)
    one.tell(Kind.SNAPSHOT, snapshot=snapshot)
    again = one.core.ready()
    assert (again.snapshot, again.entries, again.must_sync) == (None, [], False)
    (answer,) = one.finish(again)
    assert (answer.kind, answer.index) == (Kind.APPEND_REPLY, 11)
    one.core.campaign()
    assert (one.core.role, one.core.term) == (Role.CANDIDATE, 12)


def test_d01_the_same_snapshot_again_is_refused_while_the_first_is_being_written() -> None:
    one = Stepped(settings=replace(SCRIPT_SETTINGS, is_pipelined=True))
    snapshot = Snapshot(11, 11, THREE)
    one.tell(Kind.SNAPSHOT, term=11, snapshot=snapshot)
    first = one.core.ready()
    one.tell(Kind.SNAPSHOT, snapshot=replace(snapshot))
    second = one.core.ready()
    assert (first.snapshot, second.snapshot) == (snapshot, None)
    assert (first.messages, second.messages) == ([], [])  # its answer waits for the first
    one.finish(first)
    assert [answer.index for answer in one.finish(second)] == [11]


def test_d02_old_snapshot_ignored() -> None:
    one = Stepped(log=[1, 1, 1], term=1, commit=1)
    (answer,) = taken(one, Snapshot(1, 1, Configuration(voters=(1, 2, 3, 4))))
    assert (answer.kind, answer.index, answer.is_rejected) == (Kind.APPEND_REPLY, 1, False)
    assert (one.terms, one.core.log.committed) == ([1, 1, 1], 1)
    assert one.core.configuration == THREE
    assert one.disk.stored_snapshot.index == 0


def test_d02_a_snapshot_older_than_the_log_begins_is_ignored() -> None:
    one = Stepped(snapshot=Snapshot(5, 1, THREE), log=[1], term=1, commit=5)
    (answer,) = taken(one, Snapshot(3, 1, THREE))
    assert (answer.index, one.core.log.first, one.terms) == (5, 6, [1])
    assert one.disk.stored_snapshot.index == 5


def test_d03_matching_snapshot_fast_forwards() -> None:
    one = Stepped(log=[1, 1, 1], term=1, commit=1)
    (answer,) = taken(one, Snapshot(2, 1, THREE))
    assert (answer.kind, answer.index) == (Kind.APPEND_REPLY, 2)
    assert (one.terms, one.core.log.committed) == ([1, 1, 1], 2)
    assert one.disk.stored_snapshot.index == 0
    assert [entry.index for entry in one.applied] == [1, 2]


def test_d03_a_snapshot_of_another_term_replaces_the_log() -> None:
    one = Stepped(log=[1, 1, 1], term=1, commit=1)
    taken(one, Snapshot(2, 2, THREE))
    assert (one.core.log.first, one.terms, one.core.log.committed) == (3, [], 2)


@pytest.mark.parametrize(
    ("before", "after", "can_lead"),
    [
        (THREE, Configuration(voters=(2, 3), learners=(1,)), False),
        (Configuration(voters=(2, 3), learners=(1,)), THREE, True),
        (THREE, Configuration(voters=(2, 3), outgoing=(1, 2, 3)), True),
        (
            Configuration(voters=(2, 3), outgoing=(1, 2, 3), learners_next=(1,)),
            Configuration(voters=(2, 3), learners=(1,)),
            False,
        ),
    ],
    ids=["voter to learner", "learner to voter", "outgoing voter", "outgoing voter to learner"],
)
def test_d04_snapshot_may_demote_or_promote(
    before: Configuration, after: Configuration, can_lead: bool
) -> None:
    one = Stepped(configuration=before)
    (answer,) = taken(one, Snapshot(11, 11, after))
    assert answer.index == 11
    assert (one.core.log.last, one.core.configuration) == (11, after)
    one.core.campaign()
    assert one.core.role is (Role.CANDIDATE if can_lead else Role.FOLLOWER)


def test_d05_snapshot_without_me_is_refused() -> None:
    one = Stepped(log=[1, 1], term=1, commit=1)
    (answer,) = taken(one, Snapshot(11, 11, Configuration(voters=(2, 3, 4), learners=(5,))))
    assert (answer.kind, answer.index) == (Kind.APPEND_REPLY, 1)  # what it holds for sure
    assert (one.terms, one.core.log.committed) == ([1, 1], 1)
    assert one.core.configuration == THREE
    assert one.disk.stored_snapshot.index == 0


# Sending one.


def leader() -> tuple[Stepped, Progress]:
    """Return the leader of term 12 whose log begins behind 11 with its empty entry, and its progress of 2."""
    one = Stepped(snapshot=Snapshot(11, 11, THREE), term=11, commit=11)
    one.lead()
    assert one.terms == [12]
    return one, one.leadership.progress[2]


def sending() -> tuple[Stepped, Progress]:
    """Return that leader with its snapshot on the way to 2."""
    one, two = leader()
    one.asked(Kind.APPEND_REPLY, index=11, is_rejected=True)
    assert (two.pace, two.pending_snapshot) == (Pace.SNAPSHOT, 11)
    return one, two


def proposed(one: Stepped) -> list[Message]:
    """Take an entry and return what is sent to 2 for it."""
    one.core.propose([b"x"])
    return [message for message in one.pump() if message.to == 2]


def test_d06_leader_falls_back_to_snapshot() -> None:
    one, two = leader()
    said = one.asked(Kind.APPEND_REPLY, index=11, is_rejected=True)
    assert [(m.kind, m.to, m.snapshot) for m in said] == [
        (Kind.SNAPSHOT, 2, Snapshot(11, 11, THREE))
    ]
    assert (two.pace, two.pending_snapshot) == (Pace.SNAPSHOT, 11)


def test_d07_no_snapshot_to_inactive_peer() -> None:
    settings = replace(SCRIPT_SETTINGS, has_check_quorum=True)
    one = Stepped(settings=settings)
    one.lead()
    for peer in (2, 3):
        one.asked(Kind.APPEND_REPLY, peer, index=1)
    for _ in range(2 * settings.election_ticks):  # two checks: between them only 3 is heard
        one.core.tick()
        one.asked(Kind.HEARTBEAT_REPLY, 3)
    one.core.propose([b"x"])
    one.pump()
    one.asked(Kind.APPEND_REPLY, 3, index=2)
    one.core.report_unreachable(2)
    one.disk.compact(2, THREE)
    assert one.core.is_leader
    assert not proposed(one)
    assert one.leadership.progress[2].pace is Pace.PROBE
    said = one.asked(Kind.HEARTBEAT_REPLY, 2)  # now it is known to be there
    assert [message.kind for message in said] == [Kind.SNAPSHOT]


def test_d08_snapshot_failure() -> None:
    one, two = sending()
    one.core.report_snapshot(2, ok=False)
    assert (two.pending_snapshot, two.pace, two.match, two.next) == (0, Pace.PROBE, 0, 1)
    assert two.is_paused
    assert not proposed(one)
    said = one.asked(Kind.HEARTBEAT_REPLY)
    assert [message.kind for message in said] == [Kind.SNAPSHOT]


def test_d09_snapshot_success() -> None:
    one, two = sending()
    one.core.report_snapshot(2, ok=True)
    assert (two.pending_snapshot, two.pace, two.next) == (0, Pace.PROBE, 12)
    assert two.is_paused
    assert not proposed(one)
    (append,) = of_kind(one.asked(Kind.APPEND_REPLY, index=11), Kind.APPEND)
    assert (append.index, [entry.index for entry in append.entries]) == (11, [12, 13])


def test_d10_snapshot_superseded_by_ack() -> None:
    one, two = sending()
    (append,) = one.asked(Kind.APPEND_REPLY, index=11)
    assert (append.kind, append.index, append.log_term) == (Kind.APPEND, 11, 11)
    assert [(entry.index, entry.payload) for entry in append.entries] == [(12, b"")]
    assert (two.pace, two.pending_snapshot, two.match, two.next) == (Pace.REPLICATE, 0, 11, 13)
    assert len(two.window) == 1


def test_d10_an_ack_of_the_snapshot_counts_even_if_the_log_was_compacted_since() -> None:
    one, two = sending()
    one.asked(Kind.APPEND_REPLY, 3, index=12)
    one.disk.compact(12, THREE)
    (snapshot,) = one.asked(Kind.APPEND_REPLY, index=11)
    assert (snapshot.snapshot, two.match) == (Snapshot(12, 12, THREE), 11)
    assert (two.pace, two.pending_snapshot) == (Pace.SNAPSHOT, 12)
    one.asked(Kind.APPEND_REPLY, index=12)
    assert (two.pace, two.match) == (Pace.REPLICATE, 12)


def test_d15_snapshot_temporarily_unavailable() -> None:
    one, two = leader()
    one.disk.is_snapshot_ready = False
    assert not one.asked(Kind.APPEND_REPLY, index=11, is_rejected=True)
    assert not one.asked(Kind.HEARTBEAT_REPLY)
    assert two.pace is Pace.PROBE
    one.disk.is_snapshot_ready = True
    said = one.asked(Kind.HEARTBEAT_REPLY)
    assert [message.kind for message in said] == [Kind.SNAPSHOT]
    assert two.pending_snapshot == 11


def test_d16_restart_from_snapshot_and_tail() -> None:
    one = Stepped(snapshot=Snapshot(2, 1, THREE), log=[1], term=1, commit=3)
    ready = one.core.ready()
    assert [entry.index for entry in ready.committed] == [3]
    assert (ready.hard_state, ready.entries, ready.snapshot) == (None, [], None)
    assert (ready.messages, ready.messages_after, ready.must_sync) == ([], [], False)
    one.finish(ready)
    assert not one.core.has_ready
    assert (one.core.log.first, one.core.log.term(2), one.core.log.term(3)) == (3, 1, 1)


# Whole groups.


def group(seed: int, *lines: str, window_count: int = 256) -> World:
    world = World(seed)
    world.cluster((1, 2, 3))
    for member in world.members.values():
        member.settings = replace(SCRIPT_SETTINGS, window_count=window_count)
        world.boot(member)
    go_on(world, *lines)
    return world


def progress(world: World, peer: int) -> Progress:
    leadership = world.core(1).leadership
    assert leadership is not None
    return leadership.progress[peer]


@pytest.mark.parametrize("seed", SEEDS)
def test_d12_snapshot_at_last_index_leaves_probe(seed: int) -> None:
    world = group(
        seed, "campaign 1", "isolate 3", "repeat 4 propose 1 x", "compact 1 5", "heal",
    )  # fmt: skip
    assert world.core(1).log.last == 5
    go_on(world, "drop MsgAppResp 3>1")
    go_on(world, "beat 1")
    assert not of_kind(world.trace, Kind.SNAPSHOT)
    go_on(world, "heal")
    del world.trace[:]
    go_on(world, "beat 1")
    (snapshot,) = of_kind(world.trace, Kind.SNAPSHOT)
    assert (snapshot.to, snapshot.snapshot) == (3, Snapshot(5, 1, THREE))
    # Nobody has reported the transfer, and no entry was left to be sent behind it.
    assert (progress(world, 3).pace, progress(world, 3).match) == (Pace.REPLICATE, 5)
    later = world.trace[world.trace.index(snapshot) :]
    assert not [m for m in of_kind(later, Kind.APPEND) if m.to == 3 and m.entries]
    check(world, "3 commit 5")


@pytest.mark.parametrize("seed", SEEDS)
def test_d13_older_snapshot_is_good_enough(seed: int) -> None:
    world = group(seed, "campaign 1", "isolate 3", "repeat 10 propose 1 x", "heal")
    disk, core, link = world.members[1].disk, world.core(1), (1, 3)
    _compact_up_to_the_last(world)
    answer = Message(kind=Kind.HEARTBEAT_REPLY, sender=3, to=1, term=1)
    core.report_unreachable(3)
    world.give(answer)
    assert [message.kind for message in world.mail[link]] == [Kind.SNAPSHOT]
    core.report_snapshot(3, ok=False)  # which is wrong: it is only late
    core.propose([b"x"])
    world.pump_all()
    while world.mail[1, 2] or world.mail[2, 1]:
        go_on(world, "deliver 1>2")
        go_on(world, "deliver 2>1")
    _compact_up_to_the_last(world)
    assert (disk.stored_snapshot.index, disk.first) == (12, 11)
    world.give(answer)
    assert [m.snapshot.index for m in world.mail[link] if m.snapshot] == [11, 12]
    assert progress(world, 3).pending_snapshot == 12
    world.mail[link].pop()  # the second one is lost
    world.deliver_one(link)
    assert world.core(3).log.last == 11
    world.deliver_one((3, 1))
    assert (progress(world, 3).pace, progress(world, 3).match) == (Pace.REPLICATE, 11)
    assert [entry.index for entry in world.mail[link][-1].entries] == [12]
    world.settle()
    go_on(world, "beat 1")
    check(world, "* commit 12")
    assert world.members[3].disk.stored_snapshot.index == 11


def _compact_up_to_the_last(world: World) -> None:
    """Take a snapshot of everything at 1, and keep the log from 11 on."""
    disk = world.members[1].disk
    disk.stored_snapshot = Snapshot(disk.last, disk.term(disk.last), THREE)
    disk.kept = [entry for entry in disk.kept if entry.index >= 11]


@pytest.mark.parametrize("seed", SEEDS)
def test_d14_slow_follower_after_compaction(seed: int) -> None:
    world = group(
        seed, "campaign 1", "drop MsgApp 1>3", "repeat 3 propose 1 x", "compact 1 3",
        window_count=3,
    )  # fmt: skip
    assert progress(world, 3).window.is_full
    assert (world.core(1).log.first, world.core(3).log.last) == (4, 1)
    go_on(world, "heal")
    del world.trace[:]
    go_on(world, "beat 1")
    course = [
        (m.kind, m.is_rejected, len(m.entries))
        for m in world.trace
        if {m.sender, m.to} == {1, 3} and m.kind is not Kind.HEARTBEAT
    ]
    assert course[:4] == [
        (Kind.HEARTBEAT_REPLY, False, 0),
        (Kind.APPEND, False, 0),
        (Kind.APPEND_REPLY, True, 0),
        (Kind.SNAPSHOT, False, 0),
    ]
    go_on(world, "beat 1")
    check(world, "* commit 4")
    check(world, "* last 4")
    assert progress(world, 3).pace is Pace.REPLICATE
