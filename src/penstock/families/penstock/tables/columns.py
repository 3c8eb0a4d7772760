"""Rows of changes as the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.families import arrow
from penstock.families.penstock.family import NAME as FAMILY
from penstock.families.penstock.tables.properties import properties_of
from penstock.families.penstock.tables.units import OPS, Rows
from penstock.families.tables import OK, Kind, Op, Table, schema_of
from penstock.formats.records import ids
from penstock.formats.records.changes import MoveTasks, ReturnTasks, SetTasks
from penstock.formats.records.columns import NONE
from penstock.formats.records.header import Kind as Record

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_ADD: Final = int(Record.ADD)
_SKIPPED: Final = 127
"""The code of a change that a reader may skip, and that this version does not know."""

_OPS: Final[dict[int, str | None]] = {**OPS, _SKIPPED: Op.EXTENSION}
_STORED_OPS: Final[dict[int, str | None]] = {
    int(Record.ADD): Op.TASK,
    int(Record.QUEUE): Op.QUEUE,
    int(Record.DELIVER): Op.DELIVER,
    _SKIPPED: None,
}
_STORED_KINDS: Final[dict[int, str | None]] = {
    int(Record.ADD): Kind.TASK,
    int(Record.QUEUE): Kind.QUEUE,
    int(Record.DELIVER): Kind.TASK,
    _SKIPPED: Kind.METADATA,
}


class TableColumns:
    """Makes the columns of rows of one file."""

    def __init__(self, source: str, shown: str, *, is_snapshot: bool) -> None:
        self._source = source
        self._shown = shown
        self._is_snapshot = is_snapshot
        self._types = schema_of(Table.ENTRIES)

    def make(
        self, rows: Rows, base: int, records: Numbers, sizes: Numbers, names: Mapping[int, str],
        columns: Sequence[str],
    ) -> pa.RecordBatch:  # fmt: skip
        """Return some columns. ``records`` and ``sizes`` are where the records of the window begin, and their sizes."""
        import numpy as np

        everywhere = np.ones(len(rows), dtype=np.bool_)
        record = rows.units.record[rows.unit]
        makers: dict[str, Callable[[], pa.Array]] = {
            "kind": lambda: self._kind(rows),
            "offset": lambda: arrow.numbers(records[record] + base, everywhere),
            "size": lambda: arrow.numbers(sizes[record], everywhere),
            "log_index": lambda: arrow.numbers(rows.of_record("index"), everywhere),
            "term": lambda: arrow.numbers(rows.of_record("term"), everywhere),
            "op": lambda: arrow.words(op_codes(rows, self._is_snapshot), self._ops),
            "queue": lambda: queue_column(rows.of_record("queue_id"), names),
            "key": lambda: _keys(rows),
            "task_id": lambda: _task_ids(rows),
            "payload": lambda: payload_column(rows),
            "properties": lambda: properties_of(rows),
            "event_time": lambda: _times(rows),
            "status": lambda: arrow.same(OK, len(rows), self._types.field("status").type),
        }
        constants = {"source": self._source, "family": FAMILY, "path": self._shown}
        made = {
            name: makers[name]()
            if name in makers
            else arrow.same(constants.get(name), len(rows), self._types.field(name).type)
            for name in columns
        }
        return arrow.batch(made, columns)

    @property
    def _ops(self) -> dict[int, str | None]:
        return _STORED_OPS if self._is_snapshot else _OPS

    def _kind(self, rows: Rows) -> pa.Array:
        if not self._is_snapshot:
            return arrow.same(Kind.ENTRY, len(rows), self._types.field("kind").type)
        return arrow.words(op_codes(rows, is_snapshot=True), _STORED_KINDS)


def op_codes(rows: Rows, is_snapshot: bool) -> Numbers:
    """Return the kind of each row's change, or that of a change that has no op."""
    import numpy as np

    kind = rows.of_record("kind")
    known = _STORED_OPS if is_snapshot else _OPS
    return np.where(np.isin(kind, list(known)), kind, _SKIPPED)


