"""Salvage: everything that is provably whole, into a new directory; everything else as rows.

A log that is whole up to a torn end is copied up to there. A log with damage in the middle cannot be a log
any more: what its whole entries say is folded into a snapshot. Where an entry was lost, doubt is decided
for the task: it may come back although it was done, it is never dropped although it was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.errors import BadData
from penstock.families.damage import Severity, is_damage
from penstock.families.family import Progress, Row, no_progress
from penstock.families.taskflux.applying import Applier, read_notes
from penstock.families.taskflux.fold import Fold, Verdict, apply_delta, judge
from penstock.families.taskflux.location import Target
from penstock.families.taskflux.new_directory import NewDirectory, new_directory
from penstock.families.taskflux.read import Found, History, restore_queues, survey
from penstock.families.taskflux.rows import bad_file_row, entry_row, row_at, unreadable_rows
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import Status
from penstock.formats.taskflux.notes import Note
from penstock.formats.taskflux.snapshot import StoredTask
from penstock.formats.taskflux.snapshot_decode import decode_header
from penstock.formats.taskflux.snapshot_frame import proven_part
from penstock.formats.taskflux.variant import Variant
from penstock.model import TERM_MAX, HardState, Index, SnapshotPoint, Term
from penstock.storage.files import opened


@dataclass
class Repaired:
    """What a repair wrote; filled as it goes."""

    entries: int = 0  # whole entries taken along
    left: int = 0  # rows of what was left behind
    queues: int = 0
    tasks: int = 0
    notes: list[str] = field(default_factory=list)


def repair(
    target: Target,
    out: Path,
    result: Repaired,
    *,
    uncommitted: bool = False,
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Write all that is whole into ``out``; yield a row for everything that was left.

    ``uncommitted``: also records behind the end marker of generation 2 that may be entries of the log, or stale.
    """
    history = replace(survey(target, progress=progress), takes_undecided=uncommitted)
    with new_directory(out, _variant(history), source=target.path) as new:
        for row in _Repair(history, new, result).run():
            result.left += is_damage(row)
            yield row


