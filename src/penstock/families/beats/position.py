"""From where on events wait: the stored position, held to the segment that it names.

A position counts if a frame begins there, or the segment ends there, and as many frames stand before it as it says.
Behind the end of its segment it means that the segment is finished. Any other is not believed, and the segment counts as
not acknowledged: an event that comes twice is better than one that never comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.families.beats.damage import OFF_BOUNDARY, PAST_END, damage_at
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import End, Piece, read_segment
from penstock.families.damage import Damage
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header
from penstock.formats.beats.state import Position, State


class Judged(NamedTuple):
    """Where the first event stands that is not acknowledged, and the damage of the stored position."""

    position: Position
    damage: Damage | None = None

    def is_acknowledged(self, segment: int, offset: int) -> bool:
        """Return whether what begins at a logical offset of a segment stands before the position."""
        return (segment, offset) < (self.position.segment, self.position.offset)


def judge_position(location: Location, *, key: bytes | None) -> Judged:
    """Return from where on events wait; a location without a position has acknowledged nothing."""
    if location.state is None or not location.segments:
        return Judged(Position())
    stored = location.state.position
    first = Position(stored.segment)
    for segment in location.segments:
        if segment.number == stored.segment:
            if location.state.version > 0 and stored.index == 0:
                return Judged(first)  # as Beats reads it, whatever the offset says
            return _judge(location, location.state, segment, key)
    if stored.segment > location.segments[-1].number:
        reason = f"the position is in segment {stored.segment}, before which all is acknowledged"
        return Judged(first, _damage(location, PAST_END, reason))
    return Judged(first)


def _judge(location: Location, state: State, segment: Segment, key: bytes | None) -> Judged:
    stored = state.position
    place = _first_from(stored.offset, read_segment(segment, key=key), state.version)
    if place is None:  # the segment cannot be read, which its reader reports
        return Judged(Position(segment.number))
    offset, index, is_end = place
    if offset == stored.offset and (state.version == 0 or index == stored.index):
        return Judged(Position(stored.segment, offset, index))
    if is_end and stored.offset >= offset:
        reason = f"the position is behind the end of segment {segment.number}, at {offset}: it is finished"
        return Judged(stored, _damage(location, PAST_END, reason))
    reason = (
        f"the position, at {stored.offset} of segment {segment.number} with {stored.index} frames before it, is no"
        " frame's beginning; the segment counts as not acknowledged"
    )
    return Judged(Position(segment.number), _damage(location, OFF_BOUNDARY, reason))


def _first_from(offset: int, pieces: Iterator[Piece], version: int) -> tuple[int, int, bool] | None:
    """Return offset and index of the first boundary from ``offset`` on, and whether the segment ends there."""
    for piece in pieces:
        if isinstance(piece, Header):
            if version == 0 and piece.version != 0:
                return piece.size, 0, False  # offsets of that time mean nothing here
        elif isinstance(piece, End):
            return piece.offset, piece.index, True
        elif isinstance(piece, Frame):
            if piece.offset >= offset:
                return piece.offset, piece.index, False
        elif piece.offset is not None and piece.index is not None and piece.offset >= offset:
            return piece.offset, piece.index, False
    return None


def _damage(location: Location, status: str, reason: str) -> Damage:
    path = location.state_path or location.path
    return damage_at(path, status, reason, offset=0, size=location.state_size)
