"""Delivery at least once: each kind of violation by hand, and lives that were damaged on purpose."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from simulation.checking import delivery
from simulation.checking.delivery import Report
from simulation.checking.history import Op, Operation, Outcome
from simulation.checking.samples import Life
from simulation.checking.violations import Kind
from simulator.checking.made import deq, enq, event, kinds, settle, unknown

PUT = enq("a", 1, 0, 1)
TAKEN = deq("a", 2, 3)
ACKED = settle(Op.ACK, "a", 4, 5)
EMPTY = deq(None, 100, 101)


def judge(*history: Operation, lease_time: float = float("inf")) -> Report:
    return delivery.check([*history, EMPTY], is_drained=True, lease_time=lease_time)


@pytest.mark.parametrize("seed", range(8))
def test_a_queue_that_does_everything_right_passes(seed: int) -> None:
    life = Life(Random(seed), 2000, unknown=0.05)
    report = delivery.check(life.history, is_drained=True)
    assert report.violations == ()
    assert (report.lost, report.unexpected, report.duplicated) == ((), (), ())
    assert report.recovered


def test_a_task_that_was_acknowledged_and_never_seen_is_lost() -> None:
    report = judge(PUT)
    assert report.lost == ("a",)
    assert kinds(report.violations) == [Kind.LOST]
    assert report.violations[0].operations == (PUT,)
    assert judge(PUT, TAKEN, ACKED) == Report(
        lost=(), unexpected=(), recovered=(), duplicated=(), violations=()
    )


def test_a_task_of_unknown_outcome_is_recovered_or_not_there() -> None:
    lost = unknown(PUT)
    assert judge(lost).violations == ()
    report = judge(lost, TAKEN, ACKED)
    assert report.violations == ()
    assert report.recovered == ("a",)


def test_a_task_that_came_back_and_was_never_seen_again_is_lost() -> None:
    for back in (
        settle(Op.NACK, "a", 4, 5),
        settle(Op.LEASE_END, "a", 4, 5, process="node"),
        event(Op.DISCONNECT, 4, 5, process="c"),
        event(Op.LEAD, 4, 5),
    ):
        report = judge(PUT, TAKEN, back)
        assert report.lost == ("a",)
        assert report.violations[0].operations == (PUT, TAKEN, back)
        again = deq("a", 6, 7, process="other")
        assert judge(PUT, TAKEN, back, again).violations == ()
    # Another one's parting, or one after the drain, returned nothing.
    assert judge(PUT, TAKEN, event(Op.DISCONNECT, 4, 5, process="x")).lost == ()
    assert judge(PUT, TAKEN, event(Op.DISCONNECT, 200, 201, process="c")).lost == ()
    # It may have been acknowledged: nobody knows.
    assert judge(PUT, TAKEN, unknown(ACKED), event(Op.LEAD, 8, 9)).lost == ()


def test_a_purge_or_a_deletion_explains_what_is_gone_if_it_came_after() -> None:
    for op in (Op.PURGE, Op.DELETE):
        assert judge(PUT, event(op, 4, 5)).violations == ()
        assert judge(PUT, unknown(event(op, -5, -4))).violations == ()
        assert judge(PUT, event(op, -5, -4)).lost == ("a",)
        assert judge(PUT, event(op, 4, 5, queue="other")).lost == ("a",)


def test_a_task_that_nobody_enqueued_is_unexpected() -> None:
    report = judge(TAKEN, ACKED)
    assert report.unexpected == ("a",)
    assert kinds(report.violations) == [Kind.UNEXPECTED]
    refused = replace(PUT, outcome=Outcome.FAIL, reason="queue-full")
    assert judge(refused, TAKEN).unexpected == ("a",)


def test_without_a_full_drain_nothing_counts_as_lost() -> None:
    assert delivery.check([PUT], is_drained=False).violations == ()
    report = delivery.check([PUT], is_drained=True)
    assert report.lost == ()
    assert kinds(report.violations) == [Kind.NOT_DRAINED]
    early = delivery.check([PUT, deq(None, 1, 9)], is_drained=True)
    assert kinds(early.violations) == [Kind.NOT_DRAINED]
    back = [PUT, TAKEN, deq(None, 5, 6), settle(Op.NACK, "a", 7, 8)]
    assert kinds(delivery.check(back, is_drained=True).violations) == [Kind.NOT_DRAINED]


def test_a_delivery_after_the_ack_was_answered() -> None:
    late = deq("a", 6, 7, process="other")
    report = judge(PUT, TAKEN, ACKED, late, event(Op.LEAD, 5, 6))
    assert kinds(report.violations) == [Kind.DELIVERED_AFTER_ACK]
    assert report.violations[0].operations == (late, ACKED)
    # Called before the answer: it may have happened before the ack, which then was of an ended lease… or late.
    assert judge(PUT, TAKEN, unknown(ACKED), late, event(Op.LEAD, 5, 6)).violations == ()


def test_a_lease_that_was_alive_after_another_had_begun() -> None:
    other = deq("a", 4, 5, process="other")
    acked = settle(Op.ACK, "a", 8, 9)
    report = judge(PUT, TAKEN, event(Op.LEAD, 3, 4), other, acked)
    assert kinds(report.violations) == [Kind.OVERLAPPING_LEASES]
    assert report.violations[0].operations == (other, TAKEN, acked)
    # The ack may have been made before the other delivery, or be the other's own.
    assert judge(PUT, TAKEN, event(Op.LEAD, 3, 4), other, replace(acked, t0=5)).violations == ()
    own = replace(acked, process="other")
    assert judge(PUT, TAKEN, event(Op.LEAD, 3, 4), other, own).violations == ()


def test_tokens_tell_leases_of_one_process_apart() -> None:
    first, second = replace(TAKEN, tokens=(1,)), deq("a", 6, 7, tokens=(2,))
    history = [PUT, first, settle(Op.LEASE_END, "a", 4, 5, process="node"), second]
    assert judge(*history, settle(Op.ACK, "a", 8, 9, tokens=(2,))).violations == ()
    report = judge(*history, settle(Op.ACK, "a", 8, 9, tokens=(1,)))
    assert kinds(report.violations) == [Kind.OVERLAPPING_LEASES]


def test_a_redelivery_needs_a_reason_of_its_own() -> None:
    again = deq("a", 6, 7, process="other")
    report = judge(PUT, TAKEN, again)
    assert kinds(report.violations) == [Kind.REDELIVERED_WITHOUT_REASON]
    assert report.violations[0].operations == (again, TAKEN)
    assert report.duplicated == ("a",)
    back = settle(Op.NACK, "a", 4, 5)
    assert judge(PUT, TAKEN, back, again).duplicated == ()
    assert judge(PUT, TAKEN, unknown(back), again).duplicated == ()
    third = deq("a", 8, 9, process="third")
    assert judge(PUT, TAKEN, back, again, third).duplicated == ("a",)
    elected = event(Op.LEAD, 6, 9)
    assert judge(PUT, TAKEN, back, again, elected, third).duplicated == ()


def test_a_reason_must_lie_between_the_deliveries() -> None:
    again = deq("a", 6, 7, process="other")
    for reason in (event(Op.LEAD, 0, 1), event(Op.LEAD, 8, 9)):
        assert judge(PUT, TAKEN, again, reason).duplicated == ("a",)
    refused = settle(Op.NACK, "a", 4, 5, outcome=Outcome.FAIL, reason="lease-lost")
    assert judge(PUT, TAKEN, refused, again).duplicated == ("a",)
    gone = event(Op.DISCONNECT, 4, 5, process="x")
    assert judge(PUT, TAKEN, gone, again).duplicated == ("a",)


def test_a_lease_ends_with_its_time() -> None:
    again = deq("a", 30, 31, process="other")
    assert judge(PUT, TAKEN, again, lease_time=29).duplicated == ()
    assert judge(PUT, TAKEN, again, lease_time=30).duplicated == ("a",)


def test_the_order_of_one_producer_within_a_key() -> None:
    other = enq("b", 1, 2, 3)
    early, late = deq("b", 4, 5), deq("a", 6, 7)
    acks = [settle(Op.ACK, "a", 8, 9), settle(Op.ACK, "b", 8, 9)]
    report = judge(PUT, other, early, late, *acks)
    assert kinds(report.violations) == [Kind.PRODUCER_ORDER]
    assert report.violations[0].operations == (early, late, other)
    for right in (
        [replace(PUT, process="q"), other, early, late],  # of another producer
        [replace(PUT, keys=(2,)), other, early, late],  # of another key
        [replace(PUT, t1=2), other, early, late],  # not wholly before
        [PUT, other, replace(early, t1=6), late],
        [PUT, other, deq("a", 3, 4), deq("b", 5, 6)],
    ):
        assert judge(*right, *acks).violations == ()
    by_producer = [replace(each, producer="p", sequence=n) for n, each in enumerate((PUT, other))]
    by_producer[0] = replace(by_producer[0], process="elsewhere")
    assert kinds(judge(*by_producer, early, late, *acks).violations) == [Kind.PRODUCER_ORDER]


def test_a_task_may_have_been_out_with_somebody_who_was_never_told() -> None:
    history = [PUT, enq("b", 1, 2, 3), deq("b", 10, 11), deq("a", 20, 21)]
    history += [settle(Op.ACK, "a", 22, 23), settle(Op.ACK, "b", 22, 23)]
    untold = unknown(deq(None, 4, 5, process="x"))
    assert judge(*history, untold).violations == ()
    gone = event(Op.DISCONNECT, 6, 7, process="x")
    assert kinds(judge(*history, untold, gone).violations) == [Kind.PRODUCER_ORDER]
    assert judge(*history, untold, replace(gone, t1=10)).violations == ()


def test_queues_are_judged_apart() -> None:
    history = [PUT, replace(enq("z", 1, 2, 3), queue="q")]
    report = judge(*history, TAKEN, ACKED)
    assert kinds(report.violations) == [Kind.NOT_DRAINED]


@pytest.mark.parametrize("seed", range(6))
def test_a_life_with_a_task_cut_out_of_it_has_lost_that_task(seed: int) -> None:
    random = Random(seed)
    life = Life(random, 1500, unknown=0.0)
    single = [o.ids[0] for o in life.history if o.op is Op.ENQUEUE and len(o.ids) == 1]
    name = random.choice(single)
    left = [
        operation
        for operation in life.history
        if operation.op is Op.ENQUEUE or operation.ids != (name,)
    ]
    left = [_without(operation, name) for operation in left]
    report = delivery.check(left, is_drained=True)
    assert report.lost == (name,)
    assert set(kinds(report.violations)) == {Kind.LOST}


def _without(operation: Operation, name: object) -> Operation:
    """Return a delivery of several tasks without this one."""
    if operation.op is Op.ENQUEUE or name not in operation.ids or len(operation.ids) < 2:
        return operation
    kept = [number for number, each in enumerate(operation.ids) if each != name]
    return replace(
        operation,
        ids=tuple([operation.ids[number] for number in kept]),
        keys=tuple([operation.keys[number] for number in kept]) if operation.keys else (),
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_life_in_which_an_acknowledged_task_comes_back_is_found(seed: int) -> None:
    random = Random(seed)
    life = Life(random, 1500, unknown=0.0)
    acked = [o for o in life.history if o.op is Op.ACK and o.outcome is Outcome.OK]
    ack = random.choice(acked)
    back = deq(ack.ids[0], ack.t1 + 1, ack.t1 + 5, process="late")
    report = delivery.check([*life.history, back], is_drained=True)
    assert Kind.DELIVERED_AFTER_ACK in kinds(report.violations)
