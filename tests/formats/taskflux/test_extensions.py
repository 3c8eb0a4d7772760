"""Extensions: golden bytes, the page that shows them, and bytes that are none."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, UnsupportedVersion
from penstock.formats.taskflux.deltas import decode_delta, encode_delta
from penstock.formats.taskflux.extensions import (
    IDS_MAX,
    decode_extension,
    encode_extension,
    is_extension,
)
from penstock.formats.taskflux.generation import Contents
from penstock.model import (
    INT32_MAX,
    INT64_MAX,
    LEASE_MS_MAX,
    NOTHING,
    RESERVED_PREFIX,
    UINT64_MAX,
    Adding,
    Creating,
    DeleteQueue,
    Extension,
    QueueName,
    Removing,
    Returning,
    Terms,
)
from penstock.queues.replay import Queues
from support.deltas import apply_delta
from support.report import report

PAGE = Path(__file__).parents[3] / "docs/formats/extensions.md"
PRODUCER = bytes(range(16))

# docs/formats/extensions.md, version 1: the body of each.
GOLDEN: dict[str, tuple[Extension, str]] = {
    "expiring": (
        Adding(count=2, terms=Terms(expires_ms=1_700_000_060_000)),
        "01 00 00 00 02 02 00 00 01 8B CF E6 52 60",
    ),
    "all terms": (
        Adding(
            count=3,
            terms=Terms(
                not_before_ms=1_700_000_000_500,
                expires_ms=1_700_000_060_000,
                attempts=2,
                producer=PRODUCER,
                sequence=7,
                total=5,
            ),
        ),
        (
            "01 00 00 00 03 0F 00 00 01 8B CF E5 69 F4 00 00 01 8B CF E6 52 60 00 00 00 02"
            " 00 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 00 00 00 00 00 00 00 07 00 00 00 05"
        ),
    ),
    "creating": (
        Creating(lease_ms=30_000, attempts_max=3, dead_letter=0),
        "02 00 00 75 30 00 00 00 03 00 00 00 00 00 00 00 01",
    ),
    "returning": (
        Returning(queue=1, ids=(1, 2), not_before_ms=1_700_000_001_000),
        (
            "03 00 00 00 00 00 00 00 01 00 00 01 8B CF E5 6B E8"
            " 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02"
        ),
    ),
    "removing": (Removing(ids=(3,)), "04 00 00 00 00 00 00 00 03"),
}
ENTRIES = {
    "expiring": "44 20 21 70 65 6E 73 74 6F 63 6B 2E 31 2E 41 51 41 41 41 41 49 43 41 41 41 42 69 38"
    " 2F 6D 55 6D 41 3D",
    "removing": "44 18 21 70 65 6E 73 74 6F 63 6B 2E 31 2E 42 41 41 41 41 41 41 41 41 41 41 44",
}

times = st.none() | st.integers(0, INT64_MAX)
ids = st.lists(st.integers(1, UINT64_MAX), min_size=1, max_size=IDS_MAX).map(tuple)


@st.composite
def addings(draw: st.DrawFn) -> Adding:
    count = draw(st.integers(1, 2**32 - 1))
    terms = Terms(
        not_before_ms=draw(times),
        expires_ms=draw(times),
        attempts=draw(st.integers(0, 2**32 - 1)),
    )
    if draw(st.booleans()):
        terms = Terms(
            not_before_ms=terms.not_before_ms,
            expires_ms=terms.expires_ms,
            attempts=terms.attempts,
            producer=draw(st.binary(min_size=16, max_size=16)),
            sequence=draw(st.integers(0, UINT64_MAX)),
            total=draw(st.integers(count, 2**32 - 1)),
        )
    return Adding(count=count, terms=terms)


extensions: st.SearchStrategy[Extension] = st.one_of(
    addings(),
    st.builds(
        Creating,
        lease_ms=st.integers(1, LEASE_MS_MAX),
        attempts_max=st.none() | st.integers(1, INT32_MAX),
        dead_letter=st.none() | st.integers(0, UINT64_MAX - 1),
    ),
    st.builds(Returning, queue=st.integers(0, UINT64_MAX), ids=ids, not_before_ms=times),
    st.builds(Removing, ids=ids),
)


def decoded(data: bytes) -> Extension | None:
    return decode_extension(data, 0, len(data))


def entry(body: bytes, prefix: bytes = b"!penstock.1.") -> bytes:
    name = prefix + b64encode(body)
    return bytes((0x44, len(name))) + name


@pytest.mark.parametrize("name", GOLDEN)
def test_an_extension_has_these_bytes(name: str) -> None:
    extension, text = GOLDEN[name]
    data = entry(bytes.fromhex(text))
    assert encode_extension(extension) == data
    assert decoded(data) == extension
    if name in ENTRIES:
        assert data == bytes.fromhex(ENTRIES[name])


def test_the_page_shows_the_same_bytes() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    for extension, text in GOLDEN.values():
        assert text in page
        if text in ENTRIES.values():
            assert encode_extension(extension)[2:].decode() in page
    for text in ENTRIES.values():
        assert text in page


@given(extensions)
@example(Returning(queue=UINT64_MAX, ids=(UINT64_MAX,) * IDS_MAX, not_before_ms=INT64_MAX))
def test_what_is_encoded_is_decoded_and_a_plain_reader_ignores_it(extension: Extension) -> None:
    data = encode_extension(extension)
    assert is_extension(data, 0, len(data))
    assert decoded(data) == extension
    framed = b"before" + data + b"behind"
    assert decode_extension(framed, 6, 6 + len(data)) == extension
    for contents in (Contents.DELTAS_BY_VALUE, Contents.DELTAS_BY_ID):
        delta = decode_delta(data, contents)
        assert isinstance(delta, DeleteQueue)
        assert delta.queue.startswith(RESERVED_PREFIX)
        queues = Queues()
        apply_delta(queues, delta)
        assert list(queues.by_name) == [""]


@given(extensions, st.data())
def test_an_extension_cut_anywhere_is_bad_data(extension: Extension, data: st.DataObject) -> None:
    whole = encode_extension(extension)
    cut = data.draw(st.integers(14, len(whole) - 1))
    with pytest.raises(BadData):
        decoded(whole[:cut])
    name = whole[2:cut]
    try:
        found = decoded(bytes((0x44, len(name))) + name)  # with a length that fits
    except BadData:
        return
    # Ids run to the end of the body: a shorter list has the same shape.
    assert isinstance(extension, Returning | Removing)
    assert isinstance(found, type(extension))
    assert found.ids == extension.ids[: len(found.ids)]


def test_a_flipped_bit_gives_an_extension_or_bad_data_and_nothing_else() -> None:
    meant, refused, other = 0, 0, 0
    for extension, _ in GOLDEN.values():
        data = encode_extension(extension)
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            if not is_extension(flipped, 0, len(flipped)):
                other += 1
                continue
            try:
                decoded(bytes(flipped))
                meant += 1
            except BadData:
                refused += 1
    report(
        f"extensions, a flipped bit: {meant} mean something, {refused} refused, {other} no more ours"
    )
    assert refused
    assert other


@given(st.binary(max_size=60))
def test_a_body_of_any_bytes_is_an_extension_or_bad_data(body: bytes) -> None:
    try:
        extension = decoded(entry(body))
    except CorruptData:
        return
    assert extension is not None
    assert encode_extension(extension) == entry(body)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "09",
        "01 00 00 00 00 02 00 00 00 00 00 00 00 01",
        "01 00 00 00 01 10",
        "01 00 00 00 01 01 FF FF FF FF FF FF FF FF",
        "01 00 00 00 02 08" + 16 * "00" + "00 00 00 00 00 00 00 00 00 00 00 01",
        "02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
        "02 05 26 5C 01 00 00 00 00 00 00 00 00 00 00 00 00",
        "02 00 00 00 01 80 00 00 00 00 00 00 00 00 00 00 00",
        "03 00 00 00 00 00 00 00 01 FF FF FF FF FF FF FF FE 00 00 00 00 00 00 00 01",
        "03 00 00 00 00 00 00 00 01 FF FF FF FF FF FF FF FF",
        "04 00 00 00 00 00 00 00 00",
        "04 00",
    ],
)
def test_what_can_not_be_is_refused(body: str) -> None:
    with pytest.raises(CorruptData):
        decoded(entry(bytes.fromhex(body)))


def test_a_later_version_is_refused_and_says_what_to_do() -> None:
    for prefix in (b"!penstock.2.", b"!penstock.10.", b"!penstock.1"):
        with pytest.raises(UnsupportedVersion, match="newer Penstock"):
            decoded(entry(b"", prefix))


def test_a_reserved_name_without_a_version_says_nothing() -> None:
    data = encode_delta(NOTHING)
    assert is_extension(data, 0, len(data))
    assert decoded(data) is None


def test_other_deltas_are_no_extensions() -> None:
    for name in ("orders", "!penstock", "penstock.1.", "!Penstock.1.AAAA"):
        data = encode_delta(DeleteQueue(queue=QueueName(name)))
        assert not is_extension(data, 0, len(data))
    assert not is_extension(b"\x43" + encode_delta(NOTHING)[1:], 0, 19)


def test_a_length_that_does_not_fit_is_refused_as_a_plain_reader_refuses_it() -> None:
    data = bytearray(encode_extension(Removing(ids=(1,))))
    data[1] += 1
    with pytest.raises(CorruptData, match="length"):
        decoded(bytes(data))
    with pytest.raises(BadData):
        decode_delta(bytes(data), Contents.DELTAS_BY_VALUE)
