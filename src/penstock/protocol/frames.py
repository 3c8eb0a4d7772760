"""Frames of protocol version 2: a length, a type, a request id, a body (docs/protocol.md).

Sans-IO and the same for both sides: ``encode_frame`` makes one, ``FrameReader`` cuts a stream of
bytes, in whatever pieces it arrives, into frames. A length beyond the limit is refused when its four
bytes are there, before anything is kept for it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.binary import Bytes
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
    """Cuts arriving bytes into frames; holds what is not whole yet, and never more than one frame of it."""

    __slots__ = ("_pieces", "_size_max", "_wanted", "held")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self._pieces: list[bytes] = []
        self.held = 0  # bytes of the frame that is not whole yet
        self._wanted = HEADER_SIZE  # nothing can be done below this many bytes

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete. Raises ``CorruptData`` for an impossible length."""
        if self.held:
            self._pieces.append(data)
            self.held += len(data)
            if self.held < self._wanted:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.held = 0
        return self._cut(data)

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        offset, end = 0, len(data)
        while end - offset >= HEADER_SIZE:
            size, kind, request = _unpack(data, offset)
            follower = offset + _LENGTH_SIZE + size
            if follower > end or size < _FIXED_SIZE:
                self._refuse(size)
                break
            frames.append((kind, request, data[offset + HEADER_SIZE : follower]))
            offset = follower
        self._wanted = HEADER_SIZE
        if offset < end:
            rest = data[offset:] if offset else data
            self._keep(rest)
        return frames

    def _keep(self, rest: Bytes) -> None:
        if len(rest) >= _LENGTH_SIZE:
            size = int.from_bytes(rest[:_LENGTH_SIZE], "big")
            self._refuse(size)
            self._wanted = max(HEADER_SIZE, _LENGTH_SIZE + size)
        self._pieces.append(bytes(rest))
        self.held = len(rest)

    def _refuse(self, size: int) -> None:
        if not _FIXED_SIZE <= size <= self._size_max:
            raise CorruptData(
                "impossible length of a frame",
                offset=0,
                expected=f"{_FIXED_SIZE} to {self._size_max}",
                found=str(size),
            )
