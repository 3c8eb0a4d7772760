"""The journal of a classic queue: its records, its end, and the kernel that reads it in bulk."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidValue
from penstock.formats.rabbitmq.journal import (
    PUBLISH_FIELDS,
    SEQUENCE_MAX,
    Kind,
    Piece,
    Publish,
    SequenceNumber,
    Status,
    decode_publish,
    encode_ack,
    encode_deliver,
    encode_publish,
    scan,
    scan_journal_columns,
)
from support.damage import bits, cuts, flipped, unnoticed
from support.log_reading import exhausted
from support.rabbitmq_golden import snapshot
from support.rabbitmq_reading import (
    JOURNAL,
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

ID = bytes.fromhex("513576AAFC0FF7A2149C26328CA00CBB")

sequences = st.integers(0, SEQUENCE_MAX).map(SequenceNumber)


def publish(
    *, embedded: bytes = b"", message_id: bytes = ID, is_persistent: bool = True
) -> Publish:
    return Publish(
        message_id=message_id,
        is_persistent=is_persistent,
        expiry_us=0,
        body_size=7,
        embedded=embedded,
    )


def number(value: int) -> SequenceNumber:
    return SequenceNumber(value)


# --- records -------------------------------------------------------------------------------------


def test_the_first_records_of_a_real_journal_read_as_the_page_says() -> None:
    """docs/formats/rabbitmq.md, "Example": a publish with its message, its deliver, the next publish."""
    message = b"\x83\x68\x06" + bytes(range(167))
    data = bytes.fromhex(
        "0000000000000000 513576AAFC0FF7A2149C26328CA00CBB 0000000000000000 00000007 000000AA"
    )
    data += message + bytes.fromhex("8000000000000000")
    data += bytes.fromhex("0000000000000001 4139D942A9AA08D23196225BBD362EE0")
    first, second, third = scan(data)
    assert first == Piece(
        0, 210, Status.OK, Kind.PUBLISH_PERSISTENT, number(0), 0, 7, 170, ID
    )  # fmt: skip
    assert decode_publish(data, first) == publish(embedded=message)
    assert second[:5] == (210, 8, Status.OK, Kind.DELIVER, 0)
    assert third[:5] == (218, 24, Status.TORN, Kind.NONE, 0)
    assert data[:218] == encode_publish(number(0), publish(embedded=message)) + encode_deliver(
        number(0)
    )


def test_words_are_kind_and_sequence() -> None:
    assert encode_ack(number(5)) == bytes.fromhex("C000000000000005")
    assert encode_deliver(number(0)) == bytes.fromhex("8000000000000000")
    transient = encode_publish(number(7), publish(is_persistent=False))
    assert transient[:8] == bytes.fromhex("4000000000000007")
    assert encode_publish(number(7), publish())[:8] == bytes.fromhex("0000000000000007")


@given(records=st.lists(st.tuples(sequences, publishes | st.sampled_from(["deliver", "ack"]))))
def test_what_is_encoded_is_scanned(
    records: list[tuple[SequenceNumber, Publish | str]],
) -> None:
    parts = []
    for sequence, what in records:
        if isinstance(what, Publish):
            parts.append(encode_publish(sequence, what))
        else:
            parts.append({"deliver": encode_deliver, "ack": encode_ack}[what](sequence))
    data = b"".join(parts)
    pieces, end = exhausted(scan(data))
    assert end == len(data)
    assert [piece.size for piece in pieces] == [len(part) for part in parts]
    found = [
        (
            piece.sequence,
            piece.kind.name.lower()
            if piece.kind in (Kind.DELIVER, Kind.ACK)
            else decode_publish(memoryview(data), piece),
        )
        for piece in pieces
    ]
    assert found == records


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_id": b"short"},
        {"expiry_us": -1},
        {"expiry_us": 2**64},
        {"body_size": -1},
        {"body_size": 2**32},
        {"embedded": b"no term"},
    ],
    ids=str,
)
def test_a_publish_that_no_file_can_hold_is_refused(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "message_id": ID,
        "is_persistent": True,
        "expiry_us": 0,
        "body_size": 0,
        "embedded": b"",
    }
    with pytest.raises(InvalidValue):
        Publish(**(fields | wrong))  # type: ignore[arg-type]


# --- the end -------------------------------------------------------------------------------------

RECORDS = (
    encode_publish(number(0), publish(embedded=b"\x83hessage")),
    encode_deliver(number(0)),
    encode_publish(number(1), publish(is_persistent=False)),
    encode_ack(number(0)),
)
DATA = b"".join(RECORDS)


def test_a_journal_cut_anywhere_keeps_the_records_before_and_says_what_is_torn() -> None:
    ends = [sum(map(len, RECORDS[:count])) for count in range(len(RECORDS) + 1)]
    whole, _ = scanned(JOURNAL, DATA)
    for data in cuts(DATA):
        rows, position = scanned(JOURNAL, data)
        count = max(i for i, end in enumerate(ends) if end <= len(data))
        rest = data[ends[count] :]
        # The first publish of a queue begins with zeros: up to there a cut looks like a zero tail.
        status = Status.TORN if any(rest) else Status.ZEROS
        tail = [(ends[count], len(rest), status, Kind.NONE, 0, 0, 0, 0)] if rest else []
        assert rows == [*whole[:count], *tail]
        assert position == len(data)


@pytest.mark.parametrize("size", [1, 7, 8, 39, 40, 41, 4096])
def test_zeros_behind_the_records_were_never_written(size: int) -> None:
    rows, _ = scanned(JOURNAL, DATA + bytes(size))
    assert rows[-1] == (len(DATA), size, Status.ZEROS, Kind.NONE, 0, 0, 0, 0)
    assert rows[:-1] == scanned(JOURNAL, DATA)[0]


def test_forty_zeros_with_something_behind_them_are_no_zero_tail() -> None:
    rows, _ = scanned(JOURNAL, DATA + bytes(40) + DATA)
    assert rows[-1][:3] == (len(DATA), 40 + len(DATA), Status.BAD_RECORD)


def test_the_first_publish_of_a_queue_is_no_end_though_it_begins_with_zeros() -> None:
    data = encode_publish(number(0), publish(message_id=bytes(15) + b"\x01"))
    assert [row[2] for row in scanned(JOURNAL, data)[0]] == [Status.OK]


def test_a_message_that_does_not_begin_like_one_costs_its_own_record_only() -> None:
    data = DATA.replace(b"\x83hessage", b"\x82hessage")
    assert [row[2] for row in scanned(JOURNAL, data)[0]] == [Status.BAD_MESSAGE, 0, 0, 0]


def test_a_flipped_bit_shows_only_in_lengths_and_where_a_message_begins() -> None:
    """There is no checksum: the format cannot see a changed id, expiry, body size, number or message."""
    data = encode_publish(number(5), publish(embedded=b"\x83hbc")) + encode_ack(number(5))
    unseen = unnoticed(data, lambda d: any(piece.status is not Status.OK for piece in scan(d)))
    kinds, length, marker = bits(0, 1) - set(range(6)), bits(36, 40), bits(40, 42)
    assert unseen >= bits(0, 44) - kinds - length - marker
    assert not unseen & (marker | bits(36, 39))
    # What a flip leaves is still read to the end, one way or another.
    for bit in range(8 * len(data)):
        check_cover(JOURNAL, flipped(data, bit))


@given(st.binary(max_size=300))
def test_garbage_is_read_to_its_end(data: bytes) -> None:
    check_cover(JOURNAL, data)
    check_columns(JOURNAL, data, 3)


# --- the bulk scanner ----------------------------------------------------------------------------


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([1, 2, 3, 65_536]))
def test_columns_equal_pieces_on_a_damaged_journal(seed: int, batch_rows: int) -> None:
    data = damaged(JOURNAL, Random(seed))
    check_cover(JOURNAL, data)
    check_columns(JOURNAL, data, batch_rows)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), beyond=st.integers(0, 100) | st.just(2**40))
def test_columns_equal_pieces_in_a_window_of_the_file(seed: int, beyond: int) -> None:
    check_columns_in_a_window(JOURNAL, Random(seed), beyond)


@given(seed=st.integers(0, 2**32))
def test_columns_equal_pieces_from_every_boundary_to_any_stop(seed: int) -> None:
    check_columns_from_every_boundary(JOURNAL, Random(seed))


@given(seed=st.integers(0, 2**32), step=st.integers(1, 200))
def test_a_file_read_in_growing_windows_gives_the_pieces_of_the_whole(seed: int, step: int) -> None:
    check_growing_windows(JOURNAL, Random(seed), step)


def test_every_cut_and_every_flipped_bit_reads_the_same_in_columns() -> None:
    for data in [*cuts(DATA), *(flipped(DATA, bit) for bit in range(8 * len(DATA)))]:
        check_columns(JOURNAL, data, 65_536)


def test_batches_hold_no_more_rows_than_asked_for() -> None:
    data = encode_ack(number(1)) * 100
    for batch_rows in (1, 3, 100, 1000):
        batches, end = exhausted(scan_journal_columns(data, batch_rows=batch_rows))
        assert [len(batch) for batch in batches[:-1]] == [batch_rows] * (len(batches) - 1)
        assert sum(map(len, batches)) == 100
        assert end == len(data)


def test_an_array_is_scanned_like_bytes_and_ids_are_where_the_columns_say() -> None:
    array = np.frombuffer(DATA, dtype=np.uint8)
    (batch,), _ = exhausted(scan_journal_columns(array))
    assert rows_of(batch) == scanned(JOURNAL, DATA)[0]
    assert batch.expiry_us.dtype == np.uint64
    for row in np.flatnonzero(batch.kind < Kind.DELIVER):
        end = int(batch.offset[row] + batch.size[row])
        place = end - int(batch.length[row]) - PUBLISH_FIELDS.size
        assert DATA[place : place + 16] == ID


# --- real journals -------------------------------------------------------------------------------

PUBLISHED, DELIVERED, ACKED = Kind.PUBLISH_PERSISTENT, Kind.DELIVER, Kind.ACK

REAL_JOURNALS: list[tuple[str, str, dict[Kind, int], Status | None]] = [
    ("c1_small_embedded_live", "orders", {PUBLISHED: 260, DELIVERED: 260, ACKED: 239}, None),
    (
        "c1_small_embedded_kill9_ack_race",
        "orders",
        {PUBLISHED: 130, DELIVERED: 130, ACKED: 11},
        None,
    ),
    ("c3_large_store_limit1m_kill9", "blobs", {PUBLISHED: 20, DELIVERED: 20}, None),
    (
        "c5_transient_clean",
        "t_lazy",
        {PUBLISHED: 20, Kind.PUBLISH_TRANSIENT: 40, DELIVERED: 60, ACKED: 5},
        None,
    ),
    (
        "c8_damage_dup_flush",
        "d_small",
        {PUBLISHED: 150, DELIVERED: 150, ACKED: 55},
        None,
    ),
    (
        "c8_damage_torn_journal",
        "d_small",
        {PUBLISHED: 130, DELIVERED: 130, ACKED: 40, Kind.NONE: 1},
        Status.TORN,
    ),
    (
        "c8_damage_torn_journal_ack",
        "d_small",
        {PUBLISHED: 150, DELIVERED: 150, ACKED: 54, Kind.NONE: 1},
        Status.TORN,
    ),
    (
        "c8_damage_journal_zero_tail",
        "d_small",
        {PUBLISHED: 150, DELIVERED: 150, ACKED: 55, Kind.NONE: 1},
        Status.ZEROS,
    ),
    ("c8_damage_segment_deleted_journal_kept", "d_gone", {ACKED: 25}, None),
]


@pytest.mark.parametrize(
    ("name", "queue", "counts", "tail"), REAL_JOURNALS, ids=[row[0] for row in REAL_JOURNALS]
)
def test_a_real_journal_holds_what_its_broker_wrote(
    name: str, queue: str, counts: dict[Kind, int], tail: Status | None
) -> None:
    data = snapshot(name).queue(queue)["journal.jif"]
    pieces = list(scan(data))
    assert Counter(piece.kind for piece in pieces) == counts
    assert {piece.status for piece in pieces if piece.kind is not Kind.NONE} == {Status.OK}
    assert [p.status for p in pieces if p.kind is Kind.NONE] == ([] if tail is None else [tail])
    check_columns(JOURNAL, data, 65_536)
