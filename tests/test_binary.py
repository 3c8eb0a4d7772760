"""The wire types: every primitive and composite, and every way in which bytes can end or lie."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import (
    CHECKSUM_START,
    INT32,
    INT64,
    UINT32,
    UINT64,
    Reader,
    checksum,
    decode_queue_name,
    encode_array,
    encode_boolean,
    encode_buffer,
    encode_nullable,
    encode_pairs,
    encode_queue_name,
    encode_string,
    hexadecimal,
)
from penstock.errors import BadData, CorruptData, InvalidQueueName, TruncatedData
from penstock.model import INT32_MAX, INT64_MAX, INT64_MIN, UINT64_MAX, QueueName
from support.refusal import attempted
from support.taskflux_vectors import CHECKSUMS

# --- checksum (docs/formats/types.md, "Checksum") ------------------------------------------------


@pytest.mark.parametrize(("data", "expected"), CHECKSUMS)
def test_the_checksum_is_crc_32_mpeg_2(data: bytes, expected: int) -> None:
    assert checksum(data) == expected


def test_the_checksum_is_none_of_its_neighbours() -> None:
    """BZIP2, ISO-HDLC (zlib) and Castagnoli differ in one parameter each."""
    assert checksum(b"123456789") not in (0xFC891918, 0xCBF43926, 0xE3069283)
    assert zlib.crc32(b"123456789") == 0xCBF43926


_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


def _reversed(register: int) -> int:
    return int(f"{register:032b}"[::-1], 2)


@given(st.binary(max_size=200), st.integers(0, 0xFFFFFFFF))
def test_the_checksum_equals_another_way_to_compute_it(data: bytes, start: int) -> None:
    """zlib's is the same polynomial with all bits mirrored."""
    mirrored = zlib.crc32(data.translate(_REVERSED), _reversed(start) ^ 0xFFFFFFFF)
    assert checksum(data, start) == _reversed(mirrored ^ 0xFFFFFFFF)


@given(st.lists(st.binary(max_size=20)))
def test_the_checksum_of_chunks_is_that_of_the_whole(chunks: list[bytes]) -> None:
    register = CHECKSUM_START
    for chunk in chunks:
        register = checksum(chunk, register)
    assert register == checksum(b"".join(chunks))


def test_the_checksum_takes_every_kind_of_bytes() -> None:
    data = b"hello, world"
    for view in (bytearray(data), memoryview(data), memoryview(b">" + data)[1:]):
        assert checksum(view) == 0xBD0822B5


def test_bytes_are_shown_spaced_and_in_upper_case() -> None:
    assert hexadecimal(b"\x12\xaf\x00") == "12 AF 00"
    assert hexadecimal(memoryview(b"\xff")) == "FF"
    assert hexadecimal(b"") == ""


# --- numbers -------------------------------------------------------------------------------------

NUMBERS: list[tuple[str, int, str, Callable[[Reader], int]]] = [
    ("byte", 0, "00", Reader.byte),
    ("byte", 255, "FF", Reader.byte),
    ("int32", 0, "00000000", Reader.int32),
    ("int32", 1, "00000001", Reader.int32),
    ("int32", -1, "FFFFFFFF", Reader.int32),
    ("int32", INT32_MAX, "7FFFFFFF", Reader.int32),
    ("int32", -(2**31), "80000000", Reader.int32),
    ("uint32", 0, "00000000", Reader.uint32),
    ("uint32", 2**32 - 1, "FFFFFFFF", Reader.uint32),
    ("int64", -1, "FFFFFFFFFFFFFFFF", Reader.int64),
    ("int64", INT64_MAX, "7FFFFFFFFFFFFFFF", Reader.int64),
    ("int64", INT64_MIN, "8000000000000000", Reader.int64),
    ("int64", 0x0102030405060708, "0102030405060708", Reader.int64),
    ("uint64", 0, "0000000000000000", Reader.uint64),
    ("uint64", UINT64_MAX, "FFFFFFFFFFFFFFFF", Reader.uint64),
]


@pytest.mark.parametrize(("name", "value", "raw", "read"), NUMBERS)
def test_numbers_are_big_endian(
    name: str, value: int, raw: str, read: Callable[[Reader], int]
) -> None:
    data = bytes.fromhex(raw)
    forms = {"int32": INT32, "uint32": UINT32, "int64": INT64, "uint64": UINT64}
    if name in forms:
        assert forms[name].pack(value) == data
    reader = Reader(data + b"more")
    assert read(reader) == value
    assert reader.offset == len(data)


@pytest.mark.parametrize(("name", "value", "raw", "read"), NUMBERS)
def test_a_number_cut_anywhere_is_truncated(
    name: str, value: int, raw: str, read: Callable[[Reader], int]
) -> None:
    data = bytes.fromhex(raw)
    for size in range(len(data)):
        with pytest.raises(TruncatedData) as caught:
            read(Reader(data[:size]))
        assert (caught.value.offset, caught.value.found) == (0, str(size))


