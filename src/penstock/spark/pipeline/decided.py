"""Generation 1 stores requests, not results: what each did is decided by replaying them in order, a source at a time.

The one step that cannot be an aggregate. Logs of that generation are small; many of them are decided side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.sources import Source
from penstock.model import (
    AddTask,
    Command,
    CreateQueue,
    CreateWithPolicy,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    QueueHead,
    QueueName,
    RemoveTask,
    TaskId,
)
from penstock.queues.replay import Queues
from penstock.spark.pipeline.beginning import policy_of
from penstock.spark.pipeline.histories import CHANGES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_INPUT: Final = (*CHANGES, "kind", "offset")


def decide(entries: DataFrame, sources: Sequence[Source]) -> DataFrame:
    """Return the changes that the requests of some sources made; ``entries`` with what their snapshots hold."""
    beginnings = {source.name: (source.begin, source.by_array_heap) for source in sources}
    theirs = entries.where(F.col("source").isin(*beginnings)).where("status = 'ok'").select(*_INPUT)
    changes = entries.select(*CHANGES).schema

    def replay(table: pa.Table) -> pa.Table:
        import pyarrow as pa

        rows = sorted(table.to_pylist(), key=_order)
        begin, by_array_heap = beginnings[rows[0]["source"]] if rows else (-1, False)
        queues = Queues(by_array_heap=by_array_heap)
        schema = pa.schema([table.schema.field(name) for name in CHANGES])
        return pa.Table.from_pylist(_replay(rows, begin, queues), schema=schema)

    return theirs.groupBy("source").applyInArrow(replay, changes)


def _order(row: dict[str, Any]) -> tuple[int, int, int]:
    """A snapshot's rows first, as they stand in it; then the log."""
    is_log = row["kind"] == "entry"
    return (is_log, row["log_index"] or 0 if is_log else 0, row["offset"] or 0)


def _replay(rows: list[dict[str, Any]], begin: int, queues: Queues) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    has_snapshot = begin >= 0
    if has_snapshot:
        queues.by_name.clear()
    for row in rows:
        if row["kind"] == "entry":
            if row["log_index"] is not None and row["log_index"] > begin:
                made += _obey(queues, row)
        elif has_snapshot and row["kind"] == "queue":
            properties = dict(row["properties"])
            count, policy = int(properties["count"]), policy_of(properties)
            queues.restore(
                QueueHead(
                    name=QueueName(row["queue"]), policy=policy, last_id=TaskId(count), count=count
                )
            )
        elif has_snapshot and row["kind"] == "task":
            queues.by_name[QueueName(row["queue"])].restore(
                row["task_id"], row["key"], bytes(row["payload"])
            )
    return made


def _obey(queues: Queues, row: dict[str, Any]) -> list[dict[str, Any]]:
    command = _command(row)
    delta = None if command is None else queues.obey(command)
    if delta is None:
        return []
    return [row | _fields(delta)]


def _command(row: dict[str, Any]) -> Command | None:
    """Return the request that a row tells of; ``None`` for one that only asked."""
    match row["op"]:
        case "enqueue":
            return Enqueue(
                queue=QueueName(row["queue"]), key=row["key"], payload=bytes(row["payload"])
            )
        case "dequeue":
            return Dequeue(queue=QueueName(row["queue"]))
        case "create":
            policy = policy_of(dict(row["properties"] or ()))
            return CreateWithPolicy(queue=QueueName(row["queue"]), policy=policy)
        case "delete":
            return DeleteCommand(queue=QueueName(row["queue"]))
        case _:
            return None


def _fields(delta: Delta) -> dict[str, Any]:
    match delta:
        case AddTask():
            return {"op": "add"}
        case RemoveTask():
            return {"op": "remove", "task_id": delta.id, "key": None, "payload": None}
        case CreateQueue():
            return {"op": "create"}
        case DeleteQueue():
            return {"op": "delete"}
        case _:
            raise AssertionError("requests make no other changes")
