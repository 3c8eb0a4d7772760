"""A broker's queues as a directory that a node serves (docs/formats/rabbitmq-envelope.md).

The messages are written as a log of additions, one after the other as they are read, so that neither
they nor the state they lead to must fit into memory; a snapshot ends at 2 GiB besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.families.damage import Report
from penstock.families.family import Progress, no_progress
from penstock.families.penstock.task_log import new_task_log
from penstock.families.rabbitmq.family import TITLE
from penstock.families.rabbitmq.ingest import plan, read_tasks
from penstock.families.rabbitmq.location import Location, home
from penstock.families.rabbitmq.read import Left, Selection


@dataclass(slots=True)
class Converted:
    """What a conversion wrote."""

    entries: int = 0
    queues: int = 0
    tasks: int = 0
    left: Left = field(default_factory=Left)


def convert(
    location: Location,
    to: str,
    out: Path,
    selection: Selection,
    *,
    report: Report,
    progress: Progress = no_progress,
) -> Converted:
    """Write the messages as generation ``to`` into ``out``. Raises ``CannotConvert`` and ``PathRefused``."""
    targets = plan(location, selection)
    for damage in location.found_damage:
        report(damage)
    done = Converted()
    with new_task_log(
        out, to, source=home(location), what="messages of RabbitMQ", title=TITLE
    ) as log:
        for target in targets:
            log.create(target.name)
        for name, tasks, left in read_tasks(targets, selection, report=report, progress=progress):
            for task in tasks:
                log.add(name, task.key, task.payload)
            done.left.add(left)
    done.entries, done.queues, done.tasks = log.entries, len(log.queues), log.tasks
    return done
