"""The rows of tables of generation 4, said one by one from the changes that were written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.formats.records.add import EXPIRES_EACH, EXPIRES_ONE
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
    SetQueue,
    SetTasks,
    Stamp,
)
from penstock.formats.records.columns import NONE
from penstock.formats.records.ids import Times
from support.record_lives import Entry, word

Row = dict[str, Any]
COLUMNS = ("log_index", "term", "op", "queue", "key", "task_id", "payload", "event_time")


def moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def said_rows(entries: list[Entry]) -> list[Row]:
    """Return for each row the columns above, and the properties that a history of these tests has."""
    names: dict[int, str] = {}
    found: list[Row] = []
    for stamp, change in entries:
        if isinstance(change, SetQueue):
            names[change.queue_id] = str(change.settings.name)
        parts = change.parts if isinstance(change, Envelope) else None
        if parts is None:
            found += _rows(stamp, change, names, {})
        else:
            for place, part in enumerate(parts):
                found += _rows(stamp, part.change, names, {"envelope": str(place)})
    return found


def _rows(
    stamp: Stamp, change: Change, names: Mapping[int, str], more: Mapping[str, str]
) -> Iterator[Row]:
    queue_id = getattr(change, "queue_id", None)
    shared = dict(more) | ({} if queue_id is None else {"queue_id": str(queue_id)})
    if stamp.principal_id and "envelope" not in more:
        shared["principal_id"] = str(stamp.principal_id)
    for fields, properties in _fields(stamp, change):
        yield {
            "log_index": stamp.index,
            "term": stamp.term,
            "queue": None if queue_id is None else names[queue_id],
            "key": None,
            "task_id": None,
            "payload": None,
            "event_time": moment(stamp.time_ms),
            **fields,
            "properties": shared | properties,
        }


def _fields(stamp: Stamp, change: Change) -> Iterator[tuple[Row, dict[str, str]]]:
    match change:
        case SetQueue():
            yield {"op": "create"}, {}
        case DeleteQueue():
            yield {"op": "delete"}, {}
        case Empty():
            yield {"op": "empty"}, {}
        case AddTasks(_, first_id, body):
            for place in range(body.count):
                row = {"op": "add", "key": body.key(place), "task_id": first_id + place}
                row["payload"] = bytes(body.payload(place))
                expires = body.number(place, EXPIRES_EACH, EXPIRES_ONE)
                yield row, {} if expires in (None, NONE) else _time(stamp, expires or 0)
        case RemoveTasks(_, ids, reason, True):
            assert isinstance(ids, range)
            ends = {"first_id": str(ids.start), "last_id": str(ids.stop - 1)}
            yield {"op": "remove"}, ends | {"reason": word(reason)}
        case RemoveTasks() | Deliver():
            op = "remove" if isinstance(change, RemoveTasks) else "deliver"
            for task_id in change.ids:
                yield {"op": op, "task_id": task_id}, {"reason": word(change.reason)}
        case ReturnTasks() | MoveTasks() | SetTasks():
            op = {ReturnTasks: "return", MoveTasks: "move", SetTasks: "set"}[type(change)]
            for place, task_id in enumerate(change.ids):
                row = {"op": op, "task_id": task_id, "key": _at(change.keys, place)}
                yield row, _changed(stamp, change, place)
        case _:
            raise AssertionError("histories of these tests have no other change")


def _changed(
    stamp: Stamp, change: ReturnTasks | MoveTasks | SetTasks, place: int
) -> dict[str, str]:
    found: dict[str, str] = {}
    if not isinstance(change, SetTasks):
        found["reason"] = word(change.reason)
    if isinstance(change, MoveTasks):
        found["destination_queue_id"] = str(change.destination_id)
        found["destination_id"] = str(change.first_destination_id + place)
        found["error"] = "failed"
    if not isinstance(change, ReturnTasks) and change.expires is not None:
        expires = _at(change.expires, place)
        found |= {"expires": "none"} if expires == NONE else _time(stamp, expires or 0)
    return found


def _time(stamp: Stamp, relative: int) -> dict[str, str]:
    text = moment(stamp.time_ms + relative).isoformat(timespec="milliseconds")
    return {"expires": text.replace("+00:00", "Z")}


def _at(column: Times | None, place: int) -> int | None:
    return column if column is None or isinstance(column, int) else column[place]
