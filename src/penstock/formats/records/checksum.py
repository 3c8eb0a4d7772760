"""The checksum of records: CRC-32C, by the instruction of the processor (docs/formats/records.md)."""

from __future__ import annotations

from google_crc32c import extend

from penstock.binary import Bytes


def crc32c(data: Bytes, value: int = 0) -> int:
    """Return the CRC-32C of ``data``, continuing from ``value``, the checksum of the bytes before it.

    The library takes nothing but ``bytes``; other buffers are copied, at a small part of the checksum's cost.
    """
    checksum: int = extend(value, data if type(data) is bytes else bytes(data))
    return checksum
