"""Salvage: everything that is provably whole, into a new directory; everything else as rows.

A log that is whole up to a torn end is copied up to there. A log with damage in the middle cannot be a log
any more: what its whole entries say is folded into a snapshot. Where an entry was lost, doubt is decided
for the task: it may come back although it was done, it is never dropped although it was not.

What is lost makes later removals doubtful: by id, because lost additions took ids too; in a place that was perhaps
never committed, because it was perhaps never done. Doubtful removals are not applied and said. Additions always are: a
task that comes back is delivered once more, one that is dropped never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.binary import CHECKSUM_START, checksum
from penstock.errors import BadData, ReplayConflict
from penstock.families.damage import Severity, is_damage
from penstock.families.family import Progress, Row, no_progress
from penstock.families.taskflux.location import LogFile, Target
from penstock.families.taskflux.new_directory import NewDirectory, new_directory
from penstock.families.taskflux.read import Found, History, Misfit, follower, restore_queues, survey
from penstock.families.taskflux.rows import (
    bad_file_row,
    entry_row,
    fault_row,
    misfit_row,
    row_at,
    unreadable_rows,
)
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import (
    ADD,
    CREATE,
    DELETE,
    REMOVE,
    Change,
    decode_change,
    encode_delta,
)
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import RECORD_MARKER, Status
from penstock.formats.taskflux.log_scan import RECORD_SIZE_BELIEVED, scan
from penstock.formats.taskflux.notes import Note
from penstock.formats.taskflux.snapshot import StoredTask
from penstock.formats.taskflux.snapshot_decode import decode_header
from penstock.formats.taskflux.snapshot_frame import proven_part
from penstock.formats.taskflux.variant import Variant
from penstock.model import (
    DEFAULT_QUEUE,
    INT64_MAX,
    NO_LIMITS,
    TERM_MAX,
    DeleteQueue,
    Dequeue,
    Enqueue,
    HardState,
    Index,
    QueueName,
    SnapshotPoint,
    Term,
)
from penstock.queues.replay import Queues, decode, read_notes
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
        self.queues.number(self.found, is_strict=True)
        last_committed = -1
        for found in history.scan():
            assert isinstance(found, Found), "a log that does not fit together is folded"
            if found.status is not Status.OK:
                yield entry_row(history, found)
            elif found.index is not None and found.index > history.covered:
                self.queues.replay(found.payload, found.log.layout.contents)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What can be made of a log."""

    is_broken: bool  # something is missing before the last whole entry, or an entry does not apply
    is_commit_sure: bool = True
    is_point_sure: bool = True  # whether the log agrees with what the snapshot says to cover
    is_term_wrong: bool = False  # whether the snapshot's term is wrong, but nothing else of it


def judge(history: History) -> Verdict:
    """Read the log of generation 2 or 3 once, to see whether it can stay a log."""
    is_lost = history.target.snapshot is not None and history.snapshot is None
    is_broken = is_lost or not history.is_first_sure or history.first > history.covered + 1
    has_bad, last = False, history.first - 1
    terms: set[int] = set()
    is_point_sure, point = True, history.point
    queues = Queues()
    raw = restore_queues(history, queues)
    try:
        found_notes = read_notes(queues, raw)
    except BadData:
        is_broken, found_notes = True, []
    queues.number(found_notes, is_strict=True)
    for found in history.scan():
        if isinstance(found, Misfit) or found.status in (Status.FALLING_TERM, Status.BAD_TERM):
            is_broken = has_bad = True
            # A fall right behind the place where they meet says that the entry's term is wrong.
            is_meeting = isinstance(found, Found) and found.index == history.covered + 1
            is_point_sure = is_point_sure or is_meeting
        elif history.is_beyond(found):
            pass  # no entries of the log
        elif found.status is not Status.OK:
            has_bad = True
            is_broken = is_broken or bool(remains(found))
        else:
            is_broken = is_broken or has_bad or not _applies(history, queues, found)
            last = last if found.index is None else found.index
            terms.add(found.term)
            if point is not None and found.index == point.index:
                is_point_sure = found.term == point.term
    # Where no entry has the snapshot's term, no other index explains it: the term alone is wrong.
    is_unknown = point is not None and bool(terms) and min(terms) < point.term not in terms
    is_term_wrong = is_unknown and not is_point_sure
    is_point_sure = is_point_sure or is_term_wrong
    # A commit index beyond a log in which nothing is bad is itself what is bad.
    is_beyond = history.commit is not None and history.commit > max(last, history.covered)
    is_commit_sure = history.is_commit_sure and (has_bad or not is_beyond)
    return Verdict(
        is_broken=is_broken or is_term_wrong or not (is_commit_sure and is_point_sure),
        is_commit_sure=is_commit_sure,
        is_point_sure=is_point_sure,
        is_term_wrong=is_term_wrong,
    )


_DEFAULT_DELETED: Final = encode_delta(DeleteQueue(queue=DEFAULT_QUEUE))
"""An entry that TaskFlux cannot rebuild its state from. A log that keeps it stays damaged."""


