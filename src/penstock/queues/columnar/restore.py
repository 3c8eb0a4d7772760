"""Restoring a state from the records of a snapshot.

The records come from a disk or another member. The reader has compared checksums, chain and digest; what the records say of
each other is checked here before it is believed.
"""

from __future__ import annotations

from penstock.binary import Bytes
from penstock.errors import BadRecord
from penstock.formats.records.changes import (
    AddTasks,
    Deliver,
    SetAccess,
    SetMembers,
    SetQueue,
    decode_change,
)
from penstock.formats.records.header import Header, Kind
from penstock.formats.records.producers import decode_producers
from penstock.formats.records.read import Snapshot
from penstock.formats.records.settings import SnapshotStart
from penstock.queues.columnar.chunk import chunk_of
from penstock.queues.columnar.columns import clamped
from penstock.queues.columnar.details import Mark
from penstock.queues.columnar.envelope import is_next, last_id_of
from penstock.queues.columnar.queue import Queue
from penstock.queues.columnar.state import State


def restore(data: Bytes, snapshot: Snapshot) -> State:
    """Return the state of a snapshot file that was read from ``data``. Raises ``BadRecord``."""
    restoring = Restore(snapshot.start)
    for record in snapshot.records:
        restoring.feed(record.header, data, *record.body)
    return restoring.finish()


class Restore:
    """Takes the records between start and end of a snapshot, in their order, and builds the state."""

    def __init__(self, start: SnapshotStart) -> None:
        state = State()
        state.index, state.term, state.time_ms = start.last_index, start.last_term, start.time_ms
        state.next_queue_id = start.next_queue_id
        self._state = state
        self._start = start
        self._last_ids: dict[int, int] = {}  # what kind 5 says; no task has a higher id

    def finish(self) -> State:
        """Return the state. Raises ``BadRecord`` if it does not hold what the start of the snapshot says."""
        state = self._state
        queues = state.queues.values()
        found = {
            "queues": len(queues),
            "tasks": sum([queue.count for queue in queues]),
            "producers": state.producers.count,
        }
        if found != dict(self._start.counts):
            raise BadRecord(
                "the snapshot does not hold what its start says",
                expected=str(dict(self._start.counts)),
                found=str(found),
            )
        for queue in queues:
            queue.last_id = self._last_ids[queue.id]
        state.list_all()
        return state

    def feed(self, header: Header, data: Bytes, start: int, end: int) -> None:
        """Take one record, whose body is ``data[start:end]``. Raises ``BadRecord``."""
        if header.kind == Kind.PRODUCERS:
            self._add_producers(data, start, end)
        else:
            self._add_change(header, data, start, end)

    def _add_producers(self, data: Bytes, start: int, end: int) -> None:
        for request in decode_producers(data, start, end).rows():
            self._state.producers.record(
                request.producer,
                sequence=request.sequence,
                queue_id=request.queue_id,
                first_id=request.first_id,
                count=request.count,
                time_ms=request.time_ms,
            )

    def _add_change(self, header: Header, data: Bytes, start: int, end: int) -> None:
        state = self._state
        change = decode_change(header, data, start, end)
        match change:
            case SetMembers(settings):
                state.members = settings
            case SetAccess(access):
                state.access = access
            case SetQueue():
                self._add_queue(change, start)
            case AddTasks():
                self._add_tasks(header, change, start)
            case Deliver(queue_id, ids, reason, consumer, deadline):
                queue = self._queue(queue_id, start)
                mark = Mark(reason, consumer, clamped(header.time_ms + deadline))
                if queue.deliver(ids, mark):
                    raise BadRecord("a delivery of tasks that the snapshot lacks", offset=start)
            case _:
                raise BadRecord(f"a snapshot cannot contain kind {header.kind}", offset=start)

    def _add_queue(self, change: SetQueue, start: int) -> None:
        state, last_id = self._state, change.settings.last_id
        is_known = change.queue_id in state.queues or change.settings.name.encode() in state.by_name
        if is_known or last_id is None or change.queue_id >= state.next_queue_id:
            raise BadRecord("a queue that a snapshot cannot have", offset=start)
        state.add_queue(change.queue_id, change.settings)
        self._last_ids[change.queue_id] = last_id

    def _add_tasks(self, header: Header, change: AddTasks, start: int) -> None:
        queue = self._queue(change.queue_id, start)
        last_id = last_id_of(change)
        if (
            not is_next(change.first_id, last_id, queue.last_id)
            or last_id > self._last_ids[queue.id]
        ):
            raise BadRecord("tasks whose ids do not ascend", offset=start)
        queue.add(
            chunk_of(
                change.first_id,
                change.body,
                entry=header.index,
                time_ms=header.time_ms,
                principal_id=0,
            )
        )

    def _queue(self, queue_id: int, start: int) -> Queue:
        queue = self._state.queues.get(queue_id)
        if queue is None:
            raise BadRecord(f"queue {queue_id} is missing in front of its tasks", offset=start)
        return queue
