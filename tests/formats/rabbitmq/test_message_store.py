"""The message store: its records, what a scan does behind damage, and the kernel that follows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.rabbitmq.message_store import (
    FRAMING_SIZE,
    RECORD_SIZE_BELIEVED,
    Piece,
    Status,
    decode_message,
    encode_record,
    parse_store_name,
    scan,
    scan_store_columns,
    store_name,
)
from support.damage import bits, cuts, flipped, overwritten, unnoticed
from support.log_reading import exhausted
from support.rabbitmq_golden import contents, snapshot
from support.rabbitmq_reading import (
    STORE,
    check_columns,
    check_columns_from_every_boundary,
    check_columns_in_a_window,
    check_cover,
    check_growing_windows,
    damaged,
    messages,
    random_store,
    rows_of,
    scanned,
    scanned_in_columns,
)

ids = st.binary(min_size=16, max_size=16)

IDS = [bytes([letter] * 16) for letter in b"abc"]
RECORDS = [
    encode_record(IDS[i], b"\x83h" + text[1:]) for i, text in enumerate((b"one", b"two", b"three"))
]
DATA = b"".join(RECORDS)
FIRST, SECOND, THIRD = (0, 29, Status.OK, 4), (29, 29, Status.OK, 4), (58, 31, Status.OK, 6)

# --- records -------------------------------------------------------------------------------------


def test_a_record_is_a_length_an_id_a_message_and_255() -> None:
    """docs/formats/rabbitmq.md, "Message store": the length counts id and message."""
    record = encode_record(IDS[0], b"\x83hne")
    assert record == bytes.fromhex("0000000000000014") + IDS[0] + b"\x83hne\xff"
    assert list(scan(record)) == [Piece(0, 29, Status.OK, 4, IDS[0])]
    assert len(record) == FRAMING_SIZE + 4


@given(st.lists(st.tuples(ids, messages)))
def test_what_is_encoded_is_scanned(records: list[tuple[bytes, bytes]]) -> None:
    data = b"".join(encode_record(*record) for record in records)
    pieces, end = exhausted(scan(memoryview(data)))
    assert end == len(data)
    assert [(piece.message_id, decode_message(data, piece)) for piece in pieces] == records


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("0.rdq", 0),
        ("17.rdt", 17),
        ("x.rdq", None),
        ("01.rdq", None),
        (".rdq", None),
        ("1.rdq.rdt", None),
        ("1", None),
        ("9" * 5000 + ".rdq", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_store_files_are_named_by_number(name: str, number: int | None) -> None:
    assert parse_store_name(name) == number
    if number is not None and name.endswith("rdq"):
        assert store_name(number) == name


# --- behind damage -------------------------------------------------------------------------------


def _at(offset: int, raw: str) -> Callable[[bytes], bytes]:
    return lambda data: overwritten(data, offset, bytes.fromhex(raw))


SCANS_OF_DAMAGE: list[tuple[str, Callable[[bytes], bytes], list[tuple[int, ...]]]] = [
    ("nothing", lambda d: d, [FIRST, SECOND, THIRD]),
    ("an end marker is gone", _at(57, "00"), [FIRST, (29, 29, Status.BAD_MARKER, 4), THIRD]),
    ("the last end marker is gone", _at(88, "00"), [FIRST, SECOND, (58, 31, Status.BAD_MARKER, 6)]),
    ("an end marker before zeros is gone", lambda d: d[:28] + bytes(90), [
        (0, 29, Status.BAD_MARKER, 4), (29, 89, Status.ZEROS, 0)]),
    ("a message begins wrong", _at(53, "84"), [FIRST, (29, 29, Status.BAD_MESSAGE, 4), THIRD]),
    ("two end markers are gone", lambda d: overwritten(overwritten(d, 28, b"x"), 57, b"x"), [
        (0, 58, Status.BAD_MARKER, 0), THIRD]),
    ("a length is too small", _at(36, "10"), [FIRST, (29, 29, Status.BAD_LENGTH, 0), THIRD]),
    ("a length is too large", _at(29, "01"), [FIRST, (29, 29, Status.BAD_LENGTH, 0), THIRD]),
    ("a length is a little too large", _at(36, "15"), [
        FIRST, (29, 29, Status.BAD_MARKER, 0), THIRD]),
    ("a length is zero", _at(36, "00"), [FIRST, (29, 29, Status.ZEROS, 0), THIRD]),
    ("cut in the last record", lambda d: d[:-1], [FIRST, SECOND, (58, 30, Status.TORN, 0)]),
    ("cut in the last length", lambda d: d[:65], [FIRST, SECOND, (58, 7, Status.ZEROS, 0)]),
    ("zeros behind the end", lambda d: d + bytes(99), [
        FIRST, SECOND, THIRD, (89, 99, Status.ZEROS, 0)]),
    ("a hole", lambda d: d[:29] + bytes(1000) + d[29:], [
        FIRST, (29, 1000, Status.ZEROS, 0), (1029, 29, 0, 4), (1058, 31, 0, 6)]),
    ("letters behind zeros", lambda d: d + bytes(20) + b"abc", [
        FIRST, SECOND, THIRD, (89, 23, Status.LEFTOVER, 0)]),
    ("garbage at the start", lambda d: b"garbage!" + d, [
        (0, 8, Status.BAD_LENGTH, 0), (8, 29, 0, 4), (37, 29, 0, 4), (66, 31, 0, 6)]),
    ("the rest of an overwritten record", lambda d: d[:29] + d[40:], [
        FIRST, (29, 18, Status.BAD_LENGTH, 0), (47, 31, 0, 6)]),
    ("a record twice", lambda d: d + d[:29], [FIRST, SECOND, THIRD, (89, 29, 0, 4)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"), [pytest.param(*row[1:], id=row[0]) for row in SCANS_OF_DAMAGE]
)
def test_a_scan_of_a_damaged_store_yields_what_the_page_says(
    change: Callable[[bytes], bytes], expected: list[tuple[int, ...]]
) -> None:
    data = change(DATA)
    assert scanned(STORE, data) == (expected, len(data))
    assert scanned_in_columns(STORE, data) == (expected, len(data))


def test_a_bad_record_keeps_its_id_if_its_length_is_proved() -> None:
    pieces = list(scan(overwritten(DATA, 57, b"\x00")))
    assert [piece.message_id for piece in pieces] == IDS


def test_records_inside_a_message_are_no_records() -> None:
    outer = encode_record(IDS[0], b"\x83h" + DATA)
    assert [piece[:3] for piece in scan(outer)] == [(0, len(outer), Status.OK)]
    # Its end marker is gone, but the end of the file proves its length.
    piece = Piece(0, len(outer), Status.BAD_MARKER, 2 + len(DATA), IDS[0])
    assert list(scan(outer[:-1] + b"\x00")) == [piece]


@pytest.mark.parametrize("zeros", [1, 2, 7, 8, 9, 1000])
@pytest.mark.parametrize("length", [4096, 4100, 4351, 4352, 65_536, 2**20])
def test_a_message_behind_zeros_is_not_missed_for_a_length_that_is_read_too_early(
    zeros: int, length: int
) -> None:
    """A length read one byte early is a 256th: short enough to end at the 255 that ends this id."""
    record = encode_record(
        b"\x83h" * 7 + b"\x83\xff", (b"\x83h" + bytes(16) + b"\xff").ljust(length)
    )
    data = DATA + bytes(zeros) + record + RECORDS[0]
    rows, _ = scanned(STORE, data)
    places = [row[0] for row in rows if row[2] == Status.OK]
    assert places == [0, 29, 58, 89 + zeros, 89 + zeros + len(record)]
    check_columns(STORE, data, 65_536)


def test_a_store_cut_anywhere_keeps_the_records_before() -> None:
    ends = [0, 29, 58, 89]
    whole = [FIRST, SECOND, THIRD]
    for data in cuts(DATA):
        rows, position = scanned(STORE, data)
        count = max(i for i, end in enumerate(ends) if end <= len(data))
        assert rows[:count] == whole[:count]
        rest = data[ends[count] :]
        status = Status.TORN if any(rest) else Status.ZEROS
        assert rows[count:] == ([(ends[count], len(rest), status, 0)] if rest else [])
        assert position == len(data)


def test_a_flipped_bit_shows_in_length_and_end_marker_and_where_the_message_begins() -> None:
    """There is no checksum: the format cannot see a changed id, or a change inside a message."""
    unseen = unnoticed(DATA, lambda d: any(piece.status is not Status.OK for piece in scan(d)))
    offsets = (0, 29, 58)
    sizes = (4, 4, 6)
    expected = set[int]().union(
        *(
            bits(offset + 8, offset + 24) | bits(offset + 26, offset + 24 + size)
            for offset, size in zip(offsets, sizes, strict=True)
        )
    )
    assert unseen == expected
    for bit in range(8 * len(DATA)):
        # A flipped bit costs the record that it is in, and no other.
        good = {piece.offset for piece in scan(flipped(DATA, bit)) if piece.status is Status.OK}
        hit = max(offset for offset in offsets if offset <= bit // 8)
        assert good >= set(offsets) - {hit}


def test_a_record_too_large_to_be_true_is_not_waited_for() -> None:
    """Behind damage a wrong length must not make a reader hold the rest of a large file."""
    size = 2**40
    false = (RECORD_SIZE_BELIEVED - 8).to_bytes(8, "big") + IDS[0] + b"\x83h"
    data = b"garbage!" + false + DATA
    expected = [(0, 34, Status.BAD_LENGTH, 0), (34, 29, 0, 4), (63, 29, 0, 4), (92, 31, 0, 6)]
    assert scanned(STORE, data, size=size) == (expected, len(data))
    check_columns(STORE, data, 65_536, size=size)
    false = (RECORD_SIZE_BELIEVED - 9).to_bytes(8, "big") + IDS[0] + b"\x83h"
    assert scanned(STORE, b"garbage!" + false + DATA, size=size) == ([], 0)


def test_lengths_beyond_63_bits_are_lengths_that_cannot_be() -> None:
    for length in (2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1):
        data = length.to_bytes(8, "big") + DATA[8:]
        assert scanned(STORE, data)[0] == [(0, 29, Status.BAD_LENGTH, 0), SECOND, THIRD]
        check_columns(STORE, data, 65_536)


@given(st.binary(max_size=300))
def test_garbage_is_read_to_its_end(data: bytes) -> None:
    check_cover(STORE, data)
    check_columns(STORE, data, 3)


@given(seed=st.integers(0, 2**32), garbage=st.binary(max_size=60))
def test_whole_records_are_found_behind_any_garbage(seed: int, garbage: bytes) -> None:
    """Unless the garbage itself reads as a record that reaches over the true one."""
    record = encode_record(IDS[0], b"\x83h" + Random(seed).randbytes(20))
    data = garbage.replace(b"\x83", b"") + record
    pieces = list(scan(data))
    if not any(piece.status in (Status.BAD_MESSAGE, Status.BAD_MARKER) for piece in pieces):
        assert pieces[-1][:3] == (len(data) - len(record), len(record), Status.OK)


# --- the bulk scanner ----------------------------------------------------------------------------


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([1, 2, 3, 65_536]))
def test_columns_equal_pieces_on_a_damaged_store(seed: int, batch_rows: int) -> None:
    data = damaged(STORE, Random(seed))
    check_cover(STORE, data)
    check_columns(STORE, data, batch_rows)


@pytest.mark.parametrize("seed", range(4))
def test_columns_equal_pieces_on_a_thousand_damaged_stores(seed: int) -> None:
    random = Random(seed)
    for _ in range(250):
        data = damaged(STORE, random, records_max=40)
        assert scanned_in_columns(STORE, data) == scanned(STORE, data)


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), beyond=st.integers(0, 100) | st.just(2**40))
def test_columns_equal_pieces_in_a_window_of_the_file(seed: int, beyond: int) -> None:
    check_columns_in_a_window(STORE, Random(seed), beyond)


@given(seed=st.integers(0, 2**32))
def test_columns_equal_pieces_from_every_boundary_to_any_stop(seed: int) -> None:
    check_columns_from_every_boundary(STORE, Random(seed))


@given(seed=st.integers(0, 2**32), step=st.integers(1, 200))
def test_a_file_read_in_growing_windows_gives_the_pieces_of_the_whole(seed: int, step: int) -> None:
    check_growing_windows(STORE, Random(seed), step)


def test_every_cut_and_every_flipped_bit_reads_the_same_in_columns() -> None:
    for data in [*cuts(DATA), *(flipped(DATA, bit) for bit in range(8 * len(DATA)))]:
        check_columns(STORE, data, 65_536)


def test_an_array_is_scanned_like_bytes_in_batches_of_the_size_asked_for() -> None:
    data = random_store(Random(1), 100)
    array = np.frombuffer(data, dtype=np.uint8)
    for batch_rows in (1, 7, 1000):
        batches, _ = exhausted(scan_store_columns(array, batch_rows=batch_rows))
        assert all(len(batch) == batch_rows for batch in batches[:-1])
        assert [row for batch in batches for row in rows_of(batch)] == scanned(STORE, data)[0]


# --- real stores ---------------------------------------------------------------------------------

REAL_STORES = [
    ("c1_small_embedded_live", 0, {}),
    ("c3_large_store_limit1m_kill9", 363, {}),
    ("c4_props_ttl_priority_kill9", 44, {}),
    ("c6_fanout_refcount_kill9", 75, {}),
    ("c7_queue_v2_kill9", 150, {}),
    ("c8_damage_dup_flush", 90, {}),
    ("c8_damage_store_file_missing", 67, {}),
    ("c8_damage_store_marker_bad", 89, {Status.BAD_MARKER: 1}),
    ("c8_damage_torn_store_tail", 89, {Status.TORN: 1}),
    # A merge that was copying back: one record is only half there, and zeros wait for the others.
    ("c8_damage_crashed_merge", 92, {Status.BAD_MARKER: 1, Status.ZEROS: 1}),
]


@pytest.mark.parametrize(
    ("name", "count", "damage"), REAL_STORES, ids=[row[0] for row in REAL_STORES]
)
def test_a_real_store_holds_what_its_broker_wrote(
    name: str, count: int, damage: dict[Status, int]
) -> None:
    counts: Counter[Status] = Counter()
    for vhost in snapshot(name).vhosts.values():
        for data in contents(vhost.store.items(), (".rdq", ".rdt")):
            pieces = list(scan(data))
            counts.update(piece.status for piece in pieces)
            check_columns(STORE, data, 65_536)
            for piece in pieces:
                if piece.status is Status.OK:
                    # The id stands in the message too, as its last binary but one.
                    assert piece.message_id in decode_message(data, piece)
    assert counts.pop(Status.OK, 0) == count
    assert counts == damage


def test_what_an_interrupted_merge_kept_has_all_that_its_file_has_not() -> None:
    (vhost,) = snapshot("c8_damage_crashed_merge").vhosts.values()
    ids = {
        name: {p.message_id for p in scan(data) if p.status is Status.OK}
        for name, data in vhost.store.items()
    }
    assert ids["0.rdq"] < ids["0.rdt"]
    assert len(ids["0.rdt"] - ids["0.rdq"]) == 4
