"""A broker's queues as a directory that a node serves (docs/formats/rabbitmq-envelope.md).

The messages are written as a log of additions, one after the other as they are read, so that neither
they nor the state they lead to must fit into memory; a snapshot ends at 2 GiB besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import CannotConvert
from penstock.families.damage import Report
from penstock.families.progress import Progress, no_progress
from penstock.families.rabbitmq.ingest import (
    Left,
    NewTask,
    Selection,
    home,
    plan,
    read_tasks,
)
from penstock.families.rabbitmq.location import Location
from penstock.families.taskflux.new_directory import NewDirectory, new_directory
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import Variant
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    AddTask,
    CreateQueue,
    HardState,
    QueueName,
    Term,
)

TERM: Final = Term(1)

SYNC_SIZE: Final = 8 * 2**20
"""Bytes of payload between two syncs: what is held of a log that is not written yet."""


@dataclass(slots=True)
class Converted:
    """What a conversion wrote."""

    entries: int = 0
    queues: int = 0
    tasks: int = 0
    left: Left = field(default_factory=Left)


def convert(
    location: Location,
    to: Variant,
    out: Path,
    selection: Selection,
    *,
    report: Report,
    progress: Progress = no_progress,
) -> Converted:
    """Write the messages as generation ``to`` into ``out``. Raises ``CannotConvert`` and ``PathRefused``."""
    if to.generation is Generation.ONE:
        raise CannotConvert(
            "messages of RabbitMQ are not written as generation 1; choose taskflux-2 or taskflux-3"
        )
    targets = plan(location, selection)
    for damage in location.found_damage:
        report(damage)
    done = Converted()
    with new_directory(out, to, source=home(location)) as new:
        names = list(dict.fromkeys(target.name for target in targets))
        _create(new, names, done)
        for name, tasks, left in read_tasks(targets, selection, report=report, progress=progress):
            _add(new, name, tasks, done)
            done.left.add(left)
        new.commit()
        new.write_metadata(HardState(term=TERM))
    return done


def _create(new: NewDirectory, names: list[QueueName], done: Converted) -> None:
    for name in names:
        if name != DEFAULT_QUEUE:  # which every node has
            new.append(TERM, encode_delta(CreateQueue(queue=name, policy=NO_LIMITS)))
            done.entries += 1
    done.queues = len(names)


def _add(new: NewDirectory, name: QueueName, tasks: Iterable[NewTask], done: Converted) -> None:
    size = 0
    for task in tasks:
        if size + len(task.payload) > SYNC_SIZE:
            new.commit()
            size = 0
        new.append(TERM, encode_delta(AddTask(queue=name, key=task.key, payload=task.payload)))
        size += len(task.payload)
        done.tasks += 1
        done.entries += 1
