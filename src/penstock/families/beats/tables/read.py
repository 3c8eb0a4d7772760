"""A part of a segment as columns of frames, read on an executor in pieces of bounded size."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final
from zlib import crc32

from penstock.families.beats.damage import BAD_BODY, TORN, WRONG_KEY, damage_at
from penstock.families.beats.read import is_transformed
from penstock.families.beats.tables.plan import SegmentPlan
from penstock.families.damage import Damage
from penstock.formats.beats.body import BodyDecoder
from penstock.formats.beats.frame import FRAME_MAX, Verdict
from penstock.formats.beats.frame_scan import FrameColumns, FrameScanner, Place
from penstock.formats.beats.segment import Options
from penstock.formats.beats.state import State
from penstock.model import INT64_MAX
from penstock.storage.files import FILES, File, opened
from penstock.storage.spool_keys import is_key_proven, no_frame_reason

CHUNK_SIZE: Final = 8 * 2**20
"""Bytes of a file that are read, and of which rows are made, at a time."""

_SEGMENTS_MAX: Final = 64
"""Segments of which a worker remembers boundaries."""

_PLACES_MAX: Final = 256
"""Boundaries of a segment that a worker remembers."""

_SAMPLE_START, _SAMPLE_SIZE = 12, 4096
"""What tells a segment from another of its name; the header before it changes when a segment is closed."""


def read_segment(plan: SegmentPlan, key: bytes | None) -> Iterator[FrameColumns | Damage]:
    """Yield the frames of a part, damage between them, and what is wrong with the body as a whole."""
    with opened(Path(plan.path)) as file:
        if is_transformed(plan.header):
            yield from _read_transformed(file, plan, key)
        else:
            yield from _read_plain(file, plan)


def waits_from(plan: SegmentPlan, key: bytes | None) -> int:
    """Return the logical offset from which on frames are not acknowledged: 0 if all wait, no frame's if none does.

    As ``families.beats.read`` judges: a position counts if it is a boundary with as many frames before it as it says;
    behind the end of its segment that is finished; any other is not believed.
    """
    if plan.is_acknowledged:
        return INT64_MAX
    state: State | None = plan.acknowledged
    if state is None or (state.version > 0 and state.position.index == 0):
        return 0
    if state.version == 0 and plan.version != 0:
        return 0  # offsets of that time mean nothing here
    stored = state.position
    place, is_end = _walk(plan, stored.offset, key)
    if not place.index and plan.header.options & Options.ENCRYPTED:
        return 0  # perhaps by a wrong key, which whoever reads the frames tells
    is_counted = state.version == 0 or place.index == stored.index
    if place.offset == stored.offset and is_counted:
        return stored.offset
    return INT64_MAX if is_end and stored.offset >= place.offset else 0


def end_of_growing(file: File, plan: SegmentPlan, key: bytes | None) -> Place:
    """Return the boundary behind the last frame that is whole, or before damage whose end only more bytes report."""
    if is_transformed(plan.header):
        scanner = FrameScanner(plan.header.size, first=INT64_MAX)
        pieces: Iterator[bytes | int] = _decoded(file, plan, key, _Ending())
    else:
        scanner = FrameScanner(plan.base[0], index=plan.base[1], first=INT64_MAX)
        pieces = _chunks(file, plan, plan.base[0])
    for data in pieces:
        for _ in _fed(scanner, data):
            pass
    return scanner.place


def _walk(plan: SegmentPlan, offset: int, key: bytes | None) -> tuple[Place, bool]:
    """Return the first boundary at or behind an offset, and whether the segment ends there."""
    scanner = FrameScanner(plan.header.size, first=INT64_MAX, stop=offset)
    with opened(Path(plan.path)) as file:
        pieces: Iterator[bytes | int] = (
            _decoded(file, plan, key, _Ending())
            if is_transformed(plan.header)
            else _chunks(file, plan)
        )
        for data in pieces:
            for _ in _fed(scanner, data):
                pass
            if scanner.is_done:
                return scanner.place, scanner.is_drained and next(pieces, None) is None
    for _ in scanner.feed(b"", is_last=True):
        pass
    return scanner.place, True


# --- bodies whose offsets are those of the file --------------------------------------------------


def _read_plain(file: File, plan: SegmentPlan) -> Iterator[FrameColumns]:
    base = Place(*plan.base)
    is_part = plan.first > base.offset or plan.stop is not None
    learned = _learned_of(file, plan.path) if is_part else []
    base = _nearest(learned, base, plan.first)
    end = _end(file, plan)
    scanner = FrameScanner(
        base.offset, index=base.index, first=plan.first, stop=plan.stop, size=end
    )
    for data in _chunks(file, plan, base.offset):
        yield from _fed(scanner, data)
        if scanner.is_done:
            break
    else:
        yield from scanner.feed(b"", is_last=True)
    if plan.stop is not None and scanner.is_done:
        _learn(learned, plan.stop, scanner.place)


def _fed(scanner: FrameScanner, data: bytes | int) -> Iterator[FrameColumns]:
    return scanner.pass_zeros(data) if isinstance(data, int) else scanner.feed(data)


def _chunks(file: File, plan: SegmentPlan, position: int | None = None) -> Iterator[bytes | int]:
    """Yield a file from a position on, and the sizes of holes that are larger than any frame instead of their zeros."""
    position = plan.header.size if position is None else position
    end = _end(file, plan)
    while position < end:
        data_at = file.next_data(position)
        behind = end if data_at is None else min(data_at, end)
        if behind - position > FRAME_MAX:
            yield behind - position
            position = behind
            continue
        data = file.read(position, min(CHUNK_SIZE, end - position))
        if not data:
            return
        position += len(data)
        yield data


def _end(file: File, plan: SegmentPlan) -> int:
    """Return where to stop reading a file: what it gained since it was planned is left alone."""
    return file.size() if plan.size is None else min(plan.size, file.size())


# --- compressed or encrypted bodies --------------------------------------------------------------


def _read_transformed(
    file: File, plan: SegmentPlan, key: bytes | None
) -> Iterator[FrameColumns | Damage]:
    """Yield what a body holds. If no frame is in an encrypted one, the key must be proven by something else."""
    ending = _Ending()
    held: list[FrameColumns] = []
    has_tail = False
    # What is not read from its beginning was read before.
    is_right = not plan.header.options & Options.ENCRYPTED or plan.first > plan.header.size
    scanner = FrameScanner(plan.header.size, first=plan.first, stop=plan.stop)
    for found in _scanned(scanner, _decoded(file, plan, key, ending)):
        is_right = is_right or bool((found.verdict <= Verdict.OTHER_END).any())
        has_tail = bool(found.verdict[-1] == Verdict.TAIL)
        held.append(found)
        if is_right:
            yield from held
            held.clear()
    damage = _damage_of(file, plan, ending, scanner.place.offset, has_tail=has_tail)
    if damage is not None and damage.offset == plan.header.size and ending.is_in_vector:
        yield damage
        return
    path, is_empty = Path(plan.path), not held and damage is None
    if is_right or is_empty or (key is not None and is_key_proven(FILES, path, key)):
        yield from held
        yield from () if damage is None else (damage,)
    else:
        reason = no_frame_reason(plan.header)
        yield damage_at(path, WRONG_KEY, reason, offset=plan.header.size, segment=plan.number)


@dataclass(slots=True)
class _Ending:
    """How a body ended, once all of it was decoded."""

    wrong: str | None = None
    torn_size: int = 0  # bytes at the end that gave nothing
    is_in_vector: bool = False  # it has not even an initialization vector


def _damage_of(
    file: File, plan: SegmentPlan, ending: _Ending, offset: int, *, has_tail: bool
) -> Damage | None:
    """Return what is wrong with the end of a body, as ``tools.beats.reading`` tells it."""
    path, header = Path(plan.path), plan.header
    if ending.is_in_vector:
        size = _end(file, plan) - header.size
        reason = "the file ends inside the initialization vector"
        return _torn(plan, header.size, size, reason) if size > 0 else None
    if ending.wrong is not None:
        return damage_at(path, BAD_BODY, ending.wrong, offset=offset, segment=plan.number)
    if ending.torn_size and not has_tail:
        reason = f"the file ends {ending.torn_size} bytes into a compressed block"
        return _torn(plan, offset, None, reason)
    return None


def _torn(plan: SegmentPlan, offset: int, size: int | None, reason: str) -> Damage:
    path, is_expected = Path(plan.path), plan.is_newest or plan.count == 0
    return damage_at(
        path, TORN, reason, offset=offset, size=size, segment=plan.number, is_expected=is_expected
    )


def _scanned(scanner: FrameScanner, stream: Iterator[bytes]) -> Iterator[FrameColumns]:
    for data in stream:
        yield from scanner.feed(data)
        if scanner.is_done:
            return
    yield from scanner.feed(b"", is_last=True)


def _decoded(file: File, plan: SegmentPlan, key: bytes | None, ending: _Ending) -> Iterator[bytes]:
    """Yield the logical stream; ``ending`` tells how it ended."""
    decoder = BodyDecoder(plan.header.options, key=key)
    for data in _chunks(file, plan):
        if isinstance(data, int):
            break  # a hole in what is compressed or encrypted leaves nothing to read behind it
        yield from decoder.feed(data)
    ending.wrong, ending.torn_size = decoder.finish(), decoder.torn_size
    ending.is_in_vector = _end(file, plan) < plan.header.body_start


# --- places that are known -----------------------------------------------------------------------

_Learned = list[tuple[int, Place]]
"""By offsets that were asked for: the first boundary at or behind each. Ascending."""

_known: OrderedDict[tuple[str, int], _Learned] = OrderedDict()
"""What was learned, by path and the beginning of a file: another file may get its name, and its inode too."""


def _learned_of(file: File, path: str) -> _Learned:
    key = (path, crc32(file.read(_SAMPLE_START, _SAMPLE_SIZE)))
    learned = _known.setdefault(key, [])
    _known.move_to_end(key)
    while len(_known) > _SEGMENTS_MAX:
        _known.popitem(last=False)
    return learned


def _nearest(learned: _Learned, base: Place, first: int) -> Place:
    """Return the furthest boundary that is known, up to the first one at or behind ``first``."""
    number = bisect_right(learned, first, key=itemgetter(0))
    return max(base, learned[number - 1][1]) if number else base


def _learn(learned: _Learned, asked: int, place: Place) -> None:
    number = bisect_right(learned, asked, key=itemgetter(0))
    if not number or learned[number - 1][0] != asked:
        learned.insert(number, (asked, place))
    if len(learned) > _PLACES_MAX:
        del learned[0]
