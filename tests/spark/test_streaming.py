"""Streams through a real Spark: what the readers and writers promise holds with its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from support.growing import GrowingDirectory
from support.node_process import NodeProcess, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark-streams.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLUMNS = ("log_index", "term", "op", "queue", "key", "payload")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with start(tmp_path / "live") as process, process.client() as client:
        client.create_queue("orders")
        client.create_queue("copies")
        yield process


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
        for row in frame.select(*COLUMNS).collect()
    )


def changes(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    reader = spark.readStream.format("penstock").option("table", "changes").options(**options)
    return reader.load(str(path))


def run(frame: DataFrame, place: Path) -> list[dict[str, Any]]:
    """Run a stream over what is there now into Parquet, and return what its batches said."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "out"))
    )
    assert query.awaitTermination(120)
    found: list[dict[str, Any]] = [dict(progress) for progress in query.recentProgress]
    return found


def test_a_stream_stopped_and_restarted_gives_the_rows_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = GrowingDirectory(tmp_path / "node")
    log.add(30)
    frame = changes(spark, log.root, maxEntriesPerTrigger=12)
    progress = run(frame, tmp_path)
    assert [batch["numInputRows"] for batch in progress if batch["numInputRows"]] == [12, 12, 6]
    log.add(13, term=2)
    run(changes(spark, log.root, maxEntriesPerTrigger=12), tmp_path)
    log.close()
    batch = spark.read.format("penstock").option("table", "changes").load(str(log.root))
    expected = rows_of(batch)
    assert len(expected) == 43
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == expected


def test_compacted_entries_fail_a_stream_with_words(spark: SparkSession, tmp_path: Path) -> None:
    log = GrowingDirectory(tmp_path / "node")
    log.add(30)
    log.compact(25)
    first = log.directory.log.first
    with pytest.raises(Exception, match=f"entries 0 to {first - 1} were compacted away"):
        run(changes(spark, log.root), tmp_path)
    run(changes(spark, log.root, failOnDataLoss="false"), tmp_path / "loose")
    log.close()
    found = rows_of(spark.read.parquet(str(tmp_path / "loose" / "out")))
    assert [row[0] for row in found] == list(range(first, 30))


def test_a_batch_replayed_into_a_node_doubles_nothing(
    spark: SparkSession, tmp_path: Path, node: NodeProcess
) -> None:
    with node.client() as client:
        client.enqueue_many("orders", [b"%d" % n for n in range(50)], key=4)

    def copy() -> list[dict[str, Any]]:
        """Copy what is added to one queue into another, forty entries at a time; return what the batches said."""
        added = (
            spark.readStream.format("penstock")
            .options(node=node.address, table="changes", maxEntriesPerTrigger=40)
            .load()
            .where("op = 'add' and queue = 'orders'")
            .select("key", "payload")
        )
        query = (
            added.writeStream.format("penstock")
            .options(node=node.address, queue="copies")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return [dict(progress) for progress in query.recentProgress]

    def copies() -> list[bytes]:
        with node.client() as client:
            return [task.payload for task in client.peek("copies", 1000)]

    last = copy()[-1]["batchId"]
    assert copies() == [b"%d" % n for n in range(50)]
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    replayed = copy()[0]
    assert (replayed["batchId"], replayed["numInputRows"] > 0) == (last, True)
    assert copies() == [b"%d" % n for n in range(50)]
    with node.client() as client:
        client.enqueue_many("orders", [b"%d" % n for n in range(50, 60)], key=4)
    copy()
    assert copies() == [b"%d" % n for n in range(60)]


def test_a_frame_is_written_to_a_node_and_read_from_it(
    spark: SparkSession, node: NodeProcess
) -> None:
    frame = spark.range(0, 3000, 1, 2).selectExpr(
        "cast(id as string) as payload", "id % 3 as key", "'orders' as queue"
    )
    frame.write.format("penstock").mode("append").option("node", node.address).save()
    with node.client() as client:
        assert client.stat("orders").count == 3000
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.write.format("penstock").option("node", node.address).save()
    with pytest.raises(Exception, match="no column payload"):
        frame.select("key").write.format("penstock").mode("append").options(
            node=node.address, queue="orders"
        ).save()
    read = spark.read.format("penstock").options(node=node.address, table="changes").load()
    added = read.where("op = 'add' and queue = 'orders' and log_index > 0")
    assert added.count() == 3000
    assert {bytes(row.payload) for row in added.select("payload").collect()} == {
        b"%d" % n for n in range(3000)
    }


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["'a' as payload", "5 as prio"], {"queue": "orders"}, "column prio is unknown"),
        (["5 as key"], {"queue": "orders"}, "no column payload"),
        (["'a' as payload"], {"queue": "nowhere"}, "there is no queue 'nowhere'"),
        (["'a' as payload"], {"queue": "orders", "colour": "red"}, "option 'colour' is unknown"),
        (["'a' as payload"], {"queue": "orders", "node": "127.0.0.1:1"}, "no node answers at"),
    ],
)
def test_a_write_that_cannot_succeed_fails_before_a_job_in_one_sentence(
    spark: SparkSession,
    node: NodeProcess,
    columns: list[str],
    options: dict[str, str],
    words: str,
) -> None:
    before = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    given = {"node": node.address} | options
    with pytest.raises(PySparkException) as caught:
        spark.range(3).selectExpr(*columns).write.format("penstock").mode("append").options(
            **given
        ).save()
    sentence, _sqlstate = (line for line in str(caught.value).splitlines() if line.strip())
    assert words in sentence
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == before


def test_a_stream_that_cannot_begin_says_why_without_a_traceback(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, options in enumerate(({"node": "127.0.0.1:1"}, {"path": str(tmp_path / "none")})):
        frame = spark.readStream.format("penstock").options(**options).load()
        with pytest.raises(PySparkException) as caught:
            run(frame, tmp_path / str(number))
        assert re.search("no node answers at|no such file", str(caught.value))
        assert "Traceback" not in str(caught.value)


def test_the_blocks_of_the_page_run_as_typed(
    spark: SparkSession, tmp_path: Path, node: NodeProcess
) -> None:
    opening, *blocks = BLOCK.findall(PAGE.read_text())
    assert "session()" in opening  # this one is the tests' own
    code = "\n".join(blocks)
    assert code.count("127.0.0.1:2602") == 5
    code = code.replace("127.0.0.1:2602", node.address)
    # Paths are those of the Java process, which has a working directory of its own.
    for place in ("changes.parquet", "changes.checkpoint", "copies.checkpoint"):
        assert f'"{place}"' in code
        code = code.replace(f'"{place}")', f'"{tmp_path / place}")')
    code = code.replace('.load("node")', f'.load("{node.data}")')
    exec(compile(code, str(PAGE), "exec"), {"spark": spark})
    with node.client() as client:
        assert client.stat("orders").count == 1000
        assert client.stat("copies").count == 2000  # the stream's, and one of the two named writes
