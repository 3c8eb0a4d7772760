"""Our tasks as events: what the general encoder would write, and a task again when they are read."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidValue
from penstock.formats.beats.event import Event, decode_event, encode_event
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.beats.task_event import SpooledTask, encode_tasks, task_of
from penstock.model import INT64_MAX, INT64_MIN

INT64S = st.integers(INT64_MIN, INT64_MAX)
TERMS = st.none() | st.integers(0, INT64_MAX)


@given(
    queue=st.text(max_size=300),
    tasks=st.lists(st.tuples(st.binary(max_size=300), INT64S), max_size=5),
    timestamp=INT64S,
    delay_ms=TERMS,
    ttl_ms=TERMS,
)
def test_tasks_come_back_and_are_written_as_the_general_encoder_writes_them(
    queue: str,
    tasks: list[tuple[bytes, int]],
    timestamp: int,
    delay_ms: int | None,
    ttl_ms: int | None,
) -> None:
    payloads, keys = [payload for payload, _ in tasks], [key for _, key in tasks]
    encoded = encode_tasks(
        queue, payloads, keys, timestamp=timestamp, delay_ms=delay_ms, ttl_ms=ttl_ms
    )
    assert len(encoded) == len(tasks)
    for data, payload, key in zip(encoded, payloads, keys, strict=True):
        event = decode_event(data, PayloadFormat.CBOR)
        assert event.timestamp == timestamp
        assert event.flags == 1
        assert task_of(event) == SpooledTask(queue, key, payload, delay_ms, ttl_ms)
        assert encode_event(event, PayloadFormat.CBOR) == data


def test_golden_bytes() -> None:
    (data,) = encode_tasks("q", [b"hi"], [-1], timestamp=1_704_164_645_678_901_234, ttl_ms=500)
    assert data.hex() == (
        "a46974696d657374616d701b17a668b7587867f265666c61677301646d657461a3657175657565617163"
        "6b65792066 74746c5f6d731901f4666669656c6473a1677061796c6f6164426869"
    ).replace(" ", "")


@pytest.mark.parametrize("edge", [23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, INT64_MAX])
def test_integers_and_lengths_are_written_in_their_shortest_form(edge: int) -> None:
    size = min(edge, 70_000)
    (data,) = encode_tasks("q", [bytes(size)], [edge], timestamp=edge)
    assert cbor2.loads(data)["fields"] == {"payload": bytes(size)}
    assert cbor2.dumps(cbor2.loads(data), canonical=False) == data


def test_a_queue_whose_name_is_not_utf_8_keeps_its_bytes() -> None:
    queue = b"\xff\xfequeue".decode("utf-8", "surrogateescape")
    (data,) = encode_tasks(queue, [b"x"], [0], timestamp=0)
    assert b"\xff\xfequeue" in data
    task = task_of(decode_event(data, PayloadFormat.CBOR))
    assert task is not None
    assert task.queue == queue


def test_an_integer_beyond_64_bits_is_refused() -> None:
    with pytest.raises(InvalidValue, match="more than 64 bits"):
        encode_tasks("q", [b"x"], [2**64], timestamp=0)


@pytest.mark.parametrize(
    ("meta", "fields"),
    [
        ({}, {"message": "hello"}),
        ({"queue": "q"}, {"payload": b"x"}),
        ({"key": 1}, {"payload": b"x"}),
        ({"queue": "q", "key": 1}, {}),
        ({"queue": "q", "key": 1}, {"payload": "text"}),
        ({"queue": "q", "key": 1}, {"payload": b"x", "more": 1}),
        ({"queue": b"q", "key": 1}, {"payload": b"x"}),
        ({"queue": "q", "key": True}, {"payload": b"x"}),
        ({"queue": "q", "key": 1.0}, {"payload": b"x"}),
        ({"queue": "q", "key": 2**63}, {"payload": b"x"}),
        ({"queue": "q", "key": 1, "delay_ms": -1}, {"payload": b"x"}),
        ({"queue": "q", "key": 1, "ttl_ms": "5"}, {"payload": b"x"}),
        ({"queue": "q", "key": 1, "ttl_ms": 2**63}, {"payload": b"x"}),
    ],
)
def test_somebody_elses_event_is_no_task(meta: dict[str, Any], fields: dict[str, Any]) -> None:
    assert task_of(Event(0, 0, meta, fields)) is None


def test_more_in_its_meta_does_not_make_a_task_somebody_elses() -> None:
    event = Event(0, 0, {"queue": "q", "key": 1, "trace": "x"}, {"payload": b"x"})
    assert task_of(event) == SpooledTask("q", 1, b"x")


@pytest.mark.parametrize("payload", [b"", b"text", bytes(range(256))])
def test_a_task_comes_back_from_protobuf_which_has_no_bytes(payload: bytes) -> None:
    (data,) = encode_tasks(
        "q",
        [payload],
        [-200],
        timestamp=5,
        delay_ms=1,
        ttl_ms=2,
        payload_format=PayloadFormat.PROTOBUF,
    )
    event = decode_event(data, PayloadFormat.PROTOBUF)
    assert task_of(event) == SpooledTask("q", -200, payload, 1, 2)


@pytest.mark.parametrize(
    "payload",
    ["text", {"base64": "a"}, {"base64": "YQ==\n"}, {"base64": 5}, {"base64": "", "x": 1}],
)
def test_what_is_no_base64_is_no_payload(payload: Any) -> None:
    assert task_of(Event(0, 0, {"queue": "q", "key": 1}, {"payload": payload})) is None
