"""The columns of our tables: one list for every family, in Arrow's types (docs/spark.md).

No name hides a method of a Spark row, as ``index`` and ``count`` would. What a family does not have is null.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa


class Table(StrEnum):
    """What a source shows of its files."""

    ENTRIES = "entries"  # everything stored, in file order, damage included
    CHANGES = "changes"  # what changes a queue, whole entries only
    TASKS = "tasks"  # what the queues hold


class Op(StrEnum):
    """What an entry does. A family's own words are in ``properties``."""

    CREATE = "create"
    DELETE = "delete"
    ADD = "add"
    REMOVE = "remove"
    DELIVER = "deliver"
    ENQUEUE = "enqueue"  # a request of generation 1, decided when it is replayed
    DEQUEUE = "dequeue"
    COUNT = "count"
    LIST = "list"
    # Entries of ours that plain readers pass over; what each says is in ``properties``.
    ADDING = "adding"
    CREATING = "creating"
    RETURNING = "returning"
    REMOVING = "removing"
    EXTENSION = "extension"  # one that says nothing, or is of a later version of Penstock
    QUEUE = "queue"  # a queue as a snapshot has it
    TASK = "task"  # a task as a snapshot has it


class Kind(StrEnum):
    """What a row of ``entries`` is about."""

    ENTRY = "entry"  # of a log, or of a segment of a broker's index
    RECORD = "record"  # of a broker's journal
    SLOT = "slot"  # of a broker's index of version 2
    MESSAGE = "message"  # in a broker's store
    FRAME = "frame"  # of a spool's segment
    DAMAGE = "damage"  # a stretch that is no record, or a file that cannot be read
    QUEUE = "queue"
    TASK = "task"
    METADATA = "metadata"


OK: Final = "ok"
"""The status of what is whole; every other one has a reason."""

MISSING: Final = "missing"
"""The status of a message that an index knows and that no store holds."""

MISSING_REASON: Final = "the index knows this message, but no store holds it"


@cache
def schema_of(table: Table) -> pa.Schema:
    """Return a table's columns."""
    import pyarrow as pa

    fields = {
        "source": pa.string(),  # the directory or file that was loaded
        "family": pa.string(),
        "kind": pa.string(),
        "path": pa.string(),  # the file, under its source
        "offset": pa.int64(),
        "size": pa.int64(),
        # Of a snapshot's rows: the last entry that it covers. Of a broker's: the number of a message in its queue. Of
        # a spool's: the number of the segment in the upper half, that of the frame in the lower.
        "log_index": pa.int64(),
        "term": pa.int64(),
        "op": pa.string(),
        "queue": pa.string(),
        "key": pa.int64(),
        "task_id": pa.int64(),
        "payload": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "event_time": pa.timestamp("us", tz="UTC"),
        "status": pa.string(),
        "reason": pa.string(),
    }
    left_out: dict[Table, tuple[str, ...]] = {
        Table.ENTRIES: (),
        Table.CHANGES: ("status", "reason"),
        Table.TASKS: ("kind", "op", "status", "reason"),
    }
    return pa.schema([(n, t) for n, t in fields.items() if n not in left_out[table]])
