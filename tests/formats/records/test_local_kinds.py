"""Kinds that are local to a file: producers, footer, page checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, InvalidValue
from penstock.formats.records import producers
from penstock.formats.records.footer import (
    Footer,
    Mark,
    QueueSummary,
    decode_footer,
    encode_footer,
)
from penstock.formats.records.page_checkpoint import (
    decode_page_checkpoint,
    encode_page_checkpoint,
)
from penstock.formats.records.producers import (
    ProducerState,
    decode_producers,
    encode_producers,
)
from penstock.model import INT64_MAX
from support.damage import cuts, flipped
from support.record_examples import FOOTER, LOCAL, PAGE_CHECKPOINT, PRODUCERS
from support.record_strategies import keys, names, u32s, u64s

times = st.integers(0, 2**53)
states = st.builds(
    ProducerState,
    producer=st.binary(min_size=16, max_size=16),
    sequence=u64s,
    queue_id=u32s,
    first_id=u64s,
    count=u32s,
    time_ms=times,
)
summaries = st.builds(
    QueueSummary, u32s, st.none() | names.map(str.encode), u64s, u64s, u64s, keys, keys, keys, keys
)
footers = st.builds(
    Footer,
    entries=u64s,
    marks=st.lists(st.builds(Mark, u64s, u64s, u32s), max_size=1).map(tuple),
    queues=st.lists(summaries, max_size=4, unique_by=lambda queue: queue.queue_id).map(
        lambda queues: tuple(sorted(queues, key=lambda queue: queue.queue_id))
    ),
    digest=st.binary(min_size=16, max_size=16),
)
DECODERS: dict[str, Callable[[bytes, int, int], object]] = {
    "producers": decode_producers,
    "footer": decode_footer,
    "page checkpoint": decode_page_checkpoint,
}


@given(st.lists(states, min_size=1, max_size=5))
def test_producers_round_trip_in_their_order(rows: list[ProducerState]) -> None:
    body = bytes(8) + encode_producers(rows)
    assert list(decode_producers(memoryview(body), 8, len(body)).rows()) == rows


@given(footers)
def test_footers_round_trip(footer: Footer) -> None:
    body = bytes(8) + encode_footer(footer)
    assert decode_footer(memoryview(body), 8, len(body)) == footer


@given(st.binary(max_size=30))
def test_page_checkpoints_round_trip(content: bytes) -> None:
    body = encode_page_checkpoint(content)
    assert decode_page_checkpoint(body, 0, len(body)) == content


def test_the_examples_mean_what_they_did() -> None:
    bodies = {name: LOCAL[name].body for name in DECODERS}
    found = {name: decode(bodies[name], 0, len(bodies[name])) for name, decode in DECODERS.items()}
    assert found["footer"] == FOOTER
    assert found["page checkpoint"] == PAGE_CHECKPOINT
    assert (
        tuple(decode_producers(bodies["producers"], 0, len(bodies["producers"])).rows())
        == PRODUCERS
    )


@pytest.mark.parametrize("name", DECODERS)
def test_a_body_that_is_cut_or_longer_is_refused(name: str) -> None:
    body = LOCAL[name].body
    for cut in (*cuts(body), body + bytes(8)):
        with pytest.raises(BadRecord):
            DECODERS[name](cut, 0, len(cut))


@pytest.mark.parametrize("name", DECODERS)
def test_a_flipped_bit_is_refused_or_changes_a_value(name: str) -> None:
    """The record's checksum finds every one; nothing hides in padding."""
    body = LOCAL[name].body
    values = DECODERS[name](body, 0, len(body))
    for bit in range(8 * len(body)):
        other = flipped(body, bit)
        try:
            assert DECODERS[name](other, 0, len(other)) != values
        except BadRecord:
            continue


@pytest.mark.parametrize("count", [0, producers.COUNT_MAX + 1, 2**32 - 1])
def test_the_number_of_producers_is_bounded(count: int) -> None:
    body = bytearray(LOCAL["producers"].body)
    pack_into("<I", body, 0, count)
    with pytest.raises(BadRecord):
        decode_producers(bytes(body), 0, len(body))
    if count < 2**20:
        with pytest.raises(InvalidValue):
            encode_producers([PRODUCERS[0]] * count)


def test_a_producer_with_an_impossible_time_is_refused() -> None:
    for time in (-1, 2**53 + 1):
        body = encode_producers([PRODUCERS[0]._replace(time_ms=time)])
        with pytest.raises(BadRecord):
            decode_producers(body, 0, len(body))


@pytest.mark.parametrize(
    "footer",
    [
        Footer(entries=1, marks=(Mark(64, 2, 0), Mark(64, 3, 0)), queues=(), digest=bytes(16)),
        Footer(entries=1, marks=(Mark(64, 2, 0), Mark(72, 2, 0)), queues=(), digest=bytes(16)),
        Footer(entries=1, marks=(), queues=(QueueSummary(1, b"a", 1),) * 2, digest=bytes(16)),
        Footer(entries=1, marks=(), queues=(QueueSummary(1, b"a b", 1),), digest=bytes(16)),
    ],
)
def test_a_footer_that_breaks_a_rule_is_refused(footer: Footer) -> None:
    body = encode_footer(footer)
    with pytest.raises(BadRecord):
        decode_footer(body, 0, len(body))


def test_hostile_counts_of_a_footer_are_refused_before_memory_is_used() -> None:
    for counts in ((2**32 - 1, 0), (0, 2**32 - 1), (2**29, 2**29)):
        body = pack("<IIQ16s", *counts, 1, bytes(16))
        with pytest.raises(BadRecord):
            decode_footer(body, 0, len(body))


def test_an_empty_range_has_its_first_value_above_its_last() -> None:
    queue = QueueSummary(1, None, 1)
    assert queue.first_id > queue.last_id
    assert queue.least_key > queue.greatest_key
    assert (queue.least_time, queue.greatest_time) == (INT64_MAX, 0)
