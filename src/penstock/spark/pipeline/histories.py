"""What became of every task, by joins and aggregates: nothing here replays entries in order.

A queue lives from its creation to its deletion, and may be created again; ``born`` is the index of its creation,
-1 if it was there at the beginning. Where rows name every task by its queue and id, ``numbered`` joins them; elsewhere ``counted``
counts ids. Both are differences of sets, so an incremental run is a full one cut in two.

Payloads take no part in that: they are most of the bytes, and only tasks that wait need theirs (``with_payloads``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.families.sources import Source
from penstock.spark.pipeline import counted, numbered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LIFE: Final = ("source", "queue", "born")

OPEN_SCHEMA: Final = (
    "source string, queue string, born long, task_id long, key long, payload binary, size long,"
    " added_index long, failed long, added_time timestamp, first_queue_id long, first_id long,"
    " expires timestamp, is_started boolean"
)
"""Tasks that wait: ``added_index`` is null for those of a snapshot; ``failed`` counts deliveries that did not end one.

``first_queue_id`` and ``first_id`` are where a task was added first, which moves do not change; null where rows do not
name tasks.
"""

OPEN: Final = tuple(field.split()[0] for field in OPEN_SCHEMA.split(", "))

LIVES_SCHEMA: Final = (
    "source string, queue string, born long, until long, number long, last_id long,"
    " policy map<string,string>, until_time timestamp"
)
"""Queues that live; ``number`` is the id of the queue, ``policy`` what it was created with."""

CHANGES: Final = (
    "source", "log_index", "op", "queue", "key", "task_id", "payload", "properties", "event_time",
)  # fmt: skip
"""The columns of a change."""

_OF_NUMBERED: Final = {
    "added_time": "timestamp", "ended_time": "timestamp", "reason": "string", "first_queue_id": "long",
    "first_id": "long", "expires": "timestamp",
}  # fmt: skip
"""What only sources with ids know of a task; null elsewhere."""

HISTORY: Final = (
    "life", "task_id", "key", "added_key", "size", "added_index", "failed", "is_held", "ended_index",
    "end", "is_started", "root_life", "root_id", *_OF_NUMBERED,
)  # fmt: skip
"""What is known of a task: ``life`` is a number that ``fix_lives`` gives, for names are long and rows are many.

``added_key`` is the key that it came with, ``key`` the last one; ``root_life`` and ``root_id`` are where its payload is.
"""


def small_table(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return a table of rows that are in the query's plan: no job reads them, and joins with none of them vanish.

    Spark does so for Arrow's tables only; rows of Python it would read by a job of their own each time.
    """
    import pyarrow as pa

    kind = arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) or [()] * len(kind)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=kind))


def arrow_schema(schema: str) -> pa.Schema:
    """Return the columns that a schema in Spark's words has, in Arrow's types."""
    struct = StructType.fromDDL(schema)
    assert isinstance(struct, StructType), "a table has columns"
    return to_arrow_schema(struct, timezone="UTC")


class State(NamedTuple):
    """What is known at an index."""

    open: DataFrame  # the tasks that wait
    lives: DataFrame  # the queues that live


class Changes(Protocol):
    """Where changes come from. What each kind needs of ``CHANGES`` is there; a payload need not be."""

    def of(self, *ops: str) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class TableOfChanges:
    """Changes that stand in one table, of a kind that skips what a query does not ask for."""

    table: DataFrame

    def of(self, *ops: str) -> DataFrame:
        return self.table.where(F.col("op").isin(*ops))


@dataclass(frozen=True, slots=True)
class _ChangesOfSome:
    """The changes of some sources."""

    changes: Changes
    names: tuple[str, ...]

    def of(self, *ops: str) -> DataFrame:
        return self.changes.of(*ops).where(F.col("source").isin(*self.names))


@dataclass(frozen=True, slots=True)
class Parts:
    """Sources by how their rows name tasks."""

    numbered: tuple[str, ...]
    counted: tuple[str, ...]
    by_value: tuple[str, ...]  # of those that are counted

    @classmethod
    def of(cls, sources: Sequence[Source]) -> Parts:
        logged = [source for source in sources if source.has_log]
        return cls(
            tuple(source.name for source in logged if source.has_ids),
            tuple(source.name for source in logged if not source.has_ids),
            tuple(source.name for source in logged if source.by_value),
        )


