"""The body of a change of tasks by id: remove, return, move, deliver, set (docs/formats/records.md).

The ids of a body are consecutive from the record's ``first id``, or a column. A remove may instead name a span of ids, of
which it removes what is alive.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.binary import Bytes, decode_queue_name
from penstock.errors import BadRecord, InvalidQueueName, InvalidValue
from penstock.formats.records.columns import (
    I64,
    NONE,
    TIME_DISTANCE_MAX,
    U64,
    Blobs,
    ColumnReader,
    Extension,
    check_time,
    encode_array,
    encode_blobs,
    encode_extensions,
    padded,
)
from penstock.formats.records.header import Kind
from penstock.formats.records.task_headers import check_headers
from penstock.model import UINT64_MAX

IDS: Final = 1 << 0
NOT_BEFORE_ONE: Final = 1 << 1
NOT_BEFORE_EACH: Final = 1 << 2
KEY_ONE: Final = 1 << 3
KEY_EACH: Final = 1 << 4
ERROR_ONE: Final = 1 << 5
ERROR_EACH: Final = 1 << 6
HEADERS: Final = 1 << 7
FIRST_DESTINATION_ID: Final = 1 << 8
LEASE: Final = 1 << 9
RESULTS: Final = 1 << 10
EXPIRES_ONE: Final = 1 << 11
EXPIRES_EACH: Final = 1 << 12
EXTENSIONS: Final = 1 << 31

_TIMES_AND_KEYS: Final = NOT_BEFORE_ONE | NOT_BEFORE_EACH | KEY_ONE | KEY_EACH
_ERRORS: Final = ERROR_ONE | ERROR_EACH
_EXPIRES: Final = EXPIRES_ONE | EXPIRES_EACH
_ALWAYS: Final = IDS | EXTENSIONS
COLUMNS: Final[Mapping[int, int]] = {
    Kind.REMOVE: _ALWAYS | RESULTS,
    Kind.RETURN: _ALWAYS | _TIMES_AND_KEYS | _ERRORS,
    Kind.MOVE: _ALWAYS | _TIMES_AND_KEYS | _ERRORS | FIRST_DESTINATION_ID | _EXPIRES,
    Kind.DELIVER: _ALWAYS | LEASE,
    Kind.SET: _ALWAYS | _TIMES_AND_KEYS | HEADERS | _EXPIRES,
}
"""The columns that each kind may have."""

REQUIRED: Final[Mapping[int, int]] = {
    Kind.MOVE: FIRST_DESTINATION_ID,
    Kind.DELIVER: LEASE,
}
"""The columns that a kind must have: without them its effect would not be defined."""

_EXCLUSIVE: Final = (
    (NOT_BEFORE_ONE, NOT_BEFORE_EACH),
    (KEY_ONE, KEY_EACH),
    (ERROR_ONE, ERROR_EACH),
    (EXPIRES_ONE, EXPIRES_EACH),
)
_PER_ID: Final = IDS | NOT_BEFORE_EACH | KEY_EACH | ERROR_EACH | HEADERS | RESULTS | EXPIRES_EACH
COUNT_MAX: Final = 2**20
"""Ids of one record that has a value for each of them: bounds the memory that checking them takes."""

_FIXED: Final = Struct("<IIBBHIQ")  # count, columns, reason, mode, 0, destination, last id
BODY_SIZE_MIN: Final = _FIXED.size
_U16: Final = Struct("<H")
_THESE, _SPAN = 0, 1  # modes

if TYPE_CHECKING:
    Ids = range | memoryview[int] | array[int]
else:
    Ids = range | memoryview | array
"""Ascending ids: a range where they are consecutive. ``len`` fails for a span of 2^63 ids and more; use start and stop."""


class RemoveReason(IntEnum):
    """Why tasks leave for good."""

    ACKED = 1
    EXPIRED = 2
    PURGED = 3
    CANCELLED = 4
    DROPPED = 5


class ReturnReason(IntEnum):
    """Why tasks are back in their queue. The first two count an attempt."""

    FAILED = 1
    LEASE_ENDED = 2
    RELEASED = 3


class MoveReason(IntEnum):
    """Why tasks go to another queue."""

    DEAD_FAILED = 1
    DEAD_EXPIRED = 2
    DEAD_DAMAGED = 3
    MOVED = 4
    REDRIVEN = 5


class DeliverReason(IntEnum):
    """What happened to a delivery."""

    DELIVERED = 1
    STARTED = 2


_REASONS: Final[Mapping[int, int]] = {
    Kind.REMOVE: len(RemoveReason),
    Kind.RETURN: len(ReturnReason),
    Kind.MOVE: len(MoveReason),
    Kind.DELIVER: len(DeliverReason),
    Kind.SET: 0,
}
"""The last reason of each kind; the first is 1, or 0 where there is none."""


class LeaseColumn(NamedTuple):
    """Who holds tasks, and until when, relative to the record's time."""

    consumer: bytes
    deadline_ms: int


