"""A snapshot of TaskFlux's as rows: its queues and their tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadData
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.snapshot import (
    Batch,
    SnapshotHeader,
    SnapshotLayout,
    decode_snapshot,
    encode_head,
)
from penstock.model import QueueHead
from penstock.spark import arrow
from penstock.spark.columns import OK, Kind, Op, Table, schema_of
from penstock.spark.filters import Filters
from penstock.spark.options import Mode, ReadOptions
from penstock.spark.taskflux.planning import SnapshotPlan
from penstock.tools.rows import policy_fields
from penstock.tools.target import FAMILY, opened

if TYPE_CHECKING:
    import pyarrow as pa

_QUEUES_PER_BATCH: Final = 1024


def read(
    source: str,
    plan: SnapshotPlan,
    options: ReadOptions,
    filters: Filters,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a snapshot; damage is the last of them."""
    import pyarrow.compute as pc

    reading = _Reading(source, plan, columns, options.table)
    try:
        for built in reading.batches():
            if filters.queues is not None or filters.ops is not None:
                mask = None
                for name, wanted in (("queue", filters.queues), ("op", filters.ops)):
                    if wanted is None:
                        continue
                    test = pc.is_in(built[name], value_set=_strings(wanted))
                    mask = test if mask is None else pc.and_(mask, test)
                built = built.filter(mask)
            if built.num_rows:
                yield built.select(list(columns))
    except BadData as error:
        if options.mode is Mode.FAILFAST:
            raise
        if options.mode is Mode.PERMISSIVE and options.table is Table.ENTRIES:
            yield reading.damage(error)


def _strings(values: frozenset[str]) -> pa.Array:
    import pyarrow as pa

    return pa.array(sorted(values), pa.string())


class _Reading:
    """One pass over a snapshot file."""

    def __init__(
        self, source: str, plan: SnapshotPlan, columns: Sequence[str], table: Table
    ) -> None:
        self._source = source
        self._plan = plan
        self._wanted = columns
        self._layout = SnapshotLayout[plan.layout]
        self._schema = schema_of(Table.ENTRIES)
        self._table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        form = self._layout.form
        offset = self._layout.state_offset + 4 * self._layout.is_counted
        queue = ""
        with opened(Path(self._plan.path)) as file:
            for event in decode_snapshot(file.read, file.size(), self._layout):
                if isinstance(event, SnapshotHeader):
                    continue
                if isinstance(event, QueueHead):
                    queue = event.name
                    size = len(encode_head(event, form))
                    if queue != notes.QUEUE or self._table is Table.ENTRIES:
                        yield self._head(event, offset, size)
                    offset += size
                    continue
                built, size = self._tasks(event, queue, offset)
                if queue != notes.QUEUE or self._table is Table.ENTRIES:
                    yield built
                offset += size

    def _head(self, head: QueueHead, offset: int, size: int) -> pa.RecordBatch:
        import pyarrow as pa

        properties = {name: str(value) for name, value in policy_fields(head.policy).items()}
        properties["count"] = str(head.count)
        if self._layout.form.has_ids:
            properties["last_id"] = str(head.last_id)
        row = self._place() | {
            "kind": Kind.QUEUE,
            "op": Op.QUEUE,
            "offset": offset,
            "size": size,
            "queue": head.name,
            "properties": list(properties.items()),
        }
        return pa.RecordBatch.from_pylist([row], schema=self._schema)

    def _tasks(self, batch: Batch, queue: str, offset: int) -> tuple[pa.RecordBatch, int]:
        import numpy as np
        import pyarrow as pa

        ids, keys, payloads = zip(*batch.tasks, strict=True)
        sizes = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
        sizes += self._layout.form.task_header.size
        count = len(sizes)
        made: dict[str, pa.Array] = {
            "offset": pa.array(offset + np.concatenate(([0], np.cumsum(sizes[:-1])))),
            "size": pa.array(sizes),
            "task_id": pa.array(np.array(ids, dtype=np.uint64).view(np.int64)),
            "key": pa.array(np.array(keys, dtype=np.int64)),
            "payload": pa.array(payloads, pa.binary()),
        }
        constants = self._place() | {"kind": Kind.TASK, "op": Op.TASK, "queue": queue}
        for field in self._schema:
            if field.name not in made:
                made[field.name] = arrow.same(constants.get(field.name), count, field.type)
        return arrow.batch(made, self._schema.names), int(sizes.sum())

    def _place(self) -> dict[str, Any]:
        return {
            "source": self._source,
            "family": FAMILY,
            "path": self._plan.shown,
            "log_index": self._plan.point.index,
            "term": self._plan.point.term,
            "status": OK,
        }

    def damage(self, error: BadData) -> pa.RecordBatch:
        """Return the row of what cannot be read."""
        import pyarrow as pa

        row = self._place() | {
            "kind": Kind.DAMAGE,
            "offset": error.offset,
            "log_index": None,
            "term": None,
            "status": "bad-snapshot",
            "reason": str(error),
        }
        return pa.RecordBatch.from_pylist([row], schema=self._schema).select(list(self._wanted))
