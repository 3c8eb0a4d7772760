"""One task as a value: for tools, for looking at a queue, for tests. Nothing on the hot path makes one."""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.records.add import GROUP, HEADERS, ORIGIN, UNIQUE
from penstock.formats.records.task_headers import decode_headers
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.details import Details, Mark, time_at


class Task(NamedTuple):
    """Everything that the state knows of a task. Times are absolute."""

    id: int
    key: int
    payload: bytes
    not_before_ms: int | None
    expires_ms: int | None
    headers: dict[str, bytes]
    group: bytes
    unique_key: bytes
    attempts: int
    enqueued_ms: int  # 0: unknown
    principal_id: int
    entry: int  # index of the entry that added the task
    born: tuple[int, int] | None  # queue id and id of its first add; None if it was never moved
    origin: bytes  # canonical JSON of the last hop; empty if there was none
    mark: Mark | None  # its delivery, where deliveries are logged


def task_at(chunk: Chunk, place: int) -> Task:
    """Return a task of a chunk."""
    details = chunk.details or Details()
    enqueued_ms, principal_id, entry = chunk.enqueued_ms, chunk.principal_id, chunk.entry
    sources = details.sources
    if sources is not None:
        line = sources.line(place)
        enqueued_ms = sources.enqueued[line]
        principal_id, entry = sources.principals[line], sources.entries[line]
    born = None
    if (
        details.born_queues is not None
        and details.born_ids is not None
        and details.born_queues[place]
    ):
        born = (details.born_queues[place], details.born_ids[place])
    return Task(
        id=chunk.id_at(place),
        key=chunk.key_at(place),
        payload=bytes(chunk.payload_at(place)),
        not_before_ms=time_at(details.not_before, place, chunk.base_ms),
        expires_ms=time_at(details.expires, place, chunk.base_ms),
        headers=decode_headers(details.string(HEADERS, place)),
        group=details.string(GROUP, place),
        unique_key=details.string(UNIQUE, place),
        attempts=0 if details.attempts is None else details.attempts[place],
        enqueued_ms=enqueued_ms,
        principal_id=principal_id,
        entry=entry,
        born=born,
        origin=details.string(ORIGIN, place),
        mark=None if details.marks is None else details.marks[place],
    )
