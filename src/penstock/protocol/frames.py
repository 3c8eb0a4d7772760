"""Frames of protocol version 2: a length, a type, a request id, a body (docs/protocol.md).

Sans-IO and the same for both sides: ``encode_frame`` makes one, ``FrameReader`` cuts a stream of
bytes, in whatever pieces it arrives, into frames. A length beyond the limit is judged when its four
bytes are there; nothing is kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.errors import CorruptData

HEADER: Final = Struct(">IBI")
"""Bytes that follow the length itself, type, request id."""

HEADER_SIZE: Final = HEADER.size
_LENGTH_SIZE: Final = 4
_FIXED_SIZE: Final = HEADER_SIZE - _LENGTH_SIZE  # what every length counts at least

FRAME_SIZE_MAX: Final = 20 * 2**20
"""The largest frame, length field excluded: the largest payload, its queue and keys, and room to spare."""

Frame = tuple[int, int, bytes]
"""(type, request id, body)."""

_pack = HEADER.pack
_unpack = HEADER.unpack_from


def encode_frame(kind: int, request: int, body: bytes) -> bytes:
    """Return the bytes of one frame."""
    return _pack(_FIXED_SIZE + len(body), kind, request) + body


@dataclass(frozen=True, slots=True, kw_only=True)
class OversizedFrame:
    """A frame above the limit that was read and dropped."""

    request: int
    size: int


class FrameReader:
    """Cuts arriving bytes into frames; holds what is not whole yet, and never more than one frame of it.

    A frame above ``size_max`` and not above ``excess_size_max`` is dropped as it arrives and noted in ``oversized``. Any
    other impossible length raises ``CorruptData``, and every further call does so too: what follows it is not a frame.
    """

    __slots__ = ("_begun", "_excess", "_excess_size_max", "_size_max", "_wanted", "oversized")

    def __init__(self, size_max: int = FRAME_SIZE_MAX, *, excess_size_max: int = 0) -> None:
        self._size_max = size_max
        self._excess_size_max = excess_size_max
        # The frame that is not whole yet. One buffer and not a list of pieces: a sender of tiny
        # pieces would make such a list cost many times the bytes that are in it.
        self._begun = bytearray()
        self._wanted = _LENGTH_SIZE  # below this many bytes of it nothing can be done
        self._excess = (
            0  # bytes that are still to be dropped, of a frame whose header is in ``_begun``
        )
        self.oversized: list[OversizedFrame] = []  # the caller takes them out

    @property
    def held(self) -> int:
        """How many bytes of the frame that is not whole yet are there."""
        return len(self._begun)

    @property
    def is_draining(self) -> bool:
        """Whether a frame above the limit is being dropped."""
        return self._excess > 0

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete. Raises ``CorruptData`` for an impossible length."""
        frames: list[Frame] = []
        offset = 0
        while True:
            if self._begun:
                offset = self._complete(data, offset, frames)
                if self._begun:
                    return frames
            offset = self._cut(data, offset, frames)
            if offset == len(data):
                return frames

    def _complete(self, data: bytes, offset: int, frames: list[Frame]) -> int:
        """Add to the frame that is not whole yet, and return where the next one begins if it is whole now."""
        begun = self._begun
        while True:
            missing = self._wanted - len(begun)
            begun += data[offset : offset + missing]
            offset += missing
            if offset > len(data):
                return len(data)
            if self._wanted == _LENGTH_SIZE:
                self._judge_length()
                continue
            size, kind, request = _unpack(begun)
            if size > self._size_max:
                return self._drop(size, request, data, offset)
            with memoryview(begun) as view:  # a slice of it would be one more copy
                frames.append((kind, request, bytes(view[HEADER_SIZE:])))
            begun.clear()
            return offset

    def _drop(self, size: int, request: int, data: bytes, offset: int) -> int:
        """Drop what has arrived of a frame above the limit; its header stays until all of it has."""
        self._excess = self._excess or size - _FIXED_SIZE
        dropped = min(self._excess, len(data) - offset)
        self._excess -= dropped
        if not self._excess:
            self.oversized.append(OversizedFrame(request=request, size=size))
            self._begun.clear()
        return offset + dropped

    def _cut(self, data: bytes, offset: int, frames: list[Frame]) -> int:
        """Take whole frames and begin the one behind them; return where it goes on if that is not all."""
        end, size_max = len(data), self._size_max
        while end - offset >= HEADER_SIZE:
            size, kind, request = _unpack(data, offset)
            follower = offset + _LENGTH_SIZE + size
            if follower > end or not _FIXED_SIZE <= size <= size_max:
                break
            frames.append((kind, request, data[offset + HEADER_SIZE : follower]))
            offset = follower
        self._begun += data[offset : offset + _LENGTH_SIZE]
        self._wanted = _LENGTH_SIZE
        if len(self._begun) < _LENGTH_SIZE:
            return end
        self._judge_length()
        stop = min(end, offset + self._wanted)
        self._begun += data[offset + _LENGTH_SIZE : stop]
        return stop

    def _judge_length(self) -> None:
        """Learn how much is wanted from a length that has just become whole."""
        size = int.from_bytes(self._begun, "big")
        if self._size_max < size <= self._excess_size_max:
            self._wanted = HEADER_SIZE
            return
        if not _FIXED_SIZE <= size <= self._size_max:
            raise CorruptData(
                "impossible length of a frame",
                offset=0,
                expected=f"{_FIXED_SIZE} to {self._size_max}",
                found=str(size),
            )
        self._wanted = _LENGTH_SIZE + size
