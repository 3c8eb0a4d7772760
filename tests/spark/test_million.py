"""A million entries, in a log that grows: a batch, a killed stream and killed runs in parts all end in the same tables.

Tables of this size are compared by fingerprints: how many rows there are of each op and queue, and the sum and the
exclusive or of a hash over all columns of each row. Sorting both sides, or ``exceptAll`` both ways, would take longer
than making them. Rows that are lost, doubled or changed move the count or the sum; none but a collision of 64 bits hides.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.formats.taskflux.deltas import encode_adds, encode_delta, encode_removals
from penstock.model import CreateQueue, DeleteQueue, HardState, Index, Policy, QueueName, Term
from penstock.spark.pipeline.store import Store
from penstock.storage.directory import NodeDirectory
from penstock.storage.log import LogLimits
from spark.pipeline.test_kill import kill_when_it_says
from support.at_rest import QuickFiles, identified
from support.command import process
from support.report import report
from support.spark_tables import MEMORY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.heavy]

ENDS: Final = (400_000, 700_000, 1_000_000)
"""How far the log goes at each stage of its growth."""

SEED: Final = 20261116
LIMITS: Final = LogLimits(soft=4 * 2**20, hard=8 * 2**20, growth=2**20)
"""Segments of some 70,000 entries."""

PATIENCE_SECONDS: Final = 600
"""Far more than anything takes; a test that waits so long has failed."""


# --- the log -------------------------------------------------------------------------------------

NAMES: Final = [QueueName(f"queue-{number}") for number in range(8)]
REBORN, GONE = NAMES[3], NAMES[5]
OURS: Final = "ours"
"""A queue that an embedded node works on, which writes entries of our own beside TaskFlux's."""

BATCH: Final = 5_000
PAYLOAD_SIZE_MAX: Final = (
    70  # the log stays below 80 MiB, at which a node would put a snapshot in its place
)


@dataclass
class Life:
    """A queue between its creation and its deletion: what has been added to it, and what still waits."""

    last_id: int = 0
    waiting: list[int] = field(default_factory=list)

    def take(self, count: int, random: Random) -> list[int]:
        """Take some tasks out, in no order."""
        taken = []
        for _ in range(min(count, len(self.waiting))):
            place = random.randrange(len(self.waiting))
            self.waiting[place], self.waiting[-1] = self.waiting[-1], self.waiting[place]
            taken.append(self.waiting.pop())
        return taken


