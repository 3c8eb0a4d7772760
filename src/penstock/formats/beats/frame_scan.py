"""Frames in bulk: where the frames of a segment stand and whether they are whole, in columns.

``FrameReader`` is the plain reader; ``FrameScanner`` and ``scan_frames`` give the same answers many at a time, by a
kernel that numba compiles when it is first used (a property test holds the two together).

Whoever reads a part of a segment needs the first true boundary in it, and the number of frames before that. Where the
two lengths of a frame agree, a reader goes on behind it whatever its checksum says. So the way there is walked by lengths
alone, and a checksum is computed only where they differ. A search for something that looks like a frame would be fooled:
a payload may hold whole frames, and of two damaged frames in a row it would miss the second.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.formats.beats.frame import FRAME_MAX, FRAME_MIN, FRAMING
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.model import INT64_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHOWN_MAX: Final = 4096
"""Bytes of damage that are shown: it may be as long as the file."""


class Verdict(IntEnum):
    """What stands somewhere in a stream."""

    GOOD = 0
    OTHER_END = 1  # good, though the length at its end is another
    FRAME = 2  # both lengths agree and the checksum does not match
    GAP = 3  # no frame, up to the next one
    TAIL = 4  # no frame, up to the end


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A boundary, and how many frames of the segment stand before it."""

    offset: int  # logical
    index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameColumns:
    """Frames and damage, one array per field, and the buffer in which payloads stand."""

    data: NDArray[np.uint8]
    offset: NDArray[np.int64]  # logical
    size: NDArray[np.int64]
    index: NDArray[np.int64]
    verdict: NDArray[np.int8]
    # In the buffer: a frame's payload; of damage the first bytes as they stand.
    payload_start: NDArray[np.int64]
    payload_size: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    def only(self, wanted: NDArray[np.bool_]) -> FrameColumns:
        """Return some of the rows."""
        names = [field.name for field in fields(self) if field.name != "data"]
        return replace(self, **{name: getattr(self, name)[wanted] for name in names})


def scan_frames(
    data: Bytes | NDArray[np.uint8],
    *,
    offset: int,
    start: int = 0,
    stop: int | None = None,
    index: int = 0,
    batch_rows: int = BATCH_ROWS,
    interpreted: bool = False,
) -> Generator[FrameColumns, None, Place]:
    """Yield every frame and all damage that begins in ``[start, stop)`` of a whole stream; return where that ended.

    ``offset`` is the logical offset of the buffer's first byte, before which ``index`` frames stand; ``start`` and
    ``stop`` are any positions in the buffer. Needs numpy and numba, which the ``spark`` extra brings; ``interpreted``
    does without numba.
    """
    scanner = FrameScanner(
        offset,
        index=index,
        first=offset + start,
        stop=None if stop is None else offset + stop,
        batch_rows=batch_rows,
        interpreted=interpreted,
    )
    yield from scanner.feed(data, is_last=True)
    return scanner.place


