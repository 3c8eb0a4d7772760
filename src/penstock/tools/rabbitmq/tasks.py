"""The messages of all queues at a location, in order of delivery; what a broker has after a restart."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import PathRefused
from penstock.tools.history import Progress, no_progress
from penstock.tools.rabbitmq.location import Location, Queue, Vhost
from penstock.tools.rabbitmq.open_files import OpenFiles
from penstock.tools.rabbitmq.queue_reading import Bodies, Wanted, read_queue
from penstock.tools.rabbitmq.rows import task_row
from penstock.tools.rabbitmq.trouble import Tell, Trouble
from penstock.tools.rows import Row


def tasks(
    location: Location,
    wanted: Wanted,
    *,
    tell: Tell,
    vhost: bytes | None = None,
    queue: bytes | None = None,
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Yield a row for each message, by vhost, queue, priority and sequence number.

    ``vhost`` and ``queue`` leave out all others. Raises ``PathRefused`` where there is no index.
    """
    if location.kind in ("store", "store-file", "queue-store"):
        raise PathRefused(
            f"{location.path}: a store does not say which messages are still in a queue; name the queue's"
            " directory or the node's, or see all messages with 'penstock dump'"
        )
    for trouble in location.troubles:
        tell(trouble)
    for one in location.vhosts:
        with OpenFiles() as files:
            # What is wrong in a store matters here only if a message is missing, which is told then.
            bodies = Bodies(vhost=one, files=files, tell=_ignored, progress=progress)
            for each in one.queues:
                if _is_wanted(one, each, vhost, queue):
                    for held in read_queue(each, bodies, wanted, tell=tell, progress=progress):
                        yield task_row(one, each, held, tell)


def _is_wanted(vhost: Vhost, queue: Queue, of_vhost: bytes | None, named: bytes | None) -> bool:
    name = queue.name.vhost if queue.name is not None else vhost.name
    return of_vhost in (None, name) and named in (None, queue.label)


def _ignored(trouble: Trouble) -> None:
    del trouble
