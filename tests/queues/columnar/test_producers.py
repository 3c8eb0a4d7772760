"""The last request of every producer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.queues.columnar.producers import Producers, requests_of

NAMES = st.integers(0, 200).map(lambda number: b"%016d" % number)


def record(producers: Producers, producer: bytes, sequence: int) -> None:
    producers.record(
        producer, sequence=sequence, queue_id=1, first_id=sequence + 1, count=1, time_ms=sequence
    )


@given(st.lists(st.tuples(NAMES, st.booleans())))
def test_the_least_recently_used_producer_is_forgotten_when_the_table_is_full(
    uses: list[tuple[bytes, bool]],
) -> None:
    producers, model = Producers(limit=10), dict[bytes, int]()
    views = []
    for sequence, (producer, is_frozen) in enumerate(uses):
        if is_frozen:
            views.append((producers.freeze(), dict(model)))
        record(producers, producer, sequence)
        model.pop(producer, None)
        model[producer] = sequence
        if len(model) > 10:
            del model[next(iter(model))]
    views.append((producers.freeze(), model))
    for view, expected in views:
        found = [(request.producer, request.sequence) for request in requests_of(view)]
        assert found == list(expected.items())
    assert producers.count == len(model)


def test_a_forgotten_producer_is_unknown() -> None:
    producers = Producers(limit=1)
    record(producers, b"a" * 16, 0)
    record(producers, b"b" * 16, 1)
    assert producers.find(b"a" * 16) is None
    found = producers.find(b"b" * 16)
    assert found is not None
    assert (found.sequence, found.queue_id, found.first_id, found.count, found.time_ms) == (
        1,
        1,
        2,
        1,
        1,
    )
