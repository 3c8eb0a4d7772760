"""The log: framing of its records in every generation (docs/formats/log.md).

This module owns the layout of a log file and of a record; what a record's payload means is in
``deltas`` and ``commands``. ``walk`` checks record after record and stops at the first that is not
whole, as recovery must; ``log_scan`` goes on behind damage, one by one or in columns.

Checksums cover a record's payload only, so marker, term and length are also checked against
what they can be: a known marker, a term from 1 on that does not fall, a length that fits the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import repeat
from struct import Struct, pack
from typing import Any, Final, NamedTuple

from penstock.binary import CHECKSUM_START, Bytes, checksum_of_one, hexadecimal
from penstock.errors import (
    CannotConvert,
    CorruptData,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
from penstock.formats.kernel import compiled_as
from penstock.formats.kernel_bytes import crc, crc_tables
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.model import INT32_MAX, INT64_MAX

MARKER_1: Final = bytes.fromhex("2F6F0F2F")
MARKER_1A: Final = bytes.fromhex("2F0F6F2F")
MARKER: Final = bytes.fromhex("1276AD55")
RECORD_MARKER: Final = bytes.fromhex("AAF534C4")
END_MARKER: Final = bytes(4)
VERSION: Final = 1

COMMIT_OFFSET: Final = 8
COMMIT: Final = Struct(">i")

SEGMENT_SUFFIX: Final = ".log"
SEGMENT_DIGITS: Final = 19

_WIDE: Final = 1  # a record header with terms of 64 bits
_LITTLE: Final = 2  # a record header of little-endian integers


class LogLayout(Enum):
    """A layout: generation, variant, file marker, header size, record header, contents."""

    ONE_A = (Generation.ONE, "1a", MARKER_1A, 8, "<ii", Contents.COMMANDS)
    ONE_B = (Generation.ONE, "1b", MARKER_1, 8, ">ii", Contents.COMMANDS)
    ONE_C = (Generation.ONE, "1c", MARKER_1, 8, ">ii", Contents.DELTAS_BY_VALUE)
    ONE_D = (Generation.ONE, "1d", MARKER_1, 8, ">ii", Contents.COMMANDS)
    TWO = (Generation.TWO, "2", MARKER, 12, ">4siIi", Contents.DELTAS_BY_VALUE)
    THREE = (Generation.THREE, "3", MARKER, 8, ">4sqIi", Contents.DELTAS_BY_ID)

    def __init__(
        self,
        generation: Generation,
        variant: str,
        marker: bytes,
        header_size: int,
        record_header: str,
        contents: Contents,
    ) -> None:
        self.generation = generation
        self.variant = variant
        self.marker = marker
        self.header_size = header_size
        self.record_header = Struct(record_header)
        self.contents = contents
        self.is_marked = generation is not Generation.ONE
        self.kind = {">4sqIi": _WIDE, "<ii": _LITTLE}.get(record_header, 0)  # to kernels
        self.term_max = INT64_MAX if generation is Generation.THREE else INT32_MAX


class Status(IntEnum):
    """What is to be said of a record, or of a stretch of a log that is none."""

    OK = 0
    BAD_CHECKSUM = 1  # the payload does not match its checksum
    BAD_MARKER = 2  # neither a record nor the end where one of them must be
    BAD_TERM = 3  # a term below 1
    FALLING_TERM = 4  # whole, but of a lower term than the record before it
    BAD_LENGTH = 5  # a negative length, or one that nothing could prove
    TORN = 6  # the file ends inside the record
    ZEROS = 7  # zeros, as at the end, but with records behind them
    LEFTOVER = 8  # bytes behind the end that are neither records nor zeros
    STALE = 9  # bytes behind the end that an overwritten tail left; no damage
    UNDECIDED = 10  # records behind the end that are stale, or hidden by a marker that was zeroed

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


# --- headers -------------------------------------------------------------------------------------


def segment_name(first: int) -> str:
    """Return the file name of the generation 3 segment that begins at index ``first``."""
    assert 0 <= first <= INT64_MAX
    return f"{first:0{SEGMENT_DIGITS}d}{SEGMENT_SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """Return the first index of the segment with this file name, or ``None`` if it is no segment."""
    digits = name.removesuffix(SEGMENT_SUFFIX)
    if len(name) != SEGMENT_DIGITS + len(SEGMENT_SUFFIX) or len(digits) != SEGMENT_DIGITS:
        return None
    if not (digits.isascii() and digits.isdigit()) or int(digits) > INT64_MAX:
        return None
    return int(digits)


def encode_header(layout: LogLayout, *, commit: int = -1) -> bytes:
    """Return a log file's header. ``commit`` is local to the file and only generation 2 stores it."""
    version = VERSION.to_bytes(4, "little" if layout is LogLayout.ONE_A else "big")
    header = layout.marker + version
    return header + COMMIT.pack(commit) if layout is LogLayout.TWO else header


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A decoded log header; ``commit`` is −1 where none is committed, ``None`` where none is stored."""

    layout: LogLayout
    commit: int | None


def detect_layout(data: Bytes) -> LogLayout:
    """Return the layout that a log's first bytes show. Raises ``BadData``.

    Payloads decide between 1b, 1c and 1d, which look alike here: 1b is returned for all of them.
    """
    marker = bytes(data[:4])
    if marker == MARKER_1:
        return LogLayout.ONE_B
    if marker == MARKER_1A:
        return LogLayout.ONE_A
    if marker != MARKER:
        if len(marker) < 4 and any(m.startswith(marker) for m in (MARKER, MARKER_1, MARKER_1A)):
            raise TruncatedData("the file ends inside the marker", offset=len(marker))
        raise UnknownFormat(
            "not a log",
            offset=0,
            expected=f"{hexadecimal(MARKER)} or {hexadecimal(MARKER_1)}",
            found=hexadecimal(marker),
        )
    after, behind = bytes(data[8:12]), bytes(data[12:16])
    if after == RECORD_MARKER or len(data) == 8:
        return LogLayout.THREE
    if after == END_MARKER and behind != RECORD_MARKER:
        return LogLayout.THREE
    return LogLayout.TWO


def decode_header(data: Bytes, layout: LogLayout | None = None) -> Header:
    """Return the header of a log file, of the layout given or found. Raises ``BadData``."""
    layout = layout or detect_layout(data)
    if bytes(data[:4]) != layout.marker[: len(data)]:
        raise CorruptData(
            "wrong log marker",
            offset=0,
            expected=hexadecimal(layout.marker),
            found=hexadecimal(data[:4]),
        )
    if len(data) < layout.header_size:
        raise TruncatedData(
            "the file ends inside the log header",
            offset=len(data),
            expected=f"{layout.header_size} bytes",
            found=str(len(data)),
        )
    version = int.from_bytes(data[4:8], "little" if layout is LogLayout.ONE_A else "big")
    if version != VERSION:
        raise UnsupportedVersion(
            "unsupported log version", offset=4, expected=str(VERSION), found=str(version)
        )
    if layout is not LogLayout.TWO:
        return Header(layout=layout, commit=None)
    commit: int = COMMIT.unpack_from(data, COMMIT_OFFSET)[0]
    if commit < -1:
        raise CorruptData(
            "impossible commit index",
            offset=COMMIT_OFFSET,
            expected="-1 or more",
            found=str(commit),
        )
    return Header(layout=layout, commit=commit)


# --- records -------------------------------------------------------------------------------------


def encode_record(layout: LogLayout, *, term: int, payload: Bytes) -> bytes:
    """Return one record."""
    return b"".join(encode_records(layout, term, [payload]))


_ALIKE_MIN: Final = 8
"""Records of one size from which on they are cheaper to make all at once."""


def _encode_alike(layout: LogLayout, term: int, payloads: Sequence[Bytes]) -> bytearray:
    """Return records with payloads of one size: all with one header, then the checksums into place."""
    size, count = len(payloads[0]), len(payloads)
    header = layout.record_header.pack(RECORD_MARKER, term, 0, size)
    records = bytearray(header)
    records += header.join(payloads)
    checksums = pack(f">{count}I", *map(checksum_of_one, payloads))
    place, step = len(header) - 8, len(header) + size  # checksum and size end the header
    for column in range(4):
        records[place + column :: step] = checksums[column::4]
    return records


def encode_records(layout: LogLayout, term: int, payloads: Sequence[Bytes]) -> list[Bytes]:
    """Return the pieces of a batch of records of one term, ready for one gathered write."""
    if not 1 <= term <= layout.term_max:
        raise CannotConvert(f"term {term} does not fit a log of generation {layout.generation}")
    if layout.is_marked and len(payloads) >= _ALIKE_MIN and len(set(map(len, payloads))) == 1:
        return [_encode_alike(layout, term, payloads)]
    header, sizes = layout.record_header.pack, map(len, payloads)
    pieces: list[Bytes] = [b""] * (2 * len(payloads))
    if layout.is_marked:
        checksums = map(checksum_of_one, payloads)
        pieces[::2] = map(header, repeat(RECORD_MARKER), repeat(term), checksums, sizes)
    else:
        pieces[::2] = map(header, repeat(term), sizes)
    pieces[1::2] = payloads
    return pieces


class Walk(NamedTuple):
    """What ``walk`` found: whole records in order, and why it stopped where."""

    offsets: list[int]  # where each record starts
    terms: list[int]
    position: int  # where the next record would start
    stop: (
        Status | None
    )  # None: ``stop``, the end marker, the end of the file, or more data is needed


def walk(
    data: Bytes,
    layout: LogLayout,
    *,
    offset: int,
    end: int,
    stop: int = INT64_MAX,
    term: int = 0,
    size: int | None = None,
) -> Walk:
    """Check records that begin in ``[offset, stop)``, and stop at the first that is not whole.

    ``term`` is that of the record before. ``end`` is where the data ends; ``size`` says where
    the file does, if that is later: then a record that runs past ``end`` is left for the next call.
    """
    size = end if size is None else size
    room = max(0, end - offset) // layout.record_header.size + 1
    offsets, terms = [0] * room, [0] * room
    count, position, why = walk_kernel(layout)(
        data, offset, stop, end, size, term, layout.kind, None, offsets, terms
    )
    del offsets[count:], terms[count:]
    return Walk(offsets, terms, position, Status(why) if why >= 0 else None)


def walk_kernel(layout: LogLayout) -> Callable[..., Any]:
    """Return the kernel that walks over the records of a layout."""
    return _walk_marked if layout.is_marked else _walk_plain


# The kernels that ``walk`` runs interpreted, and ``log_scan`` compiled. Why they return: a status, or one of these.
FULL: Final = -1  # no room for more, or the next record does not begin before ``stop``
END: Final = -2  # the end marker, the end of the file, or more data is needed
_BAD_CHECKSUM, _BAD_MARKER, _BAD_TERM, _FALLING, _BAD_LENGTH, _TORN = map(int, list(Status)[1:7])
_MARKER: Final = int.from_bytes(RECORD_MARKER, "big")
_POLYNOMIAL: Final = 0x104C11DB7  # of CRC-32/MPEG-2, highest bit first
_unpack_header_2 = Struct(LogLayout.TWO.record_header.format.replace("4s", "I")).unpack_from
_unpack_header_3 = Struct(LogLayout.THREE.record_header.format.replace("4s", "I")).unpack_from
_unpack_big = LogLayout.ONE_B.record_header.unpack_from
_unpack_little = LogLayout.ONE_A.record_header.unpack_from


def checksum_tables() -> Any:
    """Return what compiled kernels need to take a payload's checksum."""
    return crc_tables(_POLYNOMIAL, is_reflected=False, interpreted=False)


