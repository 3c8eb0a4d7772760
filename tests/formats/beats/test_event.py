"""Events as JSON and CBOR: exact times, text of any bytes, and payloads that nobody should have written."""

from __future__ import annotations

import json
import re
import sys
import tracemalloc
from datetime import UTC, datetime, timedelta
from math import inf, isnan, nan
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import CorruptData, DependencyMissing, InvalidValue, TooDeep
from penstock.formats.beats import event as event_module
from penstock.formats.beats.event import (
    DEPTH_MAX,
    Event,
    Timestamp,
    decode_event,
    encode_event,
    event_as_json,
    timestamp_text,
)
from penstock.formats.beats.segment import PayloadFormat
from support.damage import flipped

CBOR, JSON = PayloadFormat.CBOR, PayloadFormat.JSON

TEXTS = st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
KEYS = TEXTS.filter(bool)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        TEXTS,
        st.binary(),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
MAPS = st.dictionaries(KEYS, VALUES, max_size=4)
EVENTS = st.builds(Event, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), MAPS, MAPS)


def cbor_event(fields: bytes, *, timestamp: bytes = b"\x00") -> bytes:
    """Return an event in CBOR whose fields are these bytes."""
    return b"\xa4\x69timestamp" + timestamp + b"\x65flags\x01\x64meta\xa0\x66fields" + fields


# --- CBOR ----------------------------------------------------------------------------------------


@given(EVENTS)
def test_an_event_comes_back_from_cbor_that_beats_can_read(event: Event) -> None:
    payload = encode_event(event, CBOR)
    assert decode_event(payload, CBOR) == event
    assert decode_event(memoryview(payload), CBOR) == event
    assert payload.startswith(b"\xa4\x69timestamp")

    def refuse(*_: object) -> Any:
        raise AssertionError("a tag")

    value = cbor2.loads(
        payload, str_errors="surrogateescape", allow_indefinite=False, tag_hook=refuse
    )
    assert list(value) == ["timestamp", "flags", "meta", "fields"]
    assert value["fields"] == event.fields


@given(st.binary(), st.binary(min_size=1))
@example(b"\xff\xfe", b"\xed\xa0\x80")  # half a surrogate pair as UTF-8 would have it
def test_text_that_is_not_utf8_survives_byte_for_byte(text: bytes, key: bytes) -> None:
    def item(kind: int, data: bytes) -> bytes:
        head = bytes((kind | len(data),)) if len(data) < 24 else bytes((kind | 24, len(data)))
        return head + data

    text, key = text[:255], key[:255]
    payload = cbor_event(b"\xa1" + item(0x60, key) + item(0x60, text))
    event = decode_event(payload, CBOR)
    assert event.fields == {
        key.decode("utf-8", "surrogateescape"): text.decode("utf-8", "surrogateescape")
    }
    assert encode_event(event, CBOR) == payload


NEGATIVE = {
    -1: "20", -24: "37", -25: "3818", -128: "387f",
    -129: "390080", -200: "3900c7", -256: "3900ff", -257: "390100", -32_768: "397fff",
    -32_769: "3a00008000", -65_536: "3a0000ffff", -65_537: "3a00010000", -(2**31): "3a7fffffff",
    -(2**31) - 1: "3b0000000080000000", -(2**32): "3b00000000ffffffff",
    -(2**32) - 1: "3b0000000100000000", -(2**63): "3b7fffffffffffffff",
}  # fmt: skip


def test_negative_integers_that_beats_misreads_are_written_one_width_wider() -> None:
    # Beats reads those whose argument has the top bit of its width set as something else: -200 as 56.
    numbers = list(NEGATIVE)
    event = Event(0, 1, {}, {"numbers": numbers})
    payload = encode_event(event, CBOR)
    items = b"".join(bytes.fromhex(text) for text in NEGATIVE.values())
    assert payload == cbor_event(b"\xa1\x67numbers" + bytes([0x80 | len(numbers)]) + items)
    assert decode_event(payload, CBOR) == event
    shortest = cbor_event(b"\xa1\x67numbers" + cbor2.dumps([*numbers, -(2**64)]))
    assert decode_event(shortest, CBOR).fields == {"numbers": [*numbers, -(2**64)]}


def test_a_negative_integer_that_beats_cannot_read_is_not_written() -> None:
    with pytest.raises(InvalidValue):
        encode_event(Event(0, 1, {}, {"n": -(2**63) - 1}), CBOR)


