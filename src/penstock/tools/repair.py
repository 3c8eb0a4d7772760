"""Salvage: everything that is provably whole, into a new directory; everything else as rows.

A log that is whole up to a torn end is copied up to there. A log with damage in the middle cannot be a log
any more: what its whole entries say is folded into a snapshot. Where an entry was lost, doubt is decided
for the task: it may come back although it was done, it is never dropped although it was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import BadData, ReplayConflict
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import ADD, CREATE, DELETE, Change, decode_change
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import LogLayout, Status
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot import SnapshotHeader
from penstock.model import NO_LIMITS, HardState, Index, QueueName, SnapshotPoint, Term
from penstock.queues.replay import Queues
from penstock.tools.history import (
    Found,
    History,
    Progress,
    make_history,
    no_progress,
    restore_snapshot,
)
from penstock.tools.new_directory import NewDirectory, new_directory
from penstock.tools.replay import apply_change
from penstock.tools.rows import Row, damage_row, entry_row
from penstock.tools.target import Target, read_metadata, read_snapshot_header


@dataclass
class Repaired:
    """What a repair wrote; filled as it goes."""

    entries: int = 0  # whole entries taken along
    left: int = 0  # rows of what was left behind
    queues: int = 0
    tasks: int = 0
    notes: list[str] = field(default_factory=list)


def repair(
    target: Target, out: Path, result: Repaired, *, progress: Progress = no_progress
) -> Iterator[Row]:
    """Write all that is whole into ``out``; yield a row for everything that was left."""
    with new_directory(out, target.generation) as new:
        for row in _Repair(target, new, result, progress).run():
            result.left += 1
            yield row


class _Repair:
    def __init__(
        self, target: Target, new: NewDirectory, result: Repaired, progress: Progress
    ) -> None:
        self.target = target
        self.new = new
        self.result = result
        self.progress = progress
        self.queues = Queues()
        self.index = -1
        self.term = 0
        # Queue -> last id before a loss of unknown size. Adds behind it may have got other ids.
        self.doubtful: dict[QueueName, int] = {}

    def run(self) -> Iterator[Row]:
        metadata, snapshot = None, None
        if self.target.metadata is not None:
            try:
                metadata = read_metadata(self.target.metadata)
            except BadData as error:
                yield damage_row(error, "metadata", "bad-metadata", self.target.metadata)
        if self.target.snapshot is not None:
            try:
                snapshot = read_snapshot_header(self.target.snapshot)
                restore_snapshot(
                    make_history(_without_log(self.target), None, snapshot), self.queues
                )
            except BadData as error:
                snapshot, self.queues = None, Queues()
                yield damage_row(error, "snapshot", "bad-snapshot", self.target.snapshot)
        yield from self._run_log(metadata, snapshot)
        self.result.queues = len(self.queues.by_name)
        self.result.tasks = sum(map(len, self.queues.by_name.values()))

    def _run_log(self, metadata: Metadata | None, snapshot: SnapshotHeader | None) -> Iterator[Row]:
        lost_snapshot = self.target.snapshot is not None and snapshot is None
        try:
            history = make_history(self.target, metadata, snapshot, progress=self.progress)
        except BadData as error:
            yield damage_row(error, "log", "bad-header", self.target.logs[0].path)
            history = make_history(_without_log(self.target), metadata, snapshot)
        if history.point is not None:
            self.index, self.term = history.point.index, history.point.term
        if self.target.generation is Generation.ONE or lost_snapshot or _has_inner_damage(history):
            yield from self._fold(history)
        else:
            yield from self._copy(history)
        self._write_metadata(metadata)

    def _write_metadata(self, metadata: Metadata | None) -> None:
        if metadata is not None:
            self.new.write_metadata(metadata.state)
        else:
            self.result.notes.append(
                "the vote is lost: let this node join as a new member, not under its old id"
            )
            self.new.write_metadata(HardState(term=Term(max(1, self.term))))

    # A log that is whole up to its end.

    def _copy(self, history: History) -> Iterator[Row]:
        if history.point is not None:
            self.new.write_snapshot(history.point, self.queues)
        last_committed = -1
        for found in history.scan():
            if found.status is not Status.OK:
                yield entry_row(history, found)
            elif found.index is not None and found.index > history.covered:
                self._apply_copied(found)
                self.new.append(found.term, found.payload)
                self.term = found.term
                self.result.entries += 1
                if history.is_committed(found.index) is not False:
                    last_committed = found.index
        self.new.commit(last_committed)

    def _apply_copied(self, found: Found) -> None:
        """Keep the account of queues and tasks; that it applies has been seen before."""
        if found.payload:
            by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
            apply_change(self.queues, _change(found), by_id)

    # A log with something missing.

    def _fold(self, history: History) -> Iterator[Row]:
        if self.target.logs and self.target.logs[0].layout is LogLayout.ONE_A:
            self.queues, self.index = Queues(), -1  # this variant's log is the whole history
        for found in history.scan():
            if found.status is not Status.OK:
                yield entry_row(history, found)
                self._lose(found)
                self._pass(found)
                continue
            if found.index is not None and found.index <= self.index:
                continue
            self._pass(found)
            try:
                reason = self._apply(found)
            except BadData as error:
                reason = f"not a delta or command: {error}"
            if reason is None:
                self.result.entries += 1
            else:
                yield entry_row(history, found) | {"status": "not-applied", "reason": reason}
        if self.index >= 0:
            point = SnapshotPoint(index=Index(self.index), term=Term(max(1, self.term)))
            self.new.write_snapshot(point, self.queues)

    def _pass(self, found: Found) -> None:
        """Count the entry. Where the index is lost, at least one more entry was there."""
        self.index = self.index + 1 if found.index is None else found.index
        self.term = max(self.term, found.term)

    def _lose(self, found: Found) -> None:
        """Account for the ids that a lost entry gave out."""
        if found.log.layout.contents is not Contents.DELTAS_BY_ID:
            return
        if found.payload:
            try:
                kind, name, _, _ = _change(found)
            except BadData:
                pass
            else:
                # Its frame and shape are whole, so it is what it says, with some byte wrong inside.
                if kind == ADD and name in self.queues.by_name:
                    self.queues.by_name[name].last_id += 1
                return
        for name, queue in self.queues.by_name.items():
            self.doubtful.setdefault(name, queue.last_id)

    def _apply(self, found: Found) -> str | None:
        """Apply an entry as far as it can be; return why it could not."""
        if not found.payload:
            return None
        if found.log.layout.contents is Contents.COMMANDS:
            self.queues.obey(decode_command(found.payload))
            return None
        kind, name, middle, payload = _change(found)
        by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
        if kind == ADD and name not in self.queues.by_name:
            self.result.notes.append(
                f"queue {name!r}: its creation is lost; made anew without limits"
            )
            self.queues.create(name, NO_LIMITS)
        if kind == CREATE and name in self.queues.by_name:
            return "the queue exists: its deletion is lost"
        if kind == DELETE:
            self.doubtful.pop(name, None)
        if by_id and kind not in (ADD, CREATE, DELETE) and middle > self.doubtful.get(name, middle):
            return "entries before it are lost, so it is unknown which task it removed; the task is kept"
        try:
            apply_change(self.queues, (kind, name, middle, payload), by_id)
        except ReplayConflict as error:
            return str(error)
        return None


def _change(found: Found) -> Change:
    by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
    return decode_change(found.payload, 0, len(found.payload), by_id=by_id)


def _without_log(target: Target) -> Target:
    return Target(
        path=target.path,
        kind=target.kind,
        generation=target.generation,
        metadata=target.metadata,
        snapshot=target.snapshot,
    )


def _has_inner_damage(history: History) -> bool:
    """Return whether something is missing before the last whole entry, or an entry does not apply."""
    queues, bad_before, expected = Queues(), False, history.first
    if history.first > history.covered + 1:
        return True
    try:
        restore_snapshot(history, queues)
    except BadData:
        return True
    for found in history.scan():
        if found.status is not Status.OK:
            bad_before = True
            continue
        if bad_before or found.index != expected:
            return True
        expected += 1
        if not found.payload or found.index <= history.covered:
            continue
        try:
            by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
            apply_change(queues, _change(found), by_id)
        except (BadData, ReplayConflict):
            return True
    return False