def _checksum_in_kernels(data: Any, start: Any, stop: Any, tables: Any) -> Any:
    turned = crc(data, start, stop, CHECKSUM_START, tables)
    low = (turned & 0xFF) << 24 | (turned & 0xFF00) << 8
    return low | (turned >> 8) & 0xFF00 | (turned >> 24) & 0xFF


@compiled_as(_checksum_in_kernels)
def _checksum(data: Any, start: Any, stop: Any, tables: Any) -> Any:  # noqa: ARG001
    """Return the checksum of a payload."""
    return checksum_of_one(data[start:stop])


def _walk_marked(
    data: Any, offset: Any, stop: Any, end: Any, size: Any, term: Any, kind: Any, tables: Any,
    offsets: Any, terms: Any,
) -> Any:  # fmt: skip
    """Note where whole records begin and their terms; return how many, where the next would begin, and why it does not."""
    header_size = 20 if kind == _WIDE else 16
    last = min(end - header_size, stop - 1)
    count, room = 0, len(offsets)
    while offset <= last and count < room:
        if kind == _WIDE:
            marker, found, stored, length = _unpack_header_3(data, offset)
        else:
            marker, found, stored, length = _unpack_header_2(data, offset)
        if marker != _MARKER:
            return count, offset, (END if marker == 0 else _BAD_MARKER)
        body = offset + header_size
        follower = body + length
        if length < 0:
            return count, offset, _BAD_LENGTH
        if follower > end:
            return count, offset, (_TORN if follower > size else END)
        if _checksum(data, body, follower, tables) != stored:
            return count, offset, _BAD_CHECKSUM
        if found < term or found < 1:
            return count, offset, (_BAD_TERM if found < 1 else _FALLING)
        offsets[count] = offset
        terms[count] = term = found
        count += 1
        offset = follower
    why = FULL if offset >= stop or count == room else _end(data, offset, end, size)
    return count, offset, why


