"""What a stream follows: something that grows, in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from penstock.errors import Compacted, CorruptData
from penstock.families.tables import ReadOptions

T = TypeVar("T")

Offset = dict[str, int]
"""A place up to which all was delivered, as a checkpoint keeps it."""


class Follower(Protocol):
    """What a family offers to streams. What two offsets are between must never change: Spark replays it."""

    def beginning(self) -> Offset:
        """Return the offset before all that is to be delivered."""
        ...

    def end(self) -> Offset:
        """Return the offset behind all that is there now."""
        ...

    def latest(self, start: Offset, *, rows_max: int | None, target: Offset | None) -> Offset:
        """Return where a batch ends that begins at ``start``: no further than the target, ``start`` if nothing is new."""
        ...

    def plan(self, start: Offset, end: Offset) -> Sequence[Any]:
        """Cut what is between two offsets into parts, always the same for the same two."""
        ...

    def close(self) -> None: ...


class LogTail(Protocol):
    """A log that others append to."""

    @property
    def name(self) -> str: ...

    def look(self) -> tuple[int, int]:
        """Return the first index that is there and the last that will not change any more."""
        ...

    def term(self, index: int) -> int:
        """Return the term of an entry that the last look saw."""
        ...

    def plan(self, first: int, last: int) -> Sequence[Any]:
        """Cut a range of entries into parts, always the same for the same range."""
        ...

    def close(self) -> None: ...


_ANY_TERM: Final = 0
"""The term in an offset before which nothing was delivered: there is no entry to compare."""


class LogFollower:
    """Follows a log by index. An offset is ``{"index": n, "term": t}``, the last entry that was delivered.

    A log tells only what is durable, and an entry whose term is not the one it was is refused.
    """

    def __init__(self, tail: LogTail, options: ReadOptions, *, origin: int = 0) -> None:
        """Follow ``tail``, whose first entry ever has the index ``origin``."""
        self._tail = tail
        self._options = options
        self._origin = origin

    def beginning(self) -> Offset:
        first = max(self._options.filters.first or 0, self._origin)
        return {"index": first - 1, "term": _ANY_TERM}

    def end(self) -> Offset:
        return {"index": self._tail.look()[1]}

    def latest(self, start: Offset, *, rows_max: int | None, target: Offset | None) -> Offset:
        return _steadily(lambda: self._latest(start, rows_max, target))

    def plan(self, start: Offset, end: Offset) -> Sequence[Any]:
        if start["index"] >= end["index"]:
            return []
        return _steadily(lambda: self._plan(start, end))

    def close(self) -> None:
        self._tail.close()

    def _latest(self, start: Offset, rows_max: int | None, target: Offset | None) -> Offset:
        first, last = self._tail.look()
        begin = self._begin(start, first, last)
        for bound in (None if target is None else target["index"], self._options.filters.last):
            last = last if bound is None else min(last, bound)
        if rows_max is not None:
            last = min(last, begin - 1 + rows_max)
        return {"index": last, "term": self._tail.term(last)} if last >= begin else start

    def _plan(self, start: Offset, end: Offset) -> Sequence[Any]:
        first, last = self._tail.look()
        begin = self._begin(start, first, last)
        if begin > end["index"]:
            return []
        self._check_term(end, last)
        return self._tail.plan(begin, end["index"])

    def _begin(self, start: Offset, first: int, last: int) -> int:
        """Return the first index behind ``start`` that is there, once ``start`` itself was checked."""
        begin = start["index"] + 1
        if begin < first:
            if self._options.fail_on_data_loss:
                error = Compacted(
                    f"{self._tail.name}: entries {begin} to {first - 1} were compacted away; begin behind"
                    f" them with startingIndex={first} and a new checkpoint, or go on without them:"
                    " failOnDataLoss=false"
                )
                error.first = first
                raise error
            return first
        if begin > first:
            self._check_term(start, last)
        return begin

    def _check_term(self, offset: Offset, last: int) -> None:
        """Refuse a log in which a delivered entry is not the one that was delivered."""
        index, term = offset["index"], offset["term"]
        if term == _ANY_TERM:
            return
        found = self._tail.term(index)
        if found != term:
            raise CorruptData(
                f"{self._tail.name}: entry {index} was delivered with term {term} and now has {found}, in a log"
                f" that ends at {last}: this is not the log of the checkpoint, or it was written anew;"
                " begin with a new checkpoint"
            )


def _steadily(call: Callable[[], T]) -> T:
    """Make a call once more if entries went away under it: a compaction between two looks is no loss yet."""
    try:
        return call()
    except Compacted:
        return call()
