"""A target's log read as a history: every record with its index, and what came before the first.

Indexes are not in the records: the snapshot, the sidecar of a compaction, or the segment's name give the
first one, and counting the rest. Behind damage of unknown extent counting ends, and with it the
index, until the next segment's name gives it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from penstock.errors import BadData, CorruptData, PathRefused, ReplayConflict, StorageFailed
from penstock.families.family import Progress, no_progress
from penstock.families.taskflux.location import (
    LogFile,
    Target,
    read_compaction,
    read_metadata,
    read_snapshot_header,
    read_sync_point,
)
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.commands import CREATE
from penstock.formats.taskflux.compaction import FILE_NAME as COMPACTION_NAME
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import Header, LogLayout, Status
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot import ARRAY_HEAPS, StoredTask
from penstock.formats.taskflux.snapshot_decode import Batch, SnapshotHeader, decode_snapshot
from penstock.formats.taskflux.sync_point import FILE_NAME as SYNC_POINT_NAME
from penstock.formats.taskflux.sync_point import SyncPoint
from penstock.model import QueueHead, QueueName, SnapshotPoint
from penstock.queues.contents import QueueContents
from penstock.queues.replay import Queues, numbers_of, read_notes
from penstock.storage.files import FILES, opened
from penstock.storage.log import foreign_write
from penstock.storage.log_end import EndRule
from penstock.storage.paged.task_pages import DIRECTORY, TaskShelf
from penstock.storage.read_only import ReadOnlyFiles
from penstock.storage.reading import read_header, scan_file

T = TypeVar("T")

BEHIND_END: Final = (Status.LEFTOVER, Status.STALE, Status.UNDECIDED)
"""What stands behind the end of a log, and so takes no index."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record or gap of a log, with its index where that is known."""

    log: LogFile
    offset: int
    size: int
    status: Status
    index: int | None
    term: int
    payload: bytes

    @property
    def is_record(self) -> bool:
        """Whether this is one record; a gap may hold any number of them."""
        if self.term != 0 or self.payload or self.status is Status.OK:
            return True
        return self.status is Status.BAD_TERM and self.log.layout.is_marked