def _end(data: Any, offset: Any, end: Any, size: Any) -> Any:
    """Return what the last bytes of the data are, too few for a record."""
    count, word = min(4, end - offset), 0
    for i in range(offset, offset + count):
        word = word * 0x100 + data[i]
    if end < size or count == 0 or (count == 4 and word == 0):
        return END
    return _TORN if word == 0 or word == _MARKER >> (8 * (4 - count)) else _BAD_MARKER


def _walk_plain(
    data: Any, offset: Any, stop: Any, end: Any, size: Any, term: Any, kind: Any,
    tables: Any,  # noqa: ARG001 - both kernels are called alike
    offsets: Any, terms: Any,
) -> Any:  # fmt: skip
    """Walk over generation 1, which has neither markers nor checksums nor an end mark."""
    last = min(end - 8, stop - 1)
    count, room = 0, len(offsets)
    while offset <= last and count < room:
        if kind == _LITTLE:
            found, length = _unpack_little(data, offset)
        else:
            found, length = _unpack_big(data, offset)
        follower = offset + 8 + length
        if found < 1 or found < term:
            return count, offset, (_BAD_TERM if found < 1 else _FALLING)
        if length < 0:
            return count, offset, _BAD_LENGTH
        if follower > end:
            return count, offset, (_TORN if follower > size else END)
        offsets[count] = offset
        terms[count] = term = found
        count += 1
        offset = follower
    why = FULL if offset >= stop or count == room else END
    return count, offset, (_TORN if why == END and offset < end == size else why)