def queue_column(queue_ids: Numbers, names: Mapping[int, str]) -> pa.Array:
    """Return names of queues; null where none is known, or a change is of no queue."""
    import numpy as np
    import pyarrow as pa

    found, codes = np.unique(queue_ids, return_inverse=True)
    words = [names.get(int(each)) for each in found]
    if len(words) == 1:
        return arrow.same(words[0], len(queue_ids), pa.string())
    return pa.array(words, pa.string()).take(pa.array(codes))


def _task_ids(rows: Rows) -> pa.Array:
    import numpy as np

    found = rows.of_task("id")
    has_id = rows.task >= 0
    if rows.ids is not None:
        is_named = rows.named >= 0
        found = np.where(is_named, rows.ids.id[rows.named], found)
        has_id = has_id | is_named
    return arrow.numbers(found, has_id)


def _keys(rows: Rows) -> pa.Array:
    """Return keys of added tasks, and those that returns, moves and sets give."""
    key, has_key = rows.of_task("key"), rows.task >= 0
    given = _given(rows)
    if given:
        key, has_key = key.copy(), has_key.copy()
        unit_rows = _rows_by_unit(rows, given)
        for unit, keys in given.items():
            places = unit_rows[unit]
            key[places] = keys
            has_key[places] = True
    return arrow.numbers(key, has_key)


def _given(rows: Rows) -> dict[int, Numbers]:
    """Return the keys that changes by id give to tasks, by change; they are rare, so each is decoded."""
    import numpy as np

    fields = rows.fields
    has_keys = fields.columns & (ids.KEY_ONE | ids.KEY_EACH) != 0
    found: dict[int, Numbers] = {}
    for unit in fields.record[has_keys].tolist():
        change = rows.units.change(unit)
        assert isinstance(change, ReturnTasks | MoveTasks | SetTasks)
        assert change.keys is not None
        values = np.asarray(change.keys, dtype=np.int64)
        found[unit] = np.broadcast_to(values, len(change.ids))
    return found


def _rows_by_unit(rows: Rows, units: Mapping[int, object]) -> dict[int, slice]:
    """Return where the rows of some changes are; those of one are next to each other."""
    import numpy as np

    wanted = np.array(sorted(units), dtype=np.int64)
    first = np.searchsorted(rows.unit, wanted, side="left")
    end = np.searchsorted(rows.unit, wanted, side="right")
    return {
        unit: slice(start, stop)
        for unit, start, stop in zip(wanted.tolist(), first.tolist(), end.tolist(), strict=True)
    }


def payload_column(rows: Rows) -> pa.Array:
    """Return the payloads of added tasks. Those of a single add are a view of the file's bytes."""
    import numpy as np
    import pyarrow as pa

    has_payload = rows.task >= 0
    start, size = rows.of_task("payload_at"), rows.of_task("payload_size")
    is_one = (
        len(rows) > 0 and has_payload.all() and bool((start[1:] == start[:-1] + size[:-1]).all())
    )
    if not is_one:
        return arrow.stretches(rows.units.data, start, size, has_payload, pa.binary())
    ends = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(size, out=ends[1:])
    buffer = pa.py_buffer(rows.units.data)
    view = buffer.slice(int(start[0]), int(ends[-1]))
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(ends), view])


def _times(rows: Rows) -> pa.Array:
    """Return when tasks were added, and when the entries of other rows were written."""
    import numpy as np
    import pyarrow as pa

    written = rows.of_record("time_ms")
    enqueued = rows.of_task("enqueued", NONE)
    is_task = rows.task >= 0
    time_ms = np.where(is_task, enqueued, written)
    is_known = np.where(is_task, enqueued != NONE, written != 0)
    us = arrow.numbers(np.where(is_known, time_ms, 0) * 1000, is_known)
    return us.view(pa.timestamp("us", tz="UTC"))
