"""Salvage: every whole frame with an event in it, into new segments of the same kind; the rest as rows.

Payloads are copied byte for byte, under the number that their segment has. Headers count what is there, and the position
stands before the same event as it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.families.beats.damage import TOO_DEEP
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import decode_frame, judge_position, read_segment, refuse_state
from penstock.families.damage import Damage, damage_row
from penstock.families.family import Progress, Row, no_progress
from penstock.families.taskflux.new_directory import whole_directory
from penstock.formats.beats.body import BodyEncoder
from penstock.formats.beats.event import Event
from penstock.formats.beats.frame import FRAMING, Frame, encode_frames
from penstock.formats.beats.segment import (
    COUNT_OFFSET,
    STATE_NAME,
    UINT32,
    Header,
    Options,
    encode_header,
    segment_name,
)
from penstock.formats.beats.state import VERSION, Position, State, encode_state
from penstock.storage.files import FILES, File, read_whole, replace_file
from penstock.storage.spool_segments import new_iv


@dataclass
class Rewritten:
    """What was written; filled as it goes."""

    segments: int = 0
    frames: int = 0
    mended: int = 0  # frames whose length at the end was wrong
    versions: set[int] = field(default_factory=set)  # of the segments
    position: Position | None = None
    is_round_lost: bool = (
        False  # whether something was on its way to a node that will be sent as if it were new
    )


@dataclass
class Repaired(Rewritten):
    """What a repair wrote; filled as it goes."""

    left: int = 0  # rows of what was left behind
    notes: list[str] = field(default_factory=list)


def repair(
    location: Location,
    out: Path,
    result: Repaired,
    *,
    key: bytes | None,
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Write all that is whole into ``out``; yield a row for everything that was left. Raises ``PathRefused``."""
    refuse_state(location)
    with whole_directory(out, source=location.home) as new:
        for damage in rewrite(
            location,
            new,
            result,
            key=key,
            reshape=_alike,
            refill=_same,
            progress=progress,
        ):
            if damage.is_lost:
                result.left += 1
                yield damage_row(FAMILY, damage)
            else:
                result.notes.append(damage.words)
    if result.is_round_lost:
        result.notes.append(ROUND_LOST)
    if result.mended:
        result.notes.append(
            f"{result.mended} frames had a wrong length at their end, and were mended"
        )


def _alike(header: Header) -> Header:
    return Header(header.version, 0, header.options)


def _same(_segment: Segment, frame: Frame, event: Event | Damage) -> bytes | Damage:
    if isinstance(event, Damage) and event.status != TOO_DEEP:
        return event
    return frame.payload


# --- a spool written from another one ------------------------------------------------------------
#
# Segments of the same numbers, frame by frame, and the position carried over. What a frame becomes is the caller's to say.
# Whatever is left behind comes out as a damage.

BUFFER_SIZE: Final = 2**20
"""Bytes of payload that are held until they are written."""


PRODUCER_NAME: Final = "penstock.producer"
"""Who the spool is to a node, while something is on its way."""


PRODUCER_SIZE_MAX: Final = 2**16


ROUND_LOST: Final = (
    "tasks were on their way to a node when this was written, and may arrive there twice"
)


Reshape = Callable[[Header], Header]
"""Says what kind of segment a segment becomes."""


Refill = Callable[[Segment, Frame, Event | Damage], bytes | Damage]
"""Says what the payload of a frame becomes, or why it is left behind."""


@dataclass
class Carried:
    """A position, and where the first frame from there on stands in the new spool."""

    old: Position
    new: Position = field(init=False)
    is_found: bool = False

    def __post_init__(self) -> None:
        self.new = Position(self.old.segment)

    def meet(self, number: int, old_offset: int, new: Position) -> None:
        """See a frame that is written at ``new``, or the end of its segment."""
        is_there = number == self.old.segment and old_offset >= self.old.offset
        if is_there and not self.is_found:
            self.new, self.is_found = new, True


def rewrite(
    location: Location,
    new: Path,
    result: Rewritten,
    *,
    key: bytes | None,
    reshape: Reshape,
    refill: Refill,
    progress: Progress,
) -> Iterator[Damage]:
    """Write into ``new``, a directory that is there; yield all damage, and what was left behind."""
    yield from location.found_damage
    judged = judge_position(location, key=key)
    if judged.damage is not None:
        yield judged.damage
    carried = [Carried(judged.position)]
    if location.state is not None and location.state.sending is not None:
        carried.append(Carried(location.state.sending))
    for segment in location.segments:
        work = _Work(segment, new, result, carried, key)
        yield from work.run(reshape, refill, progress)
    if location.kind == "spool":
        result.position = carried[0].new
        sending = _sending(location, carried, new, result)
        version = _state_version(location, result)
        state = State(position=result.position, version=version, sending=sending)
        replace_file(FILES, new / STATE_NAME, [encode_state(state)])


