"""Rows of tasks out of columns: what ``task_row`` makes of a message, for many messages.

Most messages of a queue have the address of the message before, and the properties of another one. Both become JSON
once (docs/formats/rabbitmq-messages.md, "In bulk").
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

from penstock.families.damage import Report
from penstock.families.family import Row
from penstock.families.rabbitmq.columns import UNKNOWN, Messages
from penstock.families.rabbitmq.location import Queue, Vhost
from penstock.families.rabbitmq.rows import (
    TaskAddress,
    bad_properties,
    json_of_stored,
    json_properties,
    task_address,
    task_fields,
)
from penstock.formats.rabbitmq.message_scan import routing_keys

_DELIVERED = {UNKNOWN: None, 0: False, 1: True}

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
