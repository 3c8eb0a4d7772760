"""The Spark source on files of generation 4, beside Parquet of the same rows and a source that reads nothing.

Run by ``bench/spark records``; prints tables. The log is of batches of 100 tasks as our client sends them, each with a
producer, and half of the tasks are acknowledged in batches. Every read checks every record.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from pyspark.sql import DataFrame

from formats import machine
from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import AddTasks, Change, Empty, RemoveTasks, SetQueue, Stamp
from penstock.formats.records.identity import Identity, encode_identity
from penstock.formats.records.ids import RemoveReason
from penstock.formats.records.segment import LOG_SUFFIX, file_name
from penstock.formats.records.settings import QueueSettings
from penstock.formats.records.writer import write_log
from penstock.model import QueueName
from spark_source import Lines, aggregate, in_turns, noop, say, spark_on

BATCH = 100
PAYLOAD_SIZE = 100
QUEUES = 8
TURN = 200  # batches of one queue before the next one
CLUSTER = bytes(range(16))
USUAL = ("log_index", "op", "queue", "key", "payload")


def entries(batches: int) -> Iterator[tuple[Stamp, Change]]:
    """Yield a log: queues, batches of tasks, and acknowledgements of every second batch."""
    random = Random(7)
    blob = random.randbytes(PAYLOAD_SIZE * BATCH * 4)
    index, time_ms = 1, 1_750_000_000_000
    yield Stamp(index, 1, time_ms), Empty()
    for number in range(QUEUES):
        index += 1
        settings = QueueSettings(name=QueueName(f"queue-{number}"))
        yield Stamp(index, 1, time_ms), SetQueue(number + 1, settings)
    last = [0] * QUEUES
    for number in range(batches):
        queue = number // TURN % QUEUES
        start = number % 300 * PAYLOAD_SIZE
        payloads = [blob[start + i * PAYLOAD_SIZE :][:PAYLOAD_SIZE] for i in range(BATCH)]
        body = encode_add(
            f"queue-{queue}".encode(), number % 10, payloads, producer=(bytes(16), number * BATCH)
        )
        index, time_ms = index + 1, time_ms + 3
        first = last[queue] + 1
        add = AddTasks(queue + 1, first, decode_add(body, 0, len(body), Rules.RECORD))
        yield Stamp(index, 1, time_ms, 1), add
        last[queue] += BATCH
        if number % 2:
            index += 1
            gone = range(first, first + BATCH)
            yield Stamp(index, 1, time_ms, 2), RemoveTasks(queue + 1, gone, RemoveReason.ACKED)


def fill(path: Path, batches: int) -> None:
    """Write a directory of generation 4."""
    (path / "log").mkdir(parents=True)
    (path / "snapshots").mkdir()
    identity = Identity(node=1, incarnation=CLUSTER, cluster_id=CLUSTER)
    (path / "identity.json").write_bytes(encode_identity(identity))
    for segment in write_log(entries(batches), cluster_id=CLUSTER):
        (path / "log" / file_name(segment.first_index, LOG_SUFFIX)).write_bytes(segment.data)


def measure(home: Path, node: Path, table: str, *, size: int, rounds: int) -> Lines:
    """Measure one table: ours, Parquet, and the same batches from memory."""
    parquet = str(home / f"parquet-{table}")
    with spark_on("local[2]") as spark:

        def ours(columns: tuple[str, ...] = ()) -> DataFrame:
            source = spark.read.format("penstock").option("table", table)
            source = source.option("columns", ",".join(columns)) if columns else source
            return source.load(str(node))

        whole = ours()
        whole.write.parquet(parquet)
        rows = spark.read.parquet(parquet).count()

        def bare(columns: tuple[str, ...] = ()) -> DataFrame:
            source = spark.read.format("penstock-bare").option("rows", rows).option("table", table)
            names = columns or tuple(whole.columns)
            found = source.schema(whole.select(*names).schema)
            return found.load(str(node))

        def stored(columns: tuple[str, ...] = ()) -> DataFrame:
            found = spark.read.parquet(parquet)
            return found.select(*columns) if columns else found

        reads: dict[str, Callable[[tuple[str, ...]], DataFrame]]
        reads = {"Parquet": stored, f"`{table}`": ours, "the same from memory": bare}
        runs: dict[str, Callable[[], None]] = {}
        for kind, action, some in (("noop", noop, USUAL), ("aggregation", aggregate, ("log_index", "payload"))):  # fmt: skip
            for what, read in reads.items():
                runs[f"{what}, {kind}"] = partial(_run, action, read, ())
                runs[f"{what}, some columns, {kind}"] = partial(_run, action, read, some)
        lines = Lines(rows, size)
        for what, seconds in in_turns(runs, {}, rounds).items():
            lines.add(what, seconds)
    return lines


def _run(
    action: Callable[[DataFrame], None],
    read: Callable[[tuple[str, ...]], DataFrame],
    columns: tuple[str, ...],
) -> None:
    action(read(columns))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/spark records", description=__doc__)
    parser.add_argument("--batches", type=int, default=20_000, help="of 100 tasks, default 20000")
    parser.add_argument("--rounds", type=int, default=5, help="the best counts, default 5")
    options = parser.parse_args()
    # Workers import the source that reads nothing by its name.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.absolute())
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        home = Path(name)
        node = home / "node"
        say(f"writing a log of {options.batches:,} batches")
        fill(node, options.batches)
        size = sum(path.stat().st_size for path in (node / "log").iterdir())
        words = [f"{machine()}; {options.batches * BATCH:,} tasks, {size / 1e6:,.0f} MB, `local[2]`.", ""]  # fmt: skip
        for table in ("entries", "changes"):
            lines = measure(home, node, table, size=size, rounds=options.rounds)
            words += [lines.markdown("Parquet"), ""]
        sys.stdout.write("\n".join(words))


if __name__ == "__main__":
    main()
