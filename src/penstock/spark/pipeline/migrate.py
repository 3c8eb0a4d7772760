"""What waits in one place, put into another: a live node, or a new directory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.client.blocking import connect
from penstock.errors import InvalidValue
from penstock.families.family import Outcome
from penstock.families.options import Operation, Values
from penstock.families.registry import open_files
from penstock.formats.taskflux.generation import Generation
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.spark.pipeline.beginning import policy_of
from penstock.spark.pipeline.moment import Moment
from penstock.spark.pipeline.snapshot import write_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def to_directory(moment: Moment, out: Path, generation: Generation) -> tuple[int, int]:
    """Write a directory that a node serves; return how many queues and tasks it holds."""
    _refuse(moment)
    return write_snapshot(replace(moment, tasks=_fitting(moment)), out, generation=generation)


def to_node(moment: Moment, node: str, say: Callable[[str], None]) -> tuple[int, int]:
    """Put the tasks into a node, queue by queue in the order of delivery; return how many queues and tasks.

    Queues that the node lacks are made with their policies. A migration that was cut off can be repeated: its
    requests carry numbers made of the source and the entry, so what arrived before is not taken twice. A family that has
    an import of its own sends the requests of ``penstock enqueue --from``, so that either finishes what the other began.
    """
    _refuse(moment)
    queues = moment.lives.select("queue", "policy").orderBy("queue").collect()
    with connect(node) as client:
        for row in queues:
            if row["queue"]:
                policy = policy_of(row["policy"])
                client.create_queue(
                    row["queue"],
                    size_max=policy.size_max,
                    payload_size_max=policy.payload_size_max,
                    keys=None if policy.keys is None else (policy.keys.lowest, policy.keys.highest),
                    exist_ok=True,
                )
    count = _fitting(moment).count()
    say(f"moving {count:,} tasks of {len(queues)} queues")
    if moment.source.is_ingested:
        return len(queues), _ingest(moment, node, say)
    name = f"{moment.source.name}\n{moment.index}\n{moment.term}"
    application = "migrate-" + hashlib.sha256(name.encode()).hexdigest()[:24]
    # One partition a queue at least: the order within a key must hold.
    in_order = _fitting(moment).select("queue", "key", "payload", "task_id").repartition("queue")
    (
        in_order.sortWithinPartitions("queue", "key", "task_id")
        .select("queue", "key", "payload")
        .write.format("penstock")
        .option("node", node)
        .option("txnAppId", application)
        .option("txnVersion", 0)
        .mode("append")
        .save()
    )
    return len(queues), count


def _refuse(moment: Moment) -> None:
    """Raise ``InvalidValue`` for a source whose tasks are moved by another command."""
    if moment.source.migration_refusal is not None:
        raise InvalidValue(moment.source.migration_refusal)


def _fitting(moment: Moment) -> DataFrame:
    """Return the tasks that a node takes: a broker may have messages that are too large for one."""
    is_fitting = F.col("size") <= PAYLOAD_SIZE_MAX
    return moment.tasks if moment.source.has_log else moment.tasks.where(is_fitting)


# --- sources with an import of their own ---------------------------------------------------------


def _ingest(moment: Moment, node: str, say: Callable[[str], None]) -> int:
    """Send what the family's own import sends, each part by one task of Spark; return how many tasks."""
    path, values = moment.source.name, moment.values
    count = open_files(Path(path), Operation.INGEST, values).count_parts(values)
    context = moment.tasks.sparkSession.sparkContext
    send = partial(_ingest_part, path, dict(values), node)
    sent = context.parallelize(range(count), count).map(send).collect()
    too_large = sum(left for _, left in sent)
    if too_large:
        say(f"{too_large:,} messages are left out: larger than {PAYLOAD_SIZE_MAX:,} bytes")
    return sum(tasks for tasks, _ in sent)


def _ingest_part(path: str, values: Values, node: str, part: int) -> tuple[int, int]:
    """Send one part; return how many tasks, and how many messages are too large."""
    files = open_files(Path(path), Operation.INGEST, values)
    tasks = too_large = 0
    with connect(node) as client:
        for sending in files.ingest(values, Outcome(), part=part):
            tasks += sending.send(client).total()
            too_large += sending.left.too_large
    return tasks, too_large
