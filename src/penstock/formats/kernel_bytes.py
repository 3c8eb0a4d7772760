"""What kernels are composed of: integers in bytes, checksums, and rows of columns.

Plain functions without a loop over records. A kernel that calls them runs interpreted as it is; ``kernel.compiled``
compiles them together with it. ``data`` is ``bytes`` or, compiled, an array of ``uint8``.

Bytes are multiplied, not shifted, into integers: a shifted byte is unsigned to numba, and mixing the signs makes the
result a float. So every function here returns a signed integer of 64 bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any


def u16(data: Any, at: Any) -> Any:
    """Return the unsigned big-endian integer in the two bytes from ``at`` on."""
    return data[at] * 0x100 + data[at + 1]


def u32(data: Any, at: Any) -> Any:
    """Return the unsigned big-endian integer in the four bytes from ``at`` on."""
    return data[at] * 0x1000000 + data[at + 1] * 0x10000 + data[at + 2] * 0x100 + data[at + 3]


def u32_little(data: Any, at: Any) -> Any:
    """Return the unsigned little-endian integer in the four bytes from ``at`` on."""
    return data[at] + data[at + 1] * 0x100 + data[at + 2] * 0x10000 + data[at + 3] * 0x1000000


def signed(value: Any) -> Any:
    """Return the signed integer with the 32 bits of ``value``."""
    return value - ((value >> 31) << 32)


def i64(data: Any, at: Any) -> Any:
    """Return the signed big-endian integer in the eight bytes from ``at`` on; of a larger unsigned one, its bits."""
    return (signed(u32(data, at)) << 32) | u32(data, at + 4)


def i64_little(data: Any, at: Any) -> Any:
    """Return the signed little-endian integer in the eight bytes from ``at`` on; of a larger unsigned one, its bits."""
    return (signed(u32_little(data, at + 4)) << 32) | u32_little(data, at)


def put(target: Any, at: Any, value: Any, size: Any) -> Any:
    """Write ``value`` as a big-endian integer of ``size`` bytes at ``at``; return where the next field begins."""
    for i in range(size):
        target[at + i] = (value >> (8 * (size - 1 - i))) & 0xFF
    return at + size


def copy(source: Any, start: Any, target: Any, at: Any, size: Any) -> Any:
    """Copy ``size`` bytes from ``start`` on to ``at``; return where the next field begins.

    Between two slices the compiler copies many bytes at once, as it would not between sums of indexes.
    """
    read = source[start : start + size]
    written = target[at : at + size]
    for i in range(size):
        written[i] = read[i]
    return at + size


def zeros_end(data: Any, start: Any, end: Any) -> Any:
    """Return where the first byte from ``start`` on stands that is not zero, or ``end``."""
    while start < end and data[start] == 0:
        start += 1
    return start


def emit(rows: Any, row: Any, values: Any) -> None:
    """Write one value into each column of a row. All ``values`` must be integers of 64 bits to numba."""
    for column in range(len(values)):
        rows[column, row] = values[column]


def crc(data: Any, start: Any, stop: Any, register: Any, t: Any) -> Any:
    """Return the register of a checksum of 32 bits, ``register`` before, behind the bytes in ``[start, stop)``.

    ``t`` is what ``crc_tables`` returns. The first byte is in the lowest bits of the register, also for a checksum that
    is defined the other way round: compare the result with the stored bytes as they follow each other.
    """
    while start + 16 <= stop:
        # Of a slice the compiler knows that no index is behind its end.
        d = data[start : start + 16]
        register = (
            t[0xF00 + ((register & 0xFF) ^ d[0])]
            ^ t[0xE00 + (((register >> 8) & 0xFF) ^ d[1])]
            ^ t[0xD00 + (((register >> 16) & 0xFF) ^ d[2])]
            ^ t[0xC00 + ((register >> 24) ^ d[3])]
            ^ t[0xB00 + d[4]]
            ^ t[0xA00 + d[5]]
            ^ t[0x900 + d[6]]
            ^ t[0x800 + d[7]]
            ^ t[0x700 + d[8]]
            ^ t[0x600 + d[9]]
            ^ t[0x500 + d[10]]
            ^ t[0x400 + d[11]]
            ^ t[0x300 + d[12]]
            ^ t[0x200 + d[13]]
            ^ t[0x100 + d[14]]
            ^ t[0x000 + d[15]]
        )
        start += 16
    while start + 4 <= stop:
        d = data[start : start + 4]
        register = (
            t[0x300 + ((register & 0xFF) ^ d[0])]
            ^ t[0x200 + (((register >> 8) & 0xFF) ^ d[1])]
            ^ t[0x100 + (((register >> 16) & 0xFF) ^ d[2])]
            ^ t[0x000 + ((register >> 24) ^ d[3])]
        )
        start += 4
    while start < stop:
        register = (register >> 8) ^ t[(register & 0xFF) ^ data[start]]
        start += 1
    return register


@cache
def crc_tables(polynomial: int, *, is_reflected: bool, interpreted: bool) -> Any:
    """Return the tables that take a checksum up to 16 bytes further at a step, one behind the other.

    A checksum whose highest bit comes first (``is_reflected`` is false) has its registers turned round byte by byte,
    here and in ``crc``: the steps of both kinds are then the same.
    """
    table: list[int] = []
    for value in range(256):
        register = value if is_reflected else value << 24
        for _ in range(8):
            if is_reflected:
                register = (register >> 1) ^ (polynomial if register & 1 else 0)
            else:
                register = (register << 1) ^ (polynomial if register & 0x80000000 else 0)
        register &= 0xFFFFFFFF
        turned = int.from_bytes(register.to_bytes(4, "big"), "little")
        table.append(register if is_reflected else turned)
    for place in range(256, 16 * 256):
        before = table[place - 256]
        table.append((before >> 8) ^ table[before & 0xFF])
    if interpreted:
        return table
    import numpy as np

    return np.array(table, dtype=np.int64)
