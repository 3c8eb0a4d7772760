"""Properties of a message: the property block and header tables of AMQP 0-9-1.

The layout is in docs/formats/rabbitmq-messages.md. A header keeps its type, so that what a
broker wrote is written again byte for byte. Of what clients wrote, ``L`` becomes ``l``, and true becomes
one. Text stays bytes, since nobody checks that it is UTF-8; the JSON face shows text where it is.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from math import isfinite
from struct import Struct
from typing import Any, Final, TypeAlias

from penstock.binary import UINT32, UINT64, Bytes
from penstock.errors import CorruptData, InvalidValue, TruncatedData

DEPTH_MAX: Final = 32
"""Tables and arrays in each other. The broker's own headers need three; as terms they take double."""

COUNT_MAX: Final = 1 << 16
"""Values in one block. A value may take one byte in the file and a hundred in memory; a block fits one
frame, which has 128 KiB unless a broker is told otherwise, and a header takes two bytes at least."""

SHORT_MAX: Final = 0xFF
"""Bytes of a short string: its length is one byte."""


class Kind(Enum):
    """A header's type: the broker's name for it, the type byte, and the form of a plain number."""

    TEXT = ("longstr", "S", None)
    BINARY = ("binary", "x", None)
    BOOLEAN = ("bool", "t", Struct(">B"))
    INT8 = ("byte", "b", Struct(">b"))
    UINT8 = ("unsignedbyte", "B", Struct(">B"))
    INT16 = ("short", "s", Struct(">h"))
    UINT16 = ("unsignedshort", "u", Struct(">H"))
    INT32 = ("signedint", "I", Struct(">i"))
    UINT32 = ("unsignedint", "i", Struct(">I"))
    INT64 = ("long", "l", Struct(">q"))
    FLOAT = ("float", "f", Struct(">f"))
    DOUBLE = ("double", "d", Struct(">d"))
    DECIMAL = ("decimal", "D", Struct(">BI"))
    TIMESTAMP = ("timestamp", "T", UINT64)
    TABLE = ("table", "F", None)
    ARRAY = ("array", "A", None)
    VOID = ("void", "V", None)

    def __init__(self, label: str, code: str, form: Struct | None) -> None:
        self.label = label
        self.code = ord(code)
        self.form = form
        self.what = f"a header of type {label}"
        self.is_integer = form is not None and label not in ("bool", "float", "double", "decimal")
        self.is_json = label not in ("longstr", "binary", "decimal", "table", "array")


