"""Everything that is wrong with a target, as rows. No rows: all is well.

Three kinds of checks: each file against its format; files against each other (indexes meet, terms
agree, what was committed or synced is there); and replay, which must be able to apply every entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import BadData, ReplayConflict
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import Status
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot_decode import SnapshotHeader
from penstock.model import Command
from penstock.tools.applying import Applier, Decoded, decode
from penstock.tools.history import (
    Found,
    History,
    Misfit,
    Progress,
    no_progress,
    restore_snapshot,
    survey,
)
from penstock.tools.rows import Row, damage_row, entry_row, misfit_row, place, unreadable_rows
from penstock.tools.target import Target


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


def verify(
    target: Target, *, progress: Progress = no_progress, summary: Summary | None = None
) -> Iterator[Row]:
    """Yield a row for each piece of damage; ``summary`` is filled on the way."""
    summary = summary or Summary()
    history = survey(target, progress=progress)
    summary.metadata, summary.snapshot = history.metadata, history.snapshot
    summary.commit, summary.synced = history.commit, history.synced
    yield from unreadable_rows(history)
    yield from _Verification(history, summary).rows()


class _Verification:
    """One pass over snapshot and log."""

    def __init__(self, history: History, summary: Summary) -> None:
        self.history = history
        self.summary = summary
        self.queues = self.history.new_queues()
        self.applier = Applier(self.queues, is_strict=True)
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
            self.applier = Applier(self.queues, found_notes, is_strict=True)
            self.summary.notes = len(found_notes)
        except BadData as error:
            assert target.snapshot is not None
            self.is_exact = False
            yield damage_row(error, "snapshot", target.snapshot)
        if self.is_whole_log:
            self.queues = self.history.new_queues()
            self.applier = Applier(self.queues, is_strict=True)
        self._note_state()
        for found in self.history.scan():
            if isinstance(found, Misfit):
                self.is_exact, self.is_counted = False, True
                self.next_index = found.first
                yield misfit_row(found)
                continue
            yield from self._entry(found)
            if self.history.commit is not None and found.index == self.history.commit:
                self._note_state()
        if self.history.commit is None:
            self._note_state()
        yield from self._end()

    def _note_state(self) -> None:
        """Count queues and tasks as they are now: the last call is at the last committed entry."""
        self.summary.queues = len(self.queues.by_name)
        self.summary.tasks = sum(map(len, self.queues.by_name.values()))

    def _entry(self, found: Found) -> Iterator[Row]:
        if found.status is Status.OK and self._decode(found):
            yield from self._apply(found)
        else:
            if found.status not in (Status.TORN, Status.LEFTOVER):
                self.is_exact = False
            row = entry_row(self.history, found)
            if found.index is not None and found.index <= self.history.sure:
                row["reason"] += "; the entry was committed or synced"
            yield row
        if found.is_record:
            self._count(found)
        else:
            self.is_counted = found.status is Status.LEFTOVER

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
                yield entry_row(self.history, found) | {
                    "status": "disagreement",
                    "reason": f"the snapshot says that this entry is of term {point.term}",
                }
            if not self.is_whole_log:
                return
        if not self.is_exact or self.change is None:
            return
        try:
            if isinstance(self.change, Decoded):
                by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
                self.applier.apply(self.change, by_id=by_id)
            else:
                self.queues.obey(self.change)
        except ReplayConflict as error:
            if self.history.target.kind == "log":
                self.is_exact = False  # a log alone may lack the snapshot that it continues
                return
            yield entry_row(self.history, found) | {"status": "conflict", "reason": str(error)}

    def _end(self) -> Iterator[Row]:
        target = self.history.target
        path = target.logs[-1].path if target.logs else target.path
        last = max(self.next_index - 1, self.history.covered)
        for name, index in (("committed", self.history.commit), ("synced", self.history.synced)):
            is_judged = self.is_counted and self.history.is_first_sure
            if index is not None and index > last and is_judged:
                row = place(path, "damage", None, None, "missing")
                reason = f"entries up to {index} were {name}, but the log ends at {last}"
                if name == "synced":
                    reason += (
                        ": another program wrote here since Penstock did, or the disk lost data"
                    )
                yield row | {"reason": reason}
        metadata, point = self.history.metadata, self.history.point
        term = max(self.summary.term, 0 if point is None else point.term)
        if metadata is not None and term > metadata.state.term:
            assert target.metadata is not None
            row = place(target.metadata, "metadata", 8, None, "disagreement")
            yield row | {
                "reason": f"log or snapshot are of term {term}, but the metadata only knows of"
                f" {metadata.state.term}"
            }
