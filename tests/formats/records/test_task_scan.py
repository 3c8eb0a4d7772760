"""Tasks and ids in columns say what the decoders say, and bodies that break a rule are explained by them."""

from __future__ import annotations

from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord
from penstock.formats.records import add, ids
from penstock.formats.records.add_encode import build_add, encode_add
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    Deliver,
    MoveTasks,
    RemoveTasks,
    ReturnTasks,
    SetTasks,
    Stamp,
)
from penstock.formats.records.columns import NONE
from penstock.formats.records.header import Kind, encode_record
from penstock.formats.records.ids import RemoveReason, encode_ids
from penstock.formats.records.read import collect, decode_entry, walk
from penstock.formats.records.scan import RecordColumns, scan_records
from penstock.formats.records.segment import FILE_HEADER_SIZE
from penstock.formats.records.task_scan import id_fields, scan_ids, scan_tasks
from penstock.formats.records.writer import write_log
from support.damage import flipped
from support.record_examples import CLUSTER_ID, FULL_BODY, added, small_log
from support.record_strategies import adds, id_changes

TIME = 5_000


def log_of(*log: Change, time_ms: int = TIME) -> bytes:
    entries = [(Stamp(index, 1, time_ms, 3), change) for index, change in enumerate(log, 1)]
    return next(iter(write_log(entries, cluster_id=CLUSTER_ID))).data


def records_of(data: bytes) -> RecordColumns:
    (batch,) = scan_records(data)
    return batch


def task_rows(data: bytes, *, batch_rows: int = 3) -> list[tuple[object, ...]]:
    records = records_of(data)
    return [
        (
            int(batch.record[row]),
            int(batch.id[row]) % 2**64,
            int(batch.key[row]),
            data[batch.payload_at[row] : batch.payload_at[row] + batch.payload_size[row]],
            int(batch.not_before[row]),
            int(batch.expires[row]),
            int(batch.enqueued[row]),
            int(batch.attempts[row]),
            int(batch.principal_id[row]),
            int(batch.entry[row]) % 2**64,
        )
        for batch in scan_tasks(data, records, batch_rows=batch_rows)
        for row in range(len(batch))
    ]


def expected_tasks(data: bytes) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for row, record in enumerate(collect(walk(data))[0]):
        stamp, change = decode_entry(data, record)
        if not isinstance(change, AddTasks):
            continue
        body = change.body
        for place in range(body.count):

            def number(
                each: int, one: int, default: int, place: int = place, body: add.AddBody = body
            ) -> int:
                value = body.number(place, each, one)
                return default if value is None else value

            def time(each: int, one: int, default: int, stamp: Stamp = stamp) -> int:
                value = number(each, one, default)
                return value if value in (NONE, default) else stamp.time_ms + value

            found.append(
                (
                    row,
                    number(add.IDS, 0, change.first_id + place),
                    body.key(place),
                    bytes(body.payload(place)),
                    time(add.NOT_BEFORE_EACH, add.NOT_BEFORE_ONE, NONE),
                    time(add.EXPIRES_EACH, add.EXPIRES_ONE, NONE),
                    stamp.time_ms
                    if not body.columns & add.ENQUEUED
                    else time(add.ENQUEUED, 0, NONE),
                    number(add.ATTEMPTS, 0, 0),
                    number(add.PRINCIPAL_EACH, 0, stamp.principal_id),
                    number(add.ENTRY_EACH, 0, stamp.index),
                )
            )
    return found


@given(st.lists(adds(), min_size=1, max_size=4))
def test_tasks_in_columns_are_those_of_the_decoder(log: list[AddTasks]) -> None:
    data = log_of(*log)
    assert task_rows(data) == expected_tasks(data)


def test_batches_of_any_size_have_the_same_tasks() -> None:
    data = log_of(*(change for _, change in small_log()))
    for batch_rows in (1, 2, 100):
        assert task_rows(data, batch_rows=batch_rows) == expected_tasks(data)


def test_tasks_of_unknown_time_have_none() -> None:
    data = log_of(added(encode_add(b"q", 1, [b"a"])), time_ms=0)
    ((*_, enqueued, _, _, _),) = task_rows(data)
    assert enqueued == NONE


def ids_of(data: bytes, *, batch_rows: int = 2) -> list[tuple[int, int, int]]:
    records = records_of(data)
    return [
        (int(batch.record[row]), int(batch.place[row]), int(batch.id[row]) % 2**64)
        for batch in scan_ids(data, records, batch_rows=batch_rows)
        for row in range(len(batch))
    ]


def expected_ids(log: list[Change]) -> list[tuple[int, int, int]]:
    return [
        (row, place, task_id)
        for row, change in enumerate(log)
        if isinstance(change, RemoveTasks | ReturnTasks | MoveTasks | SetTasks | Deliver)
        and not (isinstance(change, RemoveTasks) and change.is_span)
        for place, task_id in enumerate(change.ids)
    ]


