"""One pass over a segment: its header, its frames, all that is no frame, and where it ends.

Memory is bounded by the largest frame there may be, whatever a length claims and whatever a body unpacks to. A file that
grows is read as far as it is there; one that goes away is reported as gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import BadData, PathRefused, TooDeep, TruncatedData, UnsupportedVersion
from penstock.families.beats.damage import (
    BAD_BODY,
    BAD_CHECKSUM,
    BAD_EVENT,
    GAP,
    GONE,
    NO_KEY,
    TOO_DEEP,
    TORN,
    UNREADABLE,
    UNSUPPORTED,
    WRONG_KEY,
    damage_at,
)
from penstock.families.beats.location import Segment
from penstock.families.damage import Damage, words_of
from penstock.families.family import Progress, no_progress
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
from penstock.formats.beats.state import Position
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
