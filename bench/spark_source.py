"""The Spark source beside its yardsticks, over the same rows in one run.

Run by ``bench/spark``; prints tables and, with ``--write``, puts them into docs/benchmarks.md. Every read checks
every record. Parquet of the same rows is the ceiling: Spark reads it without Python.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from formats import RESULTS, machine
from penstock.families.plan import plan, read_splits
from penstock.families.tables import Table, parse_options, schema_of
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.replay import replay
from penstock.formats.taskflux.deltas import encode_adds, encode_delta, encode_removals
from penstock.formats.taskflux.entries import scan_entries
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, segment_name
from penstock.model import CreateQueue, HardState, Index, NodeId, Policy, QueueName, Term
from penstock.spark import session
from penstock.spark.pipeline.moment import moment
from penstock.spark.source import Task, settle
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import OsFiles

PAYLOAD_SIZE = 100
QUEUES = 8
BATCH = 20_000
ROUNDS = 5
USUAL = ("log_index", "op", "queue", "key", "payload")  # what most questions need
START, END = "<!-- bench/spark -->", "<!-- end of bench/spark -->"


def say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def fill(path: Path, *, entries: int, removed: float) -> None:
    """Write a node's directory; ``removed``: the share of tasks that are gone again."""
    random = Random(7)
    directory = NodeDirectory(OsFiles(), path, generation=Generation.THREE)
    directory.metadata.replace(HardState(term=Term(1), vote=NodeId(1)))
    names = [QueueName(f"queue-{number}") for number in range(QUEUES)]
    log = directory.log
    log.append(Term(1), [encode_delta(CreateQueue(queue=n, policy=Policy())) for n in names])
    done, last = QUEUES, dict.fromkeys(names, 0)
    blob = random.randbytes(PAYLOAD_SIZE + BATCH)
    while done < entries:
        name = names[(done // BATCH) % QUEUES]
        count = min(BATCH, entries - done)
        gone = int(count * removed / (1 + removed))
        adds = count - gone
        payloads = [blob[i : i + PAYLOAD_SIZE] for i in range(adds)]
        log.append(Term(1), encode_adds(name, [i % 10 for i in range(adds)], payloads))
        if gone:
            first = last[name] + 1
            log.append(Term(1), encode_removals(name, range(first, first + gone)))
        last[name] += adds
        done += count
        log.sync()
        log.set_committed(Index(log.end - 1))
    directory.close()


def multiply(source: Path, target: Path, times: int) -> None:
    """Make a directory that is several times as large, of links to the same segments under other indexes."""
    shutil.copytree(
        source, target, ignore=lambda _, names: [n for n in names if n.endswith(".log")]
    )
    segments = sorted((source / "data" / "log").glob("*.log"))
    firsts = [int(path.stem) for path in segments]
    with_counts = list(zip(segments, firsts, [*firsts[1:], None], strict=True))
    index = 0
    for _ in range(times):
        for path, first, following in with_counts:
            os.link(path, target / "data" / "log" / segment_name(index))
            index += (following or first + 1_000_000) - first


# --- yardsticks ----------------------------------------------------------------------------------


class TupleSource(DataSource):
    """The same plan and the same scanner, but every row as a tuple of Python objects."""

    @classmethod
    def name(cls) -> str:
        return "penstock-tuples"

    def schema(self) -> StructType:
        return from_arrow_schema(schema_of(Table.ENTRIES))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - always all columns
        return TupleReader(dict(self.options))


class TupleReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = parse_options(options)

    def partitions(self) -> list[InputPartition]:
        return [Task(splits) for splits in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Task)
        names = schema_of(Table.ENTRIES).names
        for batch in read_splits(partition.splits, self._options, names):
            columns = [column.to_pylist() for column in batch.columns]
            place = names.index("properties")
            columns[place] = [None if pairs is None else dict(pairs) for pairs in columns[place]]
            yield from zip(*columns, strict=True)


class BareSource(DataSource):
    """The same rows without reading any: one batch of ours, made once, again and again. What Spark leaves us."""

    @classmethod
    def name(cls) -> str:
        return "penstock-bare"

    def schema(self) -> StructType:
        return from_arrow_schema(schema_of(Table.ENTRIES))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BareReader(dict(self.options), schema.names)


FEW_ROWS = 100
"""Batches of metadata and of queues are smaller; to repeat one of them would measure batches, not rows."""


class BareReader(TupleReader):
    def __init__(self, options: dict[str, str], columns: list[str]) -> None:
        self._rows = int(options.pop("rows"))
        self._columns = columns
        super().__init__(options)

    def partitions(self) -> list[InputPartition]:
        found = super().partitions()
        rows = self._rows // len(found)
        return [Share(part.splits, rows) for part in found if isinstance(part, Task)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share)
        made = read_splits(partition.splits, self._options, self._columns)
        batch = next(one for one in made if one.num_rows > FEW_ROWS)
        for _ in range(partition.rows // batch.num_rows):
            yield batch
        if partition.rows % batch.num_rows:
            yield batch.slice(0, partition.rows % batch.num_rows)
        settle()


class Share(Task):
    """What one task pretends to read."""

    def __init__(self, splits: list[Any], rows: int) -> None:
        super().__init__(splits)
        self.rows = rows


def map_files(batches: Iterator[Any]) -> Iterator[Any]:
    """Scan whole files that Spark read: the way without a source of our own."""
    import numpy as np
    import pyarrow as pa

    layout = LogLayout.THREE
    for batch in batches:
        for content in batch.column("content"):
            data = np.frombuffer(content.as_buffer(), dtype=np.uint8)
            for found in scan_entries(data, layout, start=layout.header_size):
                body = found.pieces.offset + layout.record_header.size
                payload = [
                    data[start : start + size].tobytes()
                    for start, size in zip(body, found.pieces.length, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(found.pieces.term), pa.array(payload, pa.binary())],
                    names=["term", "payload"],
                )


# --- measuring -----------------------------------------------------------------------------------


@contextmanager
def spark_on(master: str) -> Iterator[SparkSession]:
    settings = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}
    spark, _ = session(master, name="bench", settings=settings, quiet=True)
    spark.dataSource.register(TupleSource)
    spark.dataSource.register(BareSource)
    try:
        yield spark
    finally:
        spark.stop()


def noop(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def aggregate(table: DataFrame) -> None:
    columns = [F.count("*"), F.sum(F.length("payload"))]
    if "log_index" in table.columns:
        columns.append(F.max("log_index"))
    table.agg(*columns).collect()


def best(what: Callable[[], object], rounds: int = ROUNDS) -> float:
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        what()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def in_turns(
    runs: dict[str, Callable[[], None]],
    slow: dict[str, Callable[[], None]],
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """Return the best time of each, all measured in turns: a machine that slows down does so for all of them.

    Those that take long have one turn, in the middle.
    """
    found: dict[str, float] = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for what, run in (runs | (slow if number == rounds // 2 else {})).items():
            found[what] = min(found.get(what, math.inf), best(run, 1))
    return found


class Lines:
    """What was measured, as a table of Markdown."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size
        self.seconds: dict[str, float] = {}

    def add(self, what: str, seconds: float) -> None:
        self.seconds[what] = seconds
        say(f"  {what}: {seconds:.2f} s, {self._rows / seconds / 1e6:.2f} M rows/s")

    def markdown(self, ceiling: str) -> str:
        lines = [
            "| read | s | M rows/s | MB/s of log | times Parquet |",
            "|---|---:|---:|---:|---:|",
        ]
        for what, seconds in self.seconds.items():
            kind = what.rsplit(", ", 1)[1]
            some = ", some columns" if ", some columns" in what else ""
            ratio = self.seconds[f"{ceiling}{some}, {kind}"] / seconds
            lines.append(
                f"| {what} | {seconds:.2f} | {self._rows / seconds / 1e6:.2f}"
                f" | {self._size / seconds / 1e6:.0f} | {ratio:.2f} |"
            )
        return "\n".join(lines)


def measure_reads(home: Path, node: Path, *, rows: int, size: int) -> tuple[str, dict[str, float]]:
    lines = Lines(rows, size)
    parquet = str(home / "parquet")
    with spark_on("local[2]") as spark:
        say("warming up, and writing the same rows as Parquet")
        entries = spark.read.format("penstock").load(str(node)).where("kind = 'entry'")
        entries.write.parquet(parquet)

        def ours() -> DataFrame:
            return spark.read.format("penstock").load(str(node))

        def bare() -> DataFrame:
            return spark.read.format("penstock-bare").option("rows", rows).load(str(node))

        def parquet_of(columns: tuple[str, ...]) -> DataFrame:
            return spark.read.parquet(parquet).select(*columns)

        def ours_of(columns: tuple[str, ...]) -> DataFrame:
            source = spark.read.format("penstock").option("columns", ",".join(columns))
            return source.load(str(node))

        def run(action: Callable[[DataFrame], None], read: Callable[[], DataFrame]) -> None:
            action(read())

        actions: list[tuple[str, Callable[[DataFrame], None]]]
        actions = [("noop", noop), ("aggregation", aggregate)]
        some = {"noop": USUAL, "aggregation": ("log_index", "payload")}
        tuples = spark.read.format("penstock-tuples").load(str(node))
        files = spark.read.format("binaryFile").load(str(node / "data" / "log" / "*.log"))
        mapped = files.mapInArrow(map_files, "term long, payload binary")
        runs: dict[str, Callable[[], None]] = {}
        slow: dict[str, Callable[[], None]] = {}
        for name, action in actions:
            reads: list[tuple[str, Callable[[], DataFrame]]] = [
                ("Parquet", partial(spark.read.parquet, parquet)),
                ("`entries`", ours),
                ("nothing read", bare),
                ("Parquet, some columns", partial(parquet_of, some[name])),
                ("`entries`, some columns", partial(ours_of, some[name])),
            ]
            runs |= {f"{what}, {name}": partial(run, action, read) for what, read in reads}
            slow[f"the same as tuples, {name}"] = partial(action, tuples)
            slow[f"binaryFile and mapInArrow, {name}"] = partial(action, mapped)
        tenth = rows // 10

        def read_tenth() -> None:
            source = spark.read.format("penstock").option("columns", "log_index,payload")
            part = source.options(startingIndex=4 * tenth, endingIndex=5 * tenth - 1)
            aggregate(part.load(str(node)))

        taken = in_turns(runs | {"tenth": read_tenth}, slow)
        part = taken.pop("tenth")
        for what, seconds in taken.items():
            lines.add(what, seconds)
        pruned = best(
            lambda: (
                spark.read.format("penstock")
                .option("columns", "log_index")
                .load(str(node))
                .agg(F.max("log_index"))
                .collect()
            )
        )
    with spark_on("local[1]") as spark:
        one = best(lambda: aggregate(spark.read.format("penstock").load(str(node))), 2)
    extra = {"tenth": part, "pruned": pruned, "one core": one}
    return lines.markdown("Parquet"), extra | lines.seconds


def measure_part(spark: SparkSession, node: Path) -> tuple[float, float]:
    """Return the seconds for the aggregation of a log, and of a tenth of it."""
    last = max(int(path.stem) for path in (node / "data" / "log").glob("*.log"))
    tenth = last // 10

    def read(**options: int) -> None:
        source = spark.read.format("penstock").option("columns", "log_index,payload")
        aggregate(source.options(**options).load(str(node)))

    return best(read, 2), best(lambda: read(startingIndex=4 * tenth, endingIndex=5 * tenth - 1))


def first_row(node: Path) -> float:
    """Return the seconds from nothing to the first row, in a process of its own."""
    import subprocess

    code = (
        "from penstock.spark import session\n"
        "spark, _ = session('local[2]', quiet=True)\n"
        f"spark.read.format('penstock').load({str(node)!r}).first()\n"
    )
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - begin


def measure_state(node: Path, entries: int) -> tuple[float, float, int]:
    """Return the seconds that the state takes by aggregation and by replay in order, and its tasks."""
    with spark_on("local[2]") as spark:
        noop(spark.range(10).toDF("id"))
        begin = time.perf_counter()
        count = moment(spark, str(node)).tasks.count()
        ours = time.perf_counter() - begin
    begin = time.perf_counter()
    state = replay(read_history(resolve(node)))
    theirs = time.perf_counter() - begin
    assert sum(len(queue) for queue in state.queues.by_name.values()) == count, entries
    return ours, theirs, count


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/spark", description=__doc__)
    parser.add_argument(
        "--size-mb", type=int, default=200, help="log to scan, default 200; docs: 1000"
    )
    parser.add_argument(
        "--state-entries",
        type=int,
        default=1_000_000,
        help="of the log whose state is computed; 0: none; docs: 10000000",
    )
    parser.add_argument(
        "--times", type=int, default=8, help="how much larger the large log is; 1: none"
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        home = Path(name)
        node = home / "node"
        entries = options.size_mb * 1_000_000 // 142
        say(f"writing a log of {entries:,} entries")
        fill(node, entries=entries, removed=0.0)
        size = sum(path.stat().st_size for path in (node / "data" / "log").glob("*.log"))
        table, seconds = measure_reads(home, node, rows=entries, size=size)
        shutil.rmtree(home / "parquet")
        start = first_row(node)
        words = [
            (
                f"{machine()}; Spark on `local[2]`, a log of {entries:,} entries with {PAYLOAD_SIZE}-byte"
                f" payloads in {len(list((node / 'data' / 'log').glob('*.log')))} segments,"
                f" {size / 1e6:,.0f} MB; the best of {ROUNDS}."
            ),
            "",
            table,
            "",
            "| goal | wanted | measured |",
            "|---|---:|---:|",
            *goals(seconds),
            "",
            (
                f"One core: {seconds['one core']:.2f} s for the aggregation, two:"
                f" {seconds['`entries`, aggregation']:.2f} s. Only `log_index`, by option `columns`:"
                f" {seconds['pruned']:.2f} s. From a new process to the first row: {start:.1f} s."
            ),
        ]
        if options.times > 1:
            large = home / "large"
            multiply(node, large, options.times)
            with spark_on("local[2]") as spark:
                entries_of = spark.read.format("penstock").load(str(large))
                taken = best(lambda: aggregate(entries_of), 1)
                narrow, part = measure_part(spark, large)
            words.append(
                f"\n{options.times} times as large: {taken:.1f} s,"
                f" {taken / seconds['`entries`, aggregation']:.1f} times as long. Its own columns:"
                f" {narrow:.1f} s; a tenth of them by index: {part:.1f} s, {narrow / part:.1f} times faster."
            )
        if options.state_entries:
            state = home / "state"
            say(f"writing a log of {options.state_entries:,} entries")
            fill(state, entries=options.state_entries, removed=0.8)
            ours, theirs, count = measure_state(state, options.state_entries)
            words.append(
                f"\nThe state after {options.state_entries:,} entries ({count:,} tasks wait): {ours:.1f} s by"
                f" aggregation on two cores, {theirs:.1f} s by replay in order in one process."
            )
    text = "\n".join(words)
    sys.stdout.write(text + "\n")
    if options.write:
        write(text)


def goals(seconds: dict[str, float]) -> list[str]:
    """Return a row for each goal."""
    some, all_of_it = ", some columns", ""

    def ratio(kind: str, columns: str) -> float:
        return seconds[f"Parquet{columns}, {kind}"] / seconds[f"`entries`{columns}, {kind}"]

    found = [
        ("`entries` to noop, all columns, times Parquet", 0.7, ratio("noop", all_of_it)),
        (f"the same, {', '.join(USUAL)}", 0.7, ratio("noop", some)),
        ("an aggregation, all columns read, times Parquet", 0.35, ratio("aggregation", all_of_it)),
        ("the same, its own columns read", 0.35, ratio("aggregation", some)),
        (
            "times the tuple source",
            4,
            seconds["the same as tuples, noop"] / seconds["`entries`, noop"],
        ),
        (
            "a tenth by index, times faster",
            10,
            seconds["`entries`, some columns, aggregation"] / seconds["tenth"],
        ),
    ]
    return [
        f"| {what} | {wanted:g} | {got:.2f}{'' if got >= wanted else ' (missed)'} |"
        for what, wanted, got in found
    ]


def write(text: str) -> None:
    """Put the figures into the page."""
    page = RESULTS.read_text()
    section = f"{START}\n{text}\n{END}"
    if START in page:
        before, _, rest = page.partition(START)
        page = before + section + rest.partition(END)[2]
    else:
        page = page.rstrip() + f"\n\n## The Spark source: `bench/spark --write`\n\n{section}\n"
    RESULTS.write_text(page)


if __name__ == "__main__":
    main()
