"""Frames: written, read whole and in pieces, and what is left of them when they are damaged."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from random import Random
from struct import pack, unpack_from
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidValue
from penstock.formats.beats import frame as frame_module
from penstock.formats.beats.frame import (
    DAMAGE_DATA_MAX,
    FRAME_MAX,
    FRAME_MIN,
    FRAMING,
    BadStretch,
    Frame,
    FrameReader,
    StretchKind,
    encode_frame,
    encode_frames,
    read_frames,
)
from support.damage import cuts, flipped

OFFSET = 12

PAYLOADS = st.binary(min_size=1, max_size=60)


def naive(data: bytes, offset: int) -> Iterator[tuple[str, int, int, int]]:
    """The rules said once more, without a thought for speed: kind, offset, size and index."""

    def length(at: int) -> int:
        size: int = unpack_from("<I", data, at)[0] if at + 4 <= len(data) else 0
        return size if FRAME_MIN <= size <= min(FRAME_MAX, len(data) - at) else 0

    def is_right(at: int) -> bool:
        end = at + length(at)
        return bool(length(at)) and data[end - 8 : end - 4] == pack("<I", crc32(data[at : end - 8]))

    def agrees(at: int) -> bool:
        end = at + length(at)
        return bool(length(at)) and data[end - 4 : end] == data[at : at + 4]

    at = index = 0
    while at < len(data):
        if is_right(at) or agrees(at):
            yield (
                ("frame" if not is_right(at) else "good" if agrees(at) else "odd"),
                (offset + at),
                length(at),
                index,
            )
            at, index = at + length(at), index + 1
        else:
            places = range(at + 1, len(data))
            behind = next((q for q in places if is_right(q) and agrees(q)), None)
            end = len(data) if behind is None else behind
            yield "tail" if behind is None else "gap", offset + at, end - at, index
            at = end


def places(found: Iterator[Frame | BadStretch] | list[Frame | BadStretch]) -> list[tuple[str, int, int, int]]:  # fmt: skip
    kinds = {True: "good", False: "odd"}
    return [
        (
            str(it.kind) if isinstance(it, BadStretch) else kinds[it.warning is None],
            it.offset,
            it.size,
            it.index,
        )
        for it in found
    ]


def fed(data: bytes, sizes: Iterator[int], *, index: int = 0) -> list[Frame | BadStretch]:
    """Read ``data`` in pieces."""
    reader = FrameReader(OFFSET, index=index)
    found: list[Frame | BadStretch] = []
    at = 0
    while at < len(data):
        size = next(sizes)
        for it in reader.feed(data[at : at + size], is_last=False):
            found.append(it)
            assert reader.offset == it.offset + it.size
        at += size
    found += reader.feed(b"", is_last=True)
    assert reader.offset == OFFSET + len(data)
    return found


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Streams of frames, of what looks like frames, and of what does not."""
    piece = st.one_of(
        PAYLOADS.map(encode_frame),
        PAYLOADS.map(encode_frame),
        # A frame within a frame: whoever searches in its payload finds one.
        PAYLOADS.map(lambda payload: encode_frame(b"<" + encode_frame(payload) + b">")),
        st.tuples(PAYLOADS, st.integers(0, 10**6)).map(
            lambda it: flipped(encode_frame(it[0]), it[1] % (8 * (len(it[0]) + FRAMING)))
        ),
        st.tuples(PAYLOADS, st.integers(0, 70)).map(lambda it: encode_frame(it[0])[: it[1]]),
        st.integers(0, 60).map(bytes),
        st.binary(max_size=40),
        st.integers(0, 2**32 - 1).map(lambda size: pack("<I", size)),
        st.integers(0, 80).map(lambda size: pack("<I", size)),
    )
    return b"".join(draw(st.lists(piece, max_size=12)))


@given(st.lists(PAYLOADS, max_size=20))
def test_payloads_come_back(payloads: list[bytes]) -> None:
    data = encode_frames(payloads)
    assert data == b"".join(map(encode_frame, payloads))
    found = list(read_frames(data, OFFSET))
    assert [it.payload for it in found if isinstance(it, Frame)] == payloads
    assert [it.index for it in found] == list(range(len(payloads)))
    assert all(isinstance(it, Frame) and it.warning is None for it in found)


def test_any_buffer_can_be_a_payload() -> None:
    assert encode_frames([memoryview(b"abc"), bytearray(b"abc")]) == 2 * encode_frame(b"abc")


def test_a_payload_that_no_frame_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match="a payload of 0 bytes; a frame takes 1 to 268435444"):
        encode_frames([b"a", b""])
    monkeypatch.setattr(frame_module, "FRAME_MAX", 20)
    assert len(encode_frame(bytes(8))) == 20
    with pytest.raises(InvalidValue, match="a payload of 9 bytes; a frame takes 1 to 8"):
        encode_frame(bytes(9))


@settings(max_examples=100)
@given(streams())
def test_the_reader_says_what_the_rules_say(data: bytes) -> None:
    found = list(read_frames(data, OFFSET))
    assert places(found) == list(naive(data, OFFSET))
    for it in found:
        start = it.offset - OFFSET
        raw = data[start : start + it.size]
        if isinstance(it, Frame):
            assert it.payload == raw[4:-8]
        else:
            assert it.data == raw[:DAMAGE_DATA_MAX]


@settings(max_examples=100)
@given(streams(), st.lists(st.integers(1, 70), min_size=1))
def test_a_stream_in_pieces_reads_as_the_whole(data: bytes, sizes: list[int]) -> None:
    pieces = (sizes[number % len(sizes)] for number in range(10**9))
    assert fed(data, pieces) == list(read_frames(data, OFFSET))


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_garbage_is_damage(data: bytes) -> None:
    assert places(read_frames(data, OFFSET)) == list(naive(data, OFFSET))