class IdsBody(NamedTuple):
    """A decoded body. Views share the memory of the data that was decoded."""

    ids: Ids
    columns: int
    reason: int
    is_span: bool  # of a remove: whatever is alive of ids, which is then a range
    destination_id: int
    extra: dict[int, Any]
    """Columns by bit: an int (one), a memoryview (each), bytes (error: one), `Blobs`, `LeaseColumn`, extensions."""


def decode_ids(kind: int, data: Bytes, start: int, end: int, first_id: int) -> IdsBody:
    """Check the body of a change by id in ``data[start:end]`` and return its columns. Raises ``BadRecord``."""
    if end - start < BODY_SIZE_MIN or (end - start) % 8 or end > len(data):
        raise BadRecord(
            "impossible size of a change by id",
            offset=start,
            expected=f"a multiple of 8, {BODY_SIZE_MIN} or more",
            found=str(end - start),
        )
    count, columns, reason, mode, zero, destination, last_id = _FIXED.unpack_from(data, start)
    last_reason = _REASONS[kind]
    if zero or not (1 <= reason <= last_reason or reason == last_reason == 0):
        raise BadRecord(
            "impossible reason",
            offset=start + 8,
            expected=f"up to {last_reason}",
            found=str(reason),
        )
    if (destination != 0) != (kind == Kind.MOVE):
        raise BadRecord(
            "a move, and nothing else, has a destination", offset=start + 12, found=str(destination)
        )
    _check_bits(kind, columns, start)
    reader = ColumnReader(data, start + BODY_SIZE_MIN, end, count)
    if mode == _SPAN:
        ids: Ids = _decode_span(kind, count, columns, first_id, last_id, start)
    elif mode == _THESE and last_id == 0:
        ids = _decode_these(reader, columns, first_id, start)
    else:
        raise BadRecord("impossible mode or last id", offset=start + 9, found=f"{mode}, {last_id}")
    extra = {bit: decode(reader) for bit, decode in _DECODERS if columns & bit} if columns else {}
    if reader.at != end:
        raise BadRecord(
            f"the columns do not add up to the {end - start} bytes of the body", offset=start
        )
    return IdsBody(ids, columns, reason, mode == _SPAN, destination, extra)


def _check_bits(kind: int, columns: int, start: int) -> None:
    """Refuse columns that the kind does not have, and those that exclude each other."""
    if columns & ~COLUMNS[kind]:
        raise BadRecord(
            f"columns that a {Kind(kind).name.lower()} does not have",
            offset=start + 4,
            found=f"bits {columns & ~COLUMNS[kind]:#x}",
        )
    required = REQUIRED.get(kind, 0)
    if columns & required != required:
        raise BadRecord(
            f"a {Kind(kind).name.lower()} lacks a column",
            offset=start + 4,
            expected=f"bit {required:#x}",
        )
    for one, each in _EXCLUSIVE:
        if columns & one and columns & each:
            raise BadRecord(
                "columns that exclude each other", offset=start + 4, found=f"bits {one | each:#x}"
            )


def _decode_span(
    kind: int, count: int, columns: int, first_id: int, last_id: int, start: int
) -> range:
    if kind != Kind.REMOVE or count or columns & ~EXTENSIONS or last_id < first_id:
        raise BadRecord(
            "a span of ids is of a remove, without count and columns, and does not end before it begins",
            offset=start,
            found=f"{first_id} to {last_id}, count {count}, columns {columns:#x}",
        )
    return range(first_id, last_id + 1)


def _decode_these(reader: ColumnReader, columns: int, first_id: int, start: int) -> Ids:
    count = reader.count
    is_too_many = columns & _PER_ID and count > COUNT_MAX
    if not count or is_too_many or first_id + count - 1 > UINT64_MAX:
        raise BadRecord(
            "impossible number of ids", offset=start, found=f"{count} from {first_id} on"
        )
    if not columns & IDS:
        return range(first_id, first_id + count)
    ids = reader.ascending_ids("ids")
    if ids[0] != first_id:
        raise BadRecord(
            "the first id of the record is not the first of its ids",
            offset=start,
            expected=str(first_id),
            found=str(ids[0]),
        )
    return ids


def _decode_time(reader: ColumnReader) -> int:
    at = reader.at
    value = reader.i64("a time")
    if value != NONE:
        check_time(value, -TIME_DISTANCE_MAX, TIME_DISTANCE_MAX, "a time", at)
    return value


def _decode_times(reader: ColumnReader) -> memoryview:
    return reader.times("times", -TIME_DISTANCE_MAX, TIME_DISTANCE_MAX)


def _decode_error(reader: ColumnReader) -> bytes:
    if reader.limit - reader.at < _U16.size:
        raise BadRecord("the body ends inside an error text", offset=reader.at)
    (size,) = _U16.unpack_from(reader.data, reader.at)
    at = reader.take(_U16.size + size, "an error text")
    text = bytes(reader.data[at + _U16.size : at + _U16.size + size])
    _check_text(text, at)
    return text


