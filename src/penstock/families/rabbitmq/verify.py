"""Everything that is odd or damaged at a location, as rows; and what was counted on the way.

Each file is held to its format, and the files to each other: every message that an index knows must be
found and must be one. A row that is ``harmless`` tells what a crash leaves behind and a restart mends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import BadData, PathRefused
from penstock.families.progress import Progress, no_progress
from penstock.families.rabbitmq.location import FAMILY, Location, Queue, Vhost
from penstock.families.rabbitmq.open_files import OpenFiles
from penstock.families.rabbitmq.read import Bodies, Count, Wanted, read_queue
from penstock.families.rabbitmq.rows import message_fields, name_fields, trouble_row
from penstock.families.rabbitmq.trouble import REASONS, UNREADABLE, Tell, Trouble, ignore, words_of
from penstock.families.rabbitmq.windows import scan_queue_store
from penstock.families.taskflux.location import opened
from penstock.families.taskflux.rows import Row
from penstock.formats.rabbitmq import queue_v2
from penstock.formats.rabbitmq.properties import json_of_text

EVERYTHING = Wanted(as_of_us=0, expired=True)
"""All messages that survive a restart; whether they are expired by now is not asked."""


@dataclass
class Summary:
    """What was counted on the way."""

    queues: list[Row] = field(default_factory=list)
    messages: int = 0
    lost: int = 0
    stored: int = 0  # records in the stores, copies and messages that no queue holds included
    damaged: int = 0
    harmless: int = 0


def verify(
    location: Location, *, progress: Progress = no_progress, summary: Summary | None = None
) -> Iterator[Row]:
    """Yield a row for each oddity; ``summary`` is filled on the way."""
    summary = Summary() if summary is None else summary
    for trouble in _troubles(location, progress, summary):
        row = trouble_row(trouble)
        if trouble.is_damage:
            summary.damaged += 1
        else:
            summary.harmless += 1
            row["harmless"] = True
        yield row


def inspect(location: Location, *, progress: Progress = no_progress) -> Row:
    """Return what a location is and holds; ``damage`` lists what ``verify`` finds, the harmless left out."""
    summary = Summary()
    damage = [
        row
        for row in verify(location, progress=progress, summary=summary)
        if not row.get("harmless")
    ]
    versions = sorted({version for queue in summary.queues for version in queue["version"]})
    return {
        "family": FAMILY,
        "kind": location.kind,
        "path": str(location.path),
        "version": versions,
        "size": location.size,
        "files": len(location.files),
        "vhosts": [json_of_text(v.name) for v in location.vhosts if v.name is not None],
        "queues": summary.queues,
        "messages": summary.messages,
        "lost": summary.lost,
        "stored": summary.stored,
        "harmless": summary.harmless,
        "damage": damage,
    }


def _troubles(location: Location, progress: Progress, summary: Summary) -> Iterator[Trouble]:
    yield from location.troubles
    met: list[Trouble] = []
    for vhost in location.vhosts:
        with OpenFiles() as files:
            # Stores that are only lent are judged by whoever asks for them.
            tell_stores: Tell = ignore if location.lends_stores else met.append
            bodies = Bodies(vhost=vhost, files=files, tell=tell_stores, progress=progress)
            for queue in vhost.queues:
                yield from _queue_troubles(vhost, queue, bodies, met, summary, progress)
            if not location.lends_stores:
                summary.stored += len(bodies.persistent) + len(bodies.transient)
            yield from _drained(met)


def _queue_troubles(
    vhost: Vhost,
    queue: Queue,
    bodies: Bodies,
    met: list[Trouble],
    summary: Summary,
    progress: Progress,
) -> Iterator[Trouble]:
    count = Count()
    held_messages = read_queue(
        queue, bodies, EVERYTHING, tell=met.append, count=count, progress=progress
    )
    for indexed, message in held_messages:
        _, reason = message_fields(message)
        if reason is not None:
            status, sequence = "bad-properties", indexed.sequence
            met.append(Trouble(indexed.path, indexed.offset, None, status, reason, sequence))
        yield from _drained(met)
    for _, path in queue.stores:
        yield from own_store_troubles(path, progress)
    yield from _drained(met)
    summary.messages += count.messages
    summary.lost += count.lost
    summary.queues.append(
        name_fields(vhost, queue)
        | {
            "priority": None if queue.name is None else queue.name.priority,
            "version": _versions(queue),
            "messages": count.messages,
            "transient": count.transient,
            "lost": count.lost,
            "body_size": count.body_size,
        }
    )


def _versions(queue: Queue) -> list[int]:
    """Return the versions of the files that are there; for an empty queue the one that its name tells."""
    found = [1] if queue.journal is not None or queue.segments else []
    found += [2] if queue.indexes or queue.stores else []
    return found or ([] if queue.name is None else [queue.name.version])


def own_store_troubles(path: Path, progress: Progress) -> Iterator[Trouble]:
    """Yield what is damaged in the store that a queue of version 2 has for itself."""
    try:
        with opened(path) as file:
            queue_v2.decode_store_header(file.read(0, queue_v2.HEADER_SIZE))
            for record, _ in scan_queue_store(file, progress=progress):
                if record.status is not queue_v2.RecordStatus.OK:
                    word = record.status.word
                    yield Trouble(path, record.offset, record.size, word, REASONS[word])
    except BadData as error:
        yield Trouble(path, error.offset, None, "bad-header", error.reason)
    except (OSError, PathRefused) as error:
        yield Trouble(path, None, None, UNREADABLE, words_of(error))


def _drained(met: list[Trouble]) -> Iterator[Trouble]:
    yield from met
    met.clear()
