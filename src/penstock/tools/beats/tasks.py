"""The events of a spool that are not acknowledged, in order of delivery, as tasks.

``tasks`` makes them one by one. ``tasks_in_lines`` gives the same as text, and makes it in bulk as long as frames are
flawless; at the first that is not it goes on one by one, to the end of the segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Final, NamedTuple

from penstock.errors import PathRefused
from penstock.formats.beats.event import Event
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header
from penstock.formats.beats.state import Position
from penstock.tools.beats.location import Location, Segment
from penstock.tools.beats.position import judge_position
from penstock.tools.beats.reading import decode_frame, read_segment
from penstock.tools.beats.rows import end_trouble, task_row
from penstock.tools.beats.trouble import Tell, Trouble
from penstock.tools.history import Progress, no_progress
from penstock.tools.rows import Row

LINES_FROM: Final = 64 * 2**20
"""Bytes of segments from which on lines are made in bulk: fewer are read sooner than the kernels are compiled."""

_OF_CBOR: Final = Header(1, 0)  # as every segment that is read in bulk: its events are in CBOR


class Waiting(NamedTuple):
    """A frame that is not acknowledged, and its event, or why it has none."""

    segment: Segment
    header: Header
    frame: Frame
    event: Event | Trouble
    is_acknowledged: bool = False


def tasks(
    location: Location,
    *,
    key: bytes | None,
    tell: Tell,
    queue: str | None = None,
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Yield a row for each event that waits; ``queue`` leaves out those of all others.

    Raises ``PathRefused`` for a file that holds no events.
    """
    name = location.name
    for waiting in read_waiting(location, key=key, tell=tell, progress=progress):
        row = task_row(waiting.segment, waiting.frame, waiting.event, name)
        if queue is None or row["queue"] == queue:
            yield row


def tasks_in_lines(
    location: Location,
    *,
    key: bytes | None,
    tell: Tell,
    queue: str | None = None,
    progress: Progress = no_progress,
) -> Iterator[memoryview]:
    """Yield the rows of ``tasks`` as lines of JSON, many at a time.

    Raises what ``tasks`` raises. Needs numpy and numba.
    """
    from penstock.tools.beats.bulk_reading import FlawlessReading
    from penstock.tools.beats.task_lines import LineMaker, line_of

    name = location.name

    def line(waiting: Waiting) -> bytes:
        row = task_row(waiting.segment, waiting.frame, waiting.event, name)
        return line_of(row) if queue is None or row["queue"] == queue else b""

    def line_of_odd(segment: Segment, frame: Frame) -> bytes:
        return line(_waiting(segment, _OF_CBOR, frame, tell))

    for segment, start in _segments(location, key, tell, progress):
        odd = partial(line_of_odd, segment)
        maker = LineMaker(segment=segment.number, otherwise=name, queue=queue, line=odd)
        reading = FlawlessReading(segment, key=key, start=start)
        for columns in reading.frames(progress):
            yield maker.lines(columns).data
        if reading.rest is not None:
            for waiting in _read(segment, reading.rest, key, tell, progress):
                yield memoryview(line(waiting))


def tasks_or_lines(
    location: Location,
    *,
    key: bytes | None,
    tell: Tell,
    queue: str | None = None,
    progress: Progress = no_progress,
) -> Iterator[Row | memoryview]:
    """Yield what ``tasks`` yields, as rows or as lines of JSON, whichever is ready sooner. Raises ``PathRefused``."""
    is_there = all(find_spec(name) is not None for name in ("numpy", "numba"))
    read = tasks_in_lines if is_there and location.size >= LINES_FROM else tasks
    return read(location, key=key, tell=tell, queue=queue, progress=progress)


def read_waiting(
    location: Location,
    *,
    key: bytes | None,
    tell: Tell,
    progress: Progress = no_progress,
    whole: bool = False,
) -> Iterator[Waiting]:
    """Yield the frames that wait, by segment and place; those whose payload is no event too. Raises ``PathRefused``.

    ``whole``: of the segment that the position is in, those before it too.
    """
    for segment, start in _segments(location, key, tell, progress):
        for waiting in _read(segment, None if whole else start, key, tell, progress):
            if whole and start is not None and waiting.frame.offset < start.offset:
                waiting = waiting._replace(is_acknowledged=True)
            yield waiting


def _segments(
    location: Location, key: bytes | None, tell: Tell, progress: Progress
) -> Iterator[tuple[Segment, Position | None]]:
    """Yield the segments in which something may wait, and from where on; ``None`` is the start."""
    refuse_state(location)
    for trouble in location.troubles:
        tell(trouble)
    judged = judge_position(location, key=key)
    if judged.trouble is not None:
        tell(judged.trouble)
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
    segment: Segment, start: Position | None, key: bytes | None, tell: Tell, progress: Progress
) -> Iterator[Waiting]:
    header: Header | None = None
    for piece in read_segment(segment, key=key, start=start, progress=progress):
        match piece:
            case Header():
                header = piece
            case Frame():
                assert header is not None
                yield _waiting(segment, header, piece, tell)
            case Trouble():
                tell(piece)
            case _:
                pass  # the end of a segment holds nothing


def _waiting(segment: Segment, header: Header, frame: Frame, tell: Tell) -> Waiting:
    event = decode_frame(segment, header, frame)
    odd = event if isinstance(event, Trouble) else end_trouble(segment, frame)
    if odd is not None:
        tell(odd)
    return Waiting(segment, header, frame, event)