# Clients disagree about the sign of ``L``; the broker reads it as ``l``.
_BY_CODE: Final = {kind.code: kind for kind in Kind} | {ord("L"): Kind.INT64}
BY_LABEL: Final = {kind.label: kind for kind in Kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal:
    """``unscaled`` divided by ten to the power of ``scale``."""

    scale: int
    unscaled: int


@dataclass(frozen=True, slots=True)
class Value:
    """A header's value with its type.

    Integers and times are ``int``, floats ``float``, texts and binaries ``bytes``; a table is a tuple
    of ``Header``, an array a tuple of ``Value``, and nothing is ``None``.
    """

    kind: Kind
    value: bool | int | float | bytes | Decimal | tuple[Header, ...] | tuple[Value, ...] | None

    def __post_init__(self) -> None:
        if not _fits(self.kind, self.value):
            raise InvalidValue(f"not a header value of type {self.kind.label}")


@dataclass(frozen=True, slots=True)
class Header:
    """A name and a value. A table may hold a name twice."""

    name: bytes
    value: Value

    def __post_init__(self) -> None:
        if len(self.name) > SHORT_MAX:
            raise InvalidValue(f"a header's name has at most {SHORT_MAX} bytes")


Table: TypeAlias = tuple[Header, ...]


def _fits(kind: Kind, value: object) -> bool:
    if kind.is_integer:
        return type(value) is int and _packs(kind, value)
    match kind:
        case Kind.TEXT | Kind.BINARY:
            return isinstance(value, bytes)
        case Kind.BOOLEAN:
            return isinstance(value, bool)
        case Kind.FLOAT | Kind.DOUBLE:
            return isinstance(value, float) and isfinite(value) and _packs(kind, value)
        case Kind.DECIMAL:
            return isinstance(value, Decimal) and _packs(kind, value.scale, value.unscaled)
        case Kind.TABLE:
            return isinstance(value, tuple) and all(isinstance(x, Header) for x in value)
        case Kind.ARRAY:
            return isinstance(value, tuple) and all(isinstance(x, Value) for x in value)
        case _:
            return value is None


def _packs(kind: Kind, *values: float) -> bool:
    assert kind.form is not None
    try:
        kind.form.pack(*values)
    except (struct.error, OverflowError):
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a publisher said about a message, in the order of the block; ``None`` is not said."""

    content_type: bytes | None = None
    content_encoding: bytes | None = None
    headers: Table | None = None
    delivery_mode: int | None = None  # 2 is persistent
    priority: int | None = None
    correlation_id: bytes | None = None
    reply_to: bytes | None = None
    expiration: bytes | None = None  # milliseconds, as digits
    message_id: bytes | None = None
    timestamp: int | None = None  # seconds since 1970
    type: bytes | None = None
    user_id: bytes | None = None
    app_id: bytes | None = None
    cluster_id: bytes | None = None

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if name in NUMBERS:
                fits = value is None or 0 <= value < 1 << 8 * NUMBERS[name]
            else:
                fits = value is None or name == "headers" or len(value) <= SHORT_MAX
            if not fits:
                raise InvalidValue(f"the property {name} is too large")


NAMES: Final = tuple(field.name for field in fields(Properties))
NUMBERS: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}


# --- decoding ------------------------------------------------------------------------------------
#
# Where things stand are plain integers, and what is missing is reported where it is missed: the methods of a ``Reader``
# took two thirds of the time of a listing of messages whose properties all differ.


def decode_properties(data: Bytes) -> Properties:
    """Return the properties in a whole block. Raises ``BadData``.

    The two lowest flags belong to no property. They are not looked at, as the broker does not either.
    """
    return Properties(**_Block(data, _header, Value).properties())


def json_of_block(data: Bytes) -> dict[str, Any]:
    """Return ``json_of_properties(decode_properties(data))`` without the values between. Raises ``BadData``.

    Readers of many messages use it: it takes a fifth of the time.
    """
    found = _Block(data, _json_of_header, _json_of_value).properties()
    for name, value in found.items():
        if type(value) is bytes:
            found[name] = json_of_text(value)
        elif name == "headers":
            found[name] = list(value)
    return found


def decode_table(data: Bytes) -> Table:
    """Return the headers in the bytes of a table, without its length. Raises ``BadData``."""
    return _Block(data, _header, Value).table(0, len(data), DEPTH_MAX)


def _header(name: bytes, kind: Kind, value: Any) -> Header:
    return Header(name, Value(kind, value))


class _Block:
    """A property block, how many values may still be made of it, and what they are to be."""

    __slots__ = ("count", "data", "header", "value")

    def __init__(
        self,
        data: Bytes,
        header: Callable[[bytes, Kind, Any], Any],
        value: Callable[[Kind, Any], Any],
    ) -> None:
        self.data = data if type(data) is bytes else bytes(data)
        self.count = COUNT_MAX
        self.header = header
        self.value = value

    def properties(self) -> dict[str, Any]:
        """Return the properties of a whole block, by name and in the order of the block."""
        data, end = self.data, len(self.data)
        if end < 2:
            raise _cut("the property flags", 0, 2, end)
        at = 2
        found: dict[str, Any] = {}
        for name, size, what in _flagged(data[0] << 8 | data[1]):
            if name == "headers":
                at, stop = self.sized(at, end, what)
                found[name] = self.table(at, stop, DEPTH_MAX)
                at = stop
                continue
            if not size:
                if at >= end:
                    raise _cut(what, at, 1, end)
                size = data[at]
                at += 1
                found[name] = data[at : at + size]
            else:
                found[name] = int.from_bytes(data[at : at + size], "big")
            at += size
            if at > end:
                raise _cut(what, at - size, size, end)
        if at < end:
            raise CorruptData(
                "bytes left over after the properties",
                offset=at,
                expected="the end",
                found=f"{end - at} more",
            )
        return found

    def table(self, at: int, end: int, depth: int) -> tuple[Any, ...]:
        """Return the headers in ``[at, end)``."""
        data, make = self.data, self.header
        headers = []
        while at < end:
            first = at + 1
            at = first + data[at]
            if at >= end:
                missing = "a header's type" if at == end else "a header's name"
                raise _cut(missing, min(at, first), 1, end)
            kind, value, after = self.one(at, end, depth)
            headers.append(make(data[first:at], kind, value))
            at = after
        return tuple(headers)

    def array(self, at: int, end: int, depth: int) -> tuple[Any, ...]:
        values = []
        while at < end:
            kind, value, at = self.one(at, end, depth)
            values.append(self.value(kind, value))
        return tuple(values)

    def one(self, at: int, end: int, depth: int) -> tuple[Kind, Any, int]:
        """Return kind and value of what begins at ``at``, before ``end``, and the place behind it."""
        kind = _BY_CODE.get(self.data[at])
        if kind is None:
            found = f"{self.data[at]:02X}"
            raise CorruptData("unknown type of a header", offset=at, found=found)
        if depth == 0:
            raise CorruptData(f"headers are nested more than {DEPTH_MAX} deep", offset=at)
        if self.count == 0:
            raise CorruptData(f"the headers have more than {COUNT_MAX} values", offset=at)
        self.count -= 1
        first = at + 1
        form = kind.form
        if form is not None:
            after = first + form.size
            if after > end:
                raise _cut(kind.what, first, form.size, end)
            numbers = form.unpack_from(self.data, first)
            value = numbers[0] if kind.is_integer else _plain(kind, numbers, at)
            return kind, value, after
        if kind is Kind.VOID:
            return kind, None, first
        first, after = self.sized(first, end, kind.what)
        if kind is Kind.TABLE:
            return kind, self.table(first, after, depth - 1), after
        if kind is Kind.ARRAY:
            return kind, self.array(first, after, depth - 1), after
        return kind, self.data[first:after], after

    def sized(self, at: int, end: int, what: str) -> tuple[int, int]:
        """Return where the bytes behind a length of 32 bits begin and end."""
        first = at + UINT32.size
        if first > end:
            raise _cut(f"the length of {what}", at, UINT32.size, end)
        (size,) = UINT32.unpack_from(self.data, at)
        if first + size > end:
            raise _cut(what, first, size, end)
        return first, first + size


def _cut(what: str, at: int, size: int, end: int) -> TruncatedData:
    return TruncatedData(
        f"the bytes end inside {what}",
        offset=at,
        expected=f"{size} bytes",
        found=f"{end - at}",
    )


@lru_cache(maxsize=1024)  # publishers mostly set the same few properties
def _flagged(flags: int) -> tuple[tuple[str, int, str], ...]:
    """Return the properties of a block: name, size of a number or 0, and what an error calls it."""
    return tuple(
        (name, NUMBERS.get(name, 0), "the headers" if name == "headers" else f"the property {name}")
        for place, name in enumerate(NAMES)
        if flags >> 15 - place & 1
    )


def _plain(kind: Kind, numbers: tuple[Any, ...], offset: int) -> bool | float | Decimal:
    number: int | float = numbers[0]
    if type(number) is int:
        if kind is Kind.BOOLEAN:
            return number != 0
        return Decimal(scale=number, unscaled=numbers[1]) if kind is Kind.DECIMAL else number
    if isfinite(number):
        return number
    raise CorruptData("a header's float is no number", offset=offset)


# --- encoding ------------------------------------------------------------------------------------


def encode_properties(properties: Properties) -> bytes:
    """Return the block of some properties. The caller keeps to ``DEPTH_MAX``."""
    flags = 0
    parts = []
    for place, name in enumerate(NAMES):
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= 1 << 15 - place
        if name == "headers":
            parts.append(_long(encode_table(value)))
        elif name in NUMBERS:
            parts.append(value.to_bytes(NUMBERS[name], "big"))
        else:
            parts.append(bytes((len(value),)) + value)
    return flags.to_bytes(2, "big") + b"".join(parts)


def encode_table(table: Table) -> bytes:
    """Return the bytes of a table, without its length. The caller keeps to ``DEPTH_MAX``."""
    return b"".join(
        bytes((len(header.name),)) + header.name + _encode_value(header.value) for header in table
    )


def _encode_value(item: Value) -> bytes:
    value: Any = item.value
    code = bytes((item.kind.code,))
    match item.kind:
        case Kind.VOID:
            return code
        case Kind.TABLE:
            return code + _long(encode_table(value))
        case Kind.ARRAY:
            return code + _long(b"".join(map(_encode_value, value)))
        case Kind.TEXT | Kind.BINARY:
            return code + _long(value)
        case Kind.DECIMAL:
            return code + bytes((value.scale,)) + UINT32.pack(value.unscaled)
        case kind:
            assert kind.form is not None
            return code + kind.form.pack(value)


def _long(data: bytes) -> bytes:
    return UINT32.pack(len(data)) + data


# --- as JSON -------------------------------------------------------------------------------------


def json_of_properties(properties: Properties) -> dict[str, Any]:
    """Return the properties that are there as a JSON object; the page shows its form.

    Text that is not UTF-8 is an object with ``base64``. Headers are a list of objects, since a table
    has an order and may hold a name twice.
    """
    found: dict[str, Any] = {}
    for name in NAMES:
        value = getattr(properties, name)
        if value is not None and name == "headers":
            found[name] = _json_of_table(value)
        elif value is not None:
            found[name] = json_of_text(value) if isinstance(value, bytes) else value
    return found


JsonText: TypeAlias = str | dict[str, str]


def json_of_text(data: bytes) -> JsonText:
    """Return UTF-8 as a string and any other bytes as an object with ``base64``."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode("ascii")}


def _json_of_table(table: Table) -> list[dict[str, Any]]:
    return [_json_of_header(x.name, x.value.kind, _json_of_nested(x.value)) for x in table]


def _json_of_nested(item: Value) -> Any:
    """Return a header's value with what is inside a table or an array as JSON."""
    value: Any = item.value
    if item.kind is Kind.TABLE:
        return _json_of_table(value)
    if item.kind is Kind.ARRAY:
        return [_json_of_value(x.kind, _json_of_nested(x)) for x in value]
    return value


def _json_of_header(name: bytes, kind: Kind, value: Any) -> dict[str, Any]:
    if not kind.is_json:
        value = _json_of_other(kind, value)
    try:
        return {"name": name.decode("utf-8"), "type": kind.label, "value": value}
    except UnicodeDecodeError:
        return {"name": json_of_text(name), "type": kind.label, "value": value}


def _json_of_value(kind: Kind, value: Any) -> dict[str, Any]:
    shown = value if kind.is_json else _json_of_other(kind, value)
    return {"type": kind.label, "value": shown}


def _json_of_other(kind: Kind, value: Any) -> Any:
    """Return a value that is no JSON as it is; what is inside a table or an array is already."""
    if kind is Kind.TEXT:
        return json_of_text(value)
    if kind is Kind.BINARY:
        return {"base64": b64encode(value).decode("ascii")}
    if kind is Kind.DECIMAL:
        return {"scale": value.scale, "unscaled": value.unscaled}
    return list(value)


def properties_of_json(found: dict[str, Any]) -> Properties:
    """Return the properties that ``json_of_properties`` made this object of. Raises ``InvalidValue``."""
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in NAMES:
            raise InvalidValue(f"there is no property {name}")
        if name == "headers":
            values[name] = _table_of_json(value, DEPTH_MAX)
        elif name not in NUMBERS:
            values[name] = text_of_json(value)
        elif type(value) is int:
            values[name] = value
        else:
            raise InvalidValue(f"the property {name} is no integer")
    return Properties(**values)


def _table_of_json(found: Any, depth: int) -> Table:
    match found:
        case list() if all(isinstance(x, dict) and "name" in x for x in found):
            return tuple(Header(text_of_json(x["name"]), _value_of_json(x, depth)) for x in found)
    raise InvalidValue("a table of headers is a list of objects with name, type and value")


def _value_of_json(found: Any, depth: int) -> Value:
    match found:
        case {"type": str(label), "value": value} if label in BY_LABEL and depth:
            kind = BY_LABEL[label]
        case _:
            raise InvalidValue(
                "a header has a type that we know and a value, and is not nested deep"
            )
    match kind, value:
        case Kind.TABLE, _:
            return Value(kind, _table_of_json(value, depth - 1))
        case Kind.ARRAY, list():
            return Value(kind, tuple(_value_of_json(x, depth - 1) for x in value))
        case ((Kind.TEXT | Kind.BINARY), _):
            return Value(kind, text_of_json(value))
        case Kind.DECIMAL, {"scale": int(scale), "unscaled": int(unscaled)}:
            return Value(kind, Decimal(scale=scale, unscaled=unscaled))
    return Value(kind, value)


def text_of_json(found: Any) -> bytes:
    try:
        match found:
            case str():
                return found.encode("utf-8")
            case {"base64": str(digits)}:
                return b64decode(digits, validate=True)
    except ValueError as error:
        raise InvalidValue(f"neither text nor base64: {error}") from None
    raise InvalidValue("text is a string, or an object with base64")
