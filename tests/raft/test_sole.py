"""A group of one keeps to the contract of ``raft.ready``: nothing is committed before it is durable."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model import HardState, Index, NodeId, Term
from penstock.raft.ready import Ready
from penstock.raft.sole import SoleMember


def member(end: int = 0, term: int = 1) -> SoleMember:
    return SoleMember(NodeId(3), HardState(term=Term(term)), Index(end), Index(end - 1))


def test_a_new_member_has_nothing_to_do_and_holds_what_the_disk_holds() -> None:
    one = member(end=7, term=4)
    assert one.ready() is None
    assert (one.term, one.leader, one.committed) == (4, 3, 6)


def test_a_new_term_is_in_the_same_ready_as_its_first_entry_and_comes_before_it() -> None:
    one = member(end=7, term=4)
    one.campaign()
    assert one.propose([b"nothing"]) == 7
    ready = one.ready()
    assert ready is not None
    assert ready.hard_state == HardState(term=Term(5), vote=NodeId(3))
    assert ready.appends
    assert (ready.appends[0].first, ready.appends[0].term, ready.appends[0].end) == (7, 5, 8)
    assert (ready.committed, ready.must_sync) == (6, True)
    assert one.committed == 6
    one.persisted(ready.token)
    assert one.committed == 7


def test_a_term_alone_has_to_be_durable_too() -> None:
    one = member()
    one.campaign()
    ready = one.ready()
    assert ready is not None
    assert (ready.appends, ready.must_sync) == ((), True)
    one.propose([b"a"])
    assert one.ready() is None  # entries only when the term is on the disk
    one.persisted(ready.token)
    following = one.ready()
    assert following is not None
    assert following.hard_state is None
    assert following.appends


def test_a_commit_index_alone_needs_no_sync() -> None:
    one = member()
    one.propose([b"a"])
    first = one.ready()
    assert first is not None
    one.persisted(first.token)
    told = one.ready()
    assert told == Ready(token=first.token + 1, committed=Index(0))
    assert not told.must_sync
    assert one.ready() is None


def test_what_is_proposed_while_the_disk_is_busy_is_one_batch() -> None:
    one = member()
    assert [one.propose([b"a", b"b"]), one.propose([]), one.propose([b"c"])] == [1, 1, 2]
    first = one.ready()
    assert first is not None
    assert first.appends
    assert first.appends[0].payloads == [b"a", b"b", b"c"]
    one.propose([b"d"])
    one.propose([b"e"])
    assert one.ready() is None
    one.persisted(first.token)
    second = one.ready()
    assert second is not None
    assert second.appends
    assert (second.appends[0].first, second.appends[0].payloads) == (3, [b"d", b"e"])
    assert second.committed == 2


def test_completions_come_in_order_and_once() -> None:
    one = member()
    with pytest.raises(AssertionError):
        one.persisted(1)
    one.propose([b"a"])
    ready = one.ready()
    assert ready is not None
    with pytest.raises(AssertionError):
        one.persisted(ready.token + 1)
    one.persisted(ready.token)
    with pytest.raises(AssertionError):
        one.persisted(ready.token)


def test_applied_follows_committed_and_never_turns_back() -> None:
    one = member()
    one.propose([b"a", b"b"])
    ready = one.ready()
    assert ready is not None
    with pytest.raises(AssertionError):
        one.applied(Index(0))
    one.persisted(ready.token)
    one.applied(Index(1))
    with pytest.raises(AssertionError):
        one.applied(Index(0))


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_the_log_is_what_was_proposed_and_commit_follows_the_disk(
    seed: int,
) -> None:
    random = Random(seed)
    one = member()
    proposed: list[bytes] = []
    disk: list[bytes] = []
    waiting: Ready | None = None
    token = 0
    for step in range(500):
        choice = random.random()
        if choice < 0.4:
            payloads = [b"%d.%d" % (step, n) for n in range(random.randint(0, 3))]
            proposed += payloads
            assert one.propose(payloads) == len(proposed) - 1
        elif choice < 0.5:
            one.campaign()
        elif choice < 0.8:
            ready = one.ready()
            if ready is None:
                continue
            assert ready.token == token + 1
            token = ready.token
            assert ready.committed < len(disk) or not disk
            if ready.must_sync:
                assert waiting is None
                waiting = ready
        elif waiting is not None:
            if waiting.appends:
                assert waiting.appends[0].first == len(disk)
                disk += waiting.appends[0].payloads
            one.persisted(waiting.token)
            waiting = None
        assert one.committed == len(disk) - 1
        assert disk == proposed[: len(disk)]
