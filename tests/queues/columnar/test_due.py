"""When the next delay ends and the next task expires."""

from __future__ import annotations

from penstock.formats.records.changes import RemoveTasks, SetTasks
from penstock.formats.records.columns import NONE
from penstock.formats.records.ids import RemoveReason
from support.state_examples import TIME_MS, Example


def test_the_next_delay_is_the_earliest_one_that_has_not_passed() -> None:
    example = Example()
    queue = example.state.queues[1]
    assert queue.next_delay_ms(TIME_MS) is None
    example.add(3, not_before=[30, 10, NONE])
    example.add(100, not_before=20)
    assert queue.next_delay_ms(TIME_MS) == TIME_MS + 10
    assert queue.next_delay_ms(TIME_MS + 10) == TIME_MS + 20
    example.apply(RemoveTasks(1, range(4, 104), RemoveReason.ACKED))
    assert queue.next_delay_ms(TIME_MS + 20) == TIME_MS + 30
    example.apply(SetTasks(1, range(3, 4), not_before=25))
    assert queue.next_delay_ms(TIME_MS + 20) == TIME_MS + 25
    assert queue.next_delay_ms(TIME_MS + 30) is None


def test_an_expiry_of_tasks_that_are_gone_is_forgotten() -> None:
    example = Example()
    queue = example.state.queues[1]
    example.add(2, expires=[10, 50])
    example.add(1)
    example.apply(RemoveTasks(1, range(1, 2), RemoveReason.ACKED))
    assert queue.next_expiry_ms(TIME_MS + 20) == TIME_MS + 50
    assert queue.expired(TIME_MS + 20, 10) == []
    ((chunk, places),) = queue.expired(TIME_MS + 50, 10)
    assert list(chunk.ids_at(places)) == [2]
    example.time_ms += 50
    example.apply(RemoveTasks(1, range(1, 9), RemoveReason.EXPIRED, is_span=True))
    assert queue.next_expiry_ms(example.time_ms) is None


def test_expired_tasks_are_handed_out_chunk_by_chunk() -> None:
    example = Example()
    for _ in range(5):
        example.add(2, expires=1)
    assert len(example.state.queues[1].expired(TIME_MS + 1, 3)) == 3
