"""The state machine: queues, producers, members and access, changed by ``State.apply`` alone, live and in replay.

``apply`` is deterministic and complete: it checks before it changes anything. A queue or an id that is missing makes a change
have no effect for it; that is counted, the same on every member, and is never an exception.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, assert_never

from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Deliver,
    Empty,
    Envelope,
    MoveTasks,
    RemoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    SetTasks,
    Stamp,
)
from penstock.formats.records.ids import RemoveReason, ReturnReason
from penstock.formats.records.settings import AccessSettings, ClusterSettings, QueueSettings
from penstock.queues.columnar.chunk import chunk_of
from penstock.queues.columnar.columns import clamped
from penstock.queues.columnar.details import Mark
from penstock.queues.columnar.directory import Page
from penstock.queues.columnar.envelope import Judge, is_next, last_id_of
from penstock.queues.columnar.merge import merge_step
from penstock.queues.columnar.move import move
from penstock.queues.columnar.producers import Producers
from penstock.queues.columnar.queue import Queue, drop_chunks

TIDY_BUDGET: Final = 1024
"""What one call of ``tidy`` does by default, in tasks: well below a millisecond."""


class State:
    """Everything that the log determines, after some entry of it."""

    def __init__(self) -> None:
        self.index = 0  # of the last entry that was applied
        self.term = 0
        self.time_ms = 0  # the log clock
        self.queues: dict[int, Queue] = {}
        self.by_name: dict[bytes, Queue] = {}
        self.next_queue_id = 1
        self.producers = Producers()
        self.members: ClusterSettings | None = None
        self.access: AccessSettings | None = None
        self.without_effect = (
            0  # ids, tasks and changes that met a missing queue or task: a metric, not state
        )
        self._untidy: dict[int, Queue] = {}  # queues that changed since they were tidied
        self._dropped: deque[Queue] = deque()  # deleted queues that are freed in slices
        self._dropped_pages: list[Page] = []

    def apply(self, change: Change, stamp: Stamp) -> int:
        """Change the state. Return how many ids, tasks or changes had no effect."""
        if stamp.term != self.term:
            self.term = stamp.term
            for queue in self.queues.values():
                queue.begin_term()
        self.index = stamp.index
        self.time_ms = stamp.time_ms
        missing = self._apply(change, stamp)
        self.without_effect += missing
        return missing

    def _apply(self, change: Change, stamp: Stamp) -> int:
        match change:
            case AddTasks():
                return self._add(change, stamp)
            case RemoveTasks():
                return self._remove(change, stamp)
            case ReturnTasks() | MoveTasks() | SetTasks() | Deliver():
                return self._change_tasks(change, stamp)
            case Envelope():
                return self._apply_all(change, stamp)
            case SetQueue():
                return self._set_queue(change)
            case DeleteQueue():
                return self._delete_queue(change)
            case SetMembers(settings=settings):
                known = None if self.members is None else self.members.cluster_id
                if settings.cluster_id is None and known is not None:
                    settings = replace(settings, cluster_id=known)
                self.members = settings
                return 0
            case SetAccess(settings=access):
                self.access = access
                return 0
            case Empty():
                return 0
            case _ as never:
                assert_never(never)

    def _add(self, change: AddTasks, stamp: Stamp) -> int:
        queue_id, first_id, body = change
        queue = self.queues.get(queue_id)
        if queue is None or not is_next(first_id, last_id_of(change), queue.last_id):
            return body.count
        queue.add(
            chunk_of(
                first_id,
                body,
                entry=stamp.index,
                time_ms=stamp.time_ms,
                principal_id=stamp.principal_id,
            )
        )
        self._untidy[queue_id] = queue
        if body.extra is not None:
            for producer, sequence, request_id, count in body.requests(first_id):
                self.producers.record(
                    producer,
                    sequence=sequence + count - 1,
                    queue_id=queue_id,
                    first_id=request_id,
                    count=count,
                    time_ms=stamp.time_ms,
                )
        return 0

    def _remove(self, change: RemoveTasks, stamp: Stamp) -> int:
        queue = self.queues.get(change.queue_id)
        if queue is None:
            return 1 if change.is_span else len(change.ids)
        self._untidy[queue.id] = queue
        if not change.is_span:
            return queue.remove(change.ids)
        assert isinstance(change.ids, range)
        if change.reason == RemoveReason.EXPIRED:
            queue.remove_expired(change.ids, stamp.time_ms)
        else:
            self._dropped_pages += queue.remove_span(change.ids)
        return 0

    def _change_tasks(
        self, change: ReturnTasks | MoveTasks | SetTasks | Deliver, stamp: Stamp
    ) -> int:
        queue = self.queues.get(change.queue_id)
        if queue is None:
            return len(change.ids)
        self._untidy[queue.id] = queue
        now_ms = stamp.time_ms
        match change:
            case ReturnTasks(_, ids, reason, not_before, keys):
                queue.return_(ids, is_attempt=reason != ReturnReason.RELEASED)
                return queue.set(ids, now_ms=now_ms, keys=keys, not_before=not_before)
            case SetTasks(_, ids, keys, not_before, expires, headers):
                return queue.set(
                    ids,
                    now_ms=now_ms,
                    keys=keys,
                    not_before=not_before,
                    expires=expires,
                    headers=headers,
                )
            case Deliver(_, ids, reason, consumer, deadline):
                return queue.deliver(ids, Mark(reason, consumer, clamped(now_ms + deadline)))
            case MoveTasks():
                return self._move(queue, change, now_ms)
            case _ as never:
                assert_never(never)

    def _move(self, queue: Queue, change: MoveTasks, now_ms: int) -> int:
        destination = self.queues.get(change.destination_id)
        first_id = change.first_destination_id
        count = len(change.ids)
        if destination is None or not is_next(first_id, first_id + count - 1, destination.last_id):
            return count
        self._untidy[destination.id] = destination
        return move(queue, destination, change, now_ms)

    def _apply_all(self, envelope: Envelope, stamp: Stamp) -> int:
        if not Judge(self.queues).is_possible(envelope):
            return len(envelope.parts)
        for change, principal_id, _ in envelope.parts:
            missing = self._apply(change, stamp._replace(principal_id=principal_id))
            assert not missing
        return 0

    def _set_queue(self, change: SetQueue) -> int:
        """Create or alter a queue. An id that was used before is not used again, and a name never changes."""
        queue_id, settings = change
        name = settings.name.encode()
        queue = self.queues.get(queue_id)
        if queue is not None:
            if queue.name != name:
                return 1
            queue.settings = replace(settings, last_id=None)
            return 0
        if queue_id < self.next_queue_id or name in self.by_name:
            return 1
        self.add_queue(queue_id, settings)
        self.next_queue_id = queue_id + 1
        return 0

    def add_queue(self, queue_id: int, settings: QueueSettings) -> None:
        """Add a queue whose id and name are free; for ``apply`` and for a restore."""
        queue = Queue(queue_id, replace(settings, last_id=None))  # it counts its ids itself
        self.queues[queue_id] = queue
        self.by_name[queue.name] = queue

    def _delete_queue(self, change: DeleteQueue) -> int:
        queue = self.queues.pop(change.queue_id, None)
        if queue is None:
            return 1
        del self.by_name[queue.name]
        self._untidy.pop(queue.id, None)
        self._dropped.append(queue)
        return 0

    # Housekeeping.

    def merge_all(self) -> None:
        """Do all merges and compactions that are due. A replay calls this now and then, and ``list_all`` at its end.

        So it does not list what it removes later, and removals find fewer chunks.
        """
        for queue in self._untidy.values():
            while merge_step(queue):
                pass

    def list_all(self) -> None:
        """Bring the order of all queues up to date at once: for a start."""
        for queue in self.queues.values():
            queue.list_all()

    def tidy(self, budget: int = TIDY_BUDGET) -> bool:
        """Do a slice of the housekeeping that is due, about ``budget`` tasks of it; return whether more is left.

        Merges small chunks, compacts sparse ones, brings the order up to date, frees what was deleted. Nothing of it is
        visible. A node calls this in every turn.
        """
        while budget > 0:
            if self._dropped_pages:
                drop_chunks(self._dropped_pages, budget)
                return True
            if self._dropped:
                if not self._dropped[0].drop(budget):
                    self._dropped.popleft()
                return True
            queue = next(iter(self._untidy.values()), None)
            if queue is None:
                return False
            steps = merge_step(queue) or queue.tidy_order(budget)
            if not steps:
                del self._untidy[queue.id]
            budget -= steps
        return True
