"""A snapshot of TaskFlux's as rows: its queues and their tasks. No task is ever an object here."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadData
from penstock.families import arrow
from penstock.families.damage import Severity
from penstock.families.tables import OK, Kind, Mode, Op, ReadOptions, Table, schema_of
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.read import read_pages
from penstock.families.taskflux.tables.plan import SnapshotPlan
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.snapshot import SnapshotLayout, encode_head
from penstock.formats.taskflux.snapshot_decode import SnapshotHeader, TaskColumns, scan_snapshot
from penstock.model import Implementation, QueueHead, QueueName, policy_fields
from penstock.queues.replay import numbers_of
from penstock.storage.files import opened

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_PAGED: Final = Implementation.PAGED
_QUEUES_PER_BATCH: Final = 1024
"""Heads that make up a batch where queues without tasks follow each other: each is a few hundred bytes."""


def read(
    source: str,
    plan: SnapshotPlan,
    options: ReadOptions,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a snapshot; damage is the last of them."""
    reading = _Reading(source, plan, columns, options)
    try:
        yield from reading.batches()
    except BadData as error:
        if options.mode is Mode.FAILFAST:
            raise
        is_told = options.mode is Mode.PERMISSIVE and options.table is Table.ENTRIES
        if is_told and options.filters.is_open:
            yield reading.damage(error)


