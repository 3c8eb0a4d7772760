"""Frames of version 2: any split gives the same frames, and no sender costs more than its frame."""

from __future__ import annotations

import contextlib
import itertools
import sys
import tracemalloc
from typing import Any, Self

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.protocol.frames import (
    FRAME_SIZE_MAX,
    Frame,
    FrameReader,
    OversizedFrame,
    encode_frame,
)
from protocol.version2_strategies import frames, joined

PING = encode_frame(0x48, 1, b"")
LIMIT = 64
IMPOSSIBLE = [0, 1, 4, LIMIT + 1, 2**31 - 1, 2**31, 2**32 - 1]


def pieces_of(data: bytes, places: list[int]) -> list[bytes]:
    """Return ``data`` cut at these places, which are taken around its end."""
    bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def received(reader: FrameReader, pieces: list[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in reader.receive(piece)]


# --- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ((0x48, 1, b""), "00 00 00 05 48 00 00 00 01"),
        ((0x41, 2**32 - 1, b"hi"), "00 00 00 07 41 FF FF FF FF 68 69"),
        ((255, 0, bytes(300)), "00 00 01 31 FF 00 00 00 00" + " 00" * 300),
    ],
)
def test_a_frame_has_exactly_these_bytes(frame: Frame, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_frame(*frame) == data
    assert FrameReader().receive(data) == [frame]


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_split_of_a_stream_gives_the_same_frames(sent: list[Frame], places: list[int]) -> None:
    reader = FrameReader()
    assert received(reader, pieces_of(joined(sent), places)) == sent
    assert reader.held == 0


def test_every_split_in_two_and_in_three_gives_the_same_frames() -> None:
    sent = [(0x48, 1, b""), (0x41, 2, b"abc"), (0x48, 3, b""), (0x45, 4, b"0123456789")]
    data = joined(sent)
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            pieces = [data[:first], data[first:second], data[second:]]
            assert received(FrameReader(), pieces) == sent, (first, second)


def test_bytes_that_come_one_by_one_give_the_same_frames() -> None:
    sent = [(0x48, 1, b""), (0x41, 2, b"abc"), (0x48, 3, b"")]
    pieces = [bytes((byte,)) for byte in joined(sent)]
    assert received(FrameReader(), pieces) == sent


def test_no_bytes_change_nothing_at_any_moment() -> None:
    assert FrameReader().receive(b"") == []
    for size in range(len(PING)):
        fresh = FrameReader()
        fresh.receive(PING[:size])
        assert fresh.receive(b"") == []
        assert fresh.held == size
        assert fresh.receive(PING[size:]) == [(0x48, 1, b"")]


def test_a_body_is_bytes_whether_it_came_whole_or_in_pieces() -> None:
    data = encode_frame(0x41, 1, b"abc")
    for size in range(len(data) + 1):
        for _, _, body in received(FrameReader(), [data[:size], data[size:]]):
            assert type(body) is bytes


# --- lengths that cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize("size", IMPOSSIBLE)
@pytest.mark.parametrize("before", [b"", PING, PING + encode_frame(0x41, 2, b"abc")])
def test_an_impossible_length_is_refused_as_soon_as_its_four_bytes_are_there(
    size: int, before: bytes
) -> None:
    length = size.to_bytes(4, "big")
    for cut in range(4):  # one byte by one from here on
        reader = FrameReader(LIMIT)
        reader.receive(before + length[:cut])
        for byte in length[cut:3]:
            assert reader.receive(bytes((byte,))) == []
        with pytest.raises(CorruptData):
            reader.receive(length[3:])


@pytest.mark.parametrize("cut", range(4 + LIMIT + 2))
def test_a_frame_above_the_limit_does_not_slip_through_when_it_comes_whole(cut: int) -> None:
    data = encode_frame(0x41, 1, bytes(LIMIT - 4))
    reader = FrameReader(LIMIT)
    with pytest.raises(CorruptData):
        received(reader, [data[:cut], data[cut:]])


@pytest.mark.parametrize("size", [LIMIT + 1, LIMIT + 2, 200])
def test_a_frame_above_the_limit_can_be_dropped_at_any_split(size: int) -> None:
    """Frames around it are read as if it were not there."""
    before, behind = (0x48, 1, b""), (0x41, 3, b"abc")
    data = encode_frame(*before) + encode_frame(0x45, 2, bytes(size - 5)) + encode_frame(*behind)
    assert size <= 200
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1, 7):
            reader = FrameReader(LIMIT, excess_size_max=200)
            pieces = [data[:first], data[first:second], data[second:]]
            assert received(reader, pieces) == [before, behind], (first, second)
            assert reader.oversized == [OversizedFrame(request=2, size=size)]
            assert (reader.held, reader.is_draining) == (0, False)


