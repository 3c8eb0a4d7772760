"""Which requests of which producers were taken: what makes a retry count once.

Bounded by numbers, not by clocks, so that every replica forgets the same at the same entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

PRODUCERS_MAX: Final = 10_000
"""The producer that was silent longest is forgotten beyond this."""

REQUESTS_MAX: Final = 1024
"""Requests of one producer that are remembered; a client keeps fewer than that in flight."""

RESULTS_MAX: Final = 262_144
"""Requests remembered over all producers: about 40 MB."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A request and the tasks that it led to, as runs of ids. All there is once they make ``total``."""

    queue: int  # the number of the queue
    total: int
    runs: tuple[tuple[int, int], ...] = ()  # (first id, count)

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def is_whole(self) -> bool:
        return self.count == self.total


class Producers:
    """The last requests of the last producers."""

    __slots__ = ("_by_id", "_forgotten", "count")

    def __init__(self) -> None:
        # Least lately heard from first; the requests of each, oldest first.
        self._by_id: dict[bytes, dict[int, Taken]] = {}
        self._forgotten: dict[bytes, int] = {}  # the highest sequence forgotten of a known producer
        self.count = 0  # requests remembered

    def find(self, producer: bytes, sequence: int) -> Taken | None:
        requests = self._by_id.get(producer)
        return None if requests is None else requests.get(sequence)

    def is_forgotten(self, producer: bytes, sequence: int) -> bool:
        """Return whether this request may have been taken long ago: nobody can tell any more."""
        return sequence <= self._forgotten.get(producer, -1)

    def note(
        self, producer: bytes, sequence: int, *, queue: int, total: int, first: int, count: int
    ) -> None:
        """Remember tasks that a request led to."""
        requests = self._by_id.pop(producer, None) or {}
        self._by_id[producer] = requests
        taken = requests.get(sequence)
        runs = () if taken is None else taken.runs
        if runs and sum(runs[-1]) == first:
            runs = (*runs[:-1], (runs[-1][0], runs[-1][1] + count))
        else:
            runs = (*runs, (first, count))
        requests[sequence] = Taken(queue, total, runs)
        self.count += taken is None
        self._trim(producer, requests)

    def _trim(self, producer: bytes, requests: dict[int, Taken]) -> None:
        while len(requests) > REQUESTS_MAX:
            oldest = next(iter(requests))
            del requests[oldest]
            self.count -= 1
            self._forgotten[producer] = max(oldest, self._forgotten.get(producer, -1))
        while len(self._by_id) > PRODUCERS_MAX or self.count > RESULTS_MAX:
            silent = next(iter(self._by_id))
            self.count -= len(self._by_id.pop(silent))
            self._forgotten.pop(silent, None)

    def restore(self, producer: bytes, forgotten: int) -> None:
        """Begin a producer that a snapshot holds; its requests are restored behind it by ``note``."""
        self._by_id.pop(producer, None)
        self._by_id[producer] = {}
        if forgotten >= 0:
            self._forgotten[producer] = forgotten

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[bytes, int, dict[int, Taken]]]:
        """Yield (producer, highest sequence forgotten or -1, requests), longest silent first."""
        for producer, requests in self._by_id.items():
            yield producer, self._forgotten.get(producer, -1), requests
