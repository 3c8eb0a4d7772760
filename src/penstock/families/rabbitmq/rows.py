"""The rows of a broker's records and messages.

Names of vhosts, queues, exchanges and keys are bytes to a broker: what is not UTF-8 is an object with ``base64``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from penstock.binary import Bytes
from penstock.errors import BadData
from penstock.families.damage import Damage, Report, place_row
from penstock.families.family import LEFT_OUT, Row, encode_payload
from penstock.families.payloads import payload_fields
from penstock.families.rabbitmq.damage import BAD_PROPERTIES, damage_at
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.location import Queue, Vhost
from penstock.families.rabbitmq.other_queues import OtherQueue
from penstock.families.rabbitmq.read import Held
from penstock.formats.rabbitmq.envelope import Envelope, json_of_publication
from penstock.formats.rabbitmq.messages import Message
from penstock.formats.rabbitmq.properties import (
    JsonText,
    Properties,
    json_of_block,
    json_of_properties,
    json_of_text,
)

place: Final = partial(place_row, FAMILY)
"""Return the names that every row about a place has."""


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


def envelope_of(vhost: Vhost, queue: Queue, held: Held, report: Report) -> Envelope:
    """Return all that is known of a message; report properties that cannot be read."""
    indexed, message = held
    name = vhost_name(vhost, queue)
    properties, reason = _properties(message)
    if reason is not None:
        report(bad_properties(indexed.path, indexed.offset, indexed.sequence, reason))
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


class TaskAddress(NamedTuple):
    """The fields of a task's row that most messages of a queue share."""

    vhost: JsonText | None
    queue: JsonText
    key: int
    exchange: JsonText
    routing_keys: list[JsonText]


def task_address(
    vhost: Vhost, queue: Queue, *, own: bytes | None, exchange: bytes, keys: Sequence[bytes]
) -> TaskAddress:
    """Return the address of messages; ``own`` is the vhost that they name themselves, if they do.

    The smallest ``key`` is delivered first, so it is 0 - priority. The priority is that of the queue's directory, not
    the message's own: only a queue that was declared with priorities has them, and a broker lowers a message's to the
    highest that the queue has.
    """
    name = vhost_name(vhost, queue)
    name = own if name is None else name
    return TaskAddress(
        vhost=None if name is None else json_of_text(name),
        queue=json_of_text(queue.label),
        key=-queue.priority,
        exchange=json_of_text(exchange),
        routing_keys=[json_of_text(key) for key in keys],
    )


def task_fields(
    address: TaskAddress,
    sequence: int,
    is_persistent: bool,
    is_delivered: bool | None,
    expiry_us: int,
    properties: Row | None,
    body: Bytes,
) -> Row:
    """Return the row of a task. Its names are those of ``json_of_envelope``, and ``key`` and ``payload``."""
    return {
        "vhost": address.vhost,
        "queue": address.queue,
        "seq": sequence,
        "key": address.key,
        "persistent": is_persistent,
        "delivered": is_delivered,
        "expiry_us": expiry_us or None,
        "exchange": address.exchange,
        "routing_keys": address.routing_keys,
        "properties": properties,
        **payload_fields(bytes(body)),
    }


def task_row(vhost: Vhost, queue: Queue, held: Held, report: Report) -> Row:
    """Return a message as a task; report properties that cannot be read."""
    indexed, message = held
    properties, reason = json_properties(message.content.stored_properties)
    if reason is not None:
        report(bad_properties(indexed.path, indexed.offset, indexed.sequence, reason))
    address = task_address(
        vhost, queue, own=message.vhost, exchange=message.exchange, keys=message.routing_keys
    )
    return task_fields(
        address,
        indexed.sequence,
        indexed.is_persistent,
        indexed.is_delivered,
        indexed.expiry_us,
        properties,
        message.content.body,
    )


def json_properties(stored: bytes | Properties) -> tuple[Row | None, str | None]:
    """Return properties as JSON, or why they cannot be read."""
    return (
        (json_of_properties(stored), None)
        if isinstance(stored, Properties)
        else json_of_stored(stored)
    )


@lru_cache(maxsize=1024)  # publishers mostly set the same few properties
def json_of_stored(block: bytes) -> tuple[Row | None, str | None]:
    try:
        return json_of_block(block), None
    except BadData as error:
        return None, _unreadable(error)


def bad_properties(path: Path, offset: int, sequence: int, reason: str) -> Damage:
    return damage_at(path, BAD_PROPERTIES, reason, offset=offset, sequence=sequence)


def message_fields(message: Message) -> tuple[Row, str | None]:
    """Return what a message says, and why its properties cannot be read, if they cannot."""
    properties, reason = _properties(message)
    fields = json_of_publication(message.exchange, message.routing_keys, properties)
    return fields | {"payload": encode_payload(message.content.body)}, reason


def _properties(message: Message) -> tuple[Properties | None, str | None]:
    try:
        return message.content.properties, None
    except BadData as error:
        return None, _unreadable(error)


def _unreadable(error: BadData) -> str:
    return f"the properties cannot be read: {error.reason}"
