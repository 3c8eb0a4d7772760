"""The 64 bytes at the start of every log segment and snapshot, and the names of these files (docs/formats/records.md)."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.binary import Bytes, hexadecimal
from penstock.errors import BadRecord, TruncatedData, UnknownFormat, UnsupportedVersion
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.settings import CLUSTER_ID_SIZE
from penstock.model import INT64_MAX

FILE_HEADER_SIZE: Final = 64
MAGIC: Final = b"PENSTOCK"
VERSION: Final = 1
SEGMENT_SIZE: Final = 64 * 2**20
"""The usual size of a segment."""

LOG_SUFFIX: Final = ".log"
SNAPSHOT_SUFFIX: Final = ".snap"

_FIELDS: Final = Struct("<8sIIQ16s20s")  # magic, version, 0, first index, cluster id, 0
_CHECKSUM: Final = Struct("<I")
_ZEROS: Final = bytes(20)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """Which entries a file begins with, and of which cluster. Of a snapshot: the last entry that it covers."""

    first_index: int
    cluster_id: bytes

    def __post_init__(self) -> None:
        assert 0 <= self.first_index <= INT64_MAX
        assert len(self.cluster_id) == CLUSTER_ID_SIZE


def encode_file_header(header: FileHeader) -> bytes:
    """Return the first 64 bytes of a file."""
    fields = _FIELDS.pack(MAGIC, VERSION, 0, header.first_index, header.cluster_id, _ZEROS)
    return fields + _CHECKSUM.pack(crc32c(fields))


def decode_file_header(data: Bytes) -> FileHeader:
    """Check the start of a file. Raises ``BadData``."""
    start = bytes(data[:FILE_HEADER_SIZE])
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise UnknownFormat(
            "not a file of generation 4",
            offset=0,
            expected=hexadecimal(MAGIC),
            found=hexadecimal(start[: len(MAGIC)]),
        )
    if len(start) < FILE_HEADER_SIZE:
        raise TruncatedData(
            "the file ends inside its header",
            offset=len(start),
            expected=f"{FILE_HEADER_SIZE} bytes",
            found=str(len(start)),
        )
    _, version, zero, first_index, cluster_id, zeros = _FIELDS.unpack_from(start)
    (stored,) = _CHECKSUM.unpack_from(start, _FIELDS.size)
    actual = crc32c(start[: _FIELDS.size])
    if actual != stored:
        raise BadRecord(
            "checksum of the file header does not match",
            offset=_FIELDS.size,
            expected=f"{actual:08X}",
            found=f"{stored:08X}",
        )
    if version != VERSION:
        raise UnsupportedVersion(
            "unsupported version of a file of generation 4",
            offset=8,
            expected=str(VERSION),
            found=str(version),
        )
    if zero or zeros != _ZEROS or first_index > INT64_MAX:
        raise BadRecord("a reserved field of the file header is not 0", offset=12)
    return FileHeader(first_index=first_index, cluster_id=cluster_id)


def file_name(index: int, suffix: str) -> str:
    """Return the name of a segment by its first index, or of a snapshot by its last."""
    return f"{index:020}{suffix}"


def parse_file_name(name: str, suffix: str) -> int | None:
    """Return the index in the name of a file, or ``None`` if it is not such a name."""
    digits = name.removesuffix(suffix)
    if len(digits) != 20 or name == digits or not (digits.isascii() and digits.isdigit()):
        return None
    index = int(digits)
    return index if index <= INT64_MAX else None
