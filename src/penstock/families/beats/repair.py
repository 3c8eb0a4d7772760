"""Salvage: every whole frame with an event in it, into new segments of the same kind; the rest as rows.

Payloads are copied byte for byte, under the number that their segment has. Headers count what is there, and the position
stands before the same event as it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.families.beats.damage import TOO_DEEP
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.rewriting import ROUND_LOST, Rewritten, rewrite
from penstock.families.beats.tasks import refuse_state
from penstock.families.damage import Damage, damage_row
from penstock.families.family import Progress, Row, no_progress
from penstock.families.taskflux.new_directory import whole_directory
from penstock.formats.beats.event import Event
from penstock.formats.beats.frame import Frame
from penstock.formats.beats.segment import Header


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
