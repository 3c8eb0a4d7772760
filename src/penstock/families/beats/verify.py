"""Everything that is odd or damaged in a spool, as rows; and what was counted on the way.

Every checksum is computed and every event decoded. A torn tail where a writer was at work is no damage: it was promised to
nobody. It is told apart, in ``Summary.notes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.families.beats.location import FAMILY, Location, Segment
from penstock.families.beats.position import Judged, judge_position
from penstock.families.beats.read import End, decode_frame, read_segment
from penstock.families.beats.rows import end_trouble, header_fields, position_fields, trouble_row
from penstock.families.beats.trouble import MISSING, TOO_DEEP, Trouble, too_deep_words
from penstock.families.progress import Progress, no_progress
from penstock.families.taskflux.rows import Row
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header


@dataclass
class Summary:
    """What was counted on the way."""

    segments: list[Row] = field(default_factory=list)
    frames: int = 0  # good ones
    acknowledged: int = 0
    damaged: int = 0
    too_deep: int = 0  # events that are nested deeper than we decode; their frames are good
    notes: list[str] = field(default_factory=list)  # what is odd and no damage
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
    """Yield a row for each piece of damage; ``summary`` is filled on the way."""
    summary = Summary() if summary is None else summary
    for trouble in _troubles(location, key, progress, summary):
        if trouble.is_damage:
            summary.damaged += 1
            yield trouble_row(trouble)
        elif trouble.status == TOO_DEEP:
            summary.too_deep += 1
        else:
            summary.notes.append(trouble.words)
    if summary.too_deep:
        summary.notes.append(too_deep_words(summary.too_deep))


def inspect(location: Location, *, key: bytes | None, progress: Progress = no_progress) -> Row:
    """Return what a location is and holds; ``damage`` lists what ``verify`` finds."""
    summary = Summary()
    damage = list(verify(location, key=key, progress=progress, summary=summary))
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
        "notes": summary.notes,
        "damage": damage,
    }


def _troubles(
    location: Location, key: bytes | None, progress: Progress, summary: Summary
) -> Iterator[Trouble]:
    yield from location.troubles
    judged = summary.judged = judge_position(location, key=key)
    if judged.trouble is not None:
        yield judged.trouble
    for segment in location.segments:
        yield from _Segment(segment, judged, summary).troubles(key, progress)


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

    def troubles(self, key: bytes | None, progress: Progress) -> Iterator[Trouble]:
        for piece in read_segment(self.segment, key=key, progress=progress):
            match piece:
                case Header():
                    self.header = piece
                case Frame():
                    yield from self._frame(piece)
                case End():
                    yield from self._end(piece)
                case Trouble():
                    self.is_whole = False
                    yield piece
        self._count()

    def _frame(self, frame: Frame) -> Iterator[Trouble]:
        assert self.header is not None
        self.frames += 1
        self.acknowledged += self.judged.is_acknowledged(self.segment.number, frame.offset)
        event = decode_frame(self.segment, self.header, frame)
        odd = event if isinstance(event, Trouble) else end_trouble(self.segment, frame)
        if odd is not None:
            yield odd

    def _end(self, end: End) -> Iterator[Trouble]:
        """The count may be too low, but a writer never counts frames that it did not write."""
        assert self.header is not None
        is_short = self.header.count > end.index
        if is_short and self.is_whole and not self.segment.is_newest:
            reason = f"the header counts {self.header.count} frames, and there are {end.index}"
            path, number = self.segment.path, self.segment.number
            yield Trouble(path, end.offset, None, MISSING, reason, number, end.index)

    def _count(self) -> None:
        row = header_fields(self.segment, self.header)
        row |= {"frames": self.frames, "acknowledged": self.acknowledged, "size": self.segment.size}
        self.summary.segments.append(row)
        self.summary.frames += self.frames
        self.summary.acknowledged += self.acknowledged
