"""A new directory of a node that holds tasks of other files, in generation 4 or in a generation of TaskFlux."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.families.family import Row
from penstock.families.penstock.family import FORMAT
from penstock.families.penstock.new_directory import (
    NewDirectory,
    lone_member,
    new_cluster_id,
    new_directory,
    written_row,
)
from penstock.families.taskflux.family import variant_of, written
from penstock.families.taskflux.new_directory import TaskLog, new_delta_log
from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import AddTasks, Change, SetMembers, SetQueue, Stamp
from penstock.formats.records.header import head_checksum
from penstock.formats.records.settings import QueueSettings
from penstock.formats.records.writer import LogWriter, record_of
from penstock.model import HardState, QueueName, Term

NODE: Final = 1
BATCH_COUNT: Final = 1000
BATCH_SIZE: Final = 2**20
"""Tasks, and bytes of payloads, of one add."""


class RecordLog:
    """Writes tasks in batches, and counts what it wrote. The tasks of a queue stay in their order."""

    def __init__(self, new: NewDirectory) -> None:
        self._new = new
        self.cluster_id = new_cluster_id()
        self._writer = LogWriter(cluster_id=self.cluster_id)
        self._previous = 0
        self._batch: list[tuple[int, bytes]] = []  # keys and payloads of the queue at hand
        self._queue: QueueName | None = None
        self._size = 0
        self._last_ids: dict[QueueName, int] = {}
        self.queues: dict[QueueName, int] = {}  # ids
        self.entries = 0
        self.tasks = 0
        self._append(SetMembers(lone_member(NODE, self.cluster_id)))

    def create(self, queue: QueueName) -> None:
        """Create a queue unless it is there."""
        if queue not in self.queues:
            self.queues[queue] = len(self.queues) + 1
            self._last_ids[queue] = 0
            self._append(SetQueue(self.queues[queue], QueueSettings(name=queue)))

    def add(self, queue: QueueName, key: int, payload: bytes) -> None:
        """Add a task, and create its queue at the first one."""
        is_full = len(self._batch) == BATCH_COUNT or self._size + len(payload) > BATCH_SIZE
        if queue != self._queue or is_full:
            self._flush()
            self.create(queue)
            self._queue = queue
        self._batch.append((key, payload))
        self._size += len(payload)
        self.tasks += 1

    def finish(self) -> None:
        """Write what is left, and the small files."""
        self._flush()
        self._new.write_log(self._writer.finish())
        self._new.finish(
            node=NODE,
            cluster_id=self.cluster_id,
            state=HardState(term=Term(1)),
            last=self.entries,
            committed=self.entries,
        )

    def _flush(self) -> None:
        if self._batch and self._queue is not None:
            keys, payloads = zip(*self._batch, strict=True)
            body = encode_add(self._queue.encode(), keys, payloads)
            first_id = self._last_ids[self._queue] + 1
            self._last_ids[self._queue] += len(keys)
            columns = decode_add(body, 0, len(body), Rules.RECORD)
            self._append(AddTasks(self.queues[self._queue], first_id, columns))
            self._batch, self._size = [], 0

    def _append(self, change: Change) -> None:
        self.entries += 1
        record = record_of(change, Stamp(self.entries, 1, 0), self._previous)
        self._previous = head_checksum(record)
        self._new.write_log(self._writer.append(record, change))


@contextmanager
def new_task_log(
    out: Path, to: str, *, source: Path, what: str, title: str
) -> Iterator[TaskLog | RecordLog]:
    """Write a new directory of format ``to``; it is complete when the block ends.

    ``what`` names the tasks of ``source`` in a refusal, ``title`` its system. Raises ``CannotConvert`` and ``PathRefused``.
    """
    if to != FORMAT:
        with new_delta_log(out, variant_of(to, title), source=source, what=what) as log:
            yield log
        return
    with new_directory(out, source=source) as new:
        records = RecordLog(new)
        yield records
        records.finish()


def written_as(to: str, out: Path, entries: int, queues: int, tasks: int, title: str) -> Row:
    """Return the row of a conversion to a new directory of format ``to``."""
    if to == FORMAT:
        return written_row(out, entries, None, queues, tasks)
    return written(variant_of(to, title), out, entries, None, queues, tasks)
