"""A spool that may grow, and lose its oldest segments, while a stream follows it.

An offset is ``{"segment": n, "position": p, "frame": f}``: all before the logical offset ``p`` of segment ``n`` was
delivered, ``f`` frames of it. Position 0 is the beginning of a segment; segment −1 is before whichever comes first.

Only the newest segment grows. There, what can only be judged with more of it is waited for, so a torn tail is a frame that
is still being written; and once a newer segment is there, it is damage. What was judged never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import Compacted, InvalidValue, PathRefused
from penstock.families.beats.damage import GONE
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location, Segment, resolve
from penstock.families.beats.tables.plan import (
    SegmentPlan,
    cut_segment,
    key_for,
    read_header,
    segment_plan,
)
from penstock.families.beats.tables.read import end_of_growing, read_segment
from penstock.families.damage import Damage
from penstock.families.family import Split
from penstock.families.follow import Offset
from penstock.families.plan import ROW_SIZE, DamagePlan, refusal
from penstock.families.tables import ReadOptions, Table, shown_path
from penstock.formats.beats.frame import Verdict
from penstock.formats.beats.frame_scan import FrameColumns, Place
from penstock.storage.files import FILES, File

BEFORE_ALL: Final = -1


class _Newest(NamedTuple):
    """The newest segment as it was seen last. Held open, it tells what became of it even after it was removed."""

    file: File
    size: int
    offset: Offset  # behind all that was whole


class GrowingSpool:
    """The segments of a spool's directory, oldest first."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        """Check what is asked for. Raises ``InvalidValue`` and ``PathRefused``."""
        self._path = path
        self._options = options
        if resolve(path).kind != "spool":
            raise PathRefused(f"{path}: a stream is of a spool as a whole; name its directory")
        if options.table is not Table.ENTRIES:
            raise InvalidValue(
                f"{path}: what was removed from a spool only state.dat tells, which has no history: a stream of it is"
                " of entries"
            )
        if options.filters.first is not None or options.filters.last is not None:
            raise InvalidValue(
                f"{path}: a stream of a spool is of all frames; omit startingIndex and endingIndex"
            )
        self._newest: _Newest | None = None
        # Where the last segment ended that was read to its end and then went away.
        self._finished: Offset | None = None

    def beginning(self) -> Offset:
        """Return the offset of the oldest segment that is there."""
        segments = self._look().segments
        return _offset(segments[0].number if segments else BEFORE_ALL)

    def end(self) -> Offset:
        location = self._look()
        with self._in_words():
            return self._end(location, _offset(BEFORE_ALL))

    def latest(self, start: Offset, *, rows_max: int | None, target: Offset | None) -> Offset:
        location = self._look()
        start = self._checked(start, location)
        with self._in_words():
            found = self._end(location, start)
            if rows_max is not None:
                found = self._after(location, start, found, rows_max)
        if target is not None and _place(found) > _place(target):
            found = target
        return max(found, start, key=_place)

    def plan(self, start: Offset, end: Offset) -> Sequence[Split]:
        """Return the splits between two offsets. Raises ``Compacted`` if segments went away."""
        if _place(start) >= _place(end):
            return []
        location = self._look()
        start = self._checked(start, location)
        numbers = {segment.number for segment in location.segments}
        if end["position"] and end["segment"] not in numbers:
            self._lose(end["segment"], 0)
        splits: list[Split] = []
        for segment in location.segments:
            if start["segment"] <= segment.number <= end["segment"]:
                splits += self._pieces(location, segment, start, end)
        return splits

    def close(self) -> None:
        """Let the newest segment go, which is held open."""
        if self._newest is not None:
            self._newest.file.close()
            self._newest = None

    def _look(self) -> Location:
        return resolve(self._path)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise refusal(self._path, error) from None

    # Where a batch begins.

    def _checked(self, start: Offset, location: Location) -> Offset:
        """Return where a batch truly begins: behind segments that went away, if that is allowed."""
        numbers = [segment.number for segment in location.segments]
        if start["segment"] in numbers:
            return start
        if start["segment"] != BEFORE_ALL and not self._is_finished(start):
            self._lose(start["segment"], start["position"])
        later = [number for number in numbers if number > start["segment"]]
        return _offset(later[0]) if later else start

    def _is_finished(self, start: Offset) -> bool:
        """Return whether a segment that went away gained nothing behind an offset: one that was held open tells."""
        newest = self._newest
        if newest is not None and newest.offset == start and newest.file.size() == newest.size:
            self._finished = start
        return self._finished == start

    def _lose(self, segment: int, position: int) -> None:
        if self._options.fail_on_data_loss:
            raise Compacted(
                f"{self._path}: segment {segment} went away before all behind its byte {position:,} was read; go on"
                " without it: failOnDataLoss=false"
            )

    # Where a batch ends.

    def _end(self, location: Location, start: Offset) -> Offset:
        """Return the offset behind all that is there, ``start`` being in the newest segment or before it."""
        if not location.segments:
            return start
        newest = location.segments[-1]
        is_there = start["segment"] == newest.number
        plan = self._plan_of(location, newest, start if is_there else _offset(newest.number))
        if isinstance(plan, Damage):
            return _offset(newest.number)
        file = FILES.open(newest.path, write=False)
        self.close()
        size = file.size()
        place = end_of_growing(file, replace(plan, size=size), self._key(plan))
        found = _offset_of(newest.number, place, plan)
        self._newest = _Newest(file, size, found)
        return found

    def _after(self, location: Location, start: Offset, newest: Offset, rows_max: int) -> Offset:
        """Return the offset behind so many rows, or ``newest``, which is behind all that is there."""
        for segment in location.segments:
            if segment.number < start["segment"]:
                continue
            begin = start if segment.number == start["segment"] else _offset(segment.number)
            if _place(begin) >= _place(newest):
                break
            if rows_max == 0:
                return begin
            plan = self._plan_of(location, segment, begin)
            if isinstance(plan, Damage):
                rows_max -= 1
                continue
            stop = newest["position"] if segment.number == newest["segment"] else None
            place, rows_max = self._count(replace(plan, stop=stop), rows_max)
            if place is not None:
                return _offset_of(segment.number, place, plan)
        return newest

    def _count(self, plan: SegmentPlan, rows_max: int) -> tuple[Place | None, int]:
        """Return the boundary behind so many rows, or ``None`` and how many more there may be behind the segment.

        A segment that ends with them is delivered with all that may stand behind its last frame.
        """
        place: Place | None = None
        for found in read_segment(plan, self._key(plan)):
            if place is not None:
                return place, 0
            count = 1 if isinstance(found, Damage) else len(found)
            if isinstance(found, FrameColumns) and rows_max < count:
                return _boundary(found, rows_max - 1), 0
            if isinstance(found, FrameColumns) and rows_max == count:
                place = _boundary(found, count - 1)
            rows_max = max(rows_max - count, 0)
        return None, rows_max

    def _key(self, plan: SegmentPlan) -> bytes | None:
        return key_for(Path(plan.path), plan.header.options, self._options)

    # What a batch reads.

    def _plan_of(self, location: Location, segment: Segment, start: Offset) -> SegmentPlan | Damage:
        """Return a plan of a segment from an offset on, or what is wrong with its header."""
        header = read_header(segment)
        if isinstance(header, Damage):
            if header.status == GONE:
                self._lose(segment.number, start["position"])
            return header
        key_for(segment.path, header.options, self._options)
        plan = segment_plan(str(self._path), location.name, segment, header)
        plan = replace(plan, is_streamed=True)
        if start["position"] == 0:
            return plan
        base = (start["position"], start["frame"])
        return replace(plan, base=base, first=start["position"])

    def _pieces(
        self, location: Location, segment: Segment, start: Offset, end: Offset
    ) -> list[Split]:
        is_last = segment.number == end["segment"]
        begin = start if segment.number == start["segment"] else _offset(segment.number)
        if is_last and begin["position"] >= end["position"]:
            return []
        plan = self._plan_of(location, segment, begin)
        if isinstance(plan, Damage):
            shown = shown_path(str(self._path), segment.path)
            told = DamagePlan(found=((shown, plan),))
            return [Split(family=FAMILY, source=str(self._path), size=ROW_SIZE, plan=told)]
        if is_last:
            # It may be longer by now; between two offsets there is always the same.
            plan = replace(plan, stop=end["position"])
        return cut_segment(str(self._path), plan, self._options.split_size)


def _offset(segment: int, position: int = 0, frame: int = 0) -> Offset:
    return {"segment": segment, "position": position, "frame": frame}


def _offset_of(number: int, place: Place, plan: SegmentPlan) -> Offset:
    """Return a place in a segment as an offset; before its first frame that is the beginning."""
    is_begun = place.offset > plan.header.size
    return _offset(number, place.offset, place.index) if is_begun else _offset(number)


def _place(offset: Offset) -> tuple[int, int]:
    return offset["segment"], offset["position"]


def _boundary(frames: FrameColumns, row: int) -> Place:
    """Return the boundary behind a row."""
    is_counted = int(frames.verdict[row]) <= Verdict.FRAME
    return Place(
        int(frames.offset[row] + frames.size[row]), int(frames.index[row]) + int(is_counted)
    )
