"""The messages of all queues at a location, in order of delivery; what a broker has after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from penstock.errors import PathRefused
from penstock.families.damage import Report, ignore
from penstock.families.family import Progress, Row, no_progress
from penstock.families.rabbitmq.columns import read_columns
from penstock.families.rabbitmq.location import Location, Queue, Vhost
from penstock.families.rabbitmq.read import Bodies, Wanted, read_queue
from penstock.families.rabbitmq.rows import is_asked_for, task_row
from penstock.families.rabbitmq.task_rows import rows_of_columns
from penstock.storage.files import OpenFiles

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
