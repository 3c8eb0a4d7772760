"""What bodies are made of: arrays padded to 8 bytes, offsets and bytes, extensions (docs/formats/records.md).

Every length is compared with the bytes that are there before a view is made, and no view copies. Views have the byte
order of the machine, which must be little-endian as the files are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, pack
from typing import Final, NamedTuple

from penstock.binary import Bytes
from penstock.errors import BadRecord

I64: Final = Struct("<q")
U64: Final = Struct("<Q")
TWO_U32: Final = Struct("<II")
NONE: Final = -(2**63)
"""The value of a time column that means: no time."""

TIME_DISTANCE_MAX: Final = 2**62
"""How far a relative time may be from the time of its record, either way: sums stay within 64 bits."""

ZEROS: Final = tuple(bytes(size) for size in range(8))
MUST_UNDERSTAND: Final = 1
"""The flag of an extension that a reader must understand."""

_EXTENSION: Final = Struct("<HHI")

if pack("=H", 1) != pack("<H", 1):  # pragma: no cover - no machine of ours
    raise ImportError("records of generation 4 need a little-endian machine")


class Blobs(NamedTuple):
    """A column of byte strings: offsets, and the bytes that they refer to. Nothing is copied."""

    offsets: memoryview  # count + 1 of i32; the first is 0, but for a delivery
    data: Bytes
    at: int  # where the bytes of the first string begin in data

    def get(self, place: int) -> bytes:
        """Return one string."""
        base = self.at - self.offsets[0]
        return bytes(self.data[base + self.offsets[place] : base + self.offsets[place + 1]])

    def values(self) -> list[bytes]:
        """Return all strings."""
        base, data, offsets = self.at - self.offsets[0], self.data, self.offsets.tolist()
        return [bytes(data[base + start : base + end]) for start, end in pairwise(offsets)]


class Extension(NamedTuple):
    """A part of a body that a later version defined. Readers that do not know it keep it as it is."""

    id: int
    flags: int
    content: bytes


class ColumnReader:
    """Walks over the columns of a body, from ``at`` to ``limit``. Raises ``BadRecord`` and nothing else."""

    __slots__ = ("at", "count", "data", "limit", "view")

    def __init__(self, data: Bytes, at: int, limit: int, count: int) -> None:
        self.data = data
        self.view = memoryview(data)
        self.at = at
        self.limit = limit
        self.count = count

    def take(self, size: int, what: str) -> int:
        """Return where the next ``size`` bytes begin; they and their padding are there, and the padding is zero."""
        at = self.at
        end = at + size
        padding = -size % 8
        if end + padding > self.limit:
            raise BadRecord(
                f"the body ends inside {what}",
                offset=at,
                expected=f"{size + padding} bytes",
                found=str(self.limit - at),
            )
        if padding and self.data[end : end + padding] != ZEROS[padding]:
            raise BadRecord(f"the padding behind {what} is not zero", offset=end)
        self.at = end + padding
        return at

    def array(self, form: str, width: int, what: str, *, count: int | None = None) -> memoryview:
        """Return a view of one number for each task, or of ``count`` numbers."""
        size = (self.count if count is None else count) * width
        at = self.take(size, what)
        return self.view[at : at + size].cast(form)  # type: ignore[call-overload, no-any-return]

    def i64(self, what: str) -> int:
        value: int = I64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def offsets(self, what: str, *, any_first: bool = False) -> memoryview:
        """Return count + 1 offsets that do not decrease and begin at 0."""
        at = self.at
        view = self.array("i", 4, what, count=self.count + 1)
        offsets = view.tolist()
        if offsets[0] < 0 or (offsets[0] and not any_first):
            raise BadRecord(
                f"the offsets of {what} do not begin at 0", offset=at, found=str(offsets[0])
            )
        if sorted(offsets) != offsets:
            raise BadRecord(f"the offsets of {what} decrease", offset=at)
        return view

    def blobs(self, what: str, *, any_first: bool = False) -> Blobs:
        """Return one string of bytes for each task."""
        offsets = self.offsets(what, any_first=any_first)
        return Blobs(offsets, self.data, self.take(offsets[-1] - offsets[0], what))

    def ascending_ids(self, what: str) -> memoryview:
        """Return one id for each task, each greater than the one before."""
        at = self.at
        view = self.array("Q", 8, what)
        ids = view.tolist()
        if sorted(set(ids)) != ids:
            raise BadRecord(f"{what} do not ascend", offset=at)
        return view

    def times(self, what: str, low: int, high: int) -> memoryview:
        """Return one relative time for each task, from ``low`` to ``high``, or ``NONE``."""
        at = self.at
        view = self.array("q", 8, what)
        values = view.tolist()
        if min(values) < low or max(values) > high:
            for place, value in enumerate(values):
                if value != NONE:
                    check_time(value, low, high, what, at + 8 * place)
        return view

    def time(self, what: str, low: int, high: int) -> int:
        """Return one relative time for all tasks."""
        at = self.at
        value = self.i64(what)
        check_time(value, low, high, what, at)
        return value

    def extensions(self) -> tuple[Extension, ...]:
        """Return the extensions of a body. One that must be understood is refused: this version knows none."""
        at = self.take(8, "extensions")
        size, count = TWO_U32.unpack_from(self.data, at)
        end = self.at + size
        if end > self.limit or size % 8 or count * _EXTENSION.size > size:
            raise BadRecord(f"{count} extensions in {size} bytes do not fit the body", offset=at)
        found = []
        for _ in range(count):
            at = self.take(_EXTENSION.size, "an extension")
            number, flags, length = _EXTENSION.unpack_from(self.data, at)
            if flags & ~MUST_UNDERSTAND:
                raise BadRecord(
                    f"unknown flags of extension {number}", offset=at, found=f"{flags:04X}"
                )
            if flags:
                raise BadRecord(
                    f"extension {number} is unknown and must be understood; use a newer version",
                    offset=at,
                )
            content = self.take(length, "an extension")
            found.append(Extension(number, flags, bytes(self.data[content : content + length])))
        if self.at != end or not count:
            raise BadRecord("extensions do not add up to their size", offset=at)
        return tuple(found)


def check_time(value: int, low: int, high: int, what: str, offset: int) -> None:
    """Raise ``BadRecord`` unless a relative time is from ``low`` to ``high``."""
    if not low <= value <= high:
        raise BadRecord(
            f"{what} is out of range",
            offset=offset,
            expected=f"{low} to {high} ms",
            found=str(value),
        )


def padded(data: bytes) -> bytes:
    """Return ``data`` with zeros up to a multiple of 8 bytes."""
    padding = -len(data) % 8
    return data + ZEROS[padding] if padding else data


def encode_array(form: str, values: Sequence[int]) -> bytes:
    """Return numbers as a column; ``form`` is the letter of ``struct``."""
    return padded(pack(f"<{len(values)}{form}", *values))


def encode_blobs(values: Sequence[bytes]) -> bytes:
    """Return strings as offsets and bytes."""
    offsets = [0, *accumulate(map(len, values))]
    return encode_array("i", offsets) + padded(b"".join(values))


def encode_extensions(extensions: Sequence[Extension]) -> bytes:
    """Return extensions as a column."""
    parts = b"".join(
        _EXTENSION.pack(extension.id, extension.flags, len(extension.content))
        + padded(extension.content)
        for extension in extensions
    )
    return TWO_U32.pack(len(parts), len(extensions)) + parts