class BulkLog:
    """A directory of generation 3 that is written thousands of entries at a time, and what was written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lives: dict[QueueName, Life] = {}
        self.written: Counter[tuple[str, str]] = Counter()  # by op and queue
        self._random = Random(SEED)
        self._blob = self._random.randbytes(BATCH + PAYLOAD_SIZE_MAX)

    def grow(self, end: int, *, created: list[QueueName], deleted: list[QueueName]) -> None:
        """Delete and create queues in the middle, and append up to ``end``; each time is a term of its own."""
        directory = NodeDirectory(QuickFiles(), self.root, limits=LIMITS)
        term = Term(directory.metadata.state.term + 1)
        directory.metadata.replace(HardState(term=term, vote=None))
        log, middle = directory.log, (directory.log.end + end) // 2
        is_changed = False
        while log.end < end:
            if not is_changed and (not self.lives or log.end >= middle):
                log.append(term, self._change(created, deleted))
                is_changed = True
            log.append(term, self._batch(min(BATCH, end - log.end)))
            log.sync()
            log.set_committed(Index(log.end - 1))
        directory.close()

    def _change(self, created: list[QueueName], deleted: list[QueueName]) -> list[bytes]:
        """Return entries that delete queues with all they hold, and that create queues."""
        for name in deleted:
            assert self.lives.pop(name).waiting
            self.written["delete", name] += 1
        for name in created:
            self.lives[name] = Life()
            self.written["create", name] += 1
        gone = [encode_delta(DeleteQueue(queue=name)) for name in deleted]
        return gone + [encode_delta(CreateQueue(queue=n, policy=Policy())) for n in created]

    def _batch(self, count: int) -> list[bytes]:
        """Return additions to a queue, then removals of any that wait in it: three to two."""
        random = self._random
        name = random.choice(list(self.lives))
        life = self.lives[name]
        gone = life.take(count * 2 // 5, random)
        came = range(count - len(gone))
        keys = [random.randrange(-4, 5) for _ in came]
        payloads = [self._blob[n : n + random.randrange(PAYLOAD_SIZE_MAX)] for n in came]
        life.waiting += range(life.last_id + 1, life.last_id + 1 + len(came))
        life.last_id += len(came)
        self.written["add", name] += len(came)
        self.written["remove", name] += len(gone)
        return encode_adds(name, keys, payloads) + encode_removals(name, gone)


def work(root: Path, random: Random) -> None:
    """Let a node of ours deliver, take back and purge for a while, which leaves entries of our own."""
    with penstock.open(root, generation=3) as node:
        if OURS not in [stat.name for stat in node.queues()]:
            node.create_queue(OURS, size_max=100_000)
        node.purge(OURS)
        for _ in range(20):
            payloads = [b"%d" % random.randrange(50) for _ in range(100)]
            node.enqueue_many(OURS, payloads, keys=[random.randrange(3) for _ in payloads])
            given = node.dequeue_many(OURS, 60)
            node.ack(given[::2])
            node.nack(given[1::2])


@dataclass(frozen=True)
class Stages:
    """Copies of one directory as it grew."""

    paths: list[Path]
    written: Counter[tuple[str, str]]

    def show(self, number: int, path: Path) -> None:
        """Let ``path`` be the directory as it was at a stage; it must show the one before, or nothing."""
        shutil.copytree(self.paths[number], path, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    changes: list[tuple[list[QueueName], list[QueueName]]] = [
        (NAMES, []),
        ([REBORN], [REBORN]),
        ([], [GONE]),
    ]
    with TemporaryDirectory(dir=MEMORY) as name:
        root = Path(name)
        log, random = BulkLog(root / "node"), Random(SEED)
        paths = []
        for number, (end, (created, deleted)) in enumerate(zip(ENDS, changes, strict=True)):
            work(log.root, random)
            log.grow(end, created=created, deleted=deleted)
            paths.append(shutil.copytree(log.root, root / f"stage{number}"))
        yield Stages(paths, log.written)


# --- tables --------------------------------------------------------------------------------------

Fingerprint = dict[tuple[Any, ...], tuple[int, int, int]]
"""By op and queue, as far as a table has them: how many rows, the sum of their hashes, the exclusive or."""


def fingerprint(table: DataFrame, *, but: tuple[str, ...] = ()) -> Fingerprint:
    """Return what tables of the same rows have in common, in whatever order; ``but``: columns left out."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

    names = sorted(set(table.columns) - set(but))
    values = [hashable(table, name) for name in names]
    # A hash passes over what is null: that a column is must count, or values could change places.
    row_hash = F.xxhash64(*values, *[F.col(name).isNull() for name in names])
    groups = [name for name in ("op", "queue") if name in names]
    summed = F.sum(F.col("row_hash").cast("decimal(38, 0)"))  # longs would overflow
    found = (
        table.select(*groups, row_hash.alias("row_hash"))
        .groupBy(*groups)
        .agg(F.count("*"), summed, F.bit_xor("row_hash"))
        .collect()
    )
    return {tuple(row)[: len(groups)]: tuple(row)[len(groups) :] for row in found}


def hashable(table: DataFrame, name: str) -> Column:
    """Return a column as what can be hashed: a map is a list of its pairs, which has an order."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import MapType

    column = F.col(name)
    is_map = isinstance(table.schema[name].dataType, MapType)
    return F.array_sort(F.map_entries(column)) if is_map else column


def count(found: Fingerprint) -> int:
    return sum(rows for rows, _, _ in found.values())


def counts(found: Fingerprint) -> dict[tuple[Any, ...], int]:
    return {group: rows for group, (rows, _, _) in found.items()}


def read(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("penstock").load(str(path))


# --- a stream that is killed ---------------------------------------------------------------------

ENTRIES_PER_TRIGGER: Final = 50_000
STREAM: Final = """
import sys
from penstock.spark import session

node, place, entries = sys.argv[1:]
settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}
spark, _ = session("local[2]", settings=settings, quiet=True)
stream = spark.readStream.format("penstock").option("maxEntriesPerTrigger", entries).load(node)
query = (
    stream.writeStream.format("parquet")
    .option("checkpointLocation", f"{place}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{place}/out")
)
query.awaitTermination()
"""


@dataclass(frozen=True)
class Stream:
    """A stream of a directory into Parquet, in processes of its own, one after the other."""

    node: Path
    place: Path

    @property
    def begun(self) -> int:
        """How many batches have been planned."""
        return numbered(self.place / "checkpoint" / "offsets")

    @property
    def stored(self) -> int:
        """How many batches the sink has."""
        return numbered(self.place / "out" / "_spark_metadata")

    @property
    def finished(self) -> int:
        return numbered(self.place / "checkpoint" / "commits")

    def start(self) -> subprocess.Popen[bytes]:
        words = [str(self.node), str(self.place), str(ENTRIES_PER_TRIGGER)]
        return subprocess.Popen(
            [sys.executable, "-c", STREAM, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def kill_when(self, is_time: Callable[[], bool]) -> int:
        """Start it, kill it and its Java at a moment, and return how many batches it will have to repeat."""
        running = self.start()
        end = time.monotonic() + PATIENCE_SECONDS
        while not is_time():
            assert running.poll() is None, running.communicate()[1].decode()
            assert time.monotonic() < end, "the moment never came"
            time.sleep(0.001)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        assert running.returncode == -signal.SIGKILL
        return self.begun - self.finished

    def finish(self) -> None:
        running = self.start()
        _, words = running.communicate(timeout=PATIENCE_SECONDS)
        assert running.returncode == 0, words.decode()


def numbered(directory: Path) -> int:
    """Return how many batches a log of Spark's knows: its highest number and one, for old ones are put together."""
    if not directory.is_dir():
        return 0
    numbers = [path.name.removesuffix(".compact") for path in directory.iterdir()]
    return max((int(number) + 1 for number in numbers if number.isdigit()), default=0)


