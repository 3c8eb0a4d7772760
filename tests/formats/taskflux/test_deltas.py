"""Deltas: golden bytes, round trips, and every way in which their bytes can be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import Reader, checksum
from penstock.errors import BadData, CorruptData, TruncatedData
from penstock.formats.taskflux.deltas import (
    ADD,
    CREATE,
    DELETE,
    REMOVE,
    decode_change,
    decode_delta,
    decode_policy,
    encode_delta,
    encode_policy,
    is_delta,
)
from penstock.formats.taskflux.generation import Contents
from penstock.model import (
    INT64_MAX,
    INT64_MIN,
    NOTHING,
    UINT64_MAX,
    AddTask,
    CreateQueue,
    DeleteQueue,
    Delta,
    Implementation,
    KeyRange,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)
from support.damage import (
    all_of,
    bits,
    cuts,
    flipped,
    name_bits,
    number,
    overwritten,
    turns_into,
    unnoticed,
)
from support.refusal import attempted
from support.report import report
from support.taskflux_strategies import deltas, policies
from support.taskflux_vectors import DELTAS

KINDS = (Contents.DELTAS_BY_VALUE, Contents.DELTAS_BY_ID)
each_kind = pytest.mark.parametrize("contents", KINDS, ids=lambda contents: contents.value)
each_vector = pytest.mark.parametrize(
    ("delta", "data", "crc"), DELTAS, ids=lambda value: type(value).__name__
)


def kinds_of(delta: Delta) -> tuple[Contents, ...]:
    """Return the contents in which this delta can stand."""
    match delta:
        case RemoveTask():
            return (Contents.DELTAS_BY_ID,)
        case RemoveEqualTask():
            return (Contents.DELTAS_BY_VALUE,)
        case _:
            return KINDS


# --- golden bytes and round trips ----------------------------------------------------------------


@each_vector
def test_golden_deltas_mean_what_they_did(delta: Delta, data: bytes, crc: int) -> None:
    assert checksum(data) == crc
    assert encode_delta(delta) == data
    for contents in kinds_of(delta):
        assert decode_delta(data, contents) == delta


@each_kind
@given(data=st.data())
def test_deltas_round_trip(contents: Contents, data: st.DataObject) -> None:
    delta = data.draw(deltas(contents))
    assert decode_delta(encode_delta(delta), contents) == delta


@given(policies())
def test_policies_round_trip(policy: Policy) -> None:
    reader = Reader(encode_policy(policy))
    assert decode_policy(reader) == policy
    reader.finish("a policy")


@given(st.data())
def test_a_change_is_the_delta_as_a_tuple_wherever_it_stands(data: st.DataObject) -> None:
    delta = data.draw(deltas(Contents.DELTAS_BY_ID))
    before, after = data.draw(st.binary(max_size=5)), data.draw(st.binary(max_size=5))
    raw = encode_delta(delta)
    buffer = before + raw + after
    change = decode_change(buffer, len(before), len(before) + len(raw), by_id=True)
    match delta:
        case CreateQueue():
            assert change == (CREATE, delta.queue, delta.policy, None)
        case DeleteQueue():
            assert change == (DELETE, delta.queue, None, None)
        case AddTask():
            assert change == (ADD, delta.queue, delta.key, delta.payload)
        case RemoveTask():
            assert change == (REMOVE, delta.queue, delta.id, None)
        case _:
            pytest.fail("generation 3 knows no removal by value")


@pytest.mark.parametrize("key", [INT64_MIN, -1, 0, 1, INT64_MAX])
def test_keys_keep_their_sign(key: int) -> None:
    delta = AddTask(queue=QueueName("q"), key=key, payload=b"")
    assert decode_delta(encode_delta(delta), Contents.DELTAS_BY_ID) == delta


@pytest.mark.parametrize("task_id", [0, 1, 2**63 - 1, 2**63, UINT64_MAX])
def test_ids_have_no_sign(task_id: int) -> None:
    delta = RemoveTask(queue=QueueName("q"), id=TaskId(task_id))
    assert decode_delta(encode_delta(delta), Contents.DELTAS_BY_ID) == delta


@each_kind
def test_the_entry_that_does_nothing_is_a_delta(contents: Contents) -> None:
    assert decode_delta(encode_delta(NOTHING), contents) == NOTHING


def test_payloads_come_out_as_bytes_of_their_own() -> None:
    data = bytearray(DELTAS[3][1])
    delta = decode_delta(memoryview(data), Contents.DELTAS_BY_ID)
    data[-1] = 0
    assert delta == DELTAS[3][0]


# --- wrong bytes ---------------------------------------------------------------------------------


@each_vector
def test_a_delta_cut_anywhere_is_refused(delta: Delta, data: bytes, crc: int) -> None:
    for contents in kinds_of(delta):
        for part in cuts(data):
            assert not is_delta(part, contents)


@each_vector
def test_bytes_behind_a_delta_are_refused(delta: Delta, data: bytes, crc: int) -> None:
    """docs/formats/types.md, "Bad values": lengths are explicit, so what is left over is damage."""
    for contents in kinds_of(delta):
        assert is_delta(data, contents)
        with pytest.raises(CorruptData):
            decode_delta(data + b"\x00", contents)


def test_another_type_byte_is_refused() -> None:
    for kind in [k for k in range(256) if k not in (CREATE, DELETE, ADD, REMOVE)]:
        for contents in KINDS:
            with pytest.raises(CorruptData, match="unknown delta"):
                decode_delta(bytes((kind,)) + b"\x01q", contents)


def test_names_hold_printable_letters_only() -> None:
    for byte in range(256):
        data = bytes((DELETE, 2, ord("a"), byte))
        assert is_delta(data, Contents.DELTAS_BY_ID) == (33 <= byte <= 126)


@pytest.mark.parametrize("code", [-1, 0, 3, 256, 0x01000000])
def test_an_unknown_implementation_is_refused(code: int) -> None:
    data = overwritten(DELTAS[1][1], 3, code.to_bytes(4, "big", signed=True))
    with pytest.raises(CorruptData, match="implementation"):
        decode_delta(data, Contents.DELTAS_BY_VALUE)


@pytest.mark.parametrize("at", [7, 11])
@pytest.mark.parametrize(
    ("limit", "is_allowed"), [(-2, False), (-(2**31), False), (-1, True), (0, True)]
)
def test_a_limit_is_minus_1_or_more(at: int, limit: int, is_allowed: bool) -> None:
    data = overwritten(DELTAS[1][1], at, limit.to_bytes(4, "big", signed=True))
    assert is_delta(data, Contents.DELTAS_BY_VALUE) == is_allowed


def test_an_array_queue_without_a_range_is_refused() -> None:
    data = overwritten(DELTAS[1][1], 3, b"\x00\x00\x00\x02")
    with pytest.raises(CorruptData, match="needs a key range"):
        decode_delta(data, Contents.DELTAS_BY_VALUE)
    policy = Policy(implementation=Implementation.ARRAY, keys=KeyRange(lowest=3, highest=3))
    delta = CreateQueue(queue=QueueName("q"), policy=policy)
    assert decode_delta(encode_delta(delta), Contents.DELTAS_BY_VALUE) == delta


def test_an_empty_key_range_is_refused() -> None:
    data = overwritten(DELTAS[0][1], 21, (11).to_bytes(8, "big"))
    with pytest.raises(CorruptData, match="key range"):
        decode_delta(data, Contents.DELTAS_BY_VALUE)


@pytest.mark.parametrize("flag", [1, 2, 0x80, 0xFF])
def test_any_byte_but_zero_says_that_a_range_follows(flag: int) -> None:
    """docs/formats/types.md, "Numbers": every other byte is true; only 01 is written."""
    data = overwritten(DELTAS[0][1], 20, bytes((flag,)))
    assert decode_delta(data, Contents.DELTAS_BY_VALUE) == DELTAS[0][0]


@pytest.mark.parametrize("length", [-1, 1, 3, 2**31 - 1, -(2**31)])
def test_a_payload_length_that_does_not_fit_is_refused(length: int) -> None:
    data = overwritten(DELTAS[3][1], 16, length.to_bytes(4, "big", signed=True))
    with pytest.raises(CorruptData):
        decode_delta(data, Contents.DELTAS_BY_ID)


def test_the_two_kinds_of_removal_are_not_taken_for_each_other() -> None:
    by_value, by_id = DELTAS[5][1], DELTAS[6][1]
    assert not is_delta(by_value, Contents.DELTAS_BY_ID)
    assert not is_delta(by_id, Contents.DELTAS_BY_VALUE)


def test_errors_say_where_in_the_buffer_the_damage_is() -> None:
    with pytest.raises(TruncatedData) as caught:
        decode_change(b"....\x44\x05abc", 4, 9, by_id=True)
    assert caught.value.offset == 5


@each_kind
@given(st.binary(max_size=60))
def test_no_bytes_make_a_delta_fail_otherwise_than_by_bad_data(
    contents: Contents, data: bytes
) -> None:
    for kind in (b"", b"C", b"D", b"A", b"R"):
        delta = attempted(decode_delta, kind + data, contents)
        if isinstance(delta, BadData):
            assert delta.reason
        else:
            # Only the flag of a key range may have been another byte than the one we write.
            again = encode_delta(delta)
            assert decode_delta(again, contents) == delta
            assert again == kind + data or isinstance(delta, CreateQueue)


# --- flips ---------------------------------------------------------------------------------------


def _limit(raw: bytes) -> bool:
    return number(raw) >= -1


def _range_bits(data: bytes, at: int) -> set[int]:
    """Return the bits of a key range that leave it a range."""

    def is_range(bit: int) -> bool:
        raw = flipped(data, bit)[at : at + 16]
        return number(raw[:8]) <= number(raw[8:])

    return set(filter(is_range, bits(at, at + 16)))


# What no reader of a delta can notice; the checksum of its record is there for that.
INVISIBLE: list[Callable[[bytes], set[int]]] = [
    lambda data: all_of(
        (
            name_bits(data, 2, 8),
            turns_into(data, 12, 16, _limit),
            turns_into(data, 16, 20, _limit),
            turns_into(data, 20, 21, lambda raw: raw != b"\x00"),
            _range_bits(data, 21),
        )
    ),
    lambda data: all_of(
        (name_bits(data, 2, 3), turns_into(data, 7, 11, _limit), turns_into(data, 11, 15, _limit))
    ),
    lambda data: name_bits(data, 2, 8),
    lambda data: name_bits(data, 2, 8) | bits(8, 16) | bits(20, 22),
    lambda _: bits(2, 10),
    lambda data: name_bits(data, 2, 8) | bits(8, 16) | bits(20, 22),
    lambda data: name_bits(data, 2, 8) | bits(8, 16),
    lambda data: all_of(
        (
            name_bits(data, 2, 3),
            turns_into(data, 7, 11, _limit),
            turns_into(data, 11, 15, _limit),
            turns_into(data, 15, 16, lambda raw: raw != b"\x00"),
            _range_bits(data, 16),
        )
    ),
    lambda data: name_bits(data, 2, 19),
]


@pytest.mark.parametrize("which", range(len(DELTAS)), ids=lambda i: type(DELTAS[i][0]).__name__)
def test_every_flip_is_noticed_but_in_letters_numbers_and_payload(which: int) -> None:
    delta, data, crc = DELTAS[which]
    expected = INVISIBLE[which](data)
    for contents in kinds_of(delta):
        invisible = unnoticed(data, lambda raw, c=contents: not is_delta(raw, c))  # type: ignore[misc]
        assert invisible == expected
    assert all(checksum(flipped(data, bit)) != crc for bit in range(8 * len(data)))
    report(
        f"delta {delta}: {len(expected)} of {8 * len(data)} flips invisible without its checksum"
    )
