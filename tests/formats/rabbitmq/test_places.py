"""Tables of places: round trip, golden bytes, every truncation, every flipped bit, and columns that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import UINT32, checksum
from penstock.errors import BadData, CorruptData, UnsupportedVersion
from penstock.formats.rabbitmq.places import (
    ROWS_MAX,
    Covers,
    PlaceTable,
    as_columns,
    decode_table,
    encode_table,
    mark_of,
    parse_places_name,
    places_name,
)
from support.damage import cuts, unnoticed

# docs/formats/paged.md, version 1: of the first 300 bytes of 3.idx of queue 2, three records of which the second
# is acked; four columns of eight are enough to show what a column is.
TABLE = PlaceTable(
    covers=Covers.SEGMENT,
    queue=2,
    number=3,
    length=300,
    columns=as_columns(
        [np.array(column) for column in ([0, 1, 2], [0, 2, 0], [34, 136, 238], [-1, -1, 7])]
    ),
)
GOLDEN = bytes.fromhex("""
    50 53 50 4C 00 00 00 01 00 01 00 04
    00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 03
    00 00 00 00 00 00 01 2C 00 00 00 03
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01
    01 00 02 00
    00 00 00 00 00 00 00 00 22 00 00 00 00 00 00 00 66
    08 FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF 00 00 00 00 00 00 00 07
    42 FA 02 DB
""")

uint64 = st.integers(0, 2**64 - 1)
evenly = st.builds(
    lambda first, step, count: [(first + step * n) % 2**64 for n in range(count)],
    uint64,
    st.sampled_from([0, 1, 1244, 2**64 - 1]) | uint64,
    st.just(5),
)
columns = st.lists(
    evenly
    | st.sampled_from([2**8, 2**16, 2**32, 2**64]).flatmap(
        lambda end: st.lists(st.integers(0, end - 1), min_size=5, max_size=5)
    ),
    min_size=1,
    max_size=8,
)


def same(one: PlaceTable, other: PlaceTable) -> bool:
    heads = [(t.covers, t.queue, t.number, t.length, len(t.columns)) for t in (one, other)]
    return heads[0] == heads[1] and all(map(np.array_equal, one.columns, other.columns))


def sealed(data: bytes) -> bytes:
    """Return a table with the checksum that it ought to have."""
    return data[:-4] + UINT32.pack(checksum(data[:-4]))


def test_a_table_has_its_golden_bytes() -> None:
    assert encode_table(TABLE).hex(" ") == GOLDEN.hex(" ")
    assert same(decode_table(GOLDEN), TABLE)
    assert (mark_of(GOLDEN).size, mark_of(GOLDEN).checksum) == (len(GOLDEN), 0x42FA02DB)


@given(st.sampled_from(Covers), uint64, uint64, uint64, columns)
def test_what_is_encoded_is_decoded(
    covers: Covers, queue: int, number: int, length: int, values: list[list[int]]
) -> None:
    table = PlaceTable(
        covers=covers,
        queue=queue,
        number=number,
        length=length,
        columns=tuple(np.array(column, dtype=np.uint64) for column in values),
    )
    assert same(decode_table(encode_table(table)), table)


@pytest.mark.parametrize("count", [0, 1, 2, 16_384])
def test_a_column_that_grows_evenly_takes_few_bytes_whatever_its_rows(count: int) -> None:
    column = np.arange(count, dtype=np.uint64) * np.uint64(1244) + np.uint64(7)
    table = PlaceTable(covers=Covers.STORE_FILE, queue=0, number=1, length=9, columns=(column,) * 4)
    assert len(encode_table(table)) == 40 + 4 * 17 + 4
    assert same(decode_table(encode_table(table)), table)


def test_a_table_cut_anywhere_is_refused() -> None:
    for cut in cuts(GOLDEN):
        with pytest.raises(BadData):
            decode_table(cut)
        # The same where the checksum of what is left is right, as that of a table cut and sealed would be.
        if len(cut) > 4:
            with pytest.raises(BadData):
                decode_table(sealed(cut))


def test_a_flipped_bit_is_refused_wherever_it_is() -> None:
    def notices(damaged: bytes) -> bool:
        try:
            decode_table(damaged)
        except BadData:
            return True
        return False

    assert unnoticed(GOLDEN, notices) == set()


def test_another_version_is_told_apart_from_damage() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_table(GOLDEN[:7] + b"\x02" + GOLDEN[8:])


@pytest.mark.parametrize(
    ("offset", "bytes_", "reason"),
    [
        (0, b"PSCP", "not a table"),
        (9, b"\x03", "no kind of file"),
        (11, b"\x00", "no kind of file"),
        (11, b"\x03", "behind the last column"),
        (36, b"\xff\xff\xff\xff", "4294967295 rows"),
        (57, b"\x03", "column of 3 bytes"),
    ],
)
def test_what_cannot_be_is_refused_though_its_checksum_is_right(
    offset: int, bytes_: bytes, reason: str
) -> None:
    changed = GOLDEN[:offset] + bytes_ + GOLDEN[offset + len(bytes_) :]
    with pytest.raises(CorruptData, match=reason):
        decode_table(sealed(changed))


def test_no_table_claims_more_rows_than_it_may() -> None:
    assert 2**14 < ROWS_MAX < 2**24


@given(st.integers(0, 2**62 - 1))
def test_a_name_has_the_number_of_its_file(number: int) -> None:
    assert parse_places_name(places_name(number)) == number


@pytest.mark.parametrize(
    "name", ["3.idx", ".places", "03.places", "x.places", f"{2**62}.places", "9" * 99 + ".places"]
)
def test_another_name_is_no_tables(name: str) -> None:
    assert parse_places_name(name) is None
