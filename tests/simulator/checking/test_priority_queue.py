"""The black-box check of the priority queue: each kind of violation by hand, and what is none."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.errors import InvalidValue
from simulation.checking import priority_queue
from simulation.checking.history import Op, Operation, Outcome
from simulation.checking.priority_queue import Cover
from simulation.checking.samples import plain_history
from simulation.checking.violations import Kind, Violation
from simulator.checking.made import deq, enq, settle, unknown


def only(history: list[Operation]) -> Violation:
    """Return the one violation that there is."""
    (violation,) = priority_queue.check(history)
    return violation


def test_a_queue_that_does_everything_right_passes() -> None:
    for seed in range(20):
        history = plain_history(Random(seed), 300, keys=4, slack=9, unknown=0.1, lost=0.1)
        assert priority_queue.check(history) == ()


def test_a_task_enqueued_twice() -> None:
    history = [enq("a", 1, 0, 1), enq("a", 1, 2, 3), deq("a", 4, 5)]
    violation = only(history)
    assert violation.kind is Kind.DUPLICATE
    assert violation.operations == (history[1], history[0])


def test_a_task_delivered_twice() -> None:
    history = [enq("a", 1, 0, 1), deq("a", 2, 3), deq("a", 4, 5)]
    violation = only(history)
    assert violation.kind is Kind.DELIVERED_TWICE
    assert violation.operations == (history[2], history[1])
    assert str(violation) == "delivered-twice: task 'a' was delivered twice"


def test_a_task_from_nowhere() -> None:
    violation = only([enq("a", 1, 0, 1), deq("b", 2, 3)])
    assert violation.kind is Kind.FROM_NOWHERE
    assert "'b'" in violation.sentence


def test_a_refused_task_comes_from_nowhere() -> None:
    refused = enq("a", 1, 0, 1, outcome=Outcome.FAIL, reason="queue-full")
    assert only([refused, deq("a", 2, 3)]).kind is Kind.FROM_NOWHERE
    assert priority_queue.check([refused, deq(None, 2, 3)]) == ()


def test_a_task_delivered_with_another_key() -> None:
    violation = only([enq("a", 1, 0, 1), deq("a", 2, 3, keys=(7,))])
    assert violation.kind is Kind.FROM_NOWHERE
    assert "key 7" in violation.sentence


def test_a_task_delivered_before_its_enqueue() -> None:
    history = [deq("a", 0, 1), enq("a", 1, 2, 3)]
    violation = only(history)
    assert violation.kind is Kind.DELIVERED_BEFORE_ENQUEUED
    assert violation.operations == (history[0], history[1])
    assert priority_queue.check([deq("a", 0, 2), enq("a", 1, 2, 3)]) == ()


def test_a_larger_key_first() -> None:
    history = [enq("low", 1, 0, 1), enq("high", 5, 0, 1), deq("high", 2, 3), deq("low", 4, 5)]
    violation = only(history)
    assert violation.kind is Kind.PRIORITY_INVERSION
    assert violation.operations == (history[2], history[1], history[0], history[3])


def test_a_larger_key_first_is_right_while_the_smaller_one_is_on_its_way() -> None:
    for low, taken in (
        (enq("low", 1, 0, 2), deq("low", 4, 5)),
        (enq("low", 1, 0, 1), deq("low", 3, 5)),
    ):
        history = [low, enq("high", 5, 0, 1), deq("high", 2, 3), taken]
        assert priority_queue.check(history) == ()


def test_smaller_keys_that_follow_each_other_without_a_gap_hold_a_larger_one_back() -> None:
    relay = [
        enq("a", 1, 0, 1), deq("a", 10, 30),
        enq("b", 2, 2, 8), deq("b", 20, 30),
    ]  # fmt: skip
    larger = enq("z", 9, 0, 1)
    violation = only([*relay, larger, deq("z", 5, 15)])
    assert violation.kind is Kind.PRIORITY_INVERSION
    assert {operation.ids for operation in violation.operations} == {("z",), ("a",), ("b",)}
    # One that begins where the other ends leaves that very moment free.
    touching = [relay[0], relay[1], enq("b", 2, 2, 10), relay[3]]
    assert priority_queue.check([*touching, larger, deq("z", 5, 15)]) == ()


def test_a_task_that_was_never_delivered_holds_larger_keys_back_for_ever() -> None:
    assert (
        only([enq("a", 1, 0, 1), enq("b", 2, 0, 1), deq("b", 5, 6)]).kind is Kind.PRIORITY_INVERSION
    )


def test_last_in_first_out_within_a_key() -> None:
    history = [enq("a", 1, 0, 1), enq("b", 1, 2, 3), deq("b", 4, 5), deq("a", 6, 7)]
    violation = only(history)
    assert violation.kind is Kind.FIFO
    assert violation.operations == (history[2], history[1], history[0], history[3])


def test_first_in_first_out_is_not_asked_of_overlapping_enqueues_or_dequeues() -> None:
    assert (
        priority_queue.check([enq("a", 1, 0, 2), enq("b", 1, 2, 3), deq("b", 4, 5), deq("a", 6, 7)])
        == ()
    )
    assert (
        priority_queue.check([enq("a", 1, 0, 1), enq("b", 1, 2, 3), deq("b", 4, 6), deq("a", 6, 7)])
        == ()
    )


def test_first_in_first_out_is_judged_at_moments_without_a_smaller_key() -> None:
    # Both dequeues overlap; but while "small" was in, neither can have happened, so "b" came out before "a".
    history = [
        enq("a", 5, 0, 1), enq("b", 5, 2, 3),
        enq("small", 1, 6, 7), deq("small", 20, 21),
        deq("b", 5, 19), deq("a", 8, 30),
    ]  # fmt: skip
    assert only(history).kind is Kind.FIFO
    assert priority_queue.check([*history[:2], *history[4:]]) == ()


def test_an_empty_answer_while_a_task_was_in() -> None:
    history = [enq("a", 1, 0, 1), deq(None, 2, 3), deq("a", 4, 5)]
    violation = only(history)
    assert violation.kind is Kind.FALSE_EMPTY
    assert violation.operations == (history[1], history[0], history[2])
    assert priority_queue.check([enq("a", 1, 0, 2), deq(None, 2, 3), deq("a", 4, 5)]) == ()


def test_an_enqueue_of_unknown_outcome_may_have_happened_or_not() -> None:
    lost = unknown(enq("a", 1, 0, 1))
    assert priority_queue.check([lost, deq(None, 5, 6)]) == ()
    assert priority_queue.check([lost, deq(None, 5, 6), deq("a", 7, 8)]) == ()
    assert only([deq("a", -3, -2), lost]).kind is Kind.DELIVERED_BEFORE_ENQUEUED


def test_a_lost_answer_explains_one_missing_task_and_not_two() -> None:
    lost = unknown(deq(None, 4, 5))
    both = [enq("a", 1, 0, 1), enq("b", 1, 2, 3)]
    assert priority_queue.check([both[0], lost, deq(None, 6, 7)]) == ()
    violation = only([*both, lost, deq(None, 6, 7)])
    assert violation.kind is Kind.FALSE_EMPTY
    assert violation.operations[1:] == (*both, lost)
    assert priority_queue.check([*both, replace(lost, asked=2), deq(None, 6, 7)]) == ()


def test_a_lost_answer_explains_nothing_before_its_call() -> None:
    lost = unknown(deq(None, 8, 9))
    assert only([enq("a", 1, 0, 1), deq(None, 6, 7), lost]).kind is Kind.FALSE_EMPTY
    inversion = [enq("a", 1, 0, 1), enq("b", 2, 0, 1), deq("b", 6, 7), lost]
    assert only(inversion).kind is Kind.PRIORITY_INVERSION
    order = [enq("a", 1, 0, 1), enq("b", 1, 2, 3), deq("b", 6, 7), lost]
    assert only(order).kind is Kind.FIFO


def test_a_batch_is_judged_task_by_task() -> None:
    batch = Operation(process=1, op=Op.ENQUEUE, ids=("a", "b"), keys=(1, 2), t0=0, t1=1)
    taken = Operation(process=2, op=Op.DEQUEUE, ids=("a", "b"), t0=2, t1=3, asked=5)
    assert priority_queue.check([batch, taken]) == ()
    assert only([batch, deq("b", 2, 3), deq("a", 4, 5)]).kind is Kind.PRIORITY_INVERSION


def test_repetitions_of_a_producer_are_one_enqueue() -> None:
    first = unknown(enq("a", 1, 0, 1, producer="p", sequence=1))
    again = enq("a", 1, 5, 6, producer="p", sequence=1)
    assert priority_queue.check([first, again, deq("a", 2, 3)]) == ()
    assert only([first, again, deq(None, 7, 8)]).kind is Kind.FALSE_EMPTY


def test_queues_are_judged_apart() -> None:
    history = [enq("a", 1, 0, 1, queue="x"), deq(None, 2, 3, queue="y")]
    assert priority_queue.check(history) == ()
    assert only([history[0], deq("a", 2, 3, queue="y")]).kind is Kind.FROM_NOWHERE


def test_a_history_in_which_tasks_come_back_is_refused() -> None:
    history = [enq("a", 1, 0, 1), deq("a", 2, 3), settle(Op.NACK, "a", 4, 5)]
    with pytest.raises(InvalidValue, match="enqueue and dequeue only, and found nack 'a'"):
        priority_queue.check(history)


def test_violations_are_bounded_in_number() -> None:
    history = [deq(number, number, number + 1) for number in range(1000)]
    assert len(priority_queue.check(history)) == 20
    assert len(priority_queue.check(history, violations_max=3)) == 3


def test_a_cover_is_what_its_intervals_say() -> None:
    random = Random(7)
    for _ in range(300):
        cover, intervals = Cover(), list[tuple[int, int]]()
        for _ in range(random.randrange(8)):
            start, end = random.randrange(30), random.randrange(30)
            cover.add(start, end)
            intervals.append((start, end))
        # Halves stand for the moments between whole ones.
        moments = [half / 2 for half in range(-2, 64)]
        free = [m for m in moments if not any(start < m < end for start, end in intervals)]
        for moment in moments[2:-2]:
            assert cover.first_free(moment) == min(m for m in free if m >= moment)
            assert cover.last_free(moment) == max(m for m in free if m <= moment)
