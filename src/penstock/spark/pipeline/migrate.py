"""What waits in one place, put into another: a live node, or a new directory."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.client.blocking import connect
from penstock.errors import InvalidValue
from penstock.formats.taskflux.generation import Generation
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.spark.pipeline.moment import Moment
from penstock.spark.pipeline.policies import policy_of
from penstock.spark.pipeline.snapshot import write_snapshot
from penstock.spark.pipeline.unlogged import SPOOL

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


def to_directory(moment: Moment, out: Path, generation: Generation) -> tuple[int, int]:
    """Write a directory that a node serves; return how many queues and tasks it holds."""
    _refuse_spool(moment)
    return write_snapshot(replace(moment, tasks=_fitting(moment)), out, generation=generation)


def to_node(moment: Moment, node: str, say: Callable[[str], None]) -> tuple[int, int]:
    """Put the tasks into a node, queue by queue in the order of delivery; return how many queues and tasks.

    Queues that the node lacks are made with their policies. A migration that was cut off can be repeated: its
    requests carry numbers made of the source and the entry, so what arrived before is not taken twice.
    """
    _refuse_spool(moment)
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
    name, count = _survey(moment, say)
    say(f"moving {count:,} tasks of {len(queues)} queues")
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


def _refuse_spool(moment: Moment) -> None:
    """Raise ``InvalidValue`` for a spool: its rows are events, of which ours have tasks inside, with times of their own."""
    if moment.source.family == SPOOL:
        raise InvalidValue(
            f"{moment.source.name}: tasks of a spool are brought to a node by 'penstock spool drain', or by 'penstock"
            " enqueue --from', which keep their delays; a pipeline reads them"
        )


def _fitting(moment: Moment) -> DataFrame:
    """Return the tasks that a node takes: a broker may have messages that are too large for one."""
    is_fitting = F.col("size") <= PAYLOAD_SIZE_MAX
    return moment.tasks if moment.source.has_log else moment.tasks.where(is_fitting)


def _survey(moment: Moment, say: Callable[[str], None]) -> tuple[str, int]:
    """Return what tells this state from every other, and how many tasks are to be moved.

    Without a log only the tasks themselves tell it, all of them: wherever the directory lies, it is the same.
    """
    if moment.source.has_log:
        return f"{moment.source.name}\n{moment.index}\n{moment.term}", moment.tasks.count()
    checksum = F.xxhash64("queue", "key", "task_id", "payload").cast("decimal(38, 0)")
    (told,) = moment.tasks.agg(
        F.count("*").alias("count"),
        F.sum(checksum).alias("sum"),
        F.count_if(F.col("size") > PAYLOAD_SIZE_MAX).alias("large"),
    ).collect()
    if told["large"]:
        say(f"{told['large']:,} messages are left out: larger than {PAYLOAD_SIZE_MAX:,} bytes")
    return f"{told['count']}\n{told['sum']}", told["count"] - told["large"]
