"""I: what a member hands out, when, and what it never takes back."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from penstock.raft.configuration import Configuration
from penstock.raft.log import Log
from penstock.raft.messages import Entry, HardState, Kind, Message, Snapshot
from penstock.raft.refusals import BadMessage, InvariantBroken, OutstandingReady
from penstock.raft.roles import Role
from raft.groups import THREE, check, go_on, run
from raft.stepping import Stepped, entries, of_kind
from raft.world import SCRIPT_SETTINGS, Disk, World

SEEDS = range(6)
TESTS = str(Path(__file__).parents[1])
PIPELINED = replace(SCRIPT_SETTINGS, is_pipelined=True)


def appended(one: Stepped, first: int, terms: list[int], *, term: int, commit: int = 0) -> None:
    """Let leader 2 of a term send entries from an index on, behind what is there."""
    previous = one.core.log.term(first - 1)
    one.tell(
        Kind.APPEND,
        term=term,
        index=first - 1,
        log_term=previous,
        entries=tuple(entries(terms, first=first)),
        commit=commit,
    )


# What rests on the disk leaves after the disk.


def test_i01_nothing_leaves_before_durable() -> None:
    one = Stepped()
    one.tell(Kind.VOTE, term=1)
    ready = one.core.ready()
    assert (ready.messages, ready.hard_state) == ([], HardState(1, 2, 0))
    assert [(m.kind, m.is_rejected) for m in ready.messages_after] == [(Kind.VOTE_REPLY, False)]
    one.finish(ready)

    appended(one, 1, [1, 1], term=1)
    ready = one.core.ready()
    assert (ready.messages, [entry.index for entry in ready.entries]) == ([], [1, 2])
    assert [(m.kind, m.index) for m in ready.messages_after] == [(Kind.APPEND_REPLY, 2)]
    one.finish(ready)

    leader = Stepped()
    leader.lead()
    leader.asked(Kind.APPEND_REPLY, index=1)
    leader.core.propose([b"x"])
    ready = leader.core.ready()
    assert [m.kind for m in ready.messages] == [Kind.APPEND]  # its disk works while theirs do
    leader.tell(Kind.APPEND_REPLY, index=2)
    assert leader.core.log.committed == 1  # its own word is not worth anything yet
    assert leader.leadership.progress[1].match == 1
    leader.core.beat()
    leader.finish(ready)
    assert leader.core.log.committed == 2
    assert of_kind(leader.core.ready().messages, Kind.HEARTBEAT)


@pytest.mark.parametrize("seed", SEEDS)
def test_i01_in_a_group_nothing_is_believed_that_a_crash_takes_back(seed: int) -> None:
    world = run(seed, "cluster 3", "hold 2", "hold 3", "campaign 1")
    check(world, "1 state candidate")  # no vote is out
    go_on(world, "release! 2", "hold! 2", "settle", "expect 1 state leader", "propose 1 x")
    check(world, "2 last 1")
    check(world, "1 commit 0")
    go_on(world, "restart 2")  # what it had not synced is gone, and was not promised
    check(world, "2 last 0")
    check(world, "2 vote 1")
    go_on(world, "beat 1")
    check(world, "1 commit 2")


def test_i02_must_sync_rule() -> None:
    one = Stepped(term=1)
    appended(one, 1, [1, 1], term=1)
    ready = one.core.ready()  # entries
    assert (ready.must_sync, ready.hard_state, len(ready.entries)) == (True, None, 2)
    one.finish(ready)
    one.tell(Kind.HEARTBEAT, commit=1)
    ready = one.core.ready()  # a commit index alone
    assert (ready.must_sync, ready.hard_state) == (False, HardState(1, 0, 1))
    one.finish(ready)
    one.pump()
    one.tell(Kind.HEARTBEAT, 3, term=2)
    ready = one.core.ready()  # a term
    assert (ready.must_sync, ready.hard_state) == (True, HardState(2, 0, 1))
    one.finish(ready)
    two = Stepped(term=2)
    two.tell(Kind.VOTE, 3)
    ready = two.core.ready()  # a vote in a term that is known already
    assert (ready.must_sync, ready.hard_state) == (True, HardState(2, 3, 0))


def test_i03_ready_order_and_single_advance() -> None:
    one = Stepped(term=1)
    appended(one, 1, [1], term=1)
    first = one.core.ready()
    with pytest.raises(OutstandingReady):
        one.core.ready()
    appended(one, 2, [1], term=1)  # arrives while the disk is busy
    with pytest.raises(OutstandingReady):
        one.core.ready()
    with pytest.raises(InvariantBroken):
        one.core.persisted(first.token + 1)
    assert [m.index for m in one.finish(first)] == [1]
    second = one.core.ready()
    assert second.token > first.token
    assert ([e.index for e in second.entries], [m.index for m in second.messages_after]) == (
        [2],
        [2],
    )
    one.finish(second)
    with pytest.raises(InvariantBroken):
        one.core.persisted(second.token)


# Several writes under way.


def test_i04_async_append_pipeline() -> None:
    one = Stepped(settings=PIPELINED, term=1)
    appended(one, 1, [1, 1], term=1)
    first = one.core.ready()
    appended(one, 3, [1, 1], term=1, commit=4)
    second = one.core.ready()
    assert [e.index for e in (*first.entries, *second.entries)] == [1, 2, 3, 4]
    assert (one.core.log.committed, first.committed, second.committed) == (4, [], [])
    assert (first.messages, second.messages) == ([], [])
    assert not one.core.has_ready
    with pytest.raises(InvariantBroken):
        one.core.persisted(second.token)  # a disk has one order of completion
    assert [m.index for m in one.finish(first)] == [2]
    third = one.core.ready()
    assert [e.index for e in third.committed] == [1, 2]  # what is durable here, and no more
    assert (third.entries, third.messages_after) == ([], [])
    assert [m.index for m in one.finish(second)] == [4]
    one.finish(third)
    assert [e.index for e in one.core.ready().committed] == [3, 4]


def test_i04_an_answer_without_a_write_waits_for_the_writes_before_it() -> None:
    one = Stepped(settings=PIPELINED, term=1)
    appended(one, 1, [1, 1], term=1)
    first = one.core.ready()
    appended(one, 1, [1, 1], term=1)  # the same again
    second = one.core.ready()
    assert (second.entries, second.messages, second.must_sync) == ([], [], False)
    assert [m.index for m in second.messages_after] == [2]
    one.tell(Kind.HEARTBEAT, term=2, sender=3)
    third = one.core.ready()
    one.tell(Kind.HEARTBEAT, term=2, sender=3)
    fourth = one.core.ready()  # its term is not durable yet either
    assert (third.messages, fourth.messages) == ([], [])
    for ready in (first, second, third, fourth):
        assert one.finish(ready)


@pytest.mark.parametrize("again", [1, 3])
def test_i05_async_aba(again: int) -> None:
    """Entry 2 is written in term 1, replaced in term 2, and then by term 1's again, or by term 3's."""
    one = Stepped(settings=PIPELINED, term=1)
    appended(one, 1, [1, 1], term=1)
    first = one.core.ready()
    appended(one, 2, [2], term=2)
    second = one.core.ready()
    appended(one, 2, [again], term=3, commit=2)
    third = one.core.ready()
    assert one.terms == [1, again]
    assert [[(e.index, e.term) for e in r.entries] for r in (first, second, third)] == [
        [(1, 1), (2, 1)], [(2, 2)], [(2, again)],
    ]  # fmt: skip
    one.finish(first)
    assert one.core.log.stable == 1
    one.finish(second)
    assert one.core.log.stable == 1
    assert [e.index for e in one.core.ready().committed] == [1]
    assert [m.index for m in one.finish(third)] == [2]
    assert one.core.log.stable == 2
    assert [e.term for e in one.disk.kept] == [1, again]


@pytest.mark.parametrize("seed", range(40))
def test_i05_in_any_order_only_what_is_on_the_disk_is_taken_to_be(seed: int) -> None:
    random = Random(seed)
    one = Stepped(settings=replace(PIPELINED, apply_size_max=1), term=1)
    under_way = []
    for term in range(2, 40):
        last, committed = one.core.log.last, one.core.log.committed
        first = random.randint(committed, last) + 1
        terms = [random.randint(one.core.log.term(first - 1) or 1, term)] * random.randint(1, 3)
        commit = random.choice([0, 0, 0, committed + 1])
        appended(one, first, terms, term=term, commit=commit)
        if random.random() < 0.7:
            under_way.append(one.core.ready())
        while under_way and random.random() < 0.5:
            one.finish(under_way.pop(0))
            log, disk = one.core.log, one.disk
            # What is stable will not be touched by the writes that are under way.
            kept = Disk(THREE)
            kept.kept = list(disk.kept)
            for ready in under_way:
                kept.store(ready)
            for index in range(1, log.stable + 1):
                assert disk.term(index) == log.term(index) == kept.term(index), f"seed {seed}"
    assert [entry.index for entry in one.applied] == list(range(1, len(one.applied) + 1))


def test_i03_entries_that_a_snapshot_overtakes_while_they_are_applied() -> None:
    one = Stepped(log=[1, 1], term=1, commit=2)
    ready = one.core.ready()
    assert [entry.index for entry in ready.committed] == [1, 2]
    one.tell(Kind.SNAPSHOT, snapshot=Snapshot(9, 1, Configuration(voters=(1, 2))))
    one.finish(ready)
    assert one.core.log.applied == 2
    one.pump()
    assert (one.core.log.applied, one.core.configuration.voters) == (9, (1, 2))


# Starting again.


def test_i07_restart_applies_committed_only() -> None:
    one = Stepped(log=[1, 1], term=1, commit=1)
    ready = one.core.ready()
    assert [entry.index for entry in ready.committed] == [1]
    assert (ready.hard_state, ready.entries, ready.must_sync) == (None, [], False)
    one.finish(ready)
    assert not one.core.has_ready
    one.asked(Kind.HEARTBEAT, commit=2)
    assert [entry.index for entry in one.applied] == [1, 2]


# What never goes back.


def test_i16_term_never_goes_back() -> None:
    one = Stepped(log=[1, 1, 4], term=5, commit=1)
    one.asked(Kind.APPEND, term=6, index=1, log_term=1, entries=tuple(entries([2], first=2)))
    assert (one.terms, one.core.term) == ([1, 2], 6)  # the log is of an older term than before
    again = Stepped(log=one.terms, term=one.disk.hard_state.term)
    assert again.core.term == 6
    one.core.campaign()
    one.pump()
    assert (one.core.role, one.core.term) == (Role.CANDIDATE, 7)
    old = entries([6, 6], first=2)
    assert not one.asked(Kind.APPEND, term=6, index=1, log_term=1, entries=tuple(old), commit=3)
    assert (one.core.role, one.core.term, one.terms) == (Role.CANDIDATE, 7, [1, 2])
    assert one.core.log.committed == 1
    one.asked(Kind.SNAPSHOT, term=8, snapshot=Snapshot(9, 3, THREE))  # the log begins anew
    assert (one.core.log.last_term, one.core.term, one.disk.hard_state.term) == (3, 8, 8)
    with pytest.raises(InvariantBroken):
        one.core.become_follower(7, 2)
    assert one.core.term == 8


@pytest.mark.parametrize(
    ("index", "log_term", "terms"),
    [(3, 1, []), (2, 3, []), (1, 1, [1]), (0, 0, [2]), (1, 1, [2, 3]), (3, 3, [])],
)
def test_i17_commit_never_goes_back(index: int, log_term: int, terms: list[int]) -> None:
    one = Stepped(log=[1, 2, 2, 2], term=3, commit=3)
    one.pump()
    with pytest.raises(InvariantBroken, match="is committed"):
        appended_as(one, index, log_term, terms)
    assert (one.terms, one.core.log.committed, one.core.log.applied) == ([1, 2, 2, 2], 3, 3)


@pytest.mark.parametrize(
    ("index", "log_term", "terms"), [(0, 0, [1]), (1, 1, [2]), (1, 1, []), (2, 2, [2, 3])]
)
def test_i17_what_is_committed_may_be_told_again(
    index: int, log_term: int, terms: list[int]
) -> None:
    one = Stepped(log=[1, 2, 2, 2], term=3, commit=3)
    one.pump()
    appended_as(one, index, log_term, terms)
    (answer,) = one.pump()
    assert (answer.kind, answer.index, answer.is_rejected) == (Kind.APPEND_REPLY, 3, False)
    assert (one.terms, one.core.log.committed, one.core.log.applied) == ([1, 2, 2, 2], 3, 3)


def test_i17_neither_a_heartbeat_nor_the_driver_turns_it_back() -> None:
    one = Stepped(log=[1, 2, 2, 2], term=3, commit=3)
    one.pump()
    one.asked(Kind.HEARTBEAT, commit=1)
    assert one.core.log.committed == 3
    one.core.applied(2)
    assert one.core.log.applied == 3
    log = Log(one.disk, committed=3, applied=3)
    with pytest.raises(InvariantBroken):
        log.append(entries([3], first=3))
    with pytest.raises(InvariantBroken):
        log.note_applied(2)


def appended_as(one: Stepped, index: int, log_term: int, terms: list[int]) -> None:
    sent = tuple(entries(terms, first=index + 1))
    one.tell(Kind.APPEND, term=3, index=index, log_term=log_term, entries=sent)


@pytest.mark.parametrize("seed", range(30))
def test_i18_parallel_catchup_keeps_committed(seed: int) -> None:
    """Two leaders feed a follower at once: 2 of term 2, which was deposed, and 3 of term 3."""
    random = Random(seed)
    old, new = [1, 1, *[2] * 8], [1, 1, 1, *[3] * 7]
    one = Stepped(log=[1, 1], term=1, commit=2)
    one.pump()
    streams = [pieces(2, 2, old, commit=2), pieces(3, 3, new)]
    committed: list[int] = [1, 1]
    while any(streams):
        one.core.step(random.choice([stream for stream in streams if stream]).pop(0))
        one.pump()
        agreed = one.terms[: one.core.log.committed]
        assert agreed[: len(committed)] == committed, f"seed {seed}"
        committed = agreed
    assert (one.terms, one.core.log.committed, one.core.leader) == (new, len(new), 3)
    assert [entry.term for entry in one.applied] == new


def pieces(sender: int, term: int, log: list[int], commit: int | None = None) -> list[Message]:
    """Return the appends of a leader that sends its whole log in overlapping pieces."""
    sent = []
    for first in range(1, len(log) + 1, 2):
        piece = tuple(entries(log)[first - 1 : first + 3])
        sent.append(
            Message(
                kind=Kind.APPEND,
                sender=sender,
                to=1,
                term=term,
                index=first - 1,
                log_term=log[first - 2] if first > 1 else 0,
                entries=piece,
                commit=piece[-1].index if commit is None else commit,
            )
        )
    return sent


@pytest.mark.parametrize(
    "wrong",
    [
        (Entry(3, 1),),
        (Entry(2, 1), Entry(4, 1)),
        (Entry(2, 1), Entry(2, 1)),
        (Entry(2, 3), Entry(3, 2)),
        (Entry(2, 0),),
        (Entry(2, 4),),
        (Entry(1, 1),),
    ],
    ids=["gap before", "gap", "twice", "falling term", "no term", "term to come", "before"],
)
def test_entries_that_do_not_follow_each_other_are_refused_before_anything_changes(
    wrong: tuple[Entry, ...],
) -> None:
    # The part of I20 that is the core's; lengths and counts are the business of who decodes.
    one = Stepped(log=[1], term=1)
    with pytest.raises(BadMessage):
        one.tell(Kind.APPEND, term=3, index=1, log_term=1, entries=wrong)
    assert (one.core.term, one.terms, one.core.leader, one.core.has_ready) == (1, [1], 0, False)


# The same input, the same output.


def digest(seed: int) -> str:
    """Return a hash of all that a group of five said and stored in a life full of faults."""
    random, world = Random(seed), World(seed)
    world.cluster((1, 2, 3, 4, 5))
    for member in world.members.values():
        member.settings = replace(SCRIPT_SETTINGS, has_pre_vote=True, has_check_quorum=True)
        world.boot(member)
    step, names = count(), tuple(range(1, 6))
    for _ in range(250):
        number = random.choice(names)
        verb = random.choice(
            [f"tick {number} 3"] * 12
            + [f"propose {number} {next(step)}", f"read {number} r", "heal"] * 3
            + [f"restart {number}", f"cut {number} {random.choice(names)}", f"isolate {number}"]
            + [f"conf {number} l+{random.choice(names)}", f"conf {number} +{random.choice(names)}"]
            + [f"transfer via={number} to={random.choice(names)}"]
        )
        go_on(world, verb)
    found = [repr(world.trace)]
    for one in world.up():
        assert one.core is not None
        found += [repr(one.disk.kept), repr(one.disk.hard_state), repr(one.core.configuration)]
        found += [repr(one.reads), repr(one.core.role)]
    assert len(world.applied_entries) > 10
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def test_i21_same_input_same_output() -> None:
    code = "from raft.test_i_ready import digest; print(digest(1), digest(2))"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": TESTS},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    here = [digest(1), digest(2)]
    assert (digest(1), here[0] != here[1]) == (here[0], True)
    for other in others:
        assert other.communicate()[0].split() == here


# A request for votes says what is durable.


@pytest.mark.parametrize("seed", SEEDS)
def test_i22_vote_request_waits_for_what_it_claims(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 2", "beat 2", "hold 1", "propose 2 x", "beat 2")
    check(world, "1 last 2")
    assert world.members[1].disk.last == 1  # the entry is not synced
    go_on(world, "isolate 2")
    del world.trace[:]
    go_on(world, "campaign 1")
    go_on(world, "tick 1 40")
    assert (world.core(1).role, world.core(1).term > 1) == (Role.CANDIDATE, True)
    assert not of_kind(world.trace, Kind.VOTE)
    check(world, "3 term 1")  # nobody was asked
    go_on(world, "restart 1")
    check(world, "1 term 1", "1 last 1", "1 state follower")
    go_on(world, "campaign 1")
    (vote,) = [message for message in of_kind(world.trace, Kind.VOTE) if message.to == 3]
    assert (vote.term, vote.index) == (2, 1)  # in the term of the first try, and what is there
    check(world, "1 state candidate")  # 3 has more, and nothing is left of the first try
    check(world, "3 vote 0")


@pytest.mark.parametrize("kind", [Kind.VOTE, Kind.PRE_VOTE])
def test_i22_not_even_behind_a_write_that_is_under_way(kind: Kind) -> None:
    settings = replace(PIPELINED, has_pre_vote=kind is Kind.PRE_VOTE)
    one = Stepped(settings=settings, term=1)
    appended(one, 1, [1], term=1)
    first = one.core.ready()
    one.core.campaign()
    second = one.core.ready()
    assert (first.messages, second.messages) == ([], [])
    assert [(m.kind, m.index) for m in second.messages_after] == [(kind, 1)] * 2
    one.finish(first)
    assert one.core.votes == {}
    one.finish(second)
    assert one.core.votes == {1: True}
