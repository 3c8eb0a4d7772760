"""One object that says what a target is: family, generation, counts, indexes, damage."""

from __future__ import annotations

from penstock.families.damage import is_damage
from penstock.families.family import Progress, Row, no_progress
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.location import Target
from penstock.families.taskflux.verify import Summary, verify
from penstock.formats.taskflux.generation import Generation


def inspect(target: Target, *, progress: Progress = no_progress) -> Row:
    """Return what ``target`` is and holds; ``damage`` and ``harmless`` list what ``verify`` finds."""
    summary = Summary()
    rows = list(verify(target, progress=progress, summary=summary))
    state = None if summary.metadata is None else summary.metadata.state
    point = None if summary.snapshot is None else summary.snapshot.point
    return {
        "family": FAMILY,
        "kind": target.kind,
        "path": str(target.path),
        "generation": int(target.generation),
        "variant": _variant(target, summary),
        "size": target.size,
        "log_files": len(target.logs),
        "entries": summary.entries,
        "first_index": summary.first,
        "last_index": _last(summary),
        "commit_index": _commit(target, summary),
        "synced_index": None if summary.synced < 0 else summary.synced,
        "snapshot_index": None if point is None else point.index,
        "snapshot_term": None if point is None else point.term,
        "term": None if state is None else state.term,
        "vote": None if state is None else state.vote,
        "queues": summary.queues,
        "tasks": summary.tasks,
        "extensions": summary.extensions,
        "notes": summary.notes,
        "harmless": [row for row in rows if not is_damage(row)],
        "damage": [row for row in rows if is_damage(row)],
    }


def _last(summary: Summary) -> int | None:
    """Return the last index: the log's, or the snapshot's where that covers all of the log."""
    covered = None if summary.snapshot is None else summary.snapshot.point.index
    found = [index for index in (summary.last, covered) if index is not None]
    return max(found, default=None)


def _commit(target: Target, summary: Summary) -> int | None:
    """Return what a program holds for committed when it starts: a snapshot is, and in generation 1 every entry."""
    if target.generation is Generation.ONE:
        return _last(summary)
    covered = None if summary.snapshot is None else summary.snapshot.point.index
    found = [index for index in (summary.commit, covered) if index is not None]
    return max(found, default=None)


def _variant(target: Target, summary: Summary) -> Row:
    """Return the exact layout of each file that is there."""
    variant: Row = {}
    if target.logs:
        variant["log"] = target.logs[0].layout.variant
    if summary.snapshot is not None:
        variant["snapshot"] = summary.snapshot.layout.variant
    if summary.metadata is not None:
        variant["metadata"] = summary.metadata.layout.variant
    return variant