@dataclass(frozen=True, slots=True)
class Misfit:
    """A log file that does not begin where what stands before it ends."""

    log: LogFile
    expected: int  # the index that comes next
    first: int  # the index that the file begins with

    @property
    def status(self) -> str:
        return "missing" if self.expected < self.first else "overlap"

    @property
    def reason(self) -> str:
        if self.expected < self.first:
            return f"entries {self.expected} to {self.first - 1} are missing before this file"
        return f"entries {self.first} to {self.expected - 1} stand in the files before this one too"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file, or its header, that cannot be read."""

    kind: str  # metadata, snapshot, log or sidecar
    path: Path
    error: BadData


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known of a target before its log is read."""

    target: Target
    metadata: Metadata | None
    snapshot: SnapshotHeader | None
    first: int  # index of the first record in the first log file
    is_first_sure: bool  # False if a sidecar that cannot be read would tell
    commit: int | None  # last committed index as the files store it; None if they do not
    is_commit_sure: bool  # False if the header cannot be read; then ``commit`` claims nothing
    synced: int  # last index known to have been on the disk; -1 if nothing tells
    is_ours: bool = False  # whether a node of ours kept a sync point
    snapshot_size: int | None = None  # bytes of the snapshot file that are one; None: all
    # Whether records behind an end marker count as entries where the bytes do not tell.
    takes_undecided: bool = False
    unreadable: tuple[Unreadable, ...]
    progress: Progress = field(default=no_progress)

    @property
    def point(self) -> SnapshotPoint | None:
        return None if self.snapshot is None else self.snapshot.point

    @property
    def covered(self) -> int:
        """The last index that the snapshot covers; -1 without one."""
        return -1 if self.snapshot is None else self.snapshot.point.index

    @property
    def sure(self) -> int:
        """The last index that the files claim to have been committed or synced; -1 if none do."""
        return max(self.synced, -1 if self.commit is None else self.commit)

    def scan(self) -> Iterator[Found | Misfit]:
        """Yield every record and every gap of the log, damage included."""
        expected: int | None = self.first
        if self.target.kind == "directory":
            expected = min(self.first, self.covered + 1)
        term = 0
        if self.point is not None and self.is_first_sure and self.first == self.covered + 1:
            term = self.point.term
        for log in self.target.logs:
            first = self.first if log.first is None else log.first
            if expected is not None and first != expected:
                yield Misfit(log, expected, first)
            expected = first
            for found in self._scan_file(log, first, term):
                yield found
                term = found.term if found.term >= 1 else term
                expected = follower(found)

    def _scan_file(self, log: LogFile, first: int, term: int) -> Iterator[Found]:
        """Yield a file's records and gaps. ``term`` is that of the entry before."""
        index: int | None = first
        with opened(log.path) as file:
            last = start = log.layout.header_size
            # Without markers a fall of terms would take the whole file for damage.
            term = term if log.layout.is_marked else 0
            rule = self.end_rule(log)
            for piece, payload in scan_file(
                file, log.layout, start=start, size=file.size(), term=term, rule=rule
            ):
                self.progress(piece.offset + piece.size - last)
                last = piece.offset + piece.size
                found = Found(
                    log, piece.offset, piece.size, piece.status, index, piece.term, payload
                )
                yield found
                index = follower(found)
            self.progress(max(0, file.size() - last))

    def is_whole_log(self) -> bool:
        """Return whether a log of variant 1a holds every entry from the first on, also those that a snapshot covers."""
        logs = self.target.logs
        return bool(logs) and logs[0].layout is LogLayout.ONE_A and self.first == 0

    def is_beyond(self, found: Found) -> bool:
        """Return whether a stretch stands behind the last entry of its file, so that no entry is lost with it.

        That is so for what an end marker cuts off, and for a stretch that the next segment's name follows directly.
        """
        if found.status in (Status.STALE, Status.UNDECIDED):
            return True
        following = found.log.following
        return following is not None and not found.is_record and found.index == following

    def end_rule(self, log: LogFile) -> EndRule:
        """Return what decides about the bytes behind the end marker of a log file."""
        first = self.first if log.first is None else log.first
        term = 0 if self.point is None else self.point.term
        if log.following is not None:
            return EndRule(required=log.following - first, is_exact=True, term=term)
        return EndRule(
            required=self.sure + 1 - first,
            is_exact=self.is_ours,
            term=term,
            takes_undecided=self.takes_undecided,
            is_header_whole=all(found.path != log.path for found in self.unreadable),
        )

    def new_queues(self) -> Queues:
        """Return empty queues from which tasks leave in the order of the program that wrote the files."""
        return Queues(by_array_heap=self.is_by_array_heap())

    def is_by_array_heap(self) -> bool:
        """Return whether the program took tasks from the heap of variants 1a and 1b."""
        logs = self.target.logs
        if self.snapshot is not None:
            is_old = self.snapshot.layout in ARRAY_HEAPS
            return is_old and (not logs or logs[0].layout in (LogLayout.ONE_A, LogLayout.ONE_B))
        if not logs or logs[0].layout is not LogLayout.ONE_B:
            return bool(logs) and logs[0].layout is LogLayout.ONE_A
        return not self.is_perhaps_1d()

    @property
    def is_late_1b(self) -> bool:
        """Whether a log of commands has the directory ``temporary`` beside it, which late 1b and 1d made."""
        companions, logs = self.target.companions, self.target.logs
        if companions is None or not logs or logs[0].layout is not LogLayout.ONE_B:
            return False
        return (companions / "temporary").is_dir()

    def is_perhaps_1d(self) -> bool:
        """Return whether nothing tells a log of late 1b from one of 1d, which kept the order of insertion.

        Only snapshots and the creation of queues differ (docs/decisions/0028).
        """
        if self.snapshot is not None or not self.is_late_1b:
            return False
        return not any(
            isinstance(found, Found) and found.payload[:1] == bytes((CREATE,))
            for found in self.scan()
        )

    def is_committed(self, index: int | None) -> bool | None:
        """Return whether an entry is committed; ``None`` if the files cannot tell."""
        if index is None or self.commit is None:
            return None
        return index <= self.commit


def follower(found: Found) -> int | None:
    """Return the index behind a record or gap, if it can be known."""
    if found.index is None or found.status in BEHIND_END:
        return found.index
    return found.index + 1 if found.is_record else None


def read_history(target: Target, *, progress: Progress = no_progress) -> History:
    """Read what precedes the log. Raises ``BadData`` for whatever cannot be read."""
    history = survey(target, progress=progress)
    for unreadable in history.unreadable:
        raise unreadable.error
    return history


