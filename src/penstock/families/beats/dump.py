"""Every header, frame and stretch of damage of a spool, and its position, in file order.

What is acknowledged is not asked here; ``tasks`` is for what waits.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import decode_frame, read_segment
from penstock.families.beats.rows import frame_row, header_fields, place, state_row
from penstock.families.damage import Damage, damage_row
from penstock.families.family import Progress, Row, no_progress
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header


def dump(
    location: Location, *, key: bytes | None, progress: Progress = no_progress
) -> Iterator[Row]:
    """Yield a row for everything that is stored; nothing stops it but the end."""
    is_state_bad = any(damage.path == location.state_path for damage in location.found_damage)
    if location.state_path is not None and not is_state_bad:
        yield state_row(location)
    for damage in location.found_damage:
        yield damage_row(FAMILY, damage)
    for segment in location.segments:
        yield from _segment_rows(segment, key, progress)


def _segment_rows(segment: Segment, key: bytes | None, progress: Progress) -> Iterator[Row]:
    header: Header | None = None
    for piece in read_segment(segment, key=key, progress=progress):
        match piece:
            case Header():
                header = piece
                row = place(segment.path, "segment", 0, header.size, "ok")
                yield row | header_fields(segment, header)
            case Frame():
                assert header is not None
                yield frame_row(segment, header, piece, decode_frame(segment, header, piece))
            case Damage():
                is_plain = header is not None and not header.options
                yield damage_row(FAMILY, piece) | {
                    "file_offset": piece.offset if is_plain else None
                }
            case _:
                pass  # the end of a segment holds nothing
