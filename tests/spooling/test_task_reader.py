"""Reading by what is known gives the same tasks as the decoder of events, for every input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.beats.task_event import SpooledTask, encode_tasks
from penstock.model import INT64_MAX, INT64_MIN, QueueName
from penstock.spooling.task_reader import KNOWN_MAX, Outgoing, TaskReader, read_task

CBOR = PayloadFormat.CBOR
OTHERS = QueueName("others")

milliseconds = st.one_of(st.none(), st.integers(0, INT64_MAX))
names = st.one_of(st.sampled_from(["", "orders", "gpayload", "xgpayloadA"]), st.text(max_size=20))
own = st.builds(
    lambda queue, payload, key, timestamp, delay, ttl: encode_tasks(
        queue, [payload], [key], timestamp=timestamp, delay_ms=delay, ttl_ms=ttl
    )[0],
    names,
    st.one_of(st.binary(max_size=30), st.sampled_from([255, 256, 65_535, 65_536]).map(bytes)),
    st.integers(INT64_MIN, INT64_MAX),
    st.integers(INT64_MIN, INT64_MAX),
    milliseconds,
    milliseconds,
)
odd_values = st.one_of(st.binary(max_size=4), st.integers(-5, 5), st.just("payload"))
others = st.builds(
    lambda meta, fields: encode_event(Event(10**18, 1, meta, fields), CBOR),
    st.dictionaries(st.sampled_from(["queue", "key", "xgpayload", "ttl_ms"]), odd_values),
    st.dictionaries(st.sampled_from(["payload", "message", "agpayload"]), odd_values),
)


def expected(payload: bytes) -> Outgoing:
    """Return what the decoder of events makes of a payload."""
    return read_task(payload, CBOR) or Outgoing(SpooledTask(OTHERS, 0, payload), 0)


@given(st.lists(st.one_of(own, others, st.binary(max_size=40)), max_size=5))
def test_the_answers_are_those_of_the_decoder(payloads: list[bytes]) -> None:
    reader = TaskReader()
    for _ in range(2):  # the second time all is known that can be
        assert reader.read(payloads, CBOR, others=OTHERS) == [expected(p) for p in payloads]


@given(own, st.data())
def test_they_are_for_events_with_a_changed_byte_too(payload: bytes, data: st.DataObject) -> None:
    reader = TaskReader()
    reader.read([payload], CBOR, others=OTHERS)
    place = data.draw(st.integers(0, min(len(payload), 150) - 1))
    changed = bytearray(payload)
    changed[place] ^= data.draw(st.integers(1, 255))
    for odd in (bytes(changed), payload[:place], payload + b"\x00", bytes(changed) + b"z"):
        assert reader.read([odd], CBOR, others=OTHERS) == [expected(odd)]


def test_a_key_that_only_ends_like_the_payloads_is_another_key() -> None:
    fields = {"payload": b"true", "x": 1}
    event = encode_event(
        Event(10**18, 1, {"queue": "q", "key": 1, "zgpayload": b"false"}, fields), CBOR
    )
    assert TaskReader().read([event], CBOR, others=None) == []


def test_without_a_queue_for_others_the_tasks_before_them_are_read() -> None:
    mine = encode_tasks("q", [b"a", b"b"], [1, 2], timestamp=10**18)
    event = encode_event(Event(1, 0, {}, {"message": "hello"}), CBOR)
    tasks = TaskReader().read([*mine, event, *mine], CBOR, others=None)
    assert [task.payload for task, _ in tasks] == [b"a", b"b"]
    assert tasks[0].timestamp == 10**18
    everything = TaskReader().read([event], CBOR, others=OTHERS)
    assert everything == [Outgoing(SpooledTask("others", 0, event), 0)]


def test_events_of_other_formats_are_read_as_well() -> None:
    event = encode_event(
        Event(5, 1, {"queue": "q", "key": 1}, {"message": "m"}), PayloadFormat.JSON
    )
    assert TaskReader().read([event], PayloadFormat.JSON, others=None) == []
    tasks = TaskReader().read([event], PayloadFormat.JSON, others=OTHERS)
    assert tasks[0].task.payload == event


def test_what_is_remembered_has_a_bound() -> None:
    reader = TaskReader()
    for key in range(KNOWN_MAX + 10):
        (event,) = encode_tasks("q", [b"x"], [key], timestamp=10**18)
        assert reader.read([event], CBOR, others=None)[0].task.key == key
    assert len(reader._known) <= KNOWN_MAX
