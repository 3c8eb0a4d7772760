"""Where the tasks of a chunk come from: enqueue time, principal and entry of each.

Tasks of one record share them, so a chunk that was merged from several records keeps one line for each stretch of
neighbours instead of 20 bytes for each task. Where almost every task differs, the lines are as many as the tasks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import ne
from typing import Final

from penstock.queues.columnar.columns import Places

UNKNOWN_MS: Final = 0
"""The enqueue time of a task that came from files without times."""


class Sources:
    """Lines of (first place, enqueue time, principal, entry), ascending by place; the first begins at 0."""

    __slots__ = ("enqueued", "entries", "principals", "starts")

    def __init__(self) -> None:
        self.starts: array[int] = array("I")
        self.enqueued: array[int] = array("q")
        self.principals: array[int] = array("I")
        self.entries: array[int] = array("Q")

    def append(self, start: int, enqueued: int, principal: int, entry: int) -> None:
        """Begin a line at a place behind all others, unless it says the same as the last one."""
        if (
            self.starts
            and self.entries[-1] == entry
            and self.enqueued[-1] == enqueued
            and self.principals[-1] == principal
        ):
            return
        self.starts.append(start)
        self.enqueued.append(enqueued)
        self.principals.append(principal)
        self.entries.append(entry)

    def line(self, place: int) -> int:
        """Return the number of the line of a task."""
        return bisect_right(self.starts, place) - 1

    def copy_to(self, target: Sources, start: int, places: Places) -> None:
        """Append the lines of some tasks to another chunk's, where these tasks stand from ``start`` on."""
        line = self.line(places[0])
        target.append(start, self.enqueued[line], self.principals[line], self.entries[line])
        if isinstance(places, range):
            last = self.line(places[-1])
            for number in range(line + 1, last + 1):
                at = start + self.starts[number] - places.start
                target.append(
                    at, self.enqueued[number], self.principals[number], self.entries[number]
                )
            return
        end = self._end(line)
        for position, place in enumerate(places, start):
            if place >= end:
                line = self.line(place)
                end = self._end(line)
                target.append(
                    position, self.enqueued[line], self.principals[line], self.entries[line]
                )

    def spread(self, column: array[int], count: int) -> array[int]:
        """Return one value for each of ``count`` tasks from the values of the lines."""
        if len(self.starts) == count:
            return column
        found: array[int] = array(column.typecode)
        ends = [*self.starts[1:], count]
        for start, end, value in zip(self.starts, ends, column, strict=True):
            found.extend(array(column.typecode, [value]) * (end - start))
        return found

    def _end(self, line: int) -> int:
        return self.starts[line + 1] if line + 1 < len(self.starts) else NO_END


NO_END: Final = 2**32


def condensed(enqueued: array[int], principals: array[int], entries: array[int]) -> Sources:
    """Return the lines of columns that have a value for each task."""
    sources = Sources()
    changes = bytearray(map(ne, entries[1:], entries))
    for column in (enqueued, principals):
        if len(set(column)) > 1:
            others = bytes(map(ne, column[1:], column))
            number = int.from_bytes(changes, "little") | int.from_bytes(others, "little")
            changes = bytearray(number.to_bytes(len(changes), "little"))
    starts = [0]
    at = changes.find(1)
    while at >= 0:
        starts.append(at + 1)
        at = changes.find(1, at + 1)
    sources.starts = array("I", starts)
    if len(starts) == len(entries):
        sources.enqueued, sources.principals, sources.entries = enqueued, principals, entries
    else:
        sources.enqueued = array("q", [enqueued[start] for start in starts])
        sources.principals = array("I", [principals[start] for start in starts])
        sources.entries = array("Q", [entries[start] for start in starts])
    return sources
