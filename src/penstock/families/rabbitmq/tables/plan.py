"""How a broker's directory is cut into splits, by names and sizes alone.

For entries a split is a file. A segment tells a deliver from an ack by what stands before it, and neither it nor a
journal has a place in its middle that tells a record from what looks like one. A store file is cut where it is much
larger than a split; its reader scans the way to its part (``scan``).

For tasks a split is a queue, or some of its segments where they are larger than a split. Every such split reads the
journal, which speaks of all of them and is short: brokers empty it at 32,768 records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Final

from penstock.errors import CannotConvert, InvalidValue, PathRefused
from penstock.families.family import Split
from penstock.families.plan import ROW_SIZE, plan_damage
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.location import (
    Location,
    Queue,
    Vhost,
    last_write_us,
    target_name,
    vhost_name,
)
from penstock.families.sources import Source, SourceQueue, file_at
from penstock.families.tables import Mode, ReadOptions, Table, shown_path
from penstock.formats.rabbitmq.properties import json_of_text

STORES: Final = ("store", "store-file", "queue-store")
"""The kinds of locations that have no index."""


class FileKind(StrEnum):
    """What a file holds."""

    SEGMENT = "segment"
    JOURNAL = "journal"
    INDEX = "index"  # of version 2
    QUEUE_STORE = "queue-store"  # of version 2
    STORE = "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """What begins in ``[start, stop)`` of a file."""

    path: str
    shown: str  # the path as its rows have it
    kind: FileKind
    start: int = 0
    stop: int | None = None  # None: all of it
    # Of a queue's files alone.
    vhost: str | None = None
    queue: str | None = None
    key: int = 0
    number: int = 0  # of a segment
    entry_count: int = 0  # how many messages a segment numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """The messages of a queue, or of those of its segments whose numbers are in ``[first, end)``."""

    path: str  # of the queue's directory, or of the one file that was loaded
    first: int
    end: int | None  # None: all that follow
    as_of_us: int  # one time for all splits of a read


def plan_source(source: str, location: Location, options: ReadOptions) -> list[Split]:
    """Return the splits of a location. Raises ``PenstockError`` for what no task could read."""
    if options.at is not None:
        raise InvalidValue(
            f"{source}: files of RabbitMQ hold what is in the queues now and no state before; omit option at"
        )
    if options.table is Table.TASKS:
        return [*_damage_splits(source, location, options), *_queue_splits(source, location, options)]  # fmt: skip
    plans = list(_file_plans(source, location, options))
    return [
        *_damage_splits(source, location, options),
        *(
            split
            for plan in plans
            if options.filters.wants_path(plan.shown)
            for split in _file_splits(source, plan, options.split_size)
        ),
    ]


def _damage_splits(source: str, location: Location, options: ReadOptions) -> list[Split]:
    # Damage on the way to the files belongs to no vhost.
    is_wanted = "vhost" not in options.own or options.mode is Mode.FAILFAST
    found = location.found_damage if is_wanted else ()
    return plan_damage(FAMILY, source, found, options)


def _split(source: str, size: int, plan: object) -> Split:
    return Split(family=FAMILY, source=source, size=max(size, ROW_SIZE), plan=plan)


# --- entries and changes -------------------------------------------------------------------------


def _file_plans(source: str, location: Location, options: ReadOptions) -> Iterator[FilePlan]:
    """Yield the files that may hold rows that are wanted, in the order in which ``penstock dump`` reads them."""
    for vhost in location.vhosts:
        for queue in vhost.queues:
            if is_wanted(vhost, queue, options):
                yield from _queue_file_plans(source, vhost, queue, options)
        # What a store holds is of no queue, has no number, and changes nothing.
        is_open = options.filters.is_open and options.table is Table.ENTRIES
        if not location.lends_stores and is_open and _is_wanted_vhost(vhost, options):
            for path in (*vhost.persistent, *vhost.transient):
                yield FilePlan(path=str(path), shown=shown_path(source, path), kind=FileKind.STORE)


def is_wanted(vhost: Vhost, queue: Queue, options: ReadOptions) -> bool:
    """Return whether rows of a queue are wanted."""
    if "vhost" in options.own and vhost_of(vhost, queue) != options.own["vhost"]:
        return False
    return options.filters.wants_queue(queue_of(vhost, queue))


def _is_wanted_vhost(vhost: Vhost, options: ReadOptions) -> bool:
    return "vhost" not in options.own or (
        vhost.name is not None and text_of(vhost.name) == options.own["vhost"]
    )


def _queue_file_plans(
    source: str, vhost: Vhost, queue: Queue, options: ReadOptions
) -> Iterator[FilePlan]:
    def plan(path: Path, kind: FileKind, number: int = 0) -> FilePlan:
        return FilePlan(
            path=str(path),
            shown=shown_path(source, path),
            kind=kind,
            vhost=vhost_of(vhost, queue),
            queue=queue_of(vhost, queue),
            key=-queue.priority,
            number=number,
            entry_count=vhost.entry_count,
        )

    for number, path in queue.segments:
        first = number * vhost.entry_count
        if options.filters.wants_indexes(first, first + vhost.entry_count):
            yield plan(path, FileKind.SEGMENT, number)
    if queue.journal is not None:
        yield plan(queue.journal, FileKind.JOURNAL)
    for _, path in queue.indexes:
        yield plan(path, FileKind.INDEX)
    filters = options.filters
    has_no_op = filters.ops is None and filters.first is None and filters.last is None
    if has_no_op and options.table is Table.ENTRIES:
        for _, path in queue.stores:
            yield plan(path, FileKind.QUEUE_STORE)


def _file_splits(source: str, plan: FilePlan, split_size: int) -> list[Split]:
    """Return a file as one split; a store file that is much larger than a split as several."""
    size = _size(Path(plan.path))
    if plan.kind is not FileKind.STORE or size <= split_size + split_size // 2:
        return [_split(source, size, plan)]
    starts = range(0, size, split_size)
    # What a file has gained since it was planned belongs to its last split.
    return [
        _split(source, (stop or size) - start, _part(plan, start, stop))
        for start, stop in pairwise([*starts, None])
        if start is not None
    ]


def _part(plan: FilePlan, start: int, stop: int | None) -> FilePlan:
    return FilePlan(path=plan.path, shown=plan.shown, kind=plan.kind, start=start, stop=stop)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # it went away, or may not be looked at: reading tells


# --- tasks ---------------------------------------------------------------------------------------


def _queue_splits(source: str, location: Location, options: ReadOptions) -> list[Split]:
    if location.kind in STORES:
        raise PathRefused(
            f"{location.path}: a store does not say which messages are still in a queue; name the queue's"
            " directory or the node's, or read the table entries"
        )
    _check_names(location)
    as_of_us = options.own.get("as_of", time.time_ns() // 1000)
    # One file is loaded as one: nothing else of its queue is to be looked at.
    alone = str(location.path) if location.path.is_file() else None
    return [
        _split(
            source,
            size,
            QueuePlan(path=alone or str(queue.path), first=first, end=end, as_of_us=as_of_us),
        )
        for vhost in location.vhosts
        for queue in vhost.queues
        if queue.files and is_wanted(vhost, queue, options)
        for first, end, size in _parts(queue, options.split_size)
    ]


def _check_names(location: Location) -> None:
    """Raise ``CannotConvert`` if two directories are one queue: their messages could not be told apart."""
    places: dict[tuple[str, int], Path] = {}
    for vhost in location.vhosts:
        for queue in vhost.queues:
            other = places.setdefault((queue_of(vhost, queue), queue.priority), queue.path)
            if other != queue.path:
                raise CannotConvert(
                    f"{other} and {queue.path} are both queue {queue_of(vhost, queue)!r}; load one of them by its"
                    " own path"
                )


def _parts(queue: Queue, split_size: int) -> Iterator[tuple[int, int | None, int]]:
    """Yield ranges of segments, with the bytes in them, that together cover every number there can be."""
    numbered: Sequence[tuple[int, Path]] = (*queue.segments, *queue.indexes, *queue.stores)
    sizes: dict[int, int] = {}
    for number, path in numbered:
        sizes[number] = sizes.get(number, 0) + _size(path)
    has_both = bool(queue.indexes) and bool(queue.segments or queue.journal)
    first, held = 0, 0
    for number, size in sorted(sizes.items()):
        # Versions number their segments differently, so a queue that has both stays whole.
        if held and held + size > split_size and not has_both:
            yield first, number, held
            first, held = number, 0
        held += size
    yield first, None, held + (0 if queue.journal is None else _size(queue.journal))


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