def test_an_empty_key_is_read_and_not_written() -> None:
    event = decode_event(cbor_event(b"\xa1\x60\x01"), CBOR)
    assert event.fields == {"": 1}
    for fields in ({"": 1}, {"a": {"": 1}}, {"a": [{"": 1}]}):
        with pytest.raises(InvalidValue, match="an empty key, which Beats cannot read"):
            encode_event(Event(0, 0, {}, fields), CBOR)
    assert decode_event(encode_event(event, JSON), JSON) == event


def test_what_beats_rarely_writes_is_read() -> None:
    fields = (
        b"\xbf"  # a map and a list without a length
        b"\x64list\x9f\x01\xf7\xff"  # undefined is null
        b"\x66single\xfa\x3f\xc0\x00\x00"
        b"\x64half\xf9\x3e\x00"
        b"\x65bytes\x42\x00\xff"
        b"\x65chunk\x7f\x61a\x61b\xff"
        b"\x64none\xf7"
        b"\xff"
    )
    assert decode_event(cbor_event(fields), CBOR).fields == {
        "list": [1, None],
        "single": 1.5,
        "half": 1.5,
        "bytes": b"\x00\xff",
        "chunk": "ab",
        "none": None,
    }


def test_floats_are_written_as_doubles_whatever_they_are() -> None:
    payload = encode_event(Event(0, 1, {}, {"f": [inf, -inf, nan, 0.0, 1.0]}), CBOR)
    assert payload == cbor_event(
        b"\xa1\x61f\x85"
        b"\xfb\x7f\xf0\0\0\0\0\0\0\xfb\xff\xf0\0\0\0\0\0\0\xfb\x7f\xf8\0\0\0\0\0\0"
        b"\xfb\0\0\0\0\0\0\0\0\xfb\x3f\xf0\0\0\0\0\0\0"
    )
    values = decode_event(payload, CBOR).fields["f"]
    assert values[:2] == [inf, -inf]
    assert isnan(values[2])


