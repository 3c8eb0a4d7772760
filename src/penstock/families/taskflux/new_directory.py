"""A new directory that repair or conversion writes: whole and synced, or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.errors import CannotConvert, PathRefused
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import encode_header, encode_record
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.snapshot import (
    ARRAY_HEAPS,
    StoredTask,
    encode_count,
    encode_frame,
    encode_head,
    encode_snapshot,
)
from penstock.formats.taskflux.variant import Variant
from penstock.model import (
    DEFAULT_QUEUE,
    INT32_MAX,
    INT64_MAX,
    NO_LIMITS,
    AddTask,
    Command,
    CreateQueue,
    HardState,
    Implementation,
    Index,
    QueueHead,
    QueueName,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.queues.contents import QueueContents
from penstock.queues.replay import Queues
from penstock.storage.directory import layout_for
from penstock.storage.files import FILES, TEMPORARY_SUFFIX, replace_file
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog
from penstock.storage.snapshot import SnapshotStore

BATCH: Final = 1000


@contextmanager
def new_directory(
    out: Path, variant: Variant, *, source: Path | None = None
) -> Iterator[NewDirectory]:
    """Give the files of a node that appear at ``out`` when all is well. Raises ``PathRefused``."""
    with whole_directory(out, source=source) as building:
        new = NewDirectory(building, variant)
        try:
            yield new
            new.finish()
        finally:
            new.close()


@contextmanager
def whole_directory(out: Path, *, source: Path | None = None) -> Iterator[Path]:
    """Give a directory beside ``out`` that is put there when all is well. Raises ``PathRefused``.

    ``source`` is what is read meanwhile; ``out`` must not lie in it. Whoever writes a file syncs it.
    """
    out = _refuse_place(out, source)
    building = out.with_name(out.name + TEMPORARY_SUFFIX)
    shutil.rmtree(building, ignore_errors=True)
    FILES.make_directory(building)
    try:
        yield building
        os.rename(building, out)  # noqa: PTH104 - over an empty directory too, in one step
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    FILES.sync_directory(out.parent)


def _refuse_place(out: Path, source: Path | None) -> Path:
    """Return the true path of ``out``. Raises ``PathRefused``."""
    place = Path(os.path.realpath(out))
    if source is not None and place.is_relative_to(os.path.realpath(source)):
        raise PathRefused(
            f"{out}: is inside {source}, which is never changed; name a directory outside it"
        )
    if place == Path.cwd():
        raise PathRefused(f"{out}: is the working directory; name a new directory")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PathRefused(f"{out}: exists already; name a new or empty directory")
    if not place.parent.is_dir():
        raise PathRefused(f"{place.parent}: no such directory; create it first")
    return place


class NewDirectory:
    """The files of a node that is being written. Snapshot first, then entries, then metadata."""

    def __init__(self, root: Path, variant: Variant) -> None:
        self.variant = variant
        self._layout = layout_for(root, variant)
        self._point: SnapshotPoint | None = None
        self._log: SingleLog | SegmentedLog | None = None
        self._term = 0
        self._payloads: list[bytes] = []
        self.unpaged: list[QueueName] = []  # paged queues that are in the snapshot as heaps
        FILES.make_directory(self._layout.home)

    def write_snapshot(
        self,
        point: SnapshotPoint,
        queues: Queues,
        *,
        kept: Sequence[notes.Note] | None = None,
    ) -> None:
        """Write the state after ``point``. Raises ``CannotConvert``.

        Where entries of ours go along that speak of queues by their numbers, ``kept`` holds the notes of the
        snapshot that was read, if it had any: the queues then stay in their order.
        """
        if point.index == INT64_MAX:
            raise CannotConvert(f"a snapshot at entry {point.index} leaves no index for the next")
        notes.refuse_queue(queues.by_name)
        layout = self.variant.snapshot
        # Clients of generation 1 could delete the default queue; no snapshot may lack it.
        by_name = {DEFAULT_QUEUE: QueueContents(DEFAULT_QUEUE, NO_LIMITS)} | queues.by_name
        names = sorted(by_name) if kept is None else list(queues.by_name)
        contents = [by_name[name] for name in names]
        parts: list[tuple[QueueHead, Iterable[StoredTask]]] = [
            (_unpaged(queue.head), queue.for_snapshot(as_array=layout in ARRAY_HEAPS))
            for queue in contents
        ]
        self.unpaged += [queue.name for queue in contents if queue.is_paged]
        if kept:
            tasks = [(number, *note) for number, note in enumerate(notes.encode_notes(kept), 1)]
            last_id = TaskId(len(tasks))
            head = QueueHead(name=notes.QUEUE, policy=NO_LIMITS, last_id=last_id, count=len(tasks))
            parts.append((head, tasks))
        pieces = encode_snapshot(point, len(parts), parts, layout)
        SnapshotStore(FILES, self._layout.snapshot).write(pieces).install()
        self._point = point

    def write_encoded(
        self, point: SnapshotPoint, queues: Sequence[tuple[QueueHead, Iterable[bytes]]]
    ) -> None:
        """Write the state after ``point``, the tasks of each queue already bytes. Raises ``CannotConvert``."""
        notes.refuse_queue([head.name for head, _ in queues])
        layout = self.variant.snapshot

        def state() -> Iterator[bytes]:
            yield encode_count(len(queues), layout)
            for head, tasks in queues:
                yield encode_head(head, layout.form)
                yield from tasks

        pieces = encode_frame(point, state(), layout)
        SnapshotStore(FILES, self._layout.snapshot).write(pieces).install()
        self._point = point

    def append(self, term: int, payload: bytes) -> None:
        """Add the next entry behind the snapshot, or behind the one before. Raises ``CannotConvert``."""
        if term != self._term or len(self._payloads) >= BATCH:
            self._flush()
        self._term = term
        self._payloads.append(payload)

    def write_commands(self, term: Term, commands: Iterable[Command]) -> None:
        """Write the whole log of a variant of generation 1, all of one term."""
        layout = self.variant.log

        def pieces() -> Iterator[bytes]:
            yield encode_header(layout)
            for command in commands:
                yield encode_record(layout, term=term, payload=encode_command(command))

        replace_file(FILES, self._layout.log, pieces())

    def write_metadata(self, state: HardState) -> None:
        """Write term and vote. Raises ``CannotConvert``."""
        data = encode_metadata(state, self.variant.metadata)
        replace_file(FILES, self._layout.metadata, [data])

    def commit(self, last: int | None = None) -> None:
        """Mark entries up to ``last``, or all, as committed, where the generation stores that."""
        self._flush()
        log = self._open_log()
        if log is None or log.end == log.first:
            return
        log.sync()
        index = log.end - 1 if last is None else min(last, log.end - 1)
        if index > log.committed:
            log.set_committed(Index(index))
            log.sync()

    def finish(self) -> None:
        """Complete the log; a node needs one, also without entries."""
        self._flush()
        log = self._open_log()
        if log is None and not FILES.exists(self._layout.log):
            self.write_commands(Term(1), ())
        elif log is not None:
            log.sync()
            self.close()

    def close(self) -> None:
        """Let go of the files, finished or not."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _open_log(self) -> SingleLog | SegmentedLog | None:
        generation = self.variant.generation
        if self._log is None and generation is not Generation.ONE:
            kind = SingleLog if generation is Generation.TWO else SegmentedLog
            self._log = kind(FILES, self._layout.log, self._point)
        return self._log

    def _flush(self) -> None:
        if self._payloads:
            log = self._open_log()
            assert log is not None, "generation 1 gets a snapshot, not entries"
            if isinstance(log, SingleLog) and log.end + len(self._payloads) > INT32_MAX:
                raise CannotConvert(f"generation 2 has no index beyond {INT32_MAX}")
            log.append(Term(self._term), self._payloads)
            if isinstance(log, SegmentedLog):
                log.sync()
                log.set_committed(Index(log.end - 1))  # lets a segment be sealed at its soft limit
            self._payloads.clear()


