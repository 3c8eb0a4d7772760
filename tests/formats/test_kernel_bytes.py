"""The parts of kernels: the same answers interpreted and compiled, and those of the standard library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from penstock.binary import CHECKSUM_START, checksum
from penstock.formats import kernel_bytes
from penstock.formats.kernel import compiled
from penstock.formats.kernel_bytes import crc, crc_tables

GOLDEN = bytes.fromhex(
    "00 01 7F 80 FF FE 80 00 00 00 12 34 56 78 9A BC DE F0 FF FF FF FF FF FF FF FF"
)
READERS = {"u16": ">H", "u32": ">I", "u32_little": "<I", "i64": ">q", "i64_little": "<q"}
MPEG_2, IEEE = 0x104C11DB7, 0xEDB88320
LENGTHS = (0, 1, 3, 4, 5, 15, 16, 17, 31, 36, 1000)


def either(name: str, *, interpreted: bool) -> Callable[..., Any]:
    part: Callable[..., Any] = getattr(kernel_bytes, name)
    return part if interpreted else compiled(part)


@pytest.mark.parametrize("interpreted", [True, False])
@pytest.mark.parametrize("name", READERS)
def test_integers_are_those_of_struct(name: str, interpreted: bool) -> None:
    form = struct.Struct(READERS[name])
    data: Any = GOLDEN if interpreted else np.frombuffer(GOLDEN, dtype=np.uint8)
    for at in range(len(GOLDEN) - form.size + 1):
        found = either(name, interpreted=interpreted)(data, at)
        assert (type(found), found) == (int, form.unpack_from(GOLDEN, at)[0])


@pytest.mark.parametrize("interpreted", [True, False])
@pytest.mark.parametrize("value", [0, 1, -1, 0x1234, -(2**63), 2**63 - 1])
def test_a_number_is_put_as_struct_packs_it(value: int, interpreted: bool) -> None:
    target = np.zeros(10, dtype=np.uint8)
    assert either("put", interpreted=interpreted)(target, 1, value, 8) == 9
    assert target.tobytes() == b"\0" + struct.pack(">q", value) + b"\0"


@pytest.mark.parametrize("interpreted", [True, False])
def test_bytes_are_copied_to_where_the_next_field_begins(interpreted: bool) -> None:
    source, target = np.frombuffer(GOLDEN, dtype=np.uint8), np.zeros(8, dtype=np.uint8)
    assert either("copy", interpreted=interpreted)(source, 2, target, 1, 5) == 6
    assert target.tobytes() == b"\0" + GOLDEN[2:7] + b"\0\0"


@pytest.mark.parametrize("interpreted", [True, False])
@pytest.mark.parametrize(("data", "end"), [(b"", 0), (b"\0\0\0", 3), (b"\0\0\1\0", 2), (b"\1", 0)])
def test_zeros_end_at_the_first_other_byte(data: bytes, end: int, interpreted: bool) -> None:
    source: Any = data if interpreted else np.frombuffer(data, dtype=np.uint8)
    assert either("zeros_end", interpreted=interpreted)(source, 0, len(data)) == end


@pytest.mark.parametrize("interpreted", [True, False])
def test_a_row_gets_a_value_in_each_column(interpreted: bool) -> None:
    rows = np.zeros((3, 2), dtype=np.int64)
    either("emit", interpreted=interpreted)(rows, 1, (7, -8, 9))
    assert rows.tolist() == [[0, 7], [0, -8], [0, 9]]


@pytest.mark.parametrize("interpreted", [True, False])
def test_checksums_are_those_of_zlib_and_of_our_own_files(interpreted: bool) -> None:
    """Also when they go on from where another piece ended."""
    code = either("crc", interpreted=interpreted)
    ieee = crc_tables(IEEE, is_reflected=True, interpreted=interpreted)
    mpeg_2 = crc_tables(MPEG_2, is_reflected=False, interpreted=interpreted)
    for length in LENGTHS:
        data = Random(length).randbytes(length)
        source: Any = data if interpreted else np.frombuffer(data, dtype=np.uint8)
        middle = length // 3
        begun = code(source, 0, middle, CHECKSUM_START, ieee)
        assert code(source, middle, length, begun, ieee) ^ CHECKSUM_START == zlib.crc32(data)
        found = code(source, 0, length, CHECKSUM_START, mpeg_2)
        assert int(found).to_bytes(4, "little") == checksum(data).to_bytes(4, "big")


def test_parts_take_the_buffers_that_plain_readers_are_given() -> None:
    tables = crc_tables(IEEE, is_reflected=True, interpreted=True)
    assert {
        crc(kind(GOLDEN), 0, len(GOLDEN), CHECKSUM_START, tables)
        for kind in (bytes, bytearray, memoryview)
    } == {zlib.crc32(GOLDEN) ^ CHECKSUM_START}
