"""Several nodes that agree: real directories, states and brokers, messages carried by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidValue
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure
from penstock.raft.configuration import Change, Step
from penstock.raft.messages import Kind, Message
from penstock.raft.refusals import BadMessage
from penstock.server.disk import InlineDisk
from penstock.server.membership import label
from penstock.server.node import Node
from penstock.server.settings import GroupSettings, Settings
from penstock.testing.disk import MemoryFiles
from support.group_rig import GroupRig


def test_three_nodes_elect_one_and_hold_the_same() -> None:
    rig = GroupRig()
    leader = rig.elect()
    asker = rig.enqueue(leader, b"a", b"b", b"c")
    assert asker.last.runs[0].count == 3
    rig.agree()
    assert [rig.payloads(one) for one in (1, 2, 3)] == [[b"a", b"b", b"c"]] * 3


def test_nothing_is_answered_before_a_majority_has_it() -> None:
    rig = GroupRig()
    leader = rig.elect()
    rig.cut = {one for one in rig.nodes if one != leader}
    asker = rig.enqueue(leader, b"alone")
    assert asker.answers == []
    rig.tick(40)  # its quorum is gone: it steps down and says so
    assert asker.last.code == Failure.OUTCOME_UNKNOWN
    assert rig.leaders == []


def test_a_new_leader_has_all_that_was_answered_and_hands_out_what_was_leased() -> None:
    rig = GroupRig()
    old = rig.elect()
    rig.enqueue(old, b"a", b"b")
    taken = rig.dequeue(old).last
    assert taken.payloads == [b"a"]
    rig.stop(old)
    new = rig.elect()
    assert new != old
    assert rig.dequeue(new, 2).last.payloads == [b"a", b"b"]


def test_a_leader_that_was_replaced_answers_nothing_from_memory() -> None:
    rig = GroupRig()
    old = rig.elect()
    rig.enqueue(old, b"a")
    rig.cut = {old}
    new = rig.elect()
    taken = rig.dequeue(new).last
    rig.ask(new, lambda broker, asker: broker.ack(asker, 3, v2.Ack((taken.token,))))
    # The old one still believes that it leads, and that the task is there; it has to ask first, and no node answers.
    if rig.nodes[old].replica.is_leading:
        asker = rig.dequeue(old)
        assert asker.answers == []
        rig.tick(30)
        assert asker.last.code == Failure.NOT_LEADER


def test_one_that_follows_says_who_leads() -> None:
    rig = GroupRig()
    leader = rig.elect()
    follower = next(one for one in rig.nodes if one != leader)
    failed = rig.enqueue(follower, b"x").last
    assert (failed.code, failed.detail) == (Failure.NOT_LEADER, leader)


def test_a_deposed_leader_forgets_what_it_decided_alone() -> None:
    rig = GroupRig()
    old = rig.elect()
    rig.enqueue(old, b"a", b"b", b"c")
    rig.dequeue(old, 2)
    rig.cut = {old}
    rig.elect()
    rig.tick(40)
    rig.cut = set()
    rig.agree()
    assert not rig.nodes[old].replica.state.by_name[""].out  # type: ignore[index]


def test_entries_that_never_reached_a_majority_go_away() -> None:
    rig = GroupRig()
    old = rig.elect()
    rig.enqueue(old, b"kept")
    rig.cut = {old}
    lost = rig.enqueue(old, b"lost")
    new = rig.elect()
    rig.enqueue(new, b"new")
    rig.tick(40)
    rig.cut = set()
    rig.agree()
    assert lost.last.code == Failure.OUTCOME_UNKNOWN
    assert rig.payloads(old) == [b"kept", b"new"]


def test_all_stop_and_start_again_with_what_they_had() -> None:
    rig = GroupRig()
    leader = rig.elect()
    for number in range(50):
        rig.enqueue(leader, b"%d" % number)
    for number in list(rig.nodes):
        rig.stop(number)
    for number in rig.peers:
        rig.start(number)
    rig.introduce()
    rig.elect()
    rig.agree()
    assert rig.payloads(1) == [b"%d" % number for number in range(50)]


def test_one_that_is_far_behind_gets_a_snapshot() -> None:
    rig = GroupRig(kept_bytes=0)
    leader = rig.elect()
    behind = next(one for one in rig.nodes if one != leader)
    rig.cut = {behind}
    for number in range(300):
        rig.enqueue(leader, b"%03d" % number + b"x" * 100)
    assert rig.nodes[leader].directory.log.first > rig.nodes[behind].directory.log.end
    rig.cut = set()
    rig.agree()
    assert rig.nodes[behind].directory.snapshot.point is not None
    assert len(rig.payloads(behind)) == 300
    rig.stop(behind)
    rig.start(behind)
    rig.introduce()
    rig.enqueue(rig.elect(), b"more")
    rig.agree()


def test_replicas_that_took_snapshots_at_other_places_are_the_same() -> None:
    rig = GroupRig(kept_bytes=0)
    leader = rig.elect()
    producer = v2.Producer(b"p" * 16, 0)
    for number in range(200):
        request = v2.Enqueue(
            "",  # type: ignore[arg-type]
            (number % 7,),
            (b"y" * 60,),
            delay_ms=500 if number % 5 == 0 else None,
            ttl_ms=90_000 if number % 3 == 0 else None,
            producer=v2.Producer(producer.id, number + 1),
        )
        rig.send(leader, "enqueue", request)
        if number % 10 == 9:
            rig.tick()
            taken = rig.dequeue(leader, 4)
            tokens = tuple(range(taken.last.token, taken.last.token + len(taken.last.ids)))
            rig.send(leader, "ack", v2.Ack(tokens[:2]), taken)
            rig.send(leader, "nack", v2.Nack(tokens[2:]), taken)
    points = {rig.nodes[one].directory.snapshot.point for one in rig.nodes}
    assert None not in points
    rig.agree()


def test_a_request_that_was_sent_again_to_the_next_leader_counts_once() -> None:
    rig = GroupRig()
    old = rig.elect()
    request = v2.Enqueue("", (1, 1), (b"a", b"b"), producer=v2.Producer(b"q" * 16, 9))  # type: ignore[arg-type]
    first = rig.ask(old, lambda broker, asker: broker.enqueue(asker, 1, request))
    rig.stop(old)
    new = rig.elect()
    again = rig.ask(new, lambda broker, asker: broker.enqueue(asker, 1, request))
    assert again.last == first.last
    assert rig.payloads(new) == [b"a", b"b"]


def test_leadership_is_handed_over() -> None:
    rig = GroupRig()
    old = rig.elect()
    to = next(one for one in rig.nodes if one != old)
    told: list[str | None] = []
    rig.group(old).transfer_leadership(to, told.append)
    rig.carry()
    rig.tick(2)
    assert (rig.leaders, told) == ([to], [None])


def test_a_transfer_to_one_that_is_gone_is_given_up() -> None:
    rig = GroupRig()
    old = rig.elect()
    to = next(one for one in rig.nodes if one != old)
    rig.cut = {to}
    rig.enqueue(old, b"it lacks this")
    told: list[str | None] = []
    rig.group(old).transfer_leadership(to, told.append)
    refused = rig.enqueue(old, b"x").last
    assert (refused.code, refused.detail) == (Failure.NOT_LEADER, to)
    rig.tick(30)
    assert rig.leaders == [old]
    assert told[0] is not None
    assert "did not take over" in told[0]
    assert rig.enqueue(old, b"x").last.runs


def change(
    rig: GroupRig, leader: int, *steps: tuple[Step, int], labels: tuple[tuple[int, str], ...] = ()
) -> list[str | None]:
    told: list[str | None] = []
    rig.group(leader).change_members(Change(steps, labels=labels), told.append)
    rig.carry()
    return told


def test_a_node_joins_catches_up_and_votes() -> None:
    rig = GroupRig()
    leader = rig.elect()
    rig.enqueue(leader, b"before")
    rig.start(4, is_joining=True, listen="host4:5000")
    assert change(rig, leader, (Step.LEARNER, 4), labels=((4, label("host4:5000", "")),)) == [None]
    refused = change(rig, leader, (Step.VOTER, 4))  # it was not heard, and is not named yet
    assert refused[0] is not None
    assert "has not caught up" in refused[0]
    assert rig.group(4).membership.is_barred
    rig.introduce()
    rig.tick_until(lambda: not rig.group(4).membership.is_barred)
    rig.tick_until(lambda: rig.group(leader).has_caught_up(4))
    assert change(rig, leader, (Step.VOTER, 4)) == [None]
    rig.agree()
    assert rig.group(4).status().members[-1].standing == "voter"
    assert not rig.group(4).membership.is_barred
    assert rig.payloads(4) == [b"before"]
    rig.stop(4)
    rig.start(4, is_joining=True, listen="host4:5000")
    rig.introduce()
    rig.agree()
    assert rig.group(4).status().members[-1].standing == "voter"


def test_a_node_is_removed() -> None:
    rig = GroupRig()
    leader = rig.elect()
    gone = next(one for one in rig.nodes if one != leader)
    assert change(rig, leader, (Step.REMOVE, gone)) == [None]
    rig.stop(gone)
    assert rig.enqueue(leader, b"x").last.runs
    assert [one.id for one in rig.group(leader).status().members] == sorted(rig.nodes)


def test_files_of_generation_2_are_refused() -> None:
    rig = GroupRig(1)
    place = GroupSettings(node=1, peers=rig.peers)
    settings = Settings(data=Path("/old"), generation=2, group=place)
    with pytest.raises(InvalidValue, match="generation 3"):
        Node(settings, InlineDisk(), on_failure=lambda _: None, files=MemoryFiles())


def test_a_group_of_one_with_a_place_for_more_leads_at_once() -> None:
    rig = GroupRig(1)
    leader = rig.elect()
    assert rig.enqueue(leader, b"a").last.runs
    assert rig.dequeue(leader).last.payloads == [b"a"]


def test_a_message_that_makes_no_sense_stops_nobody() -> None:
    rig = GroupRig()
    leader = rig.elect()
    replica = rig.group(leader).replica
    with pytest.raises(BadMessage):
        replica.step(Message(kind=Kind.APPEND, sender=leader, to=leader, term=99))
    replica.step(
        Message(kind=Kind.VOTE_REPLY, sender=9, to=leader, term=99)
    )  # of one that was removed
    assert rig.enqueue(leader, b"a").last.runs