class _Reading:
    """One pass over a snapshot file."""

    def __init__(
        self, source: str, plan: SnapshotPlan, columns: Sequence[str], options: ReadOptions
    ) -> None:
        import pyarrow as pa

        self._source = source
        self._plan = plan
        self._wanted = columns
        self._layout = SnapshotLayout[plan.layout]
        schema = schema_of(Table.ENTRIES)
        self._schema = pa.schema([schema.field(name) for name in columns])
        self._table = options.table
        self._filters = options.filters
        self._heads: list[QueueHead] = []  # in the order of the file
        self._notes: list[TaskColumns] = []  # as they stand in the file

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are wanted. Raises ``BadData`` behind the last that could be read."""
        heads: list[dict[str, Any]] = []
        try:
            for row in self._scan():
                is_task = isinstance(row, TaskColumns)
                if heads and (is_task or len(heads) == _QUEUES_PER_BATCH):
                    yield self._built(heads)
                    heads = []
                if isinstance(row, TaskColumns):
                    yield self._tasks(row)
                else:
                    heads.append(row)
        except BadData:
            if heads:
                yield self._built(heads)
            raise
        if heads:
            yield self._built(heads)
        yield from self._paged()

    def _scan(self) -> Iterator[dict[str, Any] | TaskColumns]:
        """Yield the row of each queue and the columns of its tasks, as far as they are wanted."""
        # A head is as long as its encoding; where tasks stand they say themselves.
        offset = self._layout.state_offset + 4 * self._layout.is_counted
        with opened(Path(self._plan.path)) as file:
            for event in scan_snapshot(file.read, file.size(), self._layout):
                if isinstance(event, TaskColumns):
                    if event.head.name == notes.QUEUE:
                        self._notes.append(event)
                    if self._wants(Op.TASK, event.head):
                        yield event
                    offset = event.base + int(event.offset[-1] + event.size[-1])
                elif not isinstance(event, SnapshotHeader):
                    self._heads.append(event)
                    size = len(encode_head(event, self._layout.form))
                    if self._wants(Op.QUEUE, event):
                        yield self._head(event, offset, size)
                    offset += size

    def _wants(self, op: Op, head: QueueHead) -> bool:
        filters = self._filters
        if head.name == notes.QUEUE and self._table is not Table.ENTRIES:
            return False
        if filters.ops is not None and op not in filters.ops:
            return False
        return filters.wants_queue(head.name)

    def _head(self, head: QueueHead, offset: int, size: int) -> dict[str, Any]:
        properties = {name: str(value) for name, value in policy_fields(head.policy).items()}
        properties["count"] = str(head.count)
        if self._layout.form.has_ids:
            properties["last_id"] = str(head.last_id)
        return self._place() | {
            "kind": Kind.QUEUE,
            "op": Op.QUEUE,
            "offset": offset,
            "size": size,
            "queue": head.name,
            "properties": list(properties.items()),
        }

    def _tasks(self, tasks: TaskColumns) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        everywhere = np.ones(len(tasks), dtype=np.bool_)

        def payload() -> pa.Array:
            return arrow.stretches(
                tasks.data, tasks.payload_offset, tasks.payload_size, everywhere, pa.binary()
            )

        def of(values: NDArray[Any]) -> Callable[[], pa.Array]:
            return lambda: arrow.numbers(values, everywhere)

        makers: dict[str, Callable[[], pa.Array]] = {
            "offset": of(tasks.offset + tasks.base),
            "size": of(tasks.size),
            "task_id": of(tasks.task_id.view(np.int64)),
            "key": of(tasks.key),
            "payload": payload,
        }
        return self._of_tasks(tasks.head.name, len(tasks), makers)

    def _of_tasks(
        self, queue: QueueName, count: int, makers: dict[str, Callable[[], pa.Array]]
    ) -> pa.RecordBatch:
        """Return rows of one queue's tasks; what no maker makes is the same in all of them."""
        constants = self._place() | {"kind": Kind.TASK, "op": Op.TASK, "queue": queue}
        made = {
            field.name: makers[field.name]()
            if field.name in makers
            else arrow.same(constants.get(field.name), count, field.type)
            for field in self._schema
        }
        return arrow.batch(made, self._wanted)

    def _paged(self) -> Iterator[pa.RecordBatch]:
        """Yield the tasks of paged queues, which a snapshot names and their pages hold. Raises ``BadData``."""
        paged = {head.name for head in self._heads if head.policy.implementation is _PAGED}
        wanted = {head.name for head in self._heads if self._wants(Op.TASK, head)}
        if not paged & wanted:
            return
        told = [note for columns in self._notes for note in _notes(columns)]
        numbers = numbers_of([head.name for head in self._heads], told)
        chosen = {number: name for number, name in numbers.items() if name in paged & wanted}
        for some in read_pages(Path(self._plan.path), self._plan.point, chosen):
            yield self._of_pages(*some)

    def _of_pages(
        self, queue: QueueName, first: int, keys: array[int], payloads: list[bytes]
    ) -> pa.RecordBatch:
        import pyarrow as pa

        makers: dict[str, Callable[[], pa.Array]] = {
            "size": lambda: pa.array(map(len, payloads), pa.int64()),
            "task_id": lambda: pa.array(range(first, first + len(keys)), pa.int64()),
            "key": lambda: pa.array(keys, pa.int64()),
            "payload": lambda: pa.array(payloads, pa.binary()),
        }
        return self._of_tasks(queue, len(keys), makers)

    def _place(self) -> dict[str, Any]:
        return {
            "source": self._source,
            "family": FAMILY,
            "path": self._plan.shown,
            "log_index": self._plan.point.index,
            "term": self._plan.point.term,
            "status": OK,
        }

    def _built(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        import pyarrow as pa

        return pa.RecordBatch.from_pylist(rows, schema=self._schema)

    def damage(self, error: BadData) -> pa.RecordBatch:
        """Return the row of what cannot be read."""
        row = self._place() | {
            "kind": Kind.DAMAGE,
            "offset": error.offset,
            "log_index": None,
            "term": None,
            "status": "bad-snapshot",
            "reason": str(error),
            "severity": Severity.LOST,
        }
        return self._built([row])


def _notes(columns: TaskColumns) -> Iterator[notes.Note]:
    """Yield a snapshot's own notes; there are few, and nobody but us writes them."""
    for row in range(len(columns)):
        start, size = int(columns.payload_offset[row]), int(columns.payload_size[row])
        payload = columns.data[start : start + size].tobytes()
        yield notes.decode_note(int(columns.key[row]), payload)