def survey(target: Target, *, progress: Progress = no_progress) -> History:
    """Read what precedes the log, and note what cannot be read."""
    notes: list[Unreadable] = []
    metadata = _attempt(notes, "metadata", target.metadata, read_metadata)
    snapshot = _attempt(notes, "snapshot", target.snapshot, read_snapshot_header)
    known = read_sync_point(target)
    if snapshot is not None and known is not None:
        snapshot = _announced(notes, target, snapshot, known)
    headers = [
        _attempt(notes, "log", log.path, partial(_header, layout=log.layout)) for log in target.logs
    ]
    first = after = 0 if snapshot is None else snapshot.point.index + 1
    commit: int | None = None
    is_first_sure = is_commit_sure = True
    if target.logs:
        log = target.logs[0]
        if log.first is not None:
            first = log.first
        elif target.companions is not None and target.generation is Generation.TWO:
            path = target.companions / COMPACTION_NAME
            told = _attempt(notes, "sidecar", path, lambda _: _first(target, snapshot, after))
            is_first_sure, first = told is not None, after if told is None else told
        if log.layout is LogLayout.TWO:
            is_commit_sure = headers[0] is not None
            commit = first - 1 if headers[0] is None else first + (headers[0].commit or 0)
    history = History(
        target=target,
        metadata=metadata,
        snapshot=snapshot,
        first=first,
        is_first_sure=is_first_sure,
        commit=commit,
        is_commit_sure=is_commit_sure,
        synced=-1 if known is None else max(known.synced, known.committed),
        is_ours=known is not None and known.sequence > 0,
        unreadable=tuple(notes),
        progress=progress,
    )
    if is_first_sure and first == after and not history.is_late_1b and holds_covered(history):
        return replace(history, first=0, commit=None if commit is None else commit - first)
    return history


def holds_covered(history: History) -> bool:
    """Return whether a log without a start index begins at entry 0, although a snapshot covers its first entries.

    Programs of TaskFlux shorten the log after the snapshot is in place: a crash in between leaves both. Variant 1a kept
    its log for a while, too. It is so if the first entries give the snapshot's state.
    """
    point, logs = history.point, history.target.logs
    if point is None or not logs or history.target.kind != "directory" or history.is_ours:
        return False
    layout, count = logs[0].layout, point.index + 1
    is_long = logs[0].size >= layout.header_size + count * layout.record_header.size
    if layout is LogLayout.THREE or not is_long:
        return False
    whole = replace(history, first=0, progress=no_progress)
    queues, stored = history.new_queues(), history.new_queues()
    number = 0
    try:
        for number, found in enumerate(islice(whole.scan(), count), 1):
            if isinstance(found, Misfit) or found.status is not Status.OK:
                return False
            if number == count and found.term != point.term:
                return False
            queues.replay(found.payload, layout.contents)
        restore_queues(whole, stored)
    except (BadData, ReplayConflict):
        return False
    return number == count and is_same_state(queues, stored)


def is_same_state(queues: Queues, others: Queues) -> bool:
    """Return whether two states have the same queues with the same tasks, whatever the ids are."""
    if queues.by_name.keys() != others.by_name.keys():
        return False
    return all(
        queue.policy == others.by_name[name].policy
        and sorted(queue.tasks.values()) == sorted(others.by_name[name].tasks.values())
        for name, queue in queues.by_name.items()
    )


def _announced(
    notes: list[Unreadable], target: Target, found: SnapshotHeader, known: SyncPoint
) -> SnapshotHeader:
    """Return the header as the sync point knows it, and note if the file says otherwise.

    Generation 3 has no checksum over index and term, but a node of ours keeps a copy.
    """
    points = [point for point in (known.snapshot, known.pending) if point is not None]
    is_told = target.generation is Generation.THREE and known.sequence > 0
    if not is_told or found.point in points or target.snapshot is None:
        return found
    assert target.companions is not None, "a sync point stands beside a log"
    error = foreign_write(
        "the snapshot is not the one that was written last",
        target.companions / SYNC_POINT_NAME,
        path=target.snapshot,
        offset=4,
        expected=" or ".join(f"{point.index}, {point.term}" for point in points) or "no snapshot",
        found=f"{found.point.index}, {found.point.term}",
    )
    notes.append(Unreadable("snapshot", target.snapshot, error))
    return SnapshotHeader(layout=found.layout, point=points[0]) if points else found


def _attempt(
    notes: list[Unreadable], kind: str, path: Path | None, read: Callable[[Path], T]
) -> T | None:
    """Read a file if there is one; note it if it cannot be read."""
    if path is None:
        return None
    try:
        return read(path)
    except BadData as error:
        notes.append(Unreadable(kind, path, error))
        return None


