"""One pass over a segment: its header, its frames, all that is no frame, and where it ends.

Memory is bounded by the largest frame there may be, whatever a length claims and whatever a body unpacks to. A file that
grows is read as far as it is there; one that goes away is reported as gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import (
    BadData,
    PathRefused,
    TooDeep,
    TruncatedData,
    UnsupportedVersion,
)
from penstock.families.beats.damage import (
    BAD_BODY,
    BAD_CHECKSUM,
    BAD_END,
    BAD_EVENT,
    GAP,
    GONE,
    LEFT_OUT,
    NO_KEY,
    OFF_BOUNDARY,
    PAST_END,
    TOO_DEEP,
    TORN,
    UNREADABLE,
    UNSUPPORTED,
    WRONG_KEY,
    damage_at,
    is_counted,
    too_deep_words,
)
from penstock.families.beats.location import Location, Segment
from penstock.families.damage import Damage, Report, words_of
from penstock.families.family import (
    Outcome,
    Progress,
    no_progress,
)
from penstock.formats.beats.body import BodyDecoder
from penstock.formats.beats.event import Event, decode_event
from penstock.formats.beats.frame import (
    FRAME_MAX,
    FRAME_MIN,
    BadStretch,
    Frame,
    FrameReader,
    StretchKind,
)
from penstock.formats.beats.segment import Header, Options, decode_header
from penstock.formats.beats.state import Position, State
from penstock.storage.files import FILES, File, opened
from penstock.storage.spool_keys import is_key_proven, no_frame_reason

CHUNK_SIZE: Final = 2**20
"""Bytes of a file that are read at a time."""


HOLE_MIN: Final = FRAME_MAX
"""Bytes of a hole that are not read: no frame reaches over so many zeros."""


HEADER_SIZE_MAX: Final = 12


_TRANSFORMED: Final = Options.ENCRYPTED | Options.COMPRESSED
_STATUSES: Final = {
    StretchKind.FRAME: BAD_CHECKSUM,
    StretchKind.GAP: GAP,
    StretchKind.TAIL: TORN,
}


@dataclass(frozen=True, slots=True)
class End:
    """Where a segment ended when it was read, and how many frames stand before that."""

    offset: int
    index: int


Piece = Header | Frame | Damage | End
"""A header comes first, unless there is a damage instead; the end comes last, if there was a header."""


def is_transformed(header: Header) -> bool:
    """Return whether logical offsets are others than those in the file."""
    return bool(header.options & _TRANSFORMED)


def read_segment(
    segment: Segment,
    *,
    key: bytes | None,
    start: Position | None = None,
    progress: Progress = no_progress,
) -> Iterator[Piece]:
    """Yield what a segment holds, in file order; from ``start`` on, which must be a true boundary."""
    try:
        with opened(segment.path) as file:
            yield from _Reading(segment, file, key, start, progress).pieces()
    except FileNotFoundError:
        reason = "the file went away meanwhile: its owner removed it"
        yield damage_at(segment.path, GONE, reason, segment=segment.number)
    except (OSError, PathRefused) as error:
        yield damage_at(segment.path, UNREADABLE, words_of(error), segment=segment.number)


def decode_frame(segment: Segment, header: Header, frame: Frame) -> Event | Damage:
    """Return a frame's event, or why its payload is none."""
    try:
        return decode_event(frame.payload, header.payload_format)
    except BadData as error:
        status, reason = undecoded(error)
        return frame_damage(segment, frame, status, reason, data=frame.payload)


def frame_damage(
    segment: Segment, frame: Frame, status: str, reason: str, *, data: bytes = b""
) -> Damage:
    """Return a damage of a frame whose checksum is right."""
    return damage_at(
        segment.path,
        status,
        reason,
        offset=frame.offset,
        size=frame.size,
        segment=segment.number,
        index=frame.index,
        data=data,
    )


def undecoded(error: BadData) -> tuple[str, str]:
    """Return status and reason of a frame whose checksum is right and whose event cannot be decoded."""
    if isinstance(error, TooDeep):
        return TOO_DEEP, f"the frame is whole, but its event has {error.reason}"
    return BAD_EVENT, f"the checksum is right, but the payload is no event: {error.reason}"