def _applies(history: History, queues: Queues, found: Found) -> bool:
    if found.index is None or found.index <= history.covered:
        return True
    try:
        queues.replay(found.payload, found.log.layout.contents)
    except (BadData, ReplayConflict):
        return False
    return found.payload != _DEFAULT_DELETED


class Fold:
    """One pass over a log. ``queues`` is the snapshot's state at first, and the outcome in the end."""

    def __init__(self, history: History, queues: Queues, verdict: Verdict) -> None:
        is_whole_log = history.is_whole_log()
        self.history = history
        self.queues = history.new_queues() if is_whole_log else queues
        self.entries = 0
        self.extensions = 0  # whole entries of ours; they do not outlive the log that they speak of
        self.notes: list[str] = []
        self.term = 0
        # The last entry passed has an index from ``index`` to ``index_max``; behind a gap they differ.
        self.index = self.index_max = self.known = -1 if is_whole_log else history.covered
        # Entries up to here were surely committed; the others may add tasks but take none away.
        self.sure = INT64_MAX if history.commit is None else history.commit
        if not (verdict.is_commit_sure and verdict.is_point_sure and history.is_first_sure):
            self.sure = -1
        if not verdict.is_point_sure:
            self.known = -1
            self.notes.append("snapshot and log disagree on where they meet: tasks may stand twice")
        is_lost = history.target.snapshot is not None and history.snapshot is None
        # Whether anything may have been lost; else the additions by value that were.
        self.has_lost = (is_lost and not is_whole_log) or history.first > history.covered + 1
        self.lost: list[_Lost] = []
        self.log: LogFile | None = None
        # Queue -> last id before a loss. Tasks added behind it may have had other ids.
        self.doubtful: dict[QueueName, int] = {DEFAULT_QUEUE: 0} if self.has_lost else {}

    def rows(self) -> Iterator[Row]:
        """Apply what can be applied; yield a row for everything else."""
        for found in self.history.scan():
            if isinstance(found, Misfit):
                yield misfit_row(found)
                self._lose(None)
                continue
            found = self._numbered(found)
            if self.history.is_beyond(found):
                yield entry_row(self.history, found)
                continue
            for piece in [found] if is_whole(found) else remains(found) or [found]:
                self._pass(piece)
                if piece.index is None or piece.index > self.known or not piece.is_record:
                    yield from self._entry(piece)

    def _numbered(self, found: Found) -> Found:
        """Return ``found`` with the index that our own count gives: a wrong length hides records from others."""
        if found.log is not self.log:
            self.log = found.log
            return found
        return replace(found, index=self.index + 1 if self.index == self.index_max else None)

    def _pass(self, found: Found) -> None:
        """Count the entry, or the entries that may have been in a gap."""
        if found.index is not None:
            self.index = self.index_max = found.index - 1
        least = 0 if found.status is Status.LEFTOVER else 1
        most = 1 if found.is_record else found.size // found.log.layout.record_header.size
        is_end = found.status is Status.ZEROS and found.log is self.history.target.logs[-1]
        if is_end and self.index >= self.history.sure:
            self.sure = min(self.sure, self.index)  # What follows may be older than the end mark.
        self.index += least
        self.index_max += max(least, most)
        self.term = max(self.term, found.term)

    def _entry(self, found: Found) -> Iterator[Row]:
        if not is_whole(found):
            yield entry_row(self.history, found)
            self._lose(found)
            return
        try:
            reason = self._apply(found)
        except BadData as error:
            reason = f"not a delta or command: {error}"
            self._lose(found)
        if reason is not None:
            yield fault_row(self.history, found, "not-applied", reason, Severity.LOST)
            return
        self.entries += 1
        self.known = self.known if found.index is None else found.index
        if found.status is not Status.OK:
            self.notes.append(
                f"{found.log.path}, offset {found.offset}: taken along in spite of its {found.status.word}"
            )

    def _lose(self, found: Found | None) -> None:
        """Account for what a lost entry, or any number of them, may have added."""
        change = None if found is None else _shape(found)
        if change is not None:
            # Frame and shape are whole, so it is what it says, with some byte wrong inside: perhaps one of
            # the name, if that gives the name of another queue.
            kind, name, _, _ = change
            assert found is not None
            by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
            like = [other for other in self.queues.by_name if len(other) == len(name)]
            if kind in (REMOVE, DELETE):
                return
            if kind == ADD and not by_id:
                self.lost.append(_Lost.of(found))
                return
            if kind == ADD and like == [name]:
                self.queues.by_name[name].last_id += 1
                return
        self.has_lost = True
        for name, queue in self.queues.by_name.items():
            self.doubtful.setdefault(name, queue.last_id)

    def _apply(self, found: Found) -> str | None:
        """Apply an entry as far as it can be; return why it could not. Raises ``BadData``."""
        if not found.payload:
            return None
        if found.log.layout.contents is Contents.COMMANDS:
            return self._obey(found)
        by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
        decoded = decode(found.payload, 0, len(found.payload), by_id=by_id)
        if decoded.extension is not None:
            self.extensions += 1
            return None
        kind, name, middle, _ = decoded.change
        is_sure = found.status is Status.OK and self.index_max <= self.sure
        if kind == ADD:
            self._provide(name)
        elif kind == CREATE and name in self.queues.by_name:
            self.doubtful[name] = 0
            return "the queue exists: its deletion is lost"
        elif kind == DELETE and is_sure:
            self.doubtful.pop(name, None)
        elif kind in (DELETE, REMOVE) and not is_sure and name in self.queues.by_name:
            return "it is not sure that this was committed; the tasks are kept"
        elif kind == REMOVE and not by_id and self._removes_lost(found.payload):
            return None
        elif kind == REMOVE and (
            middle > self.doubtful.get(name, middle) if by_id else self.has_lost
        ):
            return "entries before it are lost, so it is unknown which task it removed; the task is kept"
        try:
            self.queues.apply(decoded, by_id=by_id)
        except ReplayConflict as error:
            return str(error)
        return None

    def _removes_lost(self, removal: bytes) -> bool:
        """Return whether a removal by value means a task whose addition is lost, and forget that then."""
        for number, lost in enumerate(self.lost):
            if lost.is_meant_by(removal):
                del self.lost[number]
                return True
        return False

    def _obey(self, found: Found) -> str | None:
        command = decode_command(found.payload)
        if self.has_lost and isinstance(command, Dequeue):
            return (
                "entries before it are lost, so it is unknown which task it took; the task is kept"
            )
        if self.has_lost and isinstance(command, Enqueue):
            # Not decided anew: tasks that are kept in doubt may fill the queue.
            self._provide(command.queue)
            self.queues.by_name[command.queue].add(command.key, command.payload)
            return None
        self.queues.obey(command)
        return None

    def _provide(self, name: QueueName) -> None:
        """Make a queue whose creation is lost."""
        if name not in self.queues.by_name:
            self.notes.append(f"queue {name!r}: its creation is lost; made anew without limits")
            self.queues.create(name, NO_LIMITS)
            self.doubtful[name] = 0


