"""Everything that is wrong with a target, as rows. No rows: all is well.

Three kinds of checks: each file against its format; files against each other (indexes meet, terms
agree, what was committed or synced is there); and replay, which must be able to apply every entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadData, ReplayConflict
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import decode_change
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import LogLayout, Status
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot import SnapshotHeader
from penstock.queues.replay import Queues
from penstock.tools.history import (
    Found,
    History,
    Progress,
    make_history,
    no_progress,
    restore_snapshot,
)
from penstock.tools.replay import apply_change
from penstock.tools.rows import Row, damage_row, entry_row, place
from penstock.tools.target import Target, read_metadata, read_snapshot_header


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


def verify(
    target: Target, *, progress: Progress = no_progress, summary: Summary | None = None
) -> Iterator[Row]:
    """Yield a row for each piece of damage; ``summary`` is filled on the way."""
    summary = summary or Summary()
    if target.metadata is not None:
        try:
            summary.metadata = read_metadata(target.metadata)
        except BadData as error:
            yield damage_row(error, "metadata", "bad-metadata", target.metadata)
    if target.snapshot is not None:
        try:
            summary.snapshot = read_snapshot_header(target.snapshot)
        except BadData as error:
            yield damage_row(error, "snapshot", "bad-snapshot", target.snapshot)
    try:
        history = make_history(target, summary.metadata, summary.snapshot, progress=progress)
    except BadData as error:
        yield damage_row(error, "log", "bad-header", target.logs[0].path)
        return
    yield from _Verification(history, summary).rows()


class _Verification:
    """One pass over snapshot and log."""

    def __init__(self, history: History, summary: Summary) -> None:
        self.history = history
        self.summary = summary
        self.queues = Queues()
        # Once something is missing, later entries cannot be expected to apply.
        self.is_exact = True
        self.next_index = history.first

    def rows(self) -> Iterator[Row]:
        target = self.history.target
        self.summary.commit, self.summary.synced = self.history.commit, self.history.synced
        if target.snapshot is not None and self.summary.snapshot is None:
            self.is_exact = False
        try:
            restore_snapshot(self.history, self.queues)
        except BadData as error:
            assert target.snapshot is not None
            self.is_exact = False
            yield damage_row(error, "snapshot", "bad-snapshot", target.snapshot)
        if self._is_whole_history():
            self.queues = Queues()
        yield from self._start()
        self._note_state()
        for found in self.history.scan():
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

    def _is_whole_history(self) -> bool:
        """Variant 1a keeps the log from the first entry on beside a snapshot."""
        logs = self.history.target.logs
        return bool(logs) and logs[0].layout is LogLayout.ONE_A

    def _start(self) -> Iterator[Row]:
        logs, expected = self.history.target.logs, self.history.covered + 1
        if logs and self.history.first > expected and self.history.target.kind == "directory":
            self.is_exact = False
            yield self._missing(logs[0].path, expected, self.history.first)

    def _missing(self, path: Path, first: int, end: int) -> Row:
        row = place(path, "damage", 0, None, "missing")
        return row | {"reason": f"entries {first} to {end - 1} are missing before this file"}

    def _entry(self, found: Found) -> Iterator[Row]:
        first_of_file = found.log.first
        if first_of_file is not None and found.offset == found.log.layout.header_size:
            if first_of_file > self.next_index:
                self.is_exact = False
                yield self._missing(found.log.path, self.next_index, first_of_file)
            self.next_index = first_of_file
        row = entry_row(self.history, found)
        if row["status"] != "ok":
            self.is_exact = self.is_exact and found.status in (Status.TORN, Status.LEFTOVER)
            if found.index is not None and found.index <= self._sure():
                row["reason"] += "; the entry was committed or synced"
            yield row
        else:
            yield from self._apply(found)
        if row["kind"] == "entry":
            self._count(found)

    def _sure(self) -> int:
        return max(self.history.synced, -1 if self.history.commit is None else self.history.commit)

    def _count(self, found: Found) -> None:
        summary = self.summary
        summary.entries += 1
        summary.term = found.term
        if found.index is not None:
            summary.first = found.index if summary.first is None else summary.first
            summary.last = found.index
            self.next_index = found.index + 1

    def _apply(self, found: Found) -> Iterator[Row]:
        is_covered = found.index is not None and found.index <= self.history.covered
        if is_covered and not self._is_whole_history():
            snapshot = self.history.point
            if (
                snapshot is not None
                and found.index == snapshot.index
                and found.term != snapshot.term
            ):
                yield entry_row(self.history, found) | {
                    "status": "disagreement",
                    "reason": f"the snapshot says that this entry is of term {snapshot.term}",
                }
            return
        if not self.is_exact or not found.payload:
            return
        contents = found.log.layout.contents
        try:
            if contents is Contents.COMMANDS:
                self.queues.obey(decode_command(found.payload))
            else:
                by_id = contents is Contents.DELTAS_BY_ID
                change = decode_change(found.payload, 0, len(found.payload), by_id=by_id)
                apply_change(self.queues, change, by_id)
        except ReplayConflict as error:
            if self.history.target.kind == "log":
                self.is_exact = False  # a log alone may lack the snapshot that it continues
                return
            yield entry_row(self.history, found) | {"status": "conflict", "reason": str(error)}

    def _end(self) -> Iterator[Row]:
        logs = self.history.target.logs
        last = max(self.next_index - 1, self.history.covered)
        for name, index in (("committed", self.history.commit), ("synced", self.history.synced)):
            if logs and index is not None and index > last and self.is_exact:
                row = place(logs[-1].path, "damage", None, None, "missing")
                reason = f"entries up to {index} were {name}, but the log ends at {last}"
                yield row | {"reason": reason}
        metadata = self.summary.metadata
        if metadata is not None and self.summary.term > metadata.state.term:
            assert self.history.target.metadata is not None
            row = place(self.history.target.metadata, "metadata", 8, None, "disagreement")
            yield row | {
                "reason": f"the log holds term {self.summary.term}, but the metadata only knows of"
                f" {metadata.state.term}"
            }