class _Repair:
    def __init__(self, history: History, new: NewDirectory, result: Repaired) -> None:
        self.history = history
        self.new = new
        self.result = result
        self.queues = history.new_queues()
        self.found: list[Note] = []  # what the snapshot holds of ours
        self.term = 0  # the highest that was taken along

    def run(self) -> Iterator[Row]:
        yield from unreadable_rows(self.history)
        yield from self._restore()
        if self.history.point is not None:
            self.term = self._possible(self.history.point.term)
        is_old = self.history.target.generation is Generation.ONE
        verdict = Verdict(is_broken=True) if is_old else judge(self.history)
        if verdict.is_broken:
            yield from self._fold(verdict)
        else:
            yield from self._copy()
        self._write_metadata()
        if self.new.unpaged:
            names = ", ".join(repr(str(name)) for name in self.new.unpaged)
            self.result.notes.append(f"paged queues are heaps now, held in memory: {names}")
        self.result.queues = len(self.queues.by_name)
        self.result.tasks = sum(map(len, self.queues.by_name.values()))

    def _restore(self) -> Iterator[Row]:
        """Read the snapshot as far as it is whole: its notes may mean nothing where its tasks do."""
        path, raw = self.history.target.snapshot, list[StoredTask]()
        if path is not None:
            yield from self._leave_appended(path)
        try:
            raw = restore_queues(self.history, self.queues)
        except BadData as error:
            assert path is not None
            yield bad_file_row(error, "snapshot", path)
            self.history = replace(self.history, snapshot=None)
            self.queues = self.history.new_queues()
        try:
            self.found = read_notes(self.queues, raw)
        except BadData as error:
            assert path is not None
            yield bad_file_row(error, "snapshot", path)

    def _leave_appended(self, path: Path) -> Iterator[Row]:
        """Take a snapshot with bytes behind it for what its length and checksum prove, and yield a row for the rest."""
        with opened(path) as file:
            size = file.size()
            found = proven_part(file.read, size)
            if found is None:
                return
            header = decode_header(file.read, found[0])
        self.history = replace(self.history, snapshot=header, snapshot_size=found[1])
        reason = "bytes behind the end of the snapshot"
        place = {"offset": found[1], "size": size - found[1]}
        yield row_at(path, Status.LEFTOVER.word, reason, Severity.DAMAGED, **place)

    def _write_metadata(self) -> None:
        metadata = self.history.metadata
        if metadata is not None and metadata.state.term > TERM_MAX:
            self._note_impossible(metadata.state.term)
        elif metadata is not None and self.term <= metadata.state.term:
            self.new.write_metadata(metadata.state)
            return
        else:
            self.result.notes.append(
                "the vote is lost: let this node join as a new member, not under its old id"
            )
        self.new.write_metadata(HardState(term=Term(max(1, self.term))))

    def _possible(self, term: int) -> int:
        """Return a term, or the last one before it if it is impossible."""
        if term <= TERM_MAX:
            return term
        self._note_impossible(term)
        return max(1, self.term)

    def _note_impossible(self, term: int) -> None:
        text = f"term {term} is impossible and was left behind: start a new cluster with this directory"
        if text not in self.result.notes:
            self.result.notes.append(text)

    def _copy(self) -> Iterator[Row]:
        """Take a log along that is whole up to its end."""
        history = self.history
        if history.point is not None:
            point = SnapshotPoint(index=history.point.index, term=Term(self.term))
            self.new.write_snapshot(point, self.queues, kept=self.found)
        applier = Applier(self.queues, self.found, is_strict=True)
        last_committed = -1
        for found in history.scan():
            assert isinstance(found, Found), "a log that does not fit together is folded"
            if found.status is not Status.OK:
                yield entry_row(history, found)
            elif found.index is not None and found.index > history.covered:
                apply_delta(applier, found)
                self.term = self._possible(found.term)
                self.new.append(self.term, found.payload)
                self.result.entries += 1
                if history.is_committed(found.index) is not False:
                    last_committed = found.index
        self.new.commit(last_committed)

    def _fold(self, verdict: Verdict) -> Iterator[Row]:
        """Write as a snapshot what the whole entries of a log with something missing lead to."""
        path = self.history.target.snapshot
        if verdict.is_term_wrong and path is not None:
            reason = "no entry is of the snapshot's term; its index and state are taken"
            yield row_at(path, "disagreement", reason, Severity.DAMAGED, kind="snapshot")
        fold = Fold(self.history, self.queues, verdict)
        yield from fold.rows()
        self.queues, self.term = fold.queues, max(self.term, self._possible(fold.term))
        self.result.entries = fold.entries
        self.result.notes += fold.notes
        if fold.extensions or self.found:
            self.result.notes.append(
                "delays, expiries, attempts, queue options and the memory of retries are lost: tasks are kept,"
                " but what was said of them beyond key and payload was said of the log as it was"
            )
        if fold.index >= 0:
            point = SnapshotPoint(index=Index(fold.index), term=Term(max(1, self.term)))
            self.new.write_snapshot(point, self.queues)


def _variant(history: History) -> Variant:
    """Return the variant to write: that of the files in generation 2, and 1c for the policies of 1c and 1d."""
    target = history.target
    if target.generation is Generation.ONE:
        words = {log.layout.variant for log in target.logs}
        words |= set() if history.snapshot is None else {history.snapshot.layout.variant}
        return Variant.ONE_C if words & {"1c", "1d"} else Variant.ONE
    if target.generation is Generation.THREE:
        return Variant.THREE
    names = {path.name for path in (target.metadata, target.snapshot) if path is not None}
    names |= {log.path.name for log in target.logs}
    if any(name.startswith("tflux.") for name in names):
        return Variant.TWO_CODE
    layouts = [one.layout for one in (history.metadata, history.snapshot) if one is not None]
    is_mixed = any(layout.generation is Generation.ONE for layout in layouts)
    return Variant.TWO_MIXED if is_mixed else Variant.TWO