@dataclass(frozen=True, slots=True)
class _Lost:
    """An addition by value that is not whole, but must be told from others if a removal means it."""

    # As stored: of the payload before it was damaged, unless the checksum is what was damaged.
    checksum: int
    payload: bytes

    @classmethod
    def of(cls, found: Found) -> _Lost:
        header = found.log.layout.record_header
        with opened(found.log.path) as file:
            _, _, stored, _ = header.unpack(file.read(found.offset, header.size))
        return cls(stored, found.payload)

    def is_meant_by(self, removal: bytes) -> bool:
        """Return whether ``removal`` removes what this added: they differ in their first byte only."""
        addition = bytes((ADD,)) + removal[1:]
        return addition == self.payload or checksum(addition) == self.checksum


def _shape(found: Found) -> Change | None:
    """Return what a bad record would say if it were whole, or ``None`` if it has not even the shape."""
    contents = found.log.layout.contents
    if contents is Contents.COMMANDS or not found.payload:
        return None
    by_id = contents is Contents.DELTAS_BY_ID
    try:
        return decode_change(found.payload, 0, len(found.payload), by_id=by_id)
    except BadData:
        return None


def is_whole(found: Found) -> bool:
    """Return whether the checksum proves what an entry says, whatever its term is."""
    is_late = found.status in (Status.FALLING_TERM, Status.BAD_TERM) and found.is_record
    return found.status is Status.OK or is_late


def remains(found: Found) -> list[Found]:
    """Return what is whole in a place that is not, if its first checksum still matches something.

    Marker and length are not covered by it: with one of them wrong the payload is proven all the same,
    and behind a length that was too large stand the records that it swallowed.
    """
    layout, header = found.log.layout, found.log.layout.record_header
    if not layout.is_marked or found.size < header.size:
        return []
    with opened(found.log.path) as file:
        data = file.read(found.offset, min(found.size, RECORD_SIZE_BELIEVED))
    _, term, stored, length = header.unpack_from(data)
    end = _proven_end(data, header.size, length, stored)
    if end is None:
        return []
    payload = data[header.size : end]
    kept = [Found(found.log, found.offset, end, Status.OK, found.index, term, payload)]
    rest = scan(data, layout, start=end, term=max(0, term), size=found.size)
    for offset, size, status, term, length in rest:
        payload = data[offset + size - length : offset + size]
        index = follower(kept[-1])
        kept.append(Found(found.log, found.offset + offset, size, status, index, term, payload))
    return kept


def _proven_end(data: bytes, start: int, length: int, stored: int) -> int | None:
    """Return where a payload that begins at ``start`` ends, if some place is proven by the checksum."""
    ends = {start + length, len(data)}
    end = data.find(RECORD_MARKER, start)
    while end >= 0:
        ends.add(end)
        end = data.find(RECORD_MARKER, end + 1)
    register, last = CHECKSUM_START, start
    for end in sorted(ends):
        if start <= end <= len(data):
            register, last = checksum(data[last:end], register), end
            if register == stored:
                return end
    return None