class _Reading:
    """A segment that is open."""

    def __init__(
        self,
        segment: Segment,
        file: File,
        key: bytes | None,
        start: Position | None,
        progress: Progress,
    ) -> None:
        self.segment = segment
        self.file = file
        self.key = key
        self.start = Position() if start is None else start
        self.progress = progress
        self.end = End(0, 0)
        # Of bodies that are compressed: why one ended early, and how many of its bytes are half a block.
        self._wrong: str | None = None
        self._torn_size = 0
        self._has_tail = False

    def pieces(self) -> Iterator[Piece]:
        head = self.file.read(0, HEADER_SIZE_MAX)
        try:
            header = decode_header(head)
        except TruncatedData:
            reason = "the file ends inside the header"
            is_expected = self.segment.is_newest
            yield self._damage(0, len(head), TORN, reason, data=head, is_expected=is_expected)
            return
        except UnsupportedVersion as error:
            yield self._damage(error.offset, None, UNSUPPORTED, f"{error.reason}: {error.found}")
            return
        yield header
        if header.options & Options.ENCRYPTED:
            if self.key is None:
                reason = (
                    "the segment is encrypted; give its key by --key-file, --password-file or the variable"
                    " PENSTOCK_SPOOL_KEY"
                )
                yield self._damage(header.size, None, NO_KEY, reason)
                return
            yield from filter(self._is_asked_for, self._unlocked(header))
        elif header.options & Options.COMPRESSED:
            yield from filter(self._is_asked_for, self._transformed(header))
        else:
            for found in _joined(self._plain(header)):
                yield found if isinstance(found, Frame) else self._judged(header, found)
        yield self.end

    # --- bodies whose offsets are those of the file ---

    def _plain(self, header: Header) -> Iterator[Frame | BadStretch]:
        """Yield frames and damage; holes are reported and not read."""
        position = max(self.start.offset, header.size)
        reader = FrameReader(position, index=self.start.index)
        while True:
            data_at = self.file.next_data(position)
            if data_at is None or data_at - position > HOLE_MIN:
                behind = self.file.size() if data_at is None else data_at
                yield from reader.feed(b"", is_last=True)
                if behind > position:
                    yield _zeros(position, behind, reader.index)
                self.end = End(max(position, behind), reader.index)
                if data_at is None:
                    return
                position, reader = behind, FrameReader(behind, index=reader.index)
            data = self.file.read(position, CHUNK_SIZE)
            position += len(data)
            self.progress(len(data))
            yield from reader.feed(data, is_last=False)

    # --- compressed or encrypted bodies, which are read from their start whatever is asked for ---

    def _is_asked_for(self, piece: Frame | Damage) -> bool:
        """Return whether a piece is not before the start; what has no place among the frames always is."""
        is_placed = piece.offset is not None and piece.index is not None
        return not is_placed or (piece.offset or 0) >= self.start.offset

    def _unlocked(self, header: Header) -> Iterator[Frame | Damage]:
        """Yield what an encrypted body holds. If no frame is in it, the key must be proven by something else."""
        size = self.file.size()
        if size < header.body_start:
            if size > header.size:  # else nothing was begun
                reason = "the file ends inside the initialization vector"
                yield self._torn(header, header.size, size - header.size, reason)
            return
        held: list[Damage] = []
        is_right = False
        for piece in self._transformed(header):
            is_right = is_right or isinstance(piece, Frame)
            if is_right:
                yield from held
                held.clear()
                yield piece
            elif isinstance(piece, Damage):
                held.append(piece)
        if held and self.key is not None and is_key_proven(FILES, self.segment.path, self.key):
            yield from held
        elif held:
            yield self._damage(header.size, None, WRONG_KEY, no_frame_reason(header))

    def _transformed(self, header: Header) -> Iterator[Frame | Damage]:
        for piece in _joined(self._decoded(header)):
            self._has_tail = isinstance(piece, BadStretch) and piece.kind is StretchKind.TAIL
            yield piece if isinstance(piece, Frame) else self._judged(header, piece)
        if self._wrong is not None:
            yield self._damage(self.end.offset, None, BAD_BODY, self._wrong)
        elif self._torn_size and not self._has_tail:
            reason = f"the file ends {self._torn_size} bytes into a compressed block"
            yield self._torn(header, self.end.offset, None, reason)

    def _decoded(self, header: Header) -> Iterator[Frame | BadStretch]:
        decoder = BodyDecoder(header.options, key=self.key)
        reader = FrameReader(header.size)
        position = header.size
        while (data := self._next(position)) != b"":
            position += len(data)
            self.progress(len(data))
            for stream in decoder.feed(data):
                yield from reader.feed(stream, is_last=False)
        self._wrong, self._torn_size = decoder.finish(), decoder.torn_size
        yield from reader.feed(b"", is_last=True)
        self.end = End(reader.offset, reader.index)

    def _next(self, position: int) -> bytes:
        """Return the next bytes; none behind which only a hole follows, or a very large one."""
        data_at = self.file.next_data(position)
        if data_at is None or data_at - position > HOLE_MIN:
            return b""
        return self.file.read(position, CHUNK_SIZE)

    # --- judging ---

    def _judged(self, header: Header, damage: BadStretch) -> Damage:
        is_expected = (
            damage.kind is StretchKind.TAIL
            and self._may_be_torn(header)
            and (damage.offset > header.size or _is_torn(damage))
        )
        return self._damage(
            damage.offset,
            damage.size,
            _STATUSES[damage.kind],
            damage.reason,
            index=damage.index,
            data=damage.data,
            is_expected=is_expected,
        )

    def _torn(self, header: Header, offset: int, size: int | None, reason: str) -> Damage:
        is_expected = self._may_be_torn(header)
        return self._damage(offset, size, TORN, reason, is_expected=is_expected)

    def _may_be_torn(self, header: Header) -> bool:
        """Return whether a writer may be at work here, or have died at it."""
        return self.segment.is_newest or header.count == 0

    def _damage(
        self,
        offset: int | None,
        size: int | None,
        status: str,
        reason: str,
        *,
        index: int | None = None,
        data: bytes = b"",
        is_expected: bool = False,
    ) -> Damage:
        path: Path = self.segment.path
        number = self.segment.number
        return damage_at(
            path,
            status,
            reason,
            offset=offset,
            size=size,
            segment=number,
            index=index,
            data=data,
            is_expected=is_expected,
        )


