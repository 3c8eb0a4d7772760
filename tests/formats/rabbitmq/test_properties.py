"""Properties: golden bytes of every type of header, round trips, damage, and hostile claims."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, InvalidValue, TruncatedData
from penstock.formats.rabbitmq.properties import (
    COUNT_MAX,
    DEPTH_MAX,
    Decimal,
    Header,
    Kind,
    Properties,
    Table,
    Value,
    decode_properties,
    decode_table,
    encode_properties,
    encode_table,
    json_of_block,
    json_of_properties,
    properties_of_json,
)
from penstock.formats.rabbitmq.property_terms import properties_of_term, term_of_properties
from penstock.formats.rabbitmq.terms import Atom, decode_term, encode_term
from support.damage import cuts, flipped
from support.refusal import attempted

# The bytes behind the name of a header, the value, and how JSON shows it.
VALUES: list[tuple[str, Value, Any]] = [
    ("53 00000002 6869", Value(Kind.TEXT, b"hi"), "hi"),
    ("53 00000001 FF", Value(Kind.TEXT, b"\xff"), {"base64": "/w=="}),
    ("78 00000002 00FF", Value(Kind.BINARY, b"\x00\xff"), {"base64": "AP8="}),
    ("74 01", Value(Kind.BOOLEAN, True), True),
    ("74 00", Value(Kind.BOOLEAN, False), False),
    ("62 9C", Value(Kind.INT8, -100), -100),
    ("42 C8", Value(Kind.UINT8, 200), 200),
    ("73 8AD0", Value(Kind.INT16, -30000), -30000),
    ("75 EA60", Value(Kind.UINT16, 60000), 60000),
    ("49 FFFFFFF9", Value(Kind.INT32, -7), -7),
    ("69 EE6B2800", Value(Kind.UINT32, 4_000_000_000), 4_000_000_000),
    ("6C FFFFFFFFFFFFFFFB", Value(Kind.INT64, -5), -5),
    ("66 3F000000", Value(Kind.FLOAT, 0.5), 0.5),
    ("64 400A000000000000", Value(Kind.DOUBLE, 3.25), 3.25),
    (
        "44 03 00003039",
        Value(Kind.DECIMAL, Decimal(scale=3, unscaled=12345)),
        {"scale": 3, "unscaled": 12345},
    ),
    ("54 00000000645600D9", Value(Kind.TIMESTAMP, 0x645600D9), 0x645600D9),
    ("56", Value(Kind.VOID, None), None),
    ("46 00000000", Value(Kind.TABLE, ()), []),
    (
        "46 00000004 016B 7401",
        Value(Kind.TABLE, (Header(b"k", Value(Kind.BOOLEAN, True)),)),
        [{"name": "k", "type": "bool", "value": True}],
    ),
    (
        "41 00000003 56 7400",
        Value(Kind.ARRAY, (Value(Kind.VOID, None), Value(Kind.BOOLEAN, False))),
        [{"type": "void", "value": None}, {"type": "bool", "value": False}],
    ),
]

ALL = Properties(
    content_type=b"application/json",
    content_encoding=b"gzip",
    headers=tuple(Header(f"h{n}".encode(), value) for n, (_, value, _) in enumerate(VALUES)),
    delivery_mode=2,
    priority=7,
    correlation_id=b"c",
    reply_to=b"r",
    expiration=b"60000",
    message_id=b"m",
    timestamp=1_700_000_000,
    type=b"t",
    user_id=b"guest",
    app_id=b"a",
    cluster_id=b"\xff",
)


# --- golden bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value", "shown"), VALUES, ids=lambda x: str(x)[:24])
def test_every_type_of_header_is_read_and_written(text: str, value: Value, shown: Any) -> None:
    data = b"\x01n" + bytes.fromhex(text)
    table = (Header(b"n", value),)
    assert decode_table(data) == decode_table(memoryview(data)) == table
    assert encode_table(table) == data
    headers = json_of_properties(Properties(headers=table))["headers"]
    assert headers == [{"name": "n", "type": value.kind.label, "value": shown}]


def test_there_is_an_example_of_every_type() -> None:
    assert {value.kind for _, value, _ in VALUES} == set(Kind)


def test_both_letters_of_a_long_are_read_and_the_small_one_written() -> None:
    table = (Header(b"n", Value(Kind.INT64, -1)),)
    for code in (b"l", b"L"):
        assert decode_table(b"\x01n" + code + b"\xff" * 8) == table
    assert encode_table(table)[2:3] == b"l"


@pytest.mark.parametrize("byte", [1, 2, 0xFF])
def test_any_byte_but_zero_is_true(byte: int) -> None:
    assert decode_table(b"\x01nt" + bytes((byte,)))[0].value.value is True


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("0000", Properties()),
        ("1000 02", Properties(delivery_mode=2)),
        ("2000 00000000", Properties(headers=())),
        ("8000 01 61", Properties(content_type=b"a")),
        ("4000 01 61", Properties(content_encoding=b"a")),
        ("0800 09", Properties(priority=9)),
        ("0400 00", Properties(correlation_id=b"")),
        ("0200 01 61", Properties(reply_to=b"a")),
        ("0100 01 31", Properties(expiration=b"1")),
        ("0080 01 61", Properties(message_id=b"a")),
        ("0040 000000006553F100", Properties(timestamp=1_700_000_000)),
        ("0020 01 61", Properties(type=b"a")),
        ("0010 01 61", Properties(user_id=b"a")),
        ("0008 01 61", Properties(app_id=b"a")),
        ("0004 01 61", Properties(cluster_id=b"a")),
        ("1010 02 01 61", Properties(delivery_mode=2, user_id=b"a")),
    ],
)
def test_each_flag_is_a_property(text: str, properties: Properties) -> None:
    data = bytes.fromhex(text)
    assert decode_properties(data) == decode_properties(memoryview(data)) == properties
    assert encode_properties(properties) == data


def test_the_two_flags_of_no_property_are_not_looked_at() -> None:
    assert decode_properties(bytes.fromhex("1003 02")) == Properties(delivery_mode=2)


# --- round trips ---------------------------------------------------------------------------------

floats = st.floats(allow_nan=False, allow_infinity=False)


def limits(form: str) -> st.SearchStrategy[int]:
    bits = 8 * struct.calcsize(form)
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if form.islower() else st.integers(
        0, (1 << bits) - 1
    )  # fmt: skip


def of(kind: Kind, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Value]:
    return values.map(lambda value: Value(kind, value))


leaves = st.one_of(
    of(Kind.TEXT, st.binary(max_size=20) | st.text(max_size=9).map(str.encode)),
    of(Kind.BINARY, st.binary(max_size=20)),
    of(Kind.BOOLEAN, st.booleans()),
    of(Kind.INT8, limits("b")),
    of(Kind.UINT8, limits("B")),
    of(Kind.INT16, limits("h")),
    of(Kind.UINT16, limits("H")),
    of(Kind.INT32, limits("i")),
    of(Kind.UINT32, limits("I")),
    of(Kind.INT64, limits("q")),
    of(Kind.TIMESTAMP, limits("Q")),
    of(Kind.FLOAT, st.floats(allow_nan=False, allow_infinity=False, width=32)),
    of(Kind.DOUBLE, floats),
    of(Kind.DECIMAL, st.builds(Decimal, scale=limits("B"), unscaled=limits("I"))),
    st.just(Value(Kind.VOID, None)),
)
names = st.binary(max_size=12) | st.text(max_size=6).map(str.encode)


def tables(values: st.SearchStrategy[Value]) -> st.SearchStrategy[Table]:
    return st.lists(st.builds(Header, names, values), max_size=4).map(tuple)


values = st.recursive(
    leaves,
    lambda inner: of(Kind.TABLE, tables(inner)) | of(Kind.ARRAY, st.lists(inner, max_size=4).map(tuple)),
    max_leaves=10,
)  # fmt: skip
short = st.none() | st.binary(max_size=255)
properties = st.builds(
    Properties,
    content_type=short,
    content_encoding=short,
    headers=st.none() | tables(values),
    delivery_mode=st.none() | limits("B"),
    priority=st.none() | limits("B"),
    correlation_id=short,
    reply_to=short,
    expiration=short,
    message_id=short,
    timestamp=st.none() | limits("Q"),
    type=short,
    user_id=short,
    app_id=short,
    cluster_id=short,
)


@given(properties)
def test_all_properties_come_back_from_bytes_terms_and_json(found: Properties) -> None:
    assert decode_properties(encode_properties(found)) == found
    term = decode_term(encode_term(term_of_properties(found)), views=True)
    assert properties_of_term(term) == found
    shown = json_of_properties(found)
    assert json_of_block(encode_properties(found)) == shown
    assert properties_of_json(json.loads(json.dumps(shown, allow_nan=False))) == found


def test_the_sample_comes_back() -> None:
    assert decode_properties(encode_properties(ALL)) == ALL
    assert properties_of_term(term_of_properties(ALL)) == ALL
    assert properties_of_json(json_of_properties(ALL)) == ALL


# --- damage --------------------------------------------------------------------------------------


def test_properties_cut_anywhere_are_truncated() -> None:
    for cut in cuts(encode_properties(ALL)):
        with pytest.raises(TruncatedData):
            decode_properties(cut)


def test_a_flipped_bit_gives_properties_or_bad_data() -> None:
    data = encode_properties(ALL)
    refused = 0
    for bit in range(8 * len(data)):
        found = attempted(decode_properties, flipped(data, bit))
        shown = attempted(json_of_block, flipped(data, bit))
        if isinstance(found, BadData):
            refused += 1
            assert str(shown) == str(found)
        else:
            assert decode_properties(encode_properties(found)) == found
            assert shown == json_of_properties(found)
    assert refused > len(data)


@given(st.binary(max_size=80))
def test_garbage_gives_properties_or_bad_data(data: bytes) -> None:
    for start in (b"", b"\x20\x00\x00\x00\x00", b"\x20\x00\x00\x00\x00\x20\x01nF\x00\x00\x00"):
        attempted(decode_properties, start + data)
        attempted(decode_table, start + data)


@pytest.mark.parametrize(
    "text",
    [
        "1000 0200",  # a byte too many
        "2000 00000003 016E 51",  # an unknown type
        "2000 00000007 016E 66 7FC00000",  # not a number: the broker does not read it either
        "2000 0000000B 016E 64 7FF0000000000000",
    ],
)
def test_what_the_broker_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(CorruptData):
        decode_properties(bytes.fromhex(text))


def test_a_table_does_not_reach_beyond_its_length() -> None:
    with pytest.raises(TruncatedData):
        decode_properties(bytes.fromhex("3000 00000003 016E 74 01 02"))
    with pytest.raises(TruncatedData):
        decode_table(bytes.fromhex("016E 46 00000003 016B 74 01"))


P_BASIC = (Atom("P_basic"), *[Atom("undefined")] * 14)


@pytest.mark.parametrize(
    "term",
    [
        Atom("none"),
        P_BASIC[:-1],
        (Atom("p_basic"), *P_BASIC[1:]),
        (*P_BASIC[:3], b"", *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("longstr"))], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("string"), b"")], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", 1, b"")], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("byte"), 128)], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("byte"), b"1")], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("bool"), Atom("maybe"))], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("bool"), 1)], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("float"), 1e300)], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("double"), 2**3000)], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("decimal"), b"\x01\x02")], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("decimal"), [1, 2])], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("array"), ())], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("array"), [Atom("void")])], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("table"), ())], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n" * 256, Atom("void"), Atom("undefined"))], *P_BASIC[4:]),
        (*P_BASIC[:3], [(b"n", Atom("longstr"), [256])], *P_BASIC[4:]),
        (*P_BASIC[:4], 256, *P_BASIC[5:]),
        (*P_BASIC[:4], b"2", *P_BASIC[5:]),
        (*P_BASIC[:1], b"a" * 256, *P_BASIC[2:]),
        (*P_BASIC[:1], 1, *P_BASIC[2:]),
    ],
    ids=lambda term: str(term)[60:110],
)
def test_terms_that_are_no_properties_are_refused(term: Any) -> None:
    with pytest.raises(CorruptData):
        properties_of_term(term)


def test_plugins_may_write_strings_and_whole_floats() -> None:
    headers = [(list(b"n"), Atom("longstr"), list(b"text")), (b"d", Atom("double"), 2)]
    term: Any = (*P_BASIC[:3], headers, *P_BASIC[4:])
    assert properties_of_term(term).headers == (
        Header(b"n", Value(Kind.TEXT, b"text")),
        Header(b"d", Value(Kind.DOUBLE, 2.0)),
    )


@pytest.mark.parametrize(
    "found",
    [
        {"colour": "red"},
        {"priority": 256},
        {"priority": -1},
        {"priority": True},
        {"priority": "7"},
        {"type": 7},
        {"type": {"base64": "?"}},
        {"type": "\ud800"},
        {"type": "a" * 256},
        {"headers": {}},
        {"headers": [{"type": "void", "value": None}]},
        {"headers": [{"name": "n", "type": "string", "value": ""}]},
        {"headers": [{"name": "n", "type": "byte", "value": 128}]},
        {"headers": [{"name": "n", "type": "byte", "value": True}]},
        {"headers": [{"name": "n", "type": "double", "value": float("nan")}]},
        {"headers": [{"name": "n", "type": "array", "value": "ab"}]},
        {"headers": [{"name": "n", "type": "decimal", "value": {"scale": 256, "unscaled": 1}}]},
    ],
)
def test_json_that_is_no_properties_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        properties_of_json(found)


# --- hostile claims ------------------------------------------------------------------------------


def peak_of(data: bytes) -> tuple[int, BadData]:
    tracemalloc.start()
    try:
        with pytest.raises(BadData) as caught:
            decode_properties(data)
        return tracemalloc.get_traced_memory()[1], caught.value
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("code", [b"S", b"x", b"F", b"A"])
@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff"])
def test_a_claim_of_gigabytes_is_refused_without_memory(code: bytes, size: bytes) -> None:
    for data in (b"\x20\x00" + size, b"\x20\x00\x00\x00\x00\x0a\x01n" + code + size + bytes(9)):
        peak, error = peak_of(data)
        assert isinstance(error, TruncatedData)
        assert peak < 100_000


def nested(code: bytes, name: bytes, depth: int) -> bytes:
    """Return a table in which tables or arrays are nested ``depth`` deep, each of the right length."""
    parts = []
    size = 0
    for level in range(depth):
        head = (b"\x01n" if level == depth - 1 else name) + code + size.to_bytes(4, "big")
        parts.append(head)
        size += len(head)
    return b"\x20\x00" + size.to_bytes(4, "big") + b"".join(reversed(parts))


@pytest.mark.parametrize(("code", "name"), [(b"F", b"\x01n"), (b"A", b"")])
def test_a_nesting_of_100_000_is_refused_early(code: bytes, name: bytes) -> None:
    peak, error = peak_of(nested(code, name, 100_000))
    assert "deep" in error.reason
    assert peak < 1_000_000
    found = decode_properties(nested(code, name, DEPTH_MAX))
    assert properties_of_term(decode_term(encode_term(term_of_properties(found)))) == found
    assert properties_of_json(json_of_properties(found)) == found
    with pytest.raises(CorruptData, match="deep"):
        decode_properties(nested(code, name, DEPTH_MAX + 1))


@pytest.mark.slow
def test_a_block_of_too_many_values_is_refused() -> None:
    """A byte in the file may cost a hundred in memory."""
    table = b"\x00V" * (4 * COUNT_MAX)
    peak, error = peak_of(b"\x20\x00" + len(table).to_bytes(4, "big") + table)
    assert "values" in error.reason
    assert peak < 250 * COUNT_MAX
    with pytest.raises(CorruptData, match="values"):
        decode_table((b"\x00A\x00\x00\x00\x0a" + b"V" * 10) * COUNT_MAX)
    assert len(decode_table(b"\x00V" * COUNT_MAX)) == COUNT_MAX
