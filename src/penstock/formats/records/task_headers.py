"""The headers of a task: names and values beside its payload (docs/formats/records.md).

Per task: pairs of (u8 length, name, u16 length, value), in ascending order of names. A name is 1 to 255 printable ASCII
characters without spaces; a value is any bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from penstock.errors import BadRecord, InvalidValue
from penstock.formats.records.columns import Blobs

_LENGTH: Final = Struct("<H")
_NAME_BYTES: Final = bytes(range(33, 127))
VALUE_SIZE_MAX: Final = 2**16 - 1


def decode_headers(content: bytes) -> dict[str, bytes]:
    """Return the headers of one task. Raises ``BadRecord``."""
    headers: dict[str, bytes] = {}
    at, before = 0, b""
    while at < len(content):
        name_end = at + 1 + content[at]
        name = content[at + 1 : name_end]
        value_at = name_end + _LENGTH.size
        if value_at > len(content):
            raise BadRecord("the headers of a task end inside a header")
        end = value_at + _LENGTH.unpack_from(content, name_end)[0]
        if end > len(content):
            raise BadRecord("the headers of a task end inside a value")
        if not name or name.translate(None, _NAME_BYTES):
            raise BadRecord(
                "the name of a header is not 1 to 255 printable characters", found=repr(name)
            )
        if name <= before:
            raise BadRecord("the headers of a task are not sorted by name", found=repr(name))
        headers[name.decode("ascii")] = content[value_at:end]
        at, before = end, name
    return headers


def encode_headers(headers: Mapping[str, bytes]) -> bytes:
    """Return the headers of one task as bytes. Raises ``InvalidValue``."""
    parts = []
    for name in sorted(headers):
        value = headers[name]
        if (
            not 1 <= len(name) <= 255
            or not name.isascii()
            or name.encode().translate(None, _NAME_BYTES)
        ):
            raise InvalidValue(f"header name {name!r} is not 1 to 255 printable ASCII characters")
        if len(value) > VALUE_SIZE_MAX:
            raise InvalidValue(
                f"header {name} has a value of {len(value)} bytes; at most {VALUE_SIZE_MAX} are allowed"
            )
        parts.append(bytes((len(name),)) + name.encode() + _LENGTH.pack(len(value)) + value)
    return b"".join(parts)


def check_headers(column: Blobs) -> None:
    """Check the headers of all tasks. Raises ``BadRecord``. Equal ones, the common case, are checked once."""
    for content in set(column.values()):
        try:
            decode_headers(content)
        except BadRecord as error:
            error.offset = column.at
            raise
