"""The driver of the tests of a cluster, in a process of its own: reads, goes back in time, works on as a worker dies.

Arguments: the master's URL, a node's directory, the package as a zip, where results go, an index to go back to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.spark.pipeline.moment import moment
from penstock.spark.sessions import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
}
Work = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

SPLIT: Final = "4k"
"""So small that a log of a few kilobytes is read by many tasks."""

HELD: Final = 2
"""Tasks, the last ones of the job, that wait until a worker is dead: one on each worker."""


def main() -> None:
    master, node, package, results, at = sys.argv[1:]
    out = Path(results)
    settings = SETTINGS | {"spark.submit.pyFiles": package}
    spark, _ = session(master, name="cluster", settings=settings, quiet=True)
    entries = spark.read.format("penstock").option("splitSize", SPLIT).load(node)
    keep(entries, out, "entries")
    keep(moment(spark, node, int(at)).tasks, out, "tasks")
    summed = count_up(entries.mapInArrow(holder(entries, out), entries.schema))
    keep(summed, out, "summed")
    spark.stop()


def keep(table: DataFrame, out: Path, name: str) -> None:
    """Write a result under its name once it is whole."""
    import pyarrow.parquet as pq

    pq.write_table(table.toArrow(), out / f"{name}.part")
    (out / f"{name}.part").rename(out / f"{name}.parquet")


def count_up(entries: DataFrame) -> DataFrame:
    return entries.groupBy("op", "queue").agg(
        F.count("*").alias("rows"),
        F.sum("log_index").alias("indexes"),
        F.sum(F.length("payload")).alias("bytes"),
    )


def holder(entries: DataFrame, out: Path) -> Work:
    """Return what each task runs: it leaves a mark of where its package is, and the last ones wait for a sign."""
    marks, sign, held = str(out / "marks"), str(out / "sign"), entries.rdd.getNumPartitions() - HELD
    Path(marks).mkdir()

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        import penstock

        task = TaskContext.get()
        assert task is not None
        name = f"{task.partitionId():04d}-{task.taskAttemptId()}"
        (Path(marks) / f"{name}.part").write_text(str(Path(penstock.__file__).absolute()))
        (Path(marks) / f"{name}.part").rename(Path(marks) / name)
        end = time.monotonic() + 60
        while task.partitionId() >= held and not Path(sign).exists():
            assert time.monotonic() < end, "nobody gave the sign"
            time.sleep(0.01)
        yield from batches

    return hold


if __name__ == "__main__":
    main()
