"""The properties of rows: what a change says beyond the columns that every table has, as text by name.

What every row has, or is a number, is made in columns. Headers, identities, errors and the like are rare: the changes that have
them are decoded, one by one, by the code that the commands use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.families.arrow import Property, hexadecimal, properties
from penstock.families.penstock.rows import headers_as_json, iso, reason_words
from penstock.families.penstock.tables.units import PLAIN, Rows, add_columns
from penstock.formats.records import add, ids
from penstock.formats.records.changes import (
    AddTasks,
    Deliver,
    MoveTasks,
    RemoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    SetTasks,
)
from penstock.formats.records.columns import NONE, Blobs, Extension
from penstock.formats.records.header import Kind
from penstock.formats.records.ids import (
    DeliverReason,
    MoveReason,
    RemoveReason,
    ReturnReason,
    Strings,
    Times,
)
from penstock.formats.records.settings import settings_members
from penstock.formats.records.task_headers import decode_headers

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_REASONS: Final = {
    int(Kind.REMOVE): RemoveReason,
    int(Kind.RETURN): ReturnReason,
    int(Kind.MOVE): MoveReason,
    int(Kind.DELIVER): DeliverReason,
}
_IN_COLUMNS: Final = (
    PLAIN | add.NOT_BEFORE_ONE | add.NOT_BEFORE_EACH | add.EXPIRES_ONE | add.EXPIRES_EACH | add.IDS
    | add.ATTEMPTS | add.ENQUEUED | add.PRINCIPAL_EACH | add.ENTRY_EACH | add.PRODUCER
)  # fmt: skip
"""Columns of an add that are read in bulk."""

_ALONE: Final = (int(Kind.QUEUE), int(Kind.MEMBERS), int(Kind.ACCESS))
"""Records whose body is JSON."""


def properties_of(rows: Rows) -> pa.Array:
    """Return the column of properties."""
    found = [
        *_of_units(rows),
        *_of_tasks(rows),
        *_of_producers(rows),
        *_one_by_one(rows),
    ]
    return properties(found, len(rows))


def _numbers(name: str, values: Numbers, is_there: NDArray[np.bool_]) -> Property:
    """Return numbers of some rows as text."""
    import numpy as np
    import pyarrow as pa

    rows = np.flatnonzero(is_there)
    chosen = values[rows]
    if len(chosen) and (chosen == chosen[0]).all():
        return Property(name, rows, pa.repeat(str(int(chosen[0])), len(rows)))
    return Property(name, rows, pa.array(chosen).cast(pa.string()))


# --- of changes ----------------------------------------------------------------------------------


def _of_units(rows: Rows) -> Iterator[Property]:
    queue_id = rows.of_record("queue_id")
    yield _numbers("queue_id", queue_id, queue_id != 0)
    yield from _reasons(rows)
    part = rows.units.part[rows.unit]
    if (part >= 0).any():
        yield _numbers("envelope", part, part >= 0)
    principal = rows.of_record("principal_id")
    if rows.tasks is not None:
        import numpy as np

        principal = np.where(rows.task >= 0, rows.of_task("principal_id"), principal)
    if principal.any():
        yield _numbers("principal_id", principal, principal != 0)


def _reasons(rows: Rows) -> Iterator[Property]:
    """Yield why tasks were removed, returned, moved or delivered; and the ids of a range."""
    import numpy as np
    import pyarrow as pa

    fields = rows.fields
    if not len(fields.record):
        return
    units = len(rows.units)
    words: list[str] = []
    code_of: dict[tuple[int, int], int] = {}
    codes = np.full(units, -1, dtype=np.int64)
    kinds = rows.units.columns.kind[fields.record]
    for unit, kind, reason in zip(
        fields.record.tolist(), kinds.tolist(), fields.reason.tolist(), strict=True
    ):
        if kind not in _REASONS or not reason:
            continue
        if (kind, reason) not in code_of:
            code_of[kind, reason] = len(words)
            words.append(reason_words(_REASONS[kind](reason)))
        codes[unit] = code_of[kind, reason]
    by_row = codes[rows.unit]
    found = np.flatnonzero(by_row >= 0)
    if len(found):
        yield Property("reason", found, pa.array(words, pa.string()).take(pa.array(by_row[found])))
    yield from _spans(rows)


def _spans(rows: Rows) -> Iterator[Property]:
    import numpy as np

    fields = rows.fields
    if not fields.is_span.any():
        return
    last = np.zeros(len(rows.units), dtype=np.int64)
    is_span = np.zeros(len(rows.units), dtype=np.bool_)
    spans = fields.record[fields.is_span]
    last[spans], is_span[spans] = fields.last_id[fields.is_span], True
    yield _numbers("first_id", rows.of_record("first_id"), is_span[rows.unit])
    yield _numbers("last_id", last[rows.unit], is_span[rows.unit])


# --- of added tasks ------------------------------------------------------------------------------


def _of_tasks(rows: Rows) -> Iterator[Property]:
    if rows.tasks is None:
        return
    is_task = rows.task >= 0
    for name in ("not_before", "expires"):
        times = rows.of_task(name, NONE)
        is_there = is_task & (times != NONE)
        if is_there.any():
            yield _times(name, times, is_there)
    attempts = rows.of_task("attempts")
    if attempts.any():
        yield _numbers("attempts", attempts, attempts != 0)
    entry = rows.of_task("entry")
    is_other = is_task & (entry != rows.of_record("index"))
    if is_other.any():
        yield _numbers("entry", entry, is_other)


def _times(name: str, times: Numbers, is_there: NDArray[np.bool_]) -> Property:
    """Return times of some rows as text; of equal ones one text is made."""
    import numpy as np
    import pyarrow as pa

    rows = np.flatnonzero(is_there)
    found, codes = np.unique(times[rows], return_inverse=True)
    words = pa.array([iso(each) for each in found.tolist()], pa.string())
    return Property(name, rows, words.take(pa.array(codes)))


def _of_producers(rows: Rows) -> Iterator[Property]:
    """Yield the producers of adds that name one, and the sequence of each task.

    The producer is the last of the columns that a client writes, so it is right in front of the payloads.
    """
    import numpy as np
    import pyarrow as pa

    columns = add_columns(rows.units)
    is_plain = (columns & add.PRODUCER != 0) & (columns & ~(2 * add.PRODUCER - 1) == 0)
    if rows.tasks is None or not is_plain.any():
        return
    tasks, data = rows.tasks, rows.units.data
    first = np.searchsorted(tasks.record, np.flatnonzero(is_plain), side="left")
    at = tasks.payload_at[first] - add.PRODUCER_LAYOUT.size
    names = hexadecimal(data[at[:, None] + np.arange(16)])
    sequences = data[at[:, None] + np.arange(16, 24)].view(np.int64)[:, 0]
    place = np.full(len(rows.units), -1, dtype=np.int64)
    place[is_plain] = np.arange(len(at))
    chosen = np.flatnonzero(place[rows.unit] >= 0)
    unit = place[rows.unit[chosen]]
    yield Property("producer", chosen, names.take(pa.array(unit)))
    sequence = sequences[unit] + rows.task[chosen] - first[unit]
    yield Property("sequence", chosen, pa.array(sequence).cast(pa.string()))


# --- what is rare --------------------------------------------------------------------------------


def _one_by_one(rows: Rows) -> Iterator[Property]:
    """Yield what changes say that are decoded one by one."""
    import numpy as np
    import pyarrow as pa

    units = np.flatnonzero(_is_rare(rows))
    said: dict[str, tuple[list[int], list[str]]] = {}
    starts = np.searchsorted(rows.unit, units, side="left")
    for unit, start in zip(units.tolist(), starts.tolist(), strict=True):
        for place, fields in enumerate(_fields_of(rows, unit)):
            for name, value in fields.items():
                at, values = said.setdefault(name, ([], []))
                at.append(start + place)
                values.append(value)
    for name, (at, values) in said.items():
        yield Property(name, np.array(at, dtype=np.int64), pa.array(values, pa.string()))


def _is_rare(rows: Rows) -> NDArray[np.bool_]:
    import numpy as np

    columns = rows.units.columns
    found: NDArray[np.bool_] = np.isin(columns.kind, _ALONE)
    in_add = add_columns(rows.units)
    is_late = in_add & ~(2 * add.PRODUCER - 1) != 0
    found |= in_add & ~_IN_COLUMNS != 0
    found |= is_late & (in_add & add.PRODUCER != 0)
    by_id = rows.fields
    has_more = by_id.columns & ~(ids.IDS | ids.KEY_ONE | ids.KEY_EACH) != 0
    found[by_id.record[has_more]] = True
    return found


def _fields_of(rows: Rows, unit: int) -> list[Mapping[str, str]]:
    """Return for each row of a change what it says beyond what is made in columns."""
    change = rows.units.change(unit)
    time_ms = int(rows.units.columns.time_ms[unit])
    match change:
        case AddTasks():
            return _of_add(change)
        case SetQueue(settings=settings) | SetMembers(settings) | SetAccess(settings):
            members = settings_members(settings)
            return [{name: _text(value) for name, value in members.items() if name != "name"}]
        case ReturnTasks() | MoveTasks() | SetTasks():
            return _of_changed(change, time_ms)
        case Deliver(consumer=consumer, deadline=deadline):
            fields = {"consumer": consumer.decode(), "deadline": iso(time_ms + deadline)}
            return [fields] * len(change.ids)
        case RemoveTasks(extensions=extensions):
            return [_extensions(extensions)] * (1 if change.is_span else len(change.ids))
        case _:
            return []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _extensions(extensions: tuple[Extension, ...]) -> dict[str, str]:
    if not extensions:
        return {}
    return {"extensions": _text([[each.id, each.flags, each.content.hex()] for each in extensions])}


def _of_add(change: AddTasks) -> list[Mapping[str, str]]:
    body = change.body
    requests = {
        each.first_id + step: (each.producer.hex(), str(each.sequence + step))
        for each in body.requests(change.first_id)
        for step in range(each.count)
    }
    is_late = body.columns & ~(2 * add.PRODUCER - 1) != 0
    named = (body.extra or {}).get(add.IDS) or range(change.first_id, change.first_id + body.count)
    shared = _extensions(body.extensions())
    found: list[Mapping[str, str]] = []
    for place, task_id in enumerate(named):
        fields = dict(shared)
        if headers := body.headers(place):
            fields["headers"] = json.dumps(headers_as_json(headers), separators=(",", ":"))
        if (born := body.born(place)) is not None:
            fields |= {"born_queue_id": str(born[0]), "born_id": str(born[1])}
        if origin := body.origin(place):
            fields["origin"] = origin.decode(errors="replace")
        if is_late and task_id in requests:
            fields["producer"], fields["sequence"] = requests[task_id]
        for name, bit in (("group", add.GROUP), ("unique", add.UNIQUE)):
            blobs: Blobs | None = (body.extra or {}).get(bit)
            if blobs is not None:
                fields[name] = blobs.get(place).hex()
        found.append(fields)
    return found


def _of_changed(
    change: ReturnTasks | MoveTasks | SetTasks, time_ms: int
) -> list[Mapping[str, str]]:
    found: list[Mapping[str, str]] = []
    shared = _extensions(change.extensions)
    for place in range(len(change.ids)):
        fields = dict(shared)
        if isinstance(change, MoveTasks):
            fields["destination_queue_id"] = str(change.destination_id)
            fields["destination_id"] = str(change.first_destination_id + place)
        _put_time(fields, "not_before", change.not_before, place, time_ms)
        if not isinstance(change, ReturnTasks):
            _put_time(fields, "expires", change.expires, place, time_ms)
        if not isinstance(change, SetTasks) and change.errors is not None:
            fields["error"] = _string(change.errors, place).decode(errors="replace")
        if isinstance(change, SetTasks) and change.headers is not None:
            headers = decode_headers(_string(change.headers, place))
            fields["headers"] = json.dumps(headers_as_json(headers), separators=(",", ":"))
        found.append(fields)
    return found


def _put_time(
    fields: dict[str, str], name: str, values: Times | None, place: int, time_ms: int
) -> None:
    if values is None:
        return
    value = values if isinstance(values, int) else values[place]
    fields[name] = "none" if value == NONE else iso(time_ms + value)


def _string(values: Strings, place: int) -> bytes:
    if isinstance(values, bytes):
        return values
    return values.get(place) if isinstance(values, Blobs) else values[place]
