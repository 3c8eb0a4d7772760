"""What waits in one place, put into another: a live node, or a new directory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.client.blocking import connect
from penstock.formats.taskflux.generation import Generation
from penstock.spark.pipeline.moment import Moment
from penstock.spark.pipeline.policies import policy_of
from penstock.spark.pipeline.snapshot import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


def to_directory(moment: Moment, out: Path, generation: Generation) -> tuple[int, int]:
    """Write a directory that a node serves; return how many queues and tasks it holds."""
    return write_snapshot(moment, out, generation=generation)


def to_node(moment: Moment, node: str, say: Callable[[str], None]) -> tuple[int, int]:
    """Put the tasks into a node, queue by queue in the order of delivery; return how many queues and tasks.

    Queues that the node lacks are made with their policies. A migration that was cut off can be repeated: its
    requests carry numbers made of the source and the entry, so what arrived before is not taken twice.
    """
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
    count = moment.tasks.count()
    say(f"moving {count:,} tasks of {len(queues)} queues")
    name = f"{moment.source.name}\n{moment.index}\n{moment.term}"
    application = "migrate-" + hashlib.sha256(name.encode()).hexdigest()[:24]
    # One partition a queue at least: the order within a key must hold.
    in_order = moment.tasks.select("queue", "key", "payload", "task_id").repartition("queue")
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
