"""What waits in one place, put into another: a live node, or a new directory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.client.blocking import connect
from penstock.errors import InvalidValue
from penstock.families.rabbitmq.ingest import Selection, plan, read_requests
from penstock.families.rabbitmq.location import FAMILY as BROKER
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.trouble import ignore
from penstock.families.sending import send_numbered
from penstock.formats.taskflux.generation import Generation
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.protocol.version2 import Enqueue
from penstock.spark.pipeline.moment import Moment
from penstock.spark.pipeline.policies import policy_of
from penstock.spark.pipeline.snapshot import write_snapshot
from penstock.spark.pipeline.unlogged import SPOOL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def to_directory(moment: Moment, out: Path, generation: Generation) -> tuple[int, int]:
    """Write a directory that a node serves; return how many queues and tasks it holds."""
    _refuse_spool(moment)
    return write_snapshot(replace(moment, tasks=_fitting(moment)), out, generation=generation)


def to_node(moment: Moment, node: str, say: Callable[[str], None]) -> tuple[int, int]:
    """Put the tasks into a node, queue by queue in the order of delivery; return how many queues and tasks.

    Queues that the node lacks are made with their policies. A migration that was cut off can be repeated: its
    requests carry numbers made of the source and the entry, so what arrived before is not taken twice. Messages of a
    broker are sent by the requests of ``penstock enqueue --from``, so that either finishes what the other began.
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
    count = _fitting(moment).count()
    say(f"moving {count:,} tasks of {len(queues)} queues")
    if moment.source.family == BROKER:
        return len(queues), _send_messages(moment, node, say)
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


# --- messages of a broker ------------------------------------------------------------------------


def _send_messages(moment: Moment, node: str, say: Callable[[str], None]) -> int:
    """Send the messages of a broker's files, each queue by one task of Spark; return how many."""
    path, selection = moment.source.name, moment.asked.selection(moment.source)
    count = len(plan(resolve(Path(path)), selection))
    context = moment.tasks.sparkSession.sparkContext
    send = partial(_send_queue, path, selection, node)
    sent = context.parallelize(range(count), count).map(send).collect()
    too_large = sum(left for _, left in sent)
    if too_large:
        say(f"{too_large:,} messages are left out: larger than {PAYLOAD_SIZE_MAX:,} bytes")
    return sum(tasks for tasks, _ in sent)


def _send_queue(path: str, selection: Selection, node: str, number: int) -> tuple[int, int]:
    """Send the messages of one of the planned queues; return how many, and how many are too large."""
    target = plan(resolve(Path(path)), selection)[number]
    tasks = too_large = 0

    def counted(requests: Iterator[Enqueue]) -> Iterator[Enqueue]:
        nonlocal tasks
        for request in requests:
            tasks += len(request.payloads)
            yield request

    with connect(node) as client:
        for queue, requests, left in read_requests([target], selection, tell=ignore):
            send_numbered(client, counted(requests), f"queue {queue!r}")
            too_large += left.too_large
    return tasks, too_large
