"""The rows of generation 4: records exploded to tasks and ids, snapshots, small files, tasks of queues, damage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

from penstock.errors import BadData
from penstock.families.damage import damage_row, place_row
from penstock.families.family import Row, encode_payload
from penstock.families.payloads import text_of
from penstock.families.penstock.family import NAME
from penstock.formats.records import add
from penstock.formats.records.add import AddBody
from penstock.formats.records.canonical import decode_canonical
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Deliver,
    Empty,
    Envelope,
    MoveTasks,
    RemoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    SetTasks,
)
from penstock.formats.records.columns import NONE, Blobs
from penstock.formats.records.header import Header
from penstock.formats.records.ids import Strings, Times
from penstock.formats.records.settings import settings_members
from penstock.formats.records.task_headers import decode_headers
from penstock.model import QueueName

Names = Mapping[int, QueueName]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_FIRST_MS: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

place: Final = partial(place_row, NAME)
"""Return the names that every row about a place has."""

row_of: Final = partial(damage_row, NAME)
"""Return the row of a damage."""


def iso(time_ms: int) -> str:
    """Return a time of a log as text; one that no calendar has as milliseconds since 1970."""
    if not _FIRST_MS <= time_ms <= _LAST_MS:
        return f"{time_ms} ms"
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def reason_words(reason: IntEnum) -> str:
    """Return a reason as rows and tables have it."""
    return reason.name.lower().replace("_", "-")


def headers_as_json(headers: Mapping[str, bytes]) -> Row:
    """Return headers for a row: values that are no text as base64."""
    return {name: _text(value) for name, value in headers.items()}


def _text(value: bytes) -> str | Row:
    text = text_of(value)
    return {"base64": encode_payload(value)} if text is None else text


def origin_as_json(origin: bytes) -> Any:
    """Return the last hop of a task; its text unchanged if it is no canonical JSON."""
    try:
        return decode_canonical(origin)
    except BadData:
        return origin.decode(errors="replace")


# --- entries -------------------------------------------------------------------------------------


def record_rows(
    path: Path, kind: str, offset: int, header: Header, change: Change, names: Names
) -> Iterator[Row]:
    """Yield the rows of a record: one for each task or id that it names."""
    front = place(path, kind, offset, header.size, "ok")
    front |= {"index": header.index, "term": header.term}
    front["time"] = iso(header.time_ms) if header.time_ms else None
    if header.principal_id:
        front["principal_id"] = header.principal_id
    for fields in _change_rows(change, header.time_ms, names):
        yield front | fields


def _change_rows(change: Change, time_ms: int, names: Names) -> Iterator[Row]:
    match change:
        case AddTasks(queue_id, first_id, body):
            yield from _add_rows(queue_id, first_id, body, time_ms)
        case RemoveTasks(queue_id, ids, reason, is_span):
            row = _of_queue("remove", queue_id, names) | {"cause": reason_words(reason)}
            if is_span:
                assert isinstance(ids, range)
                yield row | {"first_id": ids.start, "last_id": ids.stop - 1}
                return
            yield from (row | {"id": task_id} for task_id in ids)
        case ReturnTasks() | MoveTasks() | SetTasks():
            yield from _changed_rows(change, time_ms, names)
        case Deliver(queue_id, ids, reason, consumer, deadline):
            row = _of_queue("deliver", queue_id, names) | {
                "cause": reason_words(reason),
                "consumer": consumer.decode("ascii"),
                "deadline": iso(time_ms + deadline),
            }
            yield from (row | {"id": task_id} for task_id in ids)
        case SetQueue(queue_id, settings):
            yield {"op": "create", "queue": settings.name, "queue_id": queue_id} | _rest(settings)
        case DeleteQueue(queue_id):
            yield _of_queue("delete", queue_id, names)
        case SetMembers(settings):
            yield {"op": "members"} | settings_members(settings)
        case SetAccess(access):
            yield {"op": "access"} | settings_members(access)
        case Envelope(parts):
            for number, part in enumerate(parts):
                extra: Row = {"envelope": number}
                if part.principal_id:
                    extra["principal_id"] = part.principal_id
                yield from (row | extra for row in _change_rows(part.change, time_ms, names))
        case Empty():
            yield {"op": "empty"}
        case _ as never:
            assert_never(never)


def _rest(settings: Any) -> Row:
    members = settings_members(settings)
    del members["name"]
    return members


def _of_queue(op: str, queue_id: int, names: Names) -> Row:
    return {"op": op, "queue": names.get(queue_id), "queue_id": queue_id}


def _add_rows(queue_id: int, first_id: int, body: AddBody, time_ms: int) -> Iterator[Row]:
    front: Row = {"op": "add", "queue": body.name.decode("ascii"), "queue_id": queue_id}
    extra = body.extra or {}
    ids = extra.get(add.IDS) or range(first_id, first_id + body.count)
    requests = _requests(body, first_id)
    for position, task_id in enumerate(ids):
        row = front | {"id": task_id, "key": body.key(position)}
        row["payload"] = encode_payload(body.payload(position))
        if body.extra is not None:
            row |= _details(body, position, time_ms) | requests.get(task_id, {})
        yield row


def _requests(body: AddBody, first_id: int) -> dict[int, Row]:
    """Return producer and sequence of each task that was added under one."""
    return {
        request.first_id + step: {
            "producer": request.producer.hex(),
            "sequence": request.sequence + step,
        }
        for request in body.requests(first_id)
        for step in range(request.count)
    }


def _details(body: AddBody, position: int, time_ms: int) -> Row:
    """Return what an add says of a task beyond key and payload, as far as it is not the default."""
    row: Row = {}
    for name, one, each in (
        ("not_before", add.NOT_BEFORE_ONE, add.NOT_BEFORE_EACH),
        ("expires", add.EXPIRES_ONE, add.EXPIRES_EACH),
        ("enqueued", 0, add.ENQUEUED),
    ):
        value = body.number(position, each, one)
        if value is not None and value != NONE:
            row[name] = iso(time_ms + value)
    for name, each in (
        ("attempts", add.ATTEMPTS),
        ("principal_id", add.PRINCIPAL_EACH),
        ("entry", add.ENTRY_EACH),
    ):
        if value := body.number(position, each):
            row[name] = value
    if headers := body.headers(position):
        row["headers"] = headers_as_json(headers)
    if (born := body.born(position)) is not None:
        row["born"] = {"queue_id": born[0], "id": born[1]}
    if origin := body.origin(position):
        row["origin"] = origin_as_json(origin)
    return row


def _changed_rows(
    change: ReturnTasks | MoveTasks | SetTasks, time_ms: int, names: Names
) -> Iterator[Row]:
    """Yield a row for each id that goes back, to another queue, or gets other values."""
    op = {ReturnTasks: "return", MoveTasks: "move", SetTasks: "set"}[type(change)]
    front = _of_queue(op, change.queue_id, names)
    if not isinstance(change, SetTasks):
        front["cause"] = reason_words(change.reason)
    if isinstance(change, MoveTasks):
        front["destination"] = names.get(change.destination_id)
        front["destination_queue_id"] = change.destination_id
    for position, task_id in enumerate(change.ids):
        row = front | {"id": task_id}
        if isinstance(change, MoveTasks):
            row["destination_id"] = change.first_destination_id + position
        if (key := _one_of(change.keys, position)) is not None:
            row["key"] = key
        _put_time(row, "not_before", _one_of(change.not_before, position), time_ms)
        if not isinstance(change, ReturnTasks):
            _put_time(row, "expires", _one_of(change.expires, position), time_ms)
        if not isinstance(change, SetTasks) and change.errors is not None:
            row["error"] = _string(change.errors, position).decode()
        if isinstance(change, SetTasks) and change.headers is not None:
            row["headers"] = headers_as_json(decode_headers(_string(change.headers, position)))
        yield row


def _one_of(values: Times | None, position: int) -> int | None:
    return values if values is None or isinstance(values, int) else values[position]


def _put_time(row: Row, name: str, value: int | None, time_ms: int) -> None:
    if value is not None:
        row[name] = "none" if value == NONE else iso(time_ms + value)


def _string(values: Strings, position: int) -> bytes:
    if isinstance(values, bytes):
        return values
    return values.get(position) if isinstance(values, Blobs) else values[position]


# --- small files ---------------------------------------------------------------------------------


def metadata_row(path: Path, offset: int, size: int, fields: Row) -> Row:
    """Return the row of a small file, or of a record that is no entry."""
    return place(path, "metadata", offset, size, "ok") | fields
