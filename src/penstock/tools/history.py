"""A target's log read as a history: every record with its index, and what came before the first.

Indexes are not in the records: the snapshot, the sidecar of a compaction, or the segment's name give the
first one, and counting the rest. Behind damage of unknown extent counting ends, and with it the
index, until the next segment's name gives it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.errors import CorruptData, ReplayConflict
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, Status
from penstock.formats.taskflux.metadata import Metadata
from penstock.formats.taskflux.snapshot import Batch, SnapshotHeader, decode_snapshot
from penstock.model import QueueHead, SnapshotPoint
from penstock.queues.contents import QueueContents
from penstock.queues.replay import Queues
from penstock.storage.reading import read_header, scan_file, walk_file
from penstock.tools.target import (
    LogFile,
    Target,
    opened,
    read_compaction,
    read_metadata,
    read_snapshot_header,
    read_sync_point,
)

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


def no_progress(_size: int) -> None:
    """Show nothing."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known of a target before its log is read."""

    target: Target
    metadata: Metadata | None
    snapshot: SnapshotHeader | None
    first: int  # index of the first record in the first log file
    commit: int | None  # last committed index as the files store it; None if they do not
    synced: int  # last index known to have been on the disk; -1 if nothing tells
    progress: Progress = field(default=no_progress)

    @property
    def point(self) -> SnapshotPoint | None:
        return None if self.snapshot is None else self.snapshot.point

    @property
    def covered(self) -> int:
        """The last index that the snapshot covers; -1 without one."""
        return -1 if self.snapshot is None else self.snapshot.point.index

    def scan(self) -> Iterator[Found]:
        """Yield every record and every gap of the log, damage included."""
        for log in self.target.logs:
            first = self.first if log.first is None else log.first
            index: int | None = first
            with opened(log.path) as file:
                last = log.layout.header_size
                for piece, payload in scan_file(
                    file, log.layout, start=log.layout.header_size, size=file.size()
                ):
                    self.progress(piece.offset + piece.size - last)
                    last = piece.offset + piece.size
                    is_record = piece.length > 0 or piece.term != 0
                    yield Found(
                        log,
                        piece.offset,
                        piece.size,
                        piece.status,
                        index,
                        piece.term,
                        payload,
                    )
                    index = index + 1 if is_record and index is not None else None
                self.progress(max(0, file.size() - last))

    def is_committed(self, index: int | None) -> bool | None:
        """Return whether an entry is committed; ``None`` if the files cannot tell."""
        if index is None or self.commit is None:
            return None
        return index <= self.commit


def read_history(target: Target, *, progress: Progress = no_progress) -> History:
    """Read what precedes the log. Raises ``BadData`` for a damaged header, snapshot header or sidecar."""
    snapshot = read_snapshot_header(target.snapshot) if target.snapshot is not None else None
    metadata = read_metadata(target.metadata) if target.metadata is not None else None
    return make_history(target, metadata, snapshot, progress=progress)


def make_history(
    target: Target,
    metadata: Metadata | None,
    snapshot: SnapshotHeader | None,
    *,
    progress: Progress = no_progress,
) -> History:
    """Put a history together from what could be read. Raises ``BadData`` for a damaged log header."""
    first, commit = _first_and_commit(target, snapshot)
    point = read_sync_point(target)
    return History(
        target=target,
        metadata=metadata,
        snapshot=snapshot,
        first=first,
        commit=commit,
        synced=-1 if point is None else max(point.synced, point.committed),
        progress=progress,
    )


def _first_and_commit(target: Target, snapshot: SnapshotHeader | None) -> tuple[int, int | None]:
    after = 0 if snapshot is None else snapshot.point.index + 1
    if not target.logs:
        return after, None
    log = target.logs[0]
    with opened(log.path) as file:
        header = read_header(file, log.path, log.layout)
        if target.generation is Generation.THREE:
            return log.first if log.first is not None else after, None
        if log.layout is LogLayout.ONE_A:
            return 0, None
        first = after
        compaction = read_compaction(target)
        if compaction is not None:
            point = None if snapshot is None else snapshot.point
            count = len(walk_file(file, log.path, log.layout).records)
            old = compaction.log_first(point, count)
            first = after if old is None else old
    return first, None if header.commit is None else first + header.commit


def restore_snapshot(history: History, queues: Queues) -> None:
    """Read the snapshot into ``queues``. Raises ``BadData`` for damage."""
    path, header = history.target.snapshot, history.snapshot
    if path is None or header is None:
        return
    queues.by_name.clear()
    queue: QueueContents | None = None
    with opened(path) as file:
        last = 0
        for event in decode_snapshot(file.read, file.size(), header.layout):
            if isinstance(event, QueueHead):
                queue = queues.restore(event)
            elif isinstance(event, Batch):
                assert queue is not None
                _restore_tasks(queue, event)
                history.progress(event.offset - last)
                last = event.offset


def _restore_tasks(queue: QueueContents, batch: Batch) -> None:
    try:
        for task_id, key, payload in batch.tasks:
            queue.restore(task_id, key, payload)
    except ReplayConflict as error:
        raise CorruptData(str(error), offset=batch.offset) from None
