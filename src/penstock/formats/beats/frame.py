"""A frame of Beats' disk queue: length, payload, checksum and the length again (docs/formats/beats.md).

This module owns frames and what is to be done about damaged ones: one bad frame costs one frame. The scalar reader is
the truth that the bulk scanner is held to. It looks at a logical stream, which is what a body holds once it is
decrypted and decompressed, and it never fails: what is no frame comes out as ``BadStretch``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from struct import Struct
from typing import Final

from fastcrc.crc32 import iso_hdlc as crc32

from penstock.binary import Bytes
from penstock.errors import InvalidValue
from penstock.formats.beats.segment import UINT32

FRAMING: Final = 12
FRAME_MIN: Final = 13
"""A payload has at least one byte."""

FRAME_MAX: Final = 256 * 1024 * 1024
"""The most bytes that one frame is believed to have, and so what a reader may have to hold; more is damage."""

DAMAGE_DATA_MAX: Final = 4096
"""Bytes of a damaged stretch that are kept to be looked at."""

_END: Final = Struct("<II")  # checksum, length
_HEAD_SIZE: Final = UINT32.size


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame whose checksum is right."""

    offset: int  # logical
    size: int  # with its framing
    index: int  # frames of the segment before it, damaged ones counted
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


# --- reading -------------------------------------------------------------------------------------


def read_frames(data: Bytes, offset: int) -> Iterator[Frame | BadStretch]:
    """Yield what a whole logical stream holds; ``offset`` is the logical offset of its first byte.

    Every byte is in exactly one frame or stretch of damage. Nothing but payloads is copied.
    """
    with memoryview(data) as view:
        yield from _Judge(offset, 0).judge(view, offset, is_last=True)


class FrameReader:
    """Reads frames from a logical stream that comes in pieces; keeps what it cannot judge yet.

    That is at most ``FRAME_MAX`` and a piece. The answers are those of ``read_frames``, wherever pieces end.
    """

    def __init__(self, offset: int, *, index: int = 0) -> None:
        """``offset`` and ``index`` are those of the first byte to be fed, which is a frame's first."""
        self._judge = _Judge(offset, index)
        self._held = bytearray()
        self._held_offset = offset

    @property
    def offset(self) -> int:
        """The logical offset behind the last thing that was yielded."""
        return self._judge.offset

    @property
    def index(self) -> int:
        """The frames of the segment before ``offset``."""
        return self._judge.index

    def feed(self, data: Bytes, *, is_last: bool) -> Iterator[Frame | BadStretch]:
        """Yield what can be judged with these bytes; with ``is_last``, everything that is left.

        The iterator must be used up before more is fed: bytes are taken when it runs.
        """
        held = self._held
        held += data
        with memoryview(held) as view:
            yield from self._judge.judge(view, self._held_offset, is_last=is_last)
        passed = max(0, self._judge.needed_offset - self._held_offset)
        del held[:passed]
        self._held_offset += passed


@dataclass(slots=True)
class _Gap:
    """A stretch that began with something that is no frame, while its end is searched for."""

    offset: int
    reason: str
    position: int  # logical, where the search goes on; what is before it was looked at
    data: bytes = b""

    def pass_over(self, view: memoryview, base: int, position: int) -> None:
        """Move on to ``position``, and keep the first bytes of what was passed."""
        first = self.offset + len(self.data)
        end = min(position, self.offset + DAMAGE_DATA_MAX)
        if first < end:
            self.data += bytes(view[first - base : end - base])
        self.position = position


class _Judge:
    """Says what stands in a stream, from ``offset`` on."""

    def __init__(self, offset: int, index: int) -> None:
        # Behind the last thing yielded; while a gap is open, where it begins.
        self.offset = offset
        self.index = index
        self._gap: _Gap | None = None
        self._checksums = _Checksums()

    @property
    def needed_offset(self) -> int:
        """The first byte that is still needed."""
        position = self.offset if self._gap is None else self._gap.position
        return position - _Checksums.BLOCK

    def judge(self, view: memoryview, base: int, *, is_last: bool) -> Iterator[Frame | BadStretch]:
        """Yield what can be told from ``view``, whose first byte has the logical offset ``base``."""
        end = base + len(view)
        while self.offset < end:
            gap = self._gap
            found = self._frame(view, base, is_last) if gap is None else None
            if isinstance(found, str):
                self._gap = gap = _Gap(self.offset, found, self.offset)
            if gap is not None:
                found = self._search(view, base, gap, is_last)
            if found is None or isinstance(found, str):
                return
            yield found

    def _frame(self, view: memoryview, base: int, is_last: bool) -> Frame | BadStretch | str | None:
        """Return the frame at ``offset``, or why it is none; ``None`` if more bytes are needed."""
        start = self.offset
        at = start - base
        left = len(view) - at
        if left < _HEAD_SIZE:
            return "the stream ends inside a length" if is_last else None
        (size,) = UINT32.unpack_from(view, at)
        if size < FRAME_MIN or size > FRAME_MAX:
            return f"a length of {size}; {FRAME_MIN} to {FRAME_MAX} can be"
        if size > left:
            reason = f"the stream ends {left} bytes into a frame of {size}"
            return reason if is_last else None
        stop = at + size
        stored, length = _END.unpack_from(view, stop - _END.size)
        if size <= _Checksums.DIRECT:
            checksum = crc32(view[at : stop - _END.size])
        else:
            checksum = self._checksums.of(view, base, at, stop - _END.size)
        index = self.index
        if checksum == stored:
            self.offset, self.index = start + size, index + 1
            payload = bytes(view[at + _HEAD_SIZE : stop - _END.size])
            warning = None if length == size else f"the length at its end is {length}, not {size}"
            return Frame(start, size, index, payload, warning)
        reason = f"the checksum is {checksum:08x}, and {stored:08x} is stored"
        if length != size:
            return f"{reason}; the length at the end is {length}, not {size}"
        self.offset, self.index = start + size, index + 1
        data = bytes(view[at : at + min(size, DAMAGE_DATA_MAX)])
        return BadStretch(StretchKind.FRAME, start, size, index, reason, data)

    def _search(self, view: memoryview, base: int, gap: _Gap, is_last: bool) -> BadStretch | None:
        """Return the gap once its end is known: the next place where everything about a frame is right."""
        end = len(view)
        at = max(gap.position, gap.offset + 1) - base
        while (at := _plausible(view, at, is_last)) + _HEAD_SIZE <= end:
            (size,) = UINT32.unpack_from(view, at)
            if FRAME_MIN <= size <= FRAME_MAX:
                if at + size <= end:
                    if self._is_right(view, base, at, size):
                        return self._close_gap(view, base, gap, StretchKind.GAP, at)
                elif not is_last:
                    break
            at += 1
        if is_last:
            return self._close_gap(view, base, gap, StretchKind.TAIL, end)
        gap.pass_over(view, base, base + min(at, end))
        return None

    def _is_right(self, view: memoryview, base: int, at: int, size: int) -> bool:
        stop = at + size - _END.size
        stored, length = _END.unpack_from(view, stop)
        is_right: bool = length == size and self._checksums.of(view, base, at, stop) == stored
        return is_right

    def _close_gap(
        self, view: memoryview, base: int, gap: _Gap, kind: StretchKind, at: int
    ) -> BadStretch:
        gap.pass_over(view, base, base + at)
        self.offset, self._gap = gap.position, None
        return BadStretch(
            kind, gap.offset, gap.position - gap.offset, self.index, gap.reason, gap.data
        )


