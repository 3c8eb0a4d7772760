"""The body of a change by id: golden columns are on the page; here is what is refused."""

from __future__ import annotations

from array import array
from struct import pack

import pytest

from penstock.errors import BadRecord, InvalidValue
from penstock.formats.records import ids
from penstock.formats.records.columns import encode_array, encode_blobs
from penstock.formats.records.header import HEADER_SIZE, Kind
from penstock.formats.records.ids import IdsBody, decode_ids, encode_ids
from penstock.model import UINT64_MAX
from support.damage import cuts
from support.record_examples import CHANGES, record_of

REASONS = {Kind.REMOVE: 5, Kind.RETURN: 3, Kind.MOVE: 5, Kind.DELIVER: 2, Kind.SET: 0}
FIXED_ITEMS = {
    "remove": Kind.REMOVE,
    "remove a span": Kind.REMOVE,
    "return": Kind.RETURN,
    "move": Kind.MOVE,
    "deliver": Kind.DELIVER,
    "set": Kind.SET,
}


def fixed(
    count: int = 1,
    columns: int = 0,
    reason: int = 1,
    mode: int = 0,
    zero: int = 0,
    destination: int = 0,
    last_id: int = 0,
) -> bytes:
    return pack("<IIBBHIQ", count, columns, reason, mode, zero, destination, last_id)


def decoded(body: bytes, kind: Kind = Kind.REMOVE, first_id: int = 5) -> IdsBody:
    return decode_ids(kind, body, 0, len(body), first_id)


@pytest.mark.parametrize(
    "body",
    [
        fixed(count=0),
        fixed(reason=0),
        fixed(reason=6),
        fixed(mode=2),
        fixed(zero=1),
        fixed(destination=1),
        fixed(last_id=1),
        fixed(mode=1, last_id=9),
        fixed(count=0, mode=1, last_id=4),
        fixed(count=0, mode=1, last_id=9, columns=ids.IDS),
        fixed(columns=ids.IDS),
        fixed(columns=ids.IDS) + pack("<Q", 6),
        fixed(count=2, columns=ids.IDS) + pack("<QQ", 5, 5),
        fixed(count=2**32 - 1, columns=ids.IDS) + pack("<Q", 5),
        fixed(count=2**29, columns=ids.IDS),
        fixed(columns=ids.KEY_ONE) + bytes(8),
        fixed(columns=1 << 13) + bytes(8),
        fixed(columns=ids.RESULTS) + pack("<iiQ", 1, 2, 0),
        fixed() + bytes(8),
        fixed()[:16],
        fixed() + b"\0",
    ],
)
def test_a_body_that_breaks_a_rule_is_refused(body: bytes) -> None:
    with pytest.raises(BadRecord):
        decoded(body)


def test_only_removes_have_spans() -> None:
    body = fixed(count=0, mode=1, last_id=9)
    assert decoded(body).ids == range(5, 10)
    with pytest.raises(BadRecord):
        decoded(body, Kind.RETURN)


@pytest.mark.parametrize("kind", REASONS)
def test_every_kind_has_its_reasons(kind: Kind) -> None:
    columns = {
        Kind.MOVE: {ids.FIRST_DESTINATION_ID: bytes(8)},
        Kind.DELIVER: {ids.LEASE: bytes(16)},
    }.get(kind)
    destination = 3 if kind == Kind.MOVE else 0
    for reason in range(8):
        body = encode_ids(range(5, 6), reason, destination_id=destination, columns=columns)
        if (1 <= reason <= REASONS[kind]) or reason == REASONS[kind] == 0:
            assert decoded(body, kind).reason == reason
        else:
            with pytest.raises(BadRecord):
                decoded(body, kind)


@pytest.mark.parametrize("kind", [Kind.MOVE, Kind.DELIVER])
def test_a_kind_without_its_own_column_is_refused(kind: Kind) -> None:
    with pytest.raises(BadRecord) as caught:
        decoded(fixed(destination=3 if kind == Kind.MOVE else 0), kind)
    assert caught.value.expected == f"bit {ids.REQUIRED[kind]:#x}"


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (Kind.RETURN, {ids.NOT_BEFORE_ONE: bytes(8), ids.NOT_BEFORE_EACH: bytes(8)}),
        (Kind.RETURN, {ids.KEY_ONE: bytes(8), ids.KEY_EACH: bytes(8)}),
        (Kind.RETURN, {ids.ERROR_ONE: bytes(8), ids.ERROR_EACH: bytes(8)}),
        (Kind.SET, {ids.EXPIRES_ONE: bytes(8), ids.EXPIRES_EACH: bytes(8)}),
    ],
)
def test_two_forms_of_one_column_exclude_each_other(kind: Kind, columns: dict[int, bytes]) -> None:
    with pytest.raises(BadRecord) as caught:
        decoded(encode_ids(range(5, 6), REASONS[kind], columns=columns), kind)
    assert caught.value.offset == 4


@pytest.mark.parametrize(
    "columns",
    [
        {ids.ERROR_ONE: pack("<H6s", 7, b"x")},
        {ids.ERROR_ONE: pack("<H6s", 1, b"\xff")},
        {ids.ERROR_ONE: pack("<H6s", 1, b"ab")},
        {ids.ERROR_EACH: encode_blobs([b"\xff"])},
        {ids.NOT_BEFORE_ONE: pack("<q", 2**62 + 1)},
        {ids.NOT_BEFORE_EACH: pack("<q", -(2**62) - 1)},
        {ids.KEY_EACH: b""},
    ],
)
def test_a_return_with_a_bad_column_is_refused(columns: dict[int, bytes]) -> None:
    with pytest.raises(BadRecord):
        decoded(encode_ids(range(5, 6), 1, columns=columns), Kind.RETURN)


@pytest.mark.parametrize("lease", [pack("<B7sq", 8, b"x", 0), pack("<B7sq", 1, b" ", 0), b""])
def test_a_delivery_with_a_bad_consumer_is_refused(lease: bytes) -> None:
    with pytest.raises(BadRecord):
        decoded(encode_ids(range(5, 6), 1, columns={ids.LEASE: lease}), Kind.DELIVER)


def test_ids_end_at_64_bits() -> None:
    assert decoded(fixed(count=2), first_id=UINT64_MAX - 1).ids == range(
        UINT64_MAX - 1, UINT64_MAX + 1
    )
    with pytest.raises(BadRecord):
        decoded(fixed(count=2), first_id=UINT64_MAX)


def test_scattered_ids_are_a_view_of_the_body() -> None:
    body = encode_ids(array("Q", (5, 7, 900)), 1)
    found = decoded(body).ids
    assert list(found) == [5, 7, 900]
    assert isinstance(found, memoryview)
    assert found.obj is body


@pytest.mark.parametrize("bad", [range(5, 9, 2), range(5, 5), array("Q")])
def test_ids_that_a_body_cannot_name_are_refused(bad: range) -> None:
    with pytest.raises(InvalidValue):
        encode_ids(bad, 1)
    with pytest.raises(InvalidValue):
        encode_ids(range(5, 5), 1, is_span=True)


@pytest.mark.parametrize(("name", "kind"), FIXED_ITEMS.items())
def test_a_body_that_is_cut_is_refused(name: str, kind: Kind) -> None:
    body = record_of(CHANGES[name])[HEADER_SIZE:]
    first_id = 1 if name == "remove a span" else 100
    assert encode_array("Q", (first_id,)) in record_of(CHANGES[name])
    for cut in cuts(body):
        with pytest.raises(BadRecord):
            decode_ids(kind, cut, 0, len(cut), first_id)
