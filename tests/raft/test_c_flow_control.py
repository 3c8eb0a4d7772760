"""Flow control and progress: group C of the scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.raft.configuration import Configuration
from penstock.raft.messages import Entry, Kind, Message
from penstock.raft.progress import Pace, Progress, Window
from penstock.raft.refusals import Dropped
from raft.scenarios import rows
from raft.script import run_line
from raft.stepping import Stepped, leader_of, of_kind
from raft.world import SCRIPT_SETTINGS, Disk, World

SEEDS = 5


def proposed(node: Stepped, count: int = 1, payload: bytes = b"some") -> list[Message]:
    """Let a leader take proposals, one after the other; return what it says meanwhile."""
    said: list[Message] = []
    for _ in range(count):
        node.core.propose([payload])
        said += node.pump()
    return said


def test_c01_probe_sends_one_per_heartbeat() -> None:
    node = Stepped(voters=2)
    (probe,) = node.lead()
    assert (probe.kind, probe.index) == (Kind.APPEND, 0)
    for _ in range(3):
        assert node.leadership.progress[2].pace is Pace.PROBE
        assert proposed(node, 10) == []
        node.core.beat()
        (heartbeat,) = node.pump()
        assert heartbeat.kind is Kind.HEARTBEAT
        assert proposed(node) == []
        (probe,) = node.asked(Kind.HEARTBEAT_REPLY)
        assert (probe.kind, probe.index) == (Kind.APPEND, 0)
        assert len(probe.entries) == node.core.log.last


@pytest.mark.parametrize(("pace", "after"), [(Pace.REPLICATE, 6), (Pace.PROBE, 2)])
def test_c02_replicate_is_optimistic(pace: Pace, after: int) -> None:
    node = Stepped(voters=2, log=[1, 1, 1], term=1)
    node.lead()
    one = node.leadership.progress[2]
    one.pace, one.match, one.next, one.is_paused = pace, 1, 2, False
    (sent,) = proposed(node)
    assert (sent.kind, sent.index, len(sent.entries)) == (Kind.APPEND, 1, 4)
    assert one.next == after


def test_c03_snapshot_state_sends_nothing() -> None:
    node = leader_of(2)
    node.leadership.progress[2].become_snapshot(10)
    assert proposed(node, 10) == []
    assert node.asked(Kind.HEARTBEAT_REPLY) == []


@pytest.mark.parametrize("count", [1, 3, SCRIPT_SETTINGS.window_count])
def test_c04_inflight_window_fills(count: int) -> None:
    node = leader_of(2, settings=replace(SCRIPT_SETTINGS, window_count=count))
    sent = proposed(node, count)
    assert [(one.kind, len(one.entries)) for one in sent] == [(Kind.APPEND, 1)] * count
    assert not node.leadership.progress[2].may_send
    assert proposed(node, 10) == []


def test_c05_inflight_window_moves() -> None:
    # One entry an append.
    settings = replace(SCRIPT_SETTINGS, window_count=4, append_size_max=len(b"some"))
    node = leader_of(2, settings=settings)
    sent = [one.index + 1 for one in proposed(node, 20)]
    assert sent == [2, 3, 4, 5]
    for index in range(2, 12):
        (freed,) = node.asked(Kind.APPEND_REPLY, index=index)
        assert [entry.index for entry in freed.entries] == [index + 4]
        for old in range(index + 1):
            assert node.asked(Kind.APPEND_REPLY, index=old) == []
        assert not node.leadership.progress[2].may_send
    freed_together = node.asked(Kind.APPEND_REPLY, index=14)
    assert [one.index + 1 for one in freed_together] == [16, 17, 18]


def test_c06_full_window_heartbeat_probe() -> None:
    node = leader_of(2, settings=replace(SCRIPT_SETTINGS, window_count=3))
    proposed(node, 5)
    for _ in range(3):
        (probe,) = node.asked(Kind.HEARTBEAT_REPLY)
        assert (probe.kind, probe.index, probe.entries) == (Kind.APPEND, 4, ())
        assert not node.leadership.progress[2].may_send
        assert proposed(node, 10) == []
    # They were all lost, and that is found out.
    (again,) = node.asked(Kind.APPEND_REPLY, index=4, is_rejected=True, hint=1, hint_term=1)
    assert (again.index, again.entries[0].index) == (1, 2)


def test_c07_byte_window() -> None:
    settings = replace(
        SCRIPT_SETTINGS,
        window_count=3,
        append_size_max=2048,
        window_size=9000,
        is_pipelined=True,
    )
    node = Stepped(voters=2, settings=settings)
    node.core.campaign()
    node.pump()
    node.tell(Kind.VOTE_REPLY)
    # Nothing that the leader writes becomes durable from here on: nothing is committed, and no append says so.
    (sent,) = node.core.ready().messages
    assert sent.entries == (Entry(1, 1),)
    node.leadership.progress[2].is_paused = False  # as if that had not been sent yet
    for size in [1000] * 10 + [5000] * 6 + [1000] * 6:
        node.core.propose([bytes(size)])
    (probe,) = node.core.ready().messages
    assert [len(entry.payload) for entry in probe.entries] == [0, 1000]
    last = probe.entries[-1].index
    for counts in ([2, 2, 2], [2, 1, 1], [1, 1], [1, 1], [1, 2, 2], [2]):
        node.tell(Kind.APPEND_REPLY, index=last)
        appends = node.core.ready().messages
        assert [len(one.entries) for one in appends] == counts
        last = appends[-1].entries[-1].index
    assert last == node.core.log.last == 23


def test_c08_unreachable_falls_back_to_probe() -> None:
    node = leader_of(2, log=[1, 1], term=1)
    proposed(node, 2)
    one = node.leadership.progress[2]
    assert (one.pace, one.match, one.next) == (Pace.REPLICATE, 3, 6)
    node.core.report_unreachable(2)
    assert (one.pace, one.match, one.next) == (Pace.PROBE, 3, 4)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_c09_caught_up_peer_leaves_probe(seed: int) -> None:
    world = World(seed)
    for line in ("cluster 3", "campaign 1", "propose 1 x", "beat 1"):
        run_line(world, line)
    leadership = world.core(1).leadership
    assert leadership is not None
    one = leadership.progress[2]
    assert (one.pace, one.match) == (Pace.REPLICATE, 2)
    world.core(1).report_unreachable(2)
    assert one.pace is Pace.PROBE
    run_line(world, "beat 1")
    assert (one.pace, one.match, world.core(1).log.last) == (Pace.REPLICATE, 2, 2)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_c10_paused_follower_catches_up(seed: int) -> None:
    world = World(seed)
    run_line(world, "cluster 3")
    for member in world.members.values():
        member.settings = replace(member.settings, window_count=3)
        world.boot(member)
    for line in ("campaign 1", "drop MsgApp 1>3", "repeat 6 propose 1 x", "heal"):
        run_line(world, line)
    leadership = world.core(1).leadership
    assert leadership is not None
    assert (world.core(1).log.committed, world.core(3).log.last) == (7, 1)
    assert (leadership.progress[3].next, leadership.progress[3].may_send) == (5, False)
    world.trace.clear()
    run_line(world, "beat 1")
    to_3 = [one for one in world.trace if one.to == 3 and one.kind is Kind.APPEND]
    assert (to_3[0].index, to_3[0].entries) == (4, ())
    assert [one.index for one in world.trace if one.sender == 3 and one.is_rejected] == [4]
    assert world.core(3).log.committed == 7
    assert world.members[3].disk.kept == world.members[1].disk.kept
    assert leadership.progress[3].pace is Pace.REPLICATE


def test_c11_wait_is_per_follower() -> None:
    node = Stepped()
    node.lead()
    node.asked(Kind.APPEND_REPLY, 2, index=1)
    (sent,) = proposed(node)
    assert (sent.kind, sent.to, sent.entries[-1].index) == (Kind.APPEND, 2, 2)
    (sent,) = node.asked(Kind.APPEND_REPLY, 3, index=1)
    assert (sent.kind, sent.to, [entry.index for entry in sent.entries]) == (Kind.APPEND, 3, [2])


def progress(*, match: int, after: int, pace: Pace = Pace.PROBE) -> Progress:
    return Progress(Window(256, 2**20), next=after, match=match, pace=pace)


@pytest.mark.parametrize("row", rows("C12"))
def test_c12_progress_update_rule(row: dict[str, Any]) -> None:
    one = progress(match=3, after=5)
    assert one.acknowledged(row["ack"]) is row["changed"]
    assert (one.match, one.next) == (row["match"], row["next"])
    assert one.match < one.next


@pytest.mark.parametrize("row", rows("C13"))
def test_c13_progress_decrease_rule(row: dict[str, Any]) -> None:
    one = progress(match=row["match"], after=row["next"], pace=Pace(row["state"]))
    assert one.rejected(row["rejected"], row["hint"]) is row["changed"]
    assert (one.match, one.next) == (row["match"], row["want_next"])
    assert one.match < one.next


class GenerousDisk(Disk):
    """Storage that returns more than it is asked for."""

    def entries(self, first: int, end: int, *, size_max: int) -> Sequence[Entry]:
        return super().entries(first, end, size_max=2 * size_max)


@pytest.mark.parametrize("is_early", [True, False], ids=["while applying", "after applying"])
@pytest.mark.parametrize("disk_class", [Disk, GenerousDisk])
def test_c14_committed_entries_are_paginated(disk_class: type[Disk], is_early: bool) -> None:
    kept = [Entry(index, 1, b"8 bytes!") for index in range(1, 12)]
    settings = replace(SCRIPT_SETTINGS, apply_size_max=10 * 8 - 1)
    node = Stepped(log=[1] * 11, term=1, vote=1, commit=10, settings=settings)
    node.disk = node.core.log._storage = disk_class(Configuration(voters=(1, 2, 3)))
    node.disk.kept = kept
    pages = []
    for _ in range(2):
        ready = node.core.ready()
        pages.append(len(ready.committed))
        if is_early:
            node.tell(Kind.HEARTBEAT, commit=11)
        node.finish(ready)
        if not is_early:
            node.tell(Kind.HEARTBEAT, commit=11)
    assert node.applied == kept
    assert pages == ([9, 2] if disk_class is Disk else [10, 1])


def test_c15_partitioned_leader_log_bounded() -> None:
    payload, limit = b"8 bytes!", 16
    settings = replace(SCRIPT_SETTINGS, uncommitted_max=limit * len(payload))
    node = leader_of(3, settings=settings)
    accepted = 0
    for _ in range(1024):
        try:
            node.core.propose([payload])
        except Dropped:
            continue
        accepted += 1
    assert accepted == limit
    assert node.core.log.last == 1 + limit
    assert node.leadership.uncommitted_size == limit * len(payload)
    assert of_kind(node.pump(), Kind.APPEND)
    node.asked(Kind.APPEND_REPLY, index=1 + limit)
    assert node.core.log.committed == 1 + limit
    assert node.leadership.uncommitted_size == 0
