"""Arrow arrays over the bytes of a file: what they say, and that keys and payloads are not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidValue
from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.arrow import add_batch, task_batch
from penstock.formats.records.changes import AddTasks, Stamp
from penstock.formats.records.scan import scan_records
from penstock.formats.records.task_scan import TaskColumns, scan_tasks
from penstock.formats.records.writer import write_log
from support.record_examples import CLUSTER_ID
from support.record_strategies import adds


def is_inside(buffer: Any, data: bytes) -> bool:
    """Return whether an Arrow buffer is a part of the memory of ``data``."""
    start = np.frombuffer(data, dtype=np.uint8).ctypes.data
    return bool(start <= buffer.address and buffer.address + buffer.size <= start + len(data))


def log_of(log: list[AddTasks]) -> bytes:
    entries = [(Stamp(index, 1, 5), change) for index, change in enumerate(log, 1)]
    return next(iter(write_log(entries, cluster_id=CLUSTER_ID))).data


def tasks_of(data: bytes) -> TaskColumns:
    (records,) = scan_records(data)
    (tasks,) = scan_tasks(data, records)
    return tasks


@given(adds())
def test_a_batch_of_one_add_has_its_tasks(change: AddTasks) -> None:
    body = change.body
    batch = add_batch(body, change.first_id)
    batch.validate(full=True)
    assert batch.column("key").to_pylist() == [body.key(place) for place in range(body.count)]
    assert batch.column("payload").to_pylist() == [
        bytes(body.payload(place)) for place in range(body.count)
    ]
    assert batch.column("id")[0].as_py() == change.first_id


def test_keys_offsets_ids_and_payloads_of_an_add_are_not_copied() -> None:
    data = encode_add(b"q", [5, 6], [b"a" * 50, b"b" * 70], ids=[10, 12])
    batch = add_batch(decode_add(data, 0, len(data), Rules.RECORD), 10)
    buffers = [column.buffers()[1:] for column in batch.columns]
    assert all(is_inside(buffer, data) for column in buffers for buffer in column)
    assert batch.column("id").to_pylist() == [10, 12]


@given(st.lists(adds(), min_size=1, max_size=4))
def test_a_batch_of_many_adds_has_their_tasks(log: list[AddTasks]) -> None:
    data = log_of(log)
    batch = task_batch(data, tasks_of(data))
    batch.validate(full=True)
    payloads = [bytes(add.body.payload(place)) for add in log for place in range(add.body.count)]
    assert batch.column("payload").to_pylist() == payloads
    assert batch.column("key").to_pylist() == [
        add.body.key(place) for add in log for place in range(add.body.count)
    ]


def test_payloads_of_many_adds_are_not_copied() -> None:
    body = encode_add(b"q", 5, [b"a" * 50, b"b" * 5])
    data = log_of([AddTasks(1, 1, decode_add(body, 0, len(body), Rules.RECORD))] * 3)
    batch = task_batch(data, tasks_of(data))
    assert is_inside(batch.column("payload").buffers()[2], data)
    assert batch.column("payload").to_pylist() == [b"a" * 50, b"b" * 5] * 3


def test_a_buffer_that_views_cannot_refer_to_is_refused() -> None:
    class Large(bytes):
        def __len__(self) -> int:
            return 2**31

    body = encode_add(b"q", 5, [b"a"])
    log = log_of([AddTasks(1, 1, decode_add(body, 0, len(body), Rules.RECORD))])
    with pytest.raises(InvalidValue):
        task_batch(Large(), tasks_of(log))
