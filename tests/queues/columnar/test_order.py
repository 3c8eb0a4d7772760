"""The order of delivery, against a sorted list."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from penstock.queues.columnar.order import BLOCK_MAX, Order, sorted_by_key
from penstock.queues.columnar.runs import Run, packed

KEYS = st.sampled_from((-(2**63), -1, 0, 3, 4, 2**53 + 1, 2**53 + 2, 2**63 - 1))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), KEYS, st.integers(1, 40), st.integers(1, 2)),
        st.tuples(st.just("extend"), st.integers(1, 2000), st.integers(1, 300)),
        st.tuples(st.just("insert"), KEYS, st.integers(0, 200)),
        st.tuples(st.just("gone"), st.integers(0, 5), st.sampled_from((5, 200, 10**6))),
    ),
    max_size=12,
)


def flat(order: Order, after: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    return [
        (key, task_id)
        for key, run in order.runs(after)
        for task_id in ((run,) if isinstance(run, int) else run)
    ]


@given(STEPS)
def test_an_order_lists_ids_by_key_and_then_by_id(steps: list[tuple[object, ...]]) -> None:
    order, expected, last = Order(), set[tuple[int, int]](), 0
    for step in steps:
        match step:
            case ("append", int(key), int(count), int(gap)):
                ids = range(last + 1, last + 1 + count * gap, gap)
                order.append(key, ids if gap == 1 else list(ids))
                expected |= {(key, task_id) for task_id in ids}
                last = ids[-1]
            case ("extend", int(count), int(distinct)):
                keys = [7 * number % distinct for number in range(count)]
                ids = range(last + 1, last + 1 + count)
                order.extend(keys, list(ids))
                expected |= set(zip(keys, ids, strict=True))
                last = ids[-1]
            case ("insert", int(key), int(back)) if last:
                task_id = max(1, last - back)
                order.insert(key, task_id)
                expected.add((key, task_id))
            case ("gone", int(rest), int(budget)):
                sweep_all(order, rest, budget)
                expected = {(key, task_id) for key, task_id in expected if task_id % 6 != rest}
    assert flat(order) == sorted(expected)
    assert order.key_count == len({key for key, _ in expected})


def sweep_all(order: Order, rest: int, budget: int) -> None:
    """Drop the ids with a remainder, in slices."""

    def keep(_key: int, run: Run) -> Run | None:
        ids = [run] if isinstance(run, int) else list(run)
        left = [task_id for task_id in ids if task_id % 6 != rest]
        return packed(left) if left else None

    position, _ = order.sweep(keep, None, budget)
    while position is not None:
        position, _ = order.sweep(keep, position, budget)


@given(
    st.lists(st.tuples(KEYS, st.integers(1, 50)), min_size=1), st.tuples(KEYS, st.integers(0, 60))
)
def test_reading_continues_behind_any_position(
    tasks: list[tuple[int, int]], after: tuple[int, int]
) -> None:
    order = Order()
    for key, task_id in tasks:
        order.insert(key, task_id)
    expected = sorted(set(tasks))
    assert flat(order, after) == expected[bisect_right(expected, after) :]


def test_a_key_with_one_run_is_stored_as_that_run() -> None:
    order = Order()
    order.append(1, range(1, 2))
    order.append(2, range(2, 1000))
    order.append(2, range(1000, 5000))
    order.append(3, [5001, 5003])
    assert list(order.runs()) == [(1, 1), (2, range(2, 5000)), (3, array("Q", [5001, 5003]))]


def test_growing_keys_leave_full_blocks() -> None:
    order = Order()
    for key in range(10 * BLOCK_MAX):
        order.append(key, (key + 1,))
    assert [len(block.keys) for block in order._blocks] == [BLOCK_MAX] * 10


def test_trimming_stops_at_the_first_run_that_is_there() -> None:
    order = Order()
    for key in range(1000):
        order.append(key, (key + 1,))

    def keep(key: int, run: Run) -> Run | None:
        return run if key >= 600 else None

    while order.trim(keep, 100):
        pass
    assert flat(order) == [(key, key + 1) for key in range(600, 1000)]
    assert order.trim(keep, 100) == 0


def test_dropping_frees_an_order_in_slices() -> None:
    order = Order()
    order.extend(list(range(5000)), list(range(1, 5001)))
    calls = 0
    while order.drop(1000):
        calls += 1
    assert calls >= 4
    assert order.key_count == 0
    assert flat(order) == []


def test_equal_keys_beyond_the_precision_of_floats_stay_apart() -> None:
    keys = [2**53 + 1, 2**53, 2**53 + 1]
    assert sorted_by_key(keys, [1, 2, 3]) == ([2**53, 2**53 + 1], [2, array("Q", [1, 3])])


def test_a_sweep_whose_key_is_gone_leaves_nothing_out() -> None:
    order = Order()
    order.append(1, list(range(1001, 3001, 2)))
    order.append(2, (500,))
    position, _ = order.sweep(lambda _, run: run, None, 100)
    assert position is not None
    assert position[0] == 1
    while order.trim(lambda key, run: run if key == 2 else None, 10):
        pass
    assert order.sweep(lambda *_: None, position, 600)[0] is None
    assert order.key_count == 0
