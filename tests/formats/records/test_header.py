"""The header of a record: round trips, every flipped bit, every truncation, values that cannot be."""

from __future__ import annotations

from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, TruncatedData
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.header import (
    HEADER_SIZE,
    RECORD_SIZE_MAX,
    Kind,
    check_body,
    decode_header,
    encode_record,
    head_checksum,
)
from support.damage import cuts, unnoticed
from support.record_examples import CHANGES, record_of
from support.record_strategies import stamps, u32s, u64s

RECORD = record_of(CHANGES["remove"])


def forged(offset: int, form: str, value: int) -> bytes:
    """Return a record with another value in its header, and a head checksum that matches."""
    record = bytearray(RECORD)
    pack_into(form, record, offset, value)
    pack_into("<I", record, 4, crc32c(record[8:HEADER_SIZE]))
    return bytes(record)


def test_the_checksum_is_crc_32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"456789"), crc32c(b"123")) == 0xE3069283
    assert crc32c(b"") == 0


@given(stamps, st.sampled_from(Kind), u32s, u32s, u64s, st.binary(max_size=4).map(lambda b: b * 8))
def test_headers_round_trip(stamp, kind, previous, queue_id, first_id, body) -> None:  # type: ignore[no-untyped-def]
    index, term, time_ms, principal_id = stamp
    record = encode_record(
        kind, body, index=index, term=term, time_ms=time_ms, previous=previous, queue_id=queue_id,
        principal_id=principal_id, first_id=first_id, flags=0x80,
    )  # fmt: skip
    header = decode_header(b"12345678" + record, 8)
    assert tuple(header) == (
        64 + len(body), kind, 0x80, 1, index, term, time_ms, crc32c(body), previous, queue_id,
        principal_id, first_id, head_checksum(record),
    )  # fmt: skip
    check_body(b"12345678" + record, 8, header)


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    def notices(data: bytes) -> bool:
        try:
            check_body(data, 0, decode_header(data))
        except BadRecord:
            return True
        return False

    assert unnoticed(RECORD, notices) == set()


def test_a_record_that_is_cut_is_noticed_as_such() -> None:
    for cut in cuts(RECORD):
        with pytest.raises(TruncatedData):
            check_body(cut, 0, decode_header(cut))


@pytest.mark.parametrize(
    ("offset", "form", "value", "place"),
    [
        (8, "<I", 56, 8),
        (8, "<I", 92, 8),
        (8, "<I", RECORD_SIZE_MAX + 8, 8),
        (8, "<I", 2**32 - 8, 8),
        (13, "B", 0x04, 13),
        (16, "<q", -1, 16),
        (24, "<q", -1, 16),
        (32, "<q", -1, 16),
        (32, "<q", 2**53 + 1, 16),
    ],
)
def test_a_header_with_an_impossible_value_is_refused(
    offset: int, form: str, value: int, place: int
) -> None:
    with pytest.raises(BadRecord) as caught:
        decode_header(forged(offset, form, value))
    assert caught.value.offset == place


def test_a_place_without_a_record_is_refused() -> None:
    with pytest.raises(BadRecord) as caught:
        decode_header(bytes(64))
    assert (caught.value.offset, caught.value.expected) == (0, "50 53 4B 34")
