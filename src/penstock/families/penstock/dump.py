"""Everything that is stored, in file order: small files, snapshots, segments, with the damage between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.errors import BadData, PathRefused
from penstock.families.damage import Severity
from penstock.families.family import Progress, Row, no_progress
from penstock.families.penstock.location import HARD_STATE, IDENTITY, SYNC_POINT, Target
from penstock.families.penstock.read import (
    History,
    SnapshotHead,
    bad_file,
    load,
    names_in,
    queue_names,
    survey,
    unreadable,
)
from penstock.families.penstock.rows import Names, metadata_row, record_rows, row_of
from penstock.families.penstock.scan import Entry, Sealed, scan
from penstock.formats.records.changes import decode_change
from penstock.formats.records.footer import Footer
from penstock.formats.records.header import HEADER_SIZE, LOCAL_KIND_MIN, Header, Kind, decode_header
from penstock.formats.records.producers import decode_producers
from penstock.formats.records.read import Chain, collect, walk
from penstock.formats.records.settings import (
    decode_snapshot_end,
    decode_snapshot_start,
    settings_members,
)

BAD_CHANGE = "bad-change"
"""The status of a record whose checksums match and whose body breaks a rule."""


def dump(target: Target, *, progress: Progress = no_progress) -> Iterator[Row]:
    """Yield a row for everything that is stored; nothing stops it but the end."""
    history = survey(target, progress=progress)
    yield from _small_files(history)
    yield from map(row_of, history.damage)
    names = queue_names(history)
    for head in history.snapshots:
        yield from _snapshot_rows(head, names, progress)
    for found in scan(history):
        if isinstance(found, Entry):
            yield from entry_rows(found, names)
        elif isinstance(found, Sealed):
            size = decode_header(found.data, found.offset).size
            fields = {"op": "footer"} | footer_fields(found.footer)
            yield metadata_row(found.file.path, found.offset, size, fields)
        else:
            yield row_of(found)


def entry_rows(entry: Entry, names: Names) -> Iterator[Row]:
    """Yield the rows of an entry, or that of its damage."""
    try:
        change = entry.change()
    except BadData as error:
        yield row_of(entry.damage(BAD_CHANGE, error.reason, Severity.LOST))
        return
    yield from record_rows(entry.file.path, "entry", entry.offset, entry.header, change, names)


def _small_files(history: History) -> Iterator[Row]:
    home = history.target.home
    if home is None:
        return
    found: tuple[tuple[str, Row | None], ...] = (
        (IDENTITY, _identity(history)),
        (HARD_STATE, _hard_state(history)),
        (SYNC_POINT, _sync_point(history)),
    )
    for name, fields in found:
        if fields is not None:
            yield metadata_row(home / name, 0, (home / name).stat().st_size, fields)


def _identity(history: History) -> Row | None:
    identity = history.identity
    if identity is None:
        return None
    return {
        "op": "identity",
        "node": identity.node,
        "incarnation": identity.incarnation.hex(),
        "cluster_id": None if identity.cluster_id is None else identity.cluster_id.hex(),
        "peers": {str(number): dict(peer) for number, peer in identity.peers.items()},
    }


def _hard_state(history: History) -> Row | None:
    state = history.hard_state
    return None if state is None else {"op": "hard-state", "term": state.term, "vote": state.vote}


def _sync_point(history: History) -> Row | None:
    point = history.synced
    if point is None:
        return None
    return {
        "op": "sync-point",
        "index": point.index,
        "segment": point.segment,
        "offset_synced": point.offset,
        "commit_floor": point.commit_floor,
    }


def footer_fields(footer: Footer) -> Row:
    """Return what a footer says."""
    return {
        "entries": footer.entries,
        "digest": footer.digest.hex(),
        "marks": [list(mark) for mark in footer.marks],
        "queues": [
            queue._asdict() | {"name": None if queue.name is None else queue.name.decode("ascii")}
            for queue in footer.queues
        ],
    }


# --- snapshots -----------------------------------------------------------------------------------


def _snapshot_rows(head: SnapshotHead, names: Names, progress: Progress) -> Iterator[Row]:
    path = head.file.path
    try:
        data = load(head.file, progress)
    except BadData as error:
        yield row_of(bad_file(path, error, "bad-snapshot", Severity.LOST, "snapshot"))
        return
    except (OSError, PathRefused) as refused:
        yield row_of(unreadable(path, refused))
        return
    records, end = collect(walk(data, chain=Chain(0, head.start.last_index), is_snapshot=True))
    for offset, header in records:
        try:
            yield from _stored_rows(head, data, offset, header, names)
        except BadData as error:
            yield row_of(bad_file(path, error, BAD_CHANGE, Severity.LOST, "snapshot"))
    if end.damage is not None:
        yield row_of(bad_file(path, end.damage, "bad-snapshot", Severity.LOST, "snapshot"))


def _stored_rows(
    head: SnapshotHead, data: bytes, offset: int, header: Header, names: Names
) -> Iterator[Row]:
    """Yield the rows of one record of a snapshot. Raises ``BadData``."""
    start, end = offset + HEADER_SIZE, offset + header.size
    fields: dict[str, Any]
    if header.kind < LOCAL_KIND_MIN:
        change = decode_change(header, data, start, end)
        kind = {Kind.ADD: "task", Kind.QUEUE: "queue"}.get(Kind(header.kind), "metadata")
        known = {**names, **names_in(header, data, offset)}
        yield from record_rows(head.file.path, kind, offset, header, change, known)
        return
    if header.kind == Kind.SNAPSHOT_START:
        fields = {"op": "snapshot-start"} | settings_members(
            decode_snapshot_start(data, start, end)
        )
    elif header.kind == Kind.SNAPSHOT_END:
        fields = {"op": "snapshot-end"} | settings_members(decode_snapshot_end(data, start, end))
    elif header.kind == Kind.PRODUCERS:
        rows = decode_producers(data, start, end).rows()
        listed = [row._asdict() | {"producer": row.producer.hex()} for row in rows]
        fields = {"op": "producers", "producers": listed}
    else:
        fields = {"op": f"kind-{header.kind}"}
    yield metadata_row(head.file.path, offset, header.size, fields)
