"""Time and chance of a simulated world: one line of events, streams of chance by name, and clocks that go wrong.

Times are whole microseconds. Nothing here knows what the events are.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000

START_MS: Final = 1_700_000_000_000
"""What wall clocks show when a world begins."""

Call = Callable[[], None]

_MASK: Final = 2**64 - 1


class Chance:
    """One seed, split by name: a draw more from one stream does not shift the others."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, name: str) -> Random:
        # Seeding with text goes through a digest, so it does not depend on how Python hashes strings.
        return Random(f"{self.seed}/{name}")  # noqa: S311 - repeatable chance is the point


class Timeline:
    """Everything that is going to happen, in order; what is due at the same moment happens as it was asked for."""

    __slots__ = ("_heap", "_sequence", "events", "fingerprint", "now")

    def __init__(self) -> None:
        self.now = 0
        self.events = 0  # that have happened
        self.fingerprint = 0  # of their times: two runs that differ anywhere soon differ here
        self._heap: list[tuple[int, int, Call]] = []
        self._sequence = 0

    def at(self, time: int, call: Call) -> None:
        """Let something happen at a moment; one that is over means now, behind what is due already."""
        self._sequence += 1
        heappush(self._heap, (max(time, self.now), self._sequence, call))

    def after(self, delay: int, call: Call) -> None:
        """Let something happen in so many microseconds."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay, self._sequence, call))

    def run(self, until: int, is_over: Callable[[], bool] | None = None) -> None:
        """Let everything up to ``until`` happen, or stop behind the event after which ``is_over``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call = heappop(heap)
            self.events += 1
            self.fingerprint = (self.fingerprint * 1_000_003 + self.now) & _MASK
            call()
            if is_over is not None and is_over():
                return
        self.now = max(self.now, until)


class Gate:
    """Where events of one process pass; while it is shut they wait, as they do for a process that was stopped."""

    __slots__ = ("_waiting", "is_shut")

    def __init__(self) -> None:
        self.is_shut = False
        self._waiting: list[Call] = []

    def run(self, call: Call) -> None:
        if self.is_shut:
            self._waiting.append(call)
        else:
            call()

    def shut(self) -> None:
        self.is_shut = True

    def open(self) -> None:
        """Let everything through that has waited, in order."""
        self.is_shut = False
        while self._waiting and not self.is_shut:
            self._waiting.pop(0)()

    def forget(self) -> None:
        """Drop what waits: the process has ended."""
        self.is_shut = False
        self._waiting.clear()


class NodeClock:
    """The clocks of one machine: they run too fast or too slow, and the one on the wall jumps."""

    __slots__ = ("_rate", "_timeline", "jumped_ms")

    def __init__(self, timeline: Timeline, *, drift: float = 0.0) -> None:
        """``drift``: 0.05 runs five percent too fast."""
        self._timeline = timeline
        self._rate = 1.0 + drift
        self.jumped_ms = 0

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 as this machine believes."""
        return START_MS + self.jumped_ms + int(self._timeline.now * self._rate) // MILLISECOND

    def seconds(self) -> float:
        """Return seconds that never jump."""
        return self._timeline.now * self._rate / SECOND

    def span(self, delay: int) -> int:
        """Return how long a delay of this machine's clock really takes."""
        return max(1, int(delay / self._rate))
