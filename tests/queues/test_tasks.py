"""Tasks by id: what goes in comes out, in the order of ids, a walk sees one moment, and memory stays small."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ReplayConflict
from penstock.model import UINT64_MAX
from penstock.queues.tasks import CHUNK, Tasks
from support.report import report

Rows = list[tuple[int, int, bytes]]


class Model:
    """The same as a dictionary."""

    def __init__(self, last_id: int = 0) -> None:
        self.last_id = last_id
        self.rows: dict[int, tuple[int, bytes]] = {}

    def add(self, keys: list[int], payloads: list[bytes]) -> None:
        for key, payload in zip(keys, payloads, strict=True):
            self.last_id += 1
            self.rows[self.last_id] = (key, payload)

    def listed(self) -> Rows:
        return [(task_id, *self.rows[task_id]) for task_id in sorted(self.rows)]


def check(tasks: Tasks, model: Model) -> None:
    assert list(tasks) == model.listed()
    assert (tasks.count, tasks.last_id) == (len(model.rows), model.last_id)
    assert tasks.size == sum(len(payload) for _, payload in model.rows.values())


@pytest.mark.parametrize("start", [0, 1, CHUNK - 1, 2**63 - 70, 2**63 + 5, UINT64_MAX - 5000])
@pytest.mark.parametrize("seed", range(4))
def test_tasks_are_what_a_dictionary_says(seed: int, start: int) -> None:
    random = Random(seed)
    tasks, model = Tasks(start), Model(start)
    for _ in range(150):
        choice = random.random()
        if choice < 0.5:
            count = random.choice([1, 1, 3, CHUNK, 2 * CHUNK + 1])
            if model.last_id + count > UINT64_MAX:
                continue
            keys = [random.choice([0, -(2**63), 2**63 - 1, 5]) for _ in range(count)]
            payloads = [random.randbytes(random.choice([0, 1, 40, 3000])) for _ in range(count)]
            first = tasks.add(keys, payloads)
            assert first == model.last_id + 1
            model.add(keys, payloads)
        elif model.rows:
            chosen = random.sample(sorted(model.rows), min(len(model.rows), random.randint(1, 90)))
            if choice < 0.7:
                chosen.sort()
                tasks.remove_many(chosen)
                for task_id in chosen:
                    del model.rows[task_id]
            else:
                for task_id in chosen:
                    assert tasks.remove(task_id) == model.rows.pop(task_id)
                    assert tasks.remove(task_id) is None
        for task_id in (0, 1, model.last_id, model.last_id + 1, *list(model.rows)[:3]):
            assert tasks.get(task_id) == model.rows.get(task_id)
        asked = [*list(model.rows)[-5:], model.last_id + 9]
        rows = [model.rows.get(task_id) for task_id in asked]
        assert tasks.payloads(asked) == [None if row is None else row[1] for row in rows]
        check(tasks, model)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 100, 256, 257, 3000, None])
@pytest.mark.parametrize("seed", range(3))
def test_runs_of_tasks_are_what_a_dictionary_says(seed: int, size: int | None) -> None:
    random = Random(seed)
    tasks, model = Tasks(random.choice([0, CHUNK - 1])), Model(0)
    model.last_id = tasks.last_id
    for _ in range(200):
        first = random.randint(max(1, model.last_id - 4 * CHUNK), model.last_id + 1)
        run = range(first, first + random.choice([1, 2, 17, CHUNK, 100]))
        rows = [model.rows.get(task_id) for task_id in run]
        assert tasks.payloads(run) == [None if row is None else row[1] for row in rows]
        choice = random.random()
        if choice < 0.5:
            count = random.choice([1, 64, 100])
            sizes = [random.choice([0, 9, 400]) if size is None else size for _ in range(count)]
            keys, payloads = [7] * count, [random.randbytes(n) for n in sizes]
            tasks.add(keys, payloads)
            model.add(keys, payloads)
        elif all(task_id in model.rows for task_id in run):
            tasks.remove_many(run)
            for task_id in run:
                del model.rows[task_id]
        elif choice < 0.8:
            with pytest.raises(ReplayConflict, match="not there"):
                Tasks(tasks.last_id).remove_many(run)
        check(tasks, model)


@given(ids=st.lists(st.integers(1, UINT64_MAX), unique=True, max_size=40))
def test_tasks_of_a_snapshot_may_have_any_ids_in_any_order(ids: list[int]) -> None:
    tasks = Tasks(UINT64_MAX)
    for task_id in ids:
        tasks.restore(task_id, task_id % 7, b"%d" % task_id)
    assert list(tasks) == [(i, i % 7, b"%d" % i) for i in sorted(ids)]
    for task_id in ids:
        with pytest.raises(ReplayConflict, match="twice"):
            tasks.restore(task_id, 0, b"")


def test_a_removal_of_what_is_not_there_is_a_conflict() -> None:
    tasks = Tasks()
    tasks.add([0] * 3, [b""] * 3)
    for missing in (0, 4, 5000):
        with pytest.raises(ReplayConflict, match="not there"):
            tasks.remove_many([missing])


@pytest.mark.parametrize("seed", range(12))
def test_a_walk_sees_the_moment_it_began_whatever_changes_meanwhile(seed: int) -> None:
    random = Random(seed)
    tasks, model = Tasks(), Model()
    keys = [random.randint(0, 3) for _ in range(5 * CHUNK + 7)]
    payloads = [b"%d" % n for n in range(len(keys))]
    tasks.add(keys, payloads)
    model.add(keys, payloads)
    for task_id in random.sample(range(1, len(keys) + 1), random.choice([0, 40, 300])):
        tasks.remove(task_id)
        del model.rows[task_id]
    moment, walk, seen = model.listed(), tasks.walk(), []
    while True:
        for _ in range(random.choice([0, 1, 5, 60])):
            if random.random() < 0.4:
                tasks.add([9], [b"new"])
                model.add([9], [b"new"])
            elif model.rows:
                task_id = random.choice(sorted(model.rows))
                if random.random() < 0.5:
                    tasks.remove(task_id)
                else:
                    tasks.remove_many([task_id])
                del model.rows[task_id]
        part = list(islice(walk, random.choice([1, 7, 200])))
        if not part:
            break
        seen += part
    assert seen == moment
    tasks.end_walk()
    check(tasks, model)
    assert list(tasks.walk()) == model.listed()


def test_a_walk_that_is_given_up_keeps_nothing_and_another_may_begin() -> None:
    tasks = Tasks()
    tasks.add([0] * 200, [b"x"] * 200)
    next(tasks.walk())
    tasks.end_walk()
    tasks.remove_many(list(range(1, 201)))
    assert list(tasks.walk()) == []


@pytest.mark.slow
def test_a_task_costs_few_bytes_beyond_its_payload() -> None:
    count, size = 50_000, 36
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tasks = Tasks()
        for start in range(0, count, 100):
            tasks.add([start] * 100, [b"%036d" % n for n in range(start, start + 100)])
        full = tracemalloc.get_traced_memory()[0] - before
        for task_id in range(1, count + 1):
            if task_id % 97:
                tasks.remove(task_id)
        sparse = tracemalloc.get_traced_memory()[0] - before
        tasks.remove_many([task_id for task_id, _, _ in tasks])
        empty = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    overhead = full / count - size
    report(f"a task of {size} bytes: {overhead:.0f} bytes beyond its payload")
    assert overhead < 60
    assert sparse < count / 97 * 1500  # a lone survivor keeps its chunk, and no more
    assert empty < 64_000
