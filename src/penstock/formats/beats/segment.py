"""A segment of Beats' disk queue, ``N.seg``: its name and its header (docs/formats/beats.md).

What stands behind the header is ``body``'s business, and what the body holds that of ``frame``. The
count of frames in a header is a hint at best: it is 0 while a segment is written and after a crash,
and may be too low. Nothing may be bounded by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from struct import Struct
from typing import Final

from penstock.binary import Bytes
from penstock.errors import InvalidValue, TruncatedData, UnsupportedVersion
from penstock.model import UINT64_MAX

STATE_NAME: Final = "state.dat"
VERSION_MAX: Final = 2

COUNT_OFFSET: Final = 4
"""Where a closed segment's header has its count; versions 1 and 2."""

IV_SIZE: Final = 16
KEY_SIZE: Final = 16

UINT32: Final = Struct("<I")
UINT32_MAX: Final = 2**32 - 1

_SUFFIX: Final = "seg"
_NUMBER_DIGITS_MAX: Final = 20  # of a UInt64; longer ones need not be parsed to be refused
_FORMS: Final = (Struct("<I"), Struct("<II"), Struct("<III"))


class Options(IntFlag):
    """What is done to a body, and what its payloads are; version 2 only."""

    ENCRYPTED = 1
    COMPRESSED = 2
    PROTOBUF = 4


class PayloadFormat(StrEnum):
    """What the events of a segment are written as."""

    JSON = "json"
    CBOR = "cbor"
    PROTOBUF = "protobuf"


NO_OPTIONS: Final = Options(0)
# An integer: what a flag's complement is depends on the bits that its class knows.
_OPTIONS_KNOWN: Final = int(Options.ENCRYPTED | Options.COMPRESSED | Options.PROTOBUF)


SERIALIZATIONS: Final = (PayloadFormat.CBOR, PayloadFormat.PROTOBUF)
"""What the payloads of version 2 can be."""


def segment_options(*, serialization: str, compress: bool, encrypt: bool) -> Options:
    """Return the options of segments that are to be written. Raises ``InvalidValue``."""
    if serialization not in SERIALIZATIONS:
        raise InvalidValue(
            f"serialization is one of {', '.join(SERIALIZATIONS)}, not {serialization!r}"
        )
    options = Options.PROTOBUF if serialization == PayloadFormat.PROTOBUF else NO_OPTIONS
    if compress:
        options |= Options.COMPRESSED
    if encrypt:
        options |= Options.ENCRYPTED
    return options


@dataclass(frozen=True, slots=True)
class Header:
    """The first 4, 8 or 12 bytes of a segment."""

    version: int
    count: int  # of frames, when the segment was closed; 0 also where nobody counted
    options: Options = NO_OPTIONS

    def __post_init__(self) -> None:
        if not 0 <= self.version <= VERSION_MAX:
            raise InvalidValue(f"a segment of version {self.version}; there are 0 to {VERSION_MAX}")
        if not 0 <= self.count <= (UINT32_MAX if self.version else 0):
            raise InvalidValue(f"a segment of version {self.version} cannot count {self.count}")
        if int(self.options) & ~(_OPTIONS_KNOWN if self.version == VERSION_MAX else 0):
            raise InvalidValue(
                f"a segment of version {self.version} cannot have the options {int(self.options)}"
            )

    @property
    def size(self) -> int:
        """The bytes of the header; where logical offsets of the first frame start."""
        return _FORMS[self.version].size

    @property
    def body_start(self) -> int:
        """Where in the file the body begins, the initialization vector passed over."""
        return self.size + (IV_SIZE if self.options & Options.ENCRYPTED else 0)

    @property
    def payload_format(self) -> PayloadFormat:
        """What the payloads are; a version 1 that says CBOR may hold JSON: see ``decode_event``."""
        if self.version == 0:
            return PayloadFormat.JSON
        return PayloadFormat.PROTOBUF if self.options & Options.PROTOBUF else PayloadFormat.CBOR


def encode_header(header: Header) -> bytes:
    """Return the header's bytes."""
    fields = (header.version, header.count, int(header.options))
    return _FORMS[header.version].pack(*fields[: header.version + 1])


def decode_header(data: Bytes) -> Header:
    """Return the header that ``data`` begins with.

    Raises ``TruncatedData``; ``UnsupportedVersion`` for a version or an option that we do not know.
    """
    if len(data) < UINT32.size:
        raise _truncated(len(data), UINT32.size)
    version: int = UINT32.unpack_from(data)[0]
    if version > VERSION_MAX:
        raise UnsupportedVersion(
            "a segment of a version that we do not know",
            offset=0,
            expected=f"0 to {VERSION_MAX}",
            found=str(version),
        )
    form = _FORMS[version]
    if len(data) < form.size:
        raise _truncated(len(data), form.size)
    _, count, options = (*form.unpack_from(data), 0, 0)[:3]
    if options & ~_OPTIONS_KNOWN:
        raise UnsupportedVersion(
            "a segment with options that we do not know",
            offset=COUNT_OFFSET + UINT32.size,
            expected=f"bits of {_OPTIONS_KNOWN:#x}",
            found=f"{options:#x}",
        )
    return Header(version, count, Options(options))


def segment_name(number: int) -> str:
    """Return the file name of a segment; no leading zeros, as Beats opens what it counted."""
    assert 0 <= number <= UINT64_MAX
    return f"{number}.{_SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the number of the segment that has this file name; ``None``: it is no segment.

    ``007.SEG`` has the number 7. Beats takes it for ``7.seg``, so two names may have one number.
    """
    digits, dot, suffix = name.partition(".")
    if not (dot and name.isascii() and digits.isdigit() and suffix.lower() == _SUFFIX):
        return None
    digits = digits.lstrip("0") or "0"
    number = int(digits) if len(digits) <= _NUMBER_DIGITS_MAX else UINT64_MAX + 1
    return number if number <= UINT64_MAX else None


def _truncated(found: int, expected: int) -> TruncatedData:
    return TruncatedData(
        "the bytes end inside a segment's header",
        offset=0,
        expected=f"{expected} bytes",
        found=str(found),
    )