@pytest.mark.parametrize(
    "fields",
    [
        b"\xa1\x01\x02",  # a key that is a number
        b"\xa1\x41a\x02",  # and one of bytes
        b"\xa1\xf6\x02",
        b"\xa1\x61a\xc0\x60",  # tags: a time
        b"\xa1\x61a\xc2\x41\x01",  # a large integer
        b"\xa1\x61a\xc5\x82\x1a\x7f\xff\xff\xff\x01",  # a float with 2 to the power of 2 billion
        b"\xa1\x61a\xd8\x1c\x81\xd8\x1d\x00",  # a list that holds itself
        b"\xa1\x61a\xd9\xd9\xf7\x01",
        b"\xa1\x61a\xda\xff\xff\xff\xff\x01",
        b"\xa1\x61a\xe0",  # a simple value that nobody knows
        b"\xa1\x61a\x81\xf8\x20",
        b"\x80",  # no map
        b"\x01",
        b"\xa1\x61a\x1c",  # not CBOR
        b"\xa1\x61a",
        b"\xff",
    ],
)
def test_cbor_that_no_event_has_is_refused(fields: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_event(cbor_event(fields), CBOR)


@pytest.mark.parametrize("payload_format", [CBOR, JSON])
@pytest.mark.parametrize(
    ("entry", "event"),
    [
        ({"timestamp": 1}, Event(1, 0, {}, {})),
        ({"timestamp": 1, "flags": 2, "meta": None, "fields": None}, Event(1, 2, {}, {})),
        ({"more": 1, "timestamp": 1, "fields": {"a": 1}}, Event(1, 0, {}, {"a": 1})),
        ({}, None),
        ({"fields": {}}, None),
        ({"timestamp": None}, None),
        ({"timestamp": True}, None),
        ({"timestamp": 1.0}, None),
        ({"timestamp": "1"}, None),
        ({"timestamp": 2**63}, None),
        ({"timestamp": -(2**63) - 1}, None),
        ({"timestamp": 1, "flags": -1}, None),
        ({"timestamp": 1, "flags": 2**32}, None),
        ({"timestamp": 1, "flags": None}, None),
        ({"timestamp": 1, "meta": []}, None),
        ({"timestamp": 1, "fields": "a"}, None),
        ([], None),
        ("text", None),
        (None, None),
    ],
)
def test_what_is_missing_is_empty_but_the_time(
    payload_format: PayloadFormat, entry: Any, event: Event | None
) -> None:
    payload = json.dumps(entry).encode() if payload_format is JSON else cbor2.dumps(entry)
    if event is None:
        with pytest.raises(CorruptData):
            decode_event(payload, payload_format)
    else:
        assert decode_event(payload, payload_format) == event


# --- JSON ----------------------------------------------------------------------------------------


def json_event(fields: bytes, timestamp: bytes = b"1") -> bytes:
    return b'{"timestamp":%s,"flags":1,"meta":{},"fields":%s}' % (timestamp, fields)


def test_times_of_19_digits_are_exact() -> None:
    for timestamp in (1_704_164_645_678_901_234, 2**63 - 1, -(2**63), 9_007_199_254_740_993):
        payload = json_event(b"{}", str(timestamp).encode())
        assert decode_event(payload, JSON).timestamp == timestamp
        assert decode_event(payload, CBOR).timestamp == timestamp
        assert encode_event(Event(timestamp, 1, {}, {}), JSON) == payload


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_an_event_comes_back_from_json(fields: dict[str, Any]) -> None:
    event = Event(5, 0, {}, fields)
    payload = encode_event(event, JSON)
    assert decode_event(payload, JSON) == event
    assert json.loads(payload)["fields"] == fields
    assert not set(payload) & set(b"<>&\n")


def test_json_is_written_as_beats_did() -> None:
    text = '\x00\b\n\r\t\x1f\x7f"\\<>&\u2028\u2029\u014d\U0001f600\udcff/'
    event = Event(1, 1, {}, {"t": text, "f": [1.0, -0.5, 1e300], "b": b"\x00\xff", "n": None})
    assert encode_event(event, JSON) == json_event(
        rb'{"t":"\u0000\u0008\n\r\t\u001f' + b"\x7f" + rb"\"\\\u003c\u003e\u0026\u2028\u2029"
        + "\u014d\U0001f600".encode() + rb'\ufffd/","f":[1,-0.5,1e+300],"b":[0,255],"n":null}'
    )  # fmt: skip


def test_raw_bytes_in_json_that_are_not_utf8_come_back_as_they_were() -> None:
    event = decode_event(json_event(b'{"a":"\xff\xc5"}'), JSON)
    assert event.fields == {"a": "\udcff\udcc5"}
    assert encode_event(event, CBOR) == cbor_event(b"\xa1\x61a\x62\xff\xc5", timestamp=b"\x01")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\uD83D\uDE00", "\U0001f600"),
        (rb"\ud83d", "\ufffd"),
        (rb"\ude00", "\ufffd"),
        (rb"\udc80", "\ufffd"),  # not the byte 80
        (rb"\ud83dx\ud83d\ud83d\ude00", "\ufffdx\ufffd\U0001f600"),
        (rb"\\ud83d", r"\ud83d"),
        (rb"\\\ud83d", "\\\ufffd"),
        (b"\xff\\ud83d", "\udcff\ufffd"),
    ],
)
def test_half_a_pair_in_json_is_no_character(text: bytes, expected: str) -> None:
    event = decode_event(json_event(b'{"a":"' + text + b'"}'), JSON)
    assert event.fields == {"a": expected}
    encode_event(event, CBOR)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        json_event(b"{}") + b"x",
        json_event(b'{"a":NaN}'),
        json_event(b'{"a":-Infinity}'),
        json_event(b'{"a":' + b"1" * 5000 + b"}"),
        json_event(b"{a:1}"),
        b"[1]",
        b"\xff\xfe",
    ],
)
def test_json_that_no_event_has_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_event(payload, JSON)


def test_json_has_no_infinity() -> None:
    for value in (inf, -inf, nan):
        with pytest.raises(InvalidValue, match="JSON has no"):
            encode_event(Event(0, 0, {}, {"f": value}), JSON)


# --- bombs and garbage ---------------------------------------------------------------------------


