"""The body of an envelope: the frame around its changes."""

from __future__ import annotations

from struct import pack_into

import pytest

from penstock.errors import BadRecord
from penstock.formats.records.changes import Envelope, decode_change, encode_change
from penstock.formats.records.envelope import PartBody, decode_envelope
from penstock.formats.records.header import HEADER_SIZE, decode_header
from support.damage import cuts, flipped
from support.record_examples import CHANGES, REQUEST_BODY, record_of

BODY = record_of(CHANGES["envelope"])[HEADER_SIZE:]


def changed(offset: int, form: str, value: int) -> bytes:
    copy = bytearray(BODY)
    pack_into(form, copy, offset, value)
    return bytes(copy)


def test_the_checksum_of_an_inner_add_is_that_of_the_request() -> None:
    _, part = decode_envelope(BODY, 0, len(BODY))
    assert isinstance(part, PartBody)
    header = decode_header(record_of(CHANGES["add"]))
    assert BODY[part.start : part.end] == REQUEST_BODY
    assert part.checksum == header.body_checksum


@pytest.mark.parametrize(
    "body",
    [
        b"",
        changed(0, "<I", 0),
        changed(0, "<I", 1),
        changed(0, "<I", 3),
        changed(0, "<I", 2**32 - 1),
        changed(4, "<I", 1),
        changed(8, "B", 5),
        changed(8, "B", 9),
        changed(8, "B", 11),
        changed(9, "B", 1),
        changed(28, "<I", 16),
        changed(28, "<I", 2**32 - 1),
        changed(32, "<I", 0),
        changed(36, "<I", 1),
    ],
)
def test_a_frame_that_breaks_a_rule_is_refused(body: bytes) -> None:
    with pytest.raises(BadRecord):
        decode_envelope(body, 0, len(body))


def test_an_envelope_that_is_cut_is_refused() -> None:
    for cut in cuts(BODY):
        with pytest.raises(BadRecord):
            decode_envelope(cut, 0, len(cut))


def test_a_flipped_bit_changes_who_or_where_or_is_refused() -> None:
    """The checksum of the record covers all of it; this is what the frame itself still notices."""
    header = decode_header(record_of(CHANGES["envelope"]))
    before = encode_change(CHANGES["envelope"])
    for bit in range(8 * len(BODY)):
        body = flipped(BODY, bit)
        try:
            change = decode_change(header, body, 0, len(body))
        except BadRecord:
            continue
        assert isinstance(change, Envelope)
        assert encode_change(change) != before


def test_an_inner_change_without_a_queue_is_refused() -> None:
    header = decode_header(record_of(CHANGES["envelope"]))
    body = changed(12, "<I", 0)
    with pytest.raises(BadRecord):
        decode_change(header, body, 0, len(body))
