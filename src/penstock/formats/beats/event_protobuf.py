"""Events as protobuf, in the three numberings that Elastic used one after the other (docs/formats/beats.md).

Nothing in a segment says which one it is; field numbers and wire types tell. The messages are built here, with two
liberties that leave the bytes alone: text is declared as bytes, because it need not be UTF-8, and so are maps and lists
within values, so that their depth is ours to bound and not the library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from penstock.binary import Bytes
from penstock.errors import CorruptData, InvalidValue, needing
from penstock.formats.beats.event import (
    NANOSECONDS,
    Event,
    Timestamp,
    base64_map,
    cannot_write,
    check_depth,
    check_depth_to_write,
    utf8_of,
)
from penstock.model import INT64_MAX, INT64_MIN, UINT64_MAX


class Generation(IntEnum):
    """How the fields of an event are numbered; the third is what we write."""

    ONE = 1  # Beats 8.4
    TWO = 2  # 8.5 and 8.6
    THREE = 3  # 8.7 to 8.14


_SOURCE: Final = {"input_id": 1, "stream_id": 2}
_DATA_STREAM: Final = {"type": 1, "dataset": 2, "namespace": 3}
_OUTER_DEPTH: Final = 2  # of ``meta`` and ``fields``: the event itself is the first


def decode_protobuf(payload: Bytes) -> Event:
    """Return the event that a frame holds; its flags are 0. Raises ``CorruptData``, and ``DependencyMissing``.

    Source and data stream stand in ``meta`` as ``source`` and ``data_stream``, unless it has such entries itself.
    """
    messages = _messages(generation_of(payload))
    event = _parsed(messages, messages.Event, bytes(payload))
    meta = _decode_struct(messages, event.metadata, _OUTER_DEPTH)
    for name, fields in (("source", _SOURCE), ("data_stream", _DATA_STREAM)):
        if event.HasField(name):
            message = getattr(event, name)
            texts = {field: _text(getattr(message, field)) for field in fields}
            meta.setdefault(name, {field: text for field, text in texts.items() if text})
    time = _decode_time(event.timestamp)
    return Event(
        _wrapped(time.seconds * NANOSECONDS + time.nanos),
        0,
        meta,
        _decode_struct(messages, event.fields, _OUTER_DEPTH),
    )


def encode_protobuf(event: Event) -> bytes:
    """Return an event of the third generation, without its flags. Bytes become maps ``{"base64": …}``.

    Raises ``InvalidValue``, and ``DependencyMissing``.
    """
    messages = _messages(Generation.THREE)
    meta = dict(event.meta)
    message = messages.Event()
    message.timestamp.seconds, message.timestamp.nanos = divmod(event.timestamp, NANOSECONDS)
    for name, fields in (("source", _SOURCE), ("data_stream", _DATA_STREAM)):
        if _has_shape(meta.get(name), fields):
            part = getattr(message, name)
            part.SetInParent()
            for field, text in meta.pop(name).items():
                setattr(part, field, utf8_of(text))
    if meta:
        message.metadata = _encode_struct(messages, meta, _OUTER_DEPTH)
    if event.fields:
        message.fields = _encode_struct(messages, event.fields, _OUTER_DEPTH)
    return _serialized(message)


def generation_of(payload: Bytes) -> Generation:
    """Return how an event's fields are numbered. Raises ``CorruptData`` for what is no protobuf.

    Any text in it decides, and so does nearly everything else. An event that holds only nulls, doubles, and booleans or
    small 32-bit integers, which look alike, counts as of the third.
    """
    with memoryview(payload) as view:
        parts: dict[int, memoryview] = {}
        for number, wire, value in _wire_fields(view):
            if wire == _Wire.SIZED:
                assert isinstance(value, memoryview)
                parts[number] = value
        if 6 in parts or (3 not in parts and 4 in parts and _is_data_stream(parts[4])):
            return Generation.ONE
        for number in (5, 4):
            for generation in _signs(parts.get(number, view[:0])):
                return generation
    return Generation.THREE


# --- telling generations apart -------------------------------------------------------------------


class _Wire(IntEnum):
    """How a field is written."""

    VARINT = 0
    EIGHT = 1
    SIZED = 2
    FOUR = 5


_FIXED_SIZES: Final = {_Wire.EIGHT: 8, _Wire.FOUR: 4}


def _is_data_stream(part: memoryview) -> bool:
    """Whether this is a data stream rather than a map, whose fields are all entries with number 1."""
    return any(number != 1 for number, _, _ in _wire_fields(part))


def _signs(struct: memoryview) -> Iterator[Generation]:
    """Yield what each value of a map tells of its generation, where it tells anything."""
    for _, wire, entry in _wire_fields(struct):
        if wire != _Wire.SIZED:
            continue
        assert isinstance(entry, memoryview)
        for number, _, value in _wire_fields(entry):
            if number == 2 and isinstance(value, memoryview):
                for field, form, content in _wire_fields(value):
                    if 8 <= field <= 12:
                        yield Generation.THREE
                    elif field in (3, 5, 6, 7):
                        yield Generation.TWO if form == _Wire.SIZED else Generation.THREE
                    elif field == 4 and isinstance(content, int) and content > 1:
                        yield Generation.THREE  # no boolean


def _wire_fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield number, wire type and value of each field of a message."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | memoryview = 0
        if wire == _Wire.VARINT:
            value, at = _varint(data, at)
        elif wire in (_Wire.SIZED, _Wire.EIGHT, _Wire.FOUR):
            size, at = _varint(data, at) if wire == _Wire.SIZED else (_FIXED_SIZES[_Wire(wire)], at)
            if size > end - at:
                raise CorruptData("the payload is no protobuf: it ends inside a field", offset=0)
            value = data[at : at + size]
            at += size
        else:
            raise CorruptData(f"the payload is no protobuf: a wire type of {wire}", offset=0)
        yield number, wire, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & UINT64_MAX, at + place + 1
    raise CorruptData("the payload is no protobuf: a number without an end", offset=0)


# --- messages ------------------------------------------------------------------------------------

_PACKAGE: Final = "penstock"
_EVENT_FIELDS: Final = {
    Generation.ONE: {"source": 2, "data_stream": 4, "metadata": 5, "fields": 6},
    Generation.TWO: {"source": 2, "data_stream": 3, "metadata": 4, "fields": 5},
}
_EVENT_FIELDS[Generation.THREE] = _EVENT_FIELDS[Generation.TWO]
_VALUE_FIELDS: Final = {
    Generation.TWO: {
        1: ("null", "int32"), 2: ("float64", "double"), 3: ("string", "bytes"), 4: ("bool", "bool"),
        5: ("struct", "bytes"), 6: ("list", "bytes"), 7: ("timestamp", "Timestamp"),
    },
    Generation.THREE: {
        1: ("null", "int32"), 2: ("float64", "double"), 3: ("float32", "float"), 4: ("int32", "int32"),
        5: ("int64", "int64"), 6: ("uint32", "uint32"), 7: ("uint64", "uint64"), 8: ("string", "bytes"),
        9: ("bool", "bool"), 10: ("struct", "bytes"), 11: ("list", "bytes"), 12: ("timestamp", "Timestamp"),
    },
}  # fmt: skip
_VALUE_FIELDS[Generation.ONE] = _VALUE_FIELDS[Generation.TWO]


@cache
def _messages(generation: Generation) -> SimpleNamespace:
    """Return the classes of a generation's messages, and the library's error. Raises ``DependencyMissing``."""
    with needing("spool", "an event in protobuf"):
        from google.protobuf import (  # type: ignore[import-untyped]
            descriptor_pb2,
            descriptor_pool,
            message_factory,
        )
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}/event{generation}.proto", package=_PACKAGE, syntax="proto3"
    )
    numbers = _EVENT_FIELDS[generation]
    _declare(file, "Timestamp", {1: ("seconds", "int64"), 2: ("nanos", "int32")})
    _declare(file, "Source", {number: (name, "bytes") for name, number in _SOURCE.items()})
    _declare(file, "DataStream", {number: (name, "bytes") for name, number in _DATA_STREAM.items()})
    _declare(file, "Value", _VALUE_FIELDS[generation], is_one_of=True)
    _declare(file, "Entry", {1: ("key", "bytes"), 2: ("value", "Value")})
    _declare(file, "Struct", {1: ("data", "Entry")}, is_repeated=True)
    _declare(file, "ListValue", {1: ("values", "Value")}, is_repeated=True)
    _declare(
        file,
        "Event",
        {
            1: ("timestamp", "Timestamp"),
            numbers["source"]: ("source", "Source"),
            numbers["data_stream"]: ("data_stream", "DataStream"),
            numbers["metadata"]: ("metadata", "bytes"),
            numbers["fields"]: ("fields", "bytes"),
        },
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
        )
        for message in file.message_type
    }
    return SimpleNamespace(DecodeError=DecodeError, **classes)


def _declare(
    file: Any,
    name: str,
    fields: dict[int, tuple[str, str]],
    *,
    is_repeated: bool = False,
    is_one_of: bool = False,
) -> None:
    """Add a message to a file: of each number the field's name and its type, a scalar's or a message's."""
    message = file.message_type.add(name=name)
    if is_one_of:
        message.oneof_decl.add(name="kind")
    for number, (field_name, kind) in fields.items():
        field = message.field.add(name=field_name, number=number)
        field.label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
        if is_one_of:
            field.oneof_index = 0
        if kind[0].isupper():
            field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        else:
            field.type = getattr(field, f"TYPE_{kind.upper()}")


