"""The judge of the judges, and the check of the priority queue held against it."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.errors import InvalidValue
from simulation.checking import priority_queue
from simulation.checking.exhaustive import OPERATIONS_MAX, is_linearizable
from simulation.checking.history import Op, Operation
from simulation.checking.samples import plain_history, spoiled
from simulation.checking.violations import Kind
from simulator.checking.made import deq, enq, event, settle, unknown
from support.report import report


def test_an_order_that_explains_all_answers_is_found() -> None:
    history = [
        enq("a", 2, 0, 9),
        enq("b", 1, 0, 9),
        deq("a", 0, 9),
        deq("b", 0, 9),
        deq(None, 0, 9),
    ]
    assert is_linearizable(history)


def test_real_time_is_kept() -> None:
    assert is_linearizable([enq("a", 1, 0, 5), deq(None, 5, 6)])
    assert not is_linearizable([enq("a", 1, 0, 4), deq(None, 5, 6)])


def test_what_has_no_answer_may_happen_late_or_never() -> None:
    lost = unknown(enq("a", 1, 0, 1))
    assert is_linearizable([lost, deq(None, 2, 3)])
    assert is_linearizable([lost, deq(None, 2, 3), deq("a", 4, 5)])
    assert not is_linearizable([deq("a", -2, -1), lost])
    taken = unknown(deq(None, 2, 3))
    assert is_linearizable([enq("a", 1, 0, 1), taken, deq(None, 4, 5)])
    assert not is_linearizable([enq("a", 1, 0, 1), deq(None, 4, 5), unknown(deq(None, 6, 7))])


def test_leases_are_tried_too() -> None:
    history = [enq("a", 1, 0, 1), enq("b", 1, 2, 3), deq("a", 4, 5), settle(Op.NACK, "a", 6, 7)]
    assert is_linearizable([*history, deq("a", 8, 9)])
    assert not is_linearizable([*history, deq("b", 8, 9)])
    assert is_linearizable([*history[:3], event(Op.LEAD, 4, 7), deq("a", 8, 9)])


def test_a_long_history_is_refused() -> None:
    history = [enq(number, 1, 0, 1) for number in range(OPERATIONS_MAX + 1)]
    with pytest.raises(InvalidValue, match="too many to try every order"):
        is_linearizable(history)


def random_history(random: Random, *, lost: float = 0.0) -> list[Operation]:
    """Return up to ten operations of a true queue, most of them spoiled."""
    slack = random.choice([1, 3, 6, 12])
    count = random.randrange(3, 11)
    history = plain_history(
        random, count, keys=random.choice([1, 2, 3]), slack=slack, unknown=0.15, lost=lost
    )
    for _ in range(random.randrange(8)):
        history = spoiled(random, history)
    return history


def compare(seed: int, count: int) -> None:
    """Compare both verdicts on many histories; both must occur often enough to mean something."""
    random = Random(seed)
    right = 0
    proven: Counter[Kind] = Counter()
    for _ in range(count):
        history = random_history(random)
        expected = is_linearizable(history)
        found = priority_queue.check(history)
        assert (not found) is expected, "\n".join(map(str, [f"seed {seed}", *history, *found]))
        right += expected
        for violation in found:
            # What is shown as a proof is one: no order explains these operations, whatever the others are.
            assert not is_linearizable(violation.operations), str(violation)
            proven[violation.kind] += 1
    assert len(proven) >= 5, proven
    share = right / count
    assert 0.3 < share < 0.8
    report(
        f"checks: {count} histories judged as by exhaustive search, {1 - share:.0%} of them wrong, "
        f"{proven.total()} proofs tried"
    )


def test_the_verdict_is_that_of_the_exhaustive_search() -> None:
    compare(seed=1, count=3000)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(2, 12))
def test_the_verdict_is_that_of_the_exhaustive_search_on_very_many(seed: int) -> None:
    compare(seed, count=20_000)


def test_with_lost_answers_nobody_is_accused_wrongly() -> None:
    random = Random(5)
    wrong = found = 0
    for _ in range(1500):
        history = random_history(random, lost=0.25)
        is_accused = bool(priority_queue.check(history))
        if is_linearizable(history):
            assert not is_accused, "\n".join(map(str, history))
        else:
            wrong += 1
            found += is_accused
    # Generous, not blind: most of what is wrong is still found.
    assert wrong > 250
    assert found > 0.8 * wrong
    report(
        f"checks: with lost answers {found} of {wrong} wrong histories found, none accused wrongly"
    )