def _decode_errors(reader: ColumnReader) -> Blobs:
    column = reader.blobs("error texts")
    for text in set(column.values()):
        _check_text(text, column.at)
    return column


def _check_text(text: bytes, at: int) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRecord("an error text is not UTF-8", offset=at) from None


def _decode_headers(reader: ColumnReader) -> Blobs:
    column = reader.blobs("headers")
    check_headers(column)
    return column


def _decode_lease(reader: ColumnReader) -> LeaseColumn:
    if reader.at >= reader.limit:
        raise BadRecord("the body ends inside a consumer's name", offset=reader.at)
    size = reader.data[reader.at]
    at = reader.take(1 + size, "a consumer's name")
    name = bytes(reader.data[at + 1 : at + 1 + size])
    try:
        decode_queue_name(name)
    except InvalidQueueName:
        raise BadRecord("a consumer's name is not printable ASCII", offset=at) from None
    return LeaseColumn(name, reader.time("a deadline", -TIME_DISTANCE_MAX, TIME_DISTANCE_MAX))


_DECODERS: Final[tuple[tuple[int, Callable[[ColumnReader], Any]], ...]] = (
    (NOT_BEFORE_ONE, _decode_time),
    (NOT_BEFORE_EACH, _decode_times),
    (KEY_ONE, lambda reader: reader.i64("a key")),
    (KEY_EACH, lambda reader: reader.array("q", 8, "keys")),
    (ERROR_ONE, _decode_error),
    (ERROR_EACH, _decode_errors),
    (HEADERS, _decode_headers),
    (FIRST_DESTINATION_ID, lambda reader: reader.u64("the first destination id")),
    (LEASE, _decode_lease),
    (RESULTS, lambda reader: reader.blobs("results")),
    (EXPIRES_ONE, _decode_time),
    (EXPIRES_EACH, _decode_times),
    (EXTENSIONS, lambda reader: reader.extensions()),
)
"""How each column behind the ids is read, in the order of the bits, which is their order in the body."""


# --- writing -------------------------------------------------------------------------------------

Times = int | Sequence[int] | memoryview
Strings = bytes | Blobs | Sequence[bytes]


def encode_ids(
    ids: Ids,
    reason: int = 0,
    *,
    is_span: bool = False,
    destination_id: int = 0,
    columns: Mapping[int, bytes] | None = None,
) -> bytes:
    """Return the body of a change by id. ``columns`` are the encoded ones behind the ids, by bit."""
    parts = dict(columns or {})
    if is_span:
        if not isinstance(ids, range) or not 0 <= ids.start < ids.stop <= UINT64_MAX + 1:
            raise InvalidValue(f"a span is a range of ids, not {ids!r}")
        count, last_id = 0, ids.stop - 1
    elif not len(ids):
        raise InvalidValue("a change by id needs an id")
    else:
        count, last_id = len(ids), 0
        if not isinstance(ids, range):
            parts[IDS] = bytes(ids)
        elif ids.step != 1:
            raise InvalidValue("the ids of a range are consecutive")
    bits = 0
    for bit in parts:
        bits |= bit
    if bits & _PER_ID and count > COUNT_MAX:
        raise InvalidValue(f"a change by id names up to {COUNT_MAX} ids one by one, not {count}")
    fixed = _FIXED.pack(count, bits, reason, is_span, 0, destination_id, last_id)
    return fixed + b"".join(parts[bit] for bit in sorted(parts)) if parts else fixed


def put_numbers(columns: dict[int, bytes], values: Times | None, one: int, each: int) -> None:
    """Add the column of some numbers, unless there are none."""
    if isinstance(values, int):
        columns[one] = I64.pack(values)
    elif isinstance(values, memoryview):
        columns[each] = bytes(values)
    elif values is not None:
        columns[each] = encode_array("q", values)


def put_strings(columns: dict[int, bytes], values: Strings | None, one: int, each: int) -> None:
    """Add the column of some strings, unless there are none; ``one`` is 0 where each task has its own."""
    if isinstance(values, bytes):
        assert one
        columns[one] = padded(_U16.pack(len(values)) + values)
    elif values is not None:
        columns[each] = encode_blobs(values.values() if isinstance(values, Blobs) else values)


def put_lease(columns: dict[int, bytes], lease: LeaseColumn) -> None:
    """Add the column of a delivery."""
    size = len(lease.consumer)
    columns[LEASE] = padded(pack(f"<B{size}s", size, lease.consumer)) + I64.pack(lease.deadline_ms)


def put_first_destination_id(columns: dict[int, bytes], task_id: int) -> None:
    """Add the column of a move."""
    columns[FIRST_DESTINATION_ID] = U64.pack(task_id)


def put_extensions(columns: dict[int, bytes], extensions: Sequence[Extension]) -> None:
    """Add the column of extensions, unless there are none."""
    if extensions:
        columns[EXTENSIONS] = encode_extensions(extensions)