def test_a_frame_that_is_dropped_is_not_held() -> None:
    reader = FrameReader(LIMIT, excess_size_max=2**30)
    reader.receive(encode_frame(0x45, 2, bytes(1000))[:9].replace(b"\x03\xed", b"\xff\xff"))
    for _ in range(50):
        assert reader.receive(bytes(1000)) == []
        assert reader.is_draining
        assert reader.held == 9


def test_a_frame_above_what_is_dropped_is_refused() -> None:
    with pytest.raises(CorruptData):
        FrameReader(LIMIT, excess_size_max=200).receive((201).to_bytes(4, "big"))


def test_a_frame_just_at_the_limit_passes() -> None:
    data = encode_frame(0x41, 1, bytes(LIMIT - 5))
    assert len(FrameReader(LIMIT).receive(data)) == 1
    assert FrameReader(LIMIT).receive(data[:-1]) == []


def test_the_default_limit_is_the_one_of_the_page() -> None:
    reader = FrameReader()
    assert reader.receive(FRAME_SIZE_MAX.to_bytes(4, "big")) == []
    with pytest.raises(CorruptData):
        FrameReader().receive((FRAME_SIZE_MAX + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("before", [b"", PING])
def test_what_follows_an_impossible_length_is_never_taken_for_a_frame(before: bytes) -> None:
    reader = FrameReader(LIMIT)
    with pytest.raises(CorruptData):
        reader.receive(before + b"\xff\xff\xff\xff" + PING)
    for data in (PING, b"", PING * 100):
        with pytest.raises(CorruptData):
            reader.receive(data)
        assert reader.held <= 4


# --- what a sender can cost ----------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=200), max_size=20),
    st.lists(frames, max_size=4),
    st.integers(5, 100),
)
@example([b"\0\0\0\x05H\0\0\0"], [], 5)
def test_never_more_than_one_frame_is_held(
    garbage: list[bytes], good: list[Frame], limit: int
) -> None:
    reader = FrameReader(limit)
    for piece in [joined(good), *garbage]:
        with contextlib.suppress(CorruptData):
            reader.receive(piece)
        assert reader.held < 4 + limit


class Counting(bytearray):
    """A buffer that counts the bytes that go into it."""

    added = 0

    def __iadd__(self, more: Any) -> Self:  # type: ignore[misc]
        self.added += len(more)
        self.extend(more)
        return self


@pytest.mark.slow
def test_a_frame_of_a_mebibyte_in_single_bytes_costs_a_constant_amount_of_work_for_each() -> None:
    data = encode_frame(0x45, 1, bytes(2**20))
    reader = FrameReader()
    begun = reader._begun = Counting()
    calls = moved = 0
    capacity = sys.getsizeof(begun)

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    found: list[Frame] = []
    sys.setprofile(count)
    try:
        for place in range(len(data)):
            found += reader.receive(data[place : place + 1])
            if (
                sys.getsizeof(begun) != capacity
            ):  # the buffer may have moved, with all that is in it
                capacity = sys.getsizeof(begun)
                moved += len(begun)
    finally:
        sys.setprofile(None)
    assert found == [(0x45, 1, bytes(2**20))]
    assert begun.added == len(data)  # every byte went in once, and out once at the end
    assert moved < 10 * len(data)  # it grows by a ratio, so the sum of all moves is linear
    assert calls < 20 * len(data)


@pytest.mark.slow
@pytest.mark.parametrize("piece_size", [1, 2, 3, 17])
def test_a_sender_of_tiny_pieces_makes_nobody_keep_more_than_what_it_sent(piece_size: int) -> None:
    data = encode_frame(0x45, 1, bytes(2**18))[:-1]
    reader = FrameReader()
    tracemalloc.start()
    try:
        for start in range(0, len(data), piece_size):
            reader.receive(data[start : start + piece_size])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.held == len(data)
    assert kept < 1.5 * len(data)


def test_an_announced_length_costs_nothing_before_its_bytes_come() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader()
        reader.receive(FRAME_SIZE_MAX.to_bytes(4, "big") + b"E")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.held == 5
    assert peak < 4096


def test_a_whole_frame_leaves_nothing_behind_in_the_reader() -> None:
    data = encode_frame(0x45, 1, bytes(2**20))
    reader = FrameReader()
    reader.receive(data[: 2**19])
    reader.receive(data[2**19 :])
    assert reader.held == 0
    assert sys.getsizeof(reader._begun) < 4096
