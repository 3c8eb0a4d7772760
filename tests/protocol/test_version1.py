"""The packets of version 1, byte for byte as TaskFlux sends them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, InvalidValue
from penstock.model import Implementation, KeyRange, Policy, QueueName
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


REVERSED = "01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01"


@pytest.mark.parametrize(
    ("text", "code", "is_packet"),
    [
        ("43 43 01 20", 1, False),
        ("43 52 01 7F", 1, False),
        ("43 44 01 00 00 00 00 00", 1, False),
        ("43 45 01 C3 00 00 00 00 00 00 00 05 00 00 00 00", 1, True),
        ("43 51 01 20 00 00 00 01 FF FF FF FF FF FF FF FF 00", 1, True),
        ("43 51 01 71 00 00 00 01 FF FF FF FF FF FF FF FF " + REVERSED, 4, True),
        ("43 51 01 71 00 00 00 01 FF FF FF FE FF FF FF FF 00", 5, True),
        ("43 51 01 71 00 00 00 01 FF FF FF FF FF FF FF FE 00", 6, True),
        ("43 51 01 71 00 00 00 02 FF FF FF FF FF FF FF FF 00", 7, True),
        ("43 51 01 71 00 00 00 03 FF FF FF FF FF FF FF FF 00", 8, True),
        # Several faults: the first in TaskFlux's order counts.
        ("43 51 01 20 00 00 00 03 FF FF FF FE FF FF FF FE " + REVERSED, 8, True),
        ("43 51 01 20 00 00 00 02 FF FF FF FE FF FF FF FE 00", 7, True),
        ("43 51 01 20 00 00 00 02 FF FF FF FE FF FF FF FE " + REVERSED, 4, True),
        ("43 51 01 20 00 00 00 01 FF FF FF FE FF FF FF FE 00", 6, True),
        ("43 51 01 20 00 00 00 01 FF FF FF FE FF FF FF FF 00", 5, True),
    ],
)
def test_a_command_with_a_bad_value_is_refused_and_costs_nobody_the_connection(
    text: str, code: int, is_packet: bool
) -> None:
    data = bytes.fromhex(text)
    refused = v1.Refused(code=v1.Code(code), is_packet=is_packet)
    assert v1.decode_request(data) == (refused, len(data))


@pytest.mark.parametrize("text", ["5A", "41 50", "43 5A", "43 45" + " 00" * 9 + " FF FF FF FF"])
def test_a_packet_that_breaks_the_protocol_is_bad_before_its_bytes_are_waited_for(
    text: str,
) -> None:
    with pytest.raises(CorruptData):
        v1.decode_request(bytes.fromhex(text))


@pytest.mark.parametrize(("name", "is_name_valid"), [(b"\x01q", True), (b"\x01 ", False)])
def test_a_payload_at_the_limit_passes_and_one_above_is_not_waited_for(
    name: bytes, is_name_valid: bool
) -> None:
    def packet(size: int) -> bytes:
        return b"CE" + name + bytes(8) + size.to_bytes(4, "big")

    assert v1.decode_request(packet(100), payload_size_max=100) is None
    assert v1.decode_request(packet(100) + bytes(100), payload_size_max=100) is not None
    for size in (101, 2**31 - 1):
        oversized = v1.Oversized(size=size, is_name_valid=is_name_valid)
        found = v1.decode_request(packet(size) + b"x", payload_size_max=100)
        assert found == (oversized, len(packet(size)))


@pytest.mark.parametrize("text", [text for _, text in RESPONSES])
def test_a_response_that_a_client_sends_is_read_to_its_end_and_ignored(text: str) -> None:
    data = bytes.fromhex(text)
    assert v1.decode_request(data + b"M") == (v1.Stray(), len(data))
    assert [v1.decode_request(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_a_client_cannot_make_a_server_wait_for_a_long_response() -> None:
    """A list of a million queues would be parsed again from its beginning with every byte that arrives."""
    size_max = v1.STRAY_SIZE_MAX
    text = b"e" + bytes(4) + (size_max - 9).to_bytes(4, "big")
    assert v1.decode_request(text.ljust(size_max, b"x")) == (v1.Stray(), size_max)
    longer = b"e" + bytes(4) + (size_max - 8).to_bytes(4, "big")
    assert v1.decode_request(longer.ljust(size_max - 1, b"x")) is None
    for size in (size_max, size_max + 1):
        with pytest.raises(CorruptData):
            v1.decode_request(longer.ljust(size, b"x"))
    endless = b"cl\x00\x0f\x42\x40" + b"\x01q\x00\x00\x00\x00\x00\x00\x00\x00" * 1000
    with pytest.raises(CorruptData):
        v1.decode_request(endless)


def test_limits_are_listed_in_the_order_of_taskflux() -> None:
    policy = Policy(size_max=1, payload_size_max=2, keys=KeyRange(lowest=-3, highest=4))
    names = [name for name, _ in v1.policy_words(policy)]
    assert names == ["max-queue-size", "max-payload-size", "priority-range"]


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
