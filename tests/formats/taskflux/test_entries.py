"""Entries in columns, compiled, say what the decoders say interpreted, row by row."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadData
from penstock.formats.taskflux.commands import decode_command, encode_command
from penstock.formats.taskflux.deltas import BAD_OP, decode_delta, encode_delta
from penstock.formats.taskflux.entries import EntryColumns, scan_entries
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import LogLayout, Status
from penstock.model import (
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    AddTask,
    Command,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    Implementation,
    KeyRange,
    ListQueues,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)
from support.damage import random_damage
from support.log_reading import entries_of, exhausted, rows_of, scanned
from support.taskflux_strategies import Log, commands, delta_logs, payloads
from support.taskflux_vectors import (
    COMMANDS,
    DELTAS,
    LOG_1,
    LOG_2,
    LOG_3,
    LOGS,
    LogVector,
)

pytestmark = pytest.mark.usefixtures("warm_kernels")

DELTA_LAYOUTS = (LogLayout.ONE_C, LogLayout.TWO, LogLayout.THREE)
COMMAND_LAYOUTS = (LogLayout.ONE_A, LogLayout.ONE_B)


class Said(NamedTuple):
    """What a row says of one payload; offsets are resolved to bytes."""

    op: int
    queue: bytes = b""
    key: int = 0
    task_id: int = 0
    payload: bytes = b""


NOTHING_SAID = Said(0)
BAD = Said(BAD_OP)


def said_by_columns(data: bytes, batch: EntryColumns) -> list[Said]:
    changes = batch.changes
    columns = (
        changes.op,
        changes.queue_offset,
        changes.queue_size,
        changes.key,
        changes.task_id,
        changes.payload_offset,
        changes.payload_size,
    )
    return [
        Said(op, data[at : at + size], key, task_id, data[body : body + length])
        for op, at, size, key, task_id, body, length in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def said_by_decoder(payload: bytes, contents: Contents) -> Said:
    """Return what the plain decoder says; an empty payload is no change and no damage."""
    if not payload:
        return NOTHING_SAID
    try:
        if contents is Contents.COMMANDS:
            return _said_by_command(decode_command(payload))
        return _said_by_delta(decode_delta(payload, contents))
    except BadData:
        return BAD


def _said_by_delta(delta: Delta) -> Said:
    queue = delta.queue.encode()
    match delta:
        case CreateQueue():
            return Said(ord("C"), queue)
        case DeleteQueue():
            return Said(ord("D"), queue)
        case AddTask():
            return Said(ord("A"), queue, key=delta.key, payload=delta.payload)
        case RemoveTask():
            return Said(ord("R"), queue, task_id=delta.id)
        case RemoveEqualTask():
            return Said(ord("R"), queue, key=delta.key, payload=delta.payload)


def _said_by_command(command: Command) -> Said:
    match command:
        case ListQueues():
            return Said(ord("L"))
        case Enqueue():
            queue = command.queue.encode()
            return Said(ord("E"), queue, key=command.key, payload=command.payload)
        case CreateCommand() | CreateWithPolicy():
            return Said(ord("Q"), command.queue.encode())
        case Dequeue() | CountTasks() | DeleteCommand():
            ops = {Dequeue: "D", CountTasks: "C", DeleteCommand: "R"}
            return Said(ord(ops[type(command)]), command.queue.encode())


def check(data: bytes, layout: LogLayout, *, batch_rows: int) -> None:
    """Compare the columns of a log with the plain scan and the plain decoders."""
    batches, end = entries_of(data, layout, batch_rows=batch_rows)
    rows = [row for batch in batches for row in rows_of(batch.pieces)]
    assert (rows, end) == scanned(data, layout)
    expected = [
        said_by_decoder(data[offset + size - length : offset + size], layout.contents)
        if status == Status.OK
        else NOTHING_SAID
        for offset, size, status, _, length in rows
    ]
    assert [said for batch in batches for said in said_by_columns(data, batch)] == expected


# --- the columns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", LOGS, ids=lambda vector: vector.name)
def test_columns_of_golden_logs_say_what_the_decoders_say(vector: LogVector) -> None:
    check(vector.data, vector.layout, batch_rows=65_536)


def test_columns_of_a_golden_log_are_known() -> None:
    """One log spelled out, so that the comparison above cannot be wrong on both sides."""
    (batch,), _ = entries_of(LOG_3, LogLayout.THREE)
    assert said_by_columns(LOG_3, batch) == [
        Said(ord("C"), b"orders"),
        Said(ord("A"), b"orders", key=5, payload=b"hi"),
        Said(ord("R"), b"orders", task_id=1),
    ]
    (batch,), _ = entries_of(LOG_2, LogLayout.TWO)
    assert said_by_columns(LOG_2, batch)[2] == Said(ord("R"), b"orders", key=5, payload=b"hi")
    (batch,), _ = entries_of(LOG_1, LogLayout.ONE_B)
    assert said_by_columns(LOG_1, batch) == [
        Said(ord("Q"), b"orders"),
        Said(ord("E"), b"orders", key=5, payload=b"hi"),
        Said(ord("D"), b"orders"),
    ]
    assert len(batch) == 3


@pytest.mark.parametrize("layout", DELTA_LAYOUTS, ids=lambda layout: layout.variant)
@given(data=st.data(), batch_rows=st.sampled_from([1, 2, 3, 65_536]))
def test_columns_of_deltas_say_what_the_decoder_says(
    layout: LogLayout, data: st.DataObject, batch_rows: int
) -> None:
    log = data.draw(delta_logs(layout))
    check(log.data, layout, batch_rows=batch_rows)


@pytest.mark.parametrize("layout", COMMAND_LAYOUTS, ids=lambda layout: layout.variant)
@given(data=st.data(), batch_rows=st.sampled_from([1, 2, 3, 65_536]))
def test_columns_of_commands_say_what_the_decoder_says(
    layout: LogLayout, data: st.DataObject, batch_rows: int
) -> None:
    whole = commands.map(encode_command)
    bent = st.tuples(whole, st.integers(0, 40), st.integers(0, 255)).map(
        lambda parts: parts[0][: parts[1]] + bytes((parts[2],)) + parts[0][parts[1] + 1 :]
    )
    contents = data.draw(st.lists(st.just(b"") | whole | bent | payloads(), max_size=6))
    log = Log(layout=layout, commit=-1, records=[(1, p) for p in contents], tail=b"")
    check(log.data, layout, batch_rows=batch_rows)


def _seeded_payload(random: Random, layout: LogLayout) -> bytes:
    """Return a delta or command with its bytes bent more often than not."""
    queue = QueueName("q" * random.choice((0, 1, 6, 255)))
    key = random.choice((INT64_MIN, -1, 0, 7, INT64_MAX, random.randint(INT64_MIN, INT64_MAX)))
    payload = random.randbytes(random.choice((0, 1, 2, 13, 16)))
    if layout.contents is Contents.COMMANDS:
        limit = random.choice((None, 1, 2**32 - 1))
        raw = encode_command(
            random.choice(
                (
                    Enqueue(queue=queue, key=key, payload=payload),
                    Dequeue(queue=queue),
                    CountTasks(queue=queue),
                    CreateCommand(queue=queue, size_max=limit),
                    DeleteCommand(queue=queue),
                    ListQueues(),
                )
            )
        )
    else:
        lowest, highest = sorted((key, random.choice((key, key + (key < INT64_MAX), 0))))
        keys = random.choice((None, KeyRange(lowest=lowest, highest=highest)))
        code = Implementation.HEAP if keys is None else random.choice(list(Implementation))
        limit = random.choice((None, 0, 2**31 - 1))
        policy = Policy(implementation=code, size_max=limit, keys=keys)
        raw = encode_delta(
            random.choice(
                (
                    CreateQueue(queue=queue, policy=policy),
                    CreateQueue(queue=queue, policy=policy),
                    DeleteQueue(queue=queue),
                    AddTask(queue=queue, key=key, payload=payload),
                    RemoveTask(queue=queue, id=TaskId(key % (UINT64_MAX + 1))),
                    RemoveEqualTask(queue=queue, key=key, payload=payload),
                )
            )
        )
    bent = bytearray(raw)
    for _ in range(random.choice((0, 1, 1, 2))):
        # Near the head and the tail is where the fields are.
        at = random.choice((random.randrange(len(bent)), -1 - random.randrange(min(30, len(bent)))))
        bent[at] = random.choice((bent[at] ^ 1 << random.randrange(8), 0, 1, 2, 127, 128, 255))
    cut = random.choice((0, 0, 0, 1, 4, 16))
    return bytes(bent[: max(0, len(bent) - cut)]) + random.choice((b"", b"", b"", b"\x00"))


@pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
@pytest.mark.parametrize("seed", range(3))
def test_columns_of_bent_payloads_say_what_the_decoders_say(layout: LogLayout, seed: int) -> None:
    random = Random(seed)
    records = [(1, _seeded_payload(random, layout)) for _ in range(2000)]
    data = Log(layout=layout, commit=-1, records=records, tail=b"").data
    check(data, layout, batch_rows=1000)
    kinds = {said_by_decoder(payload, layout.contents).op for _, payload in records}
    assert len(kinds) >= 6  # the seed gave every kind, and bad ones, and empty ones


@pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_columns_of_a_damaged_log_say_what_the_decoders_say(layout: LogLayout, seed: int) -> None:
    random = Random(seed)
    records = [(1, _seeded_payload(random, layout)) for _ in range(8)]
    tail = bytes(16) if layout.is_marked else b""
    data = Log(layout=layout, commit=-1, records=records, tail=tail).data
    data = random_damage(random, data, start=layout.header_size)
    check(data, layout, batch_rows=random.choice((1, 2, 3, 65_536)))


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
def test_a_payload_cut_anywhere_is_bad_in_columns_too(layout: LogLayout) -> None:
    """An add cut 11 bytes behind its name once came out whole, with a payload of -1 bytes."""
    golden = [data for _, data in COMMANDS] + [data for _, data, _ in DELTAS]
    parts = [data[:size] for data in golden for size in range(1, len(data))]
    data = Log(layout=layout, commit=-1, records=[(1, part) for part in parts], tail=b"").data
    check(data, layout, batch_rows=65_536)
    (batch,), _ = entries_of(data, layout)
    assert min(batch.changes.payload_size.tolist()) == 0


@pytest.mark.parametrize("task_id", [0, 1, 2**63 - 1, 2**63, UINT64_MAX])
def test_ids_of_64_bits_come_through(task_id: int) -> None:
    payload = encode_delta(RemoveTask(queue=QueueName("q"), id=TaskId(task_id)))
    data = Log(layout=LogLayout.THREE, commit=-1, records=[(1, payload)], tail=b"").data
    (batch,), _ = entries_of(data, LogLayout.THREE)
    assert batch.changes.task_id.tolist() == [task_id]
    assert batch.changes.key.tolist() == [0]


@pytest.mark.parametrize("key", [INT64_MIN, INT64_MIN + 1, -(2**32), -1, 0, 2**32, INT64_MAX])
def test_keys_of_64_bits_come_through(key: int) -> None:
    for layout in LogLayout:
        queue = QueueName("q")
        payload = (
            encode_command(Enqueue(queue=queue, key=key, payload=b"x"))
            if layout.contents is Contents.COMMANDS
            else encode_delta(AddTask(queue=queue, key=key, payload=b"x"))
        )
        data = Log(layout=layout, commit=-1, records=[(1, payload)], tail=b"").data
        (batch,), _ = entries_of(data, layout)
        assert batch.changes.key.tolist() == [key]


@pytest.mark.parametrize(
    ("lowest", "highest"),
    [(0, 0), (1, 0), (-1, 0), (0, -1), (INT64_MIN, INT64_MAX), (INT64_MAX, INT64_MIN), (255, 256)],
)
def test_a_key_range_is_compared_with_its_sign(lowest: int, highest: int) -> None:
    policy = Policy(keys=KeyRange(lowest=0, highest=0))
    good = encode_delta(CreateQueue(queue=QueueName("q"), policy=policy))
    ends = lowest.to_bytes(8, "big", signed=True) + highest.to_bytes(8, "big", signed=True)
    data = Log(layout=LogLayout.TWO, commit=-1, records=[(1, good[:-16] + ends)], tail=b"").data
    (batch,), _ = entries_of(data, LogLayout.TWO)
    assert batch.changes.op.tolist() == [ord("C") if lowest <= highest else BAD_OP]


def test_an_empty_payload_is_no_change_and_no_damage() -> None:
    for layout in LogLayout:
        data = Log(layout=layout, commit=-1, records=[(1, b"")], tail=b"").data
        (batch,), _ = entries_of(data, layout)
        assert said_by_columns(data, batch) == [NOTHING_SAID]


def test_a_range_of_a_log_gives_its_own_entries_only() -> None:
    (batch,), end = exhausted(scan_entries(LOG_3, LogLayout.THREE, start=65, stop=66, term=1))
    assert said_by_columns(LOG_3, batch) == [Said(ord("A"), b"orders", key=5, payload=b"hi")]
    assert end == 107
