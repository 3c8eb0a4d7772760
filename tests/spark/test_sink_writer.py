"""Rows become tasks once, however often an attempt or a batch is repeated. Driven without a Spark."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import (
    InvalidValue,
    QueueMissing,
    RequestRefused,
    SequenceForgotten,
    Unreachable,
)
from penstock.queues.producers import REQUESTS_MAX
from penstock.spark import node as node_module
from penstock.spark import sink
from penstock.spark.sink import BLOCK, BatchWriter, StreamWriter, Written, numbered
from penstock.spark.source import PenstockSource
from support.node_process import NodeProcess, start

Writer = BatchWriter | StreamWriter


@dataclass
class FakeTask:
    """What Spark tells a task of itself."""

    partition: int = 0
    properties: dict[str, str] = field(default_factory=dict)

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self.partition

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802
        return self.properties.get(key)


def epoch(number: int, *, query: str = "query", partition: int = 0) -> FakeTask:
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}
    return FakeTask(partition, properties)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("sink") / "node") as process:
        yield process


@pytest.fixture
def queue(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    """Return the name of a queue of the test's own."""
    name: str = request.node.name
    with node.client() as client:
        client.create_queue(name)
    return name


@pytest.fixture
def as_task(monkeypatch: pytest.MonkeyPatch) -> Any:
    def become(task: FakeTask) -> None:
        monkeypatch.setattr(sink, "_task", lambda: task)

    become(FakeTask())
    return become


def rows_of(count: int, *, at: int = 0, **columns: Sequence[object]) -> pa.Table:
    payloads = [b"%d" % n for n in range(at, at + count)]
    return pa.table({"payload": pa.array(payloads, pa.binary())} | dict(columns))


def writer_of(
    schema: pa.Schema | StructType,
    *,
    streaming: bool = False,
    overwrite: bool = False,
    **options: str,
) -> Writer:
    """Return a writer as it reaches an executor."""
    source = pickle.loads(pickle.dumps(PenstockSource({k.lower(): v for k, v in options.items()})))
    kind = schema if isinstance(schema, StructType) else from_arrow_schema(schema)
    made = (source.streamWriter if streaming else source.writer)(kind, overwrite)
    writer: Writer = pickle.loads(pickle.dumps(made))
    return writer


def put(writer: Writer, table: pa.Table, *, rows_per_batch: int = 100) -> int:
    message = writer.write(iter(table.to_batches(max_chunksize=rows_per_batch)))
    assert isinstance(message, WriterCommitMessage)
    assert isinstance(message, Written)
    return message.count


def held(node: NodeProcess, queue: str) -> list[bytes]:
    """Take everything out of a queue, in order."""
    with node.client() as client:
        found: list[bytes] = []
        while deliveries := client.dequeue_many(queue, 1000):
            found += [delivery.payload for delivery in deliveries]
            client.ack(deliveries)
        return found


def payloads(table: pa.Table) -> list[bytes]:
    found: list[bytes] = table["payload"].to_pylist()
    return found


class Killed(Exception):
    """The end of an attempt."""


def cut_short(table: pa.Table, *, after: int) -> Iterator[pa.RecordBatch]:
    yield from table.slice(0, after).to_batches(max_chunksize=97)
    raise Killed


# --- in and out ----------------------------------------------------------------------------------


def test_rows_become_tasks_in_their_order(node: NodeProcess, queue: str, as_task: Any) -> None:
    table = rows_of(2500)
    writer = writer_of(table.schema, node=node.address, queue=queue)
    assert put(writer, table) == 2500
    assert held(node, queue) == payloads(table)


def test_queue_key_and_text_come_from_columns(node: NodeProcess, queue: str, as_task: Any) -> None:
    with node.client() as client:
        client.create_queue("other", exist_ok=True)
    names = [queue if n % 3 else "other" for n in range(30)]
    keys = pa.array([-n for n in range(30)], pa.int32())
    texts = [f"task {n} ä" for n in range(30)]
    table = pa.table({"key": keys, "payload": texts, "queue": names})
    assert put(writer_of(table.schema, node=node.address), table) == 30
    mine = [text.encode() for n, text in enumerate(texts) if n % 3]
    others = [text.encode() for n, text in enumerate(texts) if n % 3 == 0]
    assert held(node, queue) == mine[::-1]
    assert held(node, "other") == others[::-1]