def test_every_byte_but_zero_is_true() -> None:
    """docs/formats/types.md, "Bad values": a Bool is read leniently and written strictly."""
    for byte in range(256):
        assert Reader(bytes((byte,))).boolean() is (byte != 0)


def test_booleans_are_written_as_0_and_1() -> None:
    assert (encode_boolean(False), encode_boolean(True)) == (b"\x00", b"\x01")
    with pytest.raises(TruncatedData):
        Reader(b"").boolean()


# --- buffers and strings -------------------------------------------------------------------------


@given(st.binary(max_size=50), st.binary(max_size=5))
def test_buffers_round_trip(data: bytes, behind: bytes) -> None:
    raw = encode_buffer(data)
    assert raw == len(data).to_bytes(4, "big") + data
    reader = Reader(raw + behind)
    assert reader.buffer() == data
    assert reader.remaining == len(behind)


def test_buffers_are_encoded_from_views() -> None:
    for view in (memoryview(b"abc"), bytearray(b"abc")):
        assert encode_buffer(view) == b"\x00\x00\x00\x03abc"


@given(st.text(max_size=50))
def test_strings_round_trip_with_their_size_in_bytes(text: str) -> None:
    raw = encode_string(text)
    assert raw[:4] == len(text.encode()).to_bytes(4, "big")
    assert Reader(raw).string() == text


@pytest.mark.parametrize(
    ("raw", "bad"), [(b"\xff", 0), (b"ab\xc3", 2), (b"\xed\xa0\x80", 0), (b"a\xc0\x80", 1)]
)
def test_a_string_that_is_not_utf_8_is_corrupt(raw: bytes, bad: int) -> None:
    with pytest.raises(CorruptData) as caught:
        Reader(b"..." + encode_buffer(raw), 3).string()
    assert caught.value.offset == 3 + 4 + bad


@pytest.mark.parametrize("read", [Reader.buffer, Reader.string])
@pytest.mark.parametrize("length", [-1, -(2**31)])
def test_a_negative_length_is_corrupt(read: Callable[[Reader], object], length: int) -> None:
    with pytest.raises(CorruptData, match="negative"):
        read(Reader(INT32.pack(length) + b"abc"))


@pytest.mark.parametrize("read", [Reader.buffer, Reader.string])
@pytest.mark.parametrize("length", [4, 5, INT32_MAX])
def test_a_length_beyond_the_bytes_is_truncated(
    read: Callable[[Reader], object], length: int
) -> None:
    with pytest.raises(TruncatedData) as caught:
        read(Reader(INT32.pack(length) + b"abc"))
    assert caught.value.found == "3"


def test_a_reader_does_not_look_behind_its_end() -> None:
    data = encode_buffer(b"abc")
    assert Reader(b"x" + data, 1).buffer() == b"abc"
    assert Reader(data + b"y", 0, len(data)).buffer() == b"abc"
    with pytest.raises(TruncatedData):
        Reader(data, 0, len(data) - 1).buffer()


def test_what_is_taken_does_not_change_with_the_buffer() -> None:
    data = bytearray(encode_buffer(b"abc"))
    taken = Reader(memoryview(data)).buffer()
    data[4] = ord("z")
    assert taken == b"abc"
    assert type(taken) is bytes


# --- queue names (docs/formats/types.md, "Queue names") ------------------------------------------


def test_names_hold_the_bytes_33_to_126() -> None:
    for byte in range(256):
        raw = bytes((2, ord("a"), byte))
        if 33 <= byte <= 126:
            name = Reader(raw).queue_name()
            assert name == "a" + chr(byte)
            assert encode_queue_name(name) == raw
            assert decode_queue_name(raw[1:]) == name
        else:
            with pytest.raises(CorruptData):
                Reader(raw).queue_name()
            with pytest.raises(InvalidQueueName):
                decode_queue_name(raw[1:])


@pytest.mark.parametrize("size", [0, 1, 254, 255])
def test_names_have_0_to_255_bytes(size: int) -> None:
    name = QueueName("n" * size)
    raw = encode_queue_name(name)
    assert raw == bytes((size,)) + b"n" * size
    assert Reader(raw).queue_name() == name


def test_the_default_queue_is_one_zero_byte() -> None:
    assert encode_queue_name(QueueName("")) == b"\x00"
    assert Reader(b"\x00").queue_name() == QueueName("")


@pytest.mark.parametrize("size", [0, 1, 6])
def test_a_name_cut_anywhere_is_truncated(size: int) -> None:
    with pytest.raises(TruncatedData):
        Reader(b"\x06orders"[:size]).queue_name()


