"""A new directory of a node that holds tasks of other files: queues without limits, and one add for each task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import CannotConvert
from penstock.families.taskflux.new_directory import NewDirectory, new_directory
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import Variant
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    AddTask,
    CreateQueue,
    HardState,
    QueueName,
    Term,
)

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
def new_task_log(out: Path, to: Variant, *, source: Path, what: str) -> Iterator[TaskLog]:
    """Write a new directory; it is complete when the block ends. ``what`` names the tasks of ``source`` in a refusal.

    Raises ``CannotConvert`` and ``PathRefused``.
    """
    if to.generation is Generation.ONE:
        raise CannotConvert(
            f"{what} are not written as generation 1; choose taskflux-2 or taskflux-3"
        )
    with new_directory(out, to, source=source) as new:
        yield TaskLog(new)
        new.commit()
        new.write_metadata(HardState(term=TERM))
