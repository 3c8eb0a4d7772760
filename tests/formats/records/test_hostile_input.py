"""Bytes that somebody else wrote: no reader fails otherwise than by ours, or allocates what they claim.

The readers are those of the fuzzer (``tests/fuzz/records_check.py``); checksums do not protect them, because whoever forges
bytes can make them match.
"""

from __future__ import annotations

import tracemalloc
from random import Random
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.records_check import READERS, SEEDS, check
from penstock.errors import BadData, BadRecord, InvalidValue
from penstock.formats.records import add, ids
from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import build_add
from penstock.formats.records.changes import encode_change
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.columns import encode_array, encode_blobs
from penstock.formats.records.header import HEADER_SIZE, Kind, encode_record
from penstock.formats.records.ids import decode_ids, encode_ids
from penstock.formats.records.read import Chain, Stop, collect, walk, walk_segment
from penstock.formats.records.segment import FILE_HEADER_SIZE, FileHeader, encode_file_header
from penstock.formats.records.settings import (
    SETTINGS_SIZE_MAX,
    QueueSettings,
    decode_queue,
    encode_settings,
)
from penstock.formats.records.writer import write_log
from penstock.model import QueueName
from support.damage import cuts, flipped
from support.record_examples import CHANGES, CLUSTER_ID, REQUEST_BODY, record_of, small_log
from support.refusal import attempted

MEBIBYTE = 2**20
SMALL = 64 * 1024  # bytes of Python's own, for an input of at most a few kilobytes
HOSTILE = (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00FFFFFF, 0xFFFFFFF8)


