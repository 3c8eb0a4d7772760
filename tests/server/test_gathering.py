"""Waiting a moment for those who were just answered, and only while it pays."""

from __future__ import annotations

from penstock.server.gathering import SECONDS_MAX, SHARE, Gathering

SYNC = 0.004
CALLERS = ["a", "b", "c", "d"]


def test_nobody_is_waited_for_before_anybody_was_answered() -> None:
    assert not Gathering().is_worth_waiting(0.0, SYNC)


def test_a_lone_caller_is_never_waited_for() -> None:
    gathering = Gathering()
    gathering.answer(["a"])
    gathering.begin(0.0)
    assert not gathering.is_worth_waiting(0.0, SYNC)


def test_those_who_were_answered_are_waited_for_until_all_are_back() -> None:
    gathering = Gathering()
    gathering.answer(CALLERS)
    gathering.begin(0.0)
    for caller in CALLERS:
        assert gathering.is_worth_waiting(0.0, SYNC)
        gathering.hear(caller)
    assert not gathering.is_worth_waiting(0.0, SYNC)


def test_a_wait_costs_no_more_than_its_share_of_a_sync() -> None:
    for sync in (0.0001, 0.001, 1.0):
        gathering = Gathering()
        gathering.answer(CALLERS)
        gathering.begin(10.0)
        limit = min(SECONDS_MAX, SHARE * sync)
        assert gathering.is_worth_waiting(10.0 + limit * 0.9, sync)
        assert not gathering.is_worth_waiting(10.0 + limit * 1.1, sync)
        # Once given up, the batch is not waited for again, whatever the clock says.
        assert not gathering.is_worth_waiting(10.0, sync)


def test_callers_who_do_not_come_back_are_soon_not_waited_for() -> None:
    gathering, waits = Gathering(), 0
    for number in range(60):
        gathering.answer(CALLERS)
        gathering.begin(float(number))
        if gathering.is_worth_waiting(float(number), SYNC):
            waits += 1
            assert not gathering.is_worth_waiting(number + 1.0, SYNC)
    assert 0 < waits < 10


def test_a_wait_is_tried_again_when_callers_may_have_changed_their_ways() -> None:
    gathering = Gathering()
    for number in range(2000):
        gathering.answer(CALLERS)
        gathering.begin(float(number))
        if gathering.is_worth_waiting(float(number), SYNC):
            for caller in CALLERS if number > 500 else []:
                gathering.hear(caller)
            assert not gathering.is_worth_waiting(number + 1.0, SYNC)
    gathering.answer(CALLERS)
    gathering.begin(0.0)
    assert gathering.is_worth_waiting(0.0, SYNC)
