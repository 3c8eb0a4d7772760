"""What waits in the data directory of a stopped RabbitMQ, put into a live node: bodies, properties, order.

.venv/bin/python examples/migrate_rabbitmq.py RABBIT HOST:PORT    nothing is written to RABBIT
.venv/bin/python examples/migrate_rabbitmq.py HOST:PORT           a small directory, made for the purpose

The same as a command: penstock pipeline migrate --from RABBIT --to HOST:PORT
"""

# ruff: noqa: T201 - an example shows what it found

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import penstock
from penstock.formats.rabbitmq.envelope import decode_envelope
from penstock.formats.rabbitmq.journal import Publish, SequenceNumber, encode_publish
from penstock.formats.rabbitmq.messages import Content, Message, encode_message
from penstock.formats.rabbitmq.names import StoredQueue, encode_queue_name
from penstock.formats.rabbitmq.properties import Properties
from penstock.spark import session
from penstock.spark.pipeline.migrate import to_node
from penstock.spark.pipeline.moment import moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_rabbit(path: Path) -> str:
    """Write what a broker keeps of a queue with two priorities: for each a directory with a journal."""
    for priority, bodies in ((0, (b"invoice", b"newsletter")), (5, (b"password",))):
        queue = StoredQueue(vhost=b"/", queue=b"mail", priority=priority)
        home = path / "msg_stores" / "vhosts" / "one" / "queues" / queue.directory
        home.mkdir(parents=True)
        (home / ".queue_name").write_bytes(encode_queue_name(queue))
        with (home / "journal.jif").open("wb") as journal:
            for number, body in enumerate(bodies):
                journal.write(encode_publish(SequenceNumber(number), published(body)))
    return str(path)


def published(body: bytes) -> Publish:
    name = body.ljust(16, b"-")  # a broker's are random
    properties = Properties(content_type=b"text/plain", delivery_mode=2)
    content = Content(stored_properties=properties, fragments=(body,))
    keys = (b"mail",)
    message = Message(vhost=b"/", exchange=b"", routing_keys=keys, content=content, id=name, is_persistent=True)  # fmt: skip
    term = encode_message(message)
    return Publish(message_id=name, is_persistent=True, expiry_us=0, body_size=len(body), embedded=term)  # fmt: skip


def main(spark: SparkSession, rabbit: str, node: str) -> None:
    # Repeated, it doubles nothing: what has expired is judged by when the files were written last.
    waiting = moment(spark, rabbit, for_migration=True)
    queues, tasks = to_node(waiting, node, print)
    print(f"{tasks} tasks of {queues} queues are in the node")
    with penstock.connect(node) as client:
        for stat in client.queues():
            for task in client.peek(stat.name, 3):
                known, body = decode_envelope(task.payload)
                kind = known.properties.content_type if known.properties else None
                print(f"{stat.name}: key {task.key}, {kind!r}, {body[:20]!r}")


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        *given, node = sys.argv[1:] or ["localhost:2602"]
        spark, _ = session(name="migration", quiet=True)
        main(spark, given[0] if given else make_rabbit(Path(place)), node)
        spark.stop()
