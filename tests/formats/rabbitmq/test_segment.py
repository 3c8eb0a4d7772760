"""Index segments: sequence numbers, records, and the kernel that reads them in bulk."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidValue
from penstock.formats.rabbitmq.journal import (
    SEQUENCE_MAX,
    Kind,
    Piece,
    Publish,
    SequenceNumber,
    Status,
    decode_publish,
)
from penstock.formats.rabbitmq.segment import (
    ENTRY_COUNT_MAX,
    encode_deliver_or_ack,
    encode_publish,
    parse_segment_name,
    relative_of,
    scan,
    scan_segment_columns,
    segment_name,
    segment_of,
    sequence_of,
)
from support.damage import bits, cuts, flipped, overwritten, unnoticed
from support.log_reading import exhausted
from support.rabbitmq_golden import snapshot
from support.rabbitmq_reading import (
    SEGMENT,
    check_columns,
    check_columns_from_every_boundary,
    check_columns_in_a_window,
    check_cover,
    check_growing_windows,
    damaged,
    publishes,
    rows_of,
    scanned,
)

ID = bytes(range(16))
relatives = st.integers(0, ENTRY_COUNT_MAX - 1)


def publish(*, embedded: bytes = b"", is_persistent: bool = True) -> Publish:
    return Publish(
        message_id=ID, is_persistent=is_persistent, expiry_us=0, body_size=7, embedded=embedded
    )


# --- sequence numbers ----------------------------------------------------------------------------


@given(sequence=st.integers(0, SEQUENCE_MAX), entry_count=st.integers(1, ENTRY_COUNT_MAX))
def test_segment_and_relative_number_give_the_sequence_number_back(
    sequence: int, entry_count: int
) -> None:
    number = SequenceNumber(sequence)
    segment = segment_of(number, entry_count=entry_count)
    relative = relative_of(number, entry_count=entry_count)
    assert 0 <= relative < entry_count
    assert sequence_of(segment, relative, entry_count=entry_count) == sequence


def test_a_segment_has_16384_numbers_unless_it_is_told_otherwise() -> None:
    assert [segment_of(SequenceNumber(n)) for n in (0, 16_383, 16_384)] == [0, 0, 1]
    assert relative_of(SequenceNumber(16_385)) == 1
    assert segment_of(SequenceNumber(16_384), entry_count=2048) == 8


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".idx",
        "x.idx",
        "01.idx",
        "-1.idx",
        "1.qi",
        "1",
        "²٣.idx",
        "9" * 5000 + ".idx",
        "1.idx.idx",
    ],
    ids=lambda name: name[:20],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_name(name) is None


def test_a_segment_is_named_by_its_number() -> None:
    for segment in (0, 7, 2**48):
        assert parse_segment_name(segment_name(segment)) == segment
    assert parse_segment_name(f"{SEQUENCE_MAX + 1}.idx") is None


@pytest.mark.parametrize(
    ("segment", "entry_count"), [(0, 0), (0, 16_385), (-1, 2048), (2**62 // 2048, 2048)]
)
def test_a_segment_that_cannot_be_is_refused(segment: int, entry_count: int) -> None:
    with pytest.raises(InvalidValue):
        list(scan(b"", segment=segment, entry_count=entry_count))
    with pytest.raises(InvalidValue):
        list(scan_segment_columns(b"", segment=segment, entry_count=entry_count))


# --- records -------------------------------------------------------------------------------------


def test_heads_are_kind_and_relative_number() -> None:
    """docs/formats/rabbitmq.md, "Segments": two ways to say persistent, one bit each."""
    assert encode_publish(299, publish())[:2] == bytes.fromhex("C12B")
    assert encode_publish(1, publish(is_persistent=False))[:2] == bytes.fromhex("8001")
    assert encode_deliver_or_ack(299) == bytes.fromhex("412B")


@given(
    segment=st.integers(0, 2**40),
    records=st.lists(st.tuples(relatives, publishes | st.none())),
)
def test_what_is_encoded_is_scanned(
    segment: int, records: list[tuple[int, Publish | None]]
) -> None:
    parts = [
        encode_deliver_or_ack(relative) if what is None else encode_publish(relative, what)
        for relative, what in records
    ]
    data = b"".join(parts)
    pieces, end = exhausted(scan(memoryview(data), segment=segment))
    assert end == len(data)
    assert [piece.size for piece in pieces] == [len(part) for part in parts]
    found = [
        (
            piece.sequence - segment * ENTRY_COUNT_MAX,
            None if piece.kind is Kind.DELIVER_OR_ACK else decode_publish(data, piece),
        )
        for piece in pieces
    ]
    assert found == records


RECORDS = (
    encode_publish(1, publish(embedded=b"\x83hessage")),
    encode_deliver_or_ack(1),
    encode_publish(0, publish(is_persistent=False)),
    encode_deliver_or_ack(1),
)
DATA = b"".join(RECORDS)
FIRST = 3 * 2048


def test_a_segment_reads_as_its_records_with_full_sequence_numbers() -> None:
    assert list(scan(DATA, segment=3, entry_count=2048)) == [
        Piece(0, 42, Status.OK, Kind.PUBLISH_PERSISTENT, SequenceNumber(FIRST + 1), 0, 7, 8, ID),
        Piece(42, 2, Status.OK, Kind.DELIVER_OR_ACK, SequenceNumber(FIRST + 1), 0, 0, 0, b""),
        Piece(44, 34, Status.OK, Kind.PUBLISH_TRANSIENT, SequenceNumber(FIRST), 0, 7, 0, ID),
        Piece(78, 2, Status.OK, Kind.DELIVER_OR_ACK, SequenceNumber(FIRST + 1), 0, 0, 0, b""),
    ]


def test_a_segment_cut_anywhere_keeps_the_records_before_and_says_what_is_torn() -> None:
    ends = [sum(map(len, RECORDS[:count])) for count in range(len(RECORDS) + 1)]
    whole, _ = scanned(SEGMENT, DATA)
    for data in cuts(DATA):
        rows, position = scanned(SEGMENT, data)
        count = max(i for i, end in enumerate(ends) if end <= len(data))
        torn = len(data) - ends[count]
        tail = [(ends[count], torn, Status.TORN, Kind.NONE, 0, 0, 0, 0)] if torn else []
        assert rows == [*whole[:count], *tail]
        assert position == len(data)


@pytest.mark.parametrize("size", [1, 2, 3, 4096])
def test_zeros_were_never_written(size: int) -> None:
    for data in (b"", DATA):
        rows, _ = scanned(SEGMENT, data + bytes(size))
        assert rows[-1] == (len(data), size, Status.ZEROS, Kind.NONE, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("head", "why"), [("0001", "no kind begins with 00"), ("4800", "2048 is in the next segment")]
)
def test_a_head_that_cannot_be_takes_the_rest_of_the_file_with_it(head: str, why: str) -> None:
    rows, _ = scanned(SEGMENT, DATA + bytes.fromhex(head) + DATA)
    assert rows[-1][:3] == (len(DATA), 2 + len(DATA), Status.BAD_RECORD), why
    assert rows[:-1] == scanned(SEGMENT, DATA)[0]


def test_a_message_that_does_not_begin_like_one_costs_its_own_record_only() -> None:
    rows, _ = scanned(SEGMENT, overwritten(DATA, 34, b"\x00"))
    assert [row[2] for row in rows] == [Status.BAD_MESSAGE, 0, 0, 0]


def test_a_flipped_bit_shows_only_in_heads_lengths_and_where_a_message_begins() -> None:
    """There is no checksum: the format cannot see a changed id, expiry, body size or message."""
    data = encode_publish(5, publish(embedded=b"\x83hbc")) + encode_deliver_or_ack(5)
    unseen = unnoticed(
        data, lambda d: any(p.status is not Status.OK for p in scan(d, segment=0, entry_count=2048))
    )
    # A turned bit of a head gives another number or kind; numbers beyond 2047 are seen.
    beyond = {3, 4, 5}
    assert unseen >= {0, 1, 2} | bits(1, 30) | bits(36, 38)
    assert not unseen & (beyond | bits(30, 33) | bits(34, 36))
    for bit in range(8 * len(data)):
        check_cover(SEGMENT, flipped(data, bit))


@given(st.binary(max_size=300))
def test_garbage_is_read_to_its_end(data: bytes) -> None:
    check_cover(SEGMENT, data)
    check_columns(SEGMENT, data, 3)


# --- the bulk scanner ----------------------------------------------------------------------------


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([1, 2, 3, 65_536]))
def test_columns_equal_pieces_on_a_damaged_segment(seed: int, batch_rows: int) -> None:
    data = damaged(SEGMENT, Random(seed))
    check_cover(SEGMENT, data)
    check_columns(SEGMENT, data, batch_rows)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), beyond=st.integers(0, 100) | st.just(2**40))
def test_columns_equal_pieces_in_a_window_of_the_file(seed: int, beyond: int) -> None:
    check_columns_in_a_window(SEGMENT, Random(seed), beyond)


@given(seed=st.integers(0, 2**32))
def test_columns_equal_pieces_from_every_boundary_to_any_stop(seed: int) -> None:
    check_columns_from_every_boundary(SEGMENT, Random(seed))


@given(seed=st.integers(0, 2**32), step=st.integers(1, 200))
def test_a_file_read_in_growing_windows_gives_the_pieces_of_the_whole(seed: int, step: int) -> None:
    check_growing_windows(SEGMENT, Random(seed), step)


def test_every_cut_and_every_flipped_bit_reads_the_same_in_columns() -> None:
    for data in [*cuts(DATA), *(flipped(DATA, bit) for bit in range(8 * len(DATA)))]:
        check_columns(SEGMENT, data, 65_536)


def test_columns_know_large_segment_numbers() -> None:
    segment = SEQUENCE_MAX // ENTRY_COUNT_MAX - 1
    (batch,), _ = exhausted(scan_segment_columns(DATA, segment=segment))
    pieces = scan(DATA, segment=segment)
    assert rows_of(batch) == [tuple(map(int, piece[:-1])) for piece in pieces]


# --- real segments -------------------------------------------------------------------------------

REAL_SEGMENTS = [
    ("c1_small_embedded_live", "orders", 300, 0, 300),
    ("c1_small_embedded_kill9_ack_race", "orders", 533, 0, 713),
    ("c3_large_store_limit1m_kill9", "blobs", 126, 0, 126),
    ("c5_transient_clean", "t_lazy", 78, 57, 192),
    ("c8_damage_dup_flush", "d_small", 435, 0, 475),
    ("c8_damage_torn_segment", "d_small", 368, 0, 368),
    ("c8_damage_segment_all_zero", "d_small", 0, 0, 0),
]


@pytest.mark.parametrize(
    ("name", "queue", "persistent", "transient", "others"),
    REAL_SEGMENTS,
    ids=[row[0] for row in REAL_SEGMENTS],
)
def test_a_real_segment_holds_what_its_broker_wrote(
    name: str, queue: str, persistent: int, transient: int, others: int
) -> None:
    data = snapshot(name).queue(queue)["0.idx"]
    pieces = list(scan(data, segment=0, entry_count=2048))
    counts = Counter(piece.kind for piece in pieces)
    assert counts[Kind.PUBLISH_PERSISTENT] == persistent
    assert counts[Kind.PUBLISH_TRANSIENT] == transient
    assert counts[Kind.DELIVER_OR_ACK] == others
    tail = {"torn_segment": [Status.TORN], "segment_all_zero": [Status.ZEROS]}
    expected = tail.get(name.removeprefix("c8_damage_"), [])
    assert [piece.status for piece in pieces if piece.status is not Status.OK] == expected
    check_columns(SEGMENT, data, 65_536)