def _unpaged(head: QueueHead) -> QueueHead:
    """Return what a snapshot says of a queue whose tasks it holds."""
    if head.policy.implementation is not Implementation.PAGED:
        return head
    return replace(head, policy=replace(head.policy, implementation=Implementation.HEAP))


TERM: Final = Term(1)

SYNC_SIZE: Final = 8 * 2**20
"""Bytes of payload between two syncs: what is held of a log that is not written yet."""


class TaskLog:
    """Writes tasks, and counts what it wrote."""

    def __init__(self, new: NewDirectory) -> None:
        self._new = new
        self._size = 0  # of payloads that are not synced
        self.queues: set[QueueName] = set()
        self.entries = 0
        self.tasks = 0

    def create(self, queue: QueueName) -> None:
        """Create a queue unless it is there; every node has the default queue."""
        if queue in self.queues:
            return
        self.queues.add(queue)
        if queue != DEFAULT_QUEUE:
            self._new.append(TERM, encode_delta(CreateQueue(queue=queue, policy=NO_LIMITS)))
            self.entries += 1

    def add(self, queue: QueueName, key: int, payload: bytes) -> None:
        """Add a task, and create its queue at the first one."""
        self.create(queue)
        if self._size + len(payload) > SYNC_SIZE:
            self._new.commit()
            self._size = 0
        self._new.append(TERM, encode_delta(AddTask(queue=queue, key=key, payload=payload)))
        self._size += len(payload)
        self.tasks += 1
        self.entries += 1


@contextmanager
def new_delta_log(out: Path, to: Variant, *, source: Path, what: str) -> Iterator[TaskLog]:
    """Write a new directory; it is complete when the block ends. ``what`` names the tasks of ``source`` in a refusal.

    Raises ``CannotConvert`` and ``PathRefused``.
    """
    if to.generation is Generation.ONE:
        raise CannotConvert(
            f"{what} are not written as generation 1; choose penstock-4, taskflux-2 or taskflux-3"
        )
    with new_directory(out, to, source=source) as new:
        yield TaskLog(new)
        new.commit()
        new.write_metadata(HardState(term=TERM))