def peak_of(data: bytes) -> int:
    """Return the most memory that a reader used for an input."""
    tracemalloc.start()
    try:
        check(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(st.integers(0, len(READERS) - 1), st.binary(max_size=600))
def test_garbage_is_refused_by_every_reader(reader: int, data: bytes) -> None:
    check(bytes((reader,)) + data)


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=4),
)
def test_whatever_is_read_means_all_of_its_bytes(
    seed: bytes, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(seed)
    for place, value in changes:
        data[1 + place % (len(data) - 1)] = value
    check(bytes(data))


@pytest.mark.parametrize("number", range(len(SEEDS)))
def test_every_flipped_bit_of_every_example_is_refused_or_means_something_else(number: int) -> None:
    """``check`` compares the bytes with those that the decoded value encodes to: nothing is hidden in them."""
    seed = SEEDS[number]
    for bit in range(8, 8 * len(seed), 1 if len(seed) < 600 else 7):
        check(flipped(seed, bit))


@pytest.mark.parametrize("number", range(len(SEEDS)))
def test_every_truncation_of_every_example_is_read_or_refused(number: int) -> None:
    for cut in cuts(SEEDS[number]):
        check(cut)


@pytest.mark.parametrize("number", range(len(SEEDS)))
def test_lengths_that_a_file_claims_cost_no_memory(number: int) -> None:
    """A count of four billion in an input of some hundred bytes must not cost more than the input is worth."""
    check(SEEDS[number])  # loads what is loaded once
    seed = SEEDS[number]
    for place in range(1, len(seed) - 4, 4 if len(seed) < 1000 else 28):
        for value in HOSTILE:
            data = bytearray(seed)
            pack_into("<I", data, place, value)
            assert peak_of(bytes(data)) < SMALL + 32 * len(seed), f"offset {place}, {value:08X}"


def test_a_header_that_claims_a_large_record_costs_no_memory() -> None:
    """Its checksum matches: the size is within the limit, and only the bytes are missing."""
    record = bytearray(record_of(CHANGES["empty"]))
    pack_into("<I", record, 8, 32 * MEBIBYTE)
    pack_into("<I", record, 4, crc32c(record[8:HEADER_SIZE]))
    tracemalloc.start()
    _, end = collect(walk(bytes(record), offset=0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (end.stop, end.position) == (Stop.DAMAGE, 0)
    assert peak < SMALL


def test_the_zeros_of_a_prepared_segment_are_not_copied() -> None:
    header = encode_file_header(FileHeader(first_index=1, cluster_id=CLUSTER_ID))
    data = header + bytes(16 * MEBIBYTE)
    tracemalloc.start()
    _, end = collect(walk_segment(data, chain=Chain(0, 0)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert end.stop is Stop.ZEROS
    assert peak < MEBIBYTE


# --- bodies as large as they may be --------------------------------------------------------------


def test_a_record_with_too_many_ids_of_its_own_is_refused() -> None:
    count = ids.COUNT_MAX + 1
    body = pack("<IIBBHIQ", count, ids.IDS, 1, 0, 0, 0, 0) + bytes(8 * count)
    with pytest.raises(BadRecord):
        decode_ids(Kind.REMOVE, body, 0, len(body), 0)
    column = {ids.KEY_EACH: b""}
    with pytest.raises(InvalidValue):
        encode_ids(range(1, count + 1), 1, columns=column)
    assert encode_ids(range(1, count + 1), 1)[:4] == pack("<I", count)


def test_many_ids_take_a_memory_that_follows_their_bytes() -> None:
    count = 2**16
    scattered = encode_array("Q", range(1, 2 * count, 2))
    body = pack("<IIBBHIQ", count, ids.IDS, 1, 0, 0, 0, 0) + scattered
    tracemalloc.start()
    found = decode_ids(Kind.REMOVE, body, 0, len(body), 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.ids) == count
    assert peak < 20 * len(body)


def test_the_most_empty_tasks_take_a_bounded_memory() -> None:
    """A body of 32 bytes may hold 16,384 empty tasks of one key: no list of them is made."""
    body = build_add(b"", add.COUNT_MAX, 1, 0, [], {})
    tracemalloc.start()
    found = decode_add(body, 0, len(body), Rules.REQUEST)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.count, len(body)) == (add.COUNT_MAX, 32)
    assert peak < 4096


def test_json_is_bounded() -> None:
    large = QueueSettings(name=QueueName("a"), policy={"x": "y" * SETTINGS_SIZE_MAX})
    with pytest.raises(InvalidValue):
        encode_settings(large)
    body = b"[" * (SETTINGS_SIZE_MAX + 8)
    with pytest.raises(BadRecord) as caught:
        decode_queue(body, 0, len(body))
    assert caught.value.found == str(len(body))


def test_json_that_is_all_structure_takes_a_memory_that_follows_its_bytes() -> None:
    text = b"[" + b"[]," * 2**16 + b"[]]"
    body = text + bytes(-len(text) % 8)
    tracemalloc.start()
    with pytest.raises(BadRecord):
        decode_queue(body, 0, len(body))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * len(body)


# --- what only the node may write ----------------------------------------------------------------


@pytest.mark.parametrize("bit", [6, 8, 9, 17])
def test_offsets_of_strings_begin_at_0_but_in_a_delivery(bit: int) -> None:
    """The strings of another task would otherwise be delivered with this one."""
    column = encode_array("i", (8, 8, 12)) + pack("<B1sH4x", 1, b"a", 0)
    body = build_add(b"q", 2, 7, 0, [], {1 << bit: column})
    decode_add(body, 0, len(body), Rules.DELIVERY)
    for rules in (Rules.REQUEST, Rules.RECORD):
        with pytest.raises(BadRecord):
            decode_add(body, 0, len(body), rules)


def test_offsets_never_begin_below_0() -> None:
    body = build_add(b"q", 2, 7, [1, 2], [b"abc"], {})
    negative = body.replace(pack("<iii", 0, 1, 3), pack("<iii", -3, -2, 0))
    for rules in Rules:
        with pytest.raises(BadRecord):
            decode_add(negative, 0, len(negative), rules)


def test_a_request_has_the_body_of_an_add_and_nothing_else() -> None:
    """Bodies of other kinds, and records with their headers, are no requests."""
    for name, change in CHANGES.items():
        body = encode_change(change).body
        outcome = attempted(decode_add, body, 0, len(body), Rules.REQUEST)
        assert isinstance(outcome, BadData) == (name != "add"), name
        record = record_of(change)
        assert isinstance(attempted(decode_add, record, 0, len(record), Rules.REQUEST), BadData)
    assert encode_change(CHANGES["add"]).body == REQUEST_BODY


def test_a_whole_record_in_a_payload_is_no_entry() -> None:
    """Only the chain tells a log's records from those that a payload holds."""
    inner = next(iter(write_log(small_log(), cluster_id=CLUSTER_ID))).data[FILE_HEADER_SIZE:]
    body = build_add(b"q", 1, 7, len(inner), [inner], {})
    header = encode_file_header(FileHeader(first_index=1, cluster_id=CLUSTER_ID))
    record = encode_record(
        Kind.ADD, body, index=1, term=1, time_ms=0, previous=0, queue_id=1, first_id=1
    )
    records, end = collect(walk_segment(header + record, chain=Chain(0, 0)))
    assert [found.offset for found in records] == [FILE_HEADER_SIZE]
    assert end.stop is Stop.END


def test_random_damage_is_found_or_leaves_a_prefix() -> None:
    """Of a damaged log a reader believes true records only: those before the damage."""
    data = next(iter(write_log(small_log(), cluster_id=CLUSTER_ID))).data
    whole, _ = collect(walk_segment(data, chain=Chain(0, 0)))
    random = Random(20261118)
    for _ in range(2000):
        damaged = bytearray(data)
        start = random.randrange(FILE_HEADER_SIZE, len(data))
        size = min(random.choice((1, 8, 64, 512)), len(data) - start)
        damaged[start : start + size] = random.choice((bytes(size), random.randbytes(size)))
        records, end = collect(walk_segment(bytes(damaged), chain=Chain(0, 0)))
        assert records == whole[: len(records)]
        if bytes(damaged) != data:
            first = next(
                place for place in range(start, len(data)) if damaged[place] != data[place]
            )
            assert end.stop is not Stop.END
            assert end.position <= first


def test_strings_of_many_tasks_must_fit_the_body() -> None:
    """Each length is legal alone; together they are beyond the bytes."""
    column = encode_blobs([b"x" * 10, b"y" * 10])
    for cut in range(8, len(column), 8):
        body = build_add(b"q", 2, 7, 0, [], {add.ORIGIN: column[:-cut]})
        with pytest.raises(BadRecord):
            decode_add(body, 0, len(body), Rules.RECORD)