def test_a_stream_killed_three_times_gives_the_rows_of_a_batch(
    spark: SparkSession, stages: Stages, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    stream = Stream(node, tmp_path / "stream")
    stages.show(1, node)
    repeated = [
        stream.kill_when(lambda: stream.finished >= 3),
        # With a batch under way, of which files may be there that do not count.
        stream.kill_when(lambda: stream.begun > stream.finished >= 7),
    ]
    finished_before = stream.finished
    stages.show(2, node)
    # The sink has a batch, which the checkpoint does not know yet, if the moment is met.
    repeated.append(stream.kill_when(lambda: stream.stored > max(12, stream.finished)))
    assert stream.finished > finished_before
    stream.finish()

    batches = stream.finished
    assert batches == stream.begun >= 15
    batch = fingerprint(read(spark, node).where("kind = 'entry'"))
    assert count(batch) == ENDS[-1]
    assert stages.written.items() <= counts(batch).items()
    assert {"adding", "returning"} <= {op for op, _ in batch}, "entries of our own are among them"
    assert fingerprint(spark.read.parquet(str(stream.place / "out"))) == batch
    report(
        f"a million entries as a stream: {batches} batches, killed 3 times, batches repeated: {repeated}"
    )


# --- runs in parts -------------------------------------------------------------------------------


def pipeline(node: Path, out: Path, *flags: str) -> dict[str, Any]:
    """Run the command and return what it printed."""
    words = ["--in", str(node), "--out", str(out), *flags]
    done = process("pipeline", "run", *words, timeout_s=PATIENCE_SECONDS)
    assert done.code == 0, done.err
    (row,) = done.rows
    return row


def in_parts(stages: Stages, node: Path, out: Path) -> list[dict[str, Any]]:
    """Run after each stage of growth; the second run is killed in the middle of its work, and repeated."""
    told = []
    for number in range(len(ENDS)):
        stages.show(number, node)
        if number == 1:
            before = Store(out).current()
            kill_when_it_says("tasks", node, out)
            assert Store(out).current() == before
            assert list((out / "runs").glob("*.staging")), "it was killed with work to leave behind"
        told.append(pipeline(node, out, "--incremental"))
        assert told[-1]["continued"] == ([str(node)] if number else [])
    return told


def held(tables: Path) -> list[tuple[str, int, int, bytes]]:
    """Return what the tables say that waits: queue, id, key and payload."""
    columns = ["queue", "task_id", "key", "payload"]
    table = pq.read_table(tables / "tasks", columns=columns)
    return sorted(zip(*[table[name].to_pylist() for name in columns], strict=True))


def test_runs_in_parts_one_of_them_killed_end_in_the_tables_of_one_run(
    spark: SparkSession, stages: Stages, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    parts = in_parts(stages, node, tmp_path / "parts")
    whole = pipeline(node, tmp_path / "whole")

    assert not whole["continued"]
    assert parts[-1]["rows"] == whole["rows"]
    assert whole["rows"]["damage"] == whole["rows"]["gaps"] == 0
    tables, tables_of_parts = Path(whole["tables"]), Path(parts[-1]["tables"])
    for name in whole["rows"]:
        expected = fingerprint(spark.read.parquet(str(tables / name)))
        assert count(expected) == whole["rows"][name]
        found = fingerprint(spark.read.parquet(str(tables_of_parts / name)))
        assert found == expected, name
    entries = spark.read.parquet(str(tables / "entries"))
    assert fingerprint(entries, but=("by_source", "part")) == fingerprint(read(spark, node))
    tasks = held(tables)
    assert tasks == sorted(identified(node))
    report(
        f"a million entries in tables: {whole['seconds']} s at once,"
        f" {', '.join(str(part['seconds']) for part in parts)} s in parts; {len(tasks)} tasks wait; {whole['rows']}"
    )
