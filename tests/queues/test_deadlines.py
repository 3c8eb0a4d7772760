"""Times by id, against a dictionary."""

from __future__ import annotations

from random import Random

import pytest

from penstock.queues.deadlines import Deadlines


@pytest.mark.parametrize("seed", range(8))
def test_deadlines_are_what_a_dictionary_says(seed: int) -> None:
    random = Random(seed)
    deadlines, model = Deadlines(), dict[int, int]()
    armed = set[int]()  # ids that ``pop_due`` still has to return
    now = 0
    for _ in range(1500):
        number = random.randint(1, 30)
        choice = random.random()
        if choice < 0.4:
            time = now + random.randint(-3, 40)
            deadlines.set(number, time)
            model[number] = time
            armed.add(number)
        elif choice < 0.6:
            deadlines.discard(number)
            model.pop(number, None)
            armed.discard(number)
        elif choice < 0.7:
            deadlines.rearm(number)
            armed.update({number} & model.keys())
        elif choice < 0.85:
            now += random.randint(0, 5)
            due = deadlines.take_due(now)
            assert len(due) == len(set(due))
            assert [model[n] for n in due] == sorted(model[n] for n in due)
            ripe = {n for n in armed if model[n] <= now}
            assert ripe <= set(due) <= {n for n, time in model.items() if time <= now}
            for one in due:
                del model[one]
                armed.discard(one)
        else:
            now += random.randint(0, 5)
            due = deadlines.pop_due(now)
            assert len(due) == len(set(due))
            # Beyond those that are due, one that was returned before may come once more.
            assert {n for n in armed if model[n] <= now} <= set(due)
            assert all(model[n] <= now for n in due)
            armed -= set(due)
        assert dict(deadlines) == model
        assert list(deadlines) == sorted(model.items())
        assert (len(deadlines), number in deadlines) == (len(model), number in model)
        assert deadlines.get(number) == model.get(number)
        following = deadlines.next()
        if armed:
            assert following is not None
            assert following <= min(model[n] for n in armed)
        assert len(deadlines._heap) <= 2 * 30 + 65


def test_a_time_that_is_moved_counts_where_it_is_now() -> None:
    deadlines = Deadlines()
    deadlines.set(1, 10)
    deadlines.set(1, 50)
    deadlines.set(2, 20)
    assert (deadlines.next(), deadlines.take_due(20)) == (20, [2])
    assert (deadlines.next(), deadlines.take_due(50), deadlines.next()) == (50, [1], None)


def test_what_was_returned_is_due_again_only_when_it_is_rearmed() -> None:
    deadlines = Deadlines()
    deadlines.set(1, 10)
    assert deadlines.pop_due(10) == [1]
    assert (deadlines.pop_due(10), deadlines.next(), deadlines.get(1)) == ([], None, 10)
    deadlines.rearm(1)
    deadlines.rearm(1)
    deadlines.rearm(2)
    assert (deadlines.next(), deadlines.pop_due(10), deadlines.pop_due(10)) == (10, [1], [])
