"""The exact check: each kind of violation by hand, lost answers by the log, and the search as its judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from penstock.errors import InvalidValue
from penstock.model import Policy
from simulation.checking import witness
from simulation.checking.exhaustive import is_linearizable
from simulation.checking.history import Op, Operation, Outcome
from simulation.checking.model import Model
from simulation.checking.samples import Life, plain_history, spoiled
from simulation.checking.violations import Kind
from simulation.checking.witness import Effect, LogEntry
from simulator.checking.made import deq, enq, event, kinds, settle, unknown
from support.report import report


def at(index: int, operation: Operation, *, term: int = 1, step: int = 0) -> Operation:
    return replace(operation, index=index, term=term, step=step)


@pytest.mark.parametrize("seed", range(6))
def test_a_queue_that_does_everything_right_passes(seed: int) -> None:
    life = Life(Random(seed), 2000, unknown=0.03)
    shuffled = Random(seed).sample(life.history, len(life.history))
    assert witness.check(shuffled, committed=life.log) == ()


def test_an_answer_that_the_model_would_not_give() -> None:
    history = [at(1, enq("a", 1, 0, 1)), at(2, enq("b", 1, 2, 3)), at(2, deq("b", 4, 5), step=1)]
    (violation,) = witness.check(history)
    assert violation.kind is Kind.WRONG_ANSWER
    assert violation.operations == (history[2],)
    assert "'a' was next" in violation.sentence


def test_an_operation_that_took_effect_before_one_that_had_returned() -> None:
    history = [at(1, enq("a", 1, 5, 6)), at(2, enq("b", 1, 0, 4))]
    (violation,) = witness.check(history)
    assert violation.kind is Kind.REAL_TIME
    assert violation.operations == (history[0], history[1])
    assert witness.check([at(1, enq("a", 1, 4, 6)), at(2, enq("b", 1, 0, 4))]) == ()


def test_a_stale_read_breaks_real_time_whoever_is_between() -> None:
    # A leader of the past answers "empty" from the log that it has, after "a" was acknowledged elsewhere.
    history = [
        at(1, deq(None, 20, 21), step=1),
        at(3, enq("a", 1, 5, 6), term=2),
        at(4, enq("b", 1, 0, 30), term=2),
    ]
    assert kinds(witness.check(history)) == [Kind.REAL_TIME]


def test_terms_that_fall() -> None:
    history = [at(1, enq("a", 1, 0, 1), term=2), at(2, enq("b", 1, 2, 3), term=1)]
    (violation,) = witness.check(history)
    assert violation.kind is Kind.TERM_FELL
    assert violation.operations == (history[1], history[0])


def test_an_answer_that_is_not_in_the_committed_log() -> None:
    history = [at(1, enq("a", 1, 0, 1)), at(2, enq("b", 1, 2, 3))]
    log = [LogEntry(index=1, term=1), LogEntry(index=2, term=2)]
    (violation,) = witness.check(history, committed=log)
    assert violation.kind is Kind.NOT_IN_LOG
    assert "has an entry of term 2 there" in violation.sentence
    (violation,) = witness.check(history, committed=log[:1])
    assert "has no such entry" in violation.sentence


def test_a_new_term_ends_all_leases() -> None:
    out = [at(1, enq("a", 1, 0, 1)), at(1, deq("a", 2, 3), step=1)]
    assert witness.check([*out, at(2, deq("a", 4, 5), term=2)]) == ()
    assert kinds(witness.check([*out, at(2, deq("a", 4, 5))])) == [Kind.WRONG_ANSWER]
    late = at(2, settle(Op.ACK, "a", 4, 5), term=2)
    assert kinds(witness.check([*out, late])) == [Kind.WRONG_ANSWER]


def test_dequeues_of_one_place_are_taken_in_the_order_of_the_queue() -> None:
    history = [
        at(1, enq("b", 2, 0, 1)), at(2, enq("a", 1, 0, 1)),
        at(2, deq(None, 2, 9)), at(2, deq("b", 2, 9, keys=(2,))), at(2, deq("a", 2, 9, keys=(1,))),
    ]  # fmt: skip
    assert witness.check(history) == ()


def test_what_got_no_answer_is_looked_up_in_the_log() -> None:
    lost = unknown(enq("a", 1, 0, 1))
    entry = LogEntry(index=2, term=1, op=Op.ENQUEUE, ids=("a",))
    log = [LogEntry(index=1, term=1), entry]
    seen = at(2, deq("a", 5, 6), step=1)
    empty = at(2, deq(None, 5, 6), step=1)
    assert witness.check([lost, seen], committed=log) == ()
    assert kinds(witness.check([lost, empty], committed=log)) == [Kind.WRONG_ANSWER]
    nothing = [log[0], LogEntry(index=2, term=1)]
    assert witness.check([lost, empty], committed=nothing) == ()
    assert kinds(witness.check([lost, seen], committed=nothing)) == [Kind.WRONG_ANSWER]


def test_what_got_no_answer_cannot_take_effect_before_its_call() -> None:
    lost = unknown(enq("a", 1, 10, 11))
    log = [LogEntry(index=1, term=1, op=Op.ENQUEUE, ids=("a",)), LogEntry(index=2, term=1)]
    history = [lost, at(2, enq("b", 1, 0, 1))]
    assert kinds(witness.check(history, committed=log)) == [Kind.REAL_TIME]


def test_a_committed_entry_that_should_have_been_refused() -> None:
    made = at(1, event(Op.CREATE, 0, 1, queue="q", policy=Policy(size_max=1)))
    first = at(2, enq("a", 1, 2, 3, queue="q"))
    lost = unknown(enq("b", 1, 4, 5, queue="q"))
    log = [
        LogEntry(index=1, term=1), LogEntry(index=2, term=1),
        LogEntry(index=3, term=1, op=Op.ENQUEUE, queue="q", ids=("b",)),
    ]  # fmt: skip
    (violation,) = witness.check([made, first, lost], committed=log)
    assert violation.kind is Kind.WRONG_ANSWER
    assert "queue-full" in violation.sentence


def test_a_batch_of_which_a_part_was_committed() -> None:
    batch = Operation(
        process=1, op=Op.ENQUEUE, ids=("a", "b"), keys=(5, 1), sizes=(1, 2), t0=0, outcome=Outcome.UNKNOWN
    )  # fmt: skip
    log = [LogEntry(index=1, term=1, op=Op.ENQUEUE, ids=("a",))]
    taken = at(1, deq("a", 5, 6, keys=(5,)), step=1)
    assert witness.check([batch, taken, at(1, deq(None, 7, 8), step=2)], committed=log) == ()


def test_a_function_knows_what_a_lost_dequeue_took() -> None:
    lost = unknown(deq(None, 2, 3))
    history = [at(1, enq("a", 1, 0, 1)), lost, at(1, deq(None, 4, 5), step=2)]

    def find(operation: Operation) -> Sequence[Effect]:
        assert operation == lost
        return [Effect(index=1, term=1, step=1, ids=("a",))]

    assert witness.check(history, committed=find) == ()
    assert kinds(witness.check(history)) == [Kind.WRONG_ANSWER]


def test_a_repetition_that_was_answered_and_one_that_was_not_are_one_entry() -> None:
    first = unknown(enq("a", 1, 0, 1, producer="p", sequence=1))
    again = at(1, enq("a", 1, 2, 3, producer="p", sequence=1))
    log = [LogEntry(index=1, term=1, op=Op.ENQUEUE, ids=("a",)), LogEntry(index=2, term=1)]
    seen = [at(1, deq("a", 4, 5), step=1), at(1, deq(None, 6, 7), step=2)]
    assert witness.check([first, again, *seen], committed=log) == ()
    # The first attempt took effect, and the answer to the second rests on a later entry.
    later = [replace(each, index=2) for each in (again, *seen)]
    assert witness.check([first, *later], committed=log) == ()


def test_an_operation_that_could_be_two_entries_is_for_a_function() -> None:
    log = [LogEntry(index=n, term=1, op=Op.NACK, ids=("a",)) for n in (1, 2)]
    with pytest.raises(InvalidValue, match="2 entries that could be nack 'a'"):
        witness.check([unknown(settle(Op.NACK, "a", 0, 1))], committed=log)
    # One of them was answered to somebody else.
    answered = at(1, settle(Op.NACK, "a", 0, 1, process="x"))
    with_one = witness.check([unknown(settle(Op.NACK, "a", 0, 1)), answered], committed=log)
    assert kinds(with_one) == [Kind.WRONG_ANSWER, Kind.WRONG_ANSWER]


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(InvalidValue, match="carries no index and term"):
        witness.check([enq("a", 1, 0, 1)])
    with pytest.raises(InvalidValue, match="two tasks bear the id 'a'"):
        witness.check([at(1, enq("a", 1, 0, 1)), at(2, enq("a", 1, 2, 3))])
    with pytest.raises(InvalidValue, match="two entries of index 1"):
        witness.check([], committed=[LogEntry(index=1, term=1), LogEntry(index=1, term=2)])


def test_it_goes_on_from_what_there_was_before() -> None:
    model = Model()
    assert model.apply(enq("old", 1, 0, 1)) is None
    assert witness.check([at(5, deq("old", 2, 3))], model=model) == ()


def test_what_it_lets_pass_is_linearizable() -> None:
    """Whatever places a product claims: a history that passes has an order that explains it."""
    random = Random(11)
    passed = refused = 0
    for _ in range(1200):
        history = plain_history(random, random.randrange(3, 9), slack=random.choice([1, 4, 12]))
        placed = [at(index, operation) for index, operation in enumerate(history, 1)]
        assert witness.check(placed) == ()
        for _ in range(random.randrange(3)):
            placed = spoiled(random, placed)
        if witness.check(placed):
            refused += 1
        else:
            passed += 1
            assert is_linearizable(placed), "\n".join(map(str, placed))
    assert min(passed, refused) > 250
    report(f"checks: witness let {passed} histories pass, all linearizable, and refused {refused}")
