"""Columns and values that requests and answers share. Counts are checked against the frame first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import Final

from penstock.binary import (
    INT32,
    INT64,
    Reader,
    encode_nullable,
)
from penstock.errors import CorruptData, InvalidValue
from penstock.model import (
    Implementation,
    KeyRange,
    Policy,
)
from penstock.protocol.version2.messages import BATCH_MAX

# --- columns -------------------------------------------------------------------------------------


def encode_payloads(payloads: Sequence[bytes]) -> bytes:
    return pack(f">{len(payloads)}I", *map(len, payloads)) + b"".join(payloads)


def decode_count(reader: Reader, unit_size: int) -> int:
    """Return a number of things that take at least ``unit_size`` bytes each, all of them in the frame."""
    offset = reader.offset
    count = reader.uint32("a count")
    if count > BATCH_MAX or count * unit_size > reader.remaining:
        raise CorruptData(
            "impossible count",
            offset=offset,
            expected=f"at most {min(BATCH_MAX, reader.remaining // unit_size)}",
            found=str(count),
        )
    return count


def decode_column(reader: Reader, count: int, letter: str, size: int) -> tuple[int, ...]:
    offset = reader.offset
    if count * size > reader.remaining:
        raise CorruptData("the frame ends inside a column", offset=offset)
    reader.offset = offset + count * size
    return unpack_from(f">{count}{letter}", reader.data, offset)


_ALIKE_MAX: Final = 4096


@lru_cache(maxsize=256)
def _alike(size: int, count: int) -> Struct:
    """Return what cuts payloads of one size in one go: many batches are of this kind."""
    return Struct(f"{size}s" * count)


def decode_payloads(reader: Reader, count: int) -> list[bytes]:
    sizes = decode_column(reader, count, "I", 4)
    if 1 < count <= _ALIKE_MAX and sizes.count(sizes[0]) == count:
        cut = _alike(sizes[0], count)
        if cut.size <= reader.remaining:
            offset = reader.offset
            reader.offset = offset + cut.size
            return list(cut.unpack_from(reader.data, offset))
    bounds = list(accumulate(sizes, initial=reader.offset))
    if bounds[-1] > reader.end:
        raise CorruptData(
            "the frame ends inside a payload",
            offset=reader.offset,
            expected=f"{bounds[-1] - reader.offset} bytes",
            found=str(reader.remaining),
        )
    reader.offset = bounds[-1]
    data = reader.data
    assert isinstance(data, bytes)
    return [data[start:end] for start, end in pairwise(bounds)]


def encode_tokens(tokens: Sequence[int]) -> bytes:
    return pack(f">I{len(tokens)}Q", len(tokens), *tokens)


def _encode_limit(limit: int | None) -> bytes:
    return INT32.pack(-1 if limit is None else limit)


def _encode_keys(keys: KeyRange) -> bytes:
    return INT64.pack(keys.lowest) + INT64.pack(keys.highest)


def encode_policy(policy: Policy) -> bytes:
    return (
        INT32.pack(policy.implementation)
        + _encode_limit(policy.size_max)
        + _encode_limit(policy.payload_size_max)
        + encode_nullable(policy.keys, _encode_keys)
    )


def decode_flags(reader: Reader, known: int) -> int:
    """Return a byte of flags, all of them known ones."""
    flags = reader.byte("flags")
    if flags & ~known:
        raise CorruptData("unknown flags", offset=reader.offset - 1, found=f"{flags:02X}")
    return flags


def decode_tokens(reader: Reader) -> tuple[int, ...]:
    return decode_column(reader, decode_count(reader, 8), "Q", 8)


def _limit(reader: Reader, what: str) -> int | None:
    limit = reader.int32(what)
    if limit < -1:
        raise InvalidValue(f"{what} is negative: {limit}")
    return None if limit == -1 else limit


def decode_policy(reader: Reader) -> Policy:
    """Return a policy. Raises ``InvalidValue`` for one that no queue can have."""
    code = reader.int32("an implementation")
    size_max = _limit(reader, "the queue size limit")
    payload_size_max = _limit(reader, "the payload size limit")
    bounds = reader.nullable(lambda: (reader.int64(), reader.int64()))
    try:
        implementation = Implementation(code)
    except ValueError:
        known = ", ".join(f"{int(one)} is {one.name.lower()}" for one in Implementation)
        raise InvalidValue(f"unknown implementation {code}; {known}") from None
    return Policy(
        implementation=implementation,
        size_max=size_max,
        payload_size_max=payload_size_max,
        keys=None if bounds is None else KeyRange(lowest=bounds[0], highest=bounds[1]),
    )
