"""A member whose disk lost the end of what it had acknowledged, and the leader that has to find out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.messages import Kind, Message, Snapshot
from penstock.raft.progress import Pace
from penstock.raft.settings import Settings
from raft.stepping import Stepped, leader_of, of_kind
from raft.world import SCRIPT_SETTINGS

TERM = 1
HAD = 9  # entries that every member acknowledged


def leader_of_nine() -> Stepped:
    leader = leader_of(3)
    while leader.core.log.last < HAD:
        leader.core.propose([b"task"])
        leader.pump()
    for member in (2, 3):
        leader.asked(Kind.APPEND_REPLY, member, index=HAD)
    leader.core.propose([b"one more"])
    leader.pump()
    # What was under way to it went with its connection.
    leader.core.report_unreachable(2)
    assert leader.leadership.progress[2].match == HAD
    return leader


def asked_again(leader: Stepped) -> list[Message]:
    """Let the member be heard of, and return the appends that it is sent for that."""
    said = leader.asked(Kind.HEARTBEAT_REPLY, 2)
    return [message for message in of_kind(said, Kind.APPEND) if message.to == 2]


def reject(leader: Stepped, append: Message, *, last: int) -> list[Message]:
    said = leader.asked(
        Kind.APPEND_REPLY, 2, index=append.index, is_rejected=True, hint=last, hint_term=TERM
    )
    return [message for message in of_kind(said, Kind.APPEND) if message.to == 2]


def test_a_member_that_goes_on_rejecting_what_it_acknowledged_is_believed() -> None:
    leader = leader_of_nine()
    for _ in range(SCRIPT_SETTINGS.doubts_max - 1):
        (append,) = asked_again(leader)
        assert append.index == HAD
        assert reject(leader, append, last=4) == [], "it is not asked at once again"
        assert leader.leadership.progress[2].match == HAD
    (append,) = asked_again(leader)
    (found,) = reject(leader, append, last=4)
    assert found.index == 4
    assert [entry.index for entry in found.entries] == [5, 6, 7, 8, 9, 10]
    assert leader.core.log.committed == HAD
    leader.asked(Kind.APPEND_REPLY, 2, index=10)
    one = leader.leadership.progress[2]
    assert (one.match, one.pace, leader.core.log.committed) == (10, Pace.REPLICATE, 10)


def test_a_member_that_is_believed_does_not_count_until_it_says_what_it_has() -> None:
    leader = leader_of_nine()
    for _ in range(SCRIPT_SETTINGS.doubts_max):
        (append,) = asked_again(leader)
        reject(leader, append, last=4)
    one = leader.leadership.progress[2]
    # Where the logs may agree is a guess, and nothing that it has acknowledged.
    assert (one.match, one.pace) == (0, Pace.PROBE)
    leader.core.beat()
    beats = [m for m in leader.pump() if m.kind is Kind.HEARTBEAT and m.to == 2]
    assert [beat.commit for beat in beats] == [0]


@pytest.mark.parametrize("index", [HAD, HAD + 1])
def test_an_acknowledgement_between_ends_all_doubt(index: int) -> None:
    leader = leader_of_nine()
    for _ in range(2 * SCRIPT_SETTINGS.doubts_max):
        one = leader.leadership.progress[2]
        one.rejected(one.next - 1, 4)
        leader.asked(Kind.APPEND_REPLY, 2, index=index)
        one.become_probe()
        assert (one.match, one.doubts) == (index, 0)


def test_old_rejections_and_acknowledgements_of_less_change_nothing() -> None:
    leader = leader_of_nine()
    for _ in range(2 * SCRIPT_SETTINGS.doubts_max):
        leader.asked(Kind.APPEND_REPLY, 2, index=3, is_rejected=True, hint=2, hint_term=TERM)
        leader.asked(Kind.APPEND_REPLY, 2, index=3)
    one = leader.leadership.progress[2]
    assert (one.match, one.next, one.doubts) == (HAD, HAD + 1, 0)


def test_one_that_lost_what_the_leader_has_compacted_gets_a_snapshot() -> None:
    leader = leader_of_nine()
    configuration = leader.core.configuration
    snapshot = Snapshot(index=8, term=TERM, configuration=configuration)
    leader.disk.stored_snapshot = snapshot
    leader.disk.kept = [entry for entry in leader.disk.kept if entry.index > 8]
    said: list[Message] = []
    for _ in range(SCRIPT_SETTINGS.doubts_max):
        (append,) = asked_again(leader)
        said = leader.asked(
            Kind.APPEND_REPLY, 2, index=append.index, is_rejected=True, hint=4, hint_term=TERM
        )
    assert [m.snapshot for m in of_kind(said, Kind.SNAPSHOT) if m.to == 2] == [snapshot]


def test_a_rejection_has_to_be_heard_once_at_least() -> None:
    assert replace(SCRIPT_SETTINGS, doubts_max=1).doubts_max == 1
    with pytest.raises(ValueError, match="first time"):
        Settings(doubts_max=0)
