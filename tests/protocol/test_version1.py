"""The packets of version 1, byte for byte as TaskFlux sends them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, InvalidValue
from penstock.model import Implementation, Policy, QueueName
from penstock.protocol import version1 as v1
from protocol.version1_samples import ORDERS, REQUESTS, RESPONSES


@pytest.mark.parametrize(("request_", "text"), REQUESTS)
def test_a_request_has_exactly_these_bytes(request_: v1.Request, text: str) -> None:
    data = bytes.fromhex(text)
    assert v1.encode_request(request_) == data
    assert v1.decode_request(b"??" + data + b"more", 2) == (request_, 2 + len(data))


@pytest.mark.parametrize(("response", "text"), RESPONSES)
def test_a_response_has_exactly_these_bytes(response: v1.Response, text: str) -> None:
    data = bytes.fromhex(text)
    assert v1.encode_response(response) == data
    assert v1.decode_response(data + b"more") == (response, len(data))


@pytest.mark.parametrize("text", [text for _, text in REQUESTS])
def test_a_request_cut_anywhere_waits_for_the_rest(text: str) -> None:
    data = bytes.fromhex(text)
    assert [v1.decode_request(data[:size]) for size in range(len(data))] == [None] * len(data)


@pytest.mark.parametrize("text", [text for _, text in RESPONSES])
def test_a_response_cut_anywhere_waits_for_the_rest(text: str) -> None:
    data = bytes.fromhex(text)
    assert [v1.decode_response(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_what_the_documents_say_differently_is_understood_too() -> None:
    assert v1.decode_request(b"Q") == (v1.Acknowledge(), 1)
    documented = bytes.fromhex("63 78 00 00 00 02 00 00 00 00")
    assert v1.decode_response(documented) == (v1.Failed(code=2, text=""), 10)
    code_zero = bytes.fromhex("43 51 01 71 00 00 00 00 FF FF FF FF FF FF FF FF 00")
    assert v1.decode_request(code_zero) == (
        v1.Create(queue=QueueName("q"), policy=Policy(implementation=Implementation.HEAP)),
        len(code_zero),
    )


def test_a_delivery_without_an_id_is_for_old_clients() -> None:
    task = v1.Delivered(id=0, key=5, payload=b"hi")
    data = v1.encode_response(task, with_id=False)
    assert data == bytes.fromhex("63 64 01 00 00 00 00 00 00 00 05 00 00 00 02 68 69")
    assert v1.decode_response(data, with_id=False) == (task, len(data))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("43 43 01 20", v1.Code.INVALID_QUEUE_NAME),
        ("43 52 01 7F", v1.Code.INVALID_QUEUE_NAME),
        ("43 44 01 00 00 00 00 00", v1.Code.INVALID_QUEUE_NAME),
        ("43 45 01 C3 00 00 00 00 00 00 00 05 00 00 00 00", v1.Code.INVALID_QUEUE_NAME),
        ("43 51 00 00 00 00 01 FF FF FF FF FF FF FF FF 00", v1.Code.INVALID_QUEUE_NAME),
        ("43 51 01 71 00 00 00 03 FF FF FF FF FF FF FF FF 00", v1.Code.UNKNOWN_IMPLEMENTATION),
        ("43 51 01 71 00 00 00 01 FF FF FF FE FF FF FF FF 00", v1.Code.INVALID_SIZE_LIMIT),
        ("43 51 01 71 00 00 00 01 FF FF FF FF FF FF FF FE 00", v1.Code.INVALID_PAYLOAD_LIMIT),
        ("43 51 01 71 00 00 00 02 FF FF FF FF FF FF FF FF 00", v1.Code.KEY_RANGE_MISSING),
        (
            (
                "43 51 01 71 00 00 00 01 FF FF FF FF FF FF FF FF 01"
                " 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01"
            ),
            v1.Code.INVALID_KEY_RANGE,
        ),
    ],
)
def test_a_command_that_means_nothing_is_refused_and_costs_nobody_the_connection(
    text: str, code: v1.Code
) -> None:
    data = bytes.fromhex(text)
    assert v1.decode_request(data) == (v1.Refused(code=code), len(data))


@pytest.mark.parametrize(
    "text",
    [
        "5A",
        "41 50",
        "43 5A",
        "43 45 00 00 00 00 00 00 00 00 05 FF FF FF FF",
        "43 45 00 00 00 00 00 00 00 00 05 7F FF FF FF",
    ],
)
def test_a_packet_that_breaks_the_protocol_is_bad_before_its_bytes_are_waited_for(
    text: str,
) -> None:
    with pytest.raises(CorruptData):
        v1.decode_request(bytes.fromhex(text))


def test_a_payload_just_under_the_limit_passes_and_one_just_over_does_not() -> None:
    def packet(size: int) -> bytes:
        return v1.encode_request(v1.Enqueue(queue=ORDERS, key=0, payload=bytes(size)))

    assert v1.decode_request(packet(100), payload_size_max=100) is not None
    with pytest.raises(CorruptData):
        v1.decode_request(packet(101), payload_size_max=100)


@pytest.mark.parametrize(
    "request_",
    [
        v1.Enqueue(queue=ORDERS, key=2**63, payload=b""),
        v1.Dequeue(queue=ORDERS, wait_ms=-1),
        v1.Dequeue(queue=ORDERS, wait_ms=2**32),
        v1.Create(queue=ORDERS, policy=Policy(size_max=2**31)),
        v1.Bootstrap(major=2**31, minor=0, patch=0),
    ],
)
def test_a_number_without_room_in_its_field_is_refused_in_our_own_words(
    request_: v1.Request,
) -> None:
    with pytest.raises(InvalidValue):
        v1.encode_request(request_)


@given(st.binary(max_size=200))
def test_garbage_is_waited_on_or_refused_and_nothing_else(data: bytes) -> None:
    for decode in (v1.decode_request, v1.decode_response):
        try:
            found = decode(data)
        except BadData:
            continue
        assert found is None or 0 < found[1] <= len(data)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=300),
    st.text("abc!~", max_size=255),
    st.integers(0, 2**64 - 1),
)
def test_round_trip_of_tasks(key: int, payload: bytes, name: str, task_id: int) -> None:
    request = v1.Enqueue(queue=QueueName(name), key=key, payload=payload)
    data = v1.encode_request(request)
    assert v1.decode_request(data) == (request, len(data))
    response = v1.Delivered(id=task_id, key=key, payload=payload)
    data = v1.encode_response(response)
    assert v1.decode_response(data) == (response, len(data))