@pytest.mark.parametrize("payload_format", [CBOR, JSON])
def test_depth_is_bounded(payload_format: PayloadFormat) -> None:
    def nested(depth: int, *, as_map: bool) -> bytes:
        if payload_format is CBOR:
            return cbor_event(
                b"\xa1\x61a" + (b"\xa1\x61a" if as_map else b"\x81") * depth + b"\x01"
            )
        opened, closed = (b'{"a":', b"}") if as_map else (b"[", b"]")
        return json_event(b'{"a":' + opened * depth + b"1" + closed * depth + b"}")

    for as_map in (False, True):
        # The event and its fields are two.
        event = decode_event(nested(DEPTH_MAX - 2, as_map=as_map), payload_format)
        assert decode_event(encode_event(event, payload_format), payload_format) == event
        for depth in (DEPTH_MAX - 1, 1_000, 100_000):
            with pytest.raises(TooDeep):
                decode_event(nested(depth, as_map=as_map), payload_format)


@pytest.mark.parametrize("payload_format", list(PayloadFormat))
def test_what_is_too_deep_is_not_written(payload_format: PayloadFormat) -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX - 2):
        value = [value]
    encode_event(Event(0, 0, {}, {"a": value}), payload_format)
    with pytest.raises(InvalidValue):
        encode_event(Event(0, 0, {}, {"a": [value]}), payload_format)
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(InvalidValue):
        encode_event(Event(0, 0, {}, {"a": itself}), payload_format)


@pytest.mark.parametrize("kind", [0x40, 0x60, 0x80, 0xA0])
@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1])
def test_a_length_that_cbor_claims_costs_no_memory(kind: int, length: int) -> None:
    claim = bytes((kind | 27,)) + length.to_bytes(8, "big")
    payload = cbor_event(b"\xa1\x61a" + claim + b"\x61a\x01" * 10)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            decode_event(payload, CBOR)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@given(st.sampled_from(list(PayloadFormat)), st.binary(max_size=200))
def test_garbage_is_an_event_or_refused(payload_format: PayloadFormat, payload: bytes) -> None:
    try:
        event = decode_event(payload, payload_format)
    except CorruptData:
        return
    json.dumps(event_as_json(event), allow_nan=False)


@pytest.mark.parametrize("payload_format", list(PayloadFormat))
def test_a_turned_bit_or_changed_bytes_give_an_event_or_are_refused(
    payload_format: PayloadFormat,
) -> None:
    event = Event(
        1_704_164_645_678_901_234,
        0,
        {"_id": "a-1", "source": {"input_id": "in"}},
        {"s": "t\u014d\udcff", "i": -200, "f": 1.5, "b": True, "n": None, "l": [1, {"a": "b"}]},
    )
    payload = encode_event(event, payload_format)
    random = Random(3)
    changed = [flipped(payload, bit) for bit in range(8 * len(payload))]
    changed += [payload[:size] for size in range(len(payload))]
    for _ in range(500):
        mixed = bytearray(payload)
        for _ in range(random.randrange(1, 6)):
            mixed[random.randrange(len(mixed))] = random.randrange(256)
        changed.append(bytes(mixed))
    for data in changed:
        try:
            found = decode_event(data, payload_format)
        except CorruptData:
            continue
        json.dumps(event_as_json(found), allow_nan=False)


# --- what is written and shown -------------------------------------------------------------------


@pytest.mark.parametrize("payload_format", list(PayloadFormat))
@pytest.mark.parametrize("fields", [{"a": object()}, {"a": {1, 2}}, {1: 2}, {"a": {None: 2}}])
def test_what_no_event_holds_is_refused(
    payload_format: PayloadFormat, fields: dict[Any, Any]
) -> None:
    with pytest.raises(InvalidValue):
        encode_event(Event(0, 0, {}, fields), payload_format)


@pytest.mark.parametrize("payload_format", [CBOR, PayloadFormat.PROTOBUF])
def test_half_a_pair_and_integers_beyond_64_bits_are_refused(payload_format: PayloadFormat) -> None:
    with pytest.raises(InvalidValue, match="half a surrogate pair"):
        encode_event(Event(0, 0, {}, {"a": "\ud800"}), payload_format)
    for number in (2**64, -(2**64) - 1):
        with pytest.raises(InvalidValue, match="more than 64 bits"):
            encode_event(Event(0, 0, {}, {"a": number}), payload_format)


