"""The body of an add: what is believed of a request, a record and a delivery, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, pack_into
from typing import Any

import pytest
from hypothesis import given

from penstock.errors import BadRecord, InvalidValue
from penstock.formats.records import add
from penstock.formats.records.add import AddBody, ProducerRequest, Rules, decode_add
from penstock.formats.records.add_encode import build_add, encode_add
from penstock.formats.records.columns import NONE, Extension, encode_array
from support.damage import cuts
from support.record_examples import FULL_BODY, ORIGIN, PRODUCER, REQUEST_BODY
from support.record_strategies import request_bodies


def decoded(body: bytes, rules: Rules = Rules.REQUEST) -> AddBody:
    return decode_add(body, 0, len(body), rules)


def changed(body: bytes, offset: int, form: str, *values: int) -> bytes:
    """Return a body with other numbers at ``offset``."""
    copy = bytearray(body)
    pack_into(form, copy, offset, *values)
    return bytes(copy)


@given(request_bodies())
def test_requests_say_what_was_asked_for(drawn: tuple[dict[str, Any], bytes]) -> None:
    arguments, data = drawn
    body = decoded(data)
    count = len(arguments["payloads"])
    assert (body.count, body.name) == (count, arguments["name"])
    assert [body.payload(place) for place in range(count)] == arguments["payloads"]
    keys = arguments["keys"]
    assert [body.key(place) for place in range(count)] == (
        [keys] * count if isinstance(keys, int) else keys
    )
    for name, each, one in (
        ("not_before", add.NOT_BEFORE_EACH, add.NOT_BEFORE_ONE),
        ("expires", add.EXPIRES_EACH, add.EXPIRES_ONE),
    ):
        times = arguments.get(name, NONE)
        expected = [times] * count if isinstance(times, int) else times
        found = [body.number(place, each, one) for place in range(count)]
        assert [NONE if time is None else time for time in found] == expected
    headers = arguments.get("headers", [{}] * count)
    assert [body.headers(place) for place in range(count)] == headers
    if "producer" in arguments:
        producer, sequence = arguments["producer"]
        assert body.requests(70) == [ProducerRequest(producer, sequence, 70, count)]
    else:
        assert body.requests(70) == []


def test_a_record_keeps_what_only_a_node_writes() -> None:
    body = decoded(FULL_BODY, Rules.RECORD)
    assert [body.number(place, add.ATTEMPTS) for place in (0, 1)] == [0, 2]
    assert [body.number(place, add.ENQUEUED) for place in (0, 1)] == [-5, NONE]
    assert [body.born(place) for place in (0, 1)] == [None, (3, 9)]
    assert [body.origin(place) for place in (0, 1)] == [b"", ORIGIN]
    assert body.requests(100) == [ProducerRequest(PRODUCER, 8, 100, 1)]
    assert body.extensions() == (Extension(9, 0, b"xyz"),)


def test_an_add_without_other_columns_has_none() -> None:
    body = decoded(encode_add(b"", 1, [b"a"]))
    assert (body.extra, body.born(0), body.origin(0), body.extensions()) == (None, None, b"", ())
    assert (body.number(0, add.ATTEMPTS), body.headers(0)) == (None, {})


def test_what_is_equal_in_all_tasks_is_stored_once() -> None:
    body = encode_add(b"q", [7, 7], [b"ab", b"cd"], not_before=[5, 5], expires=[NONE, NONE])
    assert decoded(body).columns == add.KEY_ONE | add.NOT_BEFORE_ONE
    assert body == encode_add(b"q", 7, [b"ab", b"cd"], not_before=5, attempts=[0, 0])


def test_a_slice_of_offsets_is_legal_in_a_delivery_only() -> None:
    """The offsets of another task would otherwise deliver foreign bytes."""
    offsets = pack("<iii", 40, 41, 43)
    body = build_add(b"q", 2, 7, [1, 2], [b"abc"], {})
    moved = body.replace(pack("<iii", 0, 1, 3), offsets)
    assert [decoded(moved, Rules.DELIVERY).payload(place) for place in (0, 1)] == [b"a", b"bc"]
    for rules in (Rules.REQUEST, Rules.RECORD):
        with pytest.raises(BadRecord):
            decoded(moved, rules)


@pytest.mark.parametrize("bit", [*range(8, 32)])
def test_a_request_may_not_have_a_column_of_the_node(bit: int) -> None:
    with pytest.raises(BadRecord) as caught:
        decoded(changed(REQUEST_BODY, 4, "<I", add.KEY_ONE | 1 << bit))
    assert caught.value.offset == 4


@pytest.mark.parametrize("bit", range(18, 31))
def test_a_record_may_not_have_an_unknown_column(bit: int) -> None:
    with pytest.raises(BadRecord) as caught:
        decoded(changed(REQUEST_BODY, 4, "<I", add.KEY_ONE | 1 << bit), Rules.RECORD)
    assert caught.value.offset == 4


@pytest.mark.parametrize(
    ("one", "each", "columns"),
    [
        (add.NOT_BEFORE_ONE, add.NOT_BEFORE_EACH, (8, 16)),
        (add.EXPIRES_ONE, add.EXPIRES_EACH, (8, 16)),
        (add.PRODUCER, add.PRODUCER_EACH, (24, 48)),
    ],
)
def test_two_forms_of_one_column_exclude_each_other(
    one: int, each: int, columns: tuple[int, int]
) -> None:
    body = build_add(b"q", 2, 7, 1, [b"ab"], {one: bytes(columns[0]), each: bytes(columns[1])})
    with pytest.raises(BadRecord) as caught:
        decoded(body, Rules.RECORD)
    assert caught.value.found == f"bits {one | each:#x}"


@pytest.mark.parametrize("count", [0, add.COUNT_MAX + 1, 2**32 - 1])
def test_the_number_of_tasks_is_bounded(count: int) -> None:
    with pytest.raises(BadRecord):
        decoded(changed(REQUEST_BODY, 0, "<I", count))
    with pytest.raises(InvalidValue):
        build_add(b"q", count, 1, 0, [], {})


def test_products_beyond_32_bits_do_not_wrap_around() -> None:
    """A count and a size whose product is 0 in 32 bits must not pass for an empty column."""
    body = changed(encode_add(b"q", 7, [b""]), 0, "<III", 2**14, 0, 2**31 - 1)
    for columns in (add.KEY_ONE, add.KEY_ONE | add.SIZES, 0, add.IDS | add.BORN):
        for size in (2**14, 2**18, 2**31, 2**32 - 8, 2**32 - 2**17):
            with pytest.raises(BadRecord):
                decoded(changed(body, 4, "<II", columns, size), Rules.RECORD)


@pytest.mark.parametrize("time", [-1, add.TIME_MAX_IN_REQUEST + 1, NONE])
def test_a_request_cannot_ask_for_a_time_out_of_range(time: int) -> None:
    one = build_add(b"q", 1, 7, 0, [], {add.EXPIRES_ONE: pack("<q", time)})
    each = build_add(b"q", 2, 7, 0, [], {add.NOT_BEFORE_EACH: pack("<qq", 5, time)})
    with pytest.raises(BadRecord):
        decoded(one)
    if time != NONE:
        with pytest.raises(BadRecord) as caught:
            decoded(each)
        assert caught.value.found == str(time)
        decoded(each, Rules.RECORD)
        decoded(one, Rules.RECORD)


def test_one_time_for_all_is_never_none() -> None:
    body = build_add(b"q", 1, 7, 0, [], {add.EXPIRES_ONE: pack("<q", NONE)})
    with pytest.raises(BadRecord):
        decoded(body, Rules.RECORD)


@pytest.mark.parametrize("name", [b"a b", b"\x00", b"\xc3\xa4", b"\x7f"])
def test_a_queue_name_must_be_valid(name: bytes) -> None:
    with pytest.raises(BadRecord) as caught:
        decoded(encode_add(name, 1, [b""]))
    assert caught.value.offset == 16


def sections(body: bytes) -> list[Callable[[], bytes]]:
    """Return bodies that break one rule each."""
    return [
        lambda: changed(body, 12, "<I", 1),
        lambda: changed(body, 8, "<I", 7),
        lambda: changed(body, 8, "<I", 2**31),
        lambda: changed(body, 4, "<I", add.KEY_ONE | add.SIZES),
        lambda: body + bytes(8),
        lambda: body[:-1],
        lambda: body[:24],
    ]


@pytest.mark.parametrize("place", range(7))
def test_a_body_that_breaks_a_rule_is_refused(place: int) -> None:
    with pytest.raises(BadRecord):
        decoded(sections(REQUEST_BODY)[place]())


@pytest.mark.parametrize("body", [REQUEST_BODY, FULL_BODY], ids=["request", "all columns"])
def test_padding_must_be_zero(body: bytes) -> None:
    """Every zero byte that is turned on is a value, or padding, which is refused: nothing is hidden."""
    values = decoded(body, Rules.RECORD)
    for offset in range(16, len(body)):
        forged = bytearray(body)
        forged[offset] ^= 0xFF
        try:
            other = decoded(bytes(forged), Rules.RECORD)
        except BadRecord:
            continue
        assert seen(other) != seen(values), f"byte {offset} means nothing"


def seen(body: AddBody) -> object:
    """Return everything that a body says."""
    places = range(body.count)
    extra = body.extra or {}
    return (
        body.name,
        [body.key(place) for place in places],
        [bytes(body.payload(place)) for place in places],
        [
            column.values() if hasattr(column, "values") else
            [bytes(part) for part in column] if isinstance(column, add.ProducerEach | add.Born) else
            column.tolist() if isinstance(column, memoryview) else column
            for column in extra.values()
        ],
    )  # fmt: skip


@pytest.mark.parametrize("body", [REQUEST_BODY, FULL_BODY], ids=["request", "all columns"])
def test_a_body_that_is_cut_is_refused(body: bytes) -> None:
    for cut in cuts(body):
        with pytest.raises(BadRecord):
            decoded(cut, Rules.RECORD)


def test_ids_ascend() -> None:
    for ids in ((5, 5), (6, 5)):
        body = build_add(b"q", 2, 7, 0, [], {add.IDS: encode_array("Q", ids)})
        with pytest.raises(BadRecord):
            decoded(body, Rules.RECORD)


def test_a_task_cannot_name_a_producer_that_is_not_listed() -> None:
    column = pack("<II16sIIQQ", 1, 0, PRODUCER, 0, 1, 5, 6)
    with pytest.raises(BadRecord):
        decoded(build_add(b"q", 2, 7, 0, [], {add.PRODUCER_EACH: column}), Rules.RECORD)
    for count in (0, 3):
        column = pack("<II16sIIQQ", count, 0, PRODUCER, 0, 0, 5, 6)
        with pytest.raises(BadRecord):
            decoded(build_add(b"q", 2, 7, 0, [], {add.PRODUCER_EACH: column}), Rules.RECORD)


@pytest.mark.parametrize(
    "content",
    [
        b"\x01b\x00\x00\x01a\x00\x00",  # not sorted
        b"\x01a\x00\x00\x01a\x00\x00",  # twice
        b"\x00\x00\x00",  # no name
        b"\x01 \x00\x00",
        b"\x05a",
        b"\x01a\x05\x00b",
        b"\x01a\x00",
    ],
)
def test_headers_must_be_sorted_and_whole(content: bytes) -> None:
    column = encode_array("i", (0, len(content))) + content + bytes(-len(content) % 8)
    with pytest.raises(BadRecord):
        decoded(build_add(b"q", 1, 7, 0, [], {add.HEADERS: column}))


@pytest.mark.parametrize(
    "column",
    [
        pack("<II", 0, 0),
        pack("<IIHHI", 8, 1, 1, 1, 0),  # must be understood
        pack("<IIHHI", 8, 1, 1, 2, 0),  # an unknown flag
        pack("<IIHHI", 8, 1, 1, 0, 1),  # longer than the column
        pack("<IIHHI", 8, 2, 1, 0, 0),
        pack("<IIHHI", 16, 1, 1, 0, 0),
        pack("<IIHHI", 8, 2**32 - 1, 1, 0, 0),
    ],
)
def test_extensions_must_add_up_and_be_optional(column: bytes) -> None:
    with pytest.raises(BadRecord):
        decoded(build_add(b"q", 1, 7, 0, [], {add.EXTENSIONS: column}), Rules.RECORD)
