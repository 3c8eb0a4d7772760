"""The rows of a broker's records and messages, and of tasks: what a broker has after a restart.

Names of vhosts, queues, exchanges and keys are bytes to a broker: what is not UTF-8 is an object with ``base64``. Most
messages of a queue have the address of the message before, and the properties of another one. Both become JSON once
(docs/formats/rabbitmq-messages.md, "In bulk").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.binary import Bytes
from penstock.errors import BadData, PathRefused
from penstock.families.damage import Damage, Report, ignore, place_row
from penstock.families.family import LEFT_OUT, Progress, Row, encode_payload, no_progress
from penstock.families.payloads import payload_fields
from penstock.families.rabbitmq.columns import UNKNOWN, Messages, read_columns
from penstock.families.rabbitmq.damage import BAD_PROPERTIES, damage_at
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.location import (
    Location,
    OtherQueue,
    Queue,
    Vhost,
    is_asked_for,
    vhost_name,
)
from penstock.families.rabbitmq.read import Bodies, Held, Wanted, read_queue
from penstock.formats.rabbitmq.envelope import Envelope, json_of_publication
from penstock.formats.rabbitmq.message_scan import routing_keys
from penstock.formats.rabbitmq.messages import Message
from penstock.formats.rabbitmq.properties import (
    JsonText,
    Properties,
    json_of_block,
    json_of_properties,
    json_of_text,
)
from penstock.storage.files import OpenFiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


# --- tasks ---------------------------------------------------------------------------------------

BULK_FROM: Final = 2**20
"""Bytes of files from which on messages are read in bulk: fewer are read sooner than the kernels are loaded."""


def tasks(
    location: Location,
    wanted: Wanted,
    *,
    report: Report,
    vhost: bytes | None = None,
    queue: bytes | None = None,
    progress: Progress = no_progress,
    bulk_from: int = BULK_FROM,
) -> Iterator[Row]:
    """Yield a row for each message, by vhost, queue, priority and sequence number.

    ``vhost`` and ``queue`` leave out all others. Files of ``bulk_from`` bytes or more are read in bulk where numpy and
    numba are installed. Raises ``PathRefused`` where there is no index.
    """
    is_bulk = location.size >= bulk_from and _has_kernels()
    for one, each, bodies in _queues(location, report, vhost, queue, progress):
        if is_bulk and not each.indexes:  # messages of version 2 are read one by one in any case
            for messages in read_columns(each, bodies, wanted, report=report, progress=progress):
                yield from rows_of_columns(one, each, messages, report)
        else:
            for held in read_queue(each, bodies, wanted, report=report, progress=progress):
                yield task_row(one, each, held, report)


def _has_kernels() -> bool:
    return all(find_spec(name) is not None for name in ("numpy", "numba"))


def _queues(
    location: Location,
    report: Report,
    vhost: bytes | None,
    queue: bytes | None,
    progress: Progress,
) -> Iterator[tuple[Vhost, Queue, Bodies]]:
    """Yield the queues to be read, each with what finds its messages."""
    if location.kind in ("store", "store-file", "queue-store"):
        raise PathRefused(
            f"{location.path}: a store does not say which messages are still in a queue; name the queue's"
            " directory or the node's, or see all messages with 'penstock dump'"
        )
    for damage in location.found_damage:
        report(damage)
    for one in location.vhosts:
        with OpenFiles() as files:
            # Damage in a store matters here only if a message is missing, which is reported then.
            bodies = Bodies(vhost=one, files=files, report=ignore, progress=progress)
            for each in one.queues:
                if is_asked_for(one, each, vhost, queue):
                    yield one, each, bodies


_DELIVERED = {UNKNOWN: None, 0: False, 1: True}


def rows_of_columns(
    vhost: Vhost, queue: Queue, messages: Messages, report: Report
) -> Iterator[Row]:
    """Yield the row of each message of a queue; report properties that cannot be read."""
    data, parts, decoded = messages.data.data, messages.parts, messages.decoded
    columns = zip(
        _addresses(vhost, queue, messages),
        messages.sequence.tolist(),
        messages.is_persistent.tolist(),
        [_DELIVERED[delivered] for delivered in messages.delivered.tolist()],
        messages.expiry_us.tolist(),
        _spans(parts.properties_offset, parts.properties_length),
        _spans(parts.body_offset, parts.body_length),
        strict=True,
    )
    for row, (address, sequence, persistent, delivered, expiry_us, block, body) in enumerate(
        columns
    ):
        if row in decoded:
            properties, reason = json_properties(decoded[row].content.stored_properties)
        else:
            properties, reason = json_of_stored(bytes(data[block]))
        if reason is not None:
            path = messages.paths[int(messages.path[row])]
            report(bad_properties(path, int(messages.offset[row]), sequence, reason))
        yield task_fields(
            address, sequence, persistent, delivered, expiry_us, properties, data[body]
        )


def _spans(offset: NDArray[np.int64], length: NDArray[np.int64]) -> Iterator[slice]:
    return map(slice, offset.tolist(), (offset + length).tolist())


def _addresses(vhost: Vhost, queue: Queue, messages: Messages) -> Iterator[TaskAddress]:
    """Yield the address of each message. Those of a run of messages with one address are one object."""
    import numpy as np

    runs = _runs(messages)
    known: dict[bytes, TaskAddress] = {}
    lengths = np.diff(np.append(runs, len(messages)))
    for row, length in zip(runs.tolist(), lengths.tolist(), strict=True):
        start = int(messages.term_offset[row])
        term = messages.data[start : start + int(messages.parts.address_length[row])].tobytes()
        address = known.get(term) or _address(vhost, queue, messages, row)
        if term:
            known[term] = address
        yield from repeat(address, length)


def _runs(messages: Messages) -> NDArray[np.int64]:
    """Return the rows that have another address than the row before; queues mostly have one."""
    import numpy as np

    is_new = np.ones(len(messages), dtype=bool)
    is_new[1:] = np.diff(messages.parts.address) != 0
    decoded = np.array(list(messages.decoded), dtype=np.int64)
    is_new[decoded] = True  # their address is not known
    is_new[decoded[decoded + 1 < len(messages)] + 1] = True
    return np.flatnonzero(is_new)


def _address(vhost: Vhost, queue: Queue, messages: Messages, row: int) -> TaskAddress:
    parts, data = messages.parts, messages.data

    def stretch(offset: int, length: int) -> bytes:
        return data[offset : offset + length].tobytes()

    own = None
    if parts.vhost_length[row] >= 0:
        own = stretch(parts.vhost_offset[row], parts.vhost_length[row])
    exchange = stretch(parts.exchange_offset[row], parts.exchange_length[row])
    return task_address(
        vhost, queue, own=own, exchange=exchange, keys=routing_keys(data, parts, row)
    )
