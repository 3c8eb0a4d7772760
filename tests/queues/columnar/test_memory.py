"""Memory follows the number of live tasks, in whatever order they are enqueued and consumed."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import pytest

from penstock.formats.records.changes import DeleteQueue, RemoveTasks
from penstock.formats.records.ids import RemoveReason
from penstock.queues.columnar.order import Order
from support.state_examples import Example
from support.states import ids_in_order, tidied

TASKS = 6_000
PAYLOAD = 100
TASK_MAX = 4 * (PAYLOAD + 24) + 100
"""Bytes for a live task: chunks are at least a quarter alive, and the order has up to 100 bytes for a key."""

BASE = 400_000
"""Bytes for what is not yet worth tidying: blocks, pages, a thousand stale ids."""

ORDERS: dict[str, Callable[[list[int]], list[int]]] = {
    "first in, first out": lambda ids: ids,
    "last in, first out": lambda ids: ids[::-1],
    "random": lambda ids: random.Random(5).sample(ids, len(ids)),
    "every seventh": lambda ids: [task_id for start in range(7) for task_id in ids[start::7]],
}
KEYS: dict[str, Callable[[int], int]] = {
    "one key": lambda _: 5,
    "ten keys": lambda number: number * 7 % 10,
    "a key each": lambda number: number * 7919 % 104_729,
}


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the bytes allocated since the beginning."""
    gc.collect()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def fill(example: Example, keys: Callable[[int], int], batch: int) -> None:
    for start in range(0, TASKS, batch):
        numbers = range(start, min(start + batch, TASKS))
        example.add(len(numbers), keys=[keys(number) for number in numbers], size=PAYLOAD)
        example.state.tidy()


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "batch"), [("one key", 1), *product(KEYS, (100, 3000))])
@pytest.mark.parametrize("order", [*ORDERS, "by key"])
def test_memory_follows_the_live_tasks(order: str, keys: str, batch: int) -> None:
    with traced() as allocated:
        example = Example()
        fill(example, KEYS[keys], batch)
        queue = example.state.queues[1]
        if order == "by key":
            ids = [task_id for _, task_id in ids_in_order(queue)]
        else:
            ids = ORDERS[order](list(range(1, TASKS + 1)))
        numbers = 40 * len(ids) + 8 * len(ids)  # of the test itself
        for done in range(0, TASKS, TASKS // 6):
            for task_id in ids[done : done + TASKS // 6]:
                change = RemoveTasks(1, range(task_id, task_id + 1), RemoveReason.ACKED)
                assert example.apply(change) == 0
            tidied(example.state)
            limit = BASE + numbers + queue.count * TASK_MAX
            assert allocated() < limit, f"{queue.count} tasks"
        assert queue.count == queue.size == queue.key_count == 0


def test_lone_tasks_of_one_key_are_one_run() -> None:
    example = Example()
    for _ in range(3000):
        example.add(1)
    queue = example.state.queues[1]
    runs = queue.next_runs(10**6)
    assert sum(len(tasks.places) for tasks in runs) == 3000
    assert queue.key_count == 1
    tidied(example.state)
    assert len(list(queue.directory)) <= 2 + 32 + 32


def test_a_deleted_queue_is_freed_in_slices() -> None:
    with traced() as allocated:
        example = Example()
        fill(example, KEYS["a key each"], 100)
        full = allocated()
        assert example.apply(DeleteQueue(1)) == 0
        slices = 0
        while example.state.tidy(200):
            slices += 1
        assert slices > 10
        assert allocated() < full / 10


def test_a_purge_of_a_large_queue_frees_its_pages() -> None:
    with traced() as allocated:
        example = Example()
        for _ in range(300):
            example.add(40, size=PAYLOAD)
        full = allocated()
        span = RemoveTasks(1, range(1, 10**9), RemoveReason.PURGED, is_span=True)
        assert example.apply(span) == 0
        assert example.state.queues[1].count == example.state.queues[1].size == 0
        tidied(example.state)
        assert allocated() < full / 10


def test_a_further_distinct_key_costs_at_most_200_bytes() -> None:
    count = 20_000
    keys = random.Random(7).sample(range(-(2**61), 2**61), count)
    with traced() as allocated:
        order = Order()
        for number, key in enumerate(keys):
            order.append(key, range(2 * number, 2 * number + 1))
        one_run = allocated()
        for number, key in enumerate(keys):  # a second run for each, apart from the first
            order.append(key, range(2 * (count + number), 2 * (count + number) + 1))
        assert order.key_count == count
        assert one_run < 100 * count
        assert allocated() < 200 * count
