"""One queue: what is ready comes in order, what is out or delayed does not, and nothing is listed twice."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from penstock.errors import ReplayConflict
from penstock.model import NO_OPTIONS, Implementation, KeyRange, Policy, QueueName
from penstock.queues import queue as queue_module
from penstock.queues.paged import PagedTasks
from penstock.queues.queue import Queue
from penstock.queues.tasks import Tasks
from support.memory_pages import MemoryPages
from support.report import report

ARRAY = Policy(implementation=Implementation.ARRAY, keys=KeyRange(lowest=0, highest=3))
BIG = 2**62


PAGED = Policy(implementation=Implementation.PAGED)


def made(policy: Policy = ARRAY) -> Queue:
    tasks = PagedTasks(MemoryPages()) if policy is PAGED else Tasks()
    return Queue(QueueName("q"), 1, policy, NO_OPTIONS, tasks)


class Model:
    """The same as a list that is sorted whenever somebody asks."""

    def __init__(self) -> None:
        self.tasks: dict[int, tuple[int, bytes]] = {}
        self.out: set[int] = set()
        self.delayed: dict[int, int] = {}
        self.attempts: dict[int, int] = {}

    def ready(self) -> list[tuple[int, int]]:
        hidden = self.out | self.delayed.keys()
        return sorted((key, i) for i, (key, _) in self.tasks.items() if i not in hidden)


@pytest.mark.parametrize("policy", [Policy(), ARRAY, PAGED], ids=["heap", "array", "paged"])
@pytest.mark.parametrize("stale_min", [0, 3, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_a_queue_is_what_the_model_is_however_often_its_order_is_made_anew(
    policy: Policy, stale_min: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "_STALE_MIN", stale_min)
    random, queue, model = Random(seed), made(policy), Model()
    now = peak = 0
    for _ in range(700):
        free = [i for i in model.tasks if i not in model.out]
        choice = random.random()
        if choice < 0.3:
            keys = [random.randint(0, 3) for _ in range(random.choice([1, 2, 5]))]
            if random.random() < 0.3:
                keys = keys[:1] * len(keys)
            payloads = [random.randbytes(random.randint(0, 4)) for _ in keys]
            if random.random() < 0.3:
                first = queue.add_later(keys, payloads, now + 5)
                model.delayed.update(dict.fromkeys(range(first, first + len(keys)), now + 5))
            else:
                first = queue.add(keys, payloads)
            rows = zip(keys, payloads, strict=True)
            model.tasks.update(dict(enumerate(rows, first)))
        elif choice < 0.5:
            count, size_max = random.choice([1, 3, 50]), random.choice([0, 5, 1000])
            ids, keys_, taken = queue.take_many(count, size_max)
            expected, size = list[int](), 0
            for _, task_id in model.ready()[:count]:
                size += len(model.tasks[task_id][1])
                if size > size_max and expected:
                    break
                expected.append(task_id)
            assert ids == expected
            assert list(zip(keys_, taken, strict=True)) == [model.tasks[i] for i in ids]
            model.out.update(ids)
        elif choice < 0.6 and model.out:
            task_id = random.choice(sorted(model.out))
            not_before = random.choice([None, now + 3])
            queue.return_(task_id, not_before_ms=not_before)
            model.out.remove(task_id)
            model.attempts[task_id] = model.attempts.get(task_id, 0) + 1
            if not_before is not None:
                model.delayed[task_id] = not_before
        elif choice < 0.66 and free:
            # As a replay sees it: nobody was told that the task was out.
            task_id = random.choice(free)
            not_before = random.choice([None, now + 4])
            queue.return_(task_id, not_before_ms=not_before)
            model.attempts[task_id] = model.attempts.get(task_id, 0) + 1
            model.delayed.pop(task_id, None)
            if not_before is not None:
                model.delayed[task_id] = not_before
        elif choice < 0.76 and model.tasks:
            task_id = random.choice(sorted(model.tasks))
            assert queue.tasks.get(task_id) == model.tasks.pop(task_id)
            queue.remove(task_id)
            model.out.discard(task_id)
            model.delayed.pop(task_id, None)
            model.attempts.pop(task_id, None)
        elif choice < 0.8 and model.out:
            ids = random.sample(sorted(model.out), random.randint(1, len(model.out)))
            queue.remove_out(ids)
            for task_id in ids:
                del model.tasks[task_id]
                model.attempts.pop(task_id, None)
            model.out.difference_update(ids)
        elif choice < 0.84 and free:
            ids = random.sample(free, min(len(free), 3))
            queue.take_these(ids)
            model.out.update(ids)
            for task_id in ids:
                model.delayed.pop(task_id, None)
            queue.remove_out(ids)  # what is taken out of turn is on its way out
            for task_id in ids:
                del model.tasks[task_id]
                model.attempts.pop(task_id, None)
            model.out.difference_update(ids)
        elif choice < 0.88 and free:
            task_id = random.choice(free)
            queue.delay(task_id, now + 6)
            model.delayed[task_id] = now + 6
        elif choice < 0.94:
            now += random.randint(0, 4)
            due = [i for i, time in model.delayed.items() if time <= now]
            assert queue.release(now) == len(due)
            for task_id in due:
                del model.delayed[task_id]
        else:
            found = queue.peek(4)
            assert [i for i, _, _ in found] == [i for _, i in model.ready()[:4]]
        assert queue.ready_count == len(model.ready())
        assert queue.out == model.out
        assert dict(queue.delayed) == dict(sorted(model.delayed.items()))
        assert queue.attempts == model.attempts
        peak = max(peak, len(model.tasks))
        assert queue._order.count <= 2 * peak + stale_min + 1
        assert len(queue._order.in_order()) == len(set(queue._order.in_order()))


def test_what_was_delayed_when_it_was_listed_is_delivered_once() -> None:
    # A snapshot lists its tasks first and says then which of them wait; so does a log.
    queue = made(Policy())
    for task_id in (1, 2, 3):
        queue.restore(task_id, 0, b"four")
    queue.delay(2, 10)
    queue.return_(3, not_before_ms=10)
    assert queue.ready_count == 1
    assert queue.release(10) == 2
    assert queue.take_many(9, 9)[0] == [1, 2]  # the size ends it, and nothing stands twice
    assert queue.take_many(9, 9)[0] == [3]
    assert queue.take() is None


def test_a_removal_or_return_of_what_is_not_there_is_a_conflict() -> None:
    queue = made()
    queue.add([1], [b"x"])
    calls: list[Callable[[], None]] = [
        lambda: queue.remove(2),
        lambda: queue.remove_out([2]),
        lambda: queue.return_(2, not_before_ms=None),
        lambda: queue.restore(1, 0, b""),
    ]
    for call in calls:
        with pytest.raises(ReplayConflict):
            call()


def test_putting_back_what_was_taken_is_as_if_nothing_was() -> None:
    queue = made(Policy())
    queue.add([5, 1, 5, 1], [b"a", b"b", b"c", b"d"])
    before = queue.peek(9)
    ids = queue.take_many(3, BIG)[0]
    queue.put_back([ids[2], ids[0], ids[1], 99])
    assert queue.peek(9) == before
    assert not queue.out
    assert not queue.attempts


def test_delayed_tasks_can_be_taken_before_their_time() -> None:
    queue = made()
    queue.add_later([1, 1, 1], [b"a", b"b", b"c"], BIG)
    assert queue.take() is None
    assert queue.take_delayed(2) == [1, 2]
    assert (queue.ready_count, len(queue.delayed), queue.out) == (0, 1, {1, 2})


def test_a_waiting_task_costs_few_bytes_beyond_its_payload() -> None:
    count, size = 40_000, 36
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        queue = made(Policy())
        for start in range(0, count, 50):
            queue.add([n % 10 for n in range(50)], [b"%036d" % n for n in range(start, start + 50)])
        full = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    overhead = full / count - size
    report(
        f"a waiting task of {size} bytes: {overhead:.0f} bytes beyond its payload, its place counted"
    )
    assert overhead < 80