def lives_of(
    before: DataFrame, changes: Changes, next_numbers: DataFrame, sources: Sequence[Source]
) -> DataFrame:
    """Return every life of every queue: those before, and those that creations begin; each with its end.

    ``next_numbers`` has, for each source whose queues are counted, the number of the queue that it creates next.
    """
    parts, found = Parts.of(sources), []
    if parts.numbered:
        theirs = before.where(F.col("source").isin(*parts.numbered))
        found.append(numbered.lives_of(theirs, _ChangesOfSome(changes, parts.numbered)))
    if parts.counted or not found:
        theirs = before.where(F.col("source").isin(*parts.counted))
        some = _ChangesOfSome(changes, parts.counted)
        found.append(counted.lives_of(theirs, some, next_numbers))
    return reduce(lambda one, other: one.unionByName(other), found)


def fix_lives(spark: SparkSession, lives: DataFrame) -> DataFrame:
    """Return lives worked out and numbered (``life``), as a table of the plan: there is one for each queue."""
    import pyarrow as pa

    found = lives.orderBy(*LIFE).toArrow()
    numbers = pa.array(range(found.num_rows), pa.int64())
    return spark.createDataFrame(found.append_column("life", numbers))


def advance(
    state: State, changes: Changes, lives: DataFrame, sources: Sequence[Source]
) -> DataFrame:
    """Return every task that waited in ``state`` or that ``changes`` bring, with what became of it; see ``HISTORY``.

    ``lives`` are those of ``fix_lives``.
    """
    parts, found = Parts.of(sources), []
    if parts.numbered:
        some = _ChangesOfSome(changes, parts.numbered)
        theirs = numbered.advance(_some(state, parts.numbered), some, lives)
        found.append(theirs.select(*HISTORY))
    if parts.counted or not found:
        some = _ChangesOfSome(changes, parts.counted)
        theirs = counted.advance(_some(state, parts.counted), some, lives, by_value=parts.by_value)
        found.append(_as_history(theirs))
    tasks = reduce(lambda one, other: one.unionByName(other), found)
    return tasks.join(F.broadcast(lives.select("life", *LIFE)), "life")


def _some(state: State, names: tuple[str, ...]) -> State:
    is_theirs = F.col("source").isin(*names)
    return State(state.open.where(is_theirs), state.lives.where(is_theirs))


def _as_history(tasks: DataFrame) -> DataFrame:
    return tasks.select(
        "life", "task_id", "key", F.col("key").alias("added_key"), "size", "added_index", "failed",
        "is_held", "ended_index", "end", F.lit(False).alias("is_started"),
        F.col("life").alias("root_life"), F.col("task_id").alias("root_id"),
        *[F.lit(None).cast(kind).alias(name) for name, kind in _OF_NUMBERED.items()],
    )  # fmt: skip


def with_payloads(
    waiting: DataFrame,
    added: DataFrame,
    held: DataFrame,
    lives: DataFrame,
    sources: Sequence[Source],
) -> DataFrame:
    """Return tasks that wait, with their payloads and sizes.

    ``added`` has the payloads of additions, ``held`` those of the tasks that waited at the beginning.
    """
    parts, found = Parts.of(sources), []
    by_root = held.join(F.broadcast(lives.select(*LIFE, "life")), list(LIFE))
    stored = by_root.select(
        F.col("life").alias("root_life"), F.col("task_id").alias("root_id"), "payload"
    )
    waiting = waiting.drop("size")
    if parts.numbered:
        theirs = added.where(F.col("source").isin(*parts.numbered))
        fresh = numbered.placed(theirs, lives).select(
            F.col("life").alias("root_life"), F.col("task_id").alias("root_id"), "payload"
        )
        these = waiting.where(F.col("source").isin(*parts.numbered))
        found.append(these.join(stored.unionByName(fresh), ["root_life", "root_id"]))
    if parts.counted or not found:
        fresh = added.select("source", F.col("log_index").alias("added_index"), "payload")
        these = waiting.where(F.col("source").isin(*parts.counted))
        found.append(these.where("not is_held").join(fresh, ["source", "added_index"]))
        found.append(these.where("is_held").join(stored, ["root_life", "root_id"]))
    tasks = reduce(lambda one, other: one.unionByName(other), found)
    return tasks.withColumn("size", F.length("payload").cast("long")).select(*OPEN)


def with_last_ids(
    lives: DataFrame, histories: DataFrame, changes: Changes, sources: Sequence[Source]
) -> DataFrame:
    """Return lives with the id of the last task that each was given."""
    parts = Parts.of(sources)
    is_numbered = F.col("source").isin(*parts.numbered)
    found = counted.with_last_ids(lives.where(~is_numbered), histories)
    if parts.numbered:
        some = _ChangesOfSome(changes, parts.numbered)
        theirs = numbered.with_last_ids(lives.where(is_numbered), histories, some)
        found = found.unionByName(theirs)
    return found.drop("life")