class FrameScanner:
    """Finds the frames in a stream that comes in pieces; keeps what it cannot judge yet, one frame at most."""

    def __init__(
        self,
        offset: int,
        *,
        index: int = 0,
        first: int = 0,
        stop: int | None = None,
        size: int | None = None,
        batch_rows: int = BATCH_ROWS,
        interpreted: bool = False,
    ) -> None:
        """Begin at a true boundary, the logical offset ``offset`` with ``index`` frames before it.

        What begins in ``[first, stop)`` is yielded; both are logical offsets. ``size`` is the stream's logical end, if
        it is known: no length is then waited for that goes beyond it.
        """
        self.place = Place(offset, index)  # behind the last that was judged
        self._first = first
        self._stop = INT64_MAX if stop is None else stop
        self._size = INT64_MAX if size is None else size
        self._batch_rows = batch_rows
        self._interpreted = interpreted
        self._pieces: list[NDArray[np.uint8]] = []  # what is not judged yet
        self._held = 0  # bytes in them
        self._base = offset  # the logical offset of their first byte
        self._needed = 0  # bytes of them without which nothing can be judged
        self._gap: int | None = None  # where a gap began whose end is not found yet
        self._shown = b""  # its first bytes

    @property
    def is_done(self) -> bool:
        """Whether nothing that is still to come can be wanted."""
        return self.place.offset >= self._stop

    @property
    def is_drained(self) -> bool:
        """Whether all that was fed is judged."""
        return not self._held

    def feed(
        self, data: Bytes | NDArray[np.uint8], *, is_last: bool = False
    ) -> Iterator[FrameColumns]:
        """Yield what can be judged now that ``data`` follows what was fed before; to be used up before more is fed."""
        with bulk():
            import numpy as np

        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        if is_last:
            self._size = self._base + self._held + len(array)
        for _ in range(2):
            # The frame that was cut is completed alone, its length first: the rest is judged where it lies.
            missing = max(0, self._needed - self._held)
            if self._held and missing <= len(array):
                self._pieces.append(array[:missing])
                self._held += missing
                array = array[missing:]
                yield from self._scan()
        self._pieces.append(array)
        self._held += len(array)
        if is_last or self._held >= self._needed:
            yield from self._scan()

    def pass_zeros(self, count: int) -> Iterator[FrameColumns]:
        """Yield what can be judged now that so many zeros follow, more than any frame is long: no frame reaches over."""
        assert count > FRAME_MAX
        first, size = self._first, self._size
        # As if the stream ended here. The tail that it then has goes on in the zeros, up to the next frame.
        self._first, self._size = 0, self._base + self._held
        gap, shown = None, b""
        for columns in self._scan():
            is_tail = columns.verdict == Verdict.TAIL
            if is_tail.any():
                start, size_shown = int(columns.payload_start[-1]), int(columns.payload_size[-1])
                gap = int(columns.offset[-1])
                shown = columns.data[start : start + size_shown].tobytes()
            wanted = ~is_tail & (columns.offset >= first)
            if wanted.any():
                yield columns.only(wanted)
        self._first, self._size = first, size
        if gap is None and self.is_done:
            return
        gap = self._base if gap is None else gap
        self._gap, self.place = gap, Place(gap, self.place.index)
        self._shown = shown + bytes(min(count, SHOWN_MAX - len(shown)))
        self._base += count

    def _scan(self) -> Iterator[FrameColumns]:
        with bulk():
            import numpy as np

        data = _joined(self._pieces)
        self._note(self._gap, data)
        end, base = len(data), self._base
        buffer = data.tobytes() if self._interpreted else data
        kernel: Any = _frame_kernel if self._interpreted else compiled(_frame_kernel)
        known = np.zeros(end // _BLOCK + 2, dtype=np.int64)
        position, index, needed = 0, self.place.index, 0
        gap = _NO_GAP if self._gap is None else self._gap - base
        is_full = True
        while is_full:
            room = max(1, min(self._batch_rows, (end - position) // FRAME_MIN + 2))
            rows = np.empty((4, room), dtype=np.int64)
            count, position, gap, index, needed, is_full = kernel(
                buffer, position, gap, index, self._first - base, self._stop - base, end, self._size - base,
                _tables(self._interpreted), _powers(self._interpreted), known, rows,
            )  # fmt: skip
            self.place = Place(base + int(position if gap == _NO_GAP else gap), int(index))
            if count:
                yield self._columns(data, rows[:, :count])
        self._note(None if gap == _NO_GAP else base + int(gap), data)
        position = int(position)
        self._pieces = [data[position:]] if position < end else []
        self._held = end - position
        self._base = base + position
        self._needed = int(needed) - position

    def _note(self, gap: int | None, data: NDArray[np.uint8]) -> None:
        """Remember where a gap begins, and what is to be shown of it, before its bytes are let go."""
        if gap != self._gap:
            self._gap, self._shown = gap, b""
        if gap is not None:
            start = gap - self._base
            self._shown += data[start + len(self._shown) : start + SHOWN_MAX].tobytes()

    def _columns(self, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> FrameColumns:
        import numpy as np

        position, size, index, verdict = rows
        is_frame = verdict <= Verdict.OTHER_END
        start = np.where(is_frame, position + _LENGTH_SIZE, position)
        shown = np.where(is_frame, size - FRAMING, np.minimum(size, SHOWN_MAX))
        if position[0] < 0:
            # A gap that began in a piece that is gone; its end is found, so what follows is in this one.
            start[0], shown[0] = len(data), min(size[0], len(self._shown))
            data = np.concatenate((data, np.frombuffer(self._shown, dtype=np.uint8)))
        return FrameColumns(
            data=data,
            offset=position + self._base,
            size=size,
            index=index,
            verdict=verdict.astype(np.int8),
            payload_start=start,
            payload_size=shown,
        )


def _joined(pieces: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    with bulk():
        import numpy as np

    pieces = [piece for piece in pieces if len(piece)] or [np.empty(0, dtype=np.uint8)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


_LENGTH_SIZE: Final = 4
_CHECKSUM_STEP: Final = 16
_POLYNOMIAL: Final = 0xEDB88320


@cache
def _tables(as_list: bool) -> Any:
    """Return the tables that take the checksum 16 bytes further at a step (CRC-32 of IEEE 802.3), as one row."""
    import numpy as np

    rows: list[int] = []
    for value in range(256):
        register = value
        for _ in range(8):
            register = (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)
        rows.append(register)
    for place in range(256, _CHECKSUM_STEP * 256):
        before = rows[place - 256]
        rows.append((before >> 8) ^ rows[before & 0xFF])
    return rows if as_list else np.array(rows, dtype=np.int64)


@cache
def _powers(as_list: bool) -> Any:
    """Return x to the powers 8, 16, 32 … modulo the checksum's polynomial, the lowest power in the highest bit."""
    import numpy as np

    power, found = 1 << 23, []
    for _ in range(FRAME_MAX.bit_length()):
        found.append(power)
        one, other, power = power, power, 0
        while one:
            power ^= other if one & 0x80000000 else 0
            one = (one << 1) & 0xFFFFFFFF
            other = (other >> 1) ^ (_POLYNOMIAL if other & 1 else 0)
    return found if as_list else np.array(found, dtype=np.int64)


# What the kernel knows as plain numbers: the members of ``Verdict``, that it is in no gap, and the ways to a checksum.
_GOOD, _OTHER_END, _FRAME, _GAP, _TAIL = map(int, Verdict)
_NO_GAP: Final = -(2**62)
_CHECKED, _DIRECT, _BLOCKS, _UNTIL_END, _UNTIL_START = range(5)
_BLOCK: Final = 4096
_DIRECT_MAX: Final = 16_384
"""Up to this length it is quicker to compute a checksum from the bytes."""


def _frame_kernel(
    data: Any, position: Any, gap: Any, index: Any, first: Any, stop: Any, end: Any, size: Any, t: Any, powers: Any,
    known: Any, rows: Any,
) -> Any:  # fmt: skip
    """Scan as the module says, into ``rows``.

    Return how many rows it wrote, its position, where the gap began in which that is, the frames before it, up to where
    the buffer must reach for more to be judged, and whether ``rows`` is full. All positions count from the buffer's first
    byte; a gap may have begun before it.

    A search tries many places, and hostile bytes may give each of them a length of megabytes. So the checksum of a long
    stretch is had from those of two beginnings, of ``known`` blocks: what it was at its end, less what so many
    bytes leave of what it was at its start. No byte is looked at much more than once.

    Bytes are multiplied, not shifted, into integers: a shifted byte is unsigned to numba, and mixing the signs makes it
    a float.
    """
    known[0] = 0
    anchor = 0  # where the blocks begin of which checksums are known
    blocks = 0
    count = 0
    while True:
        begin = position if gap == _NO_GAP else gap
        if gap == _NO_GAP:
            if position >= stop or position >= size:
                return count, position, gap, index, position, False
            if count == rows.shape[1]:
                return count, position, gap, index, position, True
        # The length that stands here; in a gap, at the next place where both lengths agree. 0: none, -1: not known.
        length = 0
        agrees = False
        while True:
            needed = position + 4
            if needed > end:
                length = -1
                break
            length = (
                data[position]
                + data[position + 1] * 0x100
                + data[position + 2] * 0x10000
                + data[position + 3] * 0x1000000
            )
            if length < FRAME_MIN or length > FRAME_MAX or position + length > size:
                length = 0
            elif position + length > end:
                needed = position + length
                length = -1
                break
            else:
                agrees = True
                behind = position + length - 4
                for i in range(4):
                    if data[position + i] != data[behind + i]:
                        agrees = False
            if gap == _NO_GAP or agrees:
                break
            position += 1
        if length < 0:
            if end < size:
                return count, position, gap, index, needed, False
            if begin >= first:
                rows[0, count] = begin
                rows[1, count] = end - begin
                rows[2, count] = index
                rows[3, count] = _TAIL
                count += 1
            return count, end, _NO_GAP, index, end, False
        if length == 0:
            gap = position
            position += 1
            continue

        is_whole = agrees  # what a walk goes by
        if gap != _NO_GAP or begin >= first or not agrees:
            checked = position + length - 8
            value = 0
            step = _DIRECT
            if length > _DIRECT_MAX:
                step = _BLOCKS
                if (position - anchor) // _BLOCK >= blocks:
                    anchor = position
                    blocks = 1
            while step != _CHECKED:
                i = position
                until = checked
                register = 0xFFFFFFFF
                if step == _BLOCKS:
                    i = anchor + (blocks - 1) * _BLOCK
                    until = i + _BLOCK
                    if until > checked:
                        step = _UNTIL_END
                        continue
                    register ^= known[blocks - 1]
                elif step != _DIRECT:
                    until = checked if step == _UNTIL_END else position
                    number = (until - anchor) // _BLOCK
                    i = anchor + number * _BLOCK
                    register ^= known[number]
                while i + 16 <= until:
                    # Of a slice the compiler knows that no index is behind its end.
                    d = data[i : i + 16]
                    register = (
                        t[0xF00 + ((register & 0xFF) ^ d[0])]
                        ^ t[0xE00 + (((register >> 8) & 0xFF) ^ d[1])]
                        ^ t[0xD00 + (((register >> 16) & 0xFF) ^ d[2])]
                        ^ t[0xC00 + ((register >> 24) ^ d[3])]
                        ^ t[0xB00 + d[4]]
                        ^ t[0xA00 + d[5]]
                        ^ t[0x900 + d[6]]
                        ^ t[0x800 + d[7]]
                        ^ t[0x700 + d[8]]
                        ^ t[0x600 + d[9]]
                        ^ t[0x500 + d[10]]
                        ^ t[0x400 + d[11]]
                        ^ t[0x300 + d[12]]
                        ^ t[0x200 + d[13]]
                        ^ t[0x100 + d[14]]
                        ^ t[0x000 + d[15]]
                    )
                    i += 16
                while i < until:
                    register = (register >> 8) ^ t[(register & 0xFF) ^ data[i]]
                    i += 1
                register ^= 0xFFFFFFFF
                if step == _BLOCKS:
                    known[blocks] = register
                    blocks += 1
                elif step == _UNTIL_START:
                    # What so many bytes more leave of it: times x to the power of 8 times their number.
                    number = checked - position
                    place = 0
                    while number > 0:
                        if number & 1:
                            other = powers[place]
                            product = 0
                            while register > 0:
                                if register & 0x80000000:
                                    product ^= other
                                register = (register << 1) & 0xFFFFFFFF
                                other = (other >> 1) ^ (_POLYNOMIAL if other & 1 else 0)
                            register = product
                        number >>= 1
                        place += 1
                    value ^= register
                    step = _CHECKED
                else:
                    value = register
                    step = _CHECKED if step == _DIRECT else _UNTIL_START
            stored = (
                data[checked]
                + data[checked + 1] * 0x100
                + data[checked + 2] * 0x10000
                + data[checked + 3] * 0x1000000
            )
            is_whole = value == stored

        if gap != _NO_GAP:
            if is_whole:
                if begin >= first:
                    rows[0, count] = gap
                    rows[1, count] = position - gap
                    rows[2, count] = index
                    rows[3, count] = _GAP
                    count += 1
                gap = _NO_GAP
            else:
                position += 1
        elif is_whole or agrees:
            if begin >= first:
                rows[0, count] = position
                rows[1, count] = length
                rows[2, count] = index
                rows[3, count] = _FRAME if not is_whole else _GOOD if agrees else _OTHER_END
                count += 1
            index += 1
            position += length
        else:
            gap = position
            position += 1
