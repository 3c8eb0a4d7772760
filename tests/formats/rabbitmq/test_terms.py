"""Erlang terms: golden bytes of every tag, round trips, damage, and claims that nobody believes."""

from __future__ import annotations

import tarfile
import tracemalloc
import zlib
from functools import cache
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, InvalidValue, TruncatedData
from penstock.formats.rabbitmq.terms import (
    COUNT_MAX,
    DEPTH_MAX,
    INFLATED_SIZE_MAX,
    INTEGER_SIZE_MAX,
    Atom,
    AtomEncoding,
    BitString,
    ErlangTerm,
    ImproperList,
    Map,
    Opaque,
    decode_term,
    encode_term,
)
from support.damage import cuts, flipped
from support.refusal import attempted

GOLDEN = Path(__file__).parents[2] / "golden" / "rabbitmq"

# What term_to_binary of Erlang/OTP 25 gives.
WRITTEN: list[tuple[ErlangTerm, str]] = [
    (0, "8361 00"),
    (255, "8361 FF"),
    (256, "8362 00000100"),
    (-1, "8362 FFFFFFFF"),
    (2**31 - 1, "8362 7FFFFFFF"),
    (-(2**31), "8362 80000000"),
    (2**31, "836E 04 00 00000080"),
    (-(2**31) - 1, "836E 04 01 01000080"),
    (2**64, "836E 09 00 000000000000000001"),
    (2**2040 - 1, "836E FF 00" + "FF" * 255),
    (-(2**2040), "836F 00000100 01" + "00" * 255 + "01"),
    (1.5, "8346 3FF8000000000000"),
    (-0.0, "8346 8000000000000000"),
    (Atom("true"), "8364 0004 74727565"),
    (Atom(""), "8364 0000"),
    (Atom("é"), "8364 0001 E9"),
    (Atom("Ω"), "8377 02 CEA9"),
    (Atom("Ω" * 255), "8376 01FE" + "CEA9" * 255),
    (b"", "836D 00000000"),
    (b"q1", "836D 00000002 7131"),
    (BitString(data=b"\x20", last_bits=3), "834D 00000001 03 20"),
    ((), "8368 00"),
    ((1, b"a"), "8368 02 6101 6D0000000161"),
    ((Atom("a"),) * 256, "8369 00000100" + "64000161" * 256),
    ([], "836A"),
    ([1, 2, 3], "836B 0003 010203"),
    ([0] * 65535, "836B FFFF" + "00" * 65535),
    ([0] * 65536, "836C 00010000" + "6100" * 65536 + "6A"),
    ([1, 256], "836C 00000002 6101 6200000100 6A"),
    ([b"a"], "836C 00000001 6D0000000161 6A"),
    (ImproperList(items=(1,), tail=2), "836C 00000001 6101 6102"),
    (Map(()), "8374 00000000"),
    (Map(((Atom("a"), 1),)), "8374 00000001 64000161 6101"),
    (
        Opaque(tag=88, data=bytes.fromhex("640003614062") + pack(">III", 1, 2, 3)),
        "8358 640003614062 00000001 00000002 00000003",
    ),
    (
        Opaque(tag=90, data=bytes.fromhex("0002 640003614062") + pack(">III", 3, 1, 2)),
        "835A 0002 640003614062 00000003 00000001 00000002",
    ),
]

NODE = "77036E4062"  # an atom: n@b

# What other releases write. None of these is written by us.
READ: list[tuple[str, ErlangTerm]] = [
    ("8373 04 74727565", Atom("true")),
    ("8376 0002 C3A9", Atom("é")),
    ("8377 02 C3A9", Atom("é")),
    ("8363" + b"1.50000000000000000000e+00".ljust(31, b"\0").hex(), 1.5),
    ("8363" + b"-1.10000000000000000000e-100".ljust(31, b"\0").hex(), -1.1e-100),
    ("836E 02 00 0100", 1),
    ("836E 00 00", 0),
    ("836F 00000001 01 07", -7),
    ("8362 00000001", 1),
    ("8369 00000001 6101", (1,)),
    ("836B 0000", []),
    ("836C 00000000 6A", []),
    ("836C 00000001 6101 6B000102", [1, 2]),
    ("836C 00000001 6101 6C 00000001 6102 6103", ImproperList(items=(1, 2), tail=3)),
    ("836C 00000000 6103", 3),
    (f"8365 {NODE} 0000000101", Opaque(tag=101, data=bytes.fromhex(NODE + "0000000101"))),
    (f"8366 {NODE} 0000000101", Opaque(tag=102, data=bytes.fromhex(NODE + "0000000101"))),
    (f"8367 {NODE}" + "01" * 9, Opaque(tag=103, data=bytes.fromhex(NODE + "01" * 9))),
    (f"8359 {NODE}" + "01" * 8, Opaque(tag=89, data=bytes.fromhex(NODE + "01" * 8))),
    (f"8378 {NODE}" + "01" * 12, Opaque(tag=120, data=bytes.fromhex(NODE + "01" * 12))),
    (f"8372 0001 {NODE} 0100000002", Opaque(tag=114, data=bytes.fromhex(f"0001{NODE}0100000002"))),
]

