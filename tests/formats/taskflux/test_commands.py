"""Commands: golden bytes, round trips, and every way in which their bytes can be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, InvalidValue
from penstock.formats.taskflux.commands import (
    COUNT,
    CREATE,
    DELETE,
    DEQUEUE,
    ENQUEUE,
    LIMIT_SIZE,
    LIST,
    decode_command,
    encode_command,
    is_command,
)
from penstock.formats.taskflux.deltas import is_delta
from penstock.formats.taskflux.generation import Contents
from penstock.model import (
    INT64_MAX,
    INT64_MIN,
    Command,
    CreateCommand,
    CreateWithPolicy,
    Dequeue,
    Enqueue,
    QueueName,
)
from support.damage import (
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
from support.taskflux_strategies import commands
from support.taskflux_vectors import COMMANDS, LOG_1, LOG_1A, ORDERS

KINDS = (ENQUEUE, DEQUEUE, COUNT, CREATE, DELETE, LIST)
each_vector = pytest.mark.parametrize(
    ("command", "data"), COMMANDS, ids=lambda value: type(value).__name__
)


@each_vector
def test_golden_commands_mean_what_they_did(command: Command, data: bytes) -> None:
    assert decode_command(data) == command
    assert encode_command(command) == data


@given(commands)
def test_commands_round_trip(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


def test_integers_of_a_command_are_big_endian_in_files_of_either_order() -> None:
    """docs/formats/commands.md: only the framing of 1a is little-endian."""
    for data in (LOG_1, LOG_1A):
        assert decode_command(data[36:58]) == Enqueue(queue=ORDERS, key=5, payload=b"hi")


@pytest.mark.parametrize("key", [INT64_MIN, -1, 0, 1, INT64_MAX])
def test_keys_keep_their_sign(key: int) -> None:
    command = Enqueue(queue=QueueName(""), key=key, payload=b"")
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize(
    ("raw", "size_max"), [("00000000", None), ("00000001", 1), ("FFFFFFFF", 2**32 - 1)]
)
def test_a_size_limit_of_0_means_none(raw: str, size_max: int | None) -> None:
    command = CreateCommand(queue=ORDERS, size_max=size_max)
    data = b"Q\x06orders" + bytes.fromhex(raw)
    assert decode_command(data) == command
    assert encode_command(command) == data


@pytest.mark.parametrize("size_max", [0, -1, 2**32])
def test_a_limit_that_has_no_bytes_cannot_be_asked_for(size_max: int) -> None:
    with pytest.raises(InvalidValue):
        CreateCommand(queue=ORDERS, size_max=size_max)


@each_vector
def test_a_command_cut_anywhere_is_refused(command: Command, data: bytes) -> None:
    creation_1b = 2 + len(ORDERS) + LIMIT_SIZE
    for part in cuts(data):
        # A creation of 1d that is cut there is one of 1b, byte for byte; the record's length tells.
        is_other = isinstance(command, CreateWithPolicy) and len(part) == creation_1b
        assert is_command(part) == is_other


@each_vector
def test_bytes_behind_a_command_are_refused(command: Command, data: bytes) -> None:
    # Behind a creation of 1b more bytes are taken for a policy of 1d, which they are not.
    with pytest.raises(CorruptData):
        decode_command(data + b"\x00")


def test_another_type_byte_is_refused() -> None:
    for kind in [kind for kind in range(256) if kind not in KINDS]:
        with pytest.raises(CorruptData, match="unknown command"):
            decode_command(bytes((kind,)) + b"\x01q")


def test_names_hold_printable_letters_only() -> None:
    for byte in range(256):
        assert is_command(bytes((DEQUEUE, 2, ord("a"), byte))) == (33 <= byte <= 126)


@pytest.mark.parametrize("length", [-1, 1, 3, 2**31 - 1, -(2**31)])
def test_a_payload_length_that_does_not_fit_is_refused(length: int) -> None:
    data = overwritten(COMMANDS[0][1], 16, length.to_bytes(4, "big", signed=True))
    with pytest.raises(BadData):
        decode_command(data)


def test_a_dequeue_can_be_taken_for_the_deletion_of_a_queue() -> None:
    """docs/formats/log.md, "1b or 1c": this one payload is whole in both meanings."""
    data = encode_command(Dequeue(queue=ORDERS))
    assert is_delta(data, Contents.DELTAS_BY_VALUE)
    others = [
        encode_command(command) for command, _ in COMMANDS if command != Dequeue(queue=ORDERS)
    ]
    assert not any(is_delta(raw, Contents.DELTAS_BY_VALUE) for raw in others)


@given(st.binary(max_size=60))
def test_no_bytes_make_a_command_fail_otherwise_than_by_bad_data(data: bytes) -> None:
    for kind in (b"", *(bytes((kind,)) for kind in KINDS)):
        command = attempted(decode_command, kind + data)
        if isinstance(command, BadData):
            assert command.reason
        else:
            assert encode_command(command) == kind + data


def limit_bits(data: bytes) -> set[int]:
    """Return the bits of a policy's two limits that leave -1 or more."""
    limits = (turns_into(data, at, at + 4, lambda raw: number(raw) >= -1) for at in (12, 16))
    return set[int]().union(*limits)


def range_bits(data: bytes) -> set[int]:
    """Return the bits of a policy's key range, and of its flag, that leave a range."""

    def is_range(bit: int) -> bool:
        raw = flipped(data, bit)[21:37]
        return number(raw[:8]) <= number(raw[8:])

    flag = turns_into(data, 20, 21, lambda raw: raw != b"\x00")
    return flag | set(filter(is_range, bits(21, 37)))


# What no reader of a command can notice, and nothing else does: generation 1 has no checksums.
INVISIBLE: list[Callable[[bytes], set[int]]] = [
    lambda data: name_bits(data, 2, 8) | bits(8, 16) | bits(20, 22),
    lambda data: name_bits(data, 2, 8),
    lambda data: name_bits(data, 2, 8),
    lambda data: name_bits(data, 2, 8) | bits(8, 12),
    lambda data: name_bits(data, 2, 8) | bits(8, 12),
    lambda data: name_bits(data, 2, 8) | limit_bits(data),
    lambda data: name_bits(data, 2, 8) | limit_bits(data) | range_bits(data),
    lambda data: name_bits(data, 2, 8),
    lambda _: set(),
]


@pytest.mark.parametrize("which", range(len(COMMANDS)), ids=lambda i: type(COMMANDS[i][0]).__name__)
def test_every_flip_is_noticed_but_in_letters_numbers_and_payload(which: int) -> None:
    command, data = COMMANDS[which]
    found = unnoticed(data, lambda raw: not is_command(raw))
    assert found == INVISIBLE[which](data)
    report(f"command {command}: {len(found)} of {8 * len(data)} flips invisible")
