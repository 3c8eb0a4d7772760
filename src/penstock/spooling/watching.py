"""Looking at a spool from outside, while its owner is at work: no lock, nothing written.

Whatever the owner removes meanwhile was acknowledged, and a segment that is being written is read as far as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.errors import PathRefused
from penstock.families.beats.location import Location, Segment, resolve
from penstock.families.beats.read import decode_frame, judge_position, read_segment
from penstock.families.beats.rows import position_fields, task_row
from penstock.families.damage import Damage
from penstock.formats.beats.event import timestamp_text
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header
from penstock.formats.beats.state import Position
from penstock.spooling.refused import DIRECTORY_NAME

Row = dict[str, Any]
ReportLine = Callable[[str], None]
"""Reports damage: a line for each piece."""


def spool_at(path: Path) -> Location:
    """Return the spool in a directory. Raises ``PathRefused``."""
    location = resolve(path)
    if location.kind != "spool":
        raise PathRefused(f"{path}: is a file; name the directory of a spool")
    return location


def stat(path: Path, *, key: bytes | None, report: ReportLine) -> Row:
    """Return how a spool stands, and report its damage. Raises ``PathRefused``."""
    location = spool_at(path)
    count, first, last = _walk(location, key, report)
    refused = path / DIRECTORY_NAME
    state = location.state
    return {
        "path": str(path),
        "segments": len(location.segments),
        "bytes": location.size,
        "waiting": count,
        "position": position_fields(None if state is None else state.position),
        "sending": position_fields(None if state is None else state.sending),
        "oldest": _time_of(first),
        "newest": _time_of(last),
        "refused": _walk(spool_at(refused), key, report)[0] if refused.is_dir() else 0,
    }


_Found = tuple[Segment, Header, Frame]


def _walk(
    location: Location, key: bytes | None, report: ReportLine
) -> tuple[int, _Found | None, _Found | None]:
    """Return how many frames wait, the first of them and the last."""
    position = _position(location, key, report)
    count = 0
    first: _Found | None = None
    last: _Found | None = None
    for segment in location.segments:
        if segment.number < position.segment:
            continue
        header: Header | None = None
        start = position if segment.number == position.segment else None
        for piece in read_segment(segment, key=key, start=start):
            if isinstance(piece, Header):
                header = piece
            elif isinstance(piece, Frame) and header is not None:
                count += 1
                last = segment, header, piece
                first = first or last
            elif isinstance(piece, Damage) and not piece.is_harmless:
                report(piece.words)
    return count, first, last


def _position(location: Location, key: bytes | None, report: ReportLine) -> Position:
    """Return from where on events wait; report what is damaged in the directory and its position."""
    judged = judge_position(location, key=key)
    for damage in (*location.found_damage, judged.damage):
        if damage is not None and not damage.is_harmless:
            report(damage.words)
    return judged.position


def _time_of(found: _Found | None) -> str | None:
    event = None if found is None else decode_frame(*found)
    return None if event is None or isinstance(event, Damage) else timestamp_text(event.timestamp)


class Tail:
    """Reads the events that wait, and then those that come."""

    def __init__(self, path: Path, *, key: bytes | None, report: ReportLine) -> None:
        """Raises ``PathRefused``."""
        self._path = path
        self._key = key
        self._report = report
        location = spool_at(path)
        self._name = location.name
        self._position = _position(location, key, report)
        self._read_size = -1  # bytes of the segment at the position when it was last read

    def rows(self) -> Iterator[Row]:
        """Yield the events that have come since, as ``penstock tasks`` shows them."""
        for segment in spool_at(self._path).segments:
            if segment.number < self._position.segment:
                continue
            if segment.number > self._position.segment:
                self._position, self._read_size = Position(segment.number), -1
            if segment.size != self._read_size:
                yield from self._rows_of(segment)
                self._read_size = segment.size

    def _rows_of(self, segment: Segment) -> Iterator[Row]:
        header: Header | None = None
        start = self._position if self._position.offset else None
        for piece in read_segment(segment, key=self._key, start=start):
            if isinstance(piece, Header):
                header = piece
            elif isinstance(piece, Frame) and header is not None:
                # Before it is handed out: whoever stops in the middle is not given it again.
                self._position = Position(
                    segment.number, piece.offset + piece.size, piece.index + 1
                )
                event = decode_frame(segment, header, piece)
                yield task_row(segment, piece, event, self._name)
            elif isinstance(piece, Damage) and not piece.is_harmless:
                self._report(piece.words)
