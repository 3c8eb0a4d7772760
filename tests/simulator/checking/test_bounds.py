"""Size limits: never above them, and "full" only when it could be."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.model import Policy
from simulation.checking import bounds
from simulation.checking.history import Op, Operation, Outcome
from simulation.checking.violations import Findings, Kind, Violation
from simulator.checking.made import enq, event, kinds, settle, unknown


def judge(limit: int, *history: Operation) -> tuple[Violation, ...]:
    findings = Findings()
    made = event(Op.CREATE, -10, -9, policy=Policy(size_max=limit))
    bounds.judge([made, *history], findings)
    return findings.all()


def full(t0: float, t1: float, *names: str) -> Operation:
    names = names or ("x",)
    return Operation(
        process="p", op=Op.ENQUEUE, ids=names, keys=(1,) * len(names), t0=t0, t1=t1,
        outcome=Outcome.FAIL, reason="queue-full",
    )  # fmt: skip


def acked(name: str, t0: float, t1: float) -> Operation:
    return settle(Op.ACK, name, t0, t1)


def test_more_tasks_than_the_limit() -> None:
    history = [enq("a", 1, 0, 1), enq("b", 1, 2, 3)]
    (violation,) = judge(1, *history)
    assert violation.kind is Kind.OVER_LIMIT
    assert violation.operations == (history[1], history[0])
    assert judge(2, *history) == ()


def test_a_task_is_surely_in_until_its_removal_is_called() -> None:
    for removal in (
        acked("a", 2, 9),
        unknown(acked("a", 2, 9)),
        event(Op.PURGE, 2, 9),
        event(Op.DELETE, 2, 9),
    ):
        assert judge(1, enq("a", 1, 0, 1), removal, enq("b", 1, 2, 3)) == ()
        assert kinds(judge(1, enq("a", 1, 0, 1), replace(removal, t0=4), enq("b", 1, 2, 3))) == [
            Kind.OVER_LIMIT
        ]
    assert judge(1, unknown(enq("a", 1, 0, 1)), enq("b", 1, 2, 3)) == ()


def test_a_full_answer_needs_a_moment_at_which_it_could_be_true() -> None:
    (violation,) = judge(1, full(5, 6))
    assert violation.kind is Kind.FALSE_FULL
    assert "at most 0 of 1" in violation.sentence
    assert judge(1, enq("a", 1, 0, 1), full(5, 6)) == ()
    assert judge(1, unknown(enq("a", 1, 0, 1)), full(5, 6)) == ()
    assert judge(1, enq("a", 1, 6, 8), full(5, 6)) == ()
    assert kinds(judge(1, enq("a", 1, 7, 8), full(5, 6))) == [Kind.FALSE_FULL]
    assert kinds(judge(2, enq("a", 1, 0, 1), full(5, 6))) == [Kind.FALSE_FULL]
    assert judge(2, enq("a", 1, 0, 1), full(5, 6, "x", "y")) == ()


def test_a_task_is_possibly_in_until_its_removal_has_returned() -> None:
    put = enq("a", 1, 0, 1)
    assert judge(1, put, acked("a", 2, 5), full(5, 6)) == ()
    assert kinds(judge(1, put, acked("a", 2, 4), full(5, 6))) == [Kind.FALSE_FULL]
    assert kinds(judge(1, put, event(Op.DELETE, 2, 4), full(5, 6))) == [Kind.FALSE_FULL]
    assert judge(1, put, unknown(acked("a", 2, 4)), full(5, 6)) == ()
    assert judge(1, put, event(Op.PURGE, 2, 4), full(5, 6)) == ()  # it may have been on lease


def test_other_queues_and_queues_of_several_limits_are_not_judged() -> None:
    elsewhere = [replace(enq(name, 1, 0, 1), queue="q") for name in "abc"]
    assert judge(1, *elsewhere) == ()
    again = event(Op.CREATE, 0, 1, policy=Policy(size_max=7))
    assert judge(1, enq("a", 1, 2, 3), enq("b", 1, 2, 3), again) == ()


def test_both_bounds_are_what_a_look_at_every_moment_says() -> None:
    random = Random(3)
    verdicts = list[tuple[bool, bool]]()
    for _ in range(400):
        history = list[Operation]()
        for number in range(random.randrange(1, 9)):
            start = random.randrange(20)
            name = str(number)
            history.append(enq(name, 1, start, start + random.randrange(5)))
            if random.random() < 0.6:
                later = start + random.randrange(4, 12)
                history.append(acked(name, later, later + random.randrange(5)))
        begin = random.randrange(25)
        answer = full(begin, begin + random.randrange(4))
        limit = random.randrange(1, 5)
        found = set(kinds(judge(limit, *history, answer)))
        expected = _slow(history, answer, limit)
        assert found == expected, "\n".join(map(str, [limit, *history, answer]))
        verdicts.append((Kind.OVER_LIMIT in found, Kind.FALSE_FULL in found))
    assert 80 < sum(over for over, _ in verdicts) < 320
    assert 80 < sum(is_false for _, is_false in verdicts) < 320


def _slow(history: list[Operation], answer: Operation, limit: int) -> set[Kind]:
    """Count at every half moment."""
    acks = {operation.ids: operation for operation in history if operation.op is Op.ACK}
    enqueues = [operation for operation in history if operation.op is Op.ENQUEUE]
    found = set()
    may_be_full = False
    for moment in [half / 2 for half in range(-2, 100)]:
        sure = possible = 0
        for put in enqueues:
            ack = acks.get(put.ids)
            sure += put.t1 < moment and (ack is None or moment < ack.t0)
            possible += put.t0 <= moment and (ack is None or moment <= ack.t1)
        if sure > limit:
            found.add(Kind.OVER_LIMIT)
        may_be_full |= answer.t0 <= moment <= answer.t1 and possible >= limit
    return found if may_be_full else found | {Kind.FALSE_FULL}
