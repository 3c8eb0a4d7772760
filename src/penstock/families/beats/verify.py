"""All damage of a spool, as rows; and what was counted on the way.

Every checksum is computed and every event decoded. A torn tail where a writer was at work is harmless: no producer got an
acknowledgement for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.families.beats.damage import MISSING, damage_at
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import (
    End,
    Judged,
    decode_frame,
    end_damage,
    judge_position,
    read_segment,
)
from penstock.families.beats.rows import header_fields, position_fields
from penstock.families.damage import Damage, DamageCount, damage_row, is_damage
from penstock.families.family import Progress, Row, no_progress
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header


@dataclass
class Summary:
    """What was counted on the way."""

    segments: list[Row] = field(default_factory=list)
    frames: int = 0  # good ones
    acknowledged: int = 0
    damage: DamageCount = field(default_factory=DamageCount)
    judged: Judged | None = None

    @property
    def waiting(self) -> int:
        return self.frames - self.acknowledged


def verify(
    location: Location,
    *,
    key: bytes | None,
    progress: Progress = no_progress,
    summary: Summary | None = None,
) -> Iterator[Row]:
    """Yield a row for each damage; ``summary`` is filled on the way."""
    summary = Summary() if summary is None else summary
    for damage in _find_damage(location, key, progress, summary):
        row = damage_row(FAMILY, damage)
        summary.damage.add(row)
        yield row


def inspect(location: Location, *, key: bytes | None, progress: Progress = no_progress) -> Row:
    """Return what a location is and holds; ``damage`` and ``harmless`` list what ``verify`` finds."""
    summary = Summary()
    rows = list(verify(location, key=key, progress=progress, summary=summary))
    known = [row for row in summary.segments if row["version"] is not None]
    state = location.state
    return {
        "family": FAMILY,
        "kind": location.kind,
        "path": str(location.path),
        "version": sorted({row["version"] for row in known}),
        "options": sorted({name for row in known for name in row["options"]}),
        "format": sorted({row["format"] for row in known}),
        "size": location.size,
        "segments": summary.segments,
        "frames": summary.frames,
        "state_version": None if state is None else state.version,
        "position": position_fields(None if state is None else state.position),
        "sending": position_fields(None if state is None else state.sending),
        "acknowledged": summary.acknowledged,
        "waiting": summary.waiting,
        "harmless": [row for row in rows if not is_damage(row)],
        "damage": [row for row in rows if is_damage(row)],
    }


def _find_damage(
    location: Location, key: bytes | None, progress: Progress, summary: Summary
) -> Iterator[Damage]:
    yield from location.found_damage
    judged = summary.judged = judge_position(location, key=key)
    if judged.damage is not None:
        yield judged.damage
    for segment in location.segments:
        yield from _Segment(segment, judged, summary).find_damage(key, progress)


class _Segment:
    """Counts what one segment holds."""

    def __init__(self, segment: Segment, judged: Judged, summary: Summary) -> None:
        self.segment = segment
        self.judged = judged
        self.summary = summary
        self.header: Header | None = None
        self.frames = 0
        self.acknowledged = 0
        self.is_whole = True

    def find_damage(self, key: bytes | None, progress: Progress) -> Iterator[Damage]:
        for piece in read_segment(self.segment, key=key, progress=progress):
            match piece:
                case Header():
                    self.header = piece
                case Frame():
                    yield from self._frame(piece)
                case End():
                    yield from self._end(piece)
                case Damage():
                    self.is_whole = False
                    yield piece
        self._count()

    def _frame(self, frame: Frame) -> Iterator[Damage]:
        assert self.header is not None
        self.frames += 1
        self.acknowledged += self.judged.is_acknowledged(self.segment.number, frame.offset)
        event = decode_frame(self.segment, self.header, frame)
        damage = event if isinstance(event, Damage) else end_damage(self.segment, frame)
        if damage is not None:
            yield damage

    def _end(self, end: End) -> Iterator[Damage]:
        """The count may be too low, but a writer never counts frames that it did not write."""
        assert self.header is not None
        is_short = self.header.count > end.index
        if is_short and self.is_whole and not self.segment.is_newest:
            reason = f"the header counts {self.header.count} frames, and there are {end.index}"
            path, number = self.segment.path, self.segment.number
            yield damage_at(
                path, MISSING, reason, offset=end.offset, segment=number, index=end.index
            )

    def _count(self) -> None:
        row = header_fields(self.segment, self.header)
        row |= {"frames": self.frames, "acknowledged": self.acknowledged, "size": self.segment.size}
        self.summary.segments.append(row)
        self.summary.frames += self.frames
        self.summary.acknowledged += self.acknowledged
