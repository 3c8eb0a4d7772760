"""Envelopes: golden bytes, round trips, cuts, flipped bits, and lines that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData, InvalidValue
from penstock.formats.rabbitmq.envelope import (
    EXPIRY_US_MAX,
    SEQUENCE_MAX,
    Envelope,
    decode_envelope,
    encode_envelope,
    json_of_envelope,
)
from penstock.formats.rabbitmq.properties import Header, Kind, Properties, Value
from support.damage import cuts, flipped
from support.refusal import attempted

ENVELOPE = Envelope(
    vhost=b"/",
    queue="bestellungen-ä".encode(),
    sequence=7,
    is_persistent=True,
    is_delivered=False,
    expiry_us=1_700_000_000_000_000,
    exchange=b"",
    routing_keys=(b"orders", b"\xff"),
    properties=Properties(
        headers=(Header(b"attempts", Value(Kind.INT32, 3)),), delivery_mode=2, message_id=b"a\nb"
    ),
)
BODY = b'{"not":\n"looked at"}\xff\n'

# The example of docs/formats/rabbitmq-envelope.md.
LINE = (
    '{"vhost":"/","queue":"bestellungen-ä","seq":7,"persistent":true,"delivered":false,'
    '"expiry_us":1700000000000000,"exchange":"","routing_keys":["orders",{"base64":"/w=="}],'
    '"properties":{"headers":[{"name":"attempts","type":"signedint","value":3}],"delivery_mode":2,'
    '"message_id":"a\\nb"}}\n'
).encode()

UNKNOWN = (
    b'{"vhost":null,"queue":null,"seq":null,"persistent":null,"delivered":null,"expiry_us":null,'
    b'"exchange":"","routing_keys":[],"properties":null}\n'
)


def test_an_envelope_is_a_line_of_json_and_the_body_as_it_is() -> None:
    assert encode_envelope(ENVELOPE, BODY) == LINE + BODY
    assert decode_envelope(LINE + BODY) == (ENVELOPE, BODY)
    assert json.loads(LINE) == json_of_envelope(ENVELOPE)


def test_a_body_in_several_pieces_is_joined() -> None:
    pieces = (BODY[:3], memoryview(BODY)[3:8], b"", BODY[8:])
    assert encode_envelope(ENVELOPE, *pieces) == LINE + BODY
    assert encode_envelope(ENVELOPE) == LINE


def test_what_nobody_knows_is_null() -> None:
    assert encode_envelope(Envelope(), b"body") == UNKNOWN + b"body"
    assert decode_envelope(UNKNOWN + b"body") == (Envelope(), b"body")


def test_names_that_are_missing_are_null_and_others_are_passed_over() -> None:
    found, body = decode_envelope(b'{"later": [1], "queue": "q"}\nbody')
    assert (found, body) == (Envelope(queue=b"q"), b"body")


texts = st.binary(max_size=12) | st.text(max_size=8).map(str.encode)
headers = st.lists(
    st.builds(
        Header,
        texts,
        st.builds(Value, st.just(Kind.TEXT), texts)
        | st.builds(Value, st.just(Kind.INT64), st.integers(-(2**63), 2**63 - 1))
        | st.builds(Value, st.just(Kind.DOUBLE), st.floats(allow_nan=False, allow_infinity=False)),
    ),
    max_size=3,
).map(tuple)
envelopes = st.builds(
    Envelope,
    vhost=st.none() | texts,
    queue=st.none() | texts,
    sequence=st.none() | st.integers(0, SEQUENCE_MAX),
    is_persistent=st.none() | st.booleans(),
    is_delivered=st.none() | st.booleans(),
    expiry_us=st.none() | st.integers(1, EXPIRY_US_MAX),
    exchange=texts,
    routing_keys=st.lists(texts, max_size=3).map(tuple),
    properties=st.none()
    | st.builds(
        Properties,
        headers=st.none() | headers,
        reply_to=st.none() | texts,
        timestamp=st.none() | st.integers(0, 2**64 - 1),
    ),
)


@given(envelopes, st.binary(max_size=40))
def test_every_envelope_comes_back(envelope: Envelope, body: bytes) -> None:
    payload = encode_envelope(envelope, body)
    assert decode_envelope(payload) == (envelope, body)
    assert payload.index(b"\n") == len(payload) - len(body) - 1


def test_a_line_that_is_cut_anywhere_is_refused() -> None:
    for cut in cuts(LINE):
        with pytest.raises(CorruptData):
            decode_envelope(cut)


def test_a_flipped_bit_gives_an_envelope_or_corrupt_data() -> None:
    payload = LINE + BODY
    changed = 0
    for bit in range(8 * len(LINE)):
        found = attempted(decode_envelope, flipped(payload, bit))
        if isinstance(found, CorruptData):
            changed += 1
        else:
            assert isinstance(found, tuple)
    assert changed > len(LINE)  # most of the line is syntax


@given(st.binary(max_size=60))
def test_garbage_gives_an_envelope_or_corrupt_data(data: bytes) -> None:
    found = attempted(decode_envelope, data + b"\n")
    assert isinstance(found, tuple | CorruptData)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'"text"',
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"seq":' + b"9" * 5000 + b"}",
        b'{"seq":-1}',
        b'{"seq":true}',
        b'{"seq":4611686018427387904}',
        b'{"expiry_us":0}',
        b'{"expiry_us":18446744073709551616}',
        b'{"persistent":1}',
        b'{"delivered":"no"}',
        b'{"vhost":1}',
        b'{"queue":{"base64":"!"}}',
        b'{"queue":"\\ud800"}',
        b'{"exchange":[]}',
        b'{"routing_keys":"orders"}',
        b'{"routing_keys":[null]}',
        b'{"properties":[]}',
        b'{"properties":{"colour":"red"}}',
        b'{"properties":{"priority":256}}',
    ],
)
def test_a_line_that_is_no_envelope_is_refused_in_a_sentence(line: bytes) -> None:
    with pytest.raises(CorruptData, match="envelope"):
        decode_envelope(line + b"\nbody")


@pytest.mark.parametrize(
    "fields",
    [{"sequence": -1}, {"sequence": SEQUENCE_MAX + 1}, {"expiry_us": 0}, {"expiry_us": 2**64}],
)
def test_numbers_that_no_broker_has_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Envelope(**fields)
