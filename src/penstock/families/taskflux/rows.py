"""The rows of TaskFlux's records, queues, tasks and damage, and the dump of all of them in file order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.errors import BadData
from penstock.families.damage import Damage, Severity, damage_row, fault_fields, place_row
from penstock.families.family import Progress, Row, encode_payload, no_progress
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.location import Target
from penstock.families.taskflux.read import Found, History, Misfit, survey
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import decode_delta
from penstock.formats.taskflux.extensions import decode_extension, is_extension
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import Status
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.notes import Header, Ids, Note, ProducerNote, QueueNote, TaskNotes
from penstock.formats.taskflux.snapshot import encode_head
from penstock.formats.taskflux.snapshot_decode import SnapshotHeader, decode_snapshot
from penstock.model import (
    Adding,
    AddTask,
    Command,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    Creating,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    Extension,
    ListQueues,
    QueueHead,
    RemoveEqualTask,
    RemoveTask,
    Removing,
    Returning,
    policy_fields,
)
from penstock.storage.files import opened

_OPS: Final[dict[type[Delta | Command], str]] = {
    AddTask: "add",
    RemoveTask: "remove",
    RemoveEqualTask: "remove",
    CreateQueue: "create",
    DeleteQueue: "delete",
    Enqueue: "enqueue",
    Dequeue: "dequeue",
    CountTasks: "count",
    CreateCommand: "create",
    CreateWithPolicy: "create",
    DeleteCommand: "delete",
    ListQueues: "list",
}

_KINDS: Final[dict[type[Extension | Note], str]] = {
    Adding: "adding",
    Creating: "creating",
    Returning: "returning",
    Removing: "removing",
    Header: "header",
    QueueNote: "queue",
    TaskNotes: "tasks",
    Ids: "ids",
    ProducerNote: "producer",
}

KINDS: Final = ("metadata", "snapshot", "log", "sidecar")
"""The kinds of files that may turn out to be unreadable."""

REASONS: Final = {
    Status.BAD_CHECKSUM: "the payload does not match its checksum",
    Status.BAD_MARKER: "neither a record nor the end where one of them must be",
    Status.BAD_TERM: "a term below 1",
    Status.FALLING_TERM: "a lower term than that of the entry before",
    Status.BAD_LENGTH: "an impossible length",
    Status.TORN: "the file ends inside a record",
    Status.ZEROS: "zeros, but records follow them",
    Status.LEFTOVER: "bytes behind the end of the log",
    Status.STALE: "bytes behind the end of the log that an overwritten tail left",
    Status.UNDECIDED: "records behind the end of the log: stale, or hidden by a marker that was zeroed",
}


_SEVERITIES: Final = {
    Status.STALE: Severity.HARMLESS,
    Status.UNDECIDED: Severity.DAMAGED,
    # The checksum proves what these entries say.
    Status.BAD_TERM: Severity.DAMAGED,
    Status.FALLING_TERM: Severity.DAMAGED,
}

place: Final = partial(place_row, FAMILY)
"""Return the names that every row about a place has."""


def severity_of(status: Status) -> Severity:
    """Return what a record, or a stretch of the log that is none, costs if its status is not ``OK``."""
    return _SEVERITIES.get(status, Severity.LOST)


def file_severity(kind: str) -> Severity:
    """Return what a file of this kind costs that cannot be read."""
    return Severity.LOST if kind in ("snapshot", "log") else Severity.DAMAGED


def row_at(path: Path, status: str, reason: str, severity: Severity, **place: Any) -> Row:
    """Return the row of a damage; ``place`` has further fields of ``Damage``."""
    damage = Damage(path=path, status=status, reason=reason, severity=severity, **place)
    return damage_row(FAMILY, damage)


def fault_row(history: History, found: Found, status: str, reason: str, severity: Severity) -> Row:
    """Return the row of a whole record that does not fit to the other records or files."""
    fault = {"status": status} | fault_fields(reason, severity)
    return entry_row(history, found) | fault


def entry_row(history: History, found: Found) -> Row:
    """Return the row of a record, or of a stretch of the log that is none."""
    kind = "entry" if found.is_record else "damage"
    row = place(found.log.path, kind, found.offset, found.size, found.status.word)
    if found.status is not Status.OK:
        row |= fault_fields(REASONS[found.status], severity_of(found.status))
    row |= {"index": found.index, "term": found.term or None}
    if not found.is_record:
        return row
    row["committed"] = history.is_committed(found.index)
    try:
        row |= change_fields(found.payload, found.log.layout.contents)
    except BadData as error:
        if found.status is Status.OK:
            row |= {"status": "bad-delta"} | fault_fields(str(error), Severity.LOST)
        row |= {"op": None, "payload": encode_payload(found.payload)}
    return row


def change_fields(payload: bytes, contents: Contents) -> Row:
    """Return what a record's payload says. Raises ``BadData``."""
    if not payload:
        return {"op": None}
    change: Delta | Command
    if contents is Contents.COMMANDS:
        change = decode_command(payload)
    else:
        change = decode_delta(payload, contents)
    fields: Row = {"op": _OPS[type(change)]}
    for name in ("queue", "key", "id", "size_max"):
        value = getattr(change, name, None)
        if value is not None:
            fields[name] = value
    if isinstance(change, AddTask | RemoveEqualTask | Enqueue):
        fields["payload"] = encode_payload(change.payload)
    if isinstance(change, CreateQueue | CreateWithPolicy):
        fields["policy"] = policy_fields(change.policy)
    if isinstance(change, DeleteQueue) and is_extension(payload, 0, len(payload)):
        extension = decode_extension(payload, 0, len(payload))
        if extension is not None:
            fields["extension"] = own_fields(extension)
    return fields


