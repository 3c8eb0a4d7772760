"""The messages of all queues at a location, in order of delivery; what a broker has after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Final

from penstock.errors import PathRefused
from penstock.families.progress import Progress, no_progress
from penstock.families.rabbitmq.columns import Messages, read_columns
from penstock.families.rabbitmq.location import Location, Queue, Vhost
from penstock.families.rabbitmq.open_files import OpenFiles
from penstock.families.rabbitmq.read import Bodies, Wanted, read_queue
from penstock.families.rabbitmq.rows import is_asked_for, task_row
from penstock.families.rabbitmq.task_lines import task_lines
from penstock.families.rabbitmq.trouble import Tell, Trouble, ignore
from penstock.families.taskflux.rows import Row

LINES_FROM: Final = 2**20
"""Bytes of files from which on rows are made in bulk: fewer are read sooner than the kernels are loaded."""


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
    for one, each, bodies in _queues(location, tell, vhost, queue, progress):
        for held in read_queue(each, bodies, wanted, tell=tell, progress=progress):
            yield task_row(one, each, held, tell)


def tasks_in_lines(
    location: Location,
    wanted: Wanted,
    *,
    tell: Tell,
    vhost: bytes | None = None,
    queue: bytes | None = None,
    progress: Progress = no_progress,
) -> Iterator[memoryview]:
    """Yield the rows of ``tasks`` as lines of JSON, many at a time.

    Raises what ``tasks`` raises, and ``DependencyMissing`` without numpy and numba.
    """
    for one, each, bodies in _queues(location, tell, vhost, queue, progress):
        for messages in _read_ahead(each, bodies, wanted, tell, progress):
            yield task_lines(one, each, messages, tell)


def _read_ahead(
    queue: Queue, bodies: Bodies, wanted: Wanted, tell: Tell, progress: Progress
) -> Iterator[Messages]:
    """Yield what ``read_columns`` yields; the next messages are read while the caller uses some.

    Reading waits for the disk or runs in kernels, and other threads go on meanwhile. What it tells is passed on
    between two batches, so that the caller is called by its own thread only.
    """
    troubles: list[Trouble] = []
    sizes: list[int] = []
    batches = read_columns(queue, bodies, wanted, tell=troubles.append, progress=sizes.append)
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(next, batches, None)
        while True:
            messages = coming.result()
            for trouble in troubles:
                tell(trouble)
            progress(sum(sizes))
            troubles.clear()
            sizes.clear()
            if messages is None:
                return
            coming = pool.submit(next, batches, None)
            yield messages


def tasks_or_lines(
    location: Location,
    wanted: Wanted,
    *,
    tell: Tell,
    vhost: bytes | None = None,
    queue: bytes | None = None,
    progress: Progress = no_progress,
) -> Iterator[Row | memoryview]:
    """Yield what ``tasks`` yields, as rows or as lines of JSON, whichever is ready sooner. Raises ``PathRefused``."""
    read = tasks_in_lines if _is_worth_kernels(location) else tasks
    return read(location, wanted, tell=tell, vhost=vhost, queue=queue, progress=progress)


def _is_worth_kernels(location: Location) -> bool:
    is_there = all(find_spec(name) is not None for name in ("numpy", "numba"))
    return is_there and location.size >= LINES_FROM


def _queues(
    location: Location,
    tell: Tell,
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
    for trouble in location.troubles:
        tell(trouble)
    for one in location.vhosts:
        with OpenFiles() as files:
            # What is wrong in a store matters here only if a message is missing, which is told then.
            bodies = Bodies(vhost=one, files=files, tell=ignore, progress=progress)
            for each in one.queues:
                if is_asked_for(one, each, vhost, queue):
                    yield one, each, bodies
