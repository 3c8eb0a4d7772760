"""Every record, queue, task and metadata file of a target, in file order, damage included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadData
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot import SnapshotHeader, decode_snapshot
from penstock.model import QueueHead
from penstock.tools.history import History, Progress, make_history, no_progress
from penstock.tools.rows import (
    Row,
    damage_row,
    encode_payload,
    entry_row,
    place,
    policy_fields,
)
from penstock.tools.target import Target, opened, read_metadata, read_snapshot_header


def dump(target: Target, *, progress: Progress = no_progress) -> Iterator[Row]:
    """Yield a row for everything that is stored; nothing stops it but the end."""
    metadata: Metadata | None = None
    snapshot: SnapshotHeader | None = None
    if target.metadata is not None:
        try:
            metadata = read_metadata(target.metadata)
            yield metadata_row(target.metadata, metadata)
        except BadData as error:
            yield damage_row(error, "metadata", "bad-metadata", target.metadata)
    if target.snapshot is not None:
        try:
            snapshot = read_snapshot_header(target.snapshot)
            yield from snapshot_rows(target.snapshot, snapshot, progress)
        except BadData as error:
            yield damage_row(error, "snapshot", "bad-snapshot", target.snapshot)
    try:
        history = make_history(target, metadata, snapshot, progress=progress)
    except BadData as error:
        yield damage_row(error, "log", "bad-header", target.logs[0].path)
        return
    yield from log_rows(history)


def log_rows(history: History) -> Iterator[Row]:
    """Yield a row for every record and gap of the log."""
    for found in history.scan():
        yield entry_row(history, found)


def metadata_row(path: Path, metadata: Metadata) -> Row:
    layout, state = metadata.layout, metadata.state
    row = place(path, "metadata", 0, layout.size, "ok")
    return row | {"variant": layout.variant, "term": state.term, "vote": state.vote}


def snapshot_rows(path: Path, header: SnapshotHeader, progress: Progress) -> Iterator[Row]:
    """Yield a row for every queue and task of a snapshot. Raises ``BadData`` where it is damaged."""
    task_header = header.layout.form.task_header.size
    point = {"index": header.point.index, "term": header.point.term}
    queue = ""
    with opened(path) as file:
        last = 0
        for event in decode_snapshot(file.read, file.size(), header.layout):
            if isinstance(event, SnapshotHeader):
                continue
            if isinstance(event, QueueHead):
                queue = event.name
                yield (
                    place(path, "queue", None, None, "ok")
                    | point
                    | {
                        "queue": queue,
                        "count": event.count,
                        "last_id": event.last_id if header.layout.form.has_ids else None,
                        "policy": policy_fields(event.policy),
                    }
                )
                continue
            offset = event.offset
            progress(offset - last)
            last = offset
            for task_id, key, payload in event.tasks:
                size = task_header + len(payload)
                row = place(path, "task", offset, size, "ok") | point | {"queue": queue}
                if header.layout.form.has_ids:
                    row["id"] = task_id
                yield row | {"key": key, "payload": encode_payload(payload)}
                offset += size