# --- reading -------------------------------------------------------------------------------------


def _parsed(messages: SimpleNamespace, kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except messages.DecodeError:
        raise CorruptData("the payload is no event in protobuf", offset=0) from None


def _decode_struct(messages: SimpleNamespace, data: bytes, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    level: list[_Unread] = [(found, data)]
    while level:
        check_depth(depth)
        level = [inner for target, part in level for inner in _decode_level(messages, target, part)]
        depth += 1
    return found


_Unread = tuple[dict[str, Any] | list[Any], bytes]
"""A map or list that is still empty, and the message that fills it."""


def _decode_level(
    messages: SimpleNamespace, target: dict[str, Any] | list[Any], data: bytes
) -> list[_Unread]:
    """Fill a map or list. Return those within it, which are to be filled next."""
    inner: list[_Unread] = []
    if isinstance(target, dict):
        for entry in _parsed(messages, messages.Struct, data).data:
            target[_text(entry.key)] = _decode_value(entry.value, inner)
    else:
        for item in _parsed(messages, messages.ListValue, data).values:
            target.append(_decode_value(item, inner))
    return inner


def _decode_value(value: Any, inner: list[_Unread]) -> Any:
    match value.WhichOneof("kind"):
        case None | "null":
            return None
        case "string":
            return _text(value.string)
        case "struct" | "list" as kind:
            made: dict[str, Any] | list[Any] = {} if kind == "struct" else []
            inner.append((made, getattr(value, kind)))
            return made
        case "timestamp":
            return _decode_time(value.timestamp)
        case name:
            return getattr(value, name)


def _decode_time(message: Any) -> Timestamp:
    try:
        return Timestamp(message.seconds, message.nanos)
    except InvalidValue as error:
        raise CorruptData(f"the payload is no event in protobuf: {error}", offset=0) from None


def _wrapped(nanoseconds: int) -> int:
    """Return what 64 bits hold of a time, as in the other formats, which have no room for the year 1."""
    return (nanoseconds - INT64_MIN & UINT64_MAX) + INT64_MIN


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# --- writing -------------------------------------------------------------------------------------


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _has_shape(value: object, fields: dict[str, int]) -> bool:
    return isinstance(value, dict) and all(
        name in fields and isinstance(text, str) and text for name, text in value.items()
    )


class _Message:
    """A map or list that is being written: its message, and what is left of its values."""

    def __init__(self, messages: SimpleNamespace, values: dict[str, Any] | Sequence[Any]) -> None:
        self.is_map = isinstance(values, dict)
        self.message = messages.Struct() if self.is_map else messages.ListValue()
        self.rest: Iterator[tuple[Any, Any]]
        self.rest = iter(values.items() if isinstance(values, dict) else enumerate(values))
        self.place: Any = None  # of the value that is being written

    def add(self, value: Any) -> None:
        if self.is_map:
            self.message.data.add(key=utf8_of(self.place), value=value)
        else:
            self.message.values.append(value)


def _encode_struct(messages: SimpleNamespace, values: dict[str, Any], depth: int) -> bytes:
    check_depth_to_write(depth)
    stack = [_Message(messages, values)]
    while True:
        writing = stack[-1]
        for place, value in writing.rest:
            if writing.is_map and not isinstance(place, str):
                raise InvalidValue(f"a key of a map that is not text but a {type(place).__name__}")
            writing.place = place
            if isinstance(value, bytes | bytearray | memoryview):
                value = base64_map(value)
            if isinstance(value, dict | list | tuple):
                check_depth_to_write(depth + len(stack))
                stack.append(_Message(messages, value))
                break
            writing.add(_encode_scalar(messages, value))
        else:
            data = _serialized(stack.pop().message)
            if not stack:
                return data
            kind = "struct" if writing.is_map else "list"
            stack[-1].add(messages.Value(**{kind: data}))


def _encode_scalar(messages: SimpleNamespace, value: Any) -> Any:
    kind = messages.Value
    match value:
        case None:
            return kind(null=0)
        case bool():
            return kind(bool=value)
        case int() if INT64_MIN <= value <= INT64_MAX:
            return kind(int64=value)
        case int() if 0 <= value <= UINT64_MAX:
            return kind(uint64=value)
        case int():
            raise InvalidValue(f"protobuf has no integer of more than 64 bits: {value:#x}")
        case float():
            return kind(float64=value)
        case str():
            return kind(string=utf8_of(value))
        case Timestamp():
            time = messages.Timestamp(seconds=value.seconds, nanos=value.nanos)
            return kind(timestamp=time)
    raise cannot_write(value)