@cache
def _high_byte(most: int) -> re.Pattern[bytes]:
    """Return a pattern of one byte up to ``most``."""
    return re.compile(b"[\\x00-\\x%02x]" % most)


_NOT_ZERO: Final = re.compile(rb"[^\x00]")


def _plausible(view: memoryview, at: int, is_last: bool) -> int:
    """Return the next place whose four bytes may be a length, or one so near the end that no four are left.

    Most places are ruled out by the highest byte of a length, and long rows of zeros in one step: both
    by a pattern, which is many times as fast as a loop.
    """
    end = len(view)
    none = max(at, end - _HEAD_SIZE + 1)
    if at + _HEAD_SIZE > end:
        return none
    if UINT32.unpack_from(view, at)[0] == 0:
        other = _NOT_ZERO.search(view, at)
        if other is None:
            return none
        at = other.start() - (_HEAD_SIZE - 1)
    most = min(FRAME_MAX, end - at) if is_last else FRAME_MAX
    high = _high_byte(most >> 24).search(view, at + _HEAD_SIZE - 1)
    return none if high is None else high.start() - (_HEAD_SIZE - 1)


# --- checksums of stretches that overlap ---------------------------------------------------------


class _Checksums:
    """Checksums of stretches whose starts only grow; no byte is looked at much more than once.

    A search tries many places, and the bytes of a hostile file may give each of them a length of
    megabytes. So the checksum of a long stretch is had from those of two beginnings: what the stream's was at
    its end, less what it was at its start as so many more bytes leave it.
    """

    BLOCK: Final = 2048
    """Bytes between two places of which the checksum is kept."""

    DIRECT: Final = 16 * 1024
    """Up to this size it is quicker to compute a checksum from the bytes."""

    _KEPT_MAX: Final = 2 * FRAME_MAX // BLOCK

    def __init__(self) -> None:
        # Of the beginnings of the stretch from ``_first`` on: of none, one, two … blocks.
        self._first = 0
        self._known: list[int] = []

    def of(self, view: memoryview, base: int, at: int, stop: int) -> int:
        """Return the checksum of ``view[at:stop]``; ``base`` is the logical offset of the view's first byte."""
        if stop - at <= self.DIRECT:
            return crc32(view[at:stop])
        self._forget_before(base + at)
        known, size = self._known, self.BLOCK
        while (block := self._first + (len(known) - 1) * size - base) + size <= stop:
            known.append(crc32(view[block : block + size], known[-1]))
        return self._until(view, base, stop) ^ _shifted(self._until(view, base, at), stop - at)

    def _forget_before(self, offset: int) -> None:
        passed = (offset - self._first) // self.BLOCK
        if passed >= len(self._known):
            self._first, self._known = offset, [0]
        elif passed > self._KEPT_MAX:
            del self._known[:passed]
            self._first += passed * self.BLOCK

    def _until(self, view: memoryview, base: int, at: int) -> int:
        number, rest = divmod(base + at - self._first, self.BLOCK)
        return crc32(view[at - rest : at], self._known[number])


_POLYNOMIAL: Final = 0xEDB88320  # of CRC-32 of IEEE 802.3, lowest power in the highest bit
_ONE: Final = 1 << 31


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials over GF(2), modulo the checksum's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _power(count: int) -> int:
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
    power = _power(count)
    tables = []
    for first in range(0, 32, 8):
        table = [0]
        for bit in range(first, first + 8):
            product = _product(1 << bit, power)
            table += [value ^ product for value in table]
        tables.append(table)
    return tuple(tables)


def _shifted(checksum: int, count: int) -> int:
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