def test_every_cut_and_every_turned_bit_is_judged_alike_in_pieces() -> None:
    data = encode_frames([b"first", b"second one", b"3", b"the fourth"])
    for changed in [*cuts(data), *(flipped(data, bit) for bit in range(8 * len(data)))]:
        expected = list(read_frames(changed, OFFSET))
        assert fed(changed, iter(lambda: 1, 0)) == expected
        assert fed(changed, iter(lambda: 7, 0)) == expected
        assert places(expected) == list(naive(changed, OFFSET))


def test_a_reader_begins_where_it_is_told_to() -> None:
    reader = FrameReader(500, index=9)
    assert (reader.offset, reader.index) == (500, 9)
    (frame,) = reader.feed(encode_frame(b"abc"), is_last=False)
    assert (frame.offset, frame.index) == (500, 9)
    assert (reader.offset, reader.index) == (515, 10)
    assert list(reader.feed(b"\xff\xff", is_last=False)) == []
    (tail,) = reader.feed(b"", is_last=True)
    assert (tail.offset, tail.index, reader.offset, reader.index) == (515, 10, 517, 10)


def test_damaged_frames_count_and_gaps_do_not() -> None:
    damaged = bytearray(encode_frame(b"damaged"))
    damaged[5] ^= 1
    data = encode_frame(b"a") + damaged + encode_frame(b"b") + b"\xff" * 5 + encode_frame(b"c")
    found = list(read_frames(data, 0))
    assert [(it.index, isinstance(it, Frame)) for it in found] == [
        (0, True), (1, False), (2, True), (3, False), (3, True),
    ]  # fmt: skip


# --- long stretches ------------------------------------------------------------------------------


def test_no_more_of_damage_is_kept_than_is_looked_at() -> None:
    garbage = b"\xff" * 10_000
    data = garbage + encode_frame(b"abc") + garbage
    for found in (list(read_frames(data, 0)), fed(data, iter(lambda: 999, 0))):
        gap, frame, tail = found
        assert isinstance(gap, BadStretch)
        assert isinstance(tail, BadStretch)
        assert (gap.kind, gap.size, gap.data) == (StretchKind.GAP, 10_000, b"\xff" * 4096)
        assert (tail.kind, tail.size, tail.data) == (StretchKind.TAIL, 10_000, b"\xff" * 4096)
        assert isinstance(frame, Frame)


def test_a_length_that_repeats_in_a_long_search_is_checked_by_no_more_than_each_byte() -> None:
    # Every fourth place has a plausible length of 65 793 bytes with its equal at the end: 800 MB to checksum, one by one.
    row = b"\x01\x01\x01\x00" * 25_000
    right = encode_frame(Random(1).randbytes(70_000))
    data = b"\xff" + row + right + row
    found = places(read_frames(data, OFFSET))
    assert found[:2] == [
        ("gap", OFFSET, 1 + len(row), 0),
        ("good", OFFSET + 1 + len(row), len(right), 0),
    ]
    assert places(fed(data, iter(lambda: 3_000, 0))) == found


def test_long_frames_are_judged_by_their_checksum_however_they_overlap() -> None:
    random = Random(2)
    for number in range(10):
        parts = []
        for _ in range(5):
            frame = bytearray(encode_frame(random.randbytes(random.randrange(1, 40_000))))
            match random.randrange(4):
                case 0:
                    frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)
                case 1:
                    frame[:4] = pack("<I", random.randrange(13, 200_000))
                case 2:
                    frame = frame[: random.randrange(len(frame))]
            parts.append(bytes(frame))
        data = b"".join(parts)
        expected = list(naive(data, OFFSET))
        assert places(read_frames(data, OFFSET)) == expected, f"seed 2, stream {number}"
        sizes = iter(lambda: random.randrange(1, 30_000), 0)
        assert places(fed(data, sizes)) == expected, f"seed 2, stream {number}"


def test_a_length_beyond_the_bound_is_damage_and_costs_no_memory() -> None:
    data = pack("<I", FRAME_MAX + 1) + bytes(1000) + encode_frame(b"abc")
    tracemalloc.start()
    try:
        reader = FrameReader(0)
        found = list(reader.feed(data, is_last=False))
        claimed = pack("<I", FRAME_MAX) + bytes(1000)
        assert list(reader.feed(claimed, is_last=False)) == []
        found += reader.feed(b"", is_last=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert places(found) == [
        ("gap", 0, 1004, 0),
        ("good", 1004, 15, 0),
        ("tail", 1019, 1004, 1),
    ]
    assert peak < 200_000


def test_a_reader_holds_no_more_than_it_cannot_judge() -> None:
    reader = FrameReader(0)
    tracemalloc.start()
    try:
        for _ in range(300):
            assert list(reader.feed(b"\xff" * 100_000, is_last=False)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (tail,) = reader.feed(b"", is_last=True)
    assert (tail.offset, tail.size) == (0, 30_000_000)
    assert peak < 1_000_000


def test_rows_of_zeros_are_passed_over() -> None:
    data = encode_frame(b"abc") + bytes(3_000_000) + encode_frame(b"def") + bytes(3_000_000)
    assert places(read_frames(data, 0)) == [
        ("good", 0, 15, 0),
        ("gap", 15, 3_000_000, 1),
        ("good", 3_000_015, 15, 1),
        ("tail", 3_000_030, 3_000_000, 2),
    ]
