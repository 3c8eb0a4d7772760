"""An event, which is the payload of a frame, as JSON, CBOR or protobuf (docs/formats/beats.md).

This module owns what an event is, JSON and CBOR; ``event_protobuf`` owns the third. Text need not be UTF-8: bytes that
are not come as surrogates (``surrogateescape``) and are written back as they were. What is read is checked before
anything grows with it: no tags, which may stand for values of any size, and a bounded depth.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from math import isfinite
from struct import Struct
from typing import Any, Final, NoReturn

from penstock.binary import Bytes
from penstock.errors import CorruptData, InvalidValue, TooDeep, needing
from penstock.formats.beats.segment import UINT32_MAX, PayloadFormat
from penstock.model import INT64_MAX, INT64_MIN, UINT64_MAX

DEPTH_MAX: Final = 512
"""Maps and lists within each other, the event itself counted: events have few, and a bomb has many.

The interpreter's own JSON encoder, which shows events, recurses and ends at some 900.
"""

EVENT_STARTS: Final = {
    PayloadFormat.JSON: b"{",
    PayloadFormat.CBOR: bytes.fromhex("a469") + b"timestamp",
    PayloadFormat.PROTOBUF: b"\n",
}
"""How every event begins that Beats or this module wrote."""

NANOSECONDS: Final = 1_000_000_000

TIMESTAMP_SECONDS_MIN: Final = -62_135_596_800  # the year 1, which is Go's zero time
TIMESTAMP_SECONDS_MAX: Final = 253_402_300_799  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class Event:
    """What a producer gave to the queue."""

    timestamp: (
        int  # nanoseconds since 1970, with sign; times beyond 64 bits wrap around, as Go's do
    )
    flags: int  # 1: to be sent until it is acknowledged; protobuf has none
    meta: dict[str, Any]
    fields: dict[str, Any]

    def __post_init__(self) -> None:
        timestamp, flags = self.timestamp, self.flags
        if type(timestamp) is not int or not INT64_MIN <= timestamp <= INT64_MAX:
            raise InvalidValue("the timestamp of an event is no integer of 64 bits")
        if type(flags) is not int or not 0 <= flags <= UINT32_MAX:
            raise InvalidValue("the flags of an event are no unsigned integer of 32 bits")
        if type(self.meta) is not dict or type(self.fields) is not dict:
            raise InvalidValue("meta and fields of an event are maps")


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A value of protobuf's: a time in the years 1 to 9999."""

    seconds: int  # since 1970
    nanos: int

    def __post_init__(self) -> None:
        if not TIMESTAMP_SECONDS_MIN <= self.seconds <= TIMESTAMP_SECONDS_MAX:
            raise InvalidValue(f"a time of {self.seconds} seconds, outside the years 1 to 9999")
        if not 0 <= self.nanos < NANOSECONDS:
            raise InvalidValue(f"a time with {self.nanos} nanoseconds")

    def __str__(self) -> str:
        return _time_text(self.seconds, self.nanos)


def decode_event(payload: Bytes, payload_format: PayloadFormat) -> Event:
    """Return the event that a frame holds. Raises ``CorruptData``, ``TooDeep`` and ``DependencyMissing``.

    JSON is known by its first byte: versions of Beats that were never released wrote it where CBOR belongs.
    """
    if payload_format is PayloadFormat.PROTOBUF:
        from penstock.formats.beats.event_protobuf import decode_protobuf

        return decode_protobuf(payload)
    is_json = payload_format is PayloadFormat.JSON or payload[:1] == b"{"
    value = _decode_json(payload) if is_json else _decode_cbor(payload)
    if type(value) is not dict:
        raise CorruptData("the payload is no event: not a map", offset=0)
    _check(value)
    meta, fields = value.get("meta"), value.get("fields")
    try:
        return Event(
            value.get("timestamp"),  # type: ignore[arg-type]
            value.get("flags", 0),
            {} if meta is None else meta,
            {} if fields is None else fields,
        )
    except InvalidValue as error:
        raise CorruptData(f"the payload is no event: {error}", offset=0) from None


def encode_event(event: Event, payload_format: PayloadFormat) -> bytes:
    """Return a payload that Beats can read. Raises ``InvalidValue``, and ``DependencyMissing``.

    No format takes everything: CBOR has no empty key, no integer below -2^63 or above 2^64 - 1, JSON no infinity and no text that
    is not UTF-8 (the bytes that are not become U+FFFD), protobuf no flags. Bytes are maps ``{"base64": …}`` in protobuf.
    """
    match payload_format:
        case PayloadFormat.CBOR:
            return encode_cbor(_entry(event))
        case PayloadFormat.JSON:
            return _json_of(_entry(event)).encode("utf-8")
        case PayloadFormat.PROTOBUF:
            from penstock.formats.beats.event_protobuf import encode_protobuf

            return encode_protobuf(event)


