"""What the sender of a frame can make us reserve: never more than its frame pays for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from penstock import binary
from penstock.errors import BadData, InvalidValue
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import BATCH_MAX, Kind
from protocol.version2_samples import ANSWERS, REQUESTS
from support.damage import flipped, overwritten
from support.report import report

HOSTILE = [
    bytes.fromhex(text)
    for text in ("FF FF FF FF", "7F FF FF FF", "80 00 00 00", "00 01 00 01", "00 01 00 00")
]

# What any refusal costs: an exception, its words, a traceback.
REFUSAL_SIZE = 16 * 1024

# Objects for a number or a payload of a few bytes; measured below for whole batches.
RATIO_MAX = 16

BODIES = [
    *((v2.decode_request, kind, bytes.fromhex(text)) for _, kind, text in REQUESTS),
    *((v2.decode_answer, kind, bytes.fromhex(text)) for _, kind, text in ANSWERS),
]


@contextmanager
def tracing() -> Iterator[None]:
    binary._names.clear()  # its growth belongs to whoever came before
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def peak_of(decode: object, kind: int, body: bytes) -> int:
    """Return how many bytes were reserved at most while a body was decoded or refused."""
    assert callable(decode)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    with suppress(BadData, InvalidValue):
        decode(kind, body)
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize(("decode", "kind", "body"), BODIES)
def test_no_length_or_count_reserves_more_than_the_frame_pays_for(
    decode: object, kind: Kind, body: bytes
) -> None:
    """Every four bytes of every message become a hostile number: all lengths and counts are among them."""
    with tracing():
        for value in HOSTILE:
            for offset in range(max(1, len(body) - 3)):
                bad = overwritten(body, offset, value)
                assert peak_of(decode, kind, bad) < REFUSAL_SIZE + RATIO_MAX * len(bad), offset


@pytest.mark.parametrize(("decode", "kind", "body"), BODIES)
def test_no_turned_bit_reserves_more_than_the_frame_pays_for(
    decode: object, kind: Kind, body: bytes
) -> None:
    with tracing():
        for bit in range(8 * len(body)):
            bad = flipped(body, bit)
            assert peak_of(decode, kind, bad) < REFUSAL_SIZE + RATIO_MAX * len(bad), bit


def columns(head: str, sizes: tuple[int, ...], *, count: int = BATCH_MAX) -> bytes:
    """Return a batch whose columns hold the largest values that are allowed, and whose payloads are empty."""
    parts = [bytes.fromhex(head), count.to_bytes(4, "big")]
    parts += [(b"\x7f" + b"\xff" * (size - 1)) * count for size in sizes]
    return b"".join(parts)


LARGEST = [
    (v2.decode_request, Kind.ENQUEUE, columns("00 00", (8,)) + bytes(4 * BATCH_MAX)),
    (
        v2.decode_request,
        Kind.ENQUEUE,
        columns("00 00", (8,)) + b"\0\0\0\2" * BATCH_MAX + b"hi" * BATCH_MAX,
    ),
    (v2.decode_request, Kind.ACK, columns("", (8,))),
    (v2.decode_request, Kind.NACK, columns("00", (8,))),
    (v2.decode_answer, Kind.DELIVERED, columns("00" * 12, (8, 8, 4)) + bytes(4 * BATCH_MAX)),
    (v2.decode_answer, Kind.ENTRIES, columns("00" * 17, (8,)) + bytes(4 * BATCH_MAX)),
    (
        v2.decode_answer,
        Kind.ENQUEUED,
        columns("", ()) + (b"\0" * 4 + b"\1" + b"\3" * 8) * BATCH_MAX,
    ),
    (
        v2.decode_answer,
        Kind.CLUSTER_INFO,
        bytes(50) + columns("", ()) + (b"\x7f" + bytes(13)) * BATCH_MAX,
    ),
    (v2.decode_answer, Kind.NODE_INFO, bytes(41 + 4) + columns("", ()) + bytes(4 * BATCH_MAX)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("decode", "kind", "body"), LARGEST)
def test_the_largest_batch_costs_a_small_multiple_of_its_frame(
    decode: object, kind: Kind, body: bytes
) -> None:
    with tracing():
        peak = peak_of(decode, kind, body)
    assert peak > len(body) / 2, "this body was refused"
    assert peak < RATIO_MAX * len(body)
    report(
        f"protocol: {kind.name} of {BATCH_MAX:,} in {len(body):,} bytes decodes within"
        f" {peak / len(body):.1f} times that"
    )


def test_a_change_with_too_many_steps_is_refused_before_they_are_built() -> None:
    body = columns("", ()) + (b"\0\0\0\0\1" + bytes(4)) * BATCH_MAX
    with tracing():
        assert peak_of(v2.decode_request, Kind.CHANGE_MEMBERS, body) < REFUSAL_SIZE
        with pytest.raises(InvalidValue, match="1 to 64 steps, not 65536"):
            v2.decode_request(Kind.CHANGE_MEMBERS, body)


@pytest.mark.slow
def test_names_that_nobody_has_do_not_pile_up() -> None:
    with tracing():
        for number in range(70_000):
            v2.decode_request(Kind.PURGE, b"\x06" + f"{number:06}".encode())
        assert len(binary._names) <= 65_536
