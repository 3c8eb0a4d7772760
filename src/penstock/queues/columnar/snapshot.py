"""The canonical snapshot of a state: equal state gives equal bytes, however it came about.

A frozen view is taken in the turn and costs a tuple of references; records are encoded from it beside the turn, chunk by
chunk. A change copies a chunk before it writes to one that a view has.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from penstock.formats.records.changes import (
    Deliver,
    EncodedChange,
    SetAccess,
    SetMembers,
    SetQueue,
    encode_change,
)
from penstock.formats.records.header import Kind
from penstock.formats.records.ids import DeliverReason
from penstock.formats.records.producers import COUNT_MAX as PRODUCERS_MAX
from penstock.formats.records.producers import encode_producers
from penstock.formats.records.settings import (
    CLUSTER_ID_SIZE,
    AccessSettings,
    ClusterSettings,
    QueueSettings,
    SnapshotStart,
)
from penstock.formats.records.writer import write_snapshot
from penstock.queues.columnar.body import add_body
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.details import Mark
from penstock.queues.columnar.directory import Slice
from penstock.queues.columnar.gather import gather, grouped
from penstock.queues.columnar.producers import Shards, requests_of
from penstock.queues.columnar.runs import packed
from penstock.queues.columnar.state import State

TASKS_MAX: Final = 4096
"""Tasks of one record. A constant of the feature level: other values give other bytes."""

PAYLOADS_MAX: Final = 1 << 20
"""Bytes of payloads of one record, unless one task has more."""


class FrozenQueue(NamedTuple):
    """A queue as a view has it."""

    id: int
    settings: QueueSettings
    last_id: int
    chunks: tuple[Chunk, ...]


class View(NamedTuple):
    """A state as it was when it was frozen."""

    last_index: int
    term: int
    time_ms: int
    next_queue_id: int
    members: ClusterSettings | None
    access: AccessSettings | None
    producers: Shards
    queues: tuple[FrozenQueue, ...]
    counts: dict[str, int]  # queues, tasks, producers


def freeze(state: State) -> View:
    """Return a view of a state that later changes do not touch."""
    queues = [state.queues[queue_id] for queue_id in sorted(state.queues)]
    return View(
        last_index=state.index,
        term=state.term,
        time_ms=state.time_ms,
        next_queue_id=state.next_queue_id,
        members=state.members,
        access=state.access,
        producers=state.producers.freeze(),
        queues=tuple(
            [FrozenQueue(q.id, q.settings, q.last_id, q.directory.freeze()) for q in queues]
        ),
        counts={
            "queues": len(queues),
            "tasks": sum([queue.count for queue in queues]),
            "producers": state.producers.count,
        },
    )


def encode_snapshot(view: View, *, last_checksum: int) -> Iterator[bytes]:
    """Yield the pieces of the snapshot file of a view.

    ``last_checksum`` is the head checksum of the last entry, to which the next one chains.
    """
    members = view.members
    cluster_id = None if members is None else members.cluster_id
    start = SnapshotStart(
        last_index=view.last_index,
        last_term=view.term,
        last_checksum=last_checksum,
        time_ms=view.time_ms,
        next_queue_id=view.next_queue_id,
        feature_level=0 if members is None else members.feature_level,
        cluster_id=cluster_id or bytes(CLUSTER_ID_SIZE),
        counts=view.counts,
    )
    return write_snapshot(start, _parts(view))


def _parts(view: View) -> Iterator[EncodedChange]:
    if view.members is not None:
        yield encode_change(SetMembers(view.members))
    if view.access is not None:
        yield encode_change(SetAccess(view.access))
    producers = requests_of(view.producers)
    while batch := list(islice(producers, PRODUCERS_MAX)):
        yield EncodedChange(Kind.PRODUCERS, 0, 0, encode_producers(batch))
    for queue in view.queues:
        yield from _queue(view, queue)


def _queue(view: View, queue: FrozenQueue) -> Iterator[EncodedChange]:
    settings = replace(queue.settings, last_id=queue.last_id)
    yield encode_change(SetQueue(queue.id, settings))
    name = queue.settings.name.encode()
    slices: Iterator[Slice] = ((chunk, chunk.alive(range(chunk.count))) for chunk in queue.chunks)
    for group in grouped(slices, count_max=TASKS_MAX, size_max=PAYLOADS_MAX):
        chunk = gather(group, view.time_ms)
        body = add_body(name, chunk, index=view.last_index)
        yield EncodedChange(Kind.ADD, queue.id, chunk.first, body)
    yield from _marks(view, queue)


def _marks(view: View, queue: FrozenQueue) -> Iterator[EncodedChange]:
    """Yield one record for each delivery that is marked, ordered by the first id."""
    found: dict[Mark, list[int]] = {}
    for chunk in queue.chunks:
        marks = None if chunk.details is None else chunk.details.marks
        for place, mark in enumerate(marks or ()):
            if mark is not None and not chunk.status[place]:
                found.setdefault(mark, []).append(chunk.id_at(place))
    changes = [
        Deliver(
            queue.id,
            _as_ids(ids[at : at + TASKS_MAX]),
            DeliverReason(mark.reason),
            mark.consumer,
            mark.deadline_ms - view.time_ms,
        )
        for mark, ids in found.items()
        for at in range(0, len(ids), TASKS_MAX)
    ]
    for change in sorted(changes, key=lambda change: change.ids[0]):
        yield encode_change(change)


def _as_ids(ids: list[int]) -> range | array[int]:
    run = packed(ids)
    return range(run, run + 1) if isinstance(run, int) else run
