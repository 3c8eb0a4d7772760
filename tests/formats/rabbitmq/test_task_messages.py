"""Tasks as messages: any task comes back, damage is seen, and a plain reader sees key and payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.formats.rabbitmq.messages import decode_message, encode_message
from penstock.formats.rabbitmq.task_messages import (
    CHECKSUM_HEADER,
    KEY_HEADER,
    TaskMessages,
    key_of,
)
from penstock.model import INT64_MAX, INT64_MIN, QueueName

KEYS = st.integers(INT64_MIN, INT64_MAX)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=255)


@given(
    name=NAMES,
    number=st.integers(0, 2**32 - 1),
    first=st.integers(1, 2**61),
    tasks=st.lists(st.tuples(KEYS, st.binary(max_size=300)), max_size=5),
)
def test_tasks_come_back_and_a_plain_reader_understands_them(
    name: str, number: int, first: int, tasks: list[tuple[int, bytes]]
) -> None:
    made = TaskMessages(QueueName(name), number)
    ids, messages = made.encode(first, [key for key, _ in tasks], [data for _, data in tasks])
    assert len(set(ids)) == len(tasks)
    for (key, payload), message_id, data in zip(tasks, ids, messages, strict=True):
        assert made.payload(data) == payload
        assert key_of(message_id) == key
        message = decode_message(data)
        assert encode_message(message) == data
        assert (message.content.body, message.id) == (payload, message_id)
        assert message.routing_keys == (name.encode(),)
        assert message.is_persistent
        headers = message.content.properties.headers or ()
        found = {header.name: header.value.value for header in headers}
        assert found.keys() == {KEY_HEADER, CHECKSUM_HEADER}
        assert found[KEY_HEADER] == key


@pytest.mark.parametrize("payload", [b"", b"x", bytes(300)])
def test_a_flipped_bit_in_a_payload_or_its_checksum_is_seen(payload: bytes) -> None:
    made = TaskMessages(QueueName("q"), 1)
    _, (data,) = made.encode(1, [7], [payload])
    start = data.index(CHECKSUM_HEADER) + len(CHECKSUM_HEADER) + 1
    body = data.rindex(payload + b"j") if payload else 0
    places = [*range(start, start + 8), *range(body, body + len(payload))]
    for place in places:
        for bit in range(8):
            bad = bytearray(data)
            bad[place] ^= 1 << bit
            with pytest.raises(CorruptData, match="the payload of a stored task is damaged"):
                made.payload(bytes(bad))


@pytest.mark.parametrize("size", range(60))
def test_a_cut_message_is_refused(size: int) -> None:
    made = TaskMessages(QueueName("q"), 1)
    _, (data,) = made.encode(1, [7], [b"payload"])
    with pytest.raises(CorruptData):
        made.payload(data[: len(data) - 1 - size])
