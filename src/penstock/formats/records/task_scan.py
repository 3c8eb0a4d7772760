"""The bodies of scanned records in columns: one row for each task of an add, or for each id of a change by id.

Only records that ``scan_records`` yielded come here: their checksums match. A kernel follows every length of a body within
its record. A body that does not fit goes to its decoder, which says what is wrong; what the decoder also checks
and no length depends on (padding, names, headers) is not judged here again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.binary import Bytes
from penstock.errors import BadRecord
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.kernel_bytes import emit
from penstock.formats.records import add, ids
from penstock.formats.records.changes import decode_change
from penstock.formats.records.columns import NONE
from penstock.formats.records.header import HEADER_SIZE, VERSION, Kind, decode_header
from penstock.formats.records.scan import Buffers, RecordColumns, buffers, high, low, u32_at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskColumns:
    """Tasks of adds. Times are of the log clock in milliseconds; ``NONE`` where there is none or it is unknown."""

    record: NDArray[np.int64]  # the row of the record
    id: NDArray[np.int64]  # the bits of u64
    key: NDArray[np.int64]
    payload_at: NDArray[np.int64]
    payload_size: NDArray[np.int64]
    not_before: NDArray[np.int64]
    expires: NDArray[np.int64]
    enqueued: NDArray[np.int64]
    attempts: NDArray[np.int64]
    principal_id: NDArray[np.int64]
    entry: NDArray[np.int64]  # index of the entry that added the task

    def __len__(self) -> int:
        return len(self.record)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdColumns:
    """Ids that removes, returns, moves, deliveries and sets name one by one. A span of a remove is not among them."""

    record: NDArray[np.int64]  # the row of the record
    place: NDArray[np.int64]  # of the id in its record
    id: NDArray[np.int64]  # the bits of u64

    def __len__(self) -> int:
        return len(self.record)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdFields:
    """The fixed fields of changes by id, one row for each such record."""

    record: NDArray[np.int64]
    columns: NDArray[np.int64]
    reason: NDArray[np.int64]
    is_span: NDArray[np.bool_]
    destination_id: NDArray[np.int64]
    last_id: NDArray[np.int64]


_TASK_FIELDS: Final = tuple(TaskColumns.__dataclass_fields__)
_ID_FIELDS: Final = tuple(IdColumns.__dataclass_fields__)
_BY_ID: Final = tuple(int(kind) for kind in ids.COLUMNS)


def scan_tasks(
    data: Bytes | NDArray[np.uint8],
    records: RecordColumns,
    *,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[TaskColumns]:
    """Yield the tasks of the adds among ``records`` of ``data``, in batches. Raises ``BadRecord``."""
    views = buffers(data)
    wanted = records.kind == int(Kind.ADD)
    for rows in _batches(_task_kernel, views, records, wanted, len(_TASK_FIELDS), batch_rows):
        yield TaskColumns(**dict(zip(_TASK_FIELDS, rows, strict=True)))


def scan_ids(
    data: Bytes | NDArray[np.uint8],
    records: RecordColumns,
    *,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[IdColumns]:
    """Yield the ids of the changes by id among ``records`` of ``data``, in batches. Raises ``BadRecord``."""
    with bulk():
        import numpy as np

    views = buffers(data)
    wanted = np.isin(records.kind, _BY_ID)
    for rows in _batches(_id_kernel, views, records, wanted, len(_ID_FIELDS), batch_rows):
        yield IdColumns(**dict(zip(_ID_FIELDS, rows, strict=True)))


def id_fields(data: Bytes | NDArray[np.uint8], records: RecordColumns) -> IdFields:
    """Return the fixed fields of the changes by id among ``records``. Raises ``BadRecord``."""
    with bulk():
        import numpy as np

    words = buffers(data).words
    rows = np.isin(records.kind, _BY_ID).nonzero()[0]
    for row in rows[records.size[rows] < HEADER_SIZE + ids.BODY_SIZE_MIN]:
        raise _explained(data, records, int(row))
    at = (records.offset[rows] + HEADER_SIZE) >> 3
    first, second, last_id = words[at], words[at + 1], words[at + 2]
    return IdFields(
        record=rows,
        columns=high(first),
        reason=second & 0xFF,
        is_span=(second >> 8) & 0xFF == 1,
        destination_id=high(second),
        last_id=last_id,
    )


_DONE, _FULL, _BAD = 0, 1, 2


def _batches(
    kernel: Callable[..., Any],
    views: Buffers,
    records: RecordColumns,
    wanted: NDArray[np.bool_],
    fields: int,
    batch_rows: int,
) -> Iterator[NDArray[np.int64]]:
    """Yield what a kernel writes of the wanted records, in arrays of at most ``batch_rows`` rows.

    A record may have more rows than bytes, so memory must not follow the counts that a file claims.
    """
    with bulk():
        import numpy as np

    chosen = wanted.nonzero()[0]
    for row in chosen[(records.version[chosen] != VERSION) | (records.flags[chosen] & 3 != 0)]:
        raise _explained(views.data, records, int(row))
    fixed = np.stack(
        (
            chosen, records.offset[chosen], records.size[chosen], records.first_id[chosen],
            records.time_ms[chosen], records.index[chosen], records.principal_id[chosen],
        )
    )  # fmt: skip
    run = compiled(kernel)
    scratch = np.zeros(_SCRATCH, dtype=np.int64)
    row, place, status = 0, 0, _FULL
    while status == _FULL:
        rows = np.empty((fields, batch_rows), dtype=np.int64)
        count, row, place, status = run(*views, fixed, row, place, scratch, rows)
        if count:
            yield rows[:, :count]
    if status == _BAD:
        raise _explained(views.data, records, int(chosen[row]))


def _explained(data: Any, records: RecordColumns, row: int) -> BadRecord:
    """Return what the decoder says of a body that a kernel refused."""
    offset = int(records.offset[row])
    end = offset + int(records.size[row])
    view = memoryview(data)
    try:
        decode_change(decode_header(view, offset), view, offset + HEADER_SIZE, end)
    except BadRecord as error:
        return error
    return BadRecord("the body of a record does not fit its layout", offset=offset)


# --- the kernel of tasks -------------------------------------------------------------------------

_SCRATCH: Final = 36
"""Where the columns of an add begin, by bit; then payloads, columns, count, size of payloads."""
_PAYLOADS, _COLUMNS, _COUNT, _PAYLOAD_SIZE = 32, 33, 34, 35
_ROW, _OFFSET, _SIZE, _FIRST_ID, _TIME, _INDEX, _PRINCIPAL = range(7)

_BLOBS: Final = add.HEADERS | add.GROUP | add.UNIQUE | add.ORIGIN
_ONE_WORD: Final = add.NOT_BEFORE_ONE | add.EXPIRES_ONE
_WORD_EACH: Final = add.NOT_BEFORE_EACH | add.EXPIRES_EACH | add.IDS | add.ENQUEUED | add.ENTRY_EACH
_HALF_EACH: Final = add.ATTEMPTS | add.PRINCIPAL_EACH
_KEYS, _OFFSETS, _NOT_BEFORE, _EXPIRES, _IDS, _ATTEMPTS, _ENQUEUED, _PRINCIPALS, _ENTRIES = (
    0, 1, 2, 4, 11, 12, 13, 14, 15,
)  # fmt: skip
_KEY_ONE, _SIZES, _PRODUCER, _PRODUCER_EACH, _BORN, _EXTENSIONS = (
    add.KEY_ONE, add.SIZES, add.PRODUCER, add.PRODUCER_EACH, add.BORN, add.EXTENSIONS,
)  # fmt: skip
_KNOWN, _COUNT_MAX, _PAYLOAD_SIZE_MAX = add.COLUMNS, add.COUNT_MAX, add.PAYLOAD_SIZE_MAX
_NAME_AT, _ADD_SIZE_MIN, _NONE = add.FIXED.size, add.BODY_SIZE_MIN, NONE


def _task_kernel(
    data: Any, words: Any, records: Any, row: Any, place: Any, at: Any, rows: Any
) -> Any:
    """Write a row for each task from ``place`` of the record ``row`` on; return rows, row, place, and why it stopped."""
    count = 0
    while row < records.shape[1]:
        body = records[_OFFSET, row] + HEADER_SIZE
        if not _locate(data, words, body, records[_OFFSET, row] + records[_SIZE, row], at):
            return count, row, place, _BAD
        while place < at[_COUNT]:
            if count == rows.shape[1]:
                return count, row, place, _FULL
            if not _emit_task(words, records, row, place, at, rows, count):
                return count, row, place, _BAD
            place += 1
            count += 1
        row += 1
        place = 0
    return count, row, place, _DONE


def _padded(size: Any) -> Any:
    return (size + 7) & ~7


def _locate(data: Any, words: Any, body: Any, end: Any, at: Any) -> Any:
    """Write where each column of an add begins, 0 if it is absent; return whether all of them fit the body."""
    if end - body < _ADD_SIZE_MIN:
        return False
    count, columns = low(words[body >> 3]), high(words[body >> 3])
    payload_size = low(words[(body >> 3) + 1])
    if count == 0 or count > _COUNT_MAX or payload_size > _PAYLOAD_SIZE_MAX or columns & ~_KNOWN:
        return False
    if columns & (columns >> 1) & _ONE_WORD or (columns >> 3) & columns & _PRODUCER:
        return False  # two forms of one column
    if not columns & _SIZES and payload_size % count:
        return False
    position = body + _padded(_NAME_AT + 1 + data[body + _NAME_AT])
    limit = end - _padded(payload_size)
    at[_KEYS] = position
    position += 8 if columns & _KEY_ONE else 8 * count
    for bit in range(1, 32):
        at[bit] = 0
        if (columns >> bit) & 1:
            at[bit] = position
            position = _column_end(words, position, limit, 1 << bit, count)
    at[_PAYLOADS], at[_COLUMNS], at[_COUNT], at[_PAYLOAD_SIZE] = limit, columns, count, payload_size
    return position == limit


def _column_end(words: Any, at: Any, limit: Any, bit: Any, count: Any) -> Any:
    """Return where the column at ``at`` ends, or a place behind ``limit`` if its own lengths are not within it."""
    if bit & _WORD_EACH:
        return at + 8 * count
    if bit & _ONE_WORD:
        return at + 8
    if bit & _HALF_EACH:
        return at + _padded(4 * count)
    if bit & _BORN:
        return at + _padded(4 * count) + 8 * count
    if bit & _PRODUCER:
        return at + 24
    if bit & _SIZES:
        return at + _padded(4 * count + 4)
    if bit & _BLOBS:
        start = at + _padded(4 * count + 4)
        if start > limit or u32_at(words, at) != 0:
            return limit + 8
        return start + _padded(u32_at(words, at + 4 * count))
    if at + 8 > limit:
        return limit + 8
    if bit & _PRODUCER_EACH:
        return at + 8 + 16 * low(words[at >> 3]) + _padded(4 * count) + 8 * count
    return at + 8 + low(words[at >> 3])


def _emit_task(
    words: Any, records: Any, row: Any, place: Any, at: Any, rows: Any, count: Any
) -> Any:
    """Write the row of one task; return whether its payload is within the body."""
    columns, size, start = at[_COLUMNS], at[_PAYLOAD_SIZE] // at[_COUNT], 0
    if columns & _SIZES:
        start = u32_at(words, at[_OFFSETS] + 4 * place)
        stop = u32_at(words, at[_OFFSETS] + 4 * place + 4)
        size = stop - start
        if size < 0 or stop > at[_PAYLOAD_SIZE] or (place == 0 and start != 0):
            return False
    else:
        start = place * size
    key_place = 0 if columns & _KEY_ONE else place
    time = records[_TIME, row]
    emit(
        rows, count,
        (
            records[_ROW, row],
            _word(words, at[_IDS], place, records[_FIRST_ID, row] + place),
            words[(at[_KEYS] >> 3) + key_place],
            at[_PAYLOADS] + start,
            size,
            _time(words, at[_NOT_BEFORE], at[_NOT_BEFORE + 1], place, time, _NONE),
            _time(words, at[_EXPIRES], at[_EXPIRES + 1], place, time, _NONE),
            _time(words, 0, at[_ENQUEUED], place, time, time if time > 0 else _NONE),
            _half(words, at[_ATTEMPTS], place, 0),
            _half(words, at[_PRINCIPALS], place, records[_PRINCIPAL, row]),
            _word(words, at[_ENTRIES], place, records[_INDEX, row]),
        ),
    )  # fmt: skip
    return True


def _word(words: Any, at: Any, place: Any, default: Any) -> Any:
    """Return the number of a task in a column of 8 bytes each, or ``default`` if the column is absent."""
    return words[(at >> 3) + place] if at else default


def _half(words: Any, at: Any, place: Any, default: Any) -> Any:
    """Return the number of a task in a column of 4 bytes each, or ``default`` if the column is absent."""
    return u32_at(words, at + 4 * place) if at else default


def _time(words: Any, one: Any, each: Any, place: Any, base: Any, default: Any) -> Any:
    """Return the time of a task in one of two forms of a column, or ``default`` if both are absent."""
    if not one and not each:
        return default
    value = words[one >> 3] if one else words[(each >> 3) + place]
    return value if value == _NONE else base + value


# --- the kernel of ids ---------------------------------------------------------------------------

_ID_COLUMN, _IDS_SIZE_MIN = ids.IDS, ids.BODY_SIZE_MIN


def _id_kernel(
    _data: Any, words: Any, records: Any, row: Any, place: Any, _at: Any, rows: Any
) -> Any:
    """Write a row for each id from ``place`` of the record ``row`` on; return rows, row, place, and why it stopped."""
    count = 0
    while row < records.shape[1]:
        size = records[_SIZE, row] - HEADER_SIZE
        body = (records[_OFFSET, row] + HEADER_SIZE) >> 3
        if size < _IDS_SIZE_MIN:
            return count, row, place, _BAD
        total = low(words[body])
        has_column = high(words[body]) & _ID_COLUMN
        if has_column and _IDS_SIZE_MIN + 8 * total > size:
            return count, row, place, _BAD
        while place < total:
            if count == rows.shape[1]:
                return count, row, place, _FULL
            consecutive = records[_FIRST_ID, row] + place
            task_id = words[body + 3 + place] if has_column else consecutive
            emit(rows, count, (records[_ROW, row], place, task_id))
            place += 1
            count += 1
        row += 1
        place = 0
    return count, row, place, _DONE
