"""``df.write.format("penstock")`` and ``writeStream``: rows become tasks of a node's queues (docs/spark-streams.md).

A task attempt that is repeated, or a micro-batch that is replayed, sends the same enqueues under the same numbers,
and the node takes each once. The numbers follow from who writes (the query, or an id made on the driver), the epoch,
the partition, and the place of the row in it. So the rows of a partition must come in the same order each time: they
do if they are read and mapped; behind a shuffle, sort them (``sortWithinPartitions``). The node notices a repetition
that is cut differently, and refuses it; rows that only changed places it cannot tell apart.

Nothing is taken back: what the tasks of a write that failed have put in stays, and is not put in again by a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from penstock.client.batches import cut
from penstock.client.blocking import Client, connect
from penstock.client.producer import producer_id
from penstock.client.values import checked_queue
from penstock.errors import InvalidValue
from penstock.protocol.version2 import Enqueue, Producer
from penstock.spark.node import reach
from penstock.spark.source import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[str, int, bytes]
"""(queue, key, payload) of a task."""

PAGE_COUNT_MAX: Final = 8000
PAGE_SIZE_MAX: Final = 8 * 2**20
"""Rows, and bytes of their payloads, that are sorted by queue at a time: what the client has in flight at once."""

BLOCK: Final = 512
"""Requests of one epoch under one producer's name: a node remembers the last 1024 of each."""

_QUERY: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"
"""Where Spark tells a task of a micro-batch which one it is of."""

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_WANTED: Final[dict[str, tuple[type[DataType], ...]]] = {
    "queue": (StringType,),
    "key": _INTEGERS,
    "payload": (BinaryType, StringType),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(WriterCommitMessage):
    """What one task put in, repetitions counted once."""

    partition: int
    count: int


class _Writing:
    """What both writers do on an executor."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Check the columns. Raises ``InvalidValue``."""
        self._options = options
        self._places = _places(options, schema)

    def check_node(self, reach: Callable[[str], Client]) -> None:
        """Raise ``Unreachable`` if the node does not answer, ``QueueMissing`` if the option's queue does not exist."""
        with reach(self._options.node) as client:
            if self._options.queue is not None:
                client.stat(self._options.queue)

    def send(
        self, batches: Iterable[pa.RecordBatch], application: str, epoch: int, partition: int
    ) -> Written:
        """Put the rows of a partition in, those that an earlier attempt did not. Raises ``PenstockError``."""
        frames = self._frames(chain.from_iterable(map(self._rows, batches)))
        with reach(self._options.node) as client:
            count = client.enqueue_numbered(numbered(frames, application, epoch, partition))
        return Written(partition=partition, count=count)

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        import pyarrow as pa
        import pyarrow.compute as pc

        options, count = self._options, batch.num_rows
        columns = {name: batch.column(place) for name, place in self._places.items()}
        for name, column in columns.items():
            if column.null_count:
                raise InvalidValue(f"column {name} is null in some rows; fill or filter them")
        payloads = pc.cast(columns["payload"], pa.binary()).to_pylist()
        queues = columns["queue"].to_pylist() if "queue" in columns else [options.queue] * count
        keys = columns["key"].to_pylist() if "key" in columns else [options.key or 0] * count
        return zip(queues, keys, payloads, strict=True)

    def _frames(self, rows: Iterator[Row]) -> Iterator[tuple[str, list[int], list[bytes]]]:
        """Cut rows into requests, by nothing but their order: never by the batches that they came in."""
        for page in _pages(rows):
            by_queue: dict[str, tuple[list[int], list[bytes]]] = {}
            for queue, key, payload in page:
                keys, payloads = by_queue.setdefault(queue, ([], []))
                keys.append(key)
                payloads.append(payload)
            for queue, (keys, payloads) in by_queue.items():
                for frame_keys, frame in cut(payloads, key=0, keys=keys):
                    yield queue, frame_keys, frame


def _pages(rows: Iterator[Row]) -> Iterator[list[Row]]:
    page: list[Row] = []
    size = 0
    for row in rows:
        page.append(row)
        size += len(row[2])
        if len(page) >= PAGE_COUNT_MAX or size >= PAGE_SIZE_MAX:
            yield page
            page, size = [], 0
    if page:
        yield page


def numbered(
    frames: Iterable[tuple[str, list[int], list[bytes]]],
    application: str,
    epoch: int,
    partition: int,
) -> Iterator[Enqueue]:
    """Yield the requests of a partition, each with a number that a repetition gives it again.

    A producer stands for a partition, so a stream of many epochs has few; its numbers grow with the epochs.
    """
    for place, (queue, keys, payloads) in enumerate(frames):
        block, rest = divmod(place, BLOCK)
        name = f"spark/{application}/{partition}/{block}"
        producer = Producer(producer_id(name), epoch * BLOCK + rest + 1)
        yield Enqueue(checked_queue(queue), keys, payloads, None, None, producer)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once. Made on the driver; what it makes up there, all attempts of its tasks share."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._writing = _Writing(options, schema)
        if (options.application is None) != (options.version is None):
            raise InvalidValue("options txnAppId and txnVersion name a write together; give both")
        self._writing.check_node(connect)
        self._application = options.application or uuid4().hex
        self._version = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        partition = _task().partitionId()
        return self._writing.send(iterator, self._application, self._version, partition)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches; a batch that is replayed has the number it had."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._writing = _Writing(options, schema)
        if options.version is not None:
            raise InvalidValue("option txnVersion is for a batch; a stream numbers its own")
        # Spark makes a writer for every micro-batch: a stream survives a restart of the node.
        self._writing.check_node(reach)
        self._application = options.application

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        application = self._application or task.getLocalProperty(_QUERY)
        epoch = task.getLocalProperty(_EPOCH)
        if application is None or epoch is None:
            raise InvalidValue(
                f"Spark does not say which batch this is ({_QUERY}, {_EPOCH}), so a repetition could not be told;"
                " write in foreachBatch, with txnAppId and txnVersion"
            )
        return self._writing.send(iterator, application, int(epoch), task.partitionId())


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "writers write in tasks"
    return task


# --- checking ------------------------------------------------------------------------------------


def _places(options: SinkOptions, schema: StructType) -> dict[str, int]:
    """Return the place of each column that is read; an option replaces the column of its name.

    Names match in any case, as Spark's own do. Raises ``InvalidValue`` for a column that is unknown, given twice, of a
    wrong type, or missing: a misspelt ``key`` must not enqueue everything with key 0.
    """
    found = schema.simpleString()
    places: dict[str, int] = {}
    for place, name in enumerate(schema.names):
        lower = name.lower()
        if lower not in _WANTED:
            raise InvalidValue(
                f"column {name} is unknown; a write takes {', '.join(_WANTED)}: drop or rename it"
            )
        if lower in places:
            raise InvalidValue(f"column {lower} is there twice; the columns are {found}")
        places[lower] = place
    if "payload" not in places:
        raise InvalidValue(f"no column payload, of binary or string; the columns are {found}")
    if "queue" not in places and options.queue is None:
        raise InvalidValue(
            f"no queue: give option queue, or a column queue; the columns are {found}"
        )
    given = {"queue": options.queue, "key": options.key}
    places = {name: place for name, place in places.items() if given.get(name) is None}
    for name, place in places.items():
        kind = schema.fields[place].dataType
        if not isinstance(kind, _WANTED[name]):
            wanted = (
                "an integer" if name == "key" else " or ".join(k.typeName() for k in _WANTED[name])
            )
            raise InvalidValue(f"column {name} is {kind.simpleString()}; it must be {wanted}")
    return places
