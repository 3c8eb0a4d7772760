"""Rows: what the tools say of a broker's records, messages and damage, as plain dictionaries.

The names are the contract that ``tools/rows.py`` keeps for the other family. Names of vhosts, queues,
exchanges and keys are bytes to a broker: what is not UTF-8 is an object with ``base64``.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import BadData
from penstock.formats.rabbitmq.messages import Message
from penstock.formats.rabbitmq.properties import json_of_properties, json_of_text
from penstock.tools.rabbitmq.location import FAMILY, Queue, Vhost
from penstock.tools.rabbitmq.queue_reading import Held
from penstock.tools.rabbitmq.trouble import Tell, Trouble
from penstock.tools.rows import Row, encode_payload


def place(path: Path, kind: str, offset: int | None, size: int | None, status: str) -> Row:
    """Return the names that every row about a place has, in their order."""
    return {
        "family": FAMILY,
        "kind": kind,
        "path": str(path),
        "offset": offset,
        "size": size,
        "status": status,
    }


def trouble_row(trouble: Trouble) -> Row:
    row = place(trouble.path, "damage", trouble.offset, trouble.size, trouble.status)
    row["reason"] = trouble.reason
    return row if trouble.sequence is None else row | {"seq": trouble.sequence}


def name_fields(vhost: Vhost, queue: Queue) -> Row:
    """Return what tells a queue."""
    name = queue.name.vhost if queue.name is not None else vhost.name
    return {
        "vhost": None if name is None else json_of_text(name),
        "queue": json_of_text(queue.label),
    }


def task_row(vhost: Vhost, queue: Queue, held: Held, tell: Tell) -> Row:
    """Return a message as a task: the smallest ``key`` is delivered first, so it is 0 - priority.

    The priority is that of the queue's directory, not the message's own: only a queue that was declared
    with priorities has them, and a broker lowers a message's to the highest that the queue has.
    """
    indexed, message = held
    row = name_fields(vhost, queue)
    if row["vhost"] is None and message.vhost is not None:
        row["vhost"] = json_of_text(message.vhost)
    row |= {
        "seq": indexed.sequence,
        "key": -queue.priority,
        "persistent": indexed.is_persistent,
        "delivered": indexed.is_delivered,
        "expiry_us": indexed.expiry_us or None,
    }
    fields, reason = message_fields(message)
    if reason is not None:
        status = "bad-properties"
        tell(Trouble(indexed.path, indexed.offset, None, status, reason, indexed.sequence))
    return row | fields


def message_fields(message: Message) -> tuple[Row, str | None]:
    """Return what a message says, and why its properties cannot be read, if they cannot."""
    properties, reason = None, None
    try:
        properties = json_of_properties(message.content.properties)
    except BadData as error:
        reason = f"the properties cannot be read: {error.reason}"
    fields = {
        "exchange": json_of_text(message.exchange),
        "routing_keys": [json_of_text(key) for key in message.routing_keys],
        "properties": properties,
        "payload": encode_payload(message.content.body),
    }
    return fields, reason