def event_as_json(event: Event) -> dict[str, Any]:
    """Return what ``json.dumps(…, allow_nan=False)`` takes.

    Bytes, and text that is not UTF-8, are ``{"base64": …}``. Infinities, what is no number and protobuf's times are text.
    Different keys stay different. A key that is not UTF-8, or that holds an escape ``\\xNN`` of its own, has each byte that
    is not UTF-8 as ``\\xNN`` and each backslash twice; all other keys are as they are.
    """
    return {
        "timestamp": timestamp_text(event.timestamp),
        "flags": event.flags,
        "meta": _plain(event.meta),
        "fields": _plain(event.fields),
    }


def timestamp_text(timestamp: int) -> str:
    """Return nanoseconds since 1970 as RFC 3339 has them, with all nine digits."""
    return _time_text(*divmod(timestamp, NANOSECONDS))


def _entry(event: Event) -> dict[str, Any]:
    """Return the map that an event is, in the order in which Beats writes it."""
    return {
        "timestamp": event.timestamp,
        "flags": event.flags,
        "meta": event.meta,
        "fields": event.fields,
    }


# --- what is read --------------------------------------------------------------------------------

_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})


def check_depth(depth: int) -> None:
    """Raise ``TooDeep`` for maps and lists too deep within each other."""
    if depth > DEPTH_MAX:
        raise _too_deep()


def _too_deep() -> TooDeep:
    return TooDeep(f"values within each other more than {DEPTH_MAX} deep", offset=0)


def _check(event: dict[Any, Any]) -> None:
    """Check what an event holds, and put None where CBOR has ``undefined``."""
    level: list[dict[Any, Any] | list[Any]] = [event]
    for depth in count(1):
        if not level:
            return
        check_depth(depth)
        level = [inner for each in level for inner in _checked(each)]


def _checked(values: dict[Any, Any] | list[Any]) -> list[dict[Any, Any] | list[Any]]:
    """Check the values of a map or list. Return those that are maps or lists themselves."""
    inner: list[dict[Any, Any] | list[Any]] = []
    places: Iterable[tuple[Any, Any]]
    places = values.items() if isinstance(values, dict) else enumerate(values)
    for place, value in places:
        if isinstance(values, dict) and type(place) is not str:
            raise CorruptData("the key of a map is not text", offset=0)
        if type(value) in _PLAIN:
            continue
        if type(value) is dict or type(value) is list:
            inner.append(value)
        elif value is _cbor2().undefined:
            values[place] = None
        else:
            raise CorruptData(f"a value that no event has: {value!r:.40}", offset=0)
    return inner


# --- JSON ----------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair: one character
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    r"|\\."
)


def _decode_json(payload: Bytes) -> Any:
    text = bytes(payload).decode("utf-8", "surrogateescape")
    if _SURROGATE_ESCAPE.search(text):
        # Half a pair is no character, and must not be mistaken for one of our surrogates. Go reads it so too.
        text = _ESCAPE.sub(lambda match: r"\ufffd" if match[1] else match[0], text)
    _check_json_depth(text)
    try:
        return _JSON_DECODER.decode(text)
    except RecursionError:  # of a caller that is deep itself
        raise _too_deep() from None
    except ValueError as error:
        raise CorruptData(f"the payload is no JSON: {error}", offset=0) from None


# A text without an end reaches to the last byte, so that each byte is looked at once.
_JSON_NESTING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def _check_json_depth(text: str) -> None:
    """Raise ``TooDeep`` before the library recurses."""
    if text.count("{") + text.count("[") <= DEPTH_MAX:
        return
    depth = 0
    for token in _JSON_NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        check_depth(depth)


_TO_ESCAPE: Final = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\ud800-\udfff]')
_SHORT_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    if "\ud800" <= letter <= "\udfff":
        return "\\ufffd"  # a byte that is not UTF-8
    return _SHORT_ESCAPES.get(letter) or f"\\u{ord(letter):04x}"


def _json_of(value: Any) -> str:
    """Return JSON as Beats writes it: no spaces, ``<``, ``>`` and ``&`` escaped, 1.0 as 1."""
    parts: list[str] = []
    # Of each map and list that is being written: what is left of it, and how it ends.
    stack: list[tuple[Iterator[tuple[str, Any]], str]] = [(iter([("", value)]), "")]
    while stack:
        rest, end = stack[-1]
        for before, item in rest:
            parts.append(before)
            if isinstance(item, dict | list | tuple):
                check_depth_to_write(len(stack))
                is_map = isinstance(item, dict)
                parts.append("{" if is_map else "[")
                stack.append((_json_items(item), "}" if is_map else "]"))
                break
            parts.append(_json_scalar(item))
        else:
            parts.append(end)
            stack.pop()
    return "".join(parts)