SAMPLES = [bytes.fromhex(text) for _, text in WRITTEN if len(text) < 200]
SAMPLES += [bytes.fromhex(text) for text, _ in READ]


def compressed(body: bytes, size: int | None = None) -> bytes:
    """Return a compressed term of the tagged bytes ``body``, with a length of our choice."""
    return b"\x83\x50" + pack(">I", len(body) if size is None else size) + zlib.compress(body, 9)


# --- golden bytes and round trips ----------------------------------------------------------------


@pytest.mark.parametrize(("term", "text"), WRITTEN, ids=lambda x: str(x)[:24])
def test_golden_terms_are_read_and_written_byte_for_byte(term: ErlangTerm, text: str) -> None:
    data = bytes.fromhex(text)
    assert decode_term(data) == term
    assert decode_term(memoryview(data)) == term
    assert encode_term(term) == data


@pytest.mark.parametrize(("text", "term"), READ)
def test_what_other_releases_write_is_read(text: str, term: ErlangTerm) -> None:
    assert decode_term(bytes.fromhex(text)) == term


def test_atoms_can_be_written_as_later_releases_do() -> None:
    def written(name: str) -> bytes:
        return encode_term(Atom(name), atoms=AtomEncoding.UTF_8)

    assert written("true") == bytes.fromhex("8377 04 74727565")
    assert written("é") == bytes.fromhex("8377 02 C3A9")
    assert written("é" * 255) == bytes.fromhex("8376 01FE" + "C3A9" * 255)


atoms = st.text(st.characters(exclude_categories=["Cs"]), max_size=255).map(Atom)
leaves = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=40),
    atoms,
    st.builds(BitString, data=st.binary(min_size=1, max_size=3), last_bits=st.integers(1, 8)),
    st.sampled_from([term for term, _ in WRITTEN if isinstance(term, Opaque)]),
)


def nests(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(inner, inner), max_size=3)
    improper = inner.filter(lambda term: not isinstance(term, list | ImproperList))
    items = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(st.integers(0, 255), max_size=9),
        st.lists(inner, max_size=4).map(tuple),
        st.builds(ImproperList, items=items, tail=improper),
        pairs.map(tuple).map(Map),
    )


terms: st.SearchStrategy[Any] = st.recursive(leaves, nests, max_leaves=12)


@given(terms, st.sampled_from(AtomEncoding))
def test_every_term_comes_back(term: ErlangTerm, encoding: AtomEncoding) -> None:
    data = encode_term(term, atoms=encoding)
    assert decode_term(data) == term
    assert decode_term(data, views=True) == term
    assert decode_term(compressed(data[1:])) == term


def test_views_show_the_bytes_of_the_file() -> None:
    data = encode_term((Atom("a"), b"body"))
    term = decode_term(data, views=True)
    assert isinstance(term, tuple)
    assert isinstance(term[1], memoryview)
    assert term[1].obj is data


def test_the_recovery_terms_of_a_stopped_broker_are_read() -> None:
    """Each object of its hash table is a status word, a size that counts itself, and a term."""
    status = b"\x12\x34\x56\x78"
    found: dict[str, Any] = {}
    with tarfile.open(GOLDEN / "c4_props_ttl_priority_clean.tar.gz") as archive:
        for member in archive.getmembers():
            if not member.name.endswith("/recovery.dets"):
                continue
            file = archive.extractfile(member)
            assert file is not None
            for rest in file.read().split(status)[1:]:
                data = rest[4 : int.from_bytes(rest[:4], "big")]
                term: Any = decode_term(data)
                assert encode_term(term) == data
                found[bytes(term[0]).decode("ascii")] = term[1]
    assert len(found) == 26
    assert "C25KAUALL8BC18EPSCDVV7Q5" in found
    for pairs in found.values():
        assert {key.name for key, _ in pairs} == {
            "segments",
            "next_seq_id",
            "next_deliver_seq_id",
            "persistent_ref",
            "persistent_count",
            "persistent_bytes",
        }


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data.hex()[:24])
def test_a_term_cut_anywhere_is_truncated(data: bytes) -> None:
    for cut in cuts(data):
        with pytest.raises(TruncatedData):
            decode_term(cut)
    for cut in cuts(compressed(data[1:])):
        with pytest.raises(TruncatedData):
            decode_term(cut)


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data.hex()[:24])
def test_a_flipped_bit_gives_a_term_or_bad_data(data: bytes) -> None:
    for original in (data, compressed(data[1:])):
        for bit in range(8 * len(original)):
            found = attempted(decode_term, flipped(original, bit))
            if not isinstance(found, BadData):
                assert decode_term(encode_term(found)) == found


@given(
    st.binary(max_size=80), st.sampled_from([b"", b"\x83", b"\x83\x68\x03", b"\x83\x6c\0\0\0\x02"])
)
def test_garbage_gives_a_term_or_bad_data(data: bytes, start: bytes) -> None:
    found = attempted(decode_term, start + data)
    assert not isinstance(found, BadData) or found.reason


