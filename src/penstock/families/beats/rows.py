"""The rows of segments, frames and events of a spool.

``offset`` is logical, which is the offset in the file wherever ``file_offset`` says the same.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.families.beats.damage import BAD_END, severity_of
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import frame_damage, is_transformed
from penstock.families.damage import Damage, fault_fields, place_row
from penstock.families.family import Row, encode_payload
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


def end_damage(segment: Segment, frame: Frame) -> Damage | None:
    """Return the damage of a whole frame whose length at its end is wrong, or ``None``."""
    if frame.warning is None:
        return None
    return frame_damage(segment, frame, BAD_END, f"the frame is whole, but {frame.warning}")


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
