"""All damage of a target, as rows. A target is whole if there are no rows, or only rows of severity ``harmless``.

Three kinds of checks: each file against its format; files against each other (indexes meet, terms
agree, what was committed or synced is there); and replay, which must be able to apply every entry.

``inspect`` puts them into one row, with what was counted on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import BadData, ReplayConflict
from penstock.families.damage import DamageCount, Severity, is_damage
from penstock.families.family import Progress, Row, no_progress
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.location import LogFile, Target
from penstock.families.taskflux.read import (
    BEHIND_END,
    Found,
    History,
    Misfit,
    holds_covered,
    is_same_state,
    restore_snapshot,
    survey,
)
from penstock.families.taskflux.rows import (
    bad_file_row,
    entry_row,
    fault_row,
    misfit_row,
    row_at,
    unreadable_rows,
)
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import DELETE
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import LogLayout, Status
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot_decode import SnapshotHeader
from penstock.model import DEFAULT_QUEUE, Command, CreateQueue, QueueName
from penstock.queues.replay import Decoded, Queues, decode


@dataclass
class Summary:
    """What was counted on the way."""

    entries: int = 0
    first: int | None = None
    last: int | None = None
    term: int = 0
    commit: int | None = None
    synced: int = -1
    metadata: Metadata | None = None
    snapshot: SnapshotHeader | None = None
    queues: int = 0
    tasks: int = 0
    extensions: int = 0  # entries of ours that plain readers replay without effect
    notes: int = 0  # what the snapshot holds of ours beside its queues
    damage: DamageCount = field(default_factory=DamageCount)


def verify(
    target: Target, *, progress: Progress = no_progress, summary: Summary | None = None
) -> Iterator[Row]:
    """Yield a row for each damage; ``summary`` is filled on the way."""
    summary = summary or Summary()
    history = survey(target, progress=progress)
    summary.metadata, summary.snapshot = history.metadata, history.snapshot
    summary.commit, summary.synced = history.commit, history.synced
    for row in chain(unreadable_rows(history), _Verification(history, summary).rows()):
        summary.damage.add(row)
        yield row


CREATION: Final = (
    "perhaps-refused",
    "programs until 2023-09-27 logged this creation and refused it; the queue and its tasks are kept",
)
CREATION_1D: Final = (
    "forgotten",
    "the program created this queue, and forgets it at its next start; the queue and its tasks are kept",
)
"""Status and reason of the row for a queue that a log of commands creates."""

DOUBTS_MAX: Final = 1000
"""Queues of generation 1 whose creation is named as a doubt: more tell nothing new."""


class _Creation(NamedTuple):
    """Where a command creates a queue."""

    log: LogFile
    offset: int
    queue: QueueName


def _doubt(path: Path, offset: int, status: str, reason: str) -> Row:
    return row_at(path, status, reason, Severity.HARMLESS, kind="doubt", offset=offset)


class _Verification:
    """One pass over snapshot and log."""

    def __init__(self, history: History, summary: Summary) -> None:
        self.history = history
        self.summary = summary
        self.queues = self.history.new_queues()
        self.created: dict[QueueName, _Creation] = {}  # by commands, the first of each name
        self.is_twice = False  # whether entries were found that the snapshot may cover already
        # Once something is missing, later entries cannot be expected to apply.
        self.is_exact = True
        # Whether all entries up to here are accounted for, so that the end can be judged.
        self.is_counted = True
        self.is_whole_log = history.is_whole_log()
        self.next_index = history.first
        self.change: Decoded | Command | None = None  # what the entry at hand says

    def rows(self) -> Iterator[Row]:
        target = self.history.target
        if not self.history.is_first_sure or (target.snapshot and not self.history.snapshot):
            self.is_exact = False
        try:
            found_notes = restore_snapshot(self.history, self.queues)
            self.queues.number(found_notes, is_strict=True)
            self.summary.notes = len(found_notes)
        except BadData as error:
            assert target.snapshot is not None
            self.is_exact = False
            yield bad_file_row(error, "snapshot", target.snapshot)
        if self.is_whole_log:
            self.queues = self.history.new_queues()
        self._note_state()
        for found in self.history.scan():
            if isinstance(found, Misfit):
                self.is_exact, self.is_counted = False, True
                self.next_index = found.first
                yield misfit_row(found)
                continue
            yield from self._entry(found)
            yield from self._cut_row(found)
            if self.history.commit is not None and found.index == self.history.commit:
                self._note_state()
        if self.history.commit is None:
            self._note_state()
        yield from self._end()
        yield from self._doubts()

    def _note_state(self) -> None:
        """Count queues and tasks as they are now: the last call is at the last committed entry."""
        self.summary.queues = len(self.queues.by_name)
        self.summary.tasks = sum(map(len, self.queues.by_name.values()))

    def _entry(self, found: Found) -> Iterator[Row]:
        if found.status is Status.OK and self._decode(found):
            yield from self._apply(found)
        else:
            if found.status not in (Status.TORN, *BEHIND_END):
                self.is_exact = False
            row = entry_row(self.history, found)
            if found.index is not None and found.index <= self.history.sure:
                row["reason"] += "; the entry was committed or synced"
            yield row
        if found.is_record:
            self._count(found)
        else:
            self.is_counted = found.status in BEHIND_END

    def _decode(self, found: Found) -> bool:
        """Return whether the payload is a change, and keep that for ``_apply``."""
        contents = found.log.layout.contents
        try:
            if not found.payload:
                self.change = None
            elif contents is Contents.COMMANDS:
                self.change = decode_command(found.payload)
            else:
                by_id = contents is Contents.DELTAS_BY_ID
                self.change = decode(found.payload, 0, len(found.payload), by_id=by_id)
                self.summary.extensions += self.change.extension is not None
        except BadData:
            return False
        return True

    def _count(self, found: Found) -> None:
        summary = self.summary
        summary.entries += 1
        summary.term = max(summary.term, found.term)
        if found.index is not None:
            summary.first = found.index if summary.first is None else summary.first
            summary.last = found.index
            self.next_index, self.is_counted = found.index + 1, True

    def _apply(self, found: Found) -> Iterator[Row]:
        point = self.history.point
        if point is not None and found.index is not None and found.index <= point.index:
            if found.index == point.index and found.term != point.term:
                reason = f"the snapshot says that this entry is of term {point.term}"
                yield self._fault(found, "disagreement", reason)
            if not self.is_whole_log:
                return
        if not self.is_exact or self.change is None:
            return
        try:
            if isinstance(self.change, Decoded):
                by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
                self.queues.apply(self.change, by_id=by_id)
            else:
                made = self.queues.obey(self.change)
                if isinstance(made, CreateQueue) and len(self.created) < DOUBTS_MAX:
                    creation = _Creation(found.log, found.offset, made.queue)
                    self.created.setdefault(made.queue, creation)
            yield from self._twice(found)
            yield from self._refuse_default_deleted(found)
        except ReplayConflict as error:
            if self.history.target.kind == "log":
                self.is_exact = False  # a log alone may lack the snapshot that it continues
                return
            yield self._fault(found, "conflict", str(error))

    def _fault(self, found: Found, status: str, reason: str) -> Row:
        return fault_row(self.history, found, status, reason, Severity.DAMAGED)

    def _refuse_default_deleted(self, found: Found) -> Iterator[Row]:
        """Yield a row for the deletion of the default queue: TaskFlux cannot rebuild its state then."""
        change = self.change.change if isinstance(self.change, Decoded) else None
        if change is not None and change[0] == DELETE and change[1] == DEFAULT_QUEUE:
            reason = "the default queue is deleted, which TaskFlux cannot rebuild; it is kept, without its tasks"
            yield self._fault(found, "conflict", reason)

    def _twice(self, found: Found) -> Iterator[Row]:
        """Yield a row if a removal behind a snapshot of TaskFlux found no task: the snapshot may cover it already."""
        is_doubtful = self.history.snapshot is not None and not self.history.is_ours
        if is_doubtful and self.queues.has_missed and not self.is_twice:
            self.is_twice = True
            reason = (
                "a removal without its task: a crash between snapshot and shortening the log may have left entries"
                " here that the snapshot covers, and they are applied twice"
            )
            yield self._fault(found, "applied-twice", reason)

    def _doubts(self) -> Iterator[Row]:
        """Yield harmless rows: what bytes of generation 1 leave open, and how it was decided."""
        history, logs = self.history, self.history.target.logs
        for found in self.created.values():
            status, reason = CREATION_1D if found.log.layout is LogLayout.ONE_D else CREATION
            yield _doubt(found.log.path, found.offset, status, reason) | {"queue": found.queue}
        if history.is_late_1b and history.point is not None and holds_covered(history):
            yield _doubt(
                logs[0].path,
                logs[0].layout.header_size,
                "perhaps-covered",
                f"the first {history.point.index + 1} entries give the state of the snapshot: a crash between snapshot"
                " and shortening the log may have left them here; they are applied, as the program does",
            )
        if history.is_perhaps_1d() and self._depends_on_heap():
            yield _doubt(
                logs[0].path,
                logs[0].layout.header_size,
                "perhaps-1b",
                "the bytes do not tell variant 1b from 1d, which took equal keys in another order; taken for 1d. Name"
                " the log file alone to take it for 1b",
            )

    def _term(self) -> int:
        point = self.history.point
        return max(self.summary.term, 0 if point is None else point.term)

    def _missing_files(self) -> Iterator[Row]:
        """Yield rows for files that every program of generations 2 and 3 has written by now."""
        target = self.history.target
        if target.kind != "directory" or target.generation is Generation.ONE:
            return
        if target.metadata is None and self._term() > 1:
            reason = (
                f"log or snapshot are of term {self._term()}, but the metadata is missing or empty"
            )
            yield row_at(target.path, "missing", reason, Severity.DAMAGED, kind="metadata")
        metadata = self.history.metadata
        is_used = target.snapshot is not None or (metadata is not None and metadata.state.term > 1)
        if target.generation is Generation.THREE and not target.logs and is_used:
            reason = "no segment of the log is there, but a snapshot or a later term"
            yield row_at(target.path, "missing", reason, Severity.LOST, kind="log")

    def _cut_row(self, found: Found) -> Iterator[Row]:
        """Yield a row if a segment ends with a record: an end marker must follow it."""
        is_end = found.offset + found.size == found.log.size
        if is_end and found.log.layout is LogLayout.THREE and found.status is Status.OK:
            reason = "the segment ends with a record, without an end marker: it was cut"
            yield row_at(found.log.path, "cut", reason, Severity.DAMAGED, offset=found.log.size)

    def _depends_on_heap(self) -> bool:
        """Return whether the order of the heap would leave other tasks."""
        heap = Queues(by_array_heap=True)
        for found in self.history.scan():
            if isinstance(found, Found) and found.status is Status.OK:
                try:
                    heap.replay(found.payload, found.log.layout.contents)
                except BadData:
                    return False
        return not is_same_state(heap, self.queues)

    def _end(self) -> Iterator[Row]:
        target = self.history.target
        path = target.logs[-1].path if target.logs else target.path
        last = max(self.next_index - 1, self.history.covered)
        for name, index in (("committed", self.history.commit), ("synced", self.history.synced)):
            is_judged = self.is_counted and self.history.is_first_sure
            if index is not None and index > last and is_judged:
                reason = f"entries up to {index} were {name}, but the log ends at {last}"
                if name == "synced":
                    reason += (
                        ": another program wrote here since Penstock did, or the disk lost data"
                    )
                yield row_at(path, "missing", reason, Severity.LOST)
        yield from self._missing_files()
        metadata, term = self.history.metadata, self._term()
        if metadata is not None and term > metadata.state.term:
            assert target.metadata is not None
            reason = (
                f"log or snapshot are of term {term}, but the metadata only knows of"
                f" {metadata.state.term}"
            )
            severity = Severity.DAMAGED
            yield row_at(
                target.metadata, "disagreement", reason, severity, kind="metadata", offset=8
            )


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
