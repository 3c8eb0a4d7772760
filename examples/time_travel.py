"""What did the queues hold at two moments? Neither a backup nor a running node is asked, only the files.

.venv/bin/python examples/time_travel.py                 a small node, made for the purpose
.venv/bin/python examples/time_travel.py NODE 100 200    your own, after entries 100 and 200
"""

# ruff: noqa: T201 - an example shows what it found

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import penstock
from penstock.spark import session
from penstock.spark.pipeline.moment import moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_node(path: Path) -> tuple[int, int]:
    """Let a node work for a while; return the last entries of its morning and of its evening."""
    with penstock.open(path) as node:
        node.create_queue("mail")
        node.enqueue_many("mail", [b"invoice", b"welcome", b"password"], keys=[5, 5, 1])
        morning = node.node().committed
        for task in node.dequeue_many("mail", 2):  # the lowest key first
            node.ack(task)
        node.enqueue("mail", b"newsletter", key=9)
        evening = node.node().committed
    return morning, evening


def main(spark: SparkSession, path: str, earlier: int, later: int) -> None:
    # The state after an entry is a table of the source: filter it, join it, save it.
    tasks = spark.read.format("penstock").option("table", "tasks")
    before, after = (tasks.option("at", at).load(path) for at in (earlier, later))
    for at, held in ((earlier, before), (later, after)):
        print(f"\nAfter entry {at} the queues held:")
        held.selectExpr("queue", "key", "task_id", "cast(payload as string) as payload").orderBy(
            "queue", "key", "task_id"
        ).show(truncate=40)
    print(f"Done between entries {earlier} and {later}:")
    done = before.join(after, ["queue", "task_id"], "left_anti").orderBy("queue", "task_id")
    for row in done.limit(20).collect():
        print(f"  {row['queue']} #{row['task_id']}: {bytes(row['payload']).decode()}")

    # For a log too large for one machine to replay, the same rows are computed by the whole cluster.
    computed = moment(spark, path, later)
    for row in computed.tasks.groupBy("queue").count().orderBy("queue").collect():
        print(
            f"Computed, too: after entry {computed.index} {row['queue']} held {row['count']} tasks"
        )


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        if sys.argv[1:]:
            path, earlier, later = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        else:
            path = f"{place}/node"
            earlier, later = make_node(Path(path))
        spark, _ = session(name="time travel", quiet=True)
        main(spark, path, earlier, later)
        spark.stop()