def _header(path: Path, layout: LogLayout) -> Header:
    with opened(path) as file:
        return read_header(file, path, layout)


def _first(target: Target, snapshot: SnapshotHeader | None, after: int) -> int:
    """Return the index of the first record; the sidecar of an interrupted compaction knows better."""
    compaction = read_compaction(target)
    if compaction is None:
        return after
    log = target.logs[0]
    with opened(log.path) as file:
        pieces = scan_file(file, log.layout, start=log.layout.header_size, size=file.size())
        count = sum(1 for _ in takewhile(lambda piece: piece[0].status is Status.OK, pieces))
        old = compaction.log_first(None if snapshot is None else snapshot.point, count)
    return after if old is None else old


def restore_snapshot(history: History, queues: Queues) -> list[notes.Note]:
    """Read the snapshot into ``queues`` and return its notes, if it has any. Raises ``BadData`` for damage."""
    return read_notes(queues, restore_queues(history, queues))


def restore_queues(history: History, queues: Queues) -> list[StoredTask]:
    """Read a snapshot's queues, with what is on pages, and return its notes as they are stored.

    Raises ``BadData`` for damage.
    """
    path, header = history.target.snapshot, history.snapshot
    if path is None or header is None:
        return []
    queues.by_name.clear()
    queue: QueueContents | None = None
    raw: list[StoredTask] = []
    with opened(path) as file:
        last = 0
        size = file.size() if history.snapshot_size is None else history.snapshot_size
        for event in decode_snapshot(file.read, size, header.layout):
            if isinstance(event, QueueHead):
                queue = None if event.name == notes.QUEUE else queues.restore(event)
            elif isinstance(event, Batch):
                if queue is None:
                    raw += event.tasks
                else:
                    _restore_tasks(queue, event)
                history.progress(event.offset - last)
                last = event.offset
    if any(queue.is_paged for queue in queues.by_name.values()):
        named = [notes.decode_note(key, payload) for _, key, payload in raw]
        restore_pages(path, header.point, queues, numbers_of(queues.by_name, named))
    return raw


def _restore_tasks(queue: QueueContents, batch: Batch) -> None:
    try:
        for task_id, key, payload in batch.tasks:
            queue.restore(task_id, key, payload)
    except ReplayConflict as error:
        raise CorruptData(str(error), offset=batch.offset) from None


_READ_MAX: Final = 4096  # tasks read together


class PagedTasks(NamedTuple):
    """Consecutive tasks of a queue."""

    queue: QueueName
    first_id: int
    keys: array[int]
    payloads: list[bytes]


def read_pages(
    snapshot: Path, point: SnapshotPoint, paged: Mapping[int, QueueName]
) -> Iterator[PagedTasks]:
    """Yield the tasks of paged queues, given by number, as they were at a snapshot.

    Raises ``BadData`` if the pages are damaged, missing, or of another moment than the snapshot.
    """
    shelf: TaskShelf | None = None
    try:
        shelf = TaskShelf(ReadOnlyFiles(FILES), snapshot.parent, point)
        for number, name in paged.items():
            pages = shelf.open(number, name, is_new=False)
            for first, keys, _ in pages.stored():
                for start in range(0, len(keys), _READ_MAX):
                    some = keys[start : start + _READ_MAX]
                    ids = range(first + start, first + start + len(some))
                    yield PagedTasks(name, ids[0], some, pages.read(ids))
    except (StorageFailed, PathRefused, OSError) as error:
        raise CorruptData(str(error), path=str(snapshot.parent / DIRECTORY)) from None
    finally:
        if shelf is not None:
            shelf.close()


def restore_pages(
    snapshot: Path, point: SnapshotPoint, queues: Queues, numbers: Mapping[int, QueueName]
) -> None:
    """Put the tasks of paged queues in their place; here they are all in memory. Raises ``BadData``."""
    paged = {
        number: name
        for number, name in numbers.items()
        if name in queues.by_name and queues.by_name[name].is_paged
    }
    for name, first, keys, payloads in read_pages(snapshot, point, paged):
        queue = queues.by_name[name]
        for task_id, (key, payload) in enumerate(zip(keys, payloads, strict=True), first):
            queue.restore(task_id, key, payload)
        if first + len(keys) - 1 > queue.last_id:
            raise CorruptData(f"the pages hold tasks that queue {name!r} never had")
