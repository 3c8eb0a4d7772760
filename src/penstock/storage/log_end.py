"""Behind the end of a log: searching a file for records, and judging what stands behind an end marker.

Programs of TaskFlux leave stale records behind the end marker when a shorter tail overwrites a longer one. A record whose
marker was zeroed looks the same. ``EndRule`` tells the two apart (docs/decisions/0028); recovery, the tools and Spark use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.log_scan import search
from penstock.storage.files import File

WINDOW: Final = 8 * 2**20  # bytes read at a time


class Behind(Enum):
    """What stands behind an end marker."""

    NOTHING = "nothing"  # zeros, or the end of the file
    STALE = "stale"  # what an overwritten tail left: no entries of the log
    DAMAGE = (
        "damage"  # entries of the log, behind one whose marker was zeroed; or entries are missing
    )
    UNDECIDED = "undecided"  # either of them: the bytes do not tell


class LogEnd(NamedTuple):
    """A verdict, and where the first whole record behind the marker begins."""

    behind: Behind
    resumed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRule:
    """What is known of a log file when its end marker is judged."""

    required: int = 0  # records that must stand in front of the marker
    # Whether ``required`` is exact knowledge: our sync point, or the name of the next segment. A commit index is a floor.
    is_exact: bool = False
    term: int = 0  # of the snapshot beside the log
    takes_undecided: bool = False  # whether undecided records are to be taken for entries
    # Whether the header can be read. If not, zeros directly behind it are part of its damage, not an end marker.
    is_header_whole: bool = True

    def judge(
        self,
        file: File,
        layout: LogLayout,
        *,
        position: int,
        size: int,
        count: int | None,
        term: int,
    ) -> LogEnd:
        """Judge what stands behind the end marker at ``position``.

        ``count`` is the number of records in front of it, ``None`` behind damage of unknown extent; ``term`` is the
        last one's term.
        """
        if end_of_data(file, position, size) == position:
            return LogEnd(Behind.NOTHING)
        if self.is_exact and count is not None and count >= self.required:
            return LogEnd(Behind.STALE)
        resumed = find_record_in_file(file, layout, position + 1, size)
        if count is not None and count < self.required:
            return LogEnd(Behind.DAMAGE, resumed)
        if resumed is None or _term_at(file, layout, resumed) < max(term, self.term):
            return LogEnd(Behind.STALE, resumed)
        is_marker = self.is_header_whole or count != 0
        is_floor = layout.generation is Generation.TWO and not self.takes_undecided
        return LogEnd(Behind.UNDECIDED if is_floor and is_marker else Behind.DAMAGE, resumed)


def _term_at(file: File, layout: LogLayout, offset: int) -> int:
    header = layout.record_header
    _, term, _, _ = header.unpack(file.read(offset, header.size))
    return int(term)


# --- searching -----------------------------------------------------------------------------------


def size_now(data: bytes, base: int, window: int, size: int) -> int:
    """Return how large the file is, given what a read brought: another program may cut it while it is read.

    Asking for more of what is gone would never end.
    """
    return size if len(data) == min(window, size - base) else base + len(data)


def read_data(file: File, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield what a file holds between two places, piece by piece, holes left out."""
    offset: int | None = start
    while offset is not None and offset < stop:
        offset = file.next_data(offset)
        if offset is None or offset >= stop:
            return
        data = file.read(offset, min(WINDOW, stop - offset))
        if not data:
            return
        yield offset, data
        offset += len(data)


def end_of_data(file: File, start: int, stop: int) -> int:
    """Return where the last byte other than zero behind ``start`` ends; ``start`` if there is none."""
    last = start
    for offset, data in read_data(file, start, stop):
        stripped = data.rstrip(b"\x00")
        if stripped:
            last = offset + len(stripped)
    return last


def find_record_in_file(file: File, layout: LogLayout, start: int, size: int) -> int | None:
    """Return where the first believable record from ``start`` on begins, or ``None``."""
    base: int | None = start
    window = WINDOW
    while base is not None and base < size:
        data = file.read(base, min(window, size - base))
        size = size_now(data, base, window, size)
        offset, is_found = search(data, layout, 0, size - base)
        if is_found:
            return base + offset
        if base + len(data) >= size:
            return None
        window = WINDOW if offset else 2 * window
        base = (
            _before_data(file, base + offset) if not data[offset:].strip(b"\x00") else base + offset
        )
    return None


def _before_data(file: File, offset: int) -> int | None:
    """Return a place at or shortly before the next data, so that a marker across a hole's end is met."""
    following = file.next_data(offset)
    return None if following is None else max(offset, following - 3)
