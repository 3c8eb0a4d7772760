"""A frame of Beats' disk queue: length, payload, checksum and the length again (docs/formats/beats.md).

This module owns frames and what is to be done about damaged ones: one bad frame costs one frame. ``walk`` looks at a
logical stream, which is what a body holds once it is decrypted and decompressed, and never fails: what is no frame comes
out as a stretch of damage. ``FrameReader`` runs it interpreted, ``frame_scan`` compiled.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple

from fastcrc.crc32 import iso_hdlc as crc32

from penstock.binary import CHECKSUM_START, Bytes
from penstock.errors import InvalidValue
from penstock.formats.beats.segment import UINT32
from penstock.formats.kernel import compiled_as
from penstock.formats.kernel_bytes import crc, emit
from penstock.model import INT64_MAX

FRAMING: Final = 12
FRAME_MIN: Final = 13
"""A payload has at least one byte."""

FRAME_MAX: Final = 256 * 1024 * 1024
"""The most bytes that one frame is believed to have, and so what a reader may have to hold; more is damage."""

DAMAGE_DATA_MAX: Final = 4096
"""Bytes of a damaged stretch that are kept to be looked at."""

_END: Final = Struct("<II")  # checksum, length
_HEAD_SIZE: Final = UINT32.size


class Frame(NamedTuple):
    """A frame whose checksum is right; a tuple, because a reader makes one for each event."""

    offset: int  # logical
    size: int  # with its framing
    # Frames of the segment before it, damaged ones counted. It hides a method of tuples, which nothing calls.
    index: int  # type: ignore[assignment]
    payload: bytes
    warning: str | None  # what is odd about it all the same


class StretchKind(StrEnum):
    """What damage costs."""

    FRAME = "frame"  # one frame: both lengths agree and the checksum is wrong
    GAP = "gap"  # everything up to the next frame that is surely one
    TAIL = (
        "tail"  # everything up to the end; after a crash, a frame that was not written to its end
    )


@dataclass(frozen=True, slots=True)
class BadStretch:
    """A stretch of the stream that gives no frame."""

    kind: StretchKind
    offset: int  # logical
    size: int
    index: int  # frames of the segment before it; a ``FRAME`` counts as one itself, others do not
    reason: str
    data: bytes  # of the stretch, the first ``DAMAGE_DATA_MAX`` bytes at most


# --- writing -------------------------------------------------------------------------------------


def encode_frame(payload: Bytes) -> bytes:
    """Return one frame. Raises ``InvalidValue`` for a payload that is empty or too large."""
    return encode_frames((payload,))


def encode_frames(payloads: Sequence[Bytes]) -> bytes:
    """Return frames that follow each other. Raises ``InvalidValue`` for a payload that is empty or too large."""
    # Sizes repeat, and the checksum of a length is the start of the frame's.
    heads: dict[int, tuple[bytes, int]] = {}
    parts: list[Bytes] = []
    append, pack_end = parts.append, _END.pack
    for payload in payloads:
        size = len(payload) + FRAMING
        known = heads.get(size)
        if known is None:
            known = heads[size] = _encode_head(size)
        head, start = known
        append(head)
        append(payload)
        append(pack_end(crc32(payload, start), size))
    return b"".join(parts)


def _encode_head(size: int) -> tuple[bytes, int]:
    if not FRAME_MIN <= size <= FRAME_MAX:
        raise InvalidValue(
            f"a payload of {size - FRAMING} bytes; a frame takes 1 to {FRAME_MAX - FRAMING}"
        )
    head = UINT32.pack(size)
    return head, crc32(head)


class Verdict(IntEnum):
    """What stands somewhere in a stream."""

    GOOD = 0
    OTHER_END = 1  # good, though the length at its end is another
    FRAME = 2  # both lengths agree and the checksum does not match
    GAP = 3  # no frame, up to the next one
    TAIL = 4  # no frame, up to the end


# --- reading -------------------------------------------------------------------------------------


def read_frames(data: Bytes, offset: int) -> Iterator[Frame | BadStretch]:
    """Yield what a whole logical stream holds; ``offset`` is the logical offset of its first byte.

    Every byte is in exactly one frame or stretch of damage.
    """
    return FrameReader(offset).feed(data, is_last=True)


class _Gap(NamedTuple):
    """A stretch that began with something that is no frame, while its end is searched for."""

    offset: int
    reason: str
    data: bytes


class FrameReader:
    """Reads frames from a logical stream that comes in pieces; keeps what it cannot judge yet.

    That is at most ``FRAME_MAX`` and a piece. The answers are those of ``read_frames``, wherever pieces end.
    """

    def __init__(self, offset: int, *, index: int = 0) -> None:
        """``offset`` and ``index`` are those of the first byte to be fed, which is a frame's first."""
        self.offset = offset  # behind the last thing that was yielded
        self.index = index  # the frames of the segment before that
        self._held = bytearray()
        self._base = offset  # the logical offset of the first byte that is held
        self._needed = 0  # bytes without which nothing can be judged
        self._gap: _Gap | None = None

    def feed(self, data: Bytes, *, is_last: bool) -> Iterator[Frame | BadStretch]:
        """Yield what can be judged with these bytes; with ``is_last``, everything that is left.

        The iterator must be used up before more is fed: bytes are taken when it runs.
        """
        self._held += data
        if not is_last and len(self._held) < self._needed:
            return
        with memoryview(self._held) as view:
            passed = yield from self._judge(view, is_last)
        del self._held[:passed]
        self._base += passed

    def _judge(self, view: memoryview, is_last: bool) -> Generator[Frame | BadStretch, None, int]:
        """Yield what stands in the bytes that are held; return how many of them are not needed any more."""
        end = len(view)
        gap = NO_GAP if self._gap is None else self._gap.offset - self._base
        if not end and self._gap is None:
            return 0
        rows: list[tuple[int, int, int, int]] = []
        known = [0] * (end // BLOCK + 2)
        _, position, gap, _, needed, _ = walk(
            view, 0, gap, self.index, NO_GAP, INT64_MAX, end, end if is_last else INT64_MAX,
            None, None, known, -1, rows,
        )  # fmt: skip
        for at, size, index, verdict in rows:
            self.offset = self._base + at + size
            self.index = index + (verdict <= _FRAME)
            yield self._found(view, at, size, index, verdict)
            self._gap = None
        if gap != NO_GAP:
            self._gap = self._stretch(view, gap, end - gap)
        self._needed = needed - position
        return int(position)

    def _found(
        self, view: memoryview, at: int, size: int, index: int, verdict: int
    ) -> Frame | BadStretch:
        if verdict <= _OTHER_END:
            warning = None
            if verdict == _OTHER_END:
                (length,) = UINT32.unpack_from(view, at + size - UINT32.size)
                warning = f"the length at its end is {length}, not {size}"
            payload = bytes(view[at + _HEAD_SIZE : at + size - _END.size])
            return Frame(self._base + at, size, index, payload, warning)
        offset, reason, data = self._stretch(view, at, size)
        return BadStretch(_KINDS[verdict], offset, size, index, reason, data[:size])

    def _stretch(self, view: memoryview, at: int, size: int) -> _Gap:
        """Return what is said and shown of damage; it may have begun before the bytes that are held."""
        offset = self._base + at
        before = _Gap(offset, "", b"") if self._gap is None else self._gap
        first = at + len(before.data)
        end = at + min(size, DAMAGE_DATA_MAX)
        shown = before.data + bytes(view[first:end]) if first < end else before.data
        return _Gap(offset, before.reason or _reason(view, at), shown)


def _reason(view: memoryview, at: int) -> str:
    """Return why no frame, or no whole one, stands somewhere."""
    left = len(view) - at
    if left < _HEAD_SIZE:
        return "the stream ends inside a length"
    (size,) = UINT32.unpack_from(view, at)
    if size < FRAME_MIN or size > FRAME_MAX:
        return f"a length of {size}; {FRAME_MIN} to {FRAME_MAX} can be"
    if size > left:
        return f"the stream ends {left} bytes into a frame of {size}"
    stop = at + size - _END.size
    stored, length = _END.unpack_from(view, stop)
    reason = f"the checksum is {crc32(view[at:stop]):08x}, and {stored:08x} is stored"
    return reason if length == size else f"{reason}; the length at the end is {length}, not {size}"


# --- what stands in a buffer ---------------------------------------------------------------------
#
# These functions run as they are for ``FrameReader``, and compiled for the bulk scanner, which then has ``t``, the tables
# of the checksum, and ``powers``. What is given in two forms has a quick one that numba does not know.


_length_at: Final = UINT32.unpack_from
_end_at: Final = _END.unpack_from


@compiled_as(emit)
def _note(rows: list[Any], _count: int, values: tuple[int, ...]) -> None:
    """Add a row."""
    rows.append(values)


# What the kernel knows as plain numbers: the members of ``Verdict``, and that it is in no gap.
_GOOD, _OTHER_END, _FRAME, _GAP, _TAIL = map(int, Verdict)
_KINDS: Final = {_FRAME: StretchKind.FRAME, _GAP: StretchKind.GAP, _TAIL: StretchKind.TAIL}
NO_GAP: Final = -(2**62)
BLOCK: Final = 4096
_DIRECT_MAX: Final = 16_384
"""Up to this length it is quicker to compute a checksum from the bytes."""


def walk(
    data: Any, position: Any, gap: Any, index: Any, first: Any, stop: Any, end: Any, size: Any, t: Any, powers: Any,
    known: Any, room: Any, rows: Any,
) -> Any:  # fmt: skip
    """Find what stands in a buffer, into ``rows``: interpreted for ``FrameReader``, compiled for the bulk scanner.

    Return how many rows it wrote, its position, where the gap began in which that is, the frames before it, up to where
    the buffer must reach for more to be judged, and whether there is no room for more rows. All positions count from the buffer's first
    byte; a gap may have begun before it.
    """
    anchor = 0  # where the blocks begin of which checksums are known
    blocks = 0
    count = 0
    while True:
        is_gap = gap != NO_GAP
        begin = gap if is_gap else position
        if not is_gap and (position >= stop or position >= size or count == room):
            is_full = position < stop and position < size
            return count, position, gap, index, position, is_full
        position, length, needed = _next_length(data, position, end, size, is_gap)
        if length < 0:
            if end < size:
                return count, position, gap, index, needed, False
            if begin >= first:
                _note(rows, count, (begin, end - begin, index, _TAIL))
                count += 1
            return count, end, NO_GAP, index, end, False
        stored, last = 0, -1
        if length > 0:
            stored, last = _end_at(data, position + length - 8)
        agrees = last == length
        is_whole = agrees  # what a walk goes by
        if length > 0 and (is_gap or begin >= first or not agrees):
            checked = position + length - 8
            if length <= _DIRECT_MAX:
                value = _extended(data, position, checked, 0, t)
            else:
                value, anchor, blocks = _checksum(
                    data, position, checked, t, powers, known, anchor, blocks
                )
            is_whole = value == stored

        if is_gap and is_whole:
            if begin >= first:
                _note(rows, count, (gap, position - gap, index, _GAP))
                count += 1
            gap = NO_GAP
        elif not is_gap and (is_whole or agrees):
            if begin >= first:
                verdict = _FRAME if not is_whole else _GOOD if agrees else _OTHER_END
                _note(rows, count, (position, length, index, verdict))
                count += 1
            index += 1
            position += length
        else:
            gap = begin
            position += 1


def _next_length(data: Any, position: Any, end: Any, size: Any, is_gap: Any) -> Any:
    """Return where a length stands, the length, and up to where the buffer must reach to judge it.

    That is at ``position``; in a gap, at the next place where both lengths agree. The length is 0 if no frame
    can have it, and -1 if the buffer ends before the frame does.
    """
    while True:
        if is_gap:
            position = _plausible(data, position, end, size)
        if position + 4 > end:
            return position, -1, position + 4
        (length,) = _length_at(data, position)
        follower = position + length
        if length < FRAME_MIN or length > FRAME_MAX or follower > size:
            length = 0
        elif follower > end:
            return position, -1, follower
        if not is_gap or (length > 0 and _length_at(data, follower - 4)[0] == length):
            return position, length, follower
        position += 1


def _any_place(_data: Any, position: Any, _end: Any, _size: Any) -> Any:
    """Return the next place whose four bytes may be a length: compiled code looks at every one."""
    return position


@cache
def _high_byte(most: int) -> re.Pattern[bytes]:
    """Return a pattern of one byte up to ``most``."""
    return re.compile(b"[\\x00-\\x%02x]" % most)


_NOT_ZERO: Final = re.compile(rb"[^\x00]")


@compiled_as(_any_place)
def _plausible(data: Bytes, at: int, end: int, size: int) -> int:
    """Return the next place whose four bytes may be a length, or one so near the end that no four are left.

    Most places are ruled out by the highest byte of a length, and long rows of zeros in one step: both
    by a pattern, which is many times as fast as a loop.
    """
    none = max(at, end - _HEAD_SIZE + 1)
    if at + _HEAD_SIZE > end:
        return none
    if _length_at(data, at)[0] == 0:
        other = _NOT_ZERO.search(data, at)
        if other is None:
            return none
        at = max(at, other.start() - (_HEAD_SIZE - 1))
    high = _high_byte(min(FRAME_MAX, size - at) >> 24).search(data, at + _HEAD_SIZE - 1)
    return none if high is None else high.start() - (_HEAD_SIZE - 1)


def _checksum(
    data: Any, start: Any, stop: Any, t: Any, powers: Any, known: Any, anchor: Any, blocks: Any
) -> Any:
    """Return the checksum of ``[start, stop)``, and the anchor and number of the blocks that are known then.

    A search tries many places, and hostile bytes may give each of them a length of megabytes. So the checksum of a long
    stretch is had from those of two beginnings, of ``known`` blocks: what it was at its end, less what so many
    bytes leave of what it was at its start. No byte is looked at much more than once.
    """
    if (start - anchor) // BLOCK >= blocks:
        anchor = start
        blocks = 1
        known[0] = 0
    block = anchor + (blocks - 1) * BLOCK
    while block + BLOCK <= stop:
        known[blocks] = _extended(data, block, block + BLOCK, known[blocks - 1], t)
        blocks += 1
        block += BLOCK
    number = (start - anchor) // BLOCK
    before = _extended(data, anchor + number * BLOCK, start, known[number], t)
    number = (stop - anchor) // BLOCK
    value = _extended(data, anchor + number * BLOCK, stop, known[number], t)
    return value ^ _lengthened(before, stop - start, powers), anchor, blocks


def _extended_by_table(data: Any, start: Any, stop: Any, checksum: Any, t: Any) -> Any:
    return crc(data, start, stop, checksum ^ CHECKSUM_START, t) ^ CHECKSUM_START


@compiled_as(_extended_by_table)
def _extended(data: memoryview, start: int, stop: int, checksum: int, _t: None) -> int:
    """Return the checksum of what had ``checksum``, followed by ``[start, stop)``."""
    return crc32(data[start:stop], checksum)


POLYNOMIAL: Final = 0xEDB88320  # of CRC-32 of IEEE 802.3, lowest bit first
_ONE: Final = 1 << 31


def _lengthened_by_powers(register: Any, count: Any, powers: Any) -> Any:
    place = 0
    while count > 0:
        if count & 1:
            other = powers[place]
            product = 0
            while register > 0:
                if register & 0x80000000:
                    product ^= other
                register = (register << 1) & 0xFFFFFFFF
                other = (other >> 1) ^ (POLYNOMIAL if other & 1 else 0)
            register = product
        count >>= 1
        place += 1
    return register


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials over GF(2), modulo the checksum's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


def power_of_x(count: int) -> int:
    """Return x to the power of 8 times ``count``."""
    power, square = _ONE, _ONE >> 8
    while count:
        if count & 1:
            power = _product(square, power)
        square = _product(square, square)
        count >>= 1
    return power


@cache
def _zeros(count: int) -> tuple[list[int], ...]:
    """Return what ``count`` bytes leave of each value of each of a checksum's four bytes, lowest first."""
    power = power_of_x(count)
    tables = []
    for first in range(0, 32, 8):
        table = [0]
        for bit in range(first, first + 8):
            product = _product(1 << bit, power)
            table += [value ^ product for value in table]
        tables.append(table)
    return tuple(tables)


@compiled_as(_lengthened_by_powers)
def _lengthened(checksum: int, count: int, _powers: None) -> int:
    """Return what ``count`` more bytes of a stream leave of the checksum before them.

    That is a product with a power of x. It is taken digit by digit of ``count``, so that tables are few.
    """
    place = 0
    while count >> place:
        if digit := count >> place & 0xF:
            lowest, low, high, highest = _zeros(digit << place)
            checksum = (
                lowest[checksum & 0xFF]
                ^ low[checksum >> 8 & 0xFF]
                ^ high[checksum >> 16 & 0xFF]
                ^ highest[checksum >> 24]
            )
        place += 4
    return checksum
