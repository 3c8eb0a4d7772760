"""A reader of just what Elastic Beats 8.4 and later read, written from the format's description alone.

It shares nothing with ``penstock.formats``: whatever it takes is plain version 2 without options, in frames whose every
field is right, with events in the subset of CBOR that Beats' own parser knows. All else raises ``NotForBeats``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


class NotForBeats(Exception):
    """Something that Beats would pass over, misread or refuse."""


@dataclass(frozen=True)
class StrictEvent:
    """An event and where it stands."""

    segment: int
    offset: int
    index: int
    timestamp: int
    flags: int
    meta: dict[str, Any]
    fields: dict[str, Any]


def read_spool(directory: Path) -> list[StrictEvent]:
    """Return the events that are not acknowledged. All segments must be closed and their numbers without a gap."""
    numbers = sorted(int(path.stem) for path in directory.glob("*.seg"))
    for path in directory.glob("*.seg"):
        _need(path.name == f"{int(path.stem)}.seg", f"{path.name} is no name that Beats opens")
    for number, following in pairwise(numbers):
        _need(following == number + 1, f"a gap behind {number}.seg")
    segment, offset, index = _read_state(directory / "state.dat")
    _need(not numbers or segment <= numbers[-1], "Beats would remove everything unsent")
    events = []
    for number in numbers:
        found = list(_read_segment(number, (directory / f"{number}.seg").read_bytes()))
        if number == segment and (offset, index) != (0, 0):
            ends = [(event.offset, event.index) for event in found]
            end = (directory / f"{number}.seg").stat().st_size
            _need((offset, index) in [*ends, (end, len(found))], "the position is inside a frame")
            found = found[index:]
        events += [] if number < segment else found
    return events


def _read_state(path: Path) -> tuple[int, int, int]:
    data = path.read_bytes()
    _need(len(data) >= 28, "a state of less than 28 bytes")
    version, segment, offset, index = struct.unpack_from("<IQQQ", data)
    _need(version == 1, f"a state of version {version}")
    _need(index > 0 or offset == 0, "Beats takes a position without frames for the beginning")
    return segment, offset, index


def _read_segment(number: int, data: bytes) -> Iterator[StrictEvent]:
    _need(len(data) >= 12, "a segment of less than 12 bytes")
    version, count, options = struct.unpack_from("<III", data)
    _need(version == 2, f"a segment of version {version}")
    _need(options == 0, f"a segment with options {options}")
    at, index = 12, 0
    while at < len(data):
        _need(at + 13 <= len(data), "a frame of less than 13 bytes")
        (size,) = struct.unpack_from("<I", data, at)
        _need(13 <= size <= len(data) - at, f"a length of {size} at {at}")
        checksum, again = struct.unpack_from("<II", data, at + size - 8)
        _need(again == size, f"lengths of {size} and {again} at {at}")
        _need(zlib.crc32(data[at : at + size - 8]) == checksum, f"a wrong checksum at {at}")
        yield _event(number, at, index, data[at + 4 : at + size - 8])
        at += size
        index += 1
    _need(count == index, f"a count of {count}, and {index} frames")


def _event(segment: int, offset: int, index: int, payload: bytes) -> StrictEvent:
    parser = _Cbor(payload)
    value = parser.value()
    _need(parser.at == len(payload), "bytes behind the event")
    _need(isinstance(value, dict), "an event that is no map")
    _need(list(value) == ["timestamp", "flags", "meta", "fields"], f"an event with {list(value)}")
    for name, kind in (("timestamp", int), ("flags", int), ("meta", dict), ("fields", dict)):
        _need(type(value[name]) is kind, f"{name} is no {kind.__name__}")
    _need(-(2**63) <= value["timestamp"] < 2**63, "a timestamp beyond 64 bits")
    _need(0 <= value["flags"] < 2**32, "flags beyond 32 bits")
    return StrictEvent(segment, offset, index, *value.values())


class _Cbor:
    """The parser: definite lengths, text keys that are not empty, no tags, no half floats, shortest integers.

    Negative integers are read as commit 7c3b340eab51 of Beats reads them: with the top bit of their width as the sign.
    So those that need this bit must be written one width wider.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self, depth: int = 0) -> Any:
        _need(depth < 100, "too deep")
        kind, low = divmod(self._bytes(1)[0], 32)
        if kind == 7:
            return self._simple(low)
        size, bits = self._argument(low, is_negative=kind == 1)
        match kind:
            case 0:
                return size
            case 1:
                return ~(size - (size >> (bits - 1) << bits))
            case 2:
                return self._bytes(size)
            case 3:
                return self._bytes(size).decode("utf-8", "surrogateescape")
            case 4:
                return [self.value(depth + 1) for _ in range(size)]
            case 5:
                return dict(self._pair(depth + 1) for _ in range(size))
        raise NotForBeats("a tag")

    def _pair(self, depth: int) -> tuple[str, Any]:
        _need(self.data[self.at] >> 5 == 3, "a key that is no text")
        key = self.value(depth)
        _need(key != "", "an empty key")
        return key, self.value(depth)

    def _simple(self, low: int) -> Any:
        known = {20: False, 21: True, 22: None, 23: None}
        if low in known:
            return known[low]
        _need(low in (26, 27), "neither a float of 32 or 64 bits nor true, false or null")
        form = ">f" if low == 26 else ">d"
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _argument(self, low: int, *, is_negative: bool) -> tuple[int, int]:
        """Return a number and the bits of its width."""
        if low < 24:
            return low, 8
        _need(low <= 27, "an indefinite length")
        size = 1 << (low - 24)
        value = int.from_bytes(self._bytes(size), "big")
        least = 24 if size == 1 else 1 << (4 * size - is_negative)
        _need(value >= least, "an integer that is longer than it need be")
        return value, 8 * size

    def _bytes(self, size: int) -> bytes:
        _need(size <= len(self.data) - self.at, "the event ends too early")
        self.at += size
        return self.data[self.at - size : self.at]


def _need(is_right: bool, words: str) -> None:
    if not is_right:
        raise NotForBeats(words)
