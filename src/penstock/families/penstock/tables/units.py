"""Changes of a window, one for each record or part of an envelope, and their rows: one for each task or id.

A part of an envelope is described as if it were a record of its own, so that the kernels read its body in place.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadRecord
from penstock.families.tables import Op
from penstock.formats.records import add, ids
from penstock.formats.records.changes import Change, decode_change
from penstock.formats.records.envelope import decode_envelope
from penstock.formats.records.header import (
    HEADER_SIZE,
    LOCAL_KIND_MIN,
    SKIPPABLE,
    VERSION,
    Header,
    Kind,
)
from penstock.formats.records.scan import RecordColumns
from penstock.formats.records.task_scan import (
    IdColumns,
    IdFields,
    TaskColumns,
    id_fields,
    scan_ids,
    scan_tasks,
)
from penstock.model import UINT64_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

OPS: Final = {
    int(Kind.EMPTY): Op.EMPTY,
    int(Kind.ADD): Op.ADD,
    int(Kind.REMOVE): Op.REMOVE,
    int(Kind.RETURN): Op.RETURN,
    int(Kind.MOVE): Op.MOVE,
    int(Kind.QUEUE): Op.CREATE,
    int(Kind.DELETE): Op.DELETE,
    int(Kind.MEMBERS): Op.MEMBERS,
    int(Kind.ACCESS): Op.ACCESS,
    int(Kind.DELIVER): Op.DELIVER,
    int(Kind.SET): Op.SET,
}
"""What a record of a log does; an envelope does what its parts do."""

BY_ID: Final = tuple(int(kind) for kind in ids.COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """Changes of one window. ``record`` is the row of the record that each is of, ``part`` its place in an envelope or -1."""

    data: NDArray[np.uint8]
    columns: RecordColumns
    record: Numbers
    part: Numbers

    def __len__(self) -> int:
        return len(self.record)

    def only(self, wanted: Flags) -> Units:
        return replace(
            self,
            columns=some(self.columns, wanted),
            record=self.record[wanted],
            part=self.part[wanted],
        )

    def change(self, unit: int) -> Change:
        """Return one change as a value. Raises ``BadRecord``."""
        columns = self.columns
        names = ("size", "kind", "flags", "version", "index", "term", "time_ms", "queue_id", "principal_id")  # fmt: skip
        fields = {name: int(getattr(columns, name)[unit]) for name in names}
        first_id = int(columns.first_id[unit]) & UINT64_MAX
        header = Header(**fields, first_id=first_id, body_checksum=0, previous=0, checksum=0)
        start = int(columns.offset[unit]) + HEADER_SIZE
        end = int(columns.offset[unit] + columns.size[unit])
        return decode_change(header, memoryview(self.data.data), start, end)


def some(columns: RecordColumns, wanted: Any) -> RecordColumns:
    """Return some records."""
    return RecordColumns(
        **{each.name: getattr(columns, each.name)[wanted] for each in fields(columns)}
    )


def units_of(data: NDArray[np.uint8], records: RecordColumns) -> Units:
    """Return the changes of records. Raises ``BadRecord`` for an envelope that is none."""
    import numpy as np

    rows = np.arange(len(records), dtype=np.int64)
    envelopes = np.flatnonzero(records.kind == int(Kind.ENVELOPE))
    whole = Units(data=data, columns=records, record=rows, part=np.full(len(rows), -1, np.int64))
    if not len(envelopes):
        return whole
    parts = [(int(row), *each) for row in envelopes for each in enumerate(_parts(whole, int(row)))]
    inner = np.array([row for row, _, _ in parts], dtype=np.int64)
    table = {each.name: getattr(records, each.name)[inner] for each in fields(records)}
    own = {
        "offset": [part.start - HEADER_SIZE for _, _, part in parts],
        "size": [part.end - part.start + HEADER_SIZE for _, _, part in parts],
        "kind": [part.kind for _, _, part in parts],
        "queue_id": [part.queue_id for _, _, part in parts],
        "principal_id": [part.principal_id for _, _, part in parts],
    }
    table |= {name: np.array(values, dtype=np.int64) for name, values in own.items()}
    first_ids = np.array([part.first_id for _, _, part in parts], dtype=np.uint64)
    table["first_id"] = first_ids.view(np.int64)
    outer = whole.only(records.kind != int(Kind.ENVELOPE))
    place = np.array([number for _, number, _ in parts], dtype=np.int64)
    record = np.concatenate((outer.record, inner))
    order = np.argsort(record, kind="stable")
    both = {
        each.name: np.concatenate((getattr(outer.columns, each.name), table[each.name]))[order]
        for each in fields(records)
    }
    return Units(
        data=data,
        columns=RecordColumns(**both),
        record=record[order],
        part=np.concatenate((outer.part, place))[order],
    )


def _parts(whole: Units, row: int) -> list[Any]:
    start = int(whole.columns.offset[row]) + HEADER_SIZE
    end = int(whole.columns.offset[row] + whole.columns.size[row])
    return decode_envelope(memoryview(whole.data.data), start, end)


def bad_units(data: NDArray[np.uint8], records: RecordColumns) -> dict[int, BadRecord]:
    """Return the records whose bodies cannot be decoded, although their checksums match; with the reason."""
    found: dict[int, BadRecord] = {}
    whole = units_of(data, some(records, slice(0, 0)))
    for row in range(len(records)):
        one = replace(whole, columns=some(records, slice(row, row + 1)))
        try:
            if records.kind[row] < LOCAL_KIND_MIN:
                one.change(0)
        except BadRecord as error:
            found[row] = error
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of changes. Tasks and ids are those of ``tasks`` and ``named`` where ``task`` and ``id`` are not -1."""

    units: Units
    unit: Numbers
    task: Numbers
    named: Numbers
    tasks: TaskColumns | None
    ids: IdColumns | None
    fields: IdFields  # of the changes by id, one for each

    def __len__(self) -> int:
        return len(self.unit)

    def of_record(self, name: str) -> Numbers:
        """Return a field of the record of each row; of a part it is that of the envelope, but for offset and size."""
        values: Numbers = getattr(self.units.columns, name)
        return values[self.unit]

    def of_task(self, name: str, default: int = 0) -> Numbers:
        """Return a field of the task of each row."""
        import numpy as np

        if self.tasks is None:
            return np.full(len(self), default, dtype=np.int64)
        values: Numbers = getattr(self.tasks, name)
        if len(values) == len(self):
            return values
        return np.where(self.task >= 0, values[self.task], default)