def test_a_column_named_key_in_capitals_was_ignored_and_every_task_got_key_0(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    table = pa.table({"KEY": [3, 1, 2], "Queue": [queue] * 3, "payLoad": [b"c", b"a", b"b"]})
    assert put(writer_of(table.schema, node=node.address), table) == 3
    with node.client() as client:
        found = [(task.key, task.payload) for task in client.peek(queue, 10)]
    assert found == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_options_go_before_columns(node: NodeProcess, queue: str, as_task: Any) -> None:
    table = rows_of(3, queue=["nowhere"] * 3, key=[3, 2, 1])
    writer = writer_of(table.schema, node=node.address, queue=queue, key="-7")
    put(writer, table)
    with node.client() as client:
        assert [task.key for task in client.peek(queue, 10)] == [-7, -7, -7]


def test_a_partition_without_rows_puts_nothing_in(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    table = rows_of(0)
    assert put(writer_of(table.schema, node=node.address, queue=queue), table) == 0


# --- once ----------------------------------------------------------------------------------------


def test_an_attempt_that_died_is_completed_by_the_next(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    table = rows_of(20_000)
    writer = writer_of(table.schema, node=node.address, queue=queue)
    for after in (0, 5000, 19_999):
        with pytest.raises(Killed):
            writer.write(cut_short(table, after=after))
    assert put(writer, table, rows_per_batch=1001) == 20_000
    assert put(writer, table, rows_per_batch=3) == 20_000  # a speculative copy that comes late
    assert held(node, queue) == payloads(table)


KILLED_WRITER = """
import os, signal, sys
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from penstock.spark import sink
from penstock.spark.source import PenstockSource

table = pa.table({"payload": pa.array([b"%d" % n for n in range(20_000)], pa.binary())})

def batches():
    yield from table.slice(0, 14_500).to_batches(max_chunksize=1000)
    os.kill(os.getpid(), signal.SIGKILL)

class Task:
    def partitionId(self):
        return 0

sink._task = Task
options = dict(node=sys.argv[1], queue=sys.argv[2], txnappid="killed", txnversion="0")
PenstockSource(options).writer(from_arrow_schema(table.schema), False).write(batches())
"""


def test_a_writer_that_was_killed_is_completed_by_its_repetition(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    command = [sys.executable, "-c", KILLED_WRITER, node.address, queue]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with node.client() as client:
        assert 0 < client.stat(queue).count < 20_000
    table = rows_of(20_000)
    named: dict[str, Any] = {"txnAppId": "killed", "txnVersion": "0"}
    assert put(writer_of(table.schema, node=node.address, queue=queue, **named), table) == 20_000
    assert held(node, queue) == payloads(table)


def test_a_node_that_is_killed_and_comes_back_has_each_row_once(
    tmp_path: Path, as_task: Any
) -> None:
    table = rows_of(20_000)
    first = start(tmp_path / "node")
    with first.client() as client:
        client.create_queue("q")
    nodes = [first]

    def rows_with_a_crash() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(table.to_batches(max_chunksize=1000)):
            if number == 12:
                first.kill()
                nodes.append(NodeProcess(tmp_path / "node", listen=first.address))
            yield batch

    try:
        writer = writer_of(table.schema, node=first.address, queue="q")
        message = writer.write(rows_with_a_crash())
        assert isinstance(message, Written)
        assert message.count == 20_000
        assert held(nodes[-1].wait_listening(), "q") == payloads(table)
    finally:
        for node in nodes:
            node.kill()


def test_two_writes_of_the_same_rows_are_two(node: NodeProcess, queue: str, as_task: Any) -> None:
    table = rows_of(10)
    for _ in range(2):
        put(writer_of(table.schema, node=node.address, queue=queue), table)
    assert len(held(node, queue)) == 20


def test_a_named_write_is_done_once_by_whoever_repeats_it(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    table = rows_of(10)
    for version in ("0", "1", "1"):
        put(
            writer_of(
                table.schema, node=node.address, queue=queue, txnAppId="load", txnVersion=version
            ),
            table,
        )
    assert len(held(node, queue)) == 20


def test_partitions_and_queries_do_not_stand_in_each_others_way(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    table = rows_of(5)
    writer = writer_of(table.schema, streaming=True, node=node.address, queue=queue)
    for task in (epoch(0), epoch(0, partition=1), epoch(1), epoch(0, query="another"), epoch(0)):
        as_task(task)
        put(writer, table)
    assert len(held(node, queue)) == 20


def test_a_replayed_epoch_doubles_nothing_and_the_next_goes_on(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    schema = rows_of(0).schema
    everything: list[bytes] = []
    for number in range(4):
        table = rows_of(1500, at=1500 * number)
        everything += payloads(table)
        for _ in range(2):  # a query that was restarted, with a writer of its own
            as_task(epoch(number, query="replayed"))
            put(writer_of(schema, streaming=True, node=node.address, queue=queue), table)
    assert held(node, queue) == everything


def test_a_name_of_the_users_outlives_the_query(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    table = rows_of(5)
    for query in ("first", "second"):
        as_task(epoch(0, query=query))
        put(
            writer_of(
                table.schema, streaming=True, node=node.address, queue=queue, txnAppId="mail"
            ),
            table,
        )
    assert len(held(node, queue)) == 5


def test_a_replay_that_is_cut_differently_is_refused(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    as_task(epoch(0, query="reordered"))
    table = rows_of(50)
    writer = writer_of(table.schema, streaming=True, node=node.address, queue=queue)
    put(writer, table)
    with pytest.raises((RequestRefused, InvalidValue), match="used for another request"):
        put(writer, table.slice(0, 49))


def test_an_epoch_that_the_node_has_forgotten_is_refused(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    frame = (queue, [0], [b"x"])
    with node.client() as client:
        for number in range(REQUESTS_MAX + 1):
            client.enqueue_numbered(numbered([frame], "long", number, 0))
    table = rows_of(1)
    writer = writer_of(table.schema, streaming=True, node=node.address, queue=queue)
    as_task(epoch(REQUESTS_MAX, query="long"))
    assert put(writer, table) == 1
    as_task(epoch(0, query="long"))
    with pytest.raises(SequenceForgotten):
        put(writer, table)


def test_numbers_never_meet(as_task: Any) -> None:
    seen: set[tuple[bytes, int]] = set()
    frames = [("q", [0], [b""])] * (2 * BLOCK + 10)
    for application in ("a", "b"):
        for number in range(3):
            for partition in range(2):
                for request in numbered(frames, application, number, partition):
                    assert request.producer is not None
                    seen.add((request.producer.id, request.producer.sequence))
    assert len(seen) == 2 * 3 * 2 * len(frames)
    by_producer: dict[bytes, int] = {}
    for request in numbered(frames, "a", 0, 0):
        assert request.producer is not None
        by_producer[request.producer.id] = by_producer.get(request.producer.id, 0) + 1
    assert max(by_producer.values()) <= REQUESTS_MAX


# --- refusals ------------------------------------------------------------------------------------


def columns(**kinds: str) -> StructType:
    made = StructType()
    for name, kind in kinds.items():
        made = made.add(name, kind)
    return made


PAYLOAD = columns(payload="binary")


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        (columns(body="binary"), {"queue": "q"}, "column body is unknown"),
        (columns(key="integer"), {"queue": "q"}, "no column payload"),
        (columns(payload="double"), {"queue": "q"}, "payload is double"),
        (PAYLOAD, {}, "no queue: give option queue, or a column queue"),
        (columns(payload="binary", queue="integer"), {}, "queue is int; it must be string"),
        (columns(payload="string", key="string"), {"queue": "q"}, "it must be an integer"),
        (columns(payload="string", priority="integer"), {"queue": "q"}, "priority is unknown"),
        (
            columns(payload="string", key="integer", KEY="integer"),
            {"queue": "q"},
            "key is there twice",
        ),
        (PAYLOAD, {"queue": "q", "txnAppId": "a"}, "give both"),
    ],
)
def test_what_cannot_be_written_is_refused_on_the_driver(
    schema: StructType, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidValue, match=words):
        writer_of(schema, node="127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "q"}, "no node to write to"),
        ({"queue": "q", "node": "host:port"}, "host:port"),
        ({"queue": "two words", "node": "h:1"}, "option queue is 'two words'"),
        ({"key": "high", "node": "h:1"}, "option key is 'high'"),
        ({"queue": "q", "path": "/x"}, "nothing but a live node is written to"),
        ({"queue": "q", "node": "h:1", "startingIndex": "3"}, "option 'startingindex' is unknown"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        writer_of(PAYLOAD, **options)


def test_queues_are_added_to_never_replaced() -> None:
    with pytest.raises(InvalidValue, match="append"):
        writer_of(PAYLOAD, overwrite=True, node="h:1", queue="q")
    with pytest.raises(InvalidValue, match="a stream numbers its own"):
        writer_of(PAYLOAD, streaming=True, node="h:1", queue="q", txnVersion="1")


def test_a_read_with_options_of_a_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="are of a write"):
        PenstockSource({"path": str(tmp_path), "queue": "q"})
    with pytest.raises(InvalidValue, match="options of a write"):
        PenstockSource({"node": "h:1", "queue": "q"}).schema()


def test_a_null_is_refused(node: NodeProcess, queue: str, as_task: Any) -> None:
    table = pa.table({"payload": pa.array([b"a", None], pa.binary())})
    with pytest.raises(InvalidValue, match="column payload is null"):
        put(writer_of(table.schema, node=node.address, queue=queue), table)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_missing_queue_failed_a_job_instead_of_the_driver(
    node: NodeProcess, streaming: bool
) -> None:
    with pytest.raises(QueueMissing):
        writer_of(PAYLOAD, streaming=streaming, node=node.address, queue="nowhere")


def test_an_unreachable_node_failed_a_job_after_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Unreachable):
        writer_of(PAYLOAD, node="127.0.0.1:1", queue="q")
    monkeypatch.setattr(node_module, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(Unreachable):
        writer_of(PAYLOAD, streaming=True, node="127.0.0.1:1", queue="q")


def test_a_queue_of_a_row_that_is_not_there_fails_the_task(node: NodeProcess, as_task: Any) -> None:
    table = rows_of(3, queue=["nowhere"] * 3)
    with pytest.raises(QueueMissing):
        put(writer_of(table.schema, node=node.address), table)


def test_without_an_epoch_a_stream_does_not_write(
    node: NodeProcess, queue: str, as_task: Any
) -> None:
    writer = writer_of(rows_of(0).schema, streaming=True, node=node.address, queue=queue)
    with pytest.raises(InvalidValue, match="does not say which batch this is"):
        writer.write(iter(()))
