"""Every record, queue, task and metadata file of a target, in file order, damage included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadData
from penstock.families.family import Progress, Row, encode_payload, no_progress
from penstock.families.taskflux.location import Target
from penstock.families.taskflux.read import Misfit, survey
from penstock.families.taskflux.rows import (
    bad_file_row,
    entry_row,
    misfit_row,
    own_fields,
    place,
    unreadable_rows,
)
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot import encode_head
from penstock.formats.taskflux.snapshot_decode import SnapshotHeader, decode_snapshot
from penstock.model import QueueHead, policy_fields
from penstock.storage.files import opened


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
