"""What a broker's directory is, before any of its records is read."""

from __future__ import annotations

from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.ingest import last_write_us
from penstock.families.rabbitmq.location import Location
from penstock.families.rabbitmq.tables.names import queue_of, vhost_of
from penstock.families.rabbitmq.tables.plan import STORES
from penstock.families.sources import Source, SourceQueue, file_at


def describe(name: str, location: Location) -> Source:
    """Return what a pipeline needs to know of a location.

    Messages are numbered queue by queue, and nothing orders the records of two queues, or acks of one: a broker
    has no log.
    """
    queues = {
        queue_of(vhost, queue): vhost_of(vhost, queue)
        for vhost in location.vhosts
        for queue in vhost.queues
    }
    return Source(
        name=name,
        family=FAMILY,
        words=f"RabbitMQ, {location.kind}",
        files=tuple(file_at(name, path) for path in location.files),
        has_log=False,
        queues=()
        if location.kind in STORES
        else tuple(SourceQueue(*each) for each in sorted(queues.items())),
        migrated_with={"as_of": last_write_us(location), "properties": "envelope"},
        is_ingested=True,
        left_out=tuple(other.words for other in location.others),
    )
