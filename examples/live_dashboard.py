"""How many tasks wait in each queue, as it changes: a stream over the files of a node that works meanwhile.

    .venv/bin/python examples/live_dashboard.py --triggers 5

The stream opens the node's files and asks the node nothing. It ends by itself; one that goes on has no such loop.
"""

# ruff: noqa: T201, S311 - an example shows what it found; its work is made up

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

import penstock
from penstock.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = ("mail", "orders", "reports")
CHANGE = "case op when 'add' then 1 else -1 end"


def work(node: penstock.Client, random: Random) -> None:
    """Enqueue a few tasks, and do some of those that wait."""
    for queue in QUEUES:
        node.enqueue_many(queue, [b"task"] * random.randrange(1, 20))
        for task in node.dequeue_many(queue, random.randrange(1, 15)):
            node.ack(task)


def show(depths: DataFrame, number: int) -> None:
    print(f"\n--- trigger {number}")
    for row in depths.orderBy("queue").collect():
        print(f"{row['queue']:>8} {row['waiting']:4} {'#' * row['waiting']}")


def main(spark: SparkSession, place: Path, triggers: int) -> None:
    with penstock.open(place / "node") as node:
        for queue in QUEUES:
            node.create_queue(queue)
        changes = (
            spark.readStream.format("penstock")
            .option("table", "changes")
            .load(str(place / "node"))
            .where("op in ('add', 'remove')")
        )
        query = (
            changes.groupBy("queue")
            .agg(F.sum(F.expr(CHANGE)).alias("waiting"))
            .writeStream.outputMode("complete")
            .option("checkpointLocation", str(place / "checkpoint"))
            .foreachBatch(show)
            .start()
        )
        random = Random(1)
        for _ in range(triggers):
            work(node, random)
            query.processAllAvailable()  # until the stream has seen what the node did just now
        query.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Show how many tasks wait in each queue.")
    parser.add_argument("--triggers", type=int, default=5, help="rounds of work to follow (5)")
    given = parser.parse_args()
    with TemporaryDirectory() as place:
        spark, _ = session(name="dashboard", quiet=True)
        main(spark, Path(place), given.triggers)
        spark.stop()
