"""Scanning behind damage: the rules, and that a compiled scan gives the pieces of an interpreted one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.taskflux.log import (
    RECORD_MARKER,
    LogLayout,
    Status,
    encode_header,
    encode_record,
)
from penstock.formats.taskflux.log_scan import (
    RECORD_SIZE_BELIEVED,
    find_record,
    scan,
    scan_columns,
    search,
)
from support.damage import overwritten, random_damage, random_log
from support.log_reading import exhausted, rows_of, scanned, scanned_in_columns
from support.taskflux_strategies import MARKED, logs
from support.taskflux_vectors import LOG_2, LOG_3, LOGS, LogVector

pytestmark = pytest.mark.usefixtures("warm_kernels")

each_layout = pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
each_marked = pytest.mark.parametrize("layout", MARKED, ids=lambda layout: layout.variant)


# --- the rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", LOGS, ids=lambda vector: vector.name)
def test_a_scan_of_a_golden_log_yields_its_records(vector: LogVector) -> None:
    header_size = vector.layout.record_header.size
    assert scanned(vector.data, vector.layout) == (
        [
            (offset, header_size + len(payload), Status.OK, term, len(payload))
            for offset, term, payload in zip(
                vector.offsets, vector.terms, vector.payloads, strict=True
            )
        ],
        len(vector.data),
    )


def _at(offset: int, raw: str) -> Callable[[bytes], bytes]:
    return lambda data: overwritten(data, offset, bytes.fromhex(raw))


FIRST, SECOND, THIRD = (12, 53, 0, 1, 37), (65, 38, 0, 1, 22), (103, 38, 0, 2, 22)

SCANS_OF_DAMAGE = [
    ("cut before the end marker", lambda d: d[:141], [FIRST, SECOND, THIRD]),
    ("cut in the last record", lambda d: d[:140], [FIRST, SECOND, (103, 37, Status.TORN, 0, 0)]),
    ("cut in the second record", lambda d: d[:100], [FIRST, (65, 35, Status.TORN, 0, 0)]),
    (
        "the last payload changed",
        _at(119, "53"),
        [FIRST, SECOND, (103, 42, Status.BAD_CHECKSUM, 0, 0)],
    ),
    (
        "a payload in the middle changed",
        _at(81, "40"),
        [FIRST, (65, 38, Status.BAD_CHECKSUM, 1, 22), THIRD],
    ),
    (
        "a marker became zeros",
        _at(65, "00000000"),
        [FIRST, (65, 38, Status.ZEROS, 0, 0), THIRD],
    ),
    (
        "a term became zero",
        _at(69, "00000000"),
        [FIRST, (65, 38, Status.BAD_TERM, 0, 22), THIRD],
    ),
    (
        "a term became negative",
        _at(69, "FFFFFFFF"),
        [FIRST, (65, 38, Status.BAD_TERM, -1, 22), THIRD],
    ),
    (
        "the first term became large",
        _at(16, "00000005"),
        [(12, 53, 0, 5, 37), (65, 38, Status.FALLING_TERM, 1, 22), THIRD],
    ),
    (
        "a length became negative",
        _at(77, "FFFFFFFF"),
        [FIRST, (65, 38, Status.BAD_LENGTH, 0, 0), THIRD],
    ),
    (
        "a length became too large",
        _at(77, "00010000"),
        [FIRST, (65, 38, Status.TORN, 0, 0), THIRD],
    ),
    (
        "a length became a little too large",
        _at(77, "00000017"),
        [FIRST, (65, 38, Status.BAD_CHECKSUM, 0, 0), THIRD],
    ),
    (
        "garbage where the end was",
        _at(141, "01020304"),
        [FIRST, SECOND, THIRD, (141, 4, Status.BAD_MARKER, 0, 0)],
    ),
    (
        "letters behind the end",
        lambda d: d + b"\x00\x00\x00abc",
        [FIRST, SECOND, THIRD, (141, 10, Status.LEFTOVER, 0, 0)],
    ),
    ("zeros behind the end", lambda d: d + bytes(1000), [FIRST, SECOND, THIRD]),
    (
        "half a record behind the end",
        lambda d: d + d[103:120],
        [FIRST, SECOND, THIRD, (141, 21, Status.LEFTOVER, 0, 0)],
    ),
    (
        "a whole record behind the end",
        lambda d: d + d[103:141],
        [FIRST, SECOND, THIRD, (141, 4, Status.ZEROS, 0, 0), (145, 38, 0, 2, 22)],
    ),
]


@pytest.mark.parametrize(
    ("change", "expected"), [pytest.param(*row[1:], id=row[0]) for row in SCANS_OF_DAMAGE]
)
def test_a_scan_of_a_damaged_log_yields_what_the_page_says(
    change: Callable[[bytes], bytes], expected: list[tuple[int, ...]]
) -> None:
    """docs/formats/log.md, "Scanning": the table of damage to the example, and more of its kind."""
    data = change(LOG_2)
    assert scanned(data, LogLayout.TWO) == (expected, len(data))
    assert scanned_in_columns(data, LogLayout.TWO) == (expected, len(data))


@each_marked
def test_a_log_that_begins_with_damage_is_scanned_behind_it(layout: LogLayout) -> None:
    """A scan once ended in an error of its own wherever the first record was not whole."""
    record = encode_record(layout, term=1, payload=b"x")
    start = layout.header_size
    for damage, status in ((bytes(4), Status.ZEROS), (b"garbage", Status.BAD_MARKER)):
        data = encode_header(layout) + damage + record
        rows, end = scanned(data, layout)
        assert [row[:3] for row in rows] == [
            (start, len(damage), status),
            (start + len(damage), len(record), Status.OK),
        ]
        assert end == len(data)
    assert scanned(encode_header(layout) + bytes(64), layout) == ([], start + 64)


@each_marked
def test_one_wrong_term_costs_at_most_two_verdicts(layout: LogLayout) -> None:
    terms = [3, 3, 9, 3, 3, 4]
    parts = [encode_record(layout, term=term, payload=b"") for term in terms]
    rows, _ = scanned(encode_header(layout) + b"".join(parts), layout)
    assert [row[2] for row in rows] == [0, 0, 0, Status.FALLING_TERM, 0, 0]


@each_marked
def test_a_record_inside_a_payload_is_no_record(layout: LogLayout) -> None:
    inner = encode_record(layout, term=1, payload=b"inner")
    data = encode_header(layout) + encode_record(layout, term=1, payload=inner * 3) + bytes(4)
    rows, _ = scanned(data, layout)
    assert [row[2] for row in rows] == [Status.OK]


@each_marked
def test_a_record_inside_a_damaged_payload_is_believed_if_a_record_or_the_end_follows(
    layout: LogLayout,
) -> None:
    """docs/formats/log.md, "Scanning": nothing but the follower can tell the two cases apart."""
    inner = encode_record(layout, term=1, payload=b"inner")
    outer = encode_record(layout, term=1, payload=b"<" + inner + b">")
    data = encode_header(layout) + overwritten(outer, 0, b"\x00\x00\x00\x01") + bytes(4)
    rows, _ = scanned(data, layout)
    assert [row[2] for row in rows] == [Status.BAD_MARKER]
    outer = encode_record(layout, term=1, payload=b"<" + inner)
    data = encode_header(layout) + overwritten(outer, 0, b"\x00\x00\x00\x01") + bytes(4)
    rows, _ = scanned(data, layout)
    assert [row[2] for row in rows] == [Status.BAD_MARKER, Status.OK]


@pytest.mark.parametrize("layout", [LogLayout.ONE_A, LogLayout.ONE_B, LogLayout.ONE_C])
def test_the_first_bad_record_of_generation_1_takes_the_rest_with_it(layout: LogLayout) -> None:
    parts = [encode_record(layout, term=term, payload=b"xyz") for term in (1, 2, 1, 2)]
    data = encode_header(layout) + b"".join(parts)
    assert scanned(data, layout) == (
        [(8, 11, 0, 1, 3), (19, 11, 0, 2, 3), (30, 22, Status.FALLING_TERM, 0, 0)],
        len(data),
    )


@each_layout
@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_pieces_cover_the_file_without_overlap(layout: LogLayout, seed: int) -> None:
    """Every byte behind the header is in one piece, but for zeros at the end."""
    random = Random(seed)
    data = random_damage(random, random_log(random, layout, records=6), start=layout.header_size)
    rows, end = scanned(data, layout)
    position = layout.header_size
    for offset, size, *_ in rows:
        assert offset == position
        assert size > 0
        position += size
    assert end == len(data)
    assert data[position:].strip(b"\x00") == b""
    assert position == len(data) or layout.is_marked


@each_layout
@given(data=st.data())
def test_a_scan_of_an_undamaged_log_yields_its_records(
    layout: LogLayout, data: st.DataObject
) -> None:
    log = data.draw(logs(layout))
    rows, end = scanned(log.data, layout)
    assert [row[0] for row in rows] == log.offsets[:-1]
    assert [(row[3], row[4]) for row in rows] == [(t, len(p)) for t, p in log.records]
    assert {row[2] for row in rows} <= {Status.OK}
    assert end == len(log.data)


# --- searching -----------------------------------------------------------------------------------


@each_marked
def test_a_record_is_found_from_any_place_before_it(layout: LogLayout) -> None:
    record = encode_record(layout, term=1, payload=b"x")
    data = b"\xaa\xf5\x34garbage" + record + record
    for start in range(10):
        assert find_record(data, layout, start, len(data)) == 10
        assert find_record(memoryview(data), layout, start, len(data)) == 10
    assert find_record(data, layout, 11, len(data)) == 10 + len(record)
    assert find_record(data, layout, len(data) - 4, len(data)) is None


@each_marked
def test_a_search_without_enough_data_says_where_to_go_on(layout: LogLayout) -> None:
    record = encode_record(layout, term=1, payload=b"0123456789")
    data = b"--------" + record + record
    for end in range(len(data)):
        place, is_found = search(data[:end], layout, 0, len(data))
        # The first record counts once it and the marker behind it are there.
        assert is_found == (end >= 8 + len(record) + 4)
        assert place == 8 or (place == max(0, end - 3) and place < 8 + 4)
    assert search(data, layout, 9, len(data)) == (8 + len(record), True)


@each_marked
def test_a_record_too_large_to_be_true_is_not_waited_for(layout: LogLayout) -> None:
    """Behind damage a wrong length must not make a reader hold the rest of a large file."""
    header = layout.record_header.pack(RECORD_MARKER, 1, 0, RECORD_SIZE_BELIEVED + 1)
    record = encode_record(layout, term=1, payload=b"x")
    data = encode_header(layout) + b"garbage" + header + record + record
    size = 2**40
    rows, position = scanned(data, layout, size=size)
    assert [row[:3] for row in rows] == [
        (layout.header_size, 7 + len(header), Status.BAD_MARKER),
        (len(data) - 2 * len(record), len(record), Status.OK),
        (len(data) - len(record), len(record), Status.OK),
    ]
    assert position == len(data)
    assert scanned_in_columns(data, layout, size=size) == (rows, position)


# --- the bulk scanner ----------------------------------------------------------------------------


@each_layout
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([1, 2, 3, 65_536]))
def test_columns_equal_pieces_on_a_damaged_log(
    layout: LogLayout, seed: int, batch_rows: int
) -> None:
    random = Random(seed)
    data = random_log(random, layout, records=random.randrange(9))
    data = random_damage(random, data, start=layout.header_size)
    expected = scanned(data, layout)
    assert scanned_in_columns(data, layout, batch_rows=batch_rows) == expected


@each_layout
@pytest.mark.parametrize("seed", range(4))
def test_columns_equal_pieces_on_a_thousand_damaged_logs(layout: LogLayout, seed: int) -> None:
    random = Random(seed)
    for _ in range(250):
        data = random_log(random, layout, records=random.randrange(40))
        data = random_damage(random, data, start=layout.header_size)
        batch_rows = random.choice((1, 2, 3, 7, 65_536))
        assert scanned_in_columns(data, layout, batch_rows=batch_rows) == scanned(data, layout)


@each_layout
@given(seed=st.integers(0, 2**32), beyond=st.integers(0, 100) | st.just(2**40))
def test_columns_equal_pieces_in_a_window_of_the_file(
    layout: LogLayout, seed: int, beyond: int
) -> None:
    """The data ends before the file: both scanners judge the same and wait at the same place."""
    random = Random(seed)
    data = random_log(random, layout, records=random.randrange(9))
    data = random_damage(random, data, start=layout.header_size)
    end = random.randint(layout.header_size, max(len(data), layout.header_size))
    window, size = data[:end], len(data) + beyond
    expected = scanned(window, layout, size=size)
    assert scanned_in_columns(window, layout, size=size) == expected


@each_marked
def test_a_record_without_a_term_behind_a_bad_one_is_judged_without_more_data(
    layout: LogLayout,
) -> None:
    """The bulk scanner once waited here for bytes that could not matter."""
    bad = bytearray(encode_record(layout, term=1, payload=b"payload"))
    bad[-1] ^= 1
    termless = layout.record_header.pack(RECORD_MARKER, 0, 0, 100)
    record = encode_record(layout, term=1, payload=b"")
    data = encode_header(layout) + bytes(bad) + termless + record + record
    expected = scanned(data, layout, size=1000)
    assert [row[2] for row in expected[0]] == [Status.BAD_CHECKSUM, Status.OK, Status.OK]
    assert scanned_in_columns(data, layout, size=1000) == expected


@each_layout
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([1, 2, 3, 65_536]))
def test_columns_equal_pieces_from_every_boundary_to_any_stop(
    layout: LogLayout, seed: int, batch_rows: int
) -> None:
    random = Random(seed)
    data = random_log(random, layout, records=6)
    data = random_damage(random, data, start=layout.header_size)
    rows, _ = scanned(data, layout)
    starts = [layout.header_size, *(offset + size for offset, size, *_ in rows)]
    for start in starts:
        stop = random.randint(0, len(data) + 4)
        term = random.choice((0, 1, 3, 9))
        expected = scanned(data, layout, start=start, stop=stop, term=term)
        found = scanned_in_columns(
            data, layout, start=start, stop=stop, term=term, batch_rows=batch_rows
        )
        assert found == expected


@each_layout
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), step=st.integers(1, 200))
def test_a_file_read_in_growing_windows_gives_the_pieces_of_the_whole(
    layout: LogLayout, seed: int, step: int
) -> None:
    """A reader goes on where a window ended, with the term it had; nothing is lost or read twice."""
    random = Random(seed)
    data = random_log(random, layout, records=8)
    data = random_damage(random, data, start=layout.header_size)
    expected = scanned(data, layout)
    rows: list[tuple[int, ...]] = []
    position, term = layout.header_size, 0
    for end in [*range(layout.header_size, len(data), step), len(data)]:
        found, position = scanned(data[:end], layout, start=position, term=term, size=len(data))
        rows += found
        term = next((row[3] for row in reversed(rows) if row[3] >= 1), 0)
    assert (rows, position) == expected


def test_batches_hold_no_more_rows_than_asked_for() -> None:
    record = encode_record(LogLayout.THREE, term=1, payload=b"x")
    data = encode_header(LogLayout.THREE) + record * 100
    for batch_rows in (2, 3, 7, 100, 1000):
        batches, end = exhausted(
            scan_columns(data, LogLayout.THREE, start=8, batch_rows=batch_rows)
        )
        assert [len(batch) for batch in batches[:-1]] == [batch_rows] * (len(batches) - 1)
        assert sum(map(len, batches)) == 100
        assert end == len(data)


def test_an_array_is_scanned_like_bytes() -> None:
    array = np.frombuffer(LOG_3, dtype=np.uint8)
    (batch,), end = exhausted(scan_columns(array, LogLayout.THREE, start=8))
    assert (rows_of(batch), end) == scanned(LOG_3, LogLayout.THREE)
    assert batch.offset.dtype == np.int64


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 4095])
def test_the_bulk_scanner_takes_checksums_of_every_size(size: int) -> None:
    """It goes 8 bytes at a step, so what is left over after the last step matters."""
    payload = bytes(i * 37 % 251 for i in range(size))
    data = encode_header(LogLayout.THREE) + encode_record(LogLayout.THREE, term=1, payload=payload)
    for scanner in (scanned, scanned_in_columns):
        rows, _ = scanner(data, LogLayout.THREE)
        assert rows == [(8, 20 + size, Status.OK, 1, size)]


@pytest.mark.parametrize("term", [1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1])
def test_terms_of_64_bits_come_through_the_bulk_scanner(term: int) -> None:
    data = encode_header(LogLayout.THREE) + encode_record(LogLayout.THREE, term=term, payload=b"")
    for scanner in (scanned, scanned_in_columns):
        rows, _ = scanner(data, LogLayout.THREE)
        assert rows == [(8, 20, Status.OK, term, 0)]


def test_a_scan_of_a_view_equals_that_of_bytes() -> None:
    for view in (memoryview(LOG_2), bytearray(LOG_2)):
        pieces, end = exhausted(scan(view, LogLayout.TWO, start=12))
        assert ([tuple(piece) for piece in pieces], end) == scanned(LOG_2, LogLayout.TWO)
