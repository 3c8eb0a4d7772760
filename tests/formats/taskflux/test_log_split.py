"""Several readers share a log by byte ranges: together they yield what one reader would.

docs/formats/log.md, "Splitting by byte range".
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.taskflux.log import (
    LogLayout,
    Status,
    detect_layout,
    encode_header,
    encode_record,
)
from penstock.formats.taskflux.log_scan import (
    LOOKBACK,
    RECORD_SIZE_BELIEVED,
    Boundary,
    find_boundary,
    scan,
)
from support.damage import overwritten, random_damage, random_log
from support.log_reading import Row, scanned
from support.taskflux_strategies import MARKED, logs
from support.taskflux_vectors import LOG_2, LOG_2_EMPTY, LOG_3

each_marked = pytest.mark.parametrize("layout", MARKED, ids=lambda layout: layout.variant)


def boundary_of(data: bytes, layout: LogLayout, at: int, lookback: int | None) -> Boundary:
    """Return where the range that begins at ``at`` begins to read, as a caller finds it."""
    header = layout.header_size
    if lookback is not None:
        low = max(header, at - lookback)
        found = find_boundary(data, layout, at=at, low=low)
        assert find_boundary(data, layout, at=at, low=low, bulk=True) == found
        if found is not None:
            return found
    found = find_boundary(data, layout, at=at, low=header)
    assert find_boundary(data, layout, at=at, low=header, bulk=True) == found
    assert found is not None
    return found


def read_in_ranges(
    data: bytes, layout: LogLayout, size: int, lookback: int | None = None
) -> list[Row]:
    """Return what readers of ranges of ``size`` bytes yield, one reader after the other."""
    rows: list[Row] = []
    for first in range(0, len(data), size):
        end = min(len(data), first + size)
        begin = boundary_of(data, layout, max(first, layout.header_size), lookback)
        pieces = scan(data, layout, start=begin.position, stop=end, term=begin.term)
        rows += [tuple(map(int, piece)) for piece in pieces]
    return rows


def twice_the_largest(rows: list[Row], layout: LogLayout) -> int:
    """Return a look back that is long enough: gaps hide nothing, records may."""
    records = [size for _, size, _, term, length in rows if term or length]
    return 2 * max(records, default=layout.record_header.size) + 2


def crafted(layout: LogLayout) -> bytes:
    """Return a log whose payloads hold markers, runs of whole records and parts of one; damaged."""
    inner = [encode_record(layout, term=t, payload=p) for t, p in ((7, b""), (8, b"in"), (2, b"x"))]
    run = b"".join(inner)
    payloads = [b"", run, b"ab" + run + b"cd", inner[1][:-1], run * 2, inner[0], b"plain" * 4, b""]
    terms = [1, 1, 2, 2, 3, 3, 3, 4]
    records = [
        encode_record(layout, term=term, payload=payload)
        for term, payload in zip(terms, payloads, strict=True)
    ]
    records[3] = overwritten(records[3], 0, b"\xaa\xf5\x34\xc5")
    records[6] = overwritten(records[6], len(records[6]) - 1, b"!")
    return encode_header(layout) + b"".join(records) + bytes(9)


# --- from the header on --------------------------------------------------------------------------


@pytest.mark.parametrize("data", [LOG_2, LOG_2_EMPTY, LOG_3], ids=["2", "2 empty", "3"])
def test_ranges_of_every_size_of_a_golden_log_yield_each_record_once(data: bytes) -> None:
    layout = detect_layout(data)
    expected, _ = scanned(data, layout)
    for size in range(1, len(data) + 2):
        assert read_in_ranges(data, layout, size) == expected


@each_marked
def test_ranges_of_every_size_of_a_crafted_log_yield_each_piece_once(layout: LogLayout) -> None:
    data = crafted(layout)
    expected, _ = scanned(data, layout)
    assert {row[2] for row in expected} == {Status.OK, Status.BAD_MARKER, Status.BAD_CHECKSUM}
    lookback = twice_the_largest(expected, layout)
    for size in [*range(1, 40), *range(40, len(data) + 2, 7)]:
        assert read_in_ranges(data, layout, size) == expected
        assert read_in_ranges(data, layout, size, lookback) == expected


@each_marked
@given(seed=st.integers(0, 2**32), size=st.integers(1, 300))
def test_ranges_of_a_damaged_log_yield_each_piece_once(
    layout: LogLayout, seed: int, size: int
) -> None:
    random = Random(seed)
    data = random_log(random, layout, records=random.randrange(12))
    data = random_damage(random, data, start=layout.header_size)
    expected, _ = scanned(data, layout)
    assert read_in_ranges(data, layout, size) == expected


@each_marked
@settings(deadline=None)
@given(data=st.data(), size=st.integers(1, 100))
def test_ranges_of_an_undamaged_log_yield_each_record_once(
    layout: LogLayout, data: st.DataObject, size: int
) -> None:
    log = data.draw(logs(layout))
    expected, _ = scanned(log.data, layout)
    assert [row[0] for row in expected] == log.offsets[:-1]
    assert read_in_ranges(log.data, layout, size) == expected
    assert read_in_ranges(log.data, layout, size, twice_the_largest(expected, layout)) == expected


# --- with a bounded look back --------------------------------------------------------------------


@each_marked
@given(seed=st.integers(0, 2**32), size=st.integers(1, 300), more=st.integers(0, 200))
def test_a_bounded_look_back_gives_the_same_pieces(
    layout: LogLayout, seed: int, size: int, more: int
) -> None:
    random = Random(seed)
    data = random_log(random, layout, records=random.randrange(4, 30))
    data = random_damage(random, data, start=layout.header_size)
    expected, _ = scanned(data, layout)
    lookback = twice_the_largest(expected, layout) + more
    assert read_in_ranges(data, layout, size, lookback) == expected


@each_marked
@pytest.mark.parametrize("seed", range(4))
def test_a_bounded_look_back_gives_the_same_pieces_of_many_logs(
    layout: LogLayout, seed: int
) -> None:
    random = Random(seed)
    for _ in range(150):
        data = random_log(random, layout, records=random.randrange(4, 30))
        data = random_damage(random, data, start=layout.header_size)
        expected, _ = scanned(data, layout)
        size = random.randint(1, 300)
        lookback = twice_the_largest(expected, layout)
        assert read_in_ranges(data, layout, size, lookback) == expected


@each_marked
def test_a_run_of_records_in_a_payload_before_damage_costs_no_piece(layout: LogLayout) -> None:
    """A reader once began among records in a payload and skipped the damaged record behind it."""
    plain = encode_record(layout, term=2, payload=b"p" * 40)
    inner = encode_record(layout, term=9, payload=b"") * 3
    hiding = encode_record(layout, term=2, payload=inner + b"tail")
    spoilt = overwritten(plain, 0, b"\x00\x00\x00\x01")
    data = encode_header(layout) + plain * 5 + hiding + spoilt + plain * 5
    expected, _ = scanned(data, layout)
    assert [row[2] for row in expected] == [Status.OK] * 6 + [Status.BAD_MARKER] + [Status.OK] * 5
    lookback = twice_the_largest(expected, layout)
    for at in range(layout.header_size, len(data)):
        offset = next((row[0] for row in expected if row[0] >= at), len(data))
        term = 2 if at > layout.header_size else 0
        assert boundary_of(data, layout, at, lookback) == Boundary(offset, term)


@each_marked
def test_what_proves_nothing_is_not_answered(layout: LogLayout) -> None:
    """Records that fill less than half of the look back may all be inside one payload."""
    inner = encode_record(layout, term=9, payload=b"") * 3
    record = encode_record(layout, term=2, payload=inner)
    data = encode_header(layout) + record * 3
    low = layout.header_size + layout.record_header.size
    second = layout.header_size + len(record)
    assert find_boundary(data, layout, at=second, low=low) is not None  # too short a look back
    assert find_boundary(data, layout, at=second, low=second - 2) is None
    third = second + len(record)
    assert find_boundary(data, layout, at=third + 1, low=second - 2) == Boundary(len(data), 2)


@each_marked
def test_a_stretch_without_records_proves_nothing(layout: LogLayout) -> None:
    record = encode_record(layout, term=1, payload=b"x")
    data = encode_header(layout) + record + b"g" * 500 + record
    assert find_boundary(data, layout, at=400, low=200) is None
    assert boundary_of(data, layout, 400, 200) == Boundary(len(data) - len(record), 1)


# --- at the edges --------------------------------------------------------------------------------


@each_marked
def test_the_first_boundary_is_the_end_of_the_header(layout: LogLayout) -> None:
    data = encode_header(layout) + encode_record(layout, term=1, payload=b"x")
    header = layout.header_size
    assert find_boundary(data, layout, at=header, low=header) == Boundary(header, 0)
    assert find_boundary(data, layout, at=header + 1, low=header) == Boundary(len(data), 1)


@each_marked
def test_a_range_inside_a_record_or_behind_the_end_yields_nothing(layout: LogLayout) -> None:
    record = encode_record(layout, term=1, payload=b"x" * 100)
    data = encode_header(layout) + record + bytes(100)
    header = layout.header_size
    for at in range(header + 1, len(data)):
        begin = boundary_of(data, layout, at, None)
        assert begin.position >= min(at, len(data))
        assert list(scan(data, layout, start=begin.position, stop=at + 10, term=begin.term)) == []


@each_marked
def test_a_boundary_behind_the_data_is_not_guessed(layout: LogLayout) -> None:
    """Only a part of the file is there, and it ends before the range begins."""
    record = encode_record(layout, term=1, payload=b"x" * 50)
    data = encode_header(layout) + record * 4
    header = layout.header_size
    part = data[: header + len(record) + 10]
    at = header + 2 * len(record)
    assert find_boundary(part, layout, at=at, low=header, size=len(data)) is None
    assert find_boundary(part, layout, at=at, low=header + 1, size=len(data)) is None
    whole = find_boundary(data, layout, at=at, low=header, size=len(data))
    assert whole == Boundary(at, 1)


def test_the_look_back_is_twice_the_largest_record() -> None:
    """16 MiB is the largest message that TaskFlux's documents allow; a run of that length is proof."""
    assert 16 * 2**20 + LogLayout.THREE.record_header.size + 300 <= RECORD_SIZE_BELIEVED
    assert LOOKBACK >= 2 * RECORD_SIZE_BELIEVED
