"""Notes: golden bytes, the page that shows them, and payloads that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, UnsupportedVersion
from penstock.formats.taskflux.notes import (
    QUEUE,
    Header,
    Ids,
    Note,
    ProducerNote,
    QueueNote,
    TaskNotes,
    decode_note,
    encode_notes,
)
from penstock.model import INT32_MAX, INT64_MAX, LEASE_MS_MAX, UINT64_MAX, QueueName
from support.report import report
from support.taskflux_strategies import names

PAGE = Path(__file__).parents[3] / "docs/formats/extensions.md"

# docs/formats/extensions.md, version 1: key and payload of each.
GOLDEN: list[tuple[Note, int, str]] = [
    (Header(next_number=4), 0, "00 00 00 01 00 00 00 00 00 00 00 04"),
    (
        QueueNote(
            name=QueueName("orders"),
            number=2,
            last_id=9,
            lease_ms=30_000,
            attempts_max=3,
            dead_letter=0,
        ),
        1,
        (
            "06 6F 72 64 65 72 73 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 09"
            " 00 00 75 30 00 00 00 03 00 00 00 00 00 00 00 01"
        ),
    ),
    (
        TaskNotes(queue=2, rows=[(8, 1, 1_700_000_001_000, -1)]),
        2,
        (
            "00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 08 00 00 00 01"
            " 00 00 01 8B CF E5 6B E8 FF FF FF FF FF FF FF FF"
        ),
    ),
    (
        ProducerNote(id=bytes(range(16)), forgotten=-1, requests=[(7, 2, 5, [(4, 3), (8, 2)])]),
        3,
        (
            "00 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 00 00 00 00 00 00 00 00 00 00 00 00 01"
            " 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 02 00 00 00 05 00 00 00 02"
            " 00 00 00 00 00 00 00 04 00 00 00 03 00 00 00 00 00 00 00 08 00 00 00 02"
        ),
    ),
    (
        Ids(queue=2, ids=(8, 9)),
        4,
        "00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 09",
    ),
]

uint64 = st.integers(0, UINT64_MAX)
uint32 = st.integers(0, 2**32 - 1)
times = st.integers(-1, INT64_MAX)
requests = st.tuples(uint64, uint64, uint32, st.lists(st.tuples(uint64, uint32), max_size=3))
notes: st.SearchStrategy[Note] = st.one_of(
    st.builds(Header, next_number=uint64),
    st.builds(
        QueueNote,
        name=names,
        number=uint64,
        last_id=uint64,
        lease_ms=st.integers(1, LEASE_MS_MAX),
        attempts_max=st.none() | st.integers(1, INT32_MAX),
        dead_letter=st.none() | st.integers(0, UINT64_MAX - 1),
    ),
    st.builds(
        TaskNotes, queue=uint64, rows=st.lists(st.tuples(uint64, uint32, times, times), max_size=4)
    ),
    st.builds(Ids, queue=uint64, ids=st.lists(uint64, max_size=4).map(tuple)),
    st.builds(
        ProducerNote,
        id=st.binary(min_size=16, max_size=16),
        forgotten=st.integers(-1, UINT64_MAX),
        requests=st.lists(requests, max_size=3),
    ),
)


@pytest.mark.parametrize(("note", "key", "text"), GOLDEN, ids=lambda v: type(v).__name__)
def test_a_note_has_these_bytes(note: Note, key: int, text: str) -> None:
    assert list(encode_notes([note])) == [(key, bytes.fromhex(text))]
    assert decode_note(key, bytes.fromhex(text)) == note


def test_the_page_shows_the_same_bytes() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    for _, key, text in GOLDEN:
        assert f"{key} {text}" in page
    assert QUEUE in page


@given(st.lists(notes, max_size=5))
def test_what_is_encoded_is_decoded(found: list[Note]) -> None:
    assert [decode_note(*task) for task in encode_notes(found)] == found


@given(notes, st.data())
def test_a_note_cut_anywhere_is_bad_data_or_a_shorter_list(note: Note, data: st.DataObject) -> None:
    ((key, payload),) = encode_notes([note])
    if not payload:
        return
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    try:
        found = decode_note(key, cut)
    except BadData:
        return
    # Rows and ids run to the end of the payload; the snapshot's checksum tells of a cut.
    assert isinstance(found, TaskNotes | Ids)
    with pytest.raises(BadData):
        decode_note(key, payload + b"\0")


def test_a_flipped_bit_gives_a_note_or_bad_data_and_nothing_else() -> None:
    meant = refused = 0
    for _, key, text in GOLDEN:
        payload = bytes.fromhex(text)
        for bit in range(8 * len(payload)):
            flipped = bytearray(payload)
            flipped[bit // 8] ^= 1 << bit % 8
            try:
                decode_note(key, bytes(flipped))
                meant += 1
            except BadData:
                refused += 1
    report(f"notes, a flipped bit: {meant} mean something, {refused} refused")
    assert refused


@given(st.integers(-1, 6), st.binary(max_size=80))
def test_any_bytes_are_a_note_or_bad_data(key: int, payload: bytes) -> None:
    try:
        note = decode_note(key, payload)
    except BadData:
        return
    assert list(encode_notes([note])) == [(key, payload)]


def test_a_later_version_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(UnsupportedVersion, match="newer Penstock"):
        decode_note(0, bytes.fromhex("00 00 00 02 00 00 00 00 00 00 00 04"))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (6, ""),
        (-1, "00"),
        (1, "01 61" + 16 * "00" + "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"),
        (2, 8 * "00" + 8 * "00" + "00 00 00 00" + "FF FF FF FF FF FF FF FE" + 8 * "FF"),
        (3, 16 * "00" + "02" + 8 * "00" + 4 * "00"),
        (3, 16 * "00" + "00" + "00 00 00 00 00 00 00 01" + 4 * "00"),
        (4, "00 00 00 00 00 00 00 02 00"),
    ],
    ids=["unknown", "negative", "no lease", "time", "flag", "forgotten without flag", "half an id"],
)
def test_what_can_not_be_is_refused(key: int, text: str) -> None:
    with pytest.raises(CorruptData):
        decode_note(key, bytes.fromhex(text))