def rows_of(units: Units) -> Rows:
    """Return the rows of changes, in their order. Raises ``BadRecord``."""
    import numpy as np

    _refuse_unknown(units)
    data, columns = units.data, units.columns
    tasks = _joined(TaskColumns, list(scan_tasks(data, columns)))
    named = _joined(IdColumns, list(scan_ids(data, columns)))
    fields = id_fields(data, columns)
    has_rows = (columns.kind == int(Kind.ADD)) | np.isin(columns.kind, BY_ID)
    has_rows[fields.record[fields.is_span]] = False
    alone = np.flatnonzero(~has_rows)
    none = np.empty(0, dtype=np.int64)
    of_tasks = none if tasks is None else tasks.record
    of_ids = none if named is None else named.record
    unit = np.concatenate((of_tasks, of_ids, alone))
    task = np.full(len(unit), -1, dtype=np.int64)
    task[: len(of_tasks)] = np.arange(len(of_tasks))
    place = np.full(len(unit), -1, dtype=np.int64)
    place[len(of_tasks) : len(of_tasks) + len(of_ids)] = np.arange(len(of_ids))
    if (len(of_tasks) > 0) + (len(of_ids) > 0) + (len(alone) > 0) > 1:
        order = np.argsort(unit, kind="stable")
        unit, task, place = unit[order], task[order], place[order]
    return Rows(
        units=units, unit=unit, task=task, named=place, tasks=tasks, ids=named, fields=fields
    )


def _refuse_unknown(units: Units) -> None:
    """Raise ``BadRecord`` for a change that this version does not know, unless it may be skipped."""
    columns = units.columns
    is_later = (columns.kind > int(Kind.ENVELOPE)) & (columns.kind < LOCAL_KIND_MIN)
    is_later &= columns.flags & SKIPPABLE == 0
    is_other = (columns.version != VERSION) | (columns.flags & ~SKIPPABLE != 0)
    for unit in (is_later | is_other).nonzero()[0]:
        raise BadRecord("a later version", offset=int(columns.offset[unit]))


def _joined(kind: Any, parts: list[Any]) -> Any:
    """Return batches of columns as one; ``None`` if there are none."""
    import numpy as np

    if len(parts) < 2:
        return parts[0] if parts else None
    return kind(
        **{
            each.name: np.concatenate([getattr(part, each.name) for part in parts])
            for each in fields(kind)
        }
    )


def add_columns(units: Units) -> Numbers:
    """Return which columns the body of each add has; 0 for other changes."""
    import numpy as np

    words = units.data[: len(units.data) & ~7].view(np.uint32)
    is_add = units.columns.kind == int(Kind.ADD)
    found = np.zeros(len(units), dtype=np.int64)
    found[is_add] = words[(units.columns.offset[is_add] + HEADER_SIZE + 4) >> 2]
    return found


PLAIN: Final = add.KEY_ONE | add.SIZES
"""Columns that every row shows in columns of its own."""
