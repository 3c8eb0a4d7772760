"""Frames of protocol version 2: a length, a type, a request id, a body (docs/protocol.md).

Sans-IO and the same for both sides: ``encode_frame`` makes one, ``FrameReader`` cuts a stream of
bytes, in whatever pieces it arrives, into frames. A length beyond the limit is refused when its four
bytes are there, before anything is kept for it.
"""

from __future__ import annotations

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


class FrameReader:
    """Cuts arriving bytes into frames; holds what is not whole yet, and never more than one frame of it.

    After a refusal every further call is refused: what follows an impossible length is not a frame.
    """

    __slots__ = ("_begun", "_size_max", "_wanted")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        # The frame that is not whole yet. One buffer and not a list of pieces: a sender of tiny
        # pieces would make such a list cost many times the bytes that are in it.
        self._begun = bytearray()
        self._wanted = _LENGTH_SIZE  # below this many bytes of it nothing can be done

    @property
    def held(self) -> int:
        """How many bytes of the frame that is not whole yet are there."""
        return len(self._begun)

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete. Raises ``CorruptData`` for an impossible length."""
        frames: list[Frame] = []
        begun, offset = self._begun, 0
        while begun:
            missing = self._wanted - len(begun)
            begun += data[offset : offset + missing]
            offset += missing
            if offset > len(data):
                return frames
            if self._wanted == _LENGTH_SIZE:
                self._judge_length()
            else:
                _, kind, request = _unpack(begun)
                with memoryview(begun) as view:  # a slice of it would be one more copy
                    frames.append((kind, request, bytes(view[HEADER_SIZE:])))
                begun.clear()
        self._cut(data, offset, frames)
        return frames

    def _cut(self, data: bytes, offset: int, frames: list[Frame]) -> None:
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
        if len(self._begun) == _LENGTH_SIZE:
            self._judge_length()
            self._begun += data[offset + _LENGTH_SIZE :]

    def _judge_length(self) -> None:
        """Learn how much is wanted from a length that has just become whole."""
        size = int.from_bytes(self._begun, "big")
        if not _FIXED_SIZE <= size <= self._size_max:
            raise CorruptData(
                "impossible length of a frame",
                offset=0,
                expected=f"{_FIXED_SIZE} to {self._size_max}",
                found=str(size),
            )
        self._wanted = _LENGTH_SIZE + size
