"""Do three copies of one log agree, and is each of them whole? Here one has a flipped bit, one another entry.

.venv/bin/python examples/audit_replicas.py              three small copies, two of them spoilt for the purpose
.venv/bin/python examples/audit_replicas.py DIR DIR...   your own; nothing is written to them
"""

# ruff: noqa: T201 - an example shows what it found

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import penstock
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.log import LogLayout, encode_record
from penstock.model import AddTask, QueueName
from penstock.spark import session
from penstock.spark.pipeline.audit import audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_copies(spark: SparkSession, place: Path) -> list[str]:
    """Make three copies of one log and spoil two, each at one entry."""
    copies = one, two, three = [place / name for name in ("one", "two", "three")]
    with penstock.open(one) as node:
        node.create_queue("payments")
        for amount in (10, 20, 30, 40):
            node.enqueue("payments", b"pay %d" % amount)
    shutil.copytree(one, two)
    shutil.copytree(one, three)
    adds = spark.read.format("penstock").load(str(one)).where("op = 'add'").orderBy("log_index")
    _, second, third, _ = adds.collect()
    # A bad disk: one bit of the second payment.
    data = bytearray((two / second["path"]).read_bytes())
    data[second["offset"] + second["size"] - 1] ^= 1
    (two / second["path"]).write_bytes(data)
    # A bug, or a hand: the third payment is another one, and its checksum is right.
    change = AddTask(queue=QueueName("payments"), key=third["key"], payload=b"pay 99")
    record = encode_record(LogLayout.THREE, term=third["term"], payload=encode_delta(change))
    with open(three / third["path"], "r+b") as log:
        log.seek(third["offset"])
        log.write(record)
    return [str(copy) for copy in copies]


def main(spark: SparkSession, copies: list[str]) -> int:
    """Print what is wrong; return in how many places."""
    found = audit(spark, copies)
    print(f"{len(found.sources)} copies, compared up to entry {found.compared}")
    damage, gaps, divergence = (t.collect() for t in (found.damage, found.gaps, found.divergence))
    for row in damage:
        place = f"{Path(row['source']).name}/{row['path']}, byte {row['offset']}"
        print(f"damage: entry {row['log_index']} in {place}: {row['status']}")
    for row in gaps:
        print(f"gap: {row.asDict()}")
    for row in divergence:
        one, other = Path(row["source"]).name, Path(row["other_source"]).name
        print(
            f"divergence: {one} after entry {row['log_index']} is not as {other}: {row['reason']}"
        )
    print("all is well" if not (damage or gaps or divergence) else "the copies need a look")
    return len(damage) + len(gaps) + len(divergence)


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        spark, _ = session(name="audit", quiet=True)
        main(spark, sys.argv[1:] or make_copies(spark, Path(place)))
        spark.stop()
