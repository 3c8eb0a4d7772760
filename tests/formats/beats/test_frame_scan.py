"""Frames in bulk: the kernel says what ``read_frames`` says, compiled and not, however the stream is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.beats.frame import (
    FRAME_MAX,
    BadStretch,
    Frame,
    StretchKind,
    Verdict,
    encode_frame,
    encode_frames,
    read_frames,
)
from penstock.formats.beats.frame_scan import FrameColumns, FrameScanner, Place, scan_frames
from support.damage import cuts, flipped

OFFSET = 12
DAMAGE = {
    StretchKind.FRAME: Verdict.FRAME,
    StretchKind.GAP: Verdict.GAP,
    StretchKind.TAIL: Verdict.TAIL,
}

Told = tuple[Verdict, int, int, int, bytes]
"""A verdict, its offset, size and index, and the payload or what is shown of damage."""


def told(found: Frame | BadStretch) -> Told:
    if isinstance(found, BadStretch):
        return DAMAGE[found.kind], found.offset, found.size, found.index, found.data
    verdict = Verdict.GOOD if found.warning is None else Verdict.OTHER_END
    return verdict, found.offset, found.size, found.index, found.payload


def rows(columns: FrameColumns) -> Iterator[Told]:
    for n in range(len(columns)):
        start = int(columns.payload_start[n])
        payload = columns.data[start : start + int(columns.payload_size[n])].tobytes()
        numbers = (int(columns.offset[n]), int(columns.size[n]), int(columns.index[n]))
        yield Verdict(columns.verdict[n]), *numbers, payload


def scanned(
    data: bytes, *, start: int = 0, stop: int | None = None, batch: int = 100
) -> list[Told]:  # fmt: skip
    found = scan_frames(data, offset=OFFSET, start=start, stop=stop, batch_rows=batch)
    return [row for columns in found for row in rows(columns)]


def scalar(data: bytes) -> list[Told]:
    return [told(each) for each in read_frames(data, OFFSET)]


def fed(data: bytes, places: list[int], *, size: int | None = None) -> list[Told]:
    """Return what a scanner says of a stream that comes in pieces."""
    scanner = FrameScanner(OFFSET, size=size)
    found = []
    edges = [0, *sorted(places), len(data)]
    for low, high in itertools.pairwise(edges):
        for columns in scanner.feed(data[low:high]):
            found += list(rows(columns))
    for columns in scanner.feed(b"", is_last=True):
        found += list(rows(columns))
    return found


# --- streams -------------------------------------------------------------------------------------


def with_other_end(payload: bytes) -> bytes:
    frame = bytearray(encode_frame(payload))
    pack_into("<I", frame, len(frame) - 4, len(frame) + 1)
    return bytes(frame)


def with_bad_checksum(payload: bytes) -> bytes:
    return flipped(encode_frame(payload), 8 * (len(payload) + 4) + 3)


def with_false_length(payload: bytes, length: int) -> bytes:
    return pack("<I", length) + encode_frame(payload)[4:]


_payloads = st.one_of(
    st.binary(min_size=1, max_size=40),
    # What looks like frames, whole and damaged, inside of a payload.
    st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=3).map(encode_frames),
    st.binary(min_size=1, max_size=6).map(with_bad_checksum),
)
_pieces = st.one_of(
    _payloads.map(encode_frame),
    _payloads.map(encode_frame),
    _payloads.map(with_other_end),
    _payloads.map(with_bad_checksum),
    st.builds(with_false_length, _payloads, st.integers(0, 90)),
    st.builds(with_false_length, _payloads, st.sampled_from([0, 12, FRAME_MAX, FRAME_MAX + 1, 2**32 - 1])),
    st.binary(max_size=30),
    st.integers(0, 40).map(bytes),
    st.sampled_from([b"\x0d\x00\x00\x00" * 9, b"\x10\x00\x00\x00" * 9]),
    st.tuples(_payloads.map(encode_frame), st.integers(1, 12)).map(lambda t: t[0][: -t[1]]),
)  # fmt: skip
streams = st.lists(_pieces, max_size=8).map(b"".join)


@given(streams, st.integers(1, 5))
def test_both_readers_agree_on_any_stream(data: bytes, batch: int) -> None:
    expected = scalar(data)
    assert scanned(data, batch=batch) == expected


@given(streams, st.data())
def test_splits_together_are_the_whole_stream(data: bytes, draw: st.DataObject) -> None:
    expected = scalar(data)
    edges = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    edges = [0, *edges, len(data)]
    found = [scanned(data, start=low, stop=high) for low, high in itertools.pairwise(edges)]
    assert [row for part in found for row in part] == expected


@given(streams, st.data())
def test_pieces_of_any_size_give_the_same_answers(data: bytes, draw: st.DataObject) -> None:
    expected = scalar(data)
    places = draw.draw(st.lists(st.integers(0, len(data)), max_size=12))
    assert fed(data, places) == expected
    assert fed(data, places, size=OFFSET + len(data)) == expected
    assert fed(data, list(range(len(data)))) == expected


@given(streams, st.data())
def test_what_was_judged_in_a_growing_stream_stays_so(data: bytes, draw: st.DataObject) -> None:
    expected = scalar(data)
    scanner = FrameScanner(OFFSET)
    at = draw.draw(st.integers(0, len(data)))
    found = [row for columns in scanner.feed(data[:at]) for row in rows(columns)]
    assert found == expected[: len(found)]
    end = found[-1][1] + found[-1][2] if found else OFFSET
    counted = [row for row in found if row[0] <= Verdict.FRAME]
    assert scanner.place == Place(end, len(counted))
    # Another reader goes on from there.
    other = FrameScanner(scanner.place.offset, index=scanner.place.index)
    rest = other.feed(data[scanner.place.offset - OFFSET :], is_last=True)
    assert found + [row for columns in rest for row in rows(columns)] == expected


# --- every cut, bit and split of one stream ------------------------------------------------------

SAMPLE = encode_frames([b"first", b"a", bytes(range(30)), encode_frame(b"inner"), b"last" * 5])


def test_every_cut_is_judged_alike() -> None:
    for data in cuts(SAMPLE):
        assert scanned(data) == scalar(data)


def test_every_flipped_bit_is_judged_alike_and_costs_one_frame() -> None:
    for bit in range(8 * len(SAMPLE)):
        data = flipped(SAMPLE, bit)
        found = scanned(data)
        assert found == scalar(data)
        assert sum(row[0] <= Verdict.OTHER_END for row in found) >= 4


def test_every_two_splits_of_damaged_streams_are_the_whole() -> None:
    pieces = (
        with_bad_checksum(SAMPLE),
        with_bad_checksum(b"x" * 20),
        with_other_end(b"odd"),
        SAMPLE[:-1],
    )
    for seed in range(3):
        random = Random(seed)
        data = b"".join(random.sample(pieces, len(pieces)))
        expected = scalar(data)
        for at in range(len(data) + 1):
            first = scanned(data, stop=at)
            assert first + scanned(data, start=at) == expected


def test_a_frame_that_was_damaged_counts_and_a_gap_does_not() -> None:
    data = encode_frame(b"a") + with_bad_checksum(b"b") + b"\xff" * 20 + encode_frame(b"c")
    assert [(row[0], row[3]) for row in scanned(data)] == [
        (Verdict.GOOD, 0),
        (Verdict.FRAME, 1),
        (Verdict.GAP, 2),
        (Verdict.GOOD, 2),
    ]


# --- long ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [15_000, 16_372, 16_373, 20_480, 100_003])
def test_long_frames_are_checked_too(size: int) -> None:
    payload = Random(size).randbytes(size)
    good = encode_frames([b"a", payload, payload[1:], b"b"])
    for data in (good, flipped(good, 8 * 9000), b"\xff" * 5001 + good, good[: size // 2] + good):
        expected = scalar(data)
        assert scanned(data) == expected
        assert fed(data, list(range(0, len(data), 4097))) == expected


def test_a_hostile_stretch_costs_no_more_than_its_size() -> None:
    # Every place in it looks like a frame of its own, whose checksum would have to be computed over 256 KiB.
    data = encode_frame(b"a") + b"\x01\x01\x04\x00" * 2**17 + encode_frame(b"b")
    found = scanned(data)
    assert [row[0] for row in found] == [Verdict.GOOD, Verdict.GAP, Verdict.GOOD]
    assert found == scalar(data)


def test_a_gap_is_shown_by_its_first_bytes_wherever_pieces_end() -> None:
    junk = Random(4).randbytes(30_000).replace(b"\x00", b"\xff")
    data = encode_frame(b"a") + b"\xff" * 4 + junk + encode_frame(b"b")
    expected = scalar(data)
    assert len(expected[1][4]) == 4096
    for step in (1000, 4096, 7001):
        assert fed(data, list(range(0, len(data), step))) == expected


def test_no_length_is_waited_for_beyond_a_known_end() -> None:
    data = pack("<I", FRAME_MAX) + bytes(range(1, 200)) + encode_frame(b"b")
    scanner = FrameScanner(OFFSET, size=OFFSET + len(data))
    found = [row for columns in scanner.feed(data) for row in rows(columns)]
    assert [row[0] for row in found] == [Verdict.GAP, Verdict.GOOD]
