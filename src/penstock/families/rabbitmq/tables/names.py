"""Names of vhosts and queues as columns have them: text, though they are bytes to a broker."""

from __future__ import annotations

import json

from penstock.errors import CannotConvert
from penstock.families.rabbitmq.ingest import target_name
from penstock.families.rabbitmq.location import Queue, Vhost
from penstock.families.rabbitmq.rows import vhost_name
from penstock.formats.rabbitmq.properties import json_of_text


def text_of(name: bytes) -> str:
    """Return a name as text; one that is not UTF-8 as the JSON object that the tools show."""
    shown = json_of_text(name)
    return shown if isinstance(shown, str) else json.dumps(shown)


def queue_of(vhost: Vhost, queue: Queue) -> str:
    """Return the name that a queue has in tables: the one under which it is imported, which is no other's.

    All priorities of a queue have one. A name that no queue of ours can have, for its length, is shown as it is.
    """
    try:
        return str(target_name(vhost_name(vhost, queue), queue.label))
    except CannotConvert:
        return text_of(queue.label)


def vhost_of(vhost: Vhost, queue: Queue) -> str | None:
    """Return the name of the vhost that a queue is in, if any file tells it."""
    name = vhost_name(vhost, queue)
    return None if name is None else text_of(name)
