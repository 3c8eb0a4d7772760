"""The events of a spool that are not acknowledged, in order of delivery, as tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import PathRefused
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.position import judge_position
from penstock.families.beats.read import decode_frame, read_segment
from penstock.families.beats.rows import end_damage, task_row
from penstock.families.damage import Damage, Report
from penstock.families.family import Progress, Row, no_progress
from penstock.formats.beats.event import Event
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header
from penstock.formats.beats.state import Position


class Waiting(NamedTuple):
    """A frame that is not acknowledged, and its event, or why it has none."""

    segment: Segment
    header: Header
    frame: Frame
    event: Event | Damage
    is_acknowledged: bool = False


def tasks(
    location: Location,
    *,
    key: bytes | None,
    report: Report,
    queue: str | None = None,
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Yield a row for each event that waits; ``queue`` leaves out those of all others.

    Raises ``PathRefused`` for a file that holds no events.
    """
    name = location.name
    for waiting in read_waiting(location, key=key, report=report, progress=progress):
        row = task_row(waiting.segment, waiting.frame, waiting.event, name)
        if queue is None or row["queue"] == queue:
            yield row


def read_waiting(
    location: Location,
    *,
    key: bytes | None,
    report: Report,
    progress: Progress = no_progress,
    whole: bool = False,
) -> Iterator[Waiting]:
    """Yield the frames that wait, by segment and place; those whose payload is no event too. Raises ``PathRefused``.

    ``whole``: of the segment that the position is in, those before it too.
    """
    for segment, start in _segments(location, key, report, progress):
        for waiting in _read(segment, None if whole else start, key, report, progress):
            if whole and start is not None and waiting.frame.offset < start.offset:
                waiting = waiting._replace(is_acknowledged=True)
            yield waiting


def _segments(
    location: Location, key: bytes | None, report: Report, progress: Progress
) -> Iterator[tuple[Segment, Position | None]]:
    """Yield the segments in which something may wait, and from where on; ``None`` is the start."""
    refuse_state(location)
    for damage in location.found_damage:
        report(damage)
    judged = judge_position(location, key=key)
    if judged.damage is not None:
        report(judged.damage)
    position = judged.position
    for segment in location.segments:
        if segment.number < position.segment:
            progress(segment.size)
        else:
            yield segment, position if segment.number == position.segment else None


def refuse_state(location: Location) -> None:
    """Raise ``PathRefused`` for a position alone."""
    if location.kind == "state":
        raise PathRefused(
            f"{location.path}: holds a position and no events; name its directory, or a segment"
        )


def _read(
    segment: Segment, start: Position | None, key: bytes | None, report: Report, progress: Progress
) -> Iterator[Waiting]:
    header: Header | None = None
    for piece in read_segment(segment, key=key, start=start, progress=progress):
        match piece:
            case Header():
                header = piece
            case Frame():
                assert header is not None
                yield _waiting(segment, header, piece, report)
            case Damage():
                report(piece)
            case _:
                pass  # the end of a segment holds nothing


def _waiting(segment: Segment, header: Header, frame: Frame, report: Report) -> Waiting:
    event = decode_frame(segment, header, frame)
    damage = event if isinstance(event, Damage) else end_damage(segment, frame)
    if damage is not None:
        report(damage)
    return Waiting(segment, header, frame, event)