def _json_items(values: dict[Any, Any] | Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what stands before each value of a map or list, and the value."""
    comma = ""
    if isinstance(values, dict):
        for key, item in values.items():
            yield f"{comma}{_json_scalar(_checked_key(key))}:", item
            comma = ","
    else:
        for item in values:
            yield comma, item
            comma = ","


def _json_scalar(value: Any) -> str:
    match value:
        case str():
            return f'"{_TO_ESCAPE.sub(_escape, value)}"'
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int():
            return str(int(value))
        case float() if isfinite(value):
            return repr(float(value)).removesuffix(".0")
        case float():
            raise InvalidValue(f"JSON has no {value}")
        case bytes() | bytearray() | memoryview():
            return f"[{','.join(map(str, bytes(value)))}]"
        case Timestamp():
            return f'"{value}"'
    raise cannot_write(value)


# --- CBOR ----------------------------------------------------------------------------------------


@cache
def _cbor2() -> Any:
    with needing("spool", "an event in CBOR"):
        import cbor2
    return cbor2


class _NoTags(dict[int, Any]):
    """Decoders for tags: whichever is asked for, the event is refused."""

    def __missing__(self, tag: int) -> NoReturn:
        raise ValueError(f"tag {tag}; an event has none")


_NO_TAGS: Final = _NoTags()


def _decode_cbor(payload: Bytes) -> Any:
    cbor2 = _cbor2()
    try:
        return cbor2.loads(
            payload,
            semantic_decoders=_NO_TAGS,
            str_errors="surrogateescape",
            max_depth=DEPTH_MAX,
            strict_hashable_types=True,
        )
    except (cbor2.CBORError, ValueError) as error:
        _check_cbor_depth(payload)
        raise CorruptData(f"the payload is no event in CBOR: {error}", offset=0) from None


_ITEMS_MAX: Final = 2**20
"""Items that are looked at to find out why a payload cannot be decoded."""

_BREAK: Final = 0xFF
_INDEFINITE: Final = 31


def _check_cbor_depth(payload: Bytes) -> None:
    """Raise ``TooDeep`` if that is why a payload could not be decoded: the library's error does not tell."""
    left: list[
        int
    ] = []  # items that are missing of each map and list; below 0 in one without a length
    at = 0
    for _ in range(_ITEMS_MAX):
        if at >= len(payload) or (at and not left):
            return
        head = payload[at]
        kind, low = head & 0xE0, head & 0x1F
        at += 1
        width = 1 << (low - 24) if 24 <= low <= 27 else 0
        value = int.from_bytes(payload[at : at + width], "big") if width else low
        at += width
        if left:
            left[-1] -= 1
        if kind in (_LIST, CBOR_MAP):
            is_endless = low == _INDEFINITE
            left.append(-1 if is_endless else value * (2 if kind == CBOR_MAP else 1))
            check_depth(len(left))
        elif kind in (CBOR_BYTES, _TEXT):
            at += value
        elif head == _BREAK and left:
            left.pop()
        while left and left[-1] == 0:
            left.pop()


_UNSIGNED, _NEGATIVE, CBOR_BYTES, _TEXT, _LIST, CBOR_MAP = 0x00, 0x20, 0x40, 0x60, 0x80, 0xA0
_WIDTHS: Final = (
    (0xFF, 24, Struct(">BB")),
    (0xFFFF, 25, Struct(">BH")),
    (0xFFFFFFFF, 26, Struct(">BI")),
    (UINT64_MAX, 27, Struct(">BQ")),
)
_DOUBLE: Final = Struct(">Bd")
_DOUBLE_HEAD: Final = 0xFB
_CONSTANTS: Final = {None: b"\xf6", True: b"\xf5", False: b"\xf4"}


def cbor_head(kind: int, value: int) -> bytes:
    """Return the shortest head of an item that Beats reads right: what it is, and its length or value.

    Beats takes the top bit of a negative number's width for the sign, and -200 for 56. So a number that needs this bit
    is written one width wider, and one below -2^63 not at all.
    """
    if value < 24:
        return bytes((kind | value,))
    for most, width, layout in _WIDTHS:
        if value <= (most >> 1 if kind == _NEGATIVE else most):
            return layout.pack(kind | width, value)
    raise InvalidValue(f"CBOR of Beats has no integer of more than 64 bits: {value:#x}")


def encode_cbor(value: Any) -> bytes:
    """Return one value as ``encode_event`` writes it."""
    parts: list[bytes] = []
    stack: list[Iterator[Any]] = [iter((value,))]  # what is left of each map and list
    while stack:
        for item in stack[-1]:
            inner = _write_cbor(item, parts)
            if inner is not None:
                check_depth_to_write(len(stack))
                stack.append(inner)
                break
        else:
            stack.pop()
    return b"".join(parts)


def _write_cbor(value: Any, parts: list[bytes]) -> Iterator[Any] | None:
    """Append a value as Beats reads it: definite lengths, no tags, floats as doubles.

    Of a map or list only the head is appended, and what follows it is returned. The library's own encoder writes
    infinities as half floats and knows no text that is not UTF-8.
    """
    match value:
        case str():
            raw = utf8_of(value)
            parts += (cbor_head(_TEXT, len(raw)), raw)
        case None | bool():
            parts.append(_CONSTANTS[value])
        case int():
            is_negative = value < 0
            parts.append(cbor_head(_NEGATIVE if is_negative else _UNSIGNED, value ^ -is_negative))
        case float():
            parts.append(_DOUBLE.pack(_DOUBLE_HEAD, value))
        case bytes() | bytearray() | memoryview():
            parts += (cbor_head(CBOR_BYTES, len(value)), bytes(value))
        case Timestamp():
            return _write_cbor(str(value), parts)
        case list() | tuple():
            parts.append(cbor_head(_LIST, len(value)))
            return iter(value)
        case dict():
            parts.append(cbor_head(CBOR_MAP, len(value)))
            return _keys_and_values(value)
        case _:
            raise cannot_write(value)
    return None


def _keys_and_values(values: dict[Any, Any]) -> Iterator[Any]:
    for key, item in values.items():
        if not key:
            raise InvalidValue("an empty key, which Beats cannot read in CBOR")
        yield _checked_key(key)
        yield item


# --- what is written -----------------------------------------------------------------------------


def check_depth_to_write(depth: int) -> None:
    """Raise ``InvalidValue`` for maps and lists too deep within each other."""
    if depth > DEPTH_MAX:
        raise InvalidValue(f"values within each other more than {DEPTH_MAX} deep")


def cannot_write(value: object) -> InvalidValue:
    """Return the error for a value of a type that no event has."""
    return InvalidValue(f"an event cannot hold a {type(value).__name__}")


def utf8_of(text: str) -> bytes:
    """Return the bytes that a text was read from. Raises ``InvalidValue`` for half a surrogate pair."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidValue(f"a text with half a surrogate pair: {text!a:.60}") from None


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidValue(f"a key of a map that is not text but a {type(key).__name__}")
    return key


# --- what is shown -------------------------------------------------------------------------------


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    left: list[tuple[Any, Any]] = [(values, shown)]  # maps and lists, and what they become
    while left:
        source, target = left.pop()
        is_map = isinstance(source, dict)
        for place, value in source.items() if is_map else enumerate(source):
            plain = _plain_scalar(value)
            if isinstance(value, dict | list | tuple):
                plain = {} if isinstance(value, dict) else [None] * len(value)
                left.append((value, plain))
            target[_plain_key(str(place)) if is_map else place] = plain
    return shown


def _plain_scalar(value: Any) -> Any:
    match value:
        case str():
            return value if _is_utf8(value) else base64_map(utf8_of(value))
        case bytes() | bytearray() | memoryview():
            return base64_map(value)
        case float() if not isfinite(value):
            return {True: "Infinity", False: "-Infinity"}[value > 0] if value == value else "NaN"
        case Timestamp():
            return str(value)
    return value


_ESCAPED_BYTE: Final = re.compile(r"\\x[0-9a-f]{2}")


def _plain_key(key: str) -> str:
    if _is_utf8(key) and _ESCAPED_BYTE.search(key) is None:
        return key
    # The result always holds an escape, which the keys above do not.
    return utf8_of(key.replace("\\", "\\\\")).decode("utf-8", "backslashreplace")


def _is_utf8(text: str) -> bool:
    return text.isascii() or _SURROGATE.search(text) is None


def base64_map(data: Bytes) -> dict[str, str]:
    """Return what stands for bytes in JSON, which has none, and in protobuf."""
    return {"base64": b64encode(data).decode("ascii")}


def _time_text(seconds: int, nanos: int) -> str:
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    year, month, day = _date(days)
    return f"{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{nanos:09}Z"


def _date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day, counted from 1970-01-01.

    Counted from 0000-03-01 in years that begin in March: so the leap day is a year's last.
    """
    cycle, day = divmod(days + 719_468, 146_097)  # 400 years
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += 400 * cycle + (month >= 10)
    return year, month + 3 if month < 10 else month - 9, day + 1