def _is_torn(damage: BadStretch) -> bool:
    """Return whether a frame begins here that the file ends in, or nothing was written: not just any bytes."""
    length = int.from_bytes(damage.data[:4], "little")
    return damage.size < 4 or not any(damage.data) or FRAME_MIN <= length <= FRAME_MAX


def _zeros(start: int, end: int, index: int) -> BadStretch:
    reason = "zeros that were never written"
    return BadStretch(StretchKind.TAIL, start, end - start, index, reason, b"")


def _joined(found: Iterator[Frame | BadStretch]) -> Iterator[Frame | BadStretch]:
    """Yield the same, with damage that a hole has cut put together: it is a tail only at the very end."""
    held: BadStretch | None = None
    for piece in found:
        if isinstance(piece, BadStretch) and piece.kind is not StretchKind.FRAME:
            is_next = held is not None and held.offset + held.size == piece.offset
            if held is not None and is_next:
                held = replace(held, kind=piece.kind, size=held.size + piece.size)
                continue
            if held is not None:
                yield held
            held = piece
            continue
        if held is not None:
            yield replace(held, kind=StretchKind.GAP)
            held = None
        yield piece
    if held is not None:
        yield held


def end_damage(segment: Segment, frame: Frame) -> Damage | None:
    """Return the damage of a whole frame whose length at its end is wrong, or ``None``."""
    if frame.warning is None:
        return None
    return frame_damage(segment, frame, BAD_END, f"the frame is whole, but {frame.warning}")


# --- from where on events wait: the stored position, held to the segment that it names -----------
#
# A position counts if a frame begins there, or the segment ends there, and as many frames stand before it as it says.
# Behind the end of its segment it means that the segment is finished. Any other is not believed, and the segment counts as
# not acknowledged: an event that comes twice is better than one that never comes.


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


# --- what waits ----------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """A frame that is not acknowledged, and its event, or why it has none."""

    segment: Segment
    header: Header
    frame: Frame
    event: Event | Damage
    is_acknowledged: bool = False


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


# --- what a read reports -------------------------------------------------------------------------

NOTES_MAX: Final = 10
"""Oddities that are no damage and are reported one by one; a spool may have one in each of thousands of files."""


class Tally:
    """Counts what a read reports."""

    def __init__(self) -> None:
        self.too_deep = 0  # events that were not decoded
        self._is_loss = False
        self._places = 0
        self._left: Counter[str] = Counter()  # events that were left out, by status
        self._notes: list[str] = []

    def add(self, damage: Damage) -> None:
        self._is_loss = self._is_loss or damage.is_lost
        if damage.status in LEFT_OUT:
            self._left[damage.status] += 1
        elif damage.status == TOO_DEEP:
            self.too_deep += 1
        elif is_counted(damage):
            self._places += 1
        else:
            self._notes.append(damage.words)

    def judge(self, path: Path, outcome: Outcome) -> None:
        """Report what a finished read has found."""
        outcome.is_damaged = self._is_loss
        outcome.words += first_of(self._notes)
        if self._places:
            where = f"{path}: {self._places} places are damaged"
            outcome.words.append(f"{where}; 'penstock verify' lists them")
        if self.too_deep:
            outcome.words.append(too_deep_words(self.too_deep))
        for status, count in self._left.items():
            outcome.words.append(f"{count} events were left out: {LEFT_OUT[status]}")


def first_of(notes: list[str]) -> list[str]:
    """Return the first notes, and how many there are beside."""
    more = len(notes) - NOTES_MAX
    return notes if more <= 0 else [*notes[:NOTES_MAX], f"and {more} more of this kind"]
