"""Producers: the last requests of the last of them, forgotten by number and never by a clock."""

from __future__ import annotations

from random import Random

import pytest

from penstock.queues import producers as module
from penstock.queues.producers import Producers, Taken


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def note(producers: Producers, producer: int, sequence: int, **given: int) -> None:
    fields = {"queue": 1, "total": 1, "first": sequence + 1, "count": 1} | given
    producers.note(name(producer), sequence, **fields)


def rows(producers: Producers) -> list[tuple[bytes, int, list[tuple[int, Taken]]]]:
    return [(p, forgotten, list(requests.items())) for p, forgotten, requests in producers]


def restored(producers: Producers) -> Producers:
    """Return what a snapshot of it restores."""
    copy = Producers()
    for producer, forgotten, requests in producers:
        copy.restore(producer, forgotten)
        for sequence, taken in requests.items():
            for first, count in taken.runs:
                copy.note(
                    producer,
                    sequence,
                    queue=taken.queue,
                    total=taken.total,
                    first=first,
                    count=count,
                )
    return copy


def test_a_request_in_parts_is_whole_when_its_parts_make_the_total() -> None:
    producers = Producers()
    note(producers, 1, 5, total=6, first=10, count=2)
    taken = producers.find(name(1), 5)
    assert taken is not None
    assert (taken.count, taken.is_whole) == (2, False)
    note(producers, 1, 5, total=6, first=12, count=1)  # goes on without a gap
    note(producers, 1, 5, total=6, first=40, count=3)
    taken = producers.find(name(1), 5)
    assert taken == Taken(1, 6, ((10, 3), (40, 3)))
    assert taken.is_whole
    assert producers.count == 1
    assert producers.find(name(1), 6) is None
    assert producers.find(name(2), 5) is None


def test_the_oldest_requests_of_a_producer_are_forgotten_and_known_to_be() -> None:
    producers = Producers()
    for sequence in range(module.REQUESTS_MAX + 3):
        note(producers, 1, sequence)
    assert producers.count == module.REQUESTS_MAX
    for sequence in range(3):
        assert producers.find(name(1), sequence) is None
        assert producers.is_forgotten(name(1), sequence)
    assert not producers.is_forgotten(name(1), 3)
    assert producers.find(name(1), 3) is not None
    assert not producers.is_forgotten(name(2), 0)


def test_the_producer_that_was_silent_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    producers = Producers()
    for producer in (1, 2, 3):
        note(producers, producer, 0)
    note(producers, 1, 1)
    note(producers, 4, 0)
    assert [producer for producer, _, _ in producers] == [name(3), name(1), name(4)]
    assert (len(producers), producers.count) == (3, 4)


def test_all_requests_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESULTS_MAX", 10)
    producers = Producers()
    for producer in range(5):
        for sequence in range(4):
            note(producers, producer, sequence)
            assert producers.count <= 10
            assert producers.count == sum(len(requests) for _, _, requests in producers)
            assert producers.find(name(producer), sequence) is not None


@pytest.mark.parametrize("seed", range(6))
def test_replicas_forget_the_same_and_a_snapshot_between_changes_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 4)
    monkeypatch.setattr(module, "REQUESTS_MAX", 5)
    monkeypatch.setattr(module, "RESULTS_MAX", 14)
    random = Random(seed)
    one, two = Producers(), Producers()
    for step in range(400):
        producer, sequence = random.randint(1, 7), random.randint(0, 30)
        fields = {"total": 3, "first": random.choice([step * 3, 7]), "count": random.randint(1, 2)}
        note(one, producer, sequence, **fields)
        note(two, producer, sequence, **fields)
        if random.random() < 0.2:
            two = restored(two)
        assert rows(one) == rows(two)
        assert one.count == two.count
        for number in range(1, 8):
            forgotten = [one.is_forgotten(name(number), s) for s in range(31)]
            assert forgotten == [two.is_forgotten(name(number), s) for s in range(31)]
