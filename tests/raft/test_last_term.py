"""The last term: no message brings a later one, and no member runs for one."""

from __future__ import annotations

import pytest

from penstock.model import TERM_MAX
from penstock.raft.messages import Kind
from penstock.raft.refusals import BadMessage
from raft.stepping import Stepped


@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if kind not in (Kind.SNAPSHOT, Kind.READ, Kind.READ_REPLY)]
)
def test_a_message_beyond_the_last_term_is_refused_and_changes_nothing(kind: Kind) -> None:
    member = Stepped(log=[1, 2], term=2)
    for term in (TERM_MAX + 1, 2**63 - 1):
        with pytest.raises(BadMessage):
            member.tell(kind, term=term)
    assert (member.core.term, member.core.leader) == (2, 0)
    assert not member.core.has_ready


def test_a_member_in_the_last_term_does_not_run() -> None:
    member = Stepped(log=[1, 2], term=TERM_MAX)
    assert member.core.term == TERM_MAX
    member.core.campaign()
    for _ in range(100):
        member.core.tick()
    member.tell(Kind.TIMEOUT_NOW)
    assert member.pump() == []
    assert member.core.term == TERM_MAX


def test_a_member_before_the_last_term_may_run_for_it() -> None:
    member = Stepped(log=[1, 2], term=TERM_MAX - 1)
    member.core.campaign()
    asked = [message for message in member.pump() if message.kind in (Kind.PRE_VOTE, Kind.VOTE)]
    assert {message.term for message in asked} == {TERM_MAX}


def test_a_member_follows_a_leader_in_the_last_term() -> None:
    member = Stepped(log=[1, 2], term=2)
    member.tell(Kind.HEARTBEAT, term=TERM_MAX)
    assert (member.core.term, member.core.leader) == (TERM_MAX, 2)
