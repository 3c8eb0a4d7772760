"""Damage to bytes: single bits for exhaustive tests, and random damage by seed.

A bit is known by its number in the file: ``8 * offset + place``, place 0 being the lowest of a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

from penstock.formats.taskflux.log import (
    RECORD_MARKER,
    LogLayout,
    encode_header,
    encode_record,
)


def flipped(data: bytes, bit: int) -> bytes:
    """Return ``data`` with one bit turned."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def bits(first: int, end: int) -> set[int]:
    """Return the bits of the bytes ``first`` to ``end``."""
    return set(range(8 * first, 8 * end))


def unnoticed(data: bytes, notices: Callable[[bytes], bool]) -> set[int]:
    """Return every bit of ``data`` that can be turned without being noticed."""
    return {bit for bit in range(8 * len(data)) if not notices(flipped(data, bit))}


def turns_into(data: bytes, first: int, end: int, allowed: Callable[[bytes], bool]) -> set[int]:
    """Return the bits of the field ``first`` to ``end`` whose turn gives a value that is allowed."""
    return {bit for bit in bits(first, end) if allowed(flipped(data, bit)[first:end])}


def name_bits(data: bytes, first: int, end: int) -> set[int]:
    """Return the bits of a name that turn one allowed character into another."""
    return turns_into(data, first, end, lambda raw: all(33 <= byte <= 126 for byte in raw))


def number(raw: bytes) -> int:
    """Return a big-endian integer with its sign."""
    return int.from_bytes(raw, "big", signed=True)


def cuts(data: bytes) -> Iterator[bytes]:
    """Yield every true prefix of ``data``, the empty one included."""
    for size in range(len(data)):
        yield data[:size]


# --- by seed -------------------------------------------------------------------------------------


def random_payload(random: Random, layout: LogLayout) -> bytes:
    """Return a payload that often holds markers, whole records, or a part of one."""
    parts = []
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        kind = random.randrange(6)
        if kind == 0:
            parts.append(RECORD_MARKER)
        elif kind == 1:
            parts.append(bytes(random.randrange(24)))
        elif kind <= 3:
            record = encode_record(
                layout, term=random.randint(1, 9), payload=random.randbytes(random.randrange(12))
            )
            parts.append(record[: random.choice((len(record), len(record), 17))])
        else:
            parts.append(random.randbytes(random.randrange(40)))
    return b"".join(parts)


def random_log(random: Random, layout: LogLayout, *, records: int) -> bytes:
    """Return a log whose terms mostly rise, with zeros behind it."""
    parts = [encode_header(layout)]
    term = 1
    for _ in range(records):
        term = max(1, term + random.choice((0, 0, 0, 0, 1, 1, 2, -1)))
        record = encode_record(layout, term=term, payload=random_payload(random, layout))
        if random.random() < 0.05:  # a record whose checksum is right and whose term cannot be
            at = layout.is_marked * 4
            record = overwritten(record, at, random.choice((bytes(4), b"\xff" * 4)))
        parts.append(record)
    tail = random.choice((0, 3, 4, 100)) if layout.is_marked else 0
    return b"".join(parts) + bytes(tail)


def random_damage(random: Random, data: bytes, *, start: int) -> bytes:
    """Return ``data`` with up to three kinds of damage behind ``start``."""
    changed = bytearray(data)
    for _ in range(random.randrange(4)):
        if len(changed) <= start:
            break
        at = random.randrange(start, len(changed))
        match random.randrange(6):
            case 0 | 1:
                changed[at] ^= 1 << random.randrange(8)
            case 2:
                del changed[at:]
            case 3:
                end = min(len(changed), at + 512)  # a sector
                changed[at:end] = bytes(end - at)
            case 4:
                changed[at:at] = random.randbytes(random.randrange(1, 40))
            case _:
                end = min(len(changed), at + random.randrange(1, 24))
                changed[at:end] = bytes(end - at)
    return bytes(changed)


def overwritten(data: bytes, offset: int, value: bytes) -> bytes:
    """Return ``data`` with ``value`` written at ``offset``."""
    return data[:offset] + value + data[offset + len(value) :]


def all_of(parts: Iterable[set[int]]) -> set[int]:
    """Return the union of sets of bits."""
    return set().union(*parts)
