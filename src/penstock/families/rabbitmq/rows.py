"""Rows: what the tools say of a broker's records, messages and damage, as plain dictionaries.

The names are the contract that ``tools/rows.py`` keeps for the other family. Names of vhosts, queues,
exchanges and keys are bytes to a broker: what is not UTF-8 is an object with ``base64``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.errors import BadData
from penstock.families.rabbitmq.location import FAMILY, Queue, Vhost
from penstock.families.rabbitmq.other_queues import OtherQueue
from penstock.families.rabbitmq.read import Held
from penstock.families.rabbitmq.trouble import Tell, Trouble
from penstock.families.taskflux.rows import Row, encode_payload, place_row
from penstock.formats.rabbitmq.envelope import Envelope, json_of_envelope, json_of_publication
from penstock.formats.rabbitmq.messages import Message
from penstock.formats.rabbitmq.properties import Properties, json_of_text

place: Final = partial(place_row, FAMILY)
"""Return the names that every row about a place has."""


def trouble_row(trouble: Trouble) -> Row:
    row = place(trouble.path, "damage", trouble.offset, trouble.size, trouble.status)
    row["reason"] = trouble.reason
    return row if trouble.sequence is None else row | {"seq": trouble.sequence}


LEFT_OUT: Final = "left-out"


def other_row(other: OtherQueue) -> Row:
    """Return the row of a queue that is not classic, and so is not read."""
    row = place(other.path, "queue", None, None, LEFT_OUT)
    what = "stream" if other.type == "stream" else f"{other.type} queue"
    row["reason"] = f"a {what}: only classic queues are read"
    return row | {
        "vhost": None if other.vhost is None else json_of_text(other.vhost),
        "queue": None if other.queue is None else json_of_text(other.queue),
        "type": other.type,
    }


def vhost_name(vhost: Vhost, queue: Queue) -> bytes | None:
    """Return the vhost that a queue says it is of, else the one that it stands in; ``None`` if unknown."""
    return queue.name.vhost if queue.name is not None else vhost.name


def is_asked_for(vhost: Vhost, queue: Queue, of_vhost: bytes | None, named: bytes | None) -> bool:
    """Return whether a queue is of this vhost and has this name; ``None`` is any."""
    return of_vhost in (None, vhost_name(vhost, queue)) and named in (None, queue.label)


def name_fields(vhost: Vhost, queue: Queue) -> Row:
    """Return what tells a queue."""
    name = vhost_name(vhost, queue)
    return {
        "vhost": None if name is None else json_of_text(name),
        "queue": json_of_text(queue.label),
    }


def envelope_of(vhost: Vhost, queue: Queue, held: Held, tell: Tell) -> Envelope:
    """Return all that is known of a message; tell if its properties cannot be read."""
    indexed, message = held
    name = vhost_name(vhost, queue)
    properties, reason = _properties(message)
    if reason is not None:
        status = "bad-properties"
        tell(Trouble(indexed.path, indexed.offset, None, status, reason, indexed.sequence))
    return Envelope(
        vhost=message.vhost if name is None else name,
        queue=queue.label,
        sequence=indexed.sequence,
        is_persistent=indexed.is_persistent,
        is_delivered=indexed.is_delivered,
        expiry_us=indexed.expiry_us or None,
        exchange=message.exchange,
        routing_keys=message.routing_keys,
        properties=properties,
    )


def task_row(vhost: Vhost, queue: Queue, held: Held, tell: Tell) -> Row:
    """Return a message as a task: the smallest ``key`` is delivered first, so it is 0 - priority.

    The priority is that of the queue's directory, not the message's own: only a queue that was declared
    with priorities has them, and a broker lowers a message's to the highest that the queue has.
    """
    known = json_of_envelope(envelope_of(vhost, queue, held, tell))
    row: Row = {name: known.pop(name) for name in ("vhost", "queue", "seq")}
    row["key"] = -queue.priority
    return row | known | {"payload": encode_payload(held.message.content.body)}


def message_fields(message: Message) -> tuple[Row, str | None]:
    """Return what a message says, and why its properties cannot be read, if they cannot."""
    properties, reason = _properties(message)
    fields = json_of_publication(message.exchange, message.routing_keys, properties)
    return fields | {"payload": encode_payload(message.content.body)}, reason


def _properties(message: Message) -> tuple[Properties | None, str | None]:
    try:
        return message.content.properties, None
    except BadData as error:
        return None, f"the properties cannot be read: {error.reason}"
