"""Bodies: compressed, encrypted, both or neither; closed, cut short, damaged and hostile."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from struct import pack

import lz4.frame  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DependencyMissing, InvalidValue
from penstock.formats.beats.body import PIECE_MAX, BodyDecoder, BodyEncoder
from penstock.formats.beats.frame import BadStretch, Frame, FrameReader, encode_frames, read_frames
from penstock.formats.beats.segment import IV_SIZE, Options
from support.damage import flipped

KEY = b"sixteen bytes ok"
IV = bytes(range(50, 66))
ALL_OPTIONS = [Options(options) for options in range(8)]
STREAMS = st.lists(
    st.one_of(st.binary(max_size=200), st.integers(0, 3000).map(lambda size: b"ab" * size)),
    max_size=6,
)


def encoder(options: Options) -> BodyEncoder:
    return BodyEncoder(options, key=KEY, iv=IV)


def encoded(options: Options, streams: list[bytes], *, is_closed: bool) -> bytes:
    body = encoder(options)
    parts = [body.begin(), *map(body.encode, streams)]
    return b"".join(parts) + (body.end() if is_closed else b"")


def pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = number = 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        yield data[at : at + size]
        at, number = at + size, number + 1


def decoded(options: Options, data: bytes, sizes: list[int]) -> tuple[bytes, BodyDecoder]:
    decoder = BodyDecoder(options, key=KEY)
    return b"".join(out for piece in pieces(data, sizes) for out in decoder.feed(piece)), decoder


@settings(max_examples=100)
@given(
    st.sampled_from(ALL_OPTIONS),
    STREAMS,
    st.booleans(),
    st.lists(st.integers(1, 5000), min_size=1, max_size=5),
)
def test_a_stream_comes_back_in_pieces_of_any_size(
    options: Options, streams: list[bytes], is_closed: bool, sizes: list[int]
) -> None:
    data = encoded(options, streams, is_closed=is_closed)
    stream, decoder = decoded(options, data, sizes)
    assert stream == b"".join(streams)
    assert decoder.finish() is None
    assert decoder.torn_size == 0
    assert decoder.is_closed is (is_closed and bool(options & Options.COMPRESSED))


@pytest.mark.parametrize("options", ALL_OPTIONS)
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_body_cut_anywhere_gives_everything_up_to_its_last_whole_block(
    options: Options, is_closed: bool
) -> None:
    batches = [
        encode_frames([b"a" * 90, b"bcd"]),
        encode_frames([b"e"]),
        encode_frames([b"f" * 70]),
    ]
    body = encoder(options)
    data, ends = body.begin(), []
    for number, batch in enumerate(batches):
        data += body.encode(batch)
        ends.append((len(data), b"".join(batches[: number + 1])))
    if is_closed:
        data += body.end()
    whole = ends[-1][1]
    for size in range(len(data)):
        stream, decoder = decoded(options, data[:size], [size or 1])
        at_least = max((part for end, part in ends if end <= size), default=b"", key=len)
        assert whole.startswith(stream)
        assert stream.startswith(at_least)
        assert not decoder.is_closed
        if options & Options.ENCRYPTED and 0 < size < IV_SIZE:
            assert decoder.finish() == "the body ends inside its initialization vector"
        else:
            assert decoder.finish() is None
        # What comes out is frames, and nothing in it is damaged but its end.
        found = list(read_frames(stream, 12))
        assert all(isinstance(it, Frame) for it in found[:-1])


@pytest.mark.parametrize("options", [Options.COMPRESSED, Options.COMPRESSED | Options.ENCRYPTED])
def test_a_turned_bit_costs_nothing_that_stands_before_its_block(options: Options) -> None:
    first, second = encode_frames([b"a" * 90, b"bcd"]), encode_frames([b"f" * 70])
    body = encoder(options)
    head = body.begin()
    block = body.encode(first)
    data = head + block + body.encode(second) + body.end()
    for bit in range(8 * IV_SIZE, 8 * len(data)):
        stream, decoder = decoded(options, flipped(data, bit), [len(data)])
        assert len(stream) <= 2 * PIECE_MAX
        if bit // 8 >= len(head) + len(block):
            assert stream.startswith(first)
        if stream != first + second:
            assert decoder.finish() is not None or decoder.torn_size > 0


@settings(max_examples=100)
@given(st.sampled_from(ALL_OPTIONS), st.binary(max_size=300))
def test_garbage_never_fails(options: Options, data: bytes) -> None:
    stream, decoder = decoded(options, data, [7])
    assert decoder.finish() is None or decoder.torn_size > 0
    assert sum(it.size for it in read_frames(stream, 12)) == len(stream)


@settings(max_examples=100)
@given(st.binary(max_size=200), st.binary(min_size=1, max_size=60), st.integers(0, 400))
def test_a_damaged_block_is_the_end_and_never_a_failure(
    stream: bytes, garbage: bytes, at: int
) -> None:
    data = encoded(Options.COMPRESSED, [stream, stream * 9], is_closed=True)
    at %= len(data)
    changed = data[:at] + garbage + data[at + len(garbage) :]
    out, decoder = decoded(Options.COMPRESSED, changed, [11])
    again, _ = decoded(Options.COMPRESSED, changed, [len(changed)])
    assert out == again
    assert decoder.finish() is None or decoder.torn_size > 0


def test_behind_damage_nothing_is_kept() -> None:
    decoder = BodyDecoder(Options.COMPRESSED, key=None)
    assert list(decoder.feed(b"no LZ4 at all")) == []
    tracemalloc.start()
    try:
        for _ in range(100):
            assert list(decoder.feed(bytes(1_000_000))) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
    assert decoder.torn_size == 13 + 100_000_000
    assert decoder.finish() == "damaged LZ4, 0 bytes into it: no LZ4 frame begins with 4c206f6e"
    assert not decoder.is_closed


def test_a_wrong_content_checksum_costs_nothing_of_the_stream() -> None:
    data = bytearray(encoded(Options.COMPRESSED, [b"abc", b"def"], is_closed=True))
    data[-1] ^= 1
    stream, decoder = decoded(Options.COMPRESSED, bytes(data), [len(data)])
    assert stream == b"abcdef"
    assert not decoder.is_closed
    assert "ERROR_contentChecksum_invalid" in str(decoder.finish())
    assert decoder.torn_size == 8


# --- what others may write -----------------------------------------------------------------------

TEXT = b"a text that repeats, a text that repeats. " * 5000


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("block_linked", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_other_parameters_of_lz4_are_read(
    block_size: int, block_linked: bool, checksums: bool, store_size: bool
) -> None:
    data = lz4.frame.compress(
        TEXT,
        block_size=block_size,
        block_linked=block_linked,
        content_checksum=checksums,
        block_checksum=checksums,
        store_size=store_size,
    )
    for sizes in ([len(data)], [13]):
        stream, decoder = decoded(Options.COMPRESSED, data, sizes)
        assert stream == TEXT
        assert decoder.is_closed
        assert decoder.finish() is None


def test_lz4_frames_that_follow_each_other_are_one_stream() -> None:
    skipped = pack("<II", 0x184D2A5C, 5) + b"not us"[:5]
    empty = lz4.frame.compress(b"")
    data = skipped + lz4.frame.compress(b"abc") + empty + skipped + lz4.frame.compress(TEXT)
    for sizes in ([len(data)], [1], [10]):
        stream, decoder = decoded(Options.COMPRESSED, data, sizes)
        assert stream == b"abc" + TEXT
        assert decoder.is_closed
        assert decoder.finish() is None


def test_garbage_behind_the_end_mark_is_told_and_costs_nothing() -> None:
    data = encoded(Options.COMPRESSED, [b"abc"], is_closed=True)
    stream, decoder = decoded(Options.COMPRESSED, data + bytes(10), [1])
    assert stream == b"abc"
    assert not decoder.is_closed
    assert str(decoder.finish()).startswith(f"damaged LZ4, {len(data)} bytes into it")
    assert decoder.torn_size == 10


# --- hostile bodies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count", [pytest.param(64, id="256MiB"), pytest.param(1024, id="4GiB", marks=pytest.mark.heavy)]
)
def test_a_bomb_never_sits_in_memory(count: int) -> None:
    compressor = lz4.frame.LZ4FrameCompressor(
        block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, auto_flush=True
    )
    head, block = compressor.begin(), compressor.compress(bytes(PIECE_MAX))
    # Each block of 4 MiB has 16 KB in the file.
    bomb = head + block * count + compressor.flush()
    decoder = BodyDecoder(Options.COMPRESSED, key=None)
    reader = FrameReader(12)
    total = 0
    tracemalloc.start()
    try:
        for piece in decoder.feed(bomb):
            assert len(piece) <= PIECE_MAX
            total += len(piece)
            if total <= 8 * PIECE_MAX:  # frames of it are searched for in bounded memory too
                assert list(reader.feed(piece, is_last=False)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == count * PIECE_MAX
    assert peak < 10 * PIECE_MAX
    (tail,) = reader.feed(b"", is_last=True)
    assert isinstance(tail, BadStretch)


def test_a_block_that_claims_to_be_huge_is_refused_before_it_is_there() -> None:
    head = BodyEncoder(Options.COMPRESSED).begin()
    for claim in (PIECE_MAX + 1, 2**31 - 1, 2**32 - 1):
        stream, decoder = decoded(Options.COMPRESSED, head + pack("<I", claim), [3])
        assert stream == b""
        assert "a block of" in str(decoder.finish())


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_pieces_are_bounded_whatever_is_fed_at_once(options: Options) -> None:
    stream = bytes(3 * PIECE_MAX + 5)
    data = encoded(options, [stream], is_closed=True)
    decoder = BodyDecoder(options, key=KEY)
    sizes = [len(piece) for piece in decoder.feed(data)]
    assert sum(sizes) == len(stream)
    assert max(sizes) <= PIECE_MAX


# --- keys and libraries --------------------------------------------------------------------------


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_keys_are_asked_for_only_where_they_are_needed(options: Options) -> None:
    if options & Options.ENCRYPTED:
        for key in (None, b"", bytes(15), bytes(32)):
            with pytest.raises(InvalidValue):
                BodyDecoder(options, key=key)
            with pytest.raises(InvalidValue):
                BodyEncoder(options, key=key, iv=IV)
        for iv in (None, bytes(15)):
            with pytest.raises(InvalidValue, match="vector has 16 bytes"):
                BodyEncoder(options, key=KEY, iv=iv)
    else:
        BodyDecoder(options, key=None)
        BodyEncoder(options)


def test_a_wrong_key_gives_other_bytes_and_no_failure() -> None:
    stream = encode_frames([b"a" * 90, b"bcd"])
    data = encoded(Options.ENCRYPTED, [stream], is_closed=True)
    decoder = BodyDecoder(Options.ENCRYPTED, key=bytes(16))
    wrong = b"".join(decoder.feed(data))
    assert len(wrong) == len(stream)
    assert all(isinstance(it, BadStretch) for it in read_frames(wrong, 12))


@pytest.mark.parametrize(
    ("library", "options"),
    [
        ("lz4.frame", Options.COMPRESSED),
        ("cryptography.hazmat.primitives.ciphers", Options.ENCRYPTED),
    ],
)
def test_a_missing_library_is_named_by_its_extra(
    library: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DependencyMissing, match=r"pip install 'penstock\[spool\]'"):
        BodyDecoder(options, key=KEY)
    with pytest.raises(DependencyMissing, match=r"pip install 'penstock\[spool\]'"):
        encoder(options)
