"""The sync point: golden bytes, the two slots that take turns, and damage, which says nothing."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.formats.taskflux.sync_point import (
    MARKER,
    SIZE,
    SLOT_SIZE,
    SyncPoint,
    decode_sync_point,
    encode_sync_point,
)
from penstock.model import INT64_MAX, NO_INDEX, Index, SnapshotPoint, Term
from support.damage import cuts, flipped, overwritten
from support.report import report

# docs/formats/sync-point.md, version 1: sequence 7, synced up to 41, committed up to 40, a snapshot of entry
# 20 in term 2, none about to come.
POINT = SyncPoint(
    sequence=7,
    synced=Index(41),
    committed=Index(40),
    snapshot=SnapshotPoint(index=Index(20), term=Term(2)),
)
GOLDEN = bytes.fromhex("""
    50 53 53 59 00 00 00 01 00 00 00 00 00 00 00 07
    00 00 00 00 00 00 00 29 00 00 00 00 00 00 00 28
    00 00 00 00 00 00 00 14 00 00 00 00 00 00 00 02
    FF FF FF FF FF FF FF FF 00 00 00 00 00 00 00 00
    18 61 7E 82
""")

snapshots = st.none() | st.builds(
    SnapshotPoint,
    index=st.integers(0, INT64_MAX).map(Index),
    term=st.integers(1, INT64_MAX).map(Term),
)
points = st.builds(
    SyncPoint,
    sequence=st.integers(0, INT64_MAX),
    synced=st.integers(-1, INT64_MAX).map(Index),
    committed=st.integers(-1, INT64_MAX).map(Index),
    snapshot=snapshots,
    pending=snapshots,
)


def file_of(*points: SyncPoint) -> bytes:
    """Return the file after these points were written one after the other."""
    data = bytes(SIZE)
    for point in points:
        offset, slot = encode_sync_point(point)
        data = overwritten(data, offset, slot)
    return data


def test_the_golden_slot_means_what_it_did() -> None:
    assert encode_sync_point(POINT) == (SLOT_SIZE, GOLDEN)
    assert decode_sync_point(bytes(SLOT_SIZE) + GOLDEN) == POINT
    assert decode_sync_point(memoryview(file_of(POINT))) == POINT
    assert len(file_of(POINT)) == SIZE == 1024


@given(points)
def test_sync_points_round_trip(point: SyncPoint) -> None:
    assert decode_sync_point(file_of(point)) == point


@given(st.integers(0, INT64_MAX - 1), st.integers(-1, 99), st.integers(-1, 99))
def test_the_newer_of_two_slots_counts(sequence: int, before: int, after: int) -> None:
    """Also when the newer says less: entries may have been removed from the log's end."""
    old = SyncPoint(sequence=sequence, synced=Index(before))
    new = SyncPoint(sequence=sequence + 1, synced=Index(after))
    assert encode_sync_point(old)[0] != encode_sync_point(new)[0]
    assert decode_sync_point(file_of(old, new)) == new


def test_a_file_without_a_whole_slot_says_nothing() -> None:
    for data in (b"", bytes(SIZE), b"PSSY", bytes(range(256)) * 4):
        assert decode_sync_point(data) is None
    assert SyncPoint() == SyncPoint(sequence=0, synced=NO_INDEX, committed=NO_INDEX)


def test_a_cut_file_says_what_its_whole_slots_say() -> None:
    old, new = SyncPoint(sequence=6, synced=Index(30)), POINT
    data = file_of(old, new)
    for part in cuts(data):
        whole = [
            point
            for point, end in ((old, len(GOLDEN)), (new, SLOT_SIZE + len(GOLDEN)))
            if len(part) >= end
        ]
        assert decode_sync_point(part) == (whole[-1] if whole else None)


def test_every_flip_in_a_slot_is_noticed_and_leaves_the_other_slot() -> None:
    old = SyncPoint(sequence=6, synced=Index(30))
    data = file_of(old, POINT)
    noticed = 0
    for bit in range(8 * SIZE):
        found = decode_sync_point(flipped(data, bit))
        if bit // 8 in range(len(GOLDEN)):
            assert found == POINT
        elif bit // 8 in range(SLOT_SIZE, SLOT_SIZE + len(GOLDEN)):
            assert found == old
            noticed += 1
        else:
            assert found == POINT  # the zeros behind a slot mean nothing
    assert noticed == 8 * len(GOLDEN)
    report(f"sync point slot: 0 of {8 * len(GOLDEN)} flips invisible")


@pytest.mark.parametrize(
    ("version", "sequence", "synced", "committed"),
    [(2, 0, 0, 0), (0, 0, 0, 0), (1, -1, 0, 0), (1, 0, -2, 0), (1, 0, 0, -2)],
)
def test_values_that_cannot_be_say_nothing_whatever_the_checksum(
    version: int, sequence: int, synced: int, committed: int
) -> None:
    fields = pack(">iqqqqqqq", version, sequence, synced, committed, -1, 0, -1, 0)
    assert decode_sync_point(MARKER + fields + checksum(fields).to_bytes(4, "big")) is None


@given(st.binary(max_size=80))
def test_no_bytes_make_a_sync_point_fail(data: bytes) -> None:
    for raw in (data, MARKER + data, bytes(SLOT_SIZE) + data):
        assert decode_sync_point(raw) is None
