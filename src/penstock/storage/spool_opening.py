"""What a spool finds when it is opened: its segments, where its reader was, and what a crash left to clear away.

Only the newest segment can be torn, because no other was being written; its tail is cut and said. A position that is no
place between two frames is not believed: it is better to send twice than to skip.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.errors import BadData, CorruptData, PenstockError, SpoolFull, TruncatedData
from penstock.formats.beats.body import is_key_of
from penstock.formats.beats.frame import StretchKind
from penstock.formats.beats.segment import (
    COUNT_OFFSET,
    IV_SIZE,
    STATE_NAME,
    Header,
    Options,
    decode_header,
    segment_name,
    segment_number,
)
from penstock.formats.beats.state import Position, State, decode_state, encode_state
from penstock.storage.files import NO_ROOM, TEMPORARY_SUFFIX, Files, read_whole, replace_file
from penstock.storage.spool_keys import is_key_proven, no_frame_reason
from penstock.storage.spool_segments import HEADER_MAX, SegmentCursor, encode_count

STATE_MAX: Final = 4096
"""Bytes of a state that are read; what matters stands in the first hundred."""

DAMAGED_SUFFIX: Final = ".damaged"
"""Added to the name of a segment that had damage: Beats and we pass it over, a person can look at it."""

NO_STATE: Final = State(Position())
"""That of a spool of which nothing was acknowledged."""

_TAKEN_AT_ONCE: Final = 4096


@dataclass(slots=True)
class SpoolSegment:
    """What a spool knows of one of its segments."""

    number: int
    path: Path
    size: int  # bytes of the file that are durable
    count: int | None  # frames; ``None`` if nobody has counted them
    is_sealed: bool = True
    is_read: bool = False  # all of it was handed out
    batches: int = 0  # handed out and not acknowledged
    is_damaged: bool = False
    damage_told: int = 0  # of its damage, places that were told; it may be read more than once
    is_dropped: bool = False


@dataclass(slots=True)
class Found:
    """A spool as it was found, cleared of what a crash left."""

    segments: list[SpoolSegment]
    position: Position
    sending: Position | None
    next_number: int
    notes: list[str] = field(default_factory=list)


def find_spool(files: Files, directory: Path, *, key: bytes | None) -> Found:
    """Look at a directory that we hold the lock of. Raises ``BadData`` for a segment that cannot be read at all."""
    notes: list[str] = []
    _remove_leftovers(files, directory)
    state = read_state(files, directory, notes)
    paths = segment_paths(files, directory)
    # A number that was once used is not used again: a position in the old segment would hold for the new one.
    used = [*paths, *_numbers_set_aside(files, directory)]
    paths = _remove_sent(files, paths, state.position.segment)
    segments: list[SpoolSegment] = []
    for number, path in paths.items():
        is_newest = number == max(paths)
        segment = _look_at(files, number, path, key, notes, is_newest=is_newest)
        if segment is not None:
            segments.append(segment)
    position = believable(files, segments, state, key, notes)
    for segment in segments:
        segment.is_read = segment.number < position.segment
    sending = state.sending
    if sending is not None and (sending <= position or position != state.position):
        sending = None
    used.append(position.segment if position.offset else position.segment - 1)
    _settle_state(files, directory, position)
    return Found(segments, position, sending, max(used) + 1, notes)


def _remove_leftovers(files: Files, directory: Path) -> None:
    temporary = directory / (STATE_NAME + TEMPORARY_SUFFIX)
    if files.exists(temporary):
        files.remove(temporary)


def _numbers_set_aside(files: Files, directory: Path) -> list[int]:
    found = []
    for name in files.names(directory):
        number = segment_number(name.removesuffix(DAMAGED_SUFFIX))
        if name.endswith(DAMAGED_SUFFIX) and number is not None:
            found.append(number)
    return found


def _settle_state(files: Files, directory: Path, position: Position) -> None:
    """Make durable what was found: a process that was killed may have left what no disk has yet."""
    state = read_state(files, directory, [])
    if position != state.position:
        # Else the next start would judge by the old one, among the segments that come now.
        write_state(files, directory / STATE_NAME, State(position))
    elif state == NO_STATE:
        # Later, when the disk is full, there is a place for it. For now it can be done without.
        with contextlib.suppress(SpoolFull):
            write_state(files, directory / STATE_NAME, State(position))
    files.sync_directory(directory)


def write_state(files: Files, path: Path, state: State) -> None:
    """Return when the state is durable. Raises ``SpoolFull`` if the disk has no room for it.

    It is put in place of the old one, which is there until then. If the disk has no room for both, it is written
    over it: what is sent makes room, and nothing could be sent otherwise.
    """
    data = encode_state(state)
    try:
        replace_file(files, path, [data])
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        try:
            _write_over(files, path, data)
        except OSError as problem:
            if problem.errno not in NO_ROOM:
                raise
            raise SpoolFull(f"{path}: {problem.strerror}; make room and try again") from None


def _write_over(files: Files, path: Path, data: bytes) -> None:
    """Write a small file in place. Less than a sector is written whole or not at all by the disks there are."""
    _remove_leftovers(files, path.parent)
    file = files.open(path, write=True, create=True)
    try:
        file.write(0, [data])
        file.truncate(len(data))
        file.sync()
    finally:
        file.close()
    files.sync_directory(path.parent)


def read_state(files: Files, directory: Path, notes: list[str]) -> State:
    """Return the state, or ``NO_STATE``."""
    data = read_whole(files, directory / STATE_NAME, size_max=STATE_MAX)
    if not data:
        return NO_STATE
    try:
        return decode_state(data)
    except BadData as error:
        notes.append(
            f"{directory / STATE_NAME}: {error}; all that is there counts as not acknowledged"
        )
        return NO_STATE


def segment_paths(files: Files, directory: Path) -> dict[int, Path]:
    """Return the segments by number, in order. Of two names with one number the one that Beats opens counts."""
    found: dict[int, str] = {}
    for name in files.names(directory):
        number = segment_number(name)
        if number is not None and (number not in found or name == segment_name(number)):
            found[number] = name
    return {number: directory / found[number] for number in sorted(found)}


def _remove_sent(files: Files, paths: dict[int, Path], first: int) -> dict[int, Path]:
    """Remove what stands before the reader's segment: all of it was acknowledged.

    Unless nothing stands behind: then somebody began to number anew, and none of it was.
    """
    if not any(number >= first for number in paths):
        return paths
    sent = [path for number, path in paths.items() if number < first]
    for path in sent:
        files.remove(path)
    if sent:
        files.sync_directory(sent[0].parent)
    return {number: path for number, path in paths.items() if number >= first}


def _look_at(
    files: Files, number: int, path: Path, key: bytes | None, notes: list[str], *, is_newest: bool
) -> SpoolSegment | None:
    file = files.open(path, write=False)
    try:
        size = file.size()
        start = file.read(0, HEADER_MAX + IV_SIZE)
    finally:
        file.close()
    # A file whose first write never reached the disk: nothing in it was ever acknowledged.
    if is_newest and not any(start[: HEADER_MAX + 4]):
        _set_aside(files, path, size, notes, reason="its beginning was never written")
        return None
    try:
        header = decode_header(start[:HEADER_MAX])
    except TruncatedData:
        header = None
    except BadData as error:
        raise error.located(str(path)) from None
    if header is None or size < header.body_start:
        if is_newest:
            _set_aside(files, path, size, notes, reason="its beginning was never written")
        else:
            notes.append(f"{path}: ends inside its header, {size} bytes; passed over")
        return None
    segment = SpoolSegment(number, path, size, header.count or None)
    vector = start[header.size : header.body_start]
    is_readable = not vector or _is_readable(files, segment, header, vector, key)
    if is_newest and not is_readable:
        # Not cut: should its neighbours have another key, everything in it is still there.
        _set_aside(files, path, size, notes, reason="no whole frame is in it")
        return None
    return _mend(files, segment, header, key, notes) if is_newest else segment


def _is_readable(
    files: Files, segment: SpoolSegment, header: Header, iv: bytes, key: bytes | None
) -> bool:
    """Return whether an encrypted segment shows its key: by its mark, by a frame, or because it holds nothing.

    Raises ``CorruptData`` if the rest of the directory does not prove the key either. With a wrong one all would be
    passed over as damaged.
    """
    cursor = open_cursor(files, segment.path, key=key)
    try:
        if key is None or is_key_of(iv, key):
            return True
        while not cursor.is_finished:
            if cursor.take(1, size=segment.size, is_sealed=True):
                return True
        if not cursor.damage and not cursor.torn_size:
            return True
    finally:
        cursor.close()
    if is_key_proven(files, segment.path, key):
        return False
    raise CorruptData(no_frame_reason(header), path=str(segment.path))


def _set_aside(files: Files, path: Path, size: int, notes: list[str], *, reason: str) -> None:
    if size <= HEADER_MAX + IV_SIZE:
        files.remove(path)
        notes.append(f"{path}: held nothing but a part of a header; removed")
    else:
        kept = path.with_name(path.name + DAMAGED_SUFFIX)
        files.rename(path, kept)
        notes.append(f"{path}: {reason}; kept as {kept.name}")
    files.sync_directory(path.parent)


def _mend(
    files: Files, segment: SpoolSegment, header: Header, key: bytes | None, notes: list[str]
) -> SpoolSegment:
    """Cut the torn tail of the newest segment, and write down how many frames it has."""
    file = files.open(segment.path, write=True)
    try:
        cursor = SegmentCursor(file, segment.path, key=key)
        while not cursor.is_finished:
            cursor.take(_TAKEN_AT_ONCE, size=segment.size, is_sealed=True)
        whole = _whole_size(segment, header, cursor)
        if whole < segment.size:
            notes.append(
                f"{segment.path}: cut a torn tail of {segment.size - whole} bytes at {whole}"
            )
            del cursor.damage[-1:]
            segment.size = whole
            file.truncate(whole)
        segment.count = cursor.index
        segment.is_damaged = bool(cursor.damage)
        if header.version > 0 and header.count != cursor.index and not segment.is_damaged:
            file.write(COUNT_OFFSET, [encode_count(cursor.index)])
        # Also if nothing was changed: a process that was killed may have left what no disk has yet.
        file.sync()
    finally:
        file.close()
    return segment


def _whole_size(segment: SpoolSegment, header: Header, cursor: SegmentCursor) -> int:
    """Return where the file ends without a torn tail, if it has one."""
    damage = cursor.damage
    if not header.options & Options.COMPRESSED:
        if damage and damage[-1].kind is StretchKind.TAIL:
            return damage[-1].offset - header.size + header.body_start
    elif not any(one.size for one in damage):
        # All blocks but the last are whole, and they hold nothing but whole frames.
        return segment.size - cursor.torn_size
    return segment.size


def believable(
    files: Files,
    segments: list[SpoolSegment],
    state: State,
    key: bytes | None,
    notes: list[str],
) -> Position:
    """Return the position of a state if it is one, else one that surely skips nothing."""
    position = state.position
    if position.offset == 0 or (position.index == 0 and state.version > 0):
        position = replace(position, offset=0, index=0)
    for place, segment in enumerate(segments):
        if segment.number != position.segment:
            continue
        if position.offset == 0:
            return position
        cursor = open_cursor(files, segment.path, key=key)
        try:
            index = position.index if state.version > 0 else None
            if cursor.skip_to(position.offset, index, size=segment.size):
                return replace(position, index=cursor.index)
            end = cursor.offset
        finally:
            cursor.close()
        if end < position.offset:  # beyond the end: written by a Beats that lost count
            if place + 1 < len(segments):
                return Position(segments[place + 1].number)
            return Position(segment.number, end, cursor.index)
        notes.append(
            f"{segment.path}: no frame ends at {position.offset} where the state says; all of it counts as"
            " not acknowledged"
        )
        return Position(segment.number)
    # Either all before the first was sent and removed, or somebody began to number anew.
    return Position(segments[0].number) if segments else position


def open_cursor(files: Files, path: Path, *, key: bytes | None) -> SegmentCursor:
    """Open a segment for reading. Raises ``BadData`` and ``InvalidValue``."""
    file = files.open(path, write=False)
    try:
        return SegmentCursor(file, path, key=key)
    except (PenstockError, OSError):
        file.close()
        raise
