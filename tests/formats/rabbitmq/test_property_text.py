"""Property blocks as text in bulk: what ``json_of_properties`` gives, or nothing."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData
from penstock.formats.rabbitmq.properties import (
    Header,
    Kind,
    Properties,
    Value,
    decode_properties,
    encode_properties,
    json_of_properties,
)
from penstock.formats.rabbitmq.property_text import PLAIN_SIZE_MAX, property_text
from support.damage import cuts, flipped

encode = json.JSONEncoder(separators=(",", ":")).encode


def texts(blocks: list[bytes], *, interpreted: bool = False) -> list[str | None]:
    """Return what the kernel makes of blocks in one buffer, with other bytes between them."""
    data, offsets = b"", []
    for block in blocks:
        data += b"\x10\x00\x02"
        offsets.append(len(data))
        data += block
    found = property_text(
        np.frombuffer(data + b"\xff", dtype=np.uint8),
        np.array(offsets, dtype=np.int64),
        np.array([len(block) for block in blocks], dtype=np.int64),
        interpreted=interpreted,
    )
    return [
        None if length < 0 else found.text[offset : offset + length].tobytes().decode("ascii")
        for offset, length in zip(found.offset.tolist(), found.length.tolist(), strict=True)
    ]


def check(blocks: list[bytes]) -> list[str | None]:
    """Hold the kernel to the plain decoder; return its texts."""
    found = texts(blocks)
    assert texts(blocks, interpreted=True) == found
    for block, text in zip(blocks, found, strict=True):
        if text is not None:
            assert text == encode(json_of_properties(decode_properties(block)))
    return found


plain_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12).map(
    lambda text: text.replace('"', "'").replace("\\", "/").encode()
)
any_text = plain_text | st.binary(max_size=12)


def integers(kind: Kind, low: int, high: int) -> st.SearchStrategy[Value]:
    return st.integers(low, high).map(lambda number: Value(kind, number))


def values(text: st.SearchStrategy[bytes]) -> st.SearchStrategy[Value]:
    return st.one_of(
        text.map(lambda value: Value(Kind.TEXT, value)),
        st.booleans().map(lambda value: Value(Kind.BOOLEAN, value)),
        st.just(Value(Kind.VOID, None)),
        integers(Kind.INT8, -(2**7), 2**7 - 1),
        integers(Kind.UINT8, 0, 2**8 - 1),
        integers(Kind.INT16, -(2**15), 2**15 - 1),
        integers(Kind.UINT16, 0, 2**16 - 1),
        integers(Kind.INT32, -(2**31), 2**31 - 1),
        integers(Kind.UINT32, 0, 2**32 - 1),
        integers(Kind.INT64, 1 - 2**63, 2**63 - 1),
        integers(Kind.TIMESTAMP, 0, 2**63 - 1),
    )


def properties(text: st.SearchStrategy[bytes]) -> st.SearchStrategy[Properties]:
    headers = st.lists(st.builds(Header, text, values(text)), max_size=5).map(tuple)
    fields: dict[str, st.SearchStrategy[Any]] = {
        name: st.none() | text
        for name in ("content_type", "correlation_id", "reply_to", "message_id", "cluster_id")
    }
    return st.builds(
        Properties,
        headers=st.none() | headers,
        delivery_mode=st.none() | st.integers(0, 255),
        priority=st.none() | st.integers(0, 255),
        timestamp=st.none() | st.integers(0, 2**63 - 1),
        **fields,
    )


@given(st.lists(properties(plain_text).map(encode_properties), max_size=5))
def test_plain_properties_are_written_in_bulk(blocks: list[bytes]) -> None:
    assert None not in check(blocks)


@given(st.lists(properties(any_text).map(encode_properties), max_size=5))
def test_any_text_is_written_alike_or_not_at_all(blocks: list[bytes]) -> None:
    check(blocks)


@pytest.mark.parametrize(
    "rare",
    [
        Properties(content_type=b'a "quote"'),
        Properties(content_type=b"back\\slash"),
        Properties(content_type="für".encode()),
        Properties(content_type=b"\x7f"),
        Properties(headers=(Header(b"\n", Value(Kind.VOID, None)),)),
        Properties(headers=(Header(b"x", Value(Kind.DOUBLE, 1.5)),)),
        Properties(headers=(Header(b"x", Value(Kind.TABLE, ())),)),
        Properties(headers=(Header(b"x", Value(Kind.ARRAY, ())),)),
        Properties(headers=(Header(b"x", Value(Kind.BINARY, b"x")),)),
        Properties(headers=(Header(b"x", Value(Kind.INT64, -(2**63))),)),
        Properties(timestamp=2**63),
        Properties(headers=(Header(b"x", Value(Kind.TEXT, bytes(PLAIN_SIZE_MAX))),)),
    ],
    ids=[
        "quote",
        "backslash",
        "not ASCII",
        "delete",
        "newline",
        "double",
        "table",
        "array",
        "binary",
        "lowest",
        "late",
        "long",
    ],
)
def test_what_needs_thought_is_left_to_the_plain_decoder(rare: Properties) -> None:
    block = encode_properties(rare)
    assert check([block, b"\x00\x00"]) == [None, "{}"]


def test_the_shortest_headers_find_room() -> None:
    """A header without a name and a value is two bytes, and becomes the most text."""
    many = tuple(Header(b"", Value(Kind.VOID, None)) for _ in range(2000))
    (text,) = check([encode_properties(Properties(headers=many))])
    assert text is not None
    assert len(json.loads(text)["headers"]) == 2000


FULL = encode_properties(
    Properties(
        content_type=b"text/plain",
        headers=(
            Header(b"attempts", Value(Kind.INT32, -3)),
            Header(b"is", Value(Kind.BOOLEAN, True)),
            Header(b"why", Value(Kind.TEXT, b"because")),
        ),
        delivery_mode=2,
        timestamp=1_700_000_000,
        app_id=b"shop",
    )
)


def test_a_block_that_is_cut_anywhere_is_left_to_the_plain_decoder() -> None:
    assert set(check([*cuts(FULL), FULL + b"\x00"])) == {None}
    for cut in cuts(FULL):
        with pytest.raises(BadData):
            decode_properties(cut)


def test_every_flipped_bit_is_read_alike_or_left_to_the_plain_decoder() -> None:
    check([flipped(FULL, bit) for bit in range(8 * len(FULL))])


@given(seed=st.integers(0, 2**32))
def test_any_bytes_are_read_alike_or_left_to_the_plain_decoder(seed: int) -> None:
    random = Random(seed)
    block = bytearray(FULL)
    for _ in range(random.randrange(1, 4)):
        first = random.randrange(len(block))
        block[first : first + random.randrange(3)] = random.randbytes(random.randrange(3))
    check([bytes(block), random.randbytes(random.randrange(12))])