def own_fields(value: Extension | Note) -> Row:
    """Return what an extension or a note says; what it leaves open is left out."""
    fields: Row = {"kind": _KINDS[type(value)]}
    fields |= _plain(asdict(value))
    return fields


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return encode_payload(value)
        case dict():
            return {name: _plain(inner) for name, inner in value.items() if inner is not None}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value


def misfit_row(misfit: Misfit) -> Row:
    """Return the row of entries that stand in no file, or in two."""
    severity = Severity.LOST if misfit.expected < misfit.first else Severity.DAMAGED
    place = {"offset": 0, "index": misfit.expected}
    return row_at(misfit.log.path, misfit.status, misfit.reason, severity, **place)


def unreadable_rows(history: History, kinds: tuple[str, ...] = KINDS) -> Iterator[Row]:
    """Yield a row for each file of these kinds that cannot be read."""
    for unreadable in history.unreadable:
        if unreadable.kind in kinds:
            yield bad_file_row(unreadable.error, unreadable.kind, unreadable.path)


def bad_file_row(error: BadData, kind: str, path: Path) -> Row:
    """Return the row of damage that a decoder raised in a file of this kind."""
    status = "bad-header" if kind == "log" else f"bad-{kind}"
    details = {"expected": error.expected, "found": error.found}
    place = {"kind": kind, "offset": error.offset, "details": details}
    return row_at(Path(error.path or path), status, error.reason, file_severity(kind), **place)


def dump(target: Target, *, progress: Progress = no_progress) -> Iterator[Row]:
    """Yield a row for everything that is stored; nothing stops it but the end."""
    history = survey(target, progress=progress)
    if target.metadata is not None and history.metadata is not None:
        yield metadata_row(target.metadata, history.metadata)
    yield from unreadable_rows(history, ("metadata", "snapshot"))
    if target.snapshot is not None and history.snapshot is not None:
        try:
            yield from snapshot_rows(target.snapshot, history.snapshot, progress)
        except BadData as error:
            yield bad_file_row(error, "snapshot", target.snapshot)
    yield from unreadable_rows(history, ("log", "sidecar"))
    for found in history.scan():
        yield misfit_row(found) if isinstance(found, Misfit) else entry_row(history, found)


def _note(key: int, payload: bytes) -> Row:
    """Return what a note says, beside its bytes; nothing for one that means nothing, which ``verify`` says."""
    try:
        return {"note": own_fields(notes.decode_note(key, payload))}
    except BadData:
        return {}


def metadata_row(path: Path, metadata: Metadata) -> Row:
    layout, state = metadata.layout, metadata.state
    row = place(path, "metadata", 0, layout.size, "ok")
    return row | {"variant": layout.variant, "term": state.term, "vote": state.vote}


def snapshot_rows(path: Path, header: SnapshotHeader, progress: Progress) -> Iterator[Row]:
    """Yield a row for every queue and task of a snapshot. Raises ``BadData`` where it is damaged."""
    task_header = header.layout.form.task_header.size
    point = {"index": header.point.index, "term": header.point.term}
    queue = ""
    form = header.layout.form
    offset = header.layout.state_offset + 4 * header.layout.is_counted
    with opened(path) as file:
        for event in decode_snapshot(file.read, file.size(), header.layout):
            if isinstance(event, SnapshotHeader):
                continue
            start = offset
            if isinstance(event, QueueHead):
                queue, size = event.name, len(encode_head(event, form))
                yield (
                    place(path, "queue", offset, size, "ok")
                    | point
                    | {
                        "queue": queue,
                        "count": event.count,
                        "last_id": event.last_id if form.has_ids else None,
                        "policy": policy_fields(event.policy),
                    }
                )
                offset += size
                continue
            for task_id, key, payload in event.tasks:
                size = task_header + len(payload)
                row = place(path, "task", offset, size, "ok") | point | {"queue": queue}
                if form.has_ids:
                    row["id"] = task_id
                row |= {"key": key, "payload": encode_payload(payload)}
                yield row | _note(key, payload) if queue == notes.QUEUE else row
                offset += size
            progress(offset - start)
