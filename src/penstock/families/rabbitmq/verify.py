"""All damage at a location, as rows; and what was counted on the way.

Each file is held to its format, and the files to each other: every message that an index knows must be
found and must be one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import BadData, PathRefused
from penstock.families.damage import (
    Damage,
    DamageCount,
    Report,
    damage_row,
    ignore,
    is_damage,
    words_of,
)
from penstock.families.family import Progress, Row, no_progress
from penstock.families.rabbitmq.damage import BAD_PROPERTIES, REASONS, UNREADABLE, damage_at
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.location import Location, Queue, Vhost
from penstock.families.rabbitmq.read import Bodies, Left, Wanted, message_damage, read_queue
from penstock.families.rabbitmq.rows import message_fields, name_fields
from penstock.formats.rabbitmq import queue_v2
from penstock.formats.rabbitmq.properties import json_of_text
from penstock.storage.broker_files import scan_queue_store
from penstock.storage.files import OpenFiles, opened

EVERYTHING = Wanted(as_of_us=0, expired=True)
"""All messages that survive a restart; whether they are expired by now is not asked."""


@dataclass
class Summary:
    """What was counted on the way."""

    queues: list[Row] = field(default_factory=list)
    messages: int = 0
    lost: int = 0
    stored: int = 0  # records in the stores, copies and messages that no queue holds included
    damage: DamageCount = field(default_factory=DamageCount)


def verify(
    location: Location, *, progress: Progress = no_progress, summary: Summary | None = None
) -> Iterator[Row]:
    """Yield a row for each damage; ``summary`` is filled on the way."""
    summary = Summary() if summary is None else summary
    for damage in _find_damage(location, progress, summary):
        row = damage_row(FAMILY, damage)
        summary.damage.add(row)
        yield row


def inspect(location: Location, *, progress: Progress = no_progress) -> Row:
    """Return what a location is and holds; ``damage`` and ``harmless`` list what ``verify`` finds."""
    summary = Summary()
    rows = list(verify(location, progress=progress, summary=summary))
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
        "harmless": [row for row in rows if not is_damage(row)],
        "damage": [row for row in rows if is_damage(row)],
    }


def _find_damage(location: Location, progress: Progress, summary: Summary) -> Iterator[Damage]:
    yield from location.found_damage
    met: list[Damage] = []
    for vhost in location.vhosts:
        with OpenFiles() as files:
            # The damage of stores that are only lent belongs to the store's own report.
            report_stores: Report = ignore if location.lends_stores else met.append
            bodies = Bodies(vhost=vhost, files=files, report=report_stores, progress=progress)
            for queue in vhost.queues:
                yield from _queue_damage(vhost, queue, bodies, met, summary, progress)
            if not location.lends_stores:
                summary.stored += len(bodies.persistent) + len(bodies.transient)
            yield from _drained(met)


def _queue_damage(
    vhost: Vhost,
    queue: Queue,
    bodies: Bodies,
    met: list[Damage],
    summary: Summary,
    progress: Progress,
) -> Iterator[Damage]:
    left, messages, body_size = Left(), 0, 0
    held_messages = read_queue(
        queue, bodies, EVERYTHING, report=met.append, left=left, progress=progress
    )
    for indexed, message in held_messages:
        messages += 1
        body_size += message.content.body_size
        _, reason = message_fields(message)
        if reason is not None:
            met.append(message_damage(indexed, BAD_PROPERTIES, reason))
        yield from _drained(met)
    for _, path in queue.stores:
        yield from own_store_damage(path, progress)
    yield from _drained(met)
    summary.messages += messages
    summary.lost += left.lost
    summary.queues.append(
        name_fields(vhost, queue)
        | {
            "priority": None if queue.name is None else queue.name.priority,
            "version": _versions(queue),
            "messages": messages,
            "transient": left.transient,
            "lost": left.lost,
            "body_size": body_size,
        }
    )


def _versions(queue: Queue) -> list[int]:
    """Return the versions of the files that are there; for an empty queue the one that its name tells."""
    found = [1] if queue.journal is not None or queue.segments else []
    found += [2] if queue.indexes or queue.stores else []
    return found or ([] if queue.name is None else [queue.name.version])


def own_store_damage(path: Path, progress: Progress) -> Iterator[Damage]:
    """Yield what is damaged in the store that a queue of version 2 has for itself."""
    try:
        with opened(path) as file:
            queue_v2.decode_store_header(file.read(0, queue_v2.HEADER_SIZE))
            for record, _ in scan_queue_store(file, progress=progress):
                if record.status is not queue_v2.RecordStatus.OK:
                    word = record.status.word
                    yield damage_at(
                        path, word, REASONS[word], offset=record.offset, size=record.size
                    )
    except BadData as error:
        yield damage_at(path, "bad-header", error.reason, offset=error.offset)
    except (OSError, PathRefused) as error:
        yield damage_at(path, UNREADABLE, words_of(error))


def _drained(met: list[Damage]) -> Iterator[Damage]:
    yield from met
    met.clear()
