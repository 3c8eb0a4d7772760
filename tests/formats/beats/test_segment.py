"""Headers and names of segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, InvalidValue, TruncatedData, UnsupportedVersion
from penstock.formats.beats.segment import (
    COUNT_OFFSET,
    Header,
    Options,
    PayloadFormat,
    decode_header,
    encode_header,
    segment_name,
    segment_number,
)

COUNTS = st.integers(0, 2**32 - 1)
HEADERS = st.one_of(
    st.just(Header(0, 0)),
    st.builds(Header, st.just(1), COUNTS),
    st.builds(Header, st.just(2), COUNTS, st.integers(0, 7).map(Options)),
)


@given(HEADERS, st.binary())
def test_a_header_comes_back_whatever_stands_behind_it(header: Header, rest: bytes) -> None:
    data = encode_header(header)
    assert len(data) == header.size
    assert decode_header(data + rest) == header
    assert decode_header(memoryview(data + rest)) == header


@given(HEADERS)
def test_a_header_cut_anywhere_is_truncated(header: Header) -> None:
    data = encode_header(header)
    for size in range(len(data)):
        with pytest.raises(TruncatedData):
            decode_header(data[:size])


@given(st.binary(max_size=16))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        header = decode_header(data)
    except BadData:
        return
    assert encode_header(header) == data[: header.size]


def test_sizes_and_starts_follow_from_version_and_options() -> None:
    assert [Header(version, 0).size for version in (0, 1, 2)] == [4, 8, 12]
    starts = [Header(2, 0, Options(options)).body_start for options in range(8)]
    assert starts == [12, 28] * 4
    assert encode_header(Header(2, 7, Options.COMPRESSED))[COUNT_OFFSET:8] == b"\7\0\0\0"


def test_the_payload_format_follows_from_version_and_options() -> None:
    assert Header(0, 0).payload_format is PayloadFormat.JSON
    assert Header(1, 0).payload_format is PayloadFormat.CBOR
    formats = [Header(2, 0, Options(options)).payload_format for options in range(8)]
    assert formats == [PayloadFormat.CBOR] * 4 + [PayloadFormat.PROTOBUF] * 4


@pytest.mark.parametrize(
    ("version", "count", "options"),
    [(3, 0, 0), (-1, 0, 0), (0, 1, 0), (1, 2**32, 0), (1, 0, 2), (2, 0, 8), (2, -1, 0)],
)
def test_a_header_that_no_file_may_have_is_refused(version: int, count: int, options: int) -> None:
    with pytest.raises(InvalidValue):
        Header(version, count, Options(options))


def test_unknown_options_are_refused_rather_than_guessed() -> None:
    for bit in range(3, 32):
        data = (2).to_bytes(4, "little") + bytes(4) + (1 << bit).to_bytes(4, "little")
        with pytest.raises(UnsupportedVersion, match="options"):
            decode_header(data)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("0.seg", 0),
        ("12.seg", 12),
        ("007.seg", 7),
        ("000.seg", 0),
        ("5.SEG", 5),
        ("18446744073709551615.seg", 2**64 - 1),
        ("0" * 200 + "1.seg", 1),
        ("18446744073709551616.seg", None),
        ("9" * 5000 + ".seg", None),
        ("1.seg.tmp", None),
        ("1.2.seg", None),
        (".seg", None),
        ("seg", None),
        ("1", None),
        ("1.", None),
        ("+1.seg", None),
        ("-1.seg", None),
        ("1_0.seg", None),
        ("0x1.seg", None),
        (" 1.seg", None),
        ("١.seg", None),
        ("²‌.seg", None),
        ("1.ſeg", None),
        ("state.dat", None),
    ],
)
def test_a_name_is_a_segments_only_as_beats_sees_it(name: str, number: int | None) -> None:
    assert segment_number(name) == number


@given(st.integers(0, 2**64 - 1))
def test_a_number_comes_back_from_its_name(number: int) -> None:
    assert segment_number(segment_name(number)) == number
