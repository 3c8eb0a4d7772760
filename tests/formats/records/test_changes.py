"""Changes: round trips of every kind, and records that no change has."""

from __future__ import annotations

import pytest
from hypothesis import given

from penstock.errors import BadRecord
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Empty,
    RemoveTasks,
    Stamp,
    decode_change,
    encode_change,
)
from penstock.formats.records.header import (
    HEADER_SIZE,
    SKIPPABLE,
    Header,
    Kind,
    check_body,
    decode_header,
    encode_record,
)
from penstock.formats.records.ids import RemoveReason
from penstock.model import UINT64_MAX
from support.record_examples import FULL_BODY, REQUEST_BODY, record_of
from support.record_strategies import changes, stamps


def decoded(record: bytes) -> Change:
    """Return the change of a record."""
    header = decode_header(record)
    check_body(record, 0, header)
    return decode_change(header, record, HEADER_SIZE, header.size)


def record(kind: int, body: bytes = b"", **fields: int) -> bytes:
    """Return a record whose fields are given."""
    return encode_record(kind, body, index=1, term=1, time_ms=0, previous=0, **fields)


@given(changes, stamps)
def test_changes_round_trip(change: Change, stamp: Stamp) -> None:
    """Bytes are compared, not values: views into other buffers are not equal, and columns have two forms."""
    data = record_of(change, stamp)
    again = decoded(data)
    assert type(again) is type(change)
    assert record_of(again, stamp) == data
    assert encode_change(again) == encode_change(change)


@given(changes)
def test_a_change_is_decoded_alike_anywhere_in_a_buffer(change: Change) -> None:
    kind, queue_id, first_id, body = encode_change(change)
    header = decode_header(record(kind, body, queue_id=queue_id, first_id=first_id))
    around = memoryview(b"\xff" * 16 + body + b"\xff" * 8)
    again = decode_change(header, around, 16, 16 + len(body))
    assert encode_change(again) == (kind, queue_id, first_id, body)


@pytest.mark.parametrize(
    "data",
    [
        record(Kind.EMPTY, bytes(8)),
        record(Kind.EMPTY, queue_id=1),
        record(Kind.EMPTY, first_id=1),
        record(Kind.DELETE),
        record(Kind.DELETE, bytes(8), queue_id=1),
        record(Kind.DELETE, queue_id=1, first_id=1),
        record(Kind.ADD, REQUEST_BODY, first_id=1),
        record(Kind.ADD, REQUEST_BODY, queue_id=1, first_id=UINT64_MAX),
        record(Kind.ADD, FULL_BODY, queue_id=1, first_id=99),
        record(Kind.QUEUE, b'{"name":"a","options":{},"policy":{}}\0\0\0'),
        record(12),
        record(127),
        record(Kind.FOOTER, flags=SKIPPABLE),
        record(255),
        record(Kind.EMPTY, flags=1),
        record(Kind.EMPTY, flags=2),
    ],
)
def test_a_record_that_is_no_change_is_refused(data: bytes) -> None:
    with pytest.raises(BadRecord):
        decoded(data)


def test_a_body_of_another_version_is_refused() -> None:
    header = Header(64, 0, 0, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(BadRecord) as caught:
        decode_change(header, b"", 0, 0)
    assert caught.value.found == "version 2, flags 00"


def test_an_unknown_kind_that_may_be_skipped_has_no_effect() -> None:
    assert decoded(record(100, bytes(16), queue_id=5, flags=SKIPPABLE)) == Empty()


def test_fields_of_the_header_become_fields_of_the_change() -> None:
    assert decoded(record(Kind.DELETE, queue_id=9)) == DeleteQueue(9)
    add = decoded(record(Kind.ADD, REQUEST_BODY, queue_id=9, first_id=50))
    assert isinstance(add, AddTasks)
    assert (add.queue_id, add.first_id, add.body.count) == (9, 50, 2)


def test_a_span_of_all_ids_is_possible() -> None:
    change = RemoveTasks(1, range(UINT64_MAX + 1), RemoveReason.PURGED, is_span=True)
    assert decoded(record_of(change)) == change
