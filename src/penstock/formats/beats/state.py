"""The consumer's position, ``state.dat``: what is acknowledged, and what is on its way (docs/formats/beats.md).

Beats overwrites the first 28 bytes in place and looks at nothing behind them. There we keep a
trailer of our own, with a checksum over both: once Beats has moved the position, the trailer no longer
fits and is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from penstock.binary import Bytes
from penstock.errors import InvalidValue, TruncatedData, UnsupportedVersion
from penstock.formats.beats.segment import UINT32, Header
from penstock.model import UINT64_MAX

VERSION: Final = 1
"""What is written, except for a queue of the releases that know only version 0: Beats 7.10 to 7.13."""

_VERSION_0: Final = Struct("<IQQ")
_VERSION_1: Final = Struct("<IQQQ")
# Version 0 counts from the end of the header, and segments of that time are of version 0 as well.
_HEADER_SIZE_0: Final = Header(0, 0).size
_TRAILER: Final = Struct("<8sQQQ")
_MARKER: Final = b"PENSTOCK"
_CHECKED_SIZE: Final = _VERSION_1.size + _TRAILER.size


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place between two frames of a queue; places compare in the order of delivery."""

    segment: int = 0
    offset: int = 0  # logical: the header counted; 0 is the first frame too
    index: int = 0  # frames of the segment before this place

    def __post_init__(self) -> None:
        if not (0 <= self.segment <= UINT64_MAX and self.offset >= 0 and self.index >= 0):
            raise InvalidValue(f"no place in a queue: {self.segment}, {self.offset}, {self.index}")


@dataclass(frozen=True, slots=True)
class State:
    """What the file says. Raises ``InvalidValue`` for what its version cannot say."""

    position: Position  # of the oldest frame that is not acknowledged
    version: int = VERSION  # of the file; version 0 knows no index, which is 0 when it was read
    sending: Position | None = None  # how far frames were on their way when this was written; ours

    def __post_init__(self) -> None:
        if not 0 <= self.version <= VERSION or (self.version == 0 and self.sending is not None):
            raise InvalidValue(f"a state of version {self.version} cannot say this")


def encode_state(state: State) -> bytes:
    """Return the bytes of the state's version; version 0 leaves out the index.

    With ``sending``, our trailer follows. Raises ``InvalidValue`` for a place beyond 64 bits.
    """
    if state.version == 0:
        _check_width(state.position)
        offset = max(0, state.position.offset - _HEADER_SIZE_0)
        return _VERSION_0.pack(0, state.position.segment, offset)
    data = _pack(_VERSION_1, VERSION, state.position)
    if state.sending is None:
        return data
    data += _pack(_TRAILER, _MARKER, state.sending)
    return data + UINT32.pack(crc32(data))


def decode_state(data: Bytes) -> State:
    """Return what a ``state.dat`` says; a trailer that does not fit counts as none.

    Raises ``TruncatedData``, for an empty file too, and ``UnsupportedVersion``.
    """
    version = UINT32.unpack_from(data)[0] if len(data) >= UINT32.size else VERSION
    if version > VERSION:
        raise UnsupportedVersion(
            "a state of a version that we do not know",
            offset=0,
            expected=f"0 to {VERSION}",
            found=str(version),
        )
    form = _VERSION_1 if version else _VERSION_0
    if len(data) < form.size:
        raise TruncatedData(
            "the bytes end inside a state",
            offset=0,
            expected=f"{form.size} bytes",
            found=str(len(data)),
        )
    if version == 0:
        _, segment, offset = form.unpack_from(data)
        return State(Position(segment, _HEADER_SIZE_0 + offset, 0), version)
    _, segment, offset, index = form.unpack_from(data)
    return State(Position(segment, offset, index), version, _decode_trailer(data))


def _decode_trailer(data: Bytes) -> Position | None:
    if len(data) < _CHECKED_SIZE + UINT32.size:
        return None
    marker, segment, offset, index = _TRAILER.unpack_from(data, _VERSION_1.size)
    fits = crc32(data[:_CHECKED_SIZE]) == UINT32.unpack_from(data, _CHECKED_SIZE)[0]
    return Position(segment, offset, index) if marker == _MARKER and fits else None


def _check_width(position: Position) -> None:
    if max(position.offset, position.index) > UINT64_MAX:
        raise InvalidValue(f"a place beyond 64 bits: {position.offset}, {position.index}")


def _pack(form: Struct, front: int | bytes, position: Position) -> bytes:
    _check_width(position)
    return form.pack(front, position.segment, position.offset, position.index)
