"""Spools into other formats: what waits as a directory of a node, or everything as a spool that Beats reads.

A task of ours becomes a task of its queue, with its key and payload. Any other event becomes a task of one queue, its
payload the bytes of the frame. Written for Beats, events are encoded again, in segments with the options that are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import InvalidValue
from penstock.families.beats.damage import NOT_ENCODABLE, TOO_DEEP
from penstock.families.beats.family import TITLE, SegmentVersion
from penstock.families.beats.ingest import Left, read_tasks, refusing_locked
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import frame_damage, read_segment, refuse_state
from penstock.families.beats.repair import Rewritten, rewrite
from penstock.families.damage import Damage, Report
from penstock.families.family import Progress, no_progress
from penstock.families.penstock.task_log import new_task_log
from penstock.families.taskflux.new_directory import whole_directory
from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import NO_OPTIONS, Header, Options, PayloadFormat
from penstock.model import QueueName


@dataclass(slots=True)
class Converted:
    """What a conversion to a node's directory wrote."""

    entries: int = 0
    queues: int = 0
    tasks: int = 0
    terms_dropped: int = 0  # tasks that lost a delay or an expiry
    left: Left = field(default_factory=Left)


def convert(
    location: Location,
    to: str,
    out: Path,
    *,
    key: bytes | None,
    report: Report,
    queue: QueueName | None = None,
    progress: Progress = no_progress,
) -> Converted:
    """Write the events that wait as generation ``to``; those that name no queue go to ``queue``.

    Raises ``CannotConvert`` and ``PathRefused``.
    """
    refuse_state(location)
    done = Converted()
    with new_task_log(out, to, source=location.home, what="events of a spool", title=TITLE) as log:
        for task in read_tasks(
            location, key=key, report=report, otherwise=queue, left=done.left, progress=progress
        ):
            log.add(task.queue, task.key, task.payload)
            done.terms_dropped += task.has_terms
    done.entries, done.queues, done.tasks = log.entries, len(log.queues), log.tasks
    return done


@dataclass
class Respooled(Rewritten):
    """What a conversion to a spool wrote."""

    left_unencodable: int = 0  # events that Beats could not read
    left_too_deep: int = 0  # events that are nested deeper than we decode


def respool(
    location: Location,
    to: SegmentVersion,
    out: Path,
    *,
    key: bytes | None,
    report: Report,
    options: Options = NO_OPTIONS,
    progress: Progress = no_progress,
) -> Respooled:
    """Write a spool whose segments are of version ``to`` and hold what Beats reads. Raises ``PathRefused``.

    ``key`` is that of segments to read and of those to write.
    """
    refuse_state(location)
    done = Respooled()
    report = refusing_locked(report)
    written = Header(int(to), 0, options)

    def reshape(_: Header) -> Header:
        return written

    def refill(segment: Segment, frame: Frame, event: Event | Damage) -> bytes | Damage:
        return _encoded(segment, frame, event, written.payload_format)

    with whole_directory(out, source=location.home) as new:
        for damage in rewrite(
            location,
            new,
            done,
            key=key,
            reshape=reshape,
            refill=refill,
            progress=progress,
        ):
            done.left_unencodable += damage.status == NOT_ENCODABLE
            done.left_too_deep += damage.status == TOO_DEEP
            report(damage)
    return done


def is_encrypted(location: Location) -> bool:
    """Return whether any segment is encrypted, as far as headers can be read."""
    heads = (next(read_segment(segment, key=None), None) for segment in location.segments)
    return any(isinstance(head, Header) and head.options & Options.ENCRYPTED for head in heads)


def _encoded(
    segment: Segment, frame: Frame, event: Event | Damage, payload_format: PayloadFormat
) -> bytes | Damage:
    if isinstance(event, Damage):
        return event
    try:
        return encode_event(event, payload_format)
    except InvalidValue as error:
        reason = f"Beats could not read this event: {error}"
        return frame_damage(segment, frame, NOT_ENCODABLE, reason, data=frame.payload)
