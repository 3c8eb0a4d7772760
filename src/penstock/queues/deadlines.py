"""Times by id: when a delayed task is due, when a task expires, when a lease ends."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

_SLACK: Final = 64  # entries of the heap that may be out of date before it is made anew


class Deadlines:
    """A time for each of some ids. Taking one out is cheap: the heap forgets lazily, but not for ever."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, number: int) -> bool:
        return number in self._times

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (id, time) in the order of ids."""
        return iter(sorted(self._times.items()))

    def some(self, count_max: int) -> list[int]:
        """Return a few of the ids, whichever are at hand."""
        return list(islice(self._times, count_max))

    def get(self, number: int) -> int | None:
        return self._times.get(number)

    def set(self, number: int, time_ms: int) -> None:
        self._times[number] = time_ms
        heappush(self._heap, (time_ms, number))
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [(time, number) for number, time in self._times.items()]
            heapify(self._heap)

    def discard(self, number: int) -> None:
        self._times.pop(number, None)

    def next(self) -> int | None:
        """Return the earliest time, or ``None`` if there is none."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int) -> list[int]:
        """Take out and return the ids whose time has come, earliest first."""
        due: list[int] = []
        while (time := self.next()) is not None and time <= now_ms:
            number = heappop(self._heap)[1]
            del self._times[number]
            due.append(number)
        return due

    def pop_due(self, now_ms: int) -> list[int]:
        """Return the ids whose time has come, each once; their times stay known until discarded."""
        due: dict[int, None] = {}  # an id that was rearmed may stand in the heap twice
        while (time := self.next()) is not None and time <= now_ms:
            due[heappop(self._heap)[1]] = None
        return list(due)

    def rearm(self, number: int) -> None:
        """Let an id that was returned by ``pop_due`` be due once more."""
        time = self._times.get(number)
        if time is not None:
            self.set(number, time)
