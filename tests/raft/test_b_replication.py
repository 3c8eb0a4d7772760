"""Replication and commitment: group B of the scenarios that are no scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.raft.configuration import Configuration
from penstock.raft.leading import Leadership
from penstock.raft.log import Log
from penstock.raft.messages import Entry, Kind, Message, Snapshot
from penstock.raft.refusals import Dropped, InvariantBroken, NotLeading
from penstock.raft.roles import Role
from raft.scenarios import rows
from raft.script import run_script
from raft.stepping import Stepped, entries, leader_of, of_kind
from raft.world import SCRIPT_SETTINGS, Disk

SEEDS = 5


def test_b01_leader_replicates_proposal() -> None:
    node = leader_of(3)
    node.core.propose([b"some"])
    assert (node.core.log.last, node.core.log.committed) == (2, 1)
    ready = node.core.ready()
    entry = Entry(2, 1, b"some")
    assert ready.entries == [entry]
    assert ready.must_sync
    assert ready.messages == [
        Message(
            kind=Kind.APPEND,
            sender=1,
            to=to,
            term=1,
            index=1,
            log_term=1,
            entries=(entry,),
            commit=1,
        )
        for to in (2, 3)
    ]


@pytest.mark.parametrize("row", rows("B03"))
def test_b03_ack_quorum(row: dict[str, Any]) -> None:
    node = leader_of(row["n"])
    node.core.propose([b"some"])
    node.pump()
    for voter in row["ackers"]:
        node.asked(Kind.APPEND_REPLY, voter, index=2)
    assert (node.core.log.committed == 2) is row["committed"]
    assert (node.applied[-1].payload == b"some") is row["committed"]


@pytest.mark.parametrize("log", [[], [2], [1, 2], [1]], ids=str)
def test_b04_commit_takes_preceding_entries(log: list[int]) -> None:
    node = Stepped(log=log, term=2)
    node.lead()
    node.core.propose([b"some"])
    node.pump()
    assert node.applied == []
    last = len(log) + 2
    node.asked(Kind.APPEND_REPLY, 2, index=last)
    assert node.core.log.committed == last
    assert node.applied == [*entries(log), Entry(last - 1, 3), Entry(last, 3, b"some")]


@pytest.mark.parametrize("row", rows("B05"))
def test_b05_follower_commit_is_bounded(row: dict[str, Any]) -> None:
    node = Stepped(log=[1, 2], term=2)
    message = Message(
        kind=Kind.APPEND,
        sender=2,
        to=1,
        term=row["term"],
        index=row["index"],
        log_term=row["logterm"],
        entries=tuple(Entry(index, term) for index, term in row["entries"]),
        commit=row["commit"],
    )
    if row["term"] < node.core.term:
        node.core._take_entries(message)  # past the check of the term
    else:
        node.core.step(message)
    (answer,) = node.pump()
    assert answer.is_rejected is row["want_reject"]
    assert node.core.log.last == row["want_last"]
    assert node.core.log.committed == row["want_commit"]


@pytest.mark.parametrize("row", rows("B06"))
def test_b06_prev_entry_check_and_hint(row: dict[str, Any]) -> None:
    node = Stepped(log=[1, 2], term=2, commit=1)
    (answer,) = node.asked(Kind.APPEND, index=row["index"], log_term=row["logterm"])
    assert (answer.kind, answer.to, answer.term) == (Kind.APPEND_REPLY, 2, 2)
    assert (answer.index, answer.is_rejected) == (row["ack_index"], row["reject"])
    assert (answer.hint, answer.hint_term) == (row["hint"], row["hint_term"])


@pytest.mark.parametrize("row", rows("B07"))
def test_b07_conflict_truncates_only_from_conflict(row: dict[str, Any]) -> None:
    node = Stepped(log=[1, 2], term=2)
    sent = tuple(entries(row["entries"], row["index"] + 1))
    node.tell(Kind.APPEND, term=4, index=row["index"], log_term=row["logterm"], entries=sent)
    assert node.terms == row["want_log"]
    ready = node.core.ready()
    assert (ready.entries[0].index if ready.entries else None) == row["want_unstable_from"]
    (answer,) = node.finish(ready)
    assert (answer.index, answer.is_rejected) == (row["index"] + len(sent), False)
    assert [entry.term for entry in node.disk.kept] == row["want_log"]


LEADER_LOG = "1,1,1,4,4,5,5,6,6,6"
"""Of figure 7."""


@pytest.mark.parametrize("row", rows("B08"))
def test_b08_figure_7_logs_converge(row: dict[str, Any]) -> None:
    log = ",".join(map(str, row["follower_log"]))
    lines = [
        "cluster 3",
        "dead 3",
        f"set 1 term=7 log={LEADER_LOG}",
        f"set 2 term=7 log={log}",
        "campaign 1",
        "send MsgVoteResp from=3 to=1 term=8",
        "expect 1 state leader",
        "expect 1 term 8",
        "propose 1 x",
        "beat 1",
    ]
    checks = [f"1 log {LEADER_LOG},8,8", "2 log @1", "1 commit 12", "2 commit 12"]
    for seed in range(SEEDS):
        world = run_script(lines, checks, seed=seed)
        assert world.members[2].disk.kept == world.members[1].disk.kept


def test_b08_the_whole_of_figure_7_converges() -> None:
    logs = [",".join(map(str, row["follower_log"])) for row in rows("B08")]
    lines = [
        f"cluster {len(logs) + 1}",
        f"set 1 term=7 log={LEADER_LOG}",
        *(f"set {number} term=7 log={log}" for number, log in enumerate(logs, 2)),
        "campaign 1",
        "propose 1 x",
        "beat 1",
    ]
    for seed in range(SEEDS):
        run_script(lines, ["1 state leader", f"* log {LEADER_LOG},8,8", "* commit 12"], seed=seed)


@pytest.mark.parametrize("row", rows("B09"))
def test_b09_only_current_term_is_counted(row: dict[str, Any]) -> None:
    node = Stepped(voters=2, log=[1, 2], term=2)
    node.lead()
    node.core.propose([b"some"])
    node.pump()
    assert node.terms == [1, 2, 3, 3]
    node.asked(Kind.APPEND_REPLY, index=row["ack"])
    assert node.core.log.committed == row["commit"]


@pytest.mark.parametrize("row", rows("B12"))
def test_b12_commit_rule_table(row: dict[str, Any]) -> None:
    own, *others = row["matches"]
    assert own == len(row["log"])  # what a leader has itself, it has wholly
    node = Stepped(voters=len(row["matches"]), log=row["log"], term=row["term"])
    leadership = Leadership(node.core)  # that has not written anything of its own
    leadership.own_entries_durable()
    for voter, match in enumerate(others, 2):
        leadership.step(
            Message(kind=Kind.APPEND_REPLY, sender=voter, to=1, term=node.core.term, index=match)
        )
    assert node.core.log.committed == row["commit"]


@pytest.mark.parametrize(("sent", "commit"), [(3, 3), (1, 2)])
def test_b13_heartbeat_commit(sent: int, commit: int) -> None:
    node = Stepped(log=[1, 2, 3], term=3, commit=2)
    (answer,) = node.asked(Kind.HEARTBEAT, commit=sent)
    assert (answer.kind, answer.to) == (Kind.HEARTBEAT_REPLY, 2)
    assert node.core.log.committed == node.disk.hard_state.commit == commit


def test_b14_heartbeat_never_exceeds_match() -> None:
    three = Configuration(voters=(1, 2, 3))
    node = Stepped(snapshot=Snapshot(1000, 1, three), term=1)
    node.lead()
    node.core.propose([b"some"] * 10)
    node.pump()
    node.asked(Kind.APPEND_REPLY, 2, index=5)
    node.asked(Kind.APPEND_REPLY, 3, index=1011)
    assert node.core.log.committed == 1011
    node.core.beat()
    assert node.pump() == [
        Message(kind=Kind.HEARTBEAT, sender=1, to=to, term=2, commit=commit)
        for to, commit in ((2, 5), (3, 1011))
    ]


def test_b15_heartbeat_reply_triggers_resend() -> None:
    node = Stepped(voters=2, log=[1, 2, 3], term=3)
    node.lead()
    for _ in range(3):
        (resent,) = node.asked(Kind.HEARTBEAT_REPLY)
        assert (resent.kind, resent.to, resent.index) == (Kind.APPEND, 2, 3)
        assert len(resent.entries) == 1
    node.asked(Kind.APPEND_REPLY, index=4)
    assert node.core.log.committed == 4
    for _ in range(3):
        assert node.asked(Kind.HEARTBEAT_REPLY) == []


@pytest.mark.parametrize("row", rows("B18"))
def test_b18_proposals_with_dead_peers(row: dict[str, Any]) -> None:
    dead = [f"dead {number}" for number in row["dead"]]
    lines = [f"cluster {row['n']}", *dead, "campaign 1", "propose 1 x", "settle"]
    log = "1,1" if row["ok"] else "none"
    for seed in range(SEEDS):
        world = run_script(lines, [f"* log {log}"], seed=seed)
        if not row["ok"]:
            with pytest.raises(NotLeading):
                world.core(1).propose([b"y"])


@pytest.mark.parametrize("role", [Role.CANDIDATE, Role.FOLLOWER])
def test_b20_no_leader_refuses_proposal(role: Role) -> None:
    node = Stepped()
    if role is Role.CANDIDATE:
        node.core.campaign()
        node.pump()
    with pytest.raises(NotLeading) as refused:
        node.core.propose([b"some"])
    assert refused.value.leader == 0
    assert not node.core.has_ready
    node.lead()
    node.asked(Kind.APPEND_REPLY, index=1)
    assert node.terms == [node.core.term]  # the empty entry, and nothing that had waited
    assert [entry.payload for entry in node.applied] == [b""]


@pytest.mark.parametrize("hint", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("is_unreachable", [True, False])
def test_b21_reordered_appends(is_unreachable: bool, hint: int | None) -> None:
    leader, follower = leader_of(2), Stepped(2, voters=2, log=[1], term=1)
    sent = []
    for payload in (b"2", b"3"):
        leader.core.propose([payload])
        sent += of_kind(leader.pump(), Kind.APPEND)
    first, second = sent
    follower.core.step(second)
    (rejection,) = follower.pump()
    assert rejection.is_rejected
    follower.core.step(first)
    (ack,) = follower.pump()
    assert (ack.index, ack.is_rejected) == (2, False)

    leader.core.step(ack)
    leader.pump()
    if is_unreachable:
        leader.core.report_unreachable(2)
    leader.core.step(rejection if hint is None else replace(rejection, hint=hint, hint_term=0))
    resent = of_kind(leader.pump(), Kind.APPEND)
    one = leader.leadership.progress[2]
    assert one.match == 2
    assert one.next > one.match
    assert resent == []  # an old answer is no reason to send anything
    leader.core.step(Message(kind=Kind.HEARTBEAT_REPLY, sender=2, to=1, term=leader.core.term))
    again = of_kind(leader.pump(), Kind.APPEND)
    assert [message.index for message in again] == ([2] if is_unreachable else [3])


@pytest.mark.parametrize("row", rows("B22"))
def test_b22_fast_rejection(row: dict[str, Any]) -> None:
    term = max(row["leader_log"][-1], row["follower_log"][-1])
    leader = Stepped(log=row["leader_log"], term=term)
    follower = Stepped(2, log=row["follower_log"], term=term)
    leader.lead()
    leader.core.beat()
    heartbeat = next(one for one in leader.pump() if one.to == 2)
    follower.core.step(heartbeat)
    (alive,) = follower.pump()
    leader.core.step(alive)
    (probe,) = leader.pump()
    follower.core.step(probe)
    (rejection,) = follower.pump()
    assert rejection.is_rejected
    assert (rejection.hint_term, rejection.hint) == (row["hint_term"], row["hint_index"])
    leader.core.step(rejection)
    (probe,) = leader.pump()
    assert (probe.kind, probe.to) == (Kind.APPEND, 2)
    assert (probe.log_term, probe.index) == (row["next_term"], row["next_index"])


@pytest.mark.parametrize("row", rows("B23"))
def test_b23_rejection_of_stale_index_ignored(row: dict[str, Any]) -> None:
    node = Stepped(log=[1, 1])  # of its own term, so that an ack of the old entries counts
    node.lead()
    assert node.core.term == 1
    for voter in (2, 3):
        one = node.leadership.progress[voter]
        one.is_paused = False  # as if the first append had not been sent yet
        assert (one.match, one.next) == (0, 3)
    index, is_rejected = row["resp_index"], row["reject"]
    said = node.asked(Kind.APPEND_REPLY, index=index, is_rejected=is_rejected, hint=index)
    one = node.leadership.progress[2]
    assert (one.match, one.next) == (row["match"], row["next"])
    assert len(said) == row["messages"]
    for message in said:
        assert message.kind is Kind.APPEND
        assert (message.index, message.commit) == (row["prev_index"], row["commit_sent"])


def test_b24_leader_counts_itself_only_when_durable() -> None:
    node = Stepped()
    node.core.campaign()
    node.pump()
    node.tell(Kind.VOTE_REPLY)
    for _ in range(5):
        node.core.propose([b"some"])
    ready = node.core.ready()
    own = node.leadership.progress[1]
    node.core.propose([b"not written yet"])
    node.tell(Kind.APPEND_REPLY, index=6)
    assert (own.match, node.core.log.committed) == (0, 0)
    node.finish(ready)
    assert (own.match, own.next, node.core.log.committed) == (6, 7, 6)


def test_b25_self_ack_after_term_change() -> None:
    node = leader_of(3)
    node.core.propose([b"some"])
    ready = node.core.ready()
    node.tell(Kind.APPEND_REPLY, 3, index=2)  # with its own, that would be a majority
    node.tell(Kind.HEARTBEAT, term=2)
    assert node.core.role is Role.FOLLOWER
    node.finish(ready)
    node.pump()
    assert (node.core.role, node.core.term, node.core.leader) == (Role.FOLLOWER, 2, 2)
    assert node.core.log.committed == 1


def test_b26_uncommitted_tail_is_bounded() -> None:
    payload, count = b"8 bytes!", 1024
    settings = replace(
        SCRIPT_SETTINGS, uncommitted_max=count * len(payload), window_count=2 * count
    )
    node = leader_of(3, settings=settings)
    for _ in range(count):
        node.core.propose([payload])
    with pytest.raises(Dropped):
        node.core.propose([payload])
    assert node.core.log.last == 1 + count
    node.pump()
    node.asked(Kind.APPEND_REPLY, index=1 + count)
    assert node.leadership.uncommitted_size == 0

    node.core.propose([payload] * 2 * count)  # more than the limit, but nothing else waits
    with pytest.raises(Dropped):
        node.core.propose([payload])
    node.core.propose([b""])
    node.pump()
    # In two steps: what is committed is taken out of the account, and not more.
    node.asked(Kind.APPEND_REPLY, index=2 + count)
    assert node.leadership.uncommitted_size == (2 * count - 1) * len(payload)
    node.asked(Kind.APPEND_REPLY, index=node.core.log.last)
    assert node.leadership.uncommitted_size == 0
    node.core.propose([payload])


@pytest.mark.parametrize("row", rows("B28"))
def test_b28_log_append_table(row: dict[str, Any]) -> None:
    disk = Disk(Configuration(voters=(1,)))
    disk.kept = entries([1, 2, 3])
    log = Log(disk, committed=1, applied=0)
    sent = entries(row["entries"], row["prev_index"] + 1)
    if row["last"] == "raise":
        with pytest.raises(InvariantBroken):
            log.take(row["prev_index"], row["prev_term"], sent)
        assert [log.term(index) for index in (1, 2, 3)] == [1, 2, 3]
        return
    last = log.take(row["prev_index"], row["prev_term"], sent)
    assert (last is not None) is row["ok"]
    assert (last or 0) == row["last"]
    if last is not None:
        log.commit(min(row["leader_commit"], last))
        assert all(log.has(entry.index, entry.term) for entry in sent)
    assert log.committed == row["commit"]
