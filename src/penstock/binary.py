"""The wire types that all TaskFlux files and packets are made of (docs/formats/types.md).

A ``Reader`` walks over bytes that somebody else wrote: every length is checked against what is
there before anything is allocated, and every failure is one of ours. Writing functions return
bytes and assert what the caller promised.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeVar

from fastcrc import crc32

from penstock.errors import CorruptData, InvalidQueueName, TruncatedData
from penstock.model import INT32_MAX, QueueName

Bytes = bytes | bytearray | memoryview

INT32: Final = Struct(">i")
UINT32: Final = Struct(">I")
INT64: Final = Struct(">q")
UINT64: Final = Struct(">Q")

CHECKSUM_START: Final = 0xFFFFFFFF
"""The checksum of no bytes, and so the start of a chunked computation."""

_mpeg_2 = crc32.mpeg_2

checksum_of_one: Callable[[Bytes], int] = crc32.mpeg_2
"""The CRC-32/MPEG-2 of some bytes: the native function itself, for loops over many records."""

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def checksum(data: Bytes, start: int = CHECKSUM_START) -> int:
    """Return the CRC-32/MPEG-2 of ``data``, continuing from ``start``."""
    return _mpeg_2(data, start)


def hexadecimal(data: Bytes) -> str:
    """Return bytes the way our messages and docs show them: upper case, spaced."""
    return bytes(data).hex(" ").upper()


# Names repeat in every entry; checking each once is what makes replay fast. The bound keeps a
# hostile file with millions of names from growing the table.
_NAMES_MAX: Final = 65_536
_names: dict[bytes, QueueName] = {}


def decode_queue_name(raw: bytes) -> QueueName:
    """Return the name that these bytes spell. Raises ``InvalidQueueName``."""
    name = _names.get(raw)
    if name is None:
        name = QueueName(raw.decode("latin-1"))
        if len(_names) >= _NAMES_MAX:
            _names.clear()
        _names[raw] = name
    return name


class Reader:
    """Walks over ``data`` from ``offset`` to ``end``; raises ``BadData`` and nothing else."""

    __slots__ = ("data", "end", "offset")

    def __init__(self, data: Bytes, offset: int = 0, end: int | None = None) -> None:
        self.data = data
        self.offset = offset
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        return self.end - self.offset

    def take(self, size: int, what: str) -> bytes:
        """Return the next ``size`` bytes."""
        offset = self.offset
        if size > self.end - offset:
            raise TruncatedData(
                f"the bytes end inside {what}",
                offset=offset,
                expected=f"{size} bytes",
                found=f"{self.end - offset}",
            )
        self.offset = offset + size
        return bytes(self.data[offset : offset + size])

    def _number(self, form: Struct, what: str) -> int:
        value: int = form.unpack(self.take(form.size, what))[0]
        return value

    def byte(self, what: str = "a byte") -> int:
        offset = self.offset
        if offset >= self.end:
            return self.take(1, what)[0]  # raises: it says what is missing
        self.offset = offset + 1
        return self.data[offset]

    def boolean(self, what: str = "a boolean") -> bool:
        return self.byte(what) != 0

    def int32(self, what: str = "an Int32") -> int:
        return self._number(INT32, what)

    def uint32(self, what: str = "a UInt32") -> int:
        return self._number(UINT32, what)

    def int64(self, what: str = "an Int64") -> int:
        return self._number(INT64, what)

    def uint64(self, what: str = "a UInt64") -> int:
        return self._number(UINT64, what)

    def length(self, what: str, unit_size: int = 1) -> int:
        """Return a count of things that take at least ``unit_size`` bytes each."""
        offset = self.offset
        count = self.int32(f"the length of {what}")
        if count < 0:
            raise CorruptData(
                f"negative length of {what}", offset=offset, expected="0 or more", found=str(count)
            )
        if count * unit_size > self.remaining:
            raise TruncatedData(
                f"the bytes end inside {what}",
                offset=offset,
                expected=f"{count * unit_size} bytes",
                found=f"{self.remaining}",
            )
        return count

    def buffer(self, what: str = "a buffer") -> bytes:
        return self.take(self.length(what), what)

    def string(self, what: str = "a string") -> str:
        offset = self.offset
        try:
            return self.buffer(what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptData(f"{what} is not UTF-8", offset=offset + 4 + error.start) from None

    def queue_name(self) -> QueueName:
        offset = self.offset
        raw = self.take(self.byte("a queue name"), "a queue name")
        try:
            return decode_queue_name(raw)
        except InvalidQueueName as error:
            raise CorruptData(str(error), offset=offset) from None

    def nullable(self, item: Callable[[], T]) -> T | None:
        return item() if self.boolean() else None

    def array(self, item: Callable[[], T], *, unit_size: int, what: str = "an array") -> list[T]:
        return [item() for _ in range(self.length(what, unit_size))]

    def pairs(
        self, key: Callable[[], K], value: Callable[[], V], *, unit_size: int
    ) -> list[tuple[K, V]]:
        """Return a dictionary's pairs in their order; the format allows a key twice."""
        return [(key(), value()) for _ in range(self.length("a dictionary", unit_size))]

    def finish(self, what: str) -> None:
        """Refuse trailing bytes: lengths are explicit, so what is left over is damage."""
        if self.remaining:
            raise CorruptData(
                f"bytes left over after {what}",
                offset=self.offset,
                expected="the end",
                found=f"{self.remaining} more",
            )


def encode_boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def encode_buffer(data: Bytes) -> bytes:
    assert len(data) <= INT32_MAX
    return INT32.pack(len(data)) + data


def encode_string(text: str) -> bytes:
    return encode_buffer(text.encode("utf-8"))


def encode_queue_name(name: QueueName) -> bytes:
    return bytes((len(name),)) + name.encode("ascii")


def encode_nullable(value: T | None, item: Callable[[T], bytes]) -> bytes:
    return b"\x00" if value is None else b"\x01" + item(value)


def encode_array(values: list[T], item: Callable[[T], bytes]) -> bytes:
    return INT32.pack(len(values)) + b"".join(map(item, values))


def encode_pairs(
    pairs: list[tuple[K, V]], key: Callable[[K], bytes], value: Callable[[V], bytes]
) -> bytes:
    return encode_array(pairs, lambda pair: key(pair[0]) + value(pair[1]))
