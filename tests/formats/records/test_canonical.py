"""Canonical JSON: the order of RFC 8785, one text for one value, and everything else refused."""

from __future__ import annotations

import pytest
from hypothesis import given

from penstock.errors import BadRecord, InvalidValue
from penstock.formats.records.canonical import Json, decode_canonical, encode_canonical
from support.record_strategies import json_values


@given(json_values)
def test_values_round_trip(value: Json) -> None:
    text = encode_canonical(value)
    assert decode_canonical(text) == value
    assert encode_canonical(decode_canonical(memoryview(text))) == text


def test_names_are_sorted_by_their_utf_16_code_units() -> None:
    """The example of RFC 8785, section 3.2.3; sorting by code points would swap the last two."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    text = encode_canonical(dict.fromkeys(names, 0)).decode()
    places = [text.index(f'"{name}"' if name != "\r" else '"\\r"') for name in names]
    assert sorted(names, key=lambda name: places[names.index(name)]) == [
        "\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33",
    ]  # fmt: skip


def test_strings_are_escaped_as_the_standard_demands() -> None:
    assert encode_canonical('\x00\x08\t\n\x0b\x0c\r\x1f"\\/\x7f\u2028ä') == (
        b'"\\u0000\\b\\t\\n\\u000b\\f\\r\\u001f\\"\\\\/\x7f\xe2\x80\xa8\xc3\xa4"'
    )


@pytest.mark.parametrize(
    "text",
    [
        b"", b" 1", b"1 ", b'{"a": 1}', b'{"b":1,"a":1}', b'{"a":1,"a":1}', b"1.0", b"1e2", b"-0",
        b"01", b"NaN", b"Infinity", b'"\\u0041"', b'"\\/"', b'"\\u000A"', b'"\xff"', b"[1,]",
        b"9007199254740993", b"-9007199254740993", b"1" * 5000, b"[" * 100_000, b"\xef\xbb\xbf1",
        b'"\\ud800"', b"[" * 33 + b"]" * 33,
    ],
)  # fmt: skip
def test_text_that_is_not_canonical_is_refused(text: bytes) -> None:
    with pytest.raises(BadRecord):
        decode_canonical(text)


@pytest.mark.parametrize(
    "value", [1.5, 2**53 + 1, -(2**53) - 1, b"x", {1: 2}, "\ud800", {"\ud800": 1}]
)
def test_a_value_without_a_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue):
        encode_canonical(value)


def test_the_largest_integers_have_a_text() -> None:
    assert decode_canonical(b"[-9007199254740992,9007199254740992]") == [-(2**53), 2**53]
