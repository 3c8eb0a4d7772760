"""The log's framing: golden bytes, headers, detection, records, and what ``walk`` makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.errors import (
    BadData,
    CannotConvert,
    CorruptData,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import decode_delta
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import (
    RECORD_MARKER,
    Header,
    LogLayout,
    Status,
    Walk,
    decode_header,
    detect_layout,
    encode_header,
    encode_record,
    encode_records,
    parse_segment_name,
    segment_name,
    walk,
)
from penstock.model import INT32_MAX, INT64_MAX
from support.damage import overwritten
from support.refusal import attempted
from support.taskflux_strategies import Log, logs
from support.taskflux_vectors import (
    COMMANDS,
    DELTAS,
    LOG_1,
    LOG_1A,
    LOG_2,
    LOG_2_EMPTY,
    LOG_3,
    LOGS,
    LogVector,
)

each_vector = pytest.mark.parametrize("vector", LOGS, ids=lambda vector: vector.name)
each_layout = pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)


def walked(data: bytes, layout: LogLayout) -> Walk:
    return walk(data, layout, offset=layout.header_size, end=len(data))


# --- golden bytes --------------------------------------------------------------------------------


@each_vector
def test_the_golden_log_is_recognised(vector: LogVector) -> None:
    assert detect_layout(vector.data) is vector.layout
    assert decode_header(vector.data) == Header(layout=vector.layout, commit=vector.commit)


@each_vector
def test_the_golden_log_is_walked_record_by_record(vector: LogVector) -> None:
    assert walked(vector.data, vector.layout) == Walk(
        vector.offsets, vector.terms, vector.end, None
    )


@each_vector
def test_the_golden_log_is_written_byte_for_byte(vector: LogVector) -> None:
    records = [
        encode_record(vector.layout, term=term, payload=payload)
        for term, payload in zip(vector.terms, vector.payloads, strict=True)
    ]
    header = encode_header(vector.layout, commit=-1 if vector.commit is None else vector.commit)
    assert header + b"".join(records) + vector.tail == vector.data


@each_vector
def test_the_payloads_of_the_golden_log_mean_something(vector: LogVector) -> None:
    header_size = vector.layout.record_header.size
    ends = [*vector.offsets, vector.end][1:]
    for offset, end, payload in zip(vector.offsets, ends, vector.payloads, strict=True):
        assert vector.data[offset + header_size : end] == payload
        if vector.layout.contents is Contents.COMMANDS:
            assert decode_command(payload) in [command for command, _ in COMMANDS]
        else:
            assert decode_delta(payload, vector.layout.contents) in [delta for delta, *_ in DELTAS]


def test_the_two_byte_orders_of_generation_1_hold_the_same_payloads() -> None:
    """docs/formats/log.md, "Generation 1": only the framing of 1a is little-endian."""
    assert LOG_1 != LOG_1A
    big, little = walked(LOG_1, LogLayout.ONE_B), walked(LOG_1A, LogLayout.ONE_A)
    assert big == little
    for offset, end in zip(big.offsets, [*big.offsets[1:], big.position], strict=True):
        assert LOG_1[offset + 8 : end] == LOG_1A[offset + 8 : end]


def test_checksums_of_golden_records_stand_before_their_payloads() -> None:
    for vector in LOGS:
        if vector.layout.is_marked:
            for offset, payload in zip(vector.offsets, vector.payloads, strict=True):
                body = offset + vector.layout.record_header.size
                assert int.from_bytes(vector.data[body - 8 : body - 4], "big") == checksum(payload)


def test_an_empty_payload_has_the_checksum_of_nothing() -> None:
    assert encode_record(LogLayout.TWO, term=1, payload=b"").hex() == (
        "aaf534c400000001ffffffff00000000"
    )


# --- headers and detection -----------------------------------------------------------------------


@pytest.mark.parametrize("zeros", [1, 2, 3, 4, 5, 11, 12, 16, 511, 2**20])
@pytest.mark.parametrize("vector", [v for v in LOGS if v.layout.is_marked], ids=lambda v: v.name)
def test_any_number_of_zeros_behind_a_log_leaves_it_equal(vector: LogVector, zeros: int) -> None:
    """docs/formats/log.md, "Generation 2": a preallocated file is the same log."""
    data = vector.data[: vector.end] + bytes(zeros)
    assert decode_header(data, vector.layout) == decode_header(vector.data)
    whole = walked(vector.data, vector.layout)
    # Half an end marker at the end of the file is a torn tail.
    assert walked(data, vector.layout) == whole._replace(stop=Status.TORN if zeros < 4 else None)
    if len(data) >= vector.layout.header_size + 4:
        assert detect_layout(data) is vector.layout


@pytest.mark.parametrize("zeros", [0, 8, 100, 2**16])
def test_a_segment_without_records_is_generation_3(zeros: int) -> None:
    data = encode_header(LogLayout.THREE) + bytes(zeros)
    assert decode_header(data) == Header(layout=LogLayout.THREE, commit=None)
    assert walked(data, LogLayout.THREE) == Walk([], [], 8, None)


@pytest.mark.parametrize("commit", [-1, 0, 1, 7, INT32_MAX])
def test_a_log_with_a_record_at_12_is_generation_2(commit: int) -> None:
    record = encode_record(LogLayout.TWO, term=1, payload=b"")
    assert decode_header(encode_header(LogLayout.TWO, commit=commit) + record) == Header(
        layout=LogLayout.TWO, commit=commit
    )


def test_a_commit_of_0_without_a_record_reads_as_an_empty_segment() -> None:
    """The two are the same bytes: nothing was committed to a file without records, so 3 is right."""
    data = overwritten(LOG_2_EMPTY, 8, bytes(4))
    assert detect_layout(data) is LogLayout.THREE
    assert decode_header(data, LogLayout.TWO).commit == 0


def test_1b_and_1c_look_alike_from_outside() -> None:
    assert encode_header(LogLayout.ONE_B) == encode_header(LogLayout.ONE_C)
    assert detect_layout(encode_header(LogLayout.ONE_C)) is LogLayout.ONE_B
    assert decode_header(LOG_1, LogLayout.ONE_C).layout is LogLayout.ONE_C


@pytest.mark.parametrize("size", range(4))
@pytest.mark.parametrize("data", [LOG_1, LOG_1A, LOG_2], ids=["1", "1a", "2"])
def test_the_beginning_of_a_marker_reads_as_truncated(data: bytes, size: int) -> None:
    with pytest.raises(TruncatedData):
        detect_layout(data[:size])


@each_vector
def test_a_log_cut_inside_its_header_reads_as_truncated(vector: LogVector) -> None:
    for size in range(vector.layout.header_size):
        with pytest.raises(TruncatedData):
            decode_header(vector.data[:size], vector.layout)


@pytest.mark.parametrize(
    "data", [b"\x12\x76\xad\x56", b"\x00" * 16, b"PK\x03\x04", b"\x2f\x6f\x0f\x2e"]
)
def test_another_marker_is_no_log_we_know(data: bytes) -> None:
    with pytest.raises(UnknownFormat) as caught:
        decode_header(data + bytes(16))
    assert caught.value.expected == "12 76 AD 55 or 2F 6F 0F 2F"
    assert caught.value.found == data[:4].hex(" ").upper()


@each_vector
def test_a_named_layout_with_another_marker_is_corrupt(vector: LogVector) -> None:
    with pytest.raises(CorruptData) as caught:
        decode_header(b"\x00" + vector.data[1:], vector.layout)
    assert caught.value.expected == vector.layout.marker.hex(" ").upper()


@pytest.mark.parametrize("version", [0, 2, 0x01000000, 0xFFFFFFFF])
@each_vector
def test_only_version_1_is_supported(vector: LogVector, version: int) -> None:
    order = "little" if vector.layout is LogLayout.ONE_A else "big"
    raw = version.to_bytes(4, order)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedVersion):
        decode_header(overwritten(vector.data, 4, raw))


@pytest.mark.parametrize("commit", [-2, -3, -(2**31)])
def test_a_commit_below_minus_1_is_corrupt(commit: int) -> None:
    with pytest.raises(CorruptData):
        decode_header(overwritten(LOG_2, 8, commit.to_bytes(4, "big", signed=True)))


# --- segment names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (0, "0000000000000000000.log"),
        (645261357, "0000000000645261357.log"),
        (INT64_MAX, "9223372036854775807.log"),
    ],
)
def test_a_segment_is_named_after_its_first_index(first: int, name: str) -> None:
    assert segment_name(first) == name
    assert parse_segment_name(name) == first


@given(st.integers(0, INT64_MAX))
def test_segment_names_round_trip(first: int) -> None:
    assert parse_segment_name(segment_name(first)) == first


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "0.log",
        "0000000000000000000",
        "0000000000000000000.LOG",
        "0000000000000000000.log.log",
        "00000000000000000000.log",
        "000000000000000000.log",
        "-000000000000000001.log",
        "+000000000000000001.log",
        "000000000000000000a.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log",
        "²²²²²²²²²²²²²²²²²²².log",
        "9223372036854775808.log",
        "0000000000000000_01.log",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_name(name) is None


# --- records -------------------------------------------------------------------------------------


@each_layout
@given(data=st.data())
def test_what_is_written_is_walked(layout: LogLayout, data: st.DataObject) -> None:
    log = data.draw(logs(layout))
    found = walked(log.data, layout)
    assert [*found.offsets, found.position] == log.offsets
    assert found.terms == [term for term, _ in log.records]
    assert found.stop is None
    raw = log.data
    for offset, (_, payload) in zip(found.offsets, log.records, strict=True):
        body = offset + layout.record_header.size
        assert raw[body : body + len(payload)] == payload


@each_layout
@given(data=st.data())
def test_a_walk_in_windows_finds_the_same_records(layout: LogLayout, data: st.DataObject) -> None:
    """docs/formats/log.md, "Walking": what runs past the data is left to the next call."""
    log = data.draw(logs(layout))
    raw = log.data
    step = data.draw(st.integers(1, 80))
    offset, term, end = layout.header_size, 0, layout.header_size
    offsets: list[int] = []
    while end < len(raw):
        end = min(len(raw), end + step)
        found = walk(raw[:end], layout, offset=offset, end=end, term=term, size=len(raw))
        assert found.stop is None
        offsets += found.offsets
        offset, term = found.position, found.terms[-1] if found.terms else term
    assert offsets == log.offsets[:-1]


@each_layout
def test_a_batch_is_its_records_one_after_the_other(layout: LogLayout) -> None:
    alike = [bytes((number,)) * 100 for number in range(40)]
    for payloads in ([], [b"", b"a", b"bc" * 300], alike, [b""] * 20, [*alike, b""]):
        pieces = encode_records(layout, 7, payloads)
        assert b"".join(pieces) == b"".join(
            encode_record(layout, term=7, payload=payload) for payload in payloads
        )


@each_layout
def test_views_of_bytes_are_walked_like_bytes(layout: LogLayout) -> None:
    record = encode_record(layout, term=3, payload=memoryview(b"payload"))
    data = encode_header(layout) + record
    for view in (bytearray(data), memoryview(data)):
        assert decode_header(view, layout) == decode_header(data, layout)
        found = walk(view, layout, offset=layout.header_size, end=len(view))
        assert found == walked(data, layout)


@each_layout
def test_terms_that_the_record_has_no_room_for_are_refused(layout: LogLayout) -> None:
    for term in (0, -1, layout.term_max + 1):
        with pytest.raises(CannotConvert):
            encode_record(layout, term=term, payload=b"")
    data = encode_header(layout) + encode_record(layout, term=layout.term_max, payload=b"")
    assert walked(data, layout).terms == [layout.term_max]


def test_only_generation_3_has_terms_beyond_32_bits() -> None:
    assert {layout for layout in LogLayout if layout.term_max > INT32_MAX} == {LogLayout.THREE}


# --- where a walk stops --------------------------------------------------------------------------


def _at(offset: int, raw: str) -> Callable[[bytes], bytes]:
    return lambda data: overwritten(data, offset, bytes.fromhex(raw))


WALKS_OF_DAMAGE: list[tuple[str, Callable[[bytes], bytes], int, int, Status | None]] = [
    ("cut before the end marker", lambda d: d[:141], 3, 141, None),
    ("cut inside the end marker", lambda d: d[:143], 3, 141, Status.TORN),
    ("cut one byte into the last record", lambda d: d[:140], 2, 103, Status.TORN),
    ("cut inside a committed record", lambda d: d[:100], 1, 65, Status.TORN),
    ("cut inside a record header", lambda d: d[:110], 2, 103, Status.TORN),
    ("cut inside a record marker", lambda d: d[:105], 2, 103, Status.TORN),
    ("the last payload changed", _at(119, "53"), 2, 103, Status.BAD_CHECKSUM),
    ("a committed payload changed", _at(81, "40"), 1, 65, Status.BAD_CHECKSUM),
    ("a marker became zeros", _at(65, "00000000"), 1, 65, None),
    ("a term became zero", _at(69, "00000000"), 1, 65, Status.BAD_TERM),
    ("a term became negative", _at(69, "80000001"), 1, 65, Status.BAD_TERM),
    ("the first term became large", _at(16, "00000005"), 1, 65, Status.FALLING_TERM),
    ("a length became negative", _at(77, "FFFFFFFF"), 1, 65, Status.BAD_LENGTH),
    ("a length became too large", _at(77, "00010000"), 1, 65, Status.TORN),
    ("garbage where the end was", _at(141, "01020304"), 3, 141, Status.BAD_MARKER),
    ("two bytes of garbage at the end", lambda d: d[:141] + b"\x01\x02", 3, 141, Status.BAD_MARKER),
    ("letters behind the end", lambda d: d + b"\x00\x00\x00abc", 3, 141, None),
    ("a MiB of zeros behind the end", lambda d: d + bytes(2**20), 3, 141, None),
]


@pytest.mark.parametrize(
    ("change", "count", "position", "stop"),
    [pytest.param(*row[1:], id=row[0]) for row in WALKS_OF_DAMAGE],
)
def test_a_walk_of_a_damaged_log_stops_where_the_page_says(
    change: Callable[[bytes], bytes], count: int, position: int, stop: Status | None
) -> None:
    """docs/formats/log.md, "Scanning": the table of damage to the example, and more of its kind."""
    found = walked(change(LOG_2), LogLayout.TWO)
    assert found.offsets == [12, 65, 103][:count]
    assert (found.position, found.stop) == (position, stop)


@pytest.mark.parametrize("bit", range(8 * 119, 8 * 141, 5))
def test_a_flip_in_the_last_payload_hides_that_record_only(bit: int) -> None:
    data = bytearray(LOG_2)
    data[bit // 8] ^= 1 << bit % 8
    assert walked(bytes(data), LogLayout.TWO) == Walk([12, 65], [1, 1], 103, Status.BAD_CHECKSUM)


@each_layout
def test_the_term_before_is_the_least_that_is_allowed(layout: LogLayout) -> None:
    data = encode_header(layout) + encode_record(layout, term=5, payload=b"x")
    for before, stop in ((5, None), (6, Status.FALLING_TERM)):
        found = walk(data, layout, offset=layout.header_size, end=len(data), term=before)
        assert (len(found.offsets), found.stop) == (stop is None, stop)


@pytest.mark.parametrize("layout", [LogLayout.ONE_A, LogLayout.ONE_B, LogLayout.ONE_C])
@pytest.mark.parametrize(
    ("term", "length", "stop"),
    [
        (0, 0, Status.BAD_TERM),
        (-1, 0, Status.BAD_TERM),
        (1, 0, Status.FALLING_TERM),
        (2, -1, Status.BAD_LENGTH),
        (2, 1, Status.TORN),
        (2, INT32_MAX, Status.TORN),
    ],
)
def test_an_impossible_record_of_generation_1_stops_a_walk(
    layout: LogLayout, term: int, length: int, stop: Status
) -> None:
    """docs/formats/log.md, "Walking": no checksum, so term and length are all there is to judge."""
    good = encode_header(layout) + encode_record(layout, term=2, payload=b"L")
    found = walked(good + layout.record_header.pack(term, length), layout)
    assert found == Walk([8], [2], len(good), stop)


def test_zeros_are_no_end_in_generation_1() -> None:
    assert walked(LOG_1 + bytes(8), LogLayout.ONE_B).stop is Status.BAD_TERM
    assert walked(LOG_1 + bytes(7), LogLayout.ONE_B).stop is Status.TORN


def test_a_walk_does_not_look_behind_the_end_marker() -> None:
    """It is for recovery, which asks ``scan`` before it believes an end."""
    record = encode_record(LogLayout.THREE, term=9, payload=b"x")
    assert walked(LOG_3 + record, LogLayout.THREE) == walked(LOG_3, LogLayout.THREE)


def test_every_status_has_a_word() -> None:
    assert [status.word for status in Status] == [
        "ok",
        "bad-checksum",
        "bad-marker",
        "bad-term",
        "falling-term",
        "bad-length",
        "torn",
        "zeros",
        "leftover",
        "stale",
        "undecided",
    ]


def test_a_payload_that_is_a_whole_log_is_still_one_payload() -> None:
    log = Log(layout=LogLayout.THREE, commit=-1, records=[(1, LOG_3 * 2)], tail=bytes(4))
    assert log.data.count(RECORD_MARKER) == 7
    assert walked(log.data, LogLayout.THREE) == Walk([8], [1], log.offsets[-1], None)


@given(st.binary(max_size=64))
def test_no_bytes_make_a_header_fail_otherwise_than_by_bad_data(data: bytes) -> None:
    for layout in (None, *LogLayout):
        header = attempted(decode_header, data, layout)
        if isinstance(header, BadData):
            assert header.offset is not None
        else:
            assert header.layout is (layout or detect_layout(data))
