"""Tasks on pages: the same face as those in memory, the same answers, and next to no memory."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from penstock.errors import ReplayConflict
from penstock.model import (
    NO_LIMITS,
    NO_OPTIONS,
    Implementation,
    Policy,
    QueueHead,
    QueueName,
    TaskId,
)
from penstock.queues.paged import CHUNK, PagedTasks
from penstock.queues.state import State
from penstock.queues.tasks import Tasks
from support.memory_pages import MemoryPages, MemoryShelf
from support.report import report

PAGED = Policy(implementation=Implementation.PAGED)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 1, CHUNK - 1, 2**61])
@pytest.mark.parametrize("seed", range(4))
def test_tasks_on_pages_are_what_tasks_in_memory_are(seed: int, start: int) -> None:
    random, pages = Random(seed), MemoryPages()
    paged, plain = PagedTasks(pages, start), Tasks(start)
    for _ in range(150):
        choice = random.random()
        held = [task_id for task_id, _, _ in plain]
        if choice < 0.5:
            count = random.choice([0, 1, 1, 3, 200, CHUNK + 1])
            keys = [random.choice([0, -(2**63), 2**63 - 1, 5]) for _ in range(count)]
            payloads = [random.randbytes(random.choice([0, 1, 40])) for _ in range(count)]
            assert paged.add(keys, payloads) == plain.add(keys, payloads)
        elif held and choice < 0.8:
            chosen = random.sample(held, random.randint(1, len(held)))
            paged.remove_many(chosen)
            plain.remove_many(chosen)
        elif held:
            for task_id in random.choices([*held, start, plain.last_id + 1], k=5):
                assert paged.discard(task_id) == plain.discard(task_id)
        if choice > 0.95:
            paged = PagedTasks(pages, paged.last_id)  # as a start does
        asked = [*[task_id for task_id, _, _ in plain][-5:], plain.last_id + 9, start]
        assert paged.payloads(asked) == plain.payloads(asked)
        assert [paged.key(i) for i in asked] == [plain.key(i) for i in asked]
        assert [paged.get(i) for i in asked] == [plain.get(i) for i in asked]
        assert (paged.count, paged.size, paged.last_id) == (
            plain.count,
            plain.size,
            plain.last_id,
        )
    assert list(paged) == list(plain)
    listed: dict[int, list[int]] = {}
    for key, ids in paged.by_key():
        listed.setdefault(key, []).extend(ids)
    expected: dict[int, list[int]] = {}
    for i, key, _ in plain:
        expected.setdefault(key, []).append(i)
    assert listed == expected


def test_a_removal_of_what_is_not_there_is_refused() -> None:
    tasks = PagedTasks(MemoryPages())
    tasks.add([1], [b"x"])
    tasks.remove_many([1])
    for missing in (1, 2, 10**9):
        with pytest.raises(ReplayConflict, match=f"task {missing} is removed but is not there"):
            tasks.remove_many([missing])
        assert not tasks.discard(missing)


def test_pages_that_know_more_tasks_than_were_added_are_refused() -> None:
    pages = MemoryPages()
    PagedTasks(pages).add([0, 0], [b"x", b"y"])
    with pytest.raises(ReplayConflict, match="task 2 is on the pages, and only 1 were added"):
        PagedTasks(pages, 1)


def test_a_task_of_a_paged_queue_in_a_snapshot_is_refused() -> None:
    with pytest.raises(ReplayConflict, match="stands in the snapshot"):
        PagedTasks(MemoryPages()).restore(1, 0, b"x")


class ForgetfulPages(MemoryPages):
    """Pages that keep nothing, so that only the queue's own memory is counted."""

    def add(self, first: int, keys: object, payloads: object) -> None:
        pass


def test_a_task_on_pages_takes_little_memory() -> None:
    tasks = PagedTasks(ForgetfulPages())
    payloads, keys = [b"x" * 1000] * 1000, [0] * 1000
    tracemalloc.start()
    for _ in range(100):
        tasks.add(keys, payloads)
    size = tracemalloc.get_traced_memory()[0] / 100_000
    tracemalloc.stop()
    report(f"a task on pages: {size:.0f} bytes in its queue")
    assert size < 16


def test_a_state_gives_pages_to_its_paged_queues_and_takes_them_back() -> None:
    shelf = MemoryShelf()
    state = State(shelf)
    queue = state.create(QueueName("large"), PAGED, NO_OPTIONS)
    state.create(QueueName("small"), NO_LIMITS, NO_OPTIONS)
    assert list(shelf.pages) == [queue.number]
    state.add(queue, [5, 1, 5], [b"a", b"b", b"c"])
    assert [queue.take() for _ in range(4)] == [(2, 1, b"b"), (1, 5, b"a"), (3, 5, b"c"), None]
    queue.remove_out([1, 2])
    queue.put_back([3])
    again = State(shelf)
    for name, policy in (("", NO_LIMITS), ("large", PAGED), ("small", NO_LIMITS)):
        head = QueueHead(name=QueueName(name), policy=policy, last_id=TaskId(3), count=0)
        again.restore(head)
    again.open_pages()
    assert again.find(QueueName("large")).peek(9) == [(3, 5, b"c")]
    assert state.add(queue, [0], [b"d"]) == 4
    state.delete(QueueName("large"))
    assert shelf.pages == {}


def test_a_state_without_pages_refuses_a_paged_queue() -> None:
    state = State()
    assert state.paging_refusal() == "it needs files of generation 3"
    with pytest.raises(ReplayConflict, match="needs files of generation 3"):
        state.create(QueueName("large"), PAGED, NO_OPTIONS)
