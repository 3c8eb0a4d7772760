"""Tables of places, ``N.places`` beside ``N.idx`` and ``N.rdq``: where the records of a file are, without their bodies.

A start that has a table does not read the file. A table says nothing that its file does not say, so it may be
missing or wrong at no other cost than time; which table is right, the checkpoint knows (docs/formats/paged.md).
Columns are integers of 64 bits. One that grows evenly, as most do, takes 17 bytes however many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

from penstock.binary import UINT32, Bytes, Reader, checksum, hexadecimal
from penstock.errors import CorruptData, UnsupportedVersion
from penstock.formats.rabbitmq.journal import SEQUENCE_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUFFIX: Final = ".places"
MARKER: Final = b"PSPL"
VERSION: Final = 1

_HEAD: Final = Struct(">4siHHQQQI")
_EVEN: Final = Struct(">QQ")  # the first value and the step, both modulo 2**64
_EVEN_WIDTH: Final = 0
_WIDTHS: Final = (1, 2, 4, 8)

ROWS_MAX: Final = 2**22
"""Rows of a table: a segment has 16384, a store file of the usual size fewer than a million. A column that grows
evenly is short however many rows it claims."""


class Covers(IntEnum):
    """What kind of file a table is of."""

    SEGMENT = 1
    STORE_FILE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMark:
    """What a checkpoint knows of a table: no other is right."""

    size: int  # bytes; never 0
    checksum: int  # the one that the table ends in


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlaceTable:
    """A file's records, one array a field; which fields there are, the kind of the file says."""

    covers: Covers
    queue: int  # the number of the queue; 0 for the store, which is of all
    number: int  # of the file
    length: int  # so many bytes of the file are covered, from its start
    columns: tuple[NDArray[np.uint64], ...]

    def __len__(self) -> int:
        return len(self.columns[0])


def places_name(number: int) -> str:
    """Return the file name of the table that stands beside the file with this number."""
    return f"{number}{SUFFIX}"


def parse_places_name(name: str) -> int | None:
    """Return the number in the file name of a table, ``None`` if it is the name of none."""
    digits = name.removesuffix(SUFFIX)
    # More digits than 62 bits have are not even converted: that takes long for very many.
    if digits == name or len(digits) > 19 or not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if str(number) == digits and number <= SEQUENCE_MAX else None


def mark_of(data: Bytes) -> TableMark:
    """Return what a checkpoint says of a table with these bytes; whether they are one is not looked at."""
    return TableMark(size=len(data), checksum=int.from_bytes(data[-UINT32.size :], "big"))


def encode_table(table: PlaceTable) -> bytes:
    assert len(table) <= ROWS_MAX
    pieces = [
        _HEAD.pack(
            MARKER,
            VERSION,
            table.covers,
            len(table.columns),
            table.queue,
            table.number,
            table.length,
            len(table),
        )
    ]
    pieces.extend(map(_encode_column, table.columns))
    body = b"".join(pieces)
    return body + UINT32.pack(checksum(body))


def _encode_column(column: NDArray[np.uint64]) -> bytes:
    import numpy as np

    assert column.dtype == np.uint64
    count = len(column)
    steps = np.diff(column)  # modulo 2**64
    step = int(steps[0]) if len(steps) else 0
    if (steps == step).all():
        return bytes((_EVEN_WIDTH,)) + _EVEN.pack(int(column[0]) if count else 0, step)
    largest = int(column.max())
    width = next(width for width in _WIDTHS if largest < 1 << 8 * width)
    return bytes((width,)) + column.astype(f">u{width}").tobytes()


def decode_table(data: Bytes) -> PlaceTable:
    """Return a table. Raises ``BadData``; whether its columns can be true, the caller looks at."""
    reader = Reader(data, 0, max(0, len(data) - UINT32.size))
    head = reader.take(_HEAD.size, "the head of a table of places")
    marker, version, covers, width, queue, number, length, count = _HEAD.unpack(head)
    if marker != MARKER:
        raise CorruptData(
            "not a table of places",
            offset=0,
            expected=hexadecimal(MARKER),
            found=hexadecimal(marker),
        )
    if version != VERSION:
        raise UnsupportedVersion(
            "a table of another version", offset=4, expected=str(VERSION), found=str(version)
        )
    (stored,) = UINT32.unpack(data[reader.end :])
    if stored != checksum(data[: reader.end]):
        raise CorruptData("the checksum of the table is wrong", offset=reader.end)
    if covers not in iter(Covers) or not width:
        raise CorruptData("a table of no kind of file that there is", offset=8)
    columns = tuple(_column(reader, count) for _ in range(width))
    if reader.remaining:
        raise CorruptData("bytes behind the last column of a table", offset=reader.offset)
    return PlaceTable(
        covers=Covers(covers), queue=queue, number=number, length=length, columns=columns
    )


def _column(reader: Reader, count: int) -> NDArray[np.uint64]:
    import numpy as np

    if count > ROWS_MAX:
        raise CorruptData(f"a table of {count} rows", offset=reader.offset)
    (width,) = reader.take(1, "the width of a column")
    if width == _EVEN_WIDTH:
        first, step = _EVEN.unpack(reader.take(_EVEN.size, "a column that grows evenly"))
        if not step:
            return np.full(count, first, dtype=np.uint64)
        return np.arange(count, dtype=np.uint64) * np.uint64(step) + np.uint64(first)
    if width not in _WIDTHS:
        raise CorruptData(f"a column of {width} bytes a row", offset=reader.offset - 1)
    values = np.frombuffer(reader.take(count * width, "a column"), dtype=f">u{width}")
    return values.astype(np.uint64)


def as_columns(columns: Sequence[NDArray[np.generic]]) -> tuple[NDArray[np.uint64], ...]:
    """Return arrays of integers as a table's columns: negative ones modulo 2**64."""
    import numpy as np

    return tuple(column.astype(np.uint64) for column in columns)
