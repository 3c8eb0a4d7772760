"""The order of delivery: smallest key first, first in first out within a key, however ids come and go."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model import INT64_MAX, INT64_MIN, Implementation, KeyRange, Policy
from penstock.queues.order import ARRAY_SPAN_MAX, Order

RANGE = KeyRange(lowest=-3, highest=3)
WIDE = KeyRange(lowest=0, highest=ARRAY_SPAN_MAX)
FULL = KeyRange(lowest=INT64_MIN, highest=INT64_MAX)
POLICIES = {
    "heap": Policy(),
    "heap with range": Policy(keys=RANGE),
    "array": Policy(implementation=Implementation.ARRAY, keys=RANGE),
    "array too wide": Policy(implementation=Implementation.ARRAY, keys=WIDE),
    "array of all keys": Policy(implementation=Implementation.ARRAY, keys=FULL),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_an_order_is_what_a_sorted_list_says(policy: Policy, seed: int) -> None:
    random = Random(seed)
    order, model = Order(policy), list[tuple[int, int]]()
    last_id, back = 0, list[tuple[int, int]]()
    for _ in range(1500):
        choice = random.random()
        key = random.choice([-3, -1, 0, 0, 0, 2, 3, 77 if random.random() < 0.01 else 1])
        if choice < 0.35:
            last_id += 1
            order.push(key, last_id)
            model.append((key, last_id))
        elif choice < 0.45:
            ids = range(last_id + 1, last_id + random.choice([2, 40]))
            last_id = ids[-1]
            order.extend(key, ids)
            model += [(key, task_id) for task_id in ids]
        elif choice < 0.6 and back:
            row = back.pop(random.randrange(len(back)))  # in any order, into its old place
            order.push(*row)
            model.append(row)
        elif choice < 0.62:
            order.clear()
            model.clear()
        elif choice < 0.8:
            model.sort()
            count = random.choice([1, 3, 500])
            found, run = order.pop_run(count)
            assert len(run) <= count
            assert bool(run) == bool(model)
            assert [(found, task_id) for task_id in run] == model[: len(run)]
            back += model[: len(run)]
            del model[: len(run)]
        else:
            model.sort()
            task_id = order.pop()
            assert task_id == (model[0][1] if model else None)
            back += model[:1]
            del model[:1]
        assert order.count == len(model)
    assert order.in_order() == [task_id for _, task_id in sorted(model)]


def test_the_ends_of_the_numbers_are_keys_and_ids_like_others() -> None:
    order = Order(Policy())
    rows = [(INT64_MAX, 2**64 - 1), (INT64_MIN, 2**63), (INT64_MIN, 2**63 - 1), (0, 1)]
    for key, task_id in rows:
        order.push(key, task_id)
    assert [order.pop() for _ in rows] == [2**63 - 1, 2**63, 1, 2**64 - 1]


def test_a_key_outside_the_range_of_an_array_is_kept_all_the_same() -> None:
    # Policies are not checked on replay: a log from elsewhere may hold such a key.
    order = Order(POLICIES["array"])
    for key, task_id in ((2, 1), (-9, 2), (3, 3), (99, 4)):
        order.push(key, task_id)
    assert [order.pop() for _ in range(5)] == [2, 1, 3, 4, None]


def test_what_was_served_long_ago_is_given_back() -> None:
    order = Order(Policy())
    for start in range(0, 100_000, 10):
        order.extend(0, range(start + 1, start + 11))
        for _ in range(10 if start else 9):
            order.pop()
    fifo = order._fifos[0]
    assert len(fifo._ids) < 5000
