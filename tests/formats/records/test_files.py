"""Small files: header of segments, hard state, sync point, identity. Every flipped bit and every truncation."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, BadRecord, TruncatedData, UnknownFormat, UnsupportedVersion
from penstock.formats.records import hard_state, sync_point
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.hard_state import decode_hard_state, encode_hard_state
from penstock.formats.records.identity import Identity, decode_identity, encode_identity
from penstock.formats.records.segment import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    FileHeader,
    decode_file_header,
    encode_file_header,
    file_name,
    parse_file_name,
)
from penstock.formats.records.sync_point import (
    SLOT_SIZE,
    SyncedTo,
    SyncPoints,
    decode_sync_point,
    encode_sync_point,
)
from penstock.model import INT32_MAX, INT64_MAX, HardState, NodeId, Term
from support.damage import cuts, flipped, overwritten, unnoticed
from support.record_examples import FILE_HEADER, FILES, HARD_STATE, IDENTITY, SYNC_POINT
from support.record_strategies import objects, strange

ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, INT64_MAX)
file_headers = st.builds(FileHeader, first_index=numbers, cluster_id=ids)
states = st.builds(
    HardState,
    term=st.integers(1, INT64_MAX).map(Term),
    vote=st.none() | st.integers(0, INT32_MAX).map(NodeId),
)
points = st.builds(
    SyncedTo, sequence=numbers, index=numbers, segment=numbers, offset=numbers, commit_floor=numbers
)
identities = st.builds(
    Identity,
    node=st.integers(0, INT32_MAX),
    incarnation=ids,
    cluster_id=st.none() | ids,
    peers=st.dictionaries(st.integers(0, INT32_MAX), objects, max_size=3),
    other=strange("node", "peers"),
)
DECODERS: dict[str, Callable[[bytes], object]] = {
    "file header": decode_file_header,
    "hard-state": decode_hard_state,
    "identity.json": decode_identity,
}


def resealed(data: bytes, offset: int, form: str, value: int) -> bytes:
    """Return a file with another value and a checksum, its last four bytes, that matches."""
    copy = bytearray(data)
    pack_into(form, copy, offset, value)
    pack_into("<I", copy, len(copy) - 4, crc32c(copy[:-4]))
    return bytes(copy)


@given(file_headers)
def test_file_headers_round_trip(header: FileHeader) -> None:
    assert decode_file_header(memoryview(encode_file_header(header) + b"records")) == header


@given(states)
def test_hard_states_round_trip(state: HardState) -> None:
    assert decode_hard_state(memoryview(encode_hard_state(state))) == state


@given(identities)
def test_identities_round_trip(identity: Identity) -> None:
    assert decode_identity(memoryview(encode_identity(identity))) == identity


def test_the_examples_mean_what_they_did() -> None:
    assert decode_file_header(FILES["file header"]) == FILE_HEADER
    assert decode_hard_state(FILES["hard-state"]) == HARD_STATE
    assert decode_identity(FILES["identity.json"]) == IDENTITY


@pytest.mark.parametrize("name", DECODERS)
def test_every_flipped_bit_of_a_small_file_is_noticed(name: str) -> None:
    def notices(data: bytes) -> bool:
        try:
            DECODERS[name](data)
        except BadData:
            return True
        return False

    assert unnoticed(FILES[name], notices) == set()


@pytest.mark.parametrize("name", DECODERS)
def test_every_truncation_of_a_small_file_is_noticed(name: str) -> None:
    for cut in cuts(FILES[name]):
        with pytest.raises((TruncatedData, BadRecord)):
            DECODERS[name](cut)


@pytest.mark.parametrize(
    ("name", "offset", "form", "value", "error"),
    [
        ("file header", 8, "<I", 2, UnsupportedVersion),
        ("file header", 12, "<I", 1, BadRecord),
        ("file header", 16, "<q", -1, BadRecord),
        ("file header", 59, "B", 1, BadRecord),
        ("file header", 0, "B", 0, UnknownFormat),
        ("hard-state", 0, "B", 0, UnknownFormat),
        ("hard-state", 4, "<I", 2, UnsupportedVersion),
        ("hard-state", 8, "<q", 0, BadRecord),
        ("hard-state", 16, "<q", -2, BadRecord),
        ("hard-state", 24, "<I", 1, BadRecord),
    ],
)
def test_a_value_that_cannot_be_is_refused_behind_its_checksum(
    name: str, offset: int, form: str, value: int, error: type[BadData]
) -> None:
    with pytest.raises(error):
        DECODERS[name](resealed(FILES[name], offset, form, value))


def test_a_hard_state_with_more_bytes_is_refused() -> None:
    with pytest.raises(BadRecord) as caught:
        decode_hard_state(FILES["hard-state"] + b"\0")
    assert caught.value.expected == f"{hard_state.SIZE} bytes"


@pytest.mark.parametrize(
    "text",
    [
        b"[]\n",
        b"{}\n",
        b'{"checksum":1}\n',
        encode_identity(IDENTITY)[:-1],
        encode_identity(IDENTITY) + b"\n",
        b" " * (2**20) + b"\n",
    ],
)
def test_an_identity_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(BadRecord):
        decode_identity(text)


@pytest.mark.parametrize(
    "other",
    [{"format": 5}, {"node": -1}, {"peers": {"02": {}}}, {"peers": {"x": {}}}, {"peers": {"1": 1}}],
)
def test_an_identity_with_a_wrong_member_is_refused(other: dict[str, object]) -> None:
    from penstock.formats.records.canonical import decode_canonical, encode_canonical

    members = decode_canonical(FILES["identity.json"][:-1]) | other
    del members["checksum"]
    members["checksum"] = f"{crc32c(encode_canonical(members)):08x}"
    with pytest.raises((BadRecord, UnsupportedVersion)):
        decode_identity(encode_canonical(members) + b"\n")


# --- the sync point ------------------------------------------------------------------------------


def file_of(*written: SyncedTo) -> bytes:
    data = bytes(sync_point.SIZE)
    for point in written:
        data = overwritten(data, *encode_sync_point(point))
    return data


@given(points)
def test_sync_points_round_trip(point: SyncedTo) -> None:
    assert decode_sync_point(file_of(point)) == SyncPoints(point, ())


def test_the_newer_sector_counts() -> None:
    """Also when it says less: both sectors are stepped back before a log is truncated."""
    newer = SyncedTo(sequence=8, index=3, segment=1, offset=64)
    assert decode_sync_point(file_of(SYNC_POINT, newer)).newest == newer
    assert decode_sync_point(file_of(newer, SYNC_POINT)).newest == newer


def test_a_flipped_bit_loses_one_sector_and_is_reported() -> None:
    older = SyncedTo(sequence=6, index=41, segment=40, offset=300, commit_floor=40)
    data = file_of(older, SYNC_POINT)
    for bit in range(8 * SLOT_SIZE, 8 * sync_point.SIZE):
        assert decode_sync_point(flipped(data, bit)) == SyncPoints(older, (SLOT_SIZE,))
    for bit in range(8 * SLOT_SIZE):
        assert decode_sync_point(flipped(data, bit)) == SyncPoints(SYNC_POINT, (0,))


def test_a_file_that_is_cut_or_absent_is_reported() -> None:
    data = file_of(SYNC_POINT)
    for cut in cuts(data):
        assert decode_sync_point(cut).newest is None
        assert decode_sync_point(cut).damaged
    assert decode_sync_point(bytes(sync_point.SIZE)) == SyncPoints(None, ())


def test_a_sector_in_the_wrong_place_is_damage() -> None:
    _, sector = encode_sync_point(SYNC_POINT)
    assert decode_sync_point(sector + bytes(SLOT_SIZE)) == SyncPoints(None, (0,))


@pytest.mark.parametrize(("offset", "form", "value"), [(4, "<I", 2), (16, "<q", -1), (52, "<I", 1)])
def test_a_sector_with_an_impossible_value_is_damage(offset: int, form: str, value: int) -> None:
    sector = bytearray(encode_sync_point(SYNC_POINT)[1])
    pack_into(form, sector, offset, value)
    pack_into("<I", sector, 48, crc32c(sector[:48]))
    assert decode_sync_point(bytes(SLOT_SIZE) + sector) == SyncPoints(None, (SLOT_SIZE,))


# --- names ---------------------------------------------------------------------------------------


def test_names_of_files_have_twenty_digits() -> None:
    assert file_name(1, LOG_SUFFIX) == "00000000000000000001.log"
    assert file_name(12345, SNAPSHOT_SUFFIX) == "00000000000000012345.snap"


@given(numbers)
def test_names_of_files_round_trip(index: int) -> None:
    assert parse_file_name(file_name(index, LOG_SUFFIX), LOG_SUFFIX) == index
    assert parse_file_name(file_name(index, LOG_SUFFIX), SNAPSHOT_SUFFIX) is None


@pytest.mark.parametrize(
    "name", ["", ".log", "1.log", "00000000000000000001", "0000000000000000000x.log", "99999999999999999999.log", "٠" * 20 + ".log"]
)  # fmt: skip
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_file_name(name, LOG_SUFFIX) is None
