"""Many records at once must be the bytes that the formats encode one by one."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.rabbitmq import journal, message_store, segment
from penstock.formats.rabbitmq.journal import Kind, Publish, SequenceNumber
from penstock.formats.rabbitmq.writing import (
    encode_actions,
    encode_publishes,
    encode_segment_actions,
    encode_segment_publishes,
    encode_stored,
    fill_segment_records,
    segment_record_sizes,
)

publishes = st.lists(
    st.builds(
        Publish,
        message_id=st.binary(min_size=16, max_size=16).filter(any),
        is_persistent=st.just(True),
        expiry_us=st.integers(0, 2**64 - 1),
        body_size=st.integers(0, 2**32 - 1),
        embedded=st.just(b"") | st.binary(max_size=40).map(lambda tail: b"\x83h" + tail),
    ),
    min_size=1,
    max_size=8,
)
sequences = st.lists(st.integers(0, 2**62 - 2**32 - 1), max_size=8)


def encoded(first: int, many: list[Publish]) -> bytes:
    pieces = encode_publishes(
        first,
        [one.message_id for one in many],
        [one.embedded for one in many],
        lengths=np.array([len(one.embedded) for one in many], dtype=np.int64),
        sizes=np.array([one.body_size for one in many], dtype=np.int64),
        expiries=np.array([one.expiry_us for one in many], dtype=np.uint64),
    )
    return b"".join(pieces)


@given(st.integers(0, 2**62 - 2**32 - 9), publishes)
def test_publishes_are_those_of_the_journal(first: int, many: list[Publish]) -> None:
    expected = b"".join(
        journal.encode_publish(SequenceNumber(first + n), one) for n, one in enumerate(many)
    )
    assert encoded(first, many) == expected


@given(st.integers(0, 2**14 - 9), publishes)
def test_publishes_are_those_of_a_segment(first: int, many: list[Publish]) -> None:
    pieces = encode_segment_publishes(
        first,
        [one.message_id for one in many],
        [one.embedded for one in many],
        lengths=np.array([len(one.embedded) for one in many], dtype=np.int64),
        sizes=np.array([one.body_size for one in many], dtype=np.int64),
        expiries=np.array([one.expiry_us for one in many], dtype=np.uint64),
    )
    expected = b"".join(segment.encode_publish(first + n, one) for n, one in enumerate(many))
    assert b"".join(pieces) == expected


@given(sequences)
def test_delivers_and_acks_are_those_of_the_journal(numbers: list[int]) -> None:
    array = np.array(numbers, dtype=np.int64)
    delivers = b"".join(journal.encode_deliver(SequenceNumber(n)) for n in numbers)
    acks = b"".join(journal.encode_ack(SequenceNumber(n)) for n in numbers)
    assert encode_actions(Kind.DELIVER, array) == delivers
    assert encode_actions(Kind.ACK, array) == acks


@given(st.lists(st.integers(0, 2**14 - 1), max_size=8))
def test_actions_are_those_of_a_segment(relatives: list[int]) -> None:
    expected = b"".join(map(segment.encode_deliver_or_ack, relatives))
    assert encode_segment_actions(np.array(relatives, dtype=np.int64)) == expected


@given(publishes, st.integers(0, 2**14 - 9), st.randoms(use_true_random=False))
def test_a_journals_records_become_those_of_a_segment(
    many: list[Publish], relative: int, random: Random
) -> None:
    lengths = np.array([len(one.embedded) for one in many], dtype=np.int64)
    starts = np.cumsum(lengths + journal.PUBLISH_SIZE) - lengths - journal.PUBLISH_SIZE
    order = np.array(random.sample(range(len(many)), len(many)))
    sizes = segment_record_sizes(lengths[order])
    target = np.zeros(int(sizes.sum()), dtype=np.uint8)
    fill_segment_records(
        np.frombuffer(encoded(relative, many), dtype=np.uint8),
        starts[order],
        lengths[order],
        relative + order,
        target,
        np.cumsum(sizes) - sizes,
    )
    expected = b"".join(segment.encode_publish(relative + n, many[n]) for n in order.tolist())
    assert target.tobytes() == expected


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=16, max_size=16),
            st.binary(max_size=40).map(lambda tail: b"\x83h" + tail),
        ),
        max_size=8,
    )
)
def test_stored_messages_are_the_records_of_a_store(many: list[tuple[bytes, bytes]]) -> None:
    found = b"".join(encode_stored([id_ for id_, _ in many], [one for _, one in many]))
    assert found == b"".join(message_store.encode_record(id_, one) for id_, one in many)