def _state_version(location: Location, result: Rewritten) -> int:
    """Return the version of the position's file. Beats 7.10 to 7.13, which write segments of version 0, know only 0.

    They take another version for no position at all and send everything again.
    """
    is_old = location.state is None or location.state.version == 0
    return 0 if is_old and result.versions == {0} else VERSION


def _sending(
    location: Location, carried: list[Carried], new: Path, result: Rewritten
) -> Position | None:
    """Carry over what was on its way to a node, if every frame of it is where it was; return how far it reaches.

    Requests are numbered by their frames' places. Sent from other places, a task could be taken for one that the node
    knows, and be lost; under another producer it can only come twice.
    """
    if len(carried) < 2:
        return None
    identity = read_whole(FILES, location.path / PRODUCER_NAME, size_max=PRODUCER_SIZE_MAX)
    if identity is None or any(each.new != each.old for each in carried):
        result.is_round_lost = True
        return None
    replace_file(FILES, new / PRODUCER_NAME, [identity])
    return carried[1].new


class _Work:
    """Writes one segment."""

    def __init__(
        self,
        segment: Segment,
        new: Path,
        result: Rewritten,
        carried: list[Carried],
        key: bytes | None,
    ) -> None:
        self.segment = segment
        self.path = new / segment_name(segment.number)
        self.result = result
        self.carried = carried
        self.key = key
        self.header: Header | None = None
        self.new: NewSegment | None = None

    def run(self, reshape: Reshape, refill: Refill, progress: Progress) -> Iterator[Damage]:
        try:
            for piece in read_segment(self.segment, key=self.key, progress=progress):
                match piece:
                    case Header():
                        self.header = piece
                    case Frame():
                        yield from self._frame(piece, reshape, refill)
                    case Damage():
                        yield piece
                    case _:
                        self._end(reshape)
        finally:
            if self.new is not None:
                self.new.close()

    def _opened(self, reshape: Reshape) -> NewSegment:
        if self.new is None:
            assert self.header is not None
            header = reshape(self.header)
            self.result.versions.add(header.version)
            self.new = NewSegment(self.path, header, key=self.key)
        return self.new

    def _frame(self, frame: Frame, reshape: Reshape, refill: Refill) -> Iterator[Damage]:
        assert self.header is not None
        event = decode_frame(self.segment, self.header, frame)
        refilled = refill(self.segment, frame, event)
        if isinstance(refilled, Damage):
            yield refilled
            return
        new = self._opened(reshape)
        self._meet(frame.offset, new)
        new.add(refilled)
        self.result.frames += 1
        self.result.mended += frame.warning is not None

    def _end(self, reshape: Reshape) -> None:
        new = self._opened(reshape)
        self._meet(None, new)
        new.finish()
        self.result.segments += 1

    def _meet(self, old_offset: int | None, new: NewSegment) -> None:
        """See the frame that comes next; ``None`` is the end, which is behind every position."""
        place = Position(self.segment.number, new.offset if new.count else 0, new.count)
        for carried in self.carried:
            offset = carried.old.offset if old_offset is None else old_offset
            carried.meet(self.segment.number, offset, place)


class NewSegment:
    """A segment's file that is written from its start to its end; whole once it is finished."""

    def __init__(self, path: Path, header: Header, *, key: bytes | None) -> None:
        self._header = header
        is_encrypted = bool(header.options & Options.ENCRYPTED)
        # Never the old one's: two streams under one vector give each other away.
        iv = new_iv(key) if is_encrypted and key is not None else None
        self._encoder = BodyEncoder(header.options, key=key, iv=iv)
        self._file: File | None = FILES.open(path, write=True, create=True)
        self._directory = path.parent
        self._written = 0
        self._payloads: list[bytes] = []
        self._held = 0
        self.offset = header.size  # logical, where the next frame begins
        self.count = 0
        self._write(encode_header(header) + self._encoder.begin())

    def add(self, payload: bytes) -> None:
        """Write a frame. Raises ``InvalidValue`` for a payload that no frame takes."""
        self._payloads.append(payload)
        self.offset += len(payload) + FRAMING
        self.count += 1
        self._held += len(payload)
        if self._held >= BUFFER_SIZE:
            self._flush()

    def _flush(self) -> None:
        if self._payloads:
            self._write(self._encoder.encode(encode_frames(self._payloads)))
            self._payloads, self._held = [], 0

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(self._written, [data])
        self._written += len(data)

    def finish(self) -> None:
        """Return when the file is on the disk, its frames counted in its header."""
        self._flush()
        self._write(self._encoder.end())
        assert self._file is not None
        if self._header.version > 0:
            self._file.write(COUNT_OFFSET, [UINT32.pack(self.count)])
        self._file.sync()
        self.close()
        FILES.sync_directory(self._directory)

    def close(self) -> None:
        """Let go of the file, finished or not."""
        if self._file is not None:
            self._file.close()
            self._file = None
