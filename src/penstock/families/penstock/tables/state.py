"""The table of tasks: what the queues hold after an entry, each queue in its order of delivery."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.families import arrow
from penstock.families.penstock.family import NAME as FAMILY
from penstock.families.penstock.location import resolve
from penstock.families.penstock.read import survey
from penstock.families.penstock.replay import replay
from penstock.families.penstock.rows import headers_as_json, iso, reason_words
from penstock.families.penstock.tables.plan import StatePlan
from penstock.families.tables import ReadOptions, Table, schema_of
from penstock.formats.records.ids import DeliverReason
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.queue import Queue
from penstock.queues.columnar.state import State
from penstock.queues.columnar.task import Task, task_at

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 16_384
"""Rows of a batch."""

Properties = list[tuple[str, str]]


def read_state(
    source: str, plan: StatePlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the tasks of every queue. Raises ``BadData`` for damage that hides them."""
    state = replay(survey(resolve(Path(plan.path))), at=plan.at).state
    for queue in sorted(state.queues.values(), key=lambda each: each.name):
        name = queue.name.decode()
        if options.filters.wants_queue(name):
            yield from _Rows(source, state, queue, columns).batches()


class _Rows:
    """Collects the tasks of a queue into batches."""

    def __init__(self, source: str, state: State, queue: Queue, columns: Sequence[str]) -> None:
        self._queue = queue
        self._columns = columns
        self._constants = {
            "source": source,
            "family": FAMILY,
            "log_index": state.index,
            "term": state.term,
            "queue": queue.name.decode(),
        }
        self._wants = {name: name in columns for name in ("payload", "properties")}
        self._clear()

    def _clear(self) -> None:
        self._keys: list[int] = []
        self._ids: list[int] = []
        self._payloads: list[Any] = []
        self._times: list[int | None] = []
        self._properties: list[Properties] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        for key, chunk, places in self._queue.in_order():
            if chunk.details is None:
                self._put_plain(key, chunk, places)
            else:
                for place in places:
                    self._put(task_at(chunk, place))
            if len(self._keys) >= ROWS:
                yield self._batch()
        if self._keys:
            yield self._batch()

    def _put_plain(self, key: int, chunk: Chunk, places: range | list[int]) -> None:
        """Take tasks that have nothing of their own but id and payload: most of them, so this is quick."""
        count = len(places)
        self._keys += [key] * count
        self._ids += chunk.ids_at(places)
        if self._wants["payload"]:
            self._payloads += [chunk.payload_at(place) for place in places]
        self._times += [chunk.enqueued_ms or None] * count
        if self._wants["properties"]:
            shared = self._shared(chunk.principal_id, chunk.entry)
            self._properties += [shared] * count

    def _shared(self, principal_id: int, entry: int) -> Properties:
        found = [("queue_id", str(self._queue.id)), ("entry", str(entry))]
        return found + ([("principal_id", str(principal_id))] if principal_id else [])

    def _put(self, task: Task) -> None:
        self._keys.append(task.key)
        self._ids.append(task.id)
        if self._wants["payload"]:
            self._payloads.append(task.payload)
        self._times.append(task.enqueued_ms or None)
        if self._wants["properties"]:
            self._properties.append(self._shared(task.principal_id, task.entry) + _details(task))

    def _batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        kinds = schema_of(Table.TASKS)
        count = len(self._keys)
        made = {
            "key": lambda: pa.array(self._keys, pa.int64()),
            "task_id": lambda: pa.array(self._ids, pa.uint64()).view(pa.int64()),
            "payload": lambda: pa.array(self._payloads, pa.binary()),
            "event_time": lambda: pa.array(self._times, pa.timestamp("ms", tz="UTC")).cast(
                pa.timestamp("us", tz="UTC")
            ),
            "properties": lambda: pa.array(self._properties, kinds.field("properties").type),
        }
        found = {
            name: made[name]()
            if name in made
            else arrow.same(self._constants.get(name), count, kinds.field(name).type)
            for name in self._columns
        }
        self._clear()
        return arrow.batch(found, self._columns)


def _details(task: Task) -> Properties:
    """Return what is known of a task beyond its payload, as far as it is not the default."""
    found: Properties = []
    if task.attempts:
        found.append(("attempts", str(task.attempts)))
    for name, time_ms in (("not_before", task.not_before_ms), ("expires", task.expires_ms)):
        if time_ms is not None:
            found.append((name, iso(time_ms)))
    if task.headers:
        found.append(("headers", json.dumps(headers_as_json(task.headers), separators=(",", ":"))))
    if task.born is not None:
        found += [("born_queue_id", str(task.born[0])), ("born_id", str(task.born[1]))]
    if task.origin:
        found.append(("origin", task.origin.decode(errors="replace")))
    if task.mark is not None:
        found += [
            ("delivery", reason_words(DeliverReason(task.mark.reason))),
            ("consumer", task.mark.consumer.decode()),
            ("deadline", iso(task.mark.deadline_ms)),
        ]
    return found
