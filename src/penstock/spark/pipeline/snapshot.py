"""A snapshot of a moment: the tasks are encoded by the executors, and the driver only puts their files together.

The result is a directory that a node starts from. What the driver holds is a row for each queue in each part.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.families.taskflux.new_directory import new_directory
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import QueueForm
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    HardState,
    Index,
    QueueHead,
    QueueName,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.spark.pipeline.beginning import policy_of
from penstock.spark.pipeline.moment import Moment
from penstock.spark.pipeline.unlogged import numbered

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_SIZE: Final = 2**20
PARTS_SCHEMA: Final = "part long, place long, queue string, tasks long, size long, path string"


def write_snapshot(
    moment: Moment, out: Path, *, generation: Generation = Generation.THREE
) -> tuple[int, int]:
    """Write the state of a moment as a directory of a node; return how many queues and tasks it holds.

    Raises ``PathRefused`` or ``CannotConvert``.
    """
    # Beside the directory, so that executors that share the disk of the driver's reach it too.
    staging = out.absolute().parent / f".{out.name}-{uuid.uuid4().hex[:8]}"
    with new_directory(out, WRITTEN[generation], source=Path(moment.source.name)) as new:
        staging.mkdir()
        try:
            parts = _encode(moment, WRITTEN[generation].snapshot.form, staging)
            heads = _heads(moment, parts)
            counts = {name: sum(part["tasks"] for part in parts.get(name, ())) for name in heads}
            point = SnapshotPoint(index=Index(max(moment.index, 0)), term=Term(max(moment.term, 1)))
            new.write_encoded(
                point,
                [
                    (_counted(head, counts[name], generation), _pieces(parts.get(name, ())))
                    for name, head in sorted(heads.items())
                ],
            )
            new.write_metadata(HardState(term=point.term, vote=None))
            new.commit()
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return len(heads), sum(counts.values())


def _heads(moment: Moment, parts: Mapping[str, list[dict[str, Any]]]) -> dict[str, QueueHead]:
    rows = moment.lives.select("queue", "last_id", "policy").collect()
    # Without a log no queue has given out an id before; its tasks are numbered for the purpose.
    given = {name: sum(part["tasks"] for part in theirs) for name, theirs in parts.items()}
    heads = {
        row["queue"]: QueueHead(
            name=QueueName(row["queue"]),
            policy=policy_of(row["policy"]),
            last_id=TaskId(row["last_id"] if moment.source.has_log else given.get(row["queue"], 0)),
            count=0,
        )
        for row in rows
    }
    heads.setdefault(
        DEFAULT_QUEUE,
        QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(0), count=0),
    )
    return heads


def _counted(head: QueueHead, count: int, generation: Generation) -> QueueHead:
    last_id = head.last_id if generation is Generation.THREE else TaskId(count)
    return QueueHead(name=head.name, policy=head.policy, last_id=last_id, count=count)


def _encode(moment: Moment, form: QueueForm, staging: Path) -> dict[str, list[dict[str, Any]]]:
    """Let the executors write the tasks of each queue in order of age; return the parts by queue, in order."""
    form_name, home = form.name, str(staging)

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _encode_part(batches, QueueForm[form_name], Path(home))

    tasks = moment.tasks if moment.source.has_log else numbered(moment.tasks)
    tasks = tasks.select("queue", "task_id", "key", "payload")
    in_order = tasks.repartitionByRange("queue", "task_id").sortWithinPartitions("queue", "task_id")
    rows = in_order.mapInArrow(encode, PARTS_SCHEMA).orderBy("part", "place").collect()
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault(row["queue"], []).append(row.asDict())
    return parts


def _encode_part(
    batches: Iterator[pa.RecordBatch], form: QueueForm, staging: Path
) -> Iterator[pa.RecordBatch]:
    """Write a file for each stretch of one queue in a sorted part; a repeated attempt writes its own."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark import TaskContext

    from penstock.formats.taskflux.snapshot import encode_task_columns

    context = TaskContext.get()
    assert context is not None, "runs on an executor"
    part, attempt = context.partitionId(), context.taskAttemptId()
    told: list[dict[str, Any]] = []
    for batch in batches:
        names = batch.column("queue")
        start = 0
        while start < batch.num_rows:
            name = names[start].as_py()
            end = start + int(pc.sum(pc.equal(names.slice(start), name)).as_py())
            rows = batch.slice(start, end - start)
            payload = rows.column("payload")
            bounds = np.frombuffer(payload.buffers()[1], np.int32)
            bounds = bounds[payload.offset : payload.offset + len(payload) + 1]
            data = np.frombuffer(payload.buffers()[2] or b"", np.uint8)
            encoded = encode_task_columns(
                form,
                rows.column("task_id").to_numpy(zero_copy_only=False),
                rows.column("key").to_numpy(zero_copy_only=False),
                bounds,
                data,
            )
            if not told or told[-1]["queue"] != name:
                path = staging / f"{part}-{attempt}-{len(told)}"
                told.append(
                    {"part": part, "place": len(told), "queue": name, "tasks": 0, "size": 0}
                    | {"path": str(path)}
                )
            with open(told[-1]["path"], "ab") as file:
                file.write(encoded.data)
            told[-1]["tasks"] += len(rows)
            told[-1]["size"] += len(encoded)
            start = end
    if told:
        yield pa.RecordBatch.from_pylist(told)


def _pieces(parts: list[dict[str, Any]] | tuple[()]) -> Iterator[bytes]:
    for part in parts:
        with open(part["path"], "rb") as file:
            while piece := file.read(PIECE_SIZE):
                yield piece
