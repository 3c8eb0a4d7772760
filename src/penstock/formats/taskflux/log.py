"""The log: framing of its records in every generation (docs/formats/log.md).

This module owns the layout of a log file and of a record; what a record's payload means is in
``deltas`` and ``commands``. ``walk`` checks record after record and stops at the first that is not
whole, as recovery must; ``log_scan`` goes on behind damage, one by one or in columns.

Checksums cover a record's payload only, so marker, term and length are also checked against
what they can be: a known marker, a term from 1 on that does not fall, a length that fits the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import repeat
from struct import Struct, pack
from typing import Final, NamedTuple

from penstock.binary import Bytes, checksum, checksum_of_one, hexadecimal
from penstock.errors import (
    CannotConvert,
    CorruptData,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
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
    stop: Status | None  # None: the end marker, the end of the file, or more data is needed


def walk(
    data: Bytes, layout: LogLayout, *, offset: int, end: int, term: int = 0, size: int | None = None
) -> Walk:
    """Check records from ``offset`` on, up to ``end``, and stop at the first that is not whole.

    ``term`` is that of the record before. ``end`` is where the data ends; ``size`` says where
    the file does, if that is later: then a record that runs past ``end`` is left for the next call.
    """
    size = end if size is None else size
    if not layout.is_marked:
        return _walk_unmarked(data, layout, offset, end, term, size)
    offsets: list[int] = []
    terms: list[int] = []
    unpack, header_size = layout.record_header.unpack_from, layout.record_header.size
    add_offset, add_term = offsets.append, terms.append
    last_header = end - header_size
    while offset <= last_header:
        marker, found, stored, length = unpack(data, offset)
        if marker != RECORD_MARKER:
            stop = None if marker == END_MARKER else Status.BAD_MARKER
            return Walk(offsets, terms, offset, stop)
        body = offset + header_size
        follower = body + length
        if length < 0:
            return Walk(offsets, terms, offset, Status.BAD_LENGTH)
        if follower > end:
            return Walk(offsets, terms, offset, Status.TORN if follower > size else None)
        if checksum(data[body:follower]) != stored:
            return Walk(offsets, terms, offset, Status.BAD_CHECKSUM)
        if found < term or found < 1:
            stop = Status.BAD_TERM if found < 1 else Status.FALLING_TERM
            return Walk(offsets, terms, offset, stop)
        add_offset(offset)
        add_term(found)
        term = found
        offset = follower
    rest = bytes(data[offset : min(end, offset + 4)])
    if end < size or rest in (b"", END_MARKER):
        stop = None
    elif rest in (RECORD_MARKER[: len(rest)], END_MARKER[: len(rest)]):
        stop = Status.TORN
    else:
        stop = Status.BAD_MARKER
    return Walk(offsets, terms, offset, stop)


def _walk_unmarked(
    data: Bytes, layout: LogLayout, offset: int, end: int, term: int, size: int
) -> Walk:
    """Walk over generation 1, which has neither markers nor checksums nor an end mark."""
    offsets: list[int] = []
    terms: list[int] = []
    header = layout.record_header
    stop: Status | None = None
    while offset < end:
        if offset + header.size > end:
            stop = Status.TORN if end == size else None
            break
        found, length = header.unpack_from(data, offset)
        follower = offset + header.size + length
        if found < 1 or found < term:
            stop = Status.BAD_TERM if found < 1 else Status.FALLING_TERM
            break
        if length < 0:
            stop = Status.BAD_LENGTH
            break
        if follower > end:
            stop = Status.TORN if follower > size else None
            break
        offsets.append(offset)
        terms.append(found)
        term, offset = found, follower
    return Walk(offsets, terms, offset, stop)
