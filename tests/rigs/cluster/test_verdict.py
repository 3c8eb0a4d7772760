"""The verdict over a history: what it must find, and what it must leave to nobody's fault."""

from __future__ import annotations

from rigs.cluster.verdict import Verdict, answer_times, judge, longest_gap, ordered_part, storms
from simulation.checking.history import Op, Operation, Outcome

QUEUE = "jobs"


def enqueue(name: str, at: float, *, key: int = 0, outcome: Outcome = Outcome.OK) -> Operation:
    return Operation(
        process="p",
        op=Op.ENQUEUE,
        queue=QUEUE,
        ids=(name,),
        keys=(key,),
        t0=at,
        t1=at + 0.125,
        outcome=outcome,
    )


def dequeue(at: float, *names: str, keys: tuple[int, ...] = (), process: str = "c.1") -> Operation:
    keys = keys or (0,) * len(names)
    return Operation(
        process=process, op=Op.DEQUEUE, queue=QUEUE, ids=names, keys=keys, t0=at, t1=at + 0.125
    )


def ack(at: float, *names: str, process: str = "c.1") -> Operation:
    return Operation(process=process, op=Op.ACK, queue=QUEUE, ids=names, t0=at, t1=at + 0.125)


def lost_dequeue(at: float) -> Operation:
    return Operation(
        process="c.2", op=Op.DEQUEUE, queue=QUEUE, t0=at, t1=at + 1, outcome=Outcome.UNKNOWN
    )


def verdict(*history: Operation, elections: list[tuple[float, int, int]] | None = None) -> Verdict:
    return judge([*history, dequeue(100)], elections or [], [("fault", 4, 5)])


def test_a_history_without_a_fault_has_no_problem() -> None:
    found = verdict(enqueue("a", 1), dequeue(2, "a"), ack(3, "a"))
    assert (found.problems, found.figures["lost"], found.figures["tasks"]) == ([], 0, 1)


def test_a_task_that_was_acknowledged_and_never_seen_is_lost() -> None:
    found = verdict(enqueue("a", 1))
    assert found.figures["lost"] == 1
    assert found.problems


def test_a_task_of_unknown_outcome_may_be_missing_or_be_seen() -> None:
    missing = verdict(enqueue("a", 1, outcome=Outcome.UNKNOWN))
    seen = verdict(enqueue("a", 1, outcome=Outcome.UNKNOWN), dequeue(2, "a"), ack(3, "a"))
    assert missing.problems == seen.problems == []
    assert (missing.figures["recovered"], seen.figures["recovered"]) == (0, 1)


def test_a_task_that_nobody_enqueued_is_a_problem() -> None:
    found = verdict(enqueue("a", 1), dequeue(2, "a", "b"), ack(3, "a", "b"))
    assert found.figures["unexpected"] == 1


def test_a_task_that_comes_back_needs_a_reason_such_as_a_new_leader() -> None:
    history = (
        enqueue("a", 1),
        dequeue(2, "a"),
        dequeue(2.5, "a", process="c.3"),
        ack(3, "a", process="c.3"),
    )
    assert verdict(*history).figures["duplicated"] == 1
    assert verdict(*history, elections=[(2.4, 2, 7)]).problems == []


def test_a_task_that_comes_back_after_its_ack_is_a_problem_even_with_a_new_leader() -> None:
    history = (enqueue("a", 1), dequeue(2, "a"), ack(3, "a"), dequeue(4, "a", process="c.3"))
    assert verdict(*history, elections=[(3.5, 2, 7)]).problems


def test_larger_keys_before_smaller_ones_are_a_problem() -> None:
    history = (
        enqueue("low", 1, key=1),
        enqueue("high", 2, key=2),
        dequeue(3, "high", keys=(2,)),
        dequeue(4, "low", keys=(1,)),
        ack(5, "low", "high"),
    )
    assert any("smaller keys" in problem for problem in verdict(*history).problems)


def test_order_is_not_judged_while_a_lost_answer_may_hold_tasks() -> None:
    history = (
        enqueue("low", 1, key=1),
        enqueue("high", 2, key=2),
        lost_dequeue(2.5),
        dequeue(3, "high", keys=(2,)),
        dequeue(30, "low", keys=(1,)),
        ack(31, "low", "high"),
    )
    assert verdict(*history).problems == []
    kept = ordered_part(history, storms(history, []))
    assert [operation.ids for operation in kept] == [("low",), ("low",)]


def test_a_task_that_was_given_back_is_left_out_of_the_order() -> None:
    nack = Operation(process="c.1", op=Op.NACK, queue=QUEUE, ids=("a",), t0=3, t1=3.1)
    history = (
        enqueue("a", 1),
        enqueue("b", 2),
        dequeue(2.5, "a"),
        nack,
        dequeue(4, "a"),
        dequeue(5, "b"),
    )
    kept = ordered_part(history, [])
    assert [operation.ids for operation in kept] == [("b",), ("b",)]


def test_the_longest_gap_is_one_between_answers() -> None:
    history = [
        enqueue("a", 1),
        enqueue("b", 2),
        enqueue("x", 3, outcome=Outcome.FAIL),
        enqueue("c", 6),
    ]
    assert longest_gap(answer_times(history)) == 4
    assert longest_gap(answer_times(history), (0.5, 1.5)) == 1
