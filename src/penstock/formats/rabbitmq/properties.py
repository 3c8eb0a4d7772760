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

from penstock.binary import UINT32, UINT64, Bytes, Reader
from penstock.errors import CorruptData, InvalidValue

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
        self.length = f"the length of {self.what}"


INTEGERS: Final = frozenset(
    (
        Kind.INT8,
        Kind.UINT8,
        Kind.INT16,
        Kind.UINT16,
        Kind.INT32,
        Kind.UINT32,
        Kind.INT64,
        Kind.TIMESTAMP,
    )
)
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
    if kind in INTEGERS:
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


def decode_properties(data: Bytes) -> Properties:
    """Return the properties in a whole block. Raises ``BadData``.

    The two lowest flags belong to no property. They are not looked at, as the broker does not either.
    """
    return Properties(**_decode_block(_BlockReader(data, Header, Value)))


def json_of_block(data: Bytes) -> dict[str, Any]:
    """Return ``json_of_properties(decode_properties(data))`` without the values between. Raises ``BadData``.

    Readers of many messages use it: it takes half the time.
    """
    found = _decode_block(_BlockReader(data, _json_of_header, _json_of_value))
    for name, value in found.items():
        if type(value) is bytes:
            found[name] = json_of_text(value)
        elif name == "headers":
            found[name] = list(value)
    return found


def decode_table(data: Bytes) -> Table:
    """Return the headers in the bytes of a table, without its length. Raises ``BadData``."""
    return _decode_table(_BlockReader(data, Header, Value), DEPTH_MAX)


class _BlockReader(Reader):
    """A reader that knows how many values it may still make, and what to make of names and values."""

    __slots__ = ("count", "header", "value")

    def __init__(
        self,
        data: Bytes,
        header: Callable[[bytes, Any], Any],
        value: Callable[[Kind, Any], Any],
    ) -> None:
        super().__init__(data)
        self.count = COUNT_MAX
        self.header = header
        self.value = value


def _decode_block(reader: _BlockReader) -> dict[str, Any]:
    """Return the properties of a whole block, by name and in the order of the block."""
    flags = int.from_bytes(reader.take(2, "the property flags"), "big")
    found: dict[str, Any] = {}
    for name, size, what in _flagged(flags):
        if name == "headers":
            found[name] = _sized(reader, "the headers", _decode_table, DEPTH_MAX)
        elif size:
            found[name] = int.from_bytes(reader.take(size, what), "big")
        else:
            found[name] = _short(reader, what)
    reader.finish("the properties")
    return found


@lru_cache(maxsize=1024)  # publishers mostly set the same few properties
def _flagged(flags: int) -> tuple[tuple[str, int, str], ...]:
    """Return the properties of a block: name, size of a number or 0, and what an error calls it."""
    return tuple(
        (name, NUMBERS.get(name, 0), f"the property {name}")
        for place, name in enumerate(NAMES)
        if flags >> 15 - place & 1
    )


def _decode_table(reader: _BlockReader, depth: int) -> tuple[Any, ...]:
    headers = []
    while reader.offset < reader.end:
        name = _short(reader, "a header's name")
        headers.append(reader.header(name, _decode_value(reader, depth)))
    return tuple(headers)


def _decode_array(reader: _BlockReader, depth: int) -> tuple[Any, ...]:
    values = []
    while reader.offset < reader.end:
        values.append(_decode_value(reader, depth))
    return tuple(values)


def _decode_value(reader: _BlockReader, depth: int) -> Any:
    offset = reader.offset
    code = reader.byte("a header's type")
    kind = _BY_CODE.get(code)
    if kind is None:
        raise CorruptData("unknown type of a header", offset=offset, found=f"{code:02X}")
    if depth == 0:
        raise CorruptData(f"headers are nested more than {DEPTH_MAX} deep", offset=offset)
    if reader.count == 0:
        raise CorruptData(f"the headers have more than {COUNT_MAX} values", offset=offset)
    reader.count -= 1
    what, form = kind.what, kind.form
    value: Any
    if form is not None:
        value = _plain(kind, form.unpack(reader.take(form.size, what)), offset)
    elif kind is Kind.VOID:
        value = None
    elif kind is Kind.TABLE:
        value = _sized(reader, what, _decode_table, depth - 1)
    elif kind is Kind.ARRAY:
        value = _sized(reader, what, _decode_array, depth - 1)
    else:
        value = reader.take(reader.uint32(kind.length), what)
    return reader.value(kind, value)


def _sized(
    reader: _BlockReader,
    what: str,
    decode: Callable[[_BlockReader, int], tuple[Any, ...]],
    depth: int,
) -> tuple[Any, ...]:
    """Return what ``decode`` makes of the bytes behind a length of 32 bits; it sees no others."""
    size = reader.uint32(f"the length of {what}")
    outer_end = reader.end
    if size > reader.remaining:
        reader.take(size, what)  # raises: it says what is missing
    reader.end = reader.offset + size
    found = decode(reader, depth)
    reader.end = outer_end
    return found


def _plain(kind: Kind, numbers: tuple[Any, ...], offset: int) -> bool | float | Decimal:
    number: int | float = numbers[0]
    if type(number) is int:
        if kind is Kind.BOOLEAN:
            return number != 0
        return Decimal(scale=number, unscaled=numbers[1]) if kind is Kind.DECIMAL else number
    if isfinite(number):
        return number
    raise CorruptData("a header's float is no number", offset=offset)


def _short(reader: Reader, what: str) -> bytes:
    return reader.take(reader.byte(what), what)


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
    return [_json_of_header(x.name, _json_of_nested(x.value)) for x in table]


def _json_of_nested(item: Value) -> dict[str, Any]:
    value: Any = item.value
    if item.kind is Kind.TABLE:
        value = _json_of_table(value)
    elif item.kind is Kind.ARRAY:
        value = [_json_of_nested(x) for x in value]
    return _json_of_value(item.kind, value)


def _json_of_header(name: bytes, value: dict[str, Any]) -> dict[str, Any]:
    return {"name": json_of_text(name), **value}


def _json_of_value(kind: Kind, value: Any) -> dict[str, Any]:
    """Return a header's value; those inside a table or an array are JSON already."""
    if kind is Kind.TEXT:
        value = json_of_text(value)
    elif kind is Kind.BINARY:
        value = {"base64": b64encode(value).decode("ascii")}
    elif kind is Kind.DECIMAL:
        value = {"scale": value.scale, "unscaled": value.unscaled}
    elif kind is Kind.TABLE or kind is Kind.ARRAY:
        value = list(value)
    return {"type": kind.label, "value": value}


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
