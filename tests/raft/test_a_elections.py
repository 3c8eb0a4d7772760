"""Terms, roles and elections: group A of the scenarios that are no scripts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.raft.messages import Entry, Kind
from penstock.raft.refusals import InvariantBroken
from penstock.raft.roles import Role
from penstock.raft.settings import Settings
from raft.scenarios import rows
from raft.script import run_script
from raft.stepping import Stepped, entries
from raft.world import SCRIPT_SETTINGS

PRE_VOTE = replace(SCRIPT_SETTINGS, has_pre_vote=True)
ROLES = {
    "F": Role.FOLLOWER,
    "P": Role.PRE_CANDIDATE,
    "C": Role.CANDIDATE,
    "L": Role.LEADER,
}
ELECTION_TICKS = SCRIPT_SETTINGS.election_ticks
LONGEST_TIMEOUT = 2 * ELECTION_TICKS - 1


def in_role(role: Role, *, term: int = 1, **stored: Any) -> Stepped:
    """Return a member that got into a role as members do, and is at ``term`` now."""
    is_running = role in (Role.CANDIDATE, Role.LEADER)
    settings = PRE_VOTE if role is Role.PRE_CANDIDATE else SCRIPT_SETTINGS
    node = Stepped(term=term - is_running, settings=settings, **stored)
    if role is Role.LEADER:
        node.lead()
    elif role is not Role.FOLLOWER:
        node.core.campaign()
        node.pump()
    assert (node.core.role, node.core.term) == (role, term)
    return node


@pytest.mark.parametrize("row", rows("A02"))
def test_a02_higher_term_always_wins(row: dict[str, Any]) -> None:
    node = in_role(Role(row["start_state"]))
    node.tell(Kind.APPEND, term=2)
    assert (node.core.role, node.core.term) == (Role.FOLLOWER, 2)
    assert node.core.leadership is None


@pytest.mark.parametrize("role", Role)
def test_a03_stale_term_append_ignored(role: Role) -> None:
    node = in_role(role, term=2, log=[1], commit=1)
    before = (node.core.role, node.core.leader, node.terms, node.core.log.committed)
    said = node.asked(Kind.APPEND, term=1, entries=tuple(entries([1])), commit=1)
    said += node.asked(
        Kind.APPEND, 3, term=1, index=1, log_term=1, entries=(Entry(2, 1),), commit=2
    )
    assert (node.core.role, node.core.leader, node.terms, node.core.log.committed) == before
    assert node.core.term == 2
    # Only a member with pre-vote answers, and what it says is its term and no more.
    answers = [(Kind.APPEND_REPLY, to, 2, 0) for to in (2, 3)] if role is Role.PRE_CANDIDATE else []
    assert [(one.kind, one.to, one.term, one.index) for one in said] == answers


@pytest.mark.parametrize(
    "settings",
    [PRE_VOTE, replace(SCRIPT_SETTINGS, has_check_quorum=True)],
    ids=["pre-vote", "check-quorum"],
)
def test_a03_a_stuck_sender_learns_the_newer_term(settings: Settings) -> None:
    node = Stepped(term=2, log=[1], settings=settings)
    sender = Stepped(2, log=[1], settings=settings)
    sender.lead()
    (answer,) = node.asked(Kind.APPEND, term=1, index=1, log_term=1, entries=(Entry(2, 1),))
    assert node.terms == [1]
    sender.core.step(answer)
    assert (sender.core.role, sender.core.term) == (Role.FOLLOWER, 2)


@pytest.mark.parametrize("row", rows("A04"), ids=lambda row: f"{row['from']}{row['to']}")
def test_a04_forbidden_transitions(row: dict[str, Any]) -> None:
    node = in_role(ROLES[row["from"]])
    if row["allowed"]:
        node.core._become(ROLES[row["to"]])
        assert node.core.role is ROLES[row["to"]]
    else:
        with pytest.raises(InvariantBroken, match="cannot become"):
            node.core._become(ROLES[row["to"]])
        assert node.core.role is ROLES[row["from"]]


@pytest.mark.parametrize("role", Role)
def test_a05_all_roles_step_down(role: Role) -> None:
    node = in_role(role)
    held = [1] if role is Role.LEADER else []
    for kind, leader in ((Kind.VOTE, 0), (Kind.APPEND, 2)):
        node.tell(kind, term=3, log_term=3 if kind is Kind.VOTE else 0)
        node.pump()
        assert (node.core.role, node.core.term) == (Role.FOLLOWER, 3)
        assert node.core.leader == leader
        assert node.terms == held


@pytest.mark.parametrize("seed", range(20))
def test_a06_follower_starts_election(seed: int) -> None:
    node = Stepped(log=[1, 1], term=1, draw=Random(seed).randrange)
    for _ in range(LONGEST_TIMEOUT):
        node.core.tick()
    assert (node.core.role, node.core.term, node.core.vote) == (Role.CANDIDATE, 2, 1)
    assert [(one.kind, one.to, one.term, one.index, one.log_term) for one in node.pump()] == [
        (Kind.VOTE, 2, 2, 2, 1),
        (Kind.VOTE, 3, 2, 2, 1),
    ]
    assert node.core.votes == {1: True}


@pytest.mark.parametrize("seed", range(20))
def test_a07_candidate_retries_election(seed: int) -> None:
    node = Stepped(voters=5, draw=Random(seed).randrange)
    node.core.campaign()
    node.pump()
    node.tell(Kind.VOTE_REPLY, 2)
    assert node.core.votes == {1: True, 2: True}
    for _ in range(LONGEST_TIMEOUT):
        node.core.tick()
    assert (node.core.role, node.core.term) == (Role.CANDIDATE, 2)
    said = node.pump()
    assert [(one.kind, one.to, one.term) for one in said] == [
        (Kind.VOTE, voter, 2) for voter in (2, 3, 4, 5)
    ]
    assert node.core.votes == {1: True}
    node.tell(Kind.VOTE_REPLY, 3)
    assert node.core.role is Role.CANDIDATE  # the vote of the term before does not help it


@pytest.mark.parametrize("row", rows("A08"))
def test_a08_one_round_election_outcomes(row: dict[str, Any]) -> None:
    voters, granted, refused, role = (
        row.values()
    )  # YAML takes the names "yes" and "no" for booleans
    node = Stepped(voters=voters)
    node.core.campaign()
    node.pump()
    for voter in granted:
        node.tell(Kind.VOTE_REPLY, voter, term=1)
    for voter in refused:
        node.tell(Kind.VOTE_REPLY, voter, term=1, is_rejected=True)
    assert (node.core.role, node.core.term) == (Role(role), 1)


@pytest.mark.parametrize("row", rows("A09"))
def test_a09_one_vote_per_term(row: dict[str, Any]) -> None:
    node = Stepped(term=1, vote=row["voted_for"])
    (answer,) = node.asked(Kind.VOTE, row["candidate"], term=1)
    assert (answer.kind, answer.to, answer.term) == (Kind.VOTE_REPLY, row["candidate"], 1)
    assert answer.is_rejected is row["reject"]
    kept = row["voted_for"] if row["reject"] else row["candidate"]
    assert node.core.vote == node.disk.hard_state.vote == kept


@pytest.mark.parametrize("term", [1, 2])
def test_a10_candidate_yields_to_leader(term: int) -> None:
    node = in_role(Role.CANDIDATE)
    node.tell(Kind.APPEND, term=term)
    assert (node.core.role, node.core.term, node.core.leader) == (Role.FOLLOWER, term, 2)


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_a11_election_timeout_is_random(role: Role) -> None:
    node = in_role(role, draw=Random(11).randrange)
    seen: Counter[int] = Counter()
    for _ in range(500):
        if role is Role.FOLLOWER:
            node.core.become_follower(node.core.term + 1, 2)
        term, ticks = node.core.term, 0
        while node.core.term == term:
            node.core.tick()
            ticks += 1
        assert node.core.role is Role.CANDIDATE
        node.pump()
        seen[ticks] += 1
    assert sorted(seen) == list(range(ELECTION_TICKS, LONGEST_TIMEOUT + 1))


def test_a12_timeouts_rarely_collide() -> None:
    random = Random(12)
    nodes = [Stepped(number, voters=5, draw=random.randrange) for number in range(1, 6)]
    rounds, collisions = 1000, 0
    for _ in range(rounds):
        for node in nodes:
            node.core.become_follower(node.core.term + 1, 0)
        fired: list[Stepped] = []
        while not fired:
            for node in nodes:
                node.core.tick()
            fired = [node for node in nodes if node.core.role is Role.CANDIDATE]
        collisions += len(fired) > 1
    assert 0 < collisions <= 0.3 * rounds


@pytest.mark.parametrize("row", rows("A13"))
def test_a13_timeout_distribution(row: dict[str, Any]) -> None:
    node = Stepped(draw=Random(13).randrange)
    draws, fired = 10_000, 0
    for _ in range(draws):
        node.core.become_follower(node.core.term, 0)
        term = node.core.term
        for _ in range(row["elapsed_ticks"]):
            node.core.tick()
        fired += node.core.term > term
    assert round(fired / draws, 1) == row["share"]


@pytest.mark.parametrize(("log", "term"), [([1], 2), ([1, 2], 3)])
def test_a14_vote_request_carries_log_position(log: list[int], term: int) -> None:
    node = Stepped(log=log, term=term - 1)
    for _ in range(LONGEST_TIMEOUT):
        node.core.tick()
    asked = [(one.kind, one.to, one.term, one.index, one.log_term) for one in node.pump()]
    assert asked == [(Kind.VOTE, to, term, len(log), log[-1]) for to in (2, 3)]


@pytest.mark.parametrize("row", rows("A15"))
def test_a15_voter_checks_log_freshness(row: dict[str, Any]) -> None:
    node = Stepped(log=row["voter_log"], term=2)
    (answer,) = node.asked(Kind.VOTE, term=3, index=row["index"], log_term=row["logterm"])
    assert (answer.kind, answer.term) == (Kind.VOTE_REPLY, 3)
    assert answer.is_rejected is row["reject"]


@pytest.mark.parametrize("role", Role)
def test_a16_vote_granted_from_any_role(role: Role) -> None:
    node = in_role(role)
    if role is Role.FOLLOWER:
        node.asked(Kind.HEARTBEAT, 3)
    (answer,) = node.asked(Kind.VOTE, term=2, index=42, log_term=2)
    assert (answer.kind, answer.to, answer.term) == (Kind.VOTE_REPLY, 2, 2)
    assert not answer.is_rejected
    assert (node.core.role, node.core.term, node.core.vote) == (Role.FOLLOWER, 2, 2)


@pytest.mark.parametrize("role", Role)
def test_a17_prevote_changes_nothing(role: Role) -> None:
    node = in_role(role)
    if role is Role.FOLLOWER:
        node.asked(Kind.HEARTBEAT, 3)
    before = (node.core.role, node.core.term, node.core.vote, node.disk.hard_state)
    (answer,) = node.asked(Kind.PRE_VOTE, term=2, index=42, log_term=2)
    assert (answer.kind, answer.to, answer.term) == (Kind.PRE_VOTE_REPLY, 2, 2)
    assert not answer.is_rejected
    assert (node.core.role, node.core.term, node.core.vote, node.disk.hard_state) == before


@pytest.mark.parametrize("kind", [Kind.VOTE, Kind.PRE_VOTE])
@pytest.mark.parametrize("row", rows("A18"))
def test_a18_vote_decision_table(row: dict[str, Any], kind: Kind) -> None:
    term = max(2, row["logterm"])
    role = ROLES[row["role"]]
    node = in_role(role, term=term, log=[2, 2], vote=row["voted_for"])
    assert node.core.vote == row["voted_for"]
    (answer,) = node.asked(kind, term=term, index=row["index"], log_term=row["logterm"])
    assert (answer.to, answer.term, answer.is_rejected) == (2, term, row["reject"])
    assert node.core.role is role


@pytest.mark.parametrize("option", ["prevote=false", "prevote=true"])
@pytest.mark.parametrize("row", rows("A20"))
def test_a20_election_with_dead_peers(row: dict[str, Any], option: str) -> None:
    dead = [f"dead {number}" for number in row["dead"]]
    lines = [f"cluster {row['n']}", f"option {option}", *dead, "campaign 1"]
    if row["leader"]:
        checks = ["1 state leader", "* term 1"]
    elif option == "prevote=true":
        checks = ["1 state precandidate", "* term 0"]
    else:
        checks = ["1 state candidate", "* term 1"]
    for seed in range(5):
        run_script(lines, checks, seed=seed)


@pytest.mark.parametrize("settings", [SCRIPT_SETTINGS, PRE_VOTE], ids=["vote", "pre-vote"])
def test_a27_late_self_vote_is_dropped(settings: Settings) -> None:
    node = Stepped(settings=settings)
    node.core.campaign()
    ready = node.core.ready()
    assert node.core.votes == {}
    node.tell(Kind.HEARTBEAT)
    assert node.core.role is Role.FOLLOWER
    node.finish(ready)
    assert (node.core.role, node.core.leader) == (Role.FOLLOWER, 2)
    assert node.core.votes == {}


@pytest.mark.parametrize("settings", [SCRIPT_SETTINGS, PRE_VOTE], ids=["vote", "pre-vote"])
def test_a27_the_self_vote_for_an_older_term_is_dropped(settings: Settings) -> None:
    node = Stepped(settings=replace(settings, is_pipelined=True))
    node.core.campaign()
    first = node.core.ready()
    node.tell(Kind.HEARTBEAT, term=1)
    node.core.campaign()
    second = node.core.ready()
    role = node.core.role
    assert role is not Role.FOLLOWER
    node.finish(first)
    assert (node.core.role, node.core.votes) == (role, {})
    node.finish(second)
    assert (node.core.role, node.core.votes) == (role, {1: True})


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_a28_late_self_prevote_is_not_a_vote(is_pipelined: bool) -> None:
    node = Stepped(settings=replace(PRE_VOTE, is_pipelined=is_pipelined))
    node.core.campaign()
    asking = node.core.ready()
    for voter in (2, 3):
        node.tell(Kind.PRE_VOTE_REPLY, voter, term=1)
    assert (node.core.role, node.core.term) == (Role.CANDIDATE, 1)
    node.finish(asking)
    assert (node.core.role, node.core.votes) == (Role.CANDIDATE, {})
    running = node.core.ready()
    node.tell(Kind.VOTE_REPLY, 2)
    assert (node.core.role, node.core.votes) == (Role.CANDIDATE, {2: True})
    node.finish(running)
    assert node.core.is_leader
