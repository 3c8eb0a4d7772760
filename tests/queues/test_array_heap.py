"""The heap of variants 1a and 1b: its array move by move, and the order in which equal keys leave it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import DEFAULT_QUEUE, Dequeue, Enqueue
from penstock.queues.array_heap import ArrayHeap
from penstock.queues.replay import Queues

KEYS = st.lists(st.integers(-3, 3), max_size=60)


def fill(keys: list[int]) -> ArrayHeap:
    return ArrayHeap((key, number) for number, key in enumerate(keys))


def test_the_last_of_equal_keys_follows_the_first() -> None:
    # The last node moves to the root and stays there: it is not greater than any child.
    assert [number for _, number in fill([7] * 6).drain()] == [0, 5, 4, 3, 2, 1]


def test_a_node_moves_up_only_past_a_strictly_larger_parent() -> None:
    assert fill([2, 1, 1, 2, 0]).nodes == [(0, 4), (2, 0), (1, 2), (2, 3), (1, 1)]


def test_the_root_is_replaced_by_the_first_of_the_smallest_children() -> None:
    heap = fill([0, 1, 1, 1, 1, 9])
    assert heap.take() == (0, 0)
    assert heap.nodes == [(1, 1), (9, 5), (1, 2), (1, 3), (1, 4)]


@given(KEYS)
def test_keys_leave_in_order_and_each_node_once(keys: list[int]) -> None:
    drained = list(fill(keys).drain())
    assert [key for key, _ in drained] == sorted(keys)
    assert sorted(drained) == sorted((key, number) for number, key in enumerate(keys))


@given(KEYS, st.lists(st.booleans(), max_size=60))
def test_an_array_put_in_again_in_its_order_is_the_same_array(
    keys: list[int], takes: list[bool]
) -> None:
    """A snapshot lists the array, and a program that restores it has the same heap as before."""
    heap = ArrayHeap()
    for number, key in enumerate(keys):
        heap.put(key, number)
        if number < len(takes) and takes[number]:
            heap.take()
    assert ArrayHeap(heap.nodes).nodes == heap.nodes


def obey(queues: Queues, script: str) -> None:
    """Enqueue each letter under key 1; take a task at each dash."""
    for letter in script:
        if letter == "-":
            queues.obey(Dequeue(queue=DEFAULT_QUEUE))
        else:
            queues.obey(Enqueue(queue=DEFAULT_QUEUE, key=1, payload=letter.encode()))


def payloads(queues: Queues) -> bytes:
    return b"".join(payload for _, _, payload in queues.by_name[DEFAULT_QUEUE].in_order())


def test_dequeues_among_equal_keys_take_the_tasks_that_clients_received() -> None:
    heap, stable = Queues(by_array_heap=True), Queues()
    for queues in (heap, stable):
        obey(queues, "abcd--efg-")
    assert payloads(heap) == b"gfeb"
    assert payloads(stable) == b"defg"


def test_a_snapshot_of_an_array_heap_keeps_the_order_of_delivery() -> None:
    queues = Queues(by_array_heap=True)
    obey(queues, "abcdefg--h")
    queue = queues.by_name[DEFAULT_QUEUE]
    for as_array in (True, False):
        restored = Queues(by_array_heap=as_array)
        for task in queue.for_snapshot(as_array=as_array):
            restored.by_name[DEFAULT_QUEUE].restore(*task)
        assert payloads(restored) == payloads(queues)
