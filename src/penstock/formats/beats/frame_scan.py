"""Frames in bulk: where the frames of a segment stand and whether they are whole, in columns.

``FrameReader`` is the plain reader; ``FrameScanner`` and ``scan_frames`` give the same answers many at a time, by the same
``walk``, which numba compiles when it is first used.

Whoever reads a part of a segment needs the first true boundary in it, and the number of frames before that. Where the
two lengths of a frame agree, a reader goes on behind it whatever its checksum says. So the way there is walked by lengths
alone, and a checksum is computed only where they differ. A search for something that looks like a frame would be fooled:
a payload may hold whole frames, and of two damaged frames in a row it would miss the second.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.binary import Bytes
from penstock.formats.beats.frame import (
    BLOCK,
    FRAME_MAX,
    FRAME_MIN,
    FRAMING,
    NO_GAP,
    POLYNOMIAL,
    Verdict,
    power_of_x,
    walk,
)
from penstock.formats.beats.segment import UINT32
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.kernel_bytes import crc_tables
from penstock.model import INT64_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHOWN_MAX: Final = 4096
"""Bytes of damage that are shown: it may be as long as the file."""


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
) -> Generator[FrameColumns, None, Place]:
    """Yield every frame and all damage that begins in ``[start, stop)`` of a whole stream; return where that ended.

    ``offset`` is the logical offset of the buffer's first byte, before which ``index`` frames stand; ``start`` and
    ``stop`` are any positions in the buffer. Needs numpy and numba, which the ``tables`` extra brings.
    """
    scanner = FrameScanner(
        offset,
        index=index,
        first=offset + start,
        stop=None if stop is None else offset + stop,
        batch_rows=batch_rows,
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
        kernel = compiled(walk)
        tables = crc_tables(POLYNOMIAL, is_reflected=True, interpreted=False)
        known = np.zeros(end // BLOCK + 2, dtype=np.int64)
        position, index, needed = 0, self.place.index, 0
        gap = NO_GAP if self._gap is None else self._gap - base
        is_full = True
        while is_full:
            room = max(1, min(self._batch_rows, (end - position) // FRAME_MIN + 2))
            rows = np.empty((4, room), dtype=np.int64)
            count, position, gap, index, needed, is_full = kernel(
                data, position, gap, index, self._first - base, self._stop - base, end, self._size - base,
                tables, _powers(), known, room, rows,
            )  # fmt: skip
            self.place = Place(base + int(position if gap == NO_GAP else gap), int(index))
            if count:
                yield self._columns(data, rows[:, :count])
        self._note(None if gap == NO_GAP else base + int(gap), data)
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
        start = np.where(is_frame, position + UINT32.size, position)
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


@cache
def _powers() -> NDArray[np.int64]:
    """Return x to the powers 8, 16, 32 … modulo the checksum's polynomial."""
    import numpy as np

    powers = [power_of_x(1 << place) for place in range(FRAME_MAX.bit_length())]
    return np.array(powers, dtype=np.int64)
