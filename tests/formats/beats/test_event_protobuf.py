"""Events as protobuf: three numberings told apart by what stands in them, and read alike."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import inf
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptData, DependencyMissing, TooDeep
from penstock.formats.beats import event_protobuf
from penstock.formats.beats.event import (
    DEPTH_MAX,
    Event,
    Timestamp,
    decode_event,
    encode_event,
    event_as_json,
)
from penstock.formats.beats.event_protobuf import Generation, generation_of
from penstock.formats.beats.segment import PayloadFormat

PROTOBUF = PayloadFormat.PROTOBUF
ONE, TWO, THREE = Generation

# How values are numbered; the event's own fields below.
NUMBERS = {
    ONE: {"null": 1, "double": 2, "string": 3, "bool": 4, "struct": 5, "list": 6, "time": 7},
    TWO: {"null": 1, "double": 2, "string": 3, "bool": 4, "struct": 5, "list": 6, "time": 7},
    THREE: {"null": 1, "double": 2, "string": 8, "bool": 9, "struct": 10, "list": 11, "time": 12},
}
OUTER = {ONE: (4, 5, 6), TWO: (3, 4, 5), THREE: (3, 4, 5)}  # data stream, metadata, fields


# --- a plain encoder of the wire, to write what the library would ---------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def sized(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def eight(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + pack("<d", value)


def entry(key: str, value: bytes) -> bytes:
    return sized(1, sized(1, key.encode("utf-8", "surrogateescape")) + sized(2, value))


def value_of(generation: Generation, value: Any) -> bytes:
    """Return a value as a program of that generation writes it; the first two have no integers."""
    numbers = NUMBERS[generation]
    match value:
        case None:
            return number(numbers["null"], 0)
        case bool():
            return number(numbers["bool"], value)
        case int() if generation is THREE:
            return number(5, value)
        case int() | float():
            return eight(numbers["double"], float(value))
        case str():
            return sized(numbers["string"], value.encode("utf-8", "surrogateescape"))
        case dict():
            return sized(numbers["struct"], struct_of(generation, value))
        case list():
            items = b"".join(sized(1, value_of(generation, item)) for item in value)
            return sized(numbers["list"], items)
        case Timestamp():
            return sized(numbers["time"], number(1, value.seconds) + number(2, value.nanos))
    raise AssertionError(value)


def struct_of(generation: Generation, values: dict[str, Any]) -> bytes:
    return b"".join(entry(key, value_of(generation, value)) for key, value in values.items())


def event_of(
    generation: Generation,
    meta: dict[str, Any],
    fields: dict[str, Any],
    *,
    data_stream: bytes | None = b"",
) -> bytes:
    stream, metadata, body = OUTER[generation]
    parts = [sized(1, number(1, 7) + number(2, 9)), sized(2, sized(1, b"in-1"))]
    if data_stream is not None:
        parts.append(sized(stream, data_stream))
    if meta:
        parts.append(sized(metadata, struct_of(generation, meta)))
    if fields:
        parts.append(sized(body, struct_of(generation, fields)))
    return b"".join(parts)


STREAM = sized(1, b"logs") + sized(2, b"generic") + sized(3, b"default")
STREAM_READ = {"type": "logs", "dataset": "generic", "namespace": "default"}
EVERYTHING: dict[str, Any] = {
    "s": "text",
    "none": None,
    "f": 1.5,
    "yes": True,
    "no": False,
    "list": ["a", None, [1.5], {"b": "c"}],
    "map": {"deep": {"er": "t\u014d\udcff"}, "empty": {}},
    "time": Timestamp(1_704_164_645, 678_901_234),
    "": "an empty key",
    "key\udcff": "",
}


# --- generations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", list(Generation))
def test_each_generation_is_told_and_read(generation: Generation) -> None:
    payload = event_of(generation, {"_id": "a-1"}, EVERYTHING, data_stream=STREAM)
    assert generation_of(payload) is generation
    event = decode_event(payload, PROTOBUF)
    source = {"input_id": "in-1"}
    assert event == Event(
        7_000_000_009,
        0,
        {"_id": "a-1", "source": source, "data_stream": STREAM_READ},
        EVERYTHING,
    )


@pytest.mark.parametrize("generation", [TWO, THREE])
@pytest.mark.parametrize("value", ["t", [], {}, ["x"], {"a": 1.0}, Timestamp(1, 2)])
def test_one_value_that_they_write_differently_decides(generation: Generation, value: Any) -> None:
    for meta, fields in (({}, {"n": None, "v": value}), ({"v": value}, {"n": 1.5})):
        payload = event_of(generation, meta, fields)
        assert generation_of(payload) is generation
        event = decode_event(payload, PROTOBUF)
        assert event.fields == fields
        assert {name: event.meta[name] for name in meta} == meta


def test_numbers_of_the_third_generation_decide_and_are_read() -> None:
    values = {
        "float32": (varint(3 << 3 | 5) + pack("<f", 0.5), 0.5),
        "int32": (number(4, -5), -5),
        "int64": (number(5, -(2**63)), -(2**63)),
        "uint32": (number(6, 2**32 - 1), 2**32 - 1),
        "uint64": (number(7, 2**64 - 1), 2**64 - 1),
        "small": (number(5, 0), 0),
    }
    for name, (raw, value) in values.items():
        payload = sized(5, entry(name, raw))
        assert generation_of(payload) is THREE
        assert decode_event(payload, PROTOBUF).fields == {name: value}


def test_the_first_generation_is_told_by_its_outer_fields() -> None:
    assert generation_of(event_of(ONE, {}, {"f": 1.5}, data_stream=None)) is ONE
    # Without fields: what stands at 4 is a data stream and no map.
    payload = event_of(ONE, {"_id": "a"}, {}, data_stream=STREAM)
    assert generation_of(payload) is ONE
    assert decode_event(payload, PROTOBUF).meta == {
        "_id": "a",
        "source": {"input_id": "in-1"},
        "data_stream": STREAM_READ,
    }
    # Without a data stream the map at 4 is metadata.
    assert generation_of(event_of(TWO, {"_id": "a"}, {"b": "c"}, data_stream=None)) is TWO


def test_what_nothing_decides_counts_as_the_third() -> None:
    # Booleans of the second look like 32-bit integers of the third.
    payload = event_of(TWO, {}, {"f": 1.5, "n": None, "b": True})
    assert generation_of(payload) is THREE
    assert decode_event(payload, PROTOBUF).fields == {"f": 1.5, "n": None, "b": 1}
    assert generation_of(b"") is THREE
    assert decode_event(b"", PROTOBUF) == Event(0, 0, {}, {})


def test_metadata_that_is_called_source_stays() -> None:
    payload = event_of(THREE, {"source": "mine"}, {})
    assert decode_event(payload, PROTOBUF).meta == {"source": "mine", "data_stream": {}}


def test_what_a_later_program_adds_is_passed_over() -> None:
    payload = event_of(THREE, {}, {"a": "b"}) + sized(99, b"new") + number(98, 1)
    assert decode_event(payload, PROTOBUF).fields == {"a": "b"}
    assert decode_event(sized(5, entry("a", number(50, 1))), PROTOBUF).fields == {"a": None}


# --- times ---------------------------------------------------------------------------------------


def test_gos_zero_time_wraps_around_as_in_the_other_formats() -> None:
    payload = sized(1, number(1, -62_135_596_800))
    assert decode_event(payload, PROTOBUF).timestamp == -6_795_364_578_871_345_152


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(-62_135_596_801, 0), (253_402_300_800, 0), (0, -1), (0, 10**9), (-(2**63), 0)],
)
def test_times_that_no_calendar_has_are_refused(seconds: int, nanos: int) -> None:
    time = number(1, seconds) + number(2, nanos)
    with pytest.raises(CorruptData):
        decode_event(sized(1, time), PROTOBUF)
    with pytest.raises(CorruptData):
        decode_event(sized(5, entry("t", sized(12, time))), PROTOBUF)


# --- writing -------------------------------------------------------------------------------------

TEXTS = st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        TEXTS,
        st.builds(Timestamp, st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 10**9 - 1)),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
MAPS = st.dictionaries(TEXTS, VALUES, max_size=4)


@settings(max_examples=60)
@given(st.integers(-(2**63), 2**63 - 1), MAPS, MAPS)
def test_an_event_comes_back(timestamp: int, meta: dict[str, Any], fields: dict[str, Any]) -> None:
    event = Event(timestamp, 0, meta, fields)
    # Something in it says that it is of the third.
    event.fields["message"] = "text"
    assert decode_event(encode_event(event, PROTOBUF), PROTOBUF) == event


def test_source_and_data_stream_come_back_where_they_have_their_shape() -> None:
    metas: list[dict[str, Any]] = [
        {"source": {"input_id": "a", "stream_id": "b\udcff"}, "data_stream": STREAM_READ},
        {"source": {}, "data_stream": {}},
        {"source": {"input_id": 1}, "data_stream": {"other": "x"}},
        {"source": "text", "data_stream": ["x"]},
    ]
    for meta in metas:
        event = Event(-1, 0, meta, {"message": "text"})
        assert decode_event(encode_event(event, PROTOBUF), PROTOBUF) == event


def test_flags_have_no_place_and_bytes_are_maps_with_base64() -> None:
    event = Event(5, 1, {}, {"f": [inf, "x"]})
    assert decode_event(encode_event(event, PROTOBUF), PROTOBUF) == Event(5, 0, {}, event.fields)
    for raw in (b"\xff\x00", bytearray(b"\xff\x00"), memoryview(b"\xff\x00")):
        found = decode_event(encode_event(Event(0, 0, {}, {"b": [raw]}), PROTOBUF), PROTOBUF)
        # As they are shown, whatever they were written in.
        assert found.fields == {"b": [{"base64": "/wA="}]}
        assert event_as_json(found)["fields"] == found.fields


# --- hostile payloads ----------------------------------------------------------------------------


def nested(generation: Generation, depth: int, *, as_map: bool) -> bytes:
    """Return an event with maps or lists within each other, from the inside out."""
    value = value_of(generation, "x")
    for _ in range(depth):
        inner = entry("a", value) if as_map else sized(1, value)
        value = sized(NUMBERS[generation]["struct" if as_map else "list"], inner)
    return sized(OUTER[generation][2], entry("a", value))


@pytest.mark.parametrize("generation", list(Generation))
@pytest.mark.parametrize("as_map", [False, True])
def test_depth_is_bounded_by_us_and_not_by_the_library(
    generation: Generation, as_map: bool
) -> None:
    event = decode_event(nested(generation, DEPTH_MAX - 2, as_map=as_map), PROTOBUF)
    assert decode_event(encode_event(event, PROTOBUF), PROTOBUF) == event
    for depth in (DEPTH_MAX - 1, 2_000):
        with pytest.raises(TooDeep):
            decode_event(nested(generation, depth, as_map=as_map), PROTOBUF)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff" * 11,
        b"\x0b\x0c",  # a group
        b"\x0e",  # a wire type that is none
        b"\x00\x01",  # a field without a number
        b"\x2a\x03\x0a\x01\x0a",
        b"\x2a\x05\x0a\x03\x12\x01\x42",
        b"\x0a\x02\x08",
    ],
)
def test_what_is_no_protobuf_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_event(payload, PROTOBUF)


@pytest.fixture
def without_protobuf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    event_protobuf._messages.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    yield
    event_protobuf._messages.cache_clear()


@pytest.mark.usefixtures("without_protobuf")
def test_a_missing_library_is_named_by_its_extra() -> None:
    with pytest.raises(DependencyMissing, match=r"pip install 'penstock\[spool\]'"):
        decode_event(b"", PROTOBUF)
    with pytest.raises(DependencyMissing, match=r"pip install 'penstock\[spool\]'"):
        encode_event(Event(0, 0, {}, {}), PROTOBUF)