@given(st.lists(id_changes(), min_size=1, max_size=4))
def test_ids_in_columns_are_those_of_the_decoder(log: list[Change]) -> None:
    data = log_of(*log)
    assert ids_of(data) == expected_ids(log)
    fields = id_fields(data, records_of(data))
    assert [int(reason) for reason in fields.reason] == [
        getattr(change, "reason", 0) for change in log
    ]
    assert [bool(is_span) for is_span in fields.is_span] == [
        getattr(change, "is_span", False) for change in log
    ]
    assert [int(queue) for queue in fields.destination_id] == [
        getattr(change, "destination_id", 0) for change in log
    ]


def test_batches_of_any_size_have_the_same_ids() -> None:
    log = [change for _, change in small_log()]
    data = log_of(*log)
    for batch_rows in (1, 2, 100):
        assert ids_of(data, batch_rows=batch_rows) == expected_ids(log)


def test_memory_does_not_follow_the_number_of_ids_that_a_file_claims() -> None:
    data = log_of(RemoveTasks(1, range(1, 2**32), RemoveReason.ACKED))
    batches = scan_ids(data, records_of(data), batch_rows=1000)
    assert [int(next(batches).id[-1]) for _ in range(3)] == [1000, 2000, 3000]


# --- bodies that break a rule --------------------------------------------------------------------


def forged(kind: Kind, body: bytes) -> bytes:
    """Return a log of one record whose body has a matching checksum."""
    header = log_of(added(FULL_BODY))[:FILE_HEADER_SIZE]
    return header + encode_record(
        kind, body, index=1, term=1, time_ms=TIME, previous=0, queue_id=1, first_id=100
    )


def test_a_flipped_bit_of_a_body_never_leads_out_of_it() -> None:
    """Behind a matching checksum: either the decoder refuses the body too, or each row is what it says."""
    refused = 0
    for bit in range(8 * len(FULL_BODY)):
        data = forged(Kind.ADD, flipped(FULL_BODY, bit))
        try:
            rows = task_rows(data)
        except BadRecord:
            with pytest.raises(BadRecord):
                expected_tasks(data)
            refused += 1
            continue
        assert all(len(payload) <= 8 for _, _, _, payload, *_ in rows if isinstance(payload, bytes))
    assert refused > 500


@pytest.mark.parametrize(
    "body",
    [
        build_add(b"q", 2, 7, [1, 2], [b"abc"], {}).replace(pack("<iii", 0, 1, 3), pack("<iii", 1, 1, 3)),
        build_add(b"q", 2, 7, [1, 2], [b"abc"], {}).replace(pack("<iii", 0, 1, 3), pack("<iii", 0, 4, 3)),
        build_add(b"q", 2, 7, [1, 2], [b"abc"], {}).replace(pack("<iii", 0, 1, 3), pack("<iii", 0, -1, 3)),
        build_add(b"q", 1, 7, 1, [b"a"], {add.HEADERS: pack("<iiQ", 0, 2**31 - 1, 0)}),
        build_add(b"q", 1, 7, 1, [b"a"], {add.PRODUCER_EACH: pack("<IIQQQ", 2**32 - 1, 0, 0, 0, 0)}),
        build_add(b"q", 1, 7, 1, [b"a"], {add.EXTENSIONS: pack("<II", 2**32 - 8, 1)}),
        build_add(b"q", 1, 7, 1, [b"a"], {add.EXPIRES_ONE: bytes(8), add.EXPIRES_EACH: bytes(8)}),
        b"",
        bytes(32),
        pack("<IIII", 3, add.KEY_ONE, 8, 0) + bytes(24),
    ],
)  # fmt: skip
def test_a_hostile_add_is_explained_by_its_decoder(body: bytes) -> None:
    with pytest.raises(BadRecord):
        task_rows(forged(Kind.ADD, body))


@pytest.mark.parametrize(
    "body", [b"", pack("<IIQQ", 2**32 - 1, ids.IDS, 1, 0), pack("<IIQQQ", 2, ids.IDS, 1, 0, 100)]
)
def test_a_hostile_change_by_id_is_explained_by_its_decoder(body: bytes) -> None:
    data = forged(Kind.REMOVE, body)
    with pytest.raises(BadRecord):
        ids_of(data)
    if not body:
        with pytest.raises(BadRecord):
            id_fields(data, records_of(data))


@pytest.mark.parametrize(("offset", "form", "value"), [(13, "B", 1), (13, "B", 2), (14, "<H", 2)])
def test_a_body_that_this_version_cannot_read_is_refused(
    offset: int, form: str, value: int
) -> None:
    from penstock.formats.records.checksum import crc32c

    data = bytearray(forged(Kind.REMOVE, encode_ids(range(100, 102), 1)))
    pack_into(form, data, FILE_HEADER_SIZE + offset, value)
    head = data[FILE_HEADER_SIZE + 8 : FILE_HEADER_SIZE + 64]
    pack_into("<I", data, FILE_HEADER_SIZE + 4, crc32c(head))
    with pytest.raises(BadRecord):
        ids_of(bytes(data))