@pytest.mark.parametrize(
    "text",
    [
        "8261 00",  # another version
        "8361 0000",  # a byte too many
        "8300",
        "8370 00",  # a function
        "8371 640001616400016161 01",  # an exported function
        "8352 00",  # a reference to a cache of atoms
        "8346 7FF8000000000000",  # not a number
        "8346 7FF0000000000000",  # infinite
        "8363" + b"nan".ljust(31, b"\0").hex(),
        "8363" + b"1_0.0e+00".ljust(31, b"\0").hex(),
        "8363" + b"9.90000000000000000000e+999".ljust(31, b"\0").hex(),
        "836E 01 02 01",  # a third sign
        "8377 01 FF",  # not UTF-8
        "8364 0100" + "61" * 256,  # an atom of 256 letters
        "834D 00000000 03",  # a bit string without bytes
        "834D 00000001 09 00",
        "834D 00000001 00 00",
        "8358 6101" + "00" * 12,  # a node whose name is a number
    ],
)
def test_what_no_broker_writes_is_refused(text: str) -> None:
    with pytest.raises(CorruptData):
        decode_term(bytes.fromhex(text))


def test_an_atom_of_more_than_255_characters_is_refused() -> None:
    with pytest.raises(InvalidValue):
        Atom("a" * 256)


# --- hostile claims ------------------------------------------------------------------------------


def peak_of(data: bytes) -> tuple[int, BadData]:
    """Return how much memory the refusal of ``data`` takes at most, and the refusal."""
    tracemalloc.start()
    try:
        with pytest.raises(BadData) as caught:
            decode_term(data)
        return tracemalloc.get_traced_memory()[1], caught.value
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tag", [105, 108, 109, 111, 116, 77])
@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x01000000])
def test_a_claim_of_gigabytes_is_refused_without_memory(tag: int, size: int) -> None:
    for wrapping in (b"\x83", b"\x83\x68\x01", b"\x83\x6c\x00\x00\x00\x01"):
        peak, _ = peak_of(wrapping + bytes((tag,)) + pack(">I", size) + b"\x01" + bytes(50))
        assert peak < 100_000


@pytest.mark.parametrize(
    "level",
    [b"\x68\x01", b"\x69\0\0\0\x01", b"\x6c\0\0\0\x01", b"\x6c\0\0\0\0", b"\x74\0\0\0\x01\x6a"],
)
def test_a_nesting_of_100_000_is_refused_early(level: bytes) -> None:
    peak, error = peak_of(b"\x83" + level * 100_000 + b"\x6a" * 100_001)
    assert "deep" in error.reason
    assert peak < 1_000_000


def test_a_nesting_up_to_the_bound_is_read() -> None:
    data = b"\x83" + b"\x68\x01" * (DEPTH_MAX - 1) + b"\x6a"
    assert encode_term(decode_term(data)) == data
    with pytest.raises(CorruptData, match="deep"):
        decode_term(b"\x83" + b"\x68\x01" * DEPTH_MAX + b"\x6a")


@pytest.mark.slow
def test_a_term_of_too_many_values_is_refused() -> None:
    """A byte in the file may cost a hundred in memory."""
    many = 8 * COUNT_MAX
    peak, error = peak_of(b"\x83\x6c" + pack(">I", many) + b"\x6a" * (many + 1))
    assert "values" in error.reason
    assert peak < 200 * COUNT_MAX
    strings = b"\x6b\xff\xff" + bytes(65535)
    _, error = peak_of(b"\x83\x68\x40" + strings * 64)
    assert "values" in error.reason


def test_an_integer_too_long_to_print_is_refused() -> None:
    size = INTEGER_SIZE_MAX + 1
    _, error = peak_of(b"\x83\x6f" + pack(">I", size) + b"\0" + b"\xff" * size)
    assert "integer" in error.reason
    longest = decode_term(b"\x83\x6f" + pack(">I", size - 1) + b"\0" + b"\xff" * (size - 1))
    assert str(longest)


BOMB_SIZE = 64 << 20


@cache
def bomb() -> bytes:
    """Return the compressed bytes of a binary of zeros."""
    return zlib.compress(b"\x6d" + pack(">I", BOMB_SIZE) + bytes(BOMB_SIZE), 9)


@pytest.mark.parametrize("size", [0, 5, 1000, 5 + BOMB_SIZE, 0xFFFFFFFF])
def test_a_zip_bomb_is_refused_without_memory(size: int) -> None:
    data = b"\x83\x50" + pack(">I", size) + bomb()
    peak, error = peak_of(data)
    assert isinstance(error, CorruptData)
    assert peak < 1_000_000


def test_a_compressed_term_that_says_too_little_or_too_much_is_refused() -> None:
    body = b"\x6d" + pack(">I", 100) + bytes(100)
    for size in (len(body) - 1, len(body) + 1, INFLATED_SIZE_MAX):
        with pytest.raises(BadData):
            decode_term(compressed(body, size))
    for damaged in (compressed(body) + b"\0", b"\x83\x50\0\0\0\x01garbage"):
        with pytest.raises(CorruptData):
            decode_term(damaged)
