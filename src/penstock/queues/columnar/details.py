"""What a chunk knows of its tasks beyond key, payload and source: times, attempts, headers, identity, marks.

Most chunks have none of it and no object of this class.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from penstock.formats.records.add import GROUP, HEADERS, ORIGIN, UNIQUE
from penstock.formats.records.columns import NONE, Blobs
from penstock.queues.columnar.columns import NEVER, Column, Numbers, Places, own
from penstock.queues.columnar.sources import Sources

STRINGS: Final = (HEADERS, GROUP, UNIQUE, ORIGIN)
"""The columns of strings that a task keeps, by their bits in an add."""

ATTEMPTS_MAX: Final = 2**32 - 1


class Mark(NamedTuple):
    """A logged delivery: who holds a task until when. Tasks of one delivery share one object."""

    reason: int  # ``DeliverReason``
    consumer: bytes
    deadline_ms: int  # log clock


class Details:
    """Optional columns of a chunk. Times are relative to the chunk's ``base_ms``; None is an absent column."""

    __slots__ = (
        "attempts", "born_ids", "born_queues", "delay_ms", "expires", "expiry_ms", "marks",
        "new_headers", "not_before", "sources", "strings",
    )  # fmt: skip

    def __init__(self) -> None:
        self.not_before: Column | None = None
        self.expires: Column | None = None
        self.delay_ms: int = (
            NEVER  # no task that has yet to wait may go before this moment: a lower bound
        )
        self.expiry_ms: int = NEVER  # no task expires before this moment: a lower bound
        self.attempts: Numbers | None = None
        self.sources: Sources | None = None
        self.strings: dict[int, Blobs] = {}
        self.new_headers: dict[int, bytes] | None = None  # by place, where a change has set them
        self.born_queues: Numbers | None = None  # queue id of the first add; 0: this one
        self.born_ids: Numbers | None = None
        self.marks: list[Mark | None] | None = None

    def copy(self) -> Details:
        """Return a copy whose columns can be written to without touching these."""
        new = Details()
        new.not_before = _fresh(self.not_before)
        new.expires = _fresh(self.expires)
        new.delay_ms = self.delay_ms
        new.expiry_ms = self.expiry_ms
        attempts = self.attempts
        new.attempts = attempts[:] if isinstance(attempts, array) else attempts
        new.sources = self.sources
        new.strings = self.strings
        new.new_headers = None if self.new_headers is None else dict(self.new_headers)
        new.born_queues = self.born_queues
        new.born_ids = self.born_ids
        new.marks = None if self.marks is None else self.marks[:]
        return new

    def string(self, bit: int, place: int) -> bytes:
        """Return the headers, group, unique key or origin of a task; no bytes if it has none."""
        if bit == HEADERS and self.new_headers is not None and place in self.new_headers:
            return self.new_headers[place]
        column = self.strings.get(bit)
        return b"" if column is None else column.get(place)

    def set_not_before(self, places: Places, column: Column, count: int, base_ms: int) -> None:
        """Set times, relative to the chunk's base: one for all places, or one for each."""
        self.not_before = _written(self.not_before, places, column, count)
        self.delay_ms = min(self.delay_ms, earliest(column, base_ms))

    def set_expires(self, places: Places, column: Column, count: int, base_ms: int) -> None:
        """Set times, relative to the chunk's base: one for all places, or one for each."""
        self.expires = _written(self.expires, places, column, count)
        self.expiry_ms = min(self.expiry_ms, earliest(column, base_ms))

    def set_headers(self, headers: dict[int, bytes]) -> None:
        """Set the headers of tasks by place."""
        self.new_headers = {**(self.new_headers or {}), **headers}

    def expired(self, places: Places, now: int) -> Places:
        """Return those places whose tasks expire up to ``now``, counted from the chunk's base."""
        column = self.expires
        if column is None:
            return []
        if isinstance(column, int):
            return places if NONE != column <= now else []
        return [place for place in places if NONE != column[place] <= now]

    def count_attempt(self, places: Places, count: int) -> None:
        """Add one to the attempts of some tasks of a chunk with ``count`` tasks."""
        attempts = own(self.attempts, count, "I", 0)
        self.attempts = attempts
        for place in places:
            if attempts[place] < ATTEMPTS_MAX:
                attempts[place] += 1

    def mark(self, places: Places, mark: Mark | None, count: int) -> None:
        """Set or clear the marks of some tasks."""
        if self.marks is None:
            if mark is None:
                return
            self.marks = [None] * count
        if isinstance(places, range):
            self.marks[places.start : places.stop] = [mark] * len(places)
        else:
            for place in places:
                self.marks[place] = mark


def time_at(column: Column | None, place: int, base_ms: int) -> int | None:
    """Return the absolute time of a task, or None if it has none."""
    if column is None:
        return None
    value = column if isinstance(column, int) else column[place]
    return None if value == NONE else base_ms + value


def earliest(column: Column | None, base_ms: int) -> int:
    """Return the earliest time of a column, or ``NEVER``."""
    if column is None:
        return NEVER
    if isinstance(column, int):
        return NEVER if column == NONE else base_ms + column
    least = min(column)
    if least == NONE:
        least = min((value for value in column if value != NONE), default=NEVER - base_ms)
    return base_ms + least


def _fresh(column: Column | None) -> Column | None:
    return column[:] if isinstance(column, array) else column


def _written(old: Column | None, places: Places, column: Column, count: int) -> Column:
    if isinstance(column, int) and len(places) == count:
        return column
    times = own(old, count, "q", NONE)
    if isinstance(places, range):
        values = array("q", [column]) * len(places) if isinstance(column, int) else column
        times[places.start : places.stop] = array("q", values)
    elif isinstance(column, int):
        for place in places:
            times[place] = column
    else:
        for place, value in zip(places, column, strict=True):
            times[place] = value
    return times
