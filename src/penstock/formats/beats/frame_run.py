"""A run of good frames, taken quickly: what a reader of a sound spool spends its time on.

The checksum is that of ``frame``, from a library that needs less than half of zlib's time for it.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct
from typing import Final

from fastcrc.crc32 import iso_hdlc as crc32

from penstock.formats.beats.frame import FRAME_MAX, FRAME_MIN

_LENGTH: Final = Struct("<I")
_END: Final = Struct("<II")  # checksum, length
_END_AND_NEXT: Final = Struct("<III")  # and the length of the frame behind
_CUT: Final = -1
"""In place of a length: the bytes end before it."""


class RunEnd(Enum):
    """Why a run ended."""

    ENOUGH = auto()  # as many as were asked for
    NEEDS_MORE = auto()  # the bytes end inside a frame
    ODD = auto()  # the next frame is not flawless: ``FrameReader`` can judge it


def take_frames(data: bytes, start: int, count_max: int) -> tuple[list[bytes], int, RunEnd]:
    """Return the payloads of the flawless frames at ``start``, where they end, and why."""
    payloads: list[bytes] = []
    # Sizes repeat, and the checksum of a length is the start of the frame's.
    starts: dict[int, int] = {}
    append, unpack, known = payloads.append, _END_AND_NEXT.unpack_from, starts.get
    end = len(data)
    last = end - _END_AND_NEXT.size
    size = _LENGTH.unpack_from(data, start)[0] if end - start >= _LENGTH.size else _CUT
    for _ in range(count_max):
        checksum = known(size)
        if checksum is None:
            if not FRAME_MIN <= size <= FRAME_MAX:
                return payloads, start, RunEnd.NEEDS_MORE if size == _CUT else RunEnd.ODD
            checksum = starts[size] = crc32(_LENGTH.pack(size))
        stop = start + size
        behind = stop - _END.size
        if behind <= last:
            stored, length, following = unpack(data, behind)
        elif stop <= end:
            (stored, length), following = _END.unpack_from(data, behind), _CUT
        else:
            return payloads, start, RunEnd.NEEDS_MORE
        payload = data[start + 4 : behind]
        if stored != crc32(payload, checksum) or length != size:
            return payloads, start, RunEnd.ODD
        append(payload)
        start, size = stop, following
    return payloads, start, RunEnd.ENOUGH