def test_names_differ_by_case() -> None:
    assert Reader(b"\x01a").queue_name() != Reader(b"\x01A").queue_name()


def test_a_name_too_long_for_its_length_byte_is_invalid() -> None:
    with pytest.raises(InvalidQueueName):
        decode_queue_name(b"n" * 256)


def test_a_file_full_of_names_does_not_fill_the_memory() -> None:
    """Names are kept once checked; the table is emptied before a hostile file can grow it."""
    from penstock import binary

    for i in range(binary._NAMES_MAX + 10):
        decode_queue_name(b"%d" % i)
    assert len(binary._names) <= binary._NAMES_MAX
    assert decode_queue_name(b"0") == "0"


# --- composites ----------------------------------------------------------------------------------


@given(st.none() | st.integers(INT64_MIN, INT64_MAX))
def test_nullables_round_trip(value: int | None) -> None:
    raw = encode_nullable(value, INT64.pack)
    assert len(raw) == (1 if value is None else 9)
    reader = Reader(raw)
    assert reader.nullable(reader.int64) == value
    reader.finish("a nullable")


@given(st.lists(st.integers(-(2**31), INT32_MAX), max_size=20))
def test_arrays_round_trip(values: list[int]) -> None:
    raw = encode_array(values, INT32.pack)
    assert raw[:4] == INT32.pack(len(values))
    reader = Reader(raw)
    assert reader.array(reader.int32, unit_size=4) == values
    reader.finish("an array")


def test_a_buffer_is_an_array_of_bytes() -> None:
    raw = encode_array(list(b"abc"), lambda byte: bytes((byte,)))
    assert raw == encode_buffer(b"abc")
    reader = Reader(raw)
    assert bytes(reader.array(reader.byte, unit_size=1)) == b"abc"


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 255)), max_size=8))
def test_dictionaries_keep_order_and_equal_keys(pairs: list[tuple[str, int]]) -> None:
    raw = encode_pairs(pairs, encode_string, lambda value: bytes((value,)))
    reader = Reader(raw)
    assert reader.pairs(reader.string, reader.byte, unit_size=5) == pairs
    reader.finish("a dictionary")


@pytest.mark.parametrize("count", [-1, 2, INT32_MAX])
def test_a_count_that_cannot_be_is_refused_before_anything_is_read(count: int) -> None:
    read: list[int] = []
    reader = Reader(INT32.pack(count) + bytes(7))

    def item() -> int:
        read.append(1)
        return reader.int32()

    with pytest.raises(BadData):
        reader.array(item, unit_size=4)
    with pytest.raises(BadData):
        Reader(INT32.pack(count) + bytes(7)).pairs(item, item, unit_size=4)
    assert read == []


@pytest.mark.parametrize("unit_size", [1, 4, 8])
def test_a_count_is_measured_in_its_units(unit_size: int) -> None:
    assert Reader(INT32.pack(3) + bytes(3 * unit_size)).length("things", unit_size) == 3
    with pytest.raises(TruncatedData):
        Reader(INT32.pack(3) + bytes(3 * unit_size - 1)).length("things", unit_size)


# --- ends ----------------------------------------------------------------------------------------


def test_bytes_left_over_are_refused() -> None:
    reader = Reader(b"\x01\x02\x03")
    assert reader.byte() == 1
    with pytest.raises(CorruptData) as caught:
        reader.finish("a value")
    assert (caught.value.offset, caught.value.found) == (1, "2 more")
    reader.take(2, "the rest")
    reader.finish("a value")
    assert reader.remaining == 0


def test_an_error_says_where_and_what() -> None:
    with pytest.raises(TruncatedData) as caught:
        Reader(b"......\x00\x00", 6).int32("a term")
    error = caught.value
    assert str(error) == "offset 6: the bytes end inside a term; expected 4 bytes, found 2"
    assert str(error.located("raft.log", base=100)).startswith("raft.log, offset 106: ")
    assert str(error.located("another", base=1)).startswith("raft.log, offset 106: ")


@given(st.binary(max_size=40), st.data())
def test_no_bytes_make_a_reader_fail_otherwise_than_by_bad_data(
    data: bytes, choice: st.DataObject
) -> None:
    reader = Reader(data)
    kinds: list[Callable[[], object]] = [
        reader.byte,
        reader.boolean,
        reader.int32,
        reader.uint64,
        reader.buffer,
        reader.string,
        reader.queue_name,
        lambda: reader.nullable(reader.int64),
        lambda: reader.array(reader.queue_name, unit_size=1),
        lambda: reader.pairs(reader.int32, reader.byte, unit_size=5),
    ]
    for kind in choice.draw(st.lists(st.sampled_from(kinds), max_size=6)):
        before = reader.offset
        found = attempted(kind)
        if isinstance(found, BadData):
            assert found.offset is not None
            break
        assert before <= reader.offset <= len(data)