def test_an_event_is_checked_when_it_is_built() -> None:
    several: list[tuple[Any, ...]] = [
        (2**63, 0, {}, {}),
        (0, -1, {}, {}),
        (True, 0, {}, {}),
        (0, 0, [], {}),
    ]
    for arguments in several:
        with pytest.raises(InvalidValue):
            Event(*arguments)
    with pytest.raises(InvalidValue):
        Timestamp(253_402_300_800, 0)
    with pytest.raises(InvalidValue):
        Timestamp(0, 1_000_000_000)


def test_an_event_is_shown_as_json_without_loss() -> None:
    fields = {
        "bytes": b"\x00\xff",
        "floats": [nan, inf, -inf, 1.5],
        "text": "t\u014d",
        "not utf8": "a\udcff",
        "key\udcff": {"time": Timestamp(-62_135_596_800, 5)},
        "integer": 2**64,
    }
    shown = event_as_json(Event(-6_795_364_578_871_345_152, 3, {"_id": "a"}, fields))
    assert json.loads(json.dumps(shown, allow_nan=False)) == {
        "timestamp": "1754-08-30T22:43:41.128654848Z",
        "flags": 3,
        "meta": {"_id": "a"},
        "fields": {
            "bytes": {"base64": "AP8="},
            "floats": ["NaN", "Infinity", "-Infinity", 1.5],
            "text": "t\u014d",
            "not utf8": {"base64": "Yf8="},
            "key\\xff": {"time": "0001-01-01T00:00:00.000000005Z"},
            "integer": 2**64,
        },
    }
    json.dumps(shown, ensure_ascii=False).encode("utf-8")


@given(st.integers(-(2**63), 2**63 - 1))
@example(0)
@example(951_782_399_999_999_999)  # the last nanosecond before a leap day
@example(951_782_400_000_000_000)
def test_times_are_shown_as_the_calendar_has_them(timestamp: int) -> None:
    seconds, nanos = divmod(timestamp, 10**9)
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    assert timestamp_text(timestamp) == f"{expected:%Y-%m-%dT%H:%M:%S}.{nanos:09}Z"


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_times_of_all_years_are_shown(seconds: int) -> None:
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    text = f"{expected.year:04}-{expected:%m-%dT%H:%M:%S}.000000001Z"
    assert str(Timestamp(seconds, 1)) == text


def test_a_missing_library_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cbor2", None)
    event_module._cbor2.cache_clear()
    with pytest.raises(DependencyMissing, match=r"pip install 'penstock\[spool\]'"):
        decode_event(cbor_event(b"\xa0"), CBOR)
    assert decode_event(json_event(b"{}"), CBOR) == Event(1, 1, {}, {})


def unescaped(key: str) -> bytes:
    """Return the bytes of a key that was shown, as the description says."""
    if re.search(r"\\x[0-9a-f]{2}", key) is None:
        return key.encode()
    parts = re.findall(r"\\\\|\\x[0-9a-f]{2}|[^\\]+", key)
    assert "".join(parts) == key
    return b"".join(
        bytes.fromhex(part[2:]) if part.startswith("\\x") else part.replace("\\\\", "\\").encode()
        for part in parts
    )


PARTS = st.sampled_from(
    [b"\\", b"\\x", b"xff", b"ff", b"\xff", b"\xc3", b"\xa9", b"a", b"\\xff", b"F"]
)
RAW_KEYS = st.one_of(st.binary(), st.lists(PARTS, max_size=6).map(b"".join))


@given(st.lists(RAW_KEYS, unique=True, max_size=6))
def test_a_key_that_is_not_utf_8_does_not_swallow_one_that_looks_like_its_escape(
    raw: list[bytes],
) -> None:
    fields = {key.decode("utf-8", "surrogateescape"): number for number, key in enumerate(raw)}
    found = event_as_json(Event(0, 0, {}, fields))["fields"]
    assert {unescaped(key): number for key, number in found.items()} == dict(
        zip(raw, range(6), strict=False)
    )


def test_keys_are_shown_as_they_are_unless_they_could_be_taken_for_an_escape() -> None:
    keys = {"a": "a", "back\\slash": "back\\slash", "C:\\xampp": "C:\\xampp", "\\xFF": "\\xFF"}
    keys |= {"bad\udcff": "bad\\xff", "bad\\xff": "bad\\\\xff", "\\\udcff": "\\\\\\xff"}
    shown = event_as_json(Event(0, 0, dict.fromkeys(keys, 1), {}))["meta"]
    assert list(shown) == list(keys.values())
