"""The rows of segments, frames and events of a spool.

``offset`` is logical, which is the offset in the file wherever ``file_offset`` says the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from penstock.families.beats.damage import BAD_END, severity_of
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import (
    decode_frame,
    is_transformed,
    read_segment,
    read_waiting,
)
from penstock.families.damage import Damage, Report, damage_row, fault_fields, place_row
from penstock.families.family import Progress, Row, encode_payload, no_progress
from penstock.families.payloads import payload_fields
from penstock.formats.beats.event import Event, event_as_json
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header, Options
from penstock.formats.beats.state import Position
from penstock.formats.beats.task_event import task_of

place: Final = partial(place_row, FAMILY)
"""Return the names that every row about a place has."""


def option_names(options: Options) -> list[str]:
    """Return what is set, in words."""
    return [str(option.name).lower() for option in Options if option in options]


def position_fields(position: Position | None) -> Row | None:
    """Return a place between two frames."""
    if position is None:
        return None
    return {"segment": position.segment, "offset": position.offset, "index": position.index}


def header_fields(segment: Segment, header: Header | None) -> Row:
    """Return what a header says, if it can be read; its count is 0 where nobody counted."""
    if header is None:
        known: Row = {"version": None, "options": [], "format": None, "count": None}
        return {"segment": segment.number, **known}
    return {
        "segment": segment.number,
        "version": header.version,
        "options": option_names(header.options),
        "format": str(header.payload_format),
        "count": header.count,
    }


def state_row(location: Location) -> Row:
    """Return the row of a position that can be read."""
    assert location.state_path is not None
    row = place(location.state_path, "state", 0, location.state_size, "ok")
    state = location.state
    return row | {
        "version": None if state is None else state.version,
        "position": position_fields(None if state is None else state.position),
        "sending": position_fields(None if state is None else state.sending),
    }


def frame_row(segment: Segment, header: Header, frame: Frame, event: Event | Damage) -> Row:
    """Return the row of a frame whose checksum is right."""
    row = place(segment.path, "frame", frame.offset, frame.size, "ok")
    if isinstance(event, Damage):
        row |= {"status": event.status} | fault_fields(event.reason, event.severity)
    elif frame.warning is not None:
        row |= {"status": BAD_END} | fault_fields(frame.warning, severity_of(BAD_END))
    return row | {
        "segment": segment.number,
        "index": frame.index,
        "file_offset": None if is_transformed(header) else frame.offset,
        "payload": encode_payload(frame.payload),
        "event": None if isinstance(event, Damage) else event_as_json(event),
    }


def queue_and_key(event: Event | Damage, otherwise: str) -> tuple[str, int]:
    """Return where an event belongs: what a task of ours says, else ``otherwise`` and 0."""
    task = None if isinstance(event, Damage) else task_of(event)
    return (otherwise, 0) if task is None else (task.queue, task.key)


def task_row(segment: Segment, frame: Frame, event: Event | Damage, otherwise: str) -> Row:
    """Return an event as a task; ``event`` is null if the payload is none."""
    queue, key = queue_and_key(event, otherwise)
    return {
        "queue": queue,
        "key": key,
        "segment": segment.number,
        "offset": frame.offset,
        "seq": frame.index,
        "event": None if isinstance(event, Damage) else event_as_json(event),
        **payload_fields(frame.payload),
    }


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


def dump(
    location: Location, *, key: bytes | None, progress: Progress = no_progress
) -> Iterator[Row]:
    """Yield a row for everything that is stored; nothing stops it but the end."""
    is_state_bad = any(damage.path == location.state_path for damage in location.found_damage)
    if location.state_path is not None and not is_state_bad:
        yield state_row(location)
    for damage in location.found_damage:
        yield damage_row(FAMILY, damage)
    for segment in location.segments:
        yield from _segment_rows(segment, key, progress)


def _segment_rows(segment: Segment, key: bytes | None, progress: Progress) -> Iterator[Row]:
    header: Header | None = None
    for piece in read_segment(segment, key=key, progress=progress):
        match piece:
            case Header():
                header = piece
                row = place(segment.path, "segment", 0, header.size, "ok")
                yield row | header_fields(segment, header)
            case Frame():
                assert header is not None
                yield frame_row(segment, header, piece, decode_frame(segment, header, piece))
            case Damage():
                is_plain = header is not None and not header.options
                yield damage_row(FAMILY, piece) | {
                    "file_offset": piece.offset if is_plain else None
                }
            case _:
                pass  # the end of a segment holds nothing
