"""Whether every part of an envelope can take effect: all of them do, or none.

Parts are judged by the state in front of the envelope. An id that an earlier part removes or moves is missing for a later one,
and ids that an earlier part adds cannot be named by a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from penstock.formats.records.add import IDS
from penstock.formats.records.changes import (
    AddTasks,
    Envelope,
    MoveTasks,
    RemoveTasks,
    ReturnTasks,
    SetTasks,
    TaskChange,
)
from penstock.queues.columnar.columns import Ids
from penstock.queues.columnar.queue import Queue

ID_MAX: Final = 2**53
"""The last id of a queue: a snapshot writes it in canonical JSON, whose integers end there."""


def last_id_of(change: AddTasks) -> int:
    """Return the last id that an add gives out."""
    body = change.body
    if body.columns & IDS and body.extra is not None:
        last_id: int = body.extra[IDS][-1]
        return last_id
    return change.first_id + body.count - 1


def is_next(first_id: int, last_id: int, known: int) -> bool:
    """Return whether ids can be given out by a queue whose last one is ``known``."""
    return known < first_id <= last_id <= ID_MAX


class Judge:
    """Follows the parts of one envelope."""

    def __init__(self, queues: Mapping[int, Queue]) -> None:
        self._queues = queues
        self._last_ids: dict[int, int] = {}
        self._used: dict[
            int, list[range | frozenset[int]]
        ] = {}  # by queue: ids that a part takes away

    def is_possible(self, envelope: Envelope) -> bool:
        return all(self._is_possible(part.change) for part in envelope.parts)

    def _is_possible(self, change: TaskChange) -> bool:
        queue = self._queues.get(change.queue_id)
        if queue is None:
            return False
        match change:
            case AddTasks():
                return self._reserve(queue, change.first_id, last_id_of(change))
            case RemoveTasks(is_span=True, ids=ids):
                assert isinstance(ids, range)
                self._used.setdefault(queue.id, []).append(ids)
                return True
            case RemoveTasks(ids=ids):
                return self._has(queue, ids, is_taken=True)
            case MoveTasks(ids=ids):
                destination = self._queues.get(change.destination_id)
                first_id = change.first_destination_id
                return (
                    self._has(queue, ids, is_taken=True)
                    and destination is not None
                    and self._reserve(destination, first_id, first_id + len(ids) - 1)
                )
            case ReturnTasks(ids=ids) | SetTasks(ids=ids):
                return self._has(queue, ids, is_taken=False)
            case _ as never:
                assert_never(never)

    def _reserve(self, queue: Queue, first_id: int, last_id: int) -> bool:
        if not is_next(first_id, last_id, self._last_ids.get(queue.id, queue.last_id)):
            return False
        self._last_ids[queue.id] = last_id
        return True

    def _has(self, queue: Queue, ids: Ids, *, is_taken: bool) -> bool:
        """Return whether a queue has all of some tasks, and no earlier part takes one of them away."""
        if sum([len(places) for _, places in queue.alive(ids)]) != len(ids):
            return False
        used = self._used.get(queue.id, [])
        if any(_meet(ids, other) for other in used):
            return False
        if is_taken:
            self._used.setdefault(queue.id, []).append(
                ids if isinstance(ids, range) else frozenset(ids)
            )
        return True


def _meet(ids: Ids, used: range | frozenset[int]) -> bool:
    if isinstance(ids, range) and isinstance(used, range):
        return ids.start < used.stop and used.start < ids.stop
    return any(task_id in used for task_id in ids)
