"""Runs of frames: the same payloads as the careful reader, up to the first flaw, wherever the bytes end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.beats.frame import FRAME_MAX, BadStretch, Frame, encode_frames, read_frames
from penstock.formats.beats.frame_run import RunEnd, take_frames
from support.damage import overwritten

PAYLOADS = st.lists(st.binary(min_size=1, max_size=60), max_size=12)


@given(payloads=PAYLOADS, before=st.binary(max_size=9), count_max=st.integers(1, 15))
def test_as_many_frames_are_taken_as_are_there_and_wanted(
    payloads: list[bytes], before: bytes, count_max: int
) -> None:
    data = before + encode_frames(payloads)
    wanted = payloads[:count_max]
    end = len(before) + len(encode_frames(wanted))
    why = RunEnd.ENOUGH if len(payloads) >= count_max else RunEnd.NEEDS_MORE
    assert take_frames(data, len(before), count_max) == (wanted, end, why)


def test_nothing_is_taken_where_nothing_is_wanted() -> None:
    assert take_frames(encode_frames([b"a"]), 0, 0) == ([], 0, RunEnd.ENOUGH)


def test_bytes_that_end_anywhere_inside_a_frame_need_more() -> None:
    payloads = [b"one", b"two" * 20]
    data, first = encode_frames(payloads), len(encode_frames(payloads[:1]))
    for end in range(len(data)):
        whole = end >= first
        expected = (payloads[:whole], first * whole, RunEnd.NEEDS_MORE)
        assert take_frames(data[:end], 0, 9) == expected


def test_any_flipped_bit_stops_the_run_before_its_frame() -> None:
    payloads = [b"one", b"two", b"three"]
    data = encode_frames(payloads)
    first, second = len(encode_frames(payloads[:1])), len(encode_frames(payloads[:2]))
    for bit in range(first * 8, second * 8):
        place = bit // 8
        damaged = overwritten(data, place, bytes([data[place] ^ (1 << bit % 8)]))
        found, end, why = take_frames(damaged, 0, 9)
        assert (found, end) == (payloads[:1], first)
        # A length that has grown beyond the bytes may be right: more may come.
        assert why is RunEnd.ODD or (why is RunEnd.NEEDS_MORE and place < first + 4)


def test_lengths_that_no_frame_has_are_odd() -> None:
    good = encode_frames([b"a"])
    for size in (0, 12, FRAME_MAX + 1, 2**32 - 1):
        data = good + size.to_bytes(4, "little") + bytes(40)
        assert take_frames(data, 0, 9) == ([b"a"], len(good), RunEnd.ODD)


@given(payloads=PAYLOADS, flips=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255))))
def test_a_run_is_what_the_careful_reader_sees_before_the_first_flaw(
    payloads: list[bytes], flips: list[tuple[int, int]]
) -> None:
    data = bytearray(encode_frames(payloads))
    for place, value in flips:
        if data:
            data[place % len(data)] = value
    expected = []
    for found in read_frames(bytes(data), 0):
        if isinstance(found, BadStretch) or found.warning is not None:
            break
        assert isinstance(found, Frame)
        expected.append(found.payload)
    found_payloads, end, why = take_frames(bytes(data), 0, 100)
    assert found_payloads == expected
    assert end == len(encode_frames(expected))
    assert why is not RunEnd.ENOUGH
