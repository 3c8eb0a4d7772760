"""The compaction sidecar: golden bytes, round trips, damage, and where it says the log begins."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.errors import BadData, CorruptData, TruncatedData, UnknownFormat, UnsupportedVersion
from penstock.formats.taskflux.compaction import (
    MARKER,
    SIZE,
    Compaction,
    decode_compaction,
    encode_compaction,
)
from penstock.model import INT64_MAX, Index, SnapshotPoint, Term
from support.damage import cuts, overwritten, unnoticed
from support.report import report
from support.taskflux_vectors import SIDECARS

each_vector = pytest.mark.parametrize(
    ("name", "data", "compaction"), SIDECARS, ids=[name for name, _, _ in SIDECARS]
)


def point(index: int, term: int) -> SnapshotPoint:
    return SnapshotPoint(index=Index(index), term=Term(term))


@st.composite
def compactions(draw: st.DrawFn) -> Compaction:
    index = draw(st.integers(0, INT64_MAX))
    return Compaction(
        point=point(index, draw(st.integers(1, INT64_MAX))),
        first=Index(draw(st.integers(0, min(index + 1, INT64_MAX)))),
        count=draw(st.none() | st.integers(0, INT64_MAX)),
    )


def sealed(fields: bytes) -> bytes:
    """Return a sidecar of these fields with the checksum that they need."""
    return MARKER + fields + checksum(fields).to_bytes(4, "big")


def is_read(data: bytes) -> bool:
    try:
        decode_compaction(data)
    except BadData:
        return False
    return True


@each_vector
def test_golden_sidecars_mean_what_they_did(name: str, data: bytes, compaction: Compaction) -> None:
    assert decode_compaction(data) == compaction
    assert decode_compaction(memoryview(data)) == compaction
    assert encode_compaction(compaction) == data


@given(compactions())
def test_sidecars_round_trip(compaction: Compaction) -> None:
    data = encode_compaction(compaction)
    assert len(data) == SIZE
    assert decode_compaction(data) == compaction


@each_vector
def test_a_sidecar_cut_anywhere_is_truncated(
    name: str, data: bytes, compaction: Compaction
) -> None:
    for part in cuts(data):
        with pytest.raises(TruncatedData):
            decode_compaction(part)


@each_vector
def test_every_flip_is_noticed(name: str, data: bytes, compaction: Compaction) -> None:
    found = unnoticed(data, lambda changed: not is_read(changed))
    assert found == set()
    report(f"compaction sidecar {name}: {len(found)} of {8 * len(data)} flips invisible")


@each_vector
def test_bytes_behind_a_sidecar_are_refused(name: str, data: bytes, compaction: Compaction) -> None:
    with pytest.raises(CorruptData):
        decode_compaction(data + b"\x00")


def test_another_marker_is_no_sidecar() -> None:
    for data in (b"PSCX" + SIDECARS[0][1][4:], b"Q", bytes(SIZE)):
        with pytest.raises(UnknownFormat):
            decode_compaction(data)


def test_only_version_1_is_supported() -> None:
    fields = SIDECARS[0][1][4:-4]
    with pytest.raises(UnsupportedVersion):
        decode_compaction(sealed(overwritten(fields, 0, pack(">i", 2))))


@pytest.mark.parametrize(
    ("index", "term", "first", "count"),
    [(-1, 1, 0, -1), (5, 0, 0, -1), (5, 1, -1, -1), (5, 1, 7, -1), (5, 1, 0, -2)],
)
def test_values_that_cannot_be_are_corrupt_whatever_the_checksum(
    index: int, term: int, first: int, count: int
) -> None:
    with pytest.raises(CorruptData, match="cannot be"):
        decode_compaction(sealed(pack(">iqqqq", 1, index, term, first, count)))


@given(st.binary(max_size=60))
def test_no_bytes_make_a_sidecar_fail_otherwise_than_by_bad_data(data: bytes) -> None:
    for raw in (data, MARKER + data):
        assert not is_read(raw)
    assert not is_read(sealed(data)) or len(data) == SIZE - 8


# --- where the log begins ------------------------------------------------------------------------


def test_the_log_begins_where_it_did_while_the_new_snapshot_stands_before_the_old_log() -> None:
    """docs/formats/compaction.md: the crash in between must not apply records twice."""
    before = Compaction(point=point(9, 3), first=Index(4), count=None)
    assert before.log_first(point(9, 3), 0) == 4
    assert before.log_first(point(9, 3), 8) == 4


def test_the_snapshot_alone_tells_while_it_is_still_the_old_one() -> None:
    compaction = Compaction(point=point(9, 3), first=Index(4), count=8)
    for found in (None, point(3, 3), point(9, 2), point(10, 3)):
        assert compaction.log_first(found, 8) is None


def test_the_number_of_records_tells_the_old_log_from_the_shortened_one() -> None:
    """Entries 4 to 9 of 8 records are covered, so the shortened log has the 2 behind them."""
    compaction = Compaction(point=point(9, 3), first=Index(4), count=8)
    assert compaction.log_first(point(9, 3), 8) == 4
    assert compaction.log_first(point(9, 3), 2) is None


def test_a_log_that_a_snapshot_covers_entirely_is_shortened_to_nothing() -> None:
    compaction = Compaction(point=point(9, 3), first=Index(4), count=3)
    assert compaction.log_first(point(9, 3), 3) == 4
    assert compaction.log_first(point(9, 3), 0) is None


@pytest.mark.parametrize("count", [0, 1, 3, 7, 9])
def test_a_log_that_is_neither_is_refused(count: int) -> None:
    """It lost records since; guessing its first index would apply others twice."""
    compaction = Compaction(point=point(9, 3), first=Index(4), count=8)
    with pytest.raises(CorruptData, match="neither"):
        compaction.log_first(point(9, 3), count)
