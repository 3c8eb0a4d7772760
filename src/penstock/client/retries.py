"""When a request may be sent again, and how long to wait before. Pure: time and chance come in.

A request is repeated only if doing it twice is doing it once. Reads are. An enqueue is, by its producer
and sequence. A dequeue is, since the leases of an answer that got lost end with its connection. A create
or delete is, if its caller understands "exists" and "missing" on a repetition. The rest is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.errors import InvalidValue
from penstock.protocol.version2 import (
    Cluster,
    Create,
    Delete,
    Dequeue,
    Enqueue,
    Node,
    Peek,
    Ping,
    Read,
    Request,
    Stat,
    Subscribe,
)

PAUSE_FIRST: Final = 0.02
"""Seconds before the first repetition: a node that restarts at once is not kept waiting."""

PAUSE_MAX: Final = 2.0
"""Seconds between repetitions at most: a thousand clients that lost one node must not crowd it."""

PAUSE_ELECTION: Final = 0.1
"""Seconds between questions to nodes of which none leads: they settle that within a second or two."""

_REPEATABLE: Final = (Enqueue, Create, Delete, Stat, Peek, Node, Ping, Read, Subscribe, Cluster)


def repeated(request: Request, *, elapsed: float) -> Request | None:
    """Return what to send in place of a request that got lost, ``None`` if nothing may be sent."""
    if isinstance(request, Dequeue):
        waited_ms = int(elapsed * 1000)
        return replace(request, wait_ms=max(0, request.wait_ms - waited_ms))
    return request if isinstance(request, _REPEATABLE) else None


def patience(request: Request, timeout: float) -> float | None:
    """Return how many seconds the node may be silent while this request is open; ``None``: for ever."""
    if isinstance(request, Subscribe):
        return None
    wait_ms = request.wait_ms if isinstance(request, Dequeue | Read) else 0
    return timeout + wait_ms / 1000


class Backoff:
    """Pauses that double from one repetition to the next, each drawn between half and all of it."""

    __slots__ = ("_chance", "_clock", "_deadline", "_is_fresh", "_pause", "begun")

    def __init__(
        self, *, retry: float, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._chance = chance
        self.begun = clock()
        self._deadline = self.begun + retry
        self._pause = PAUSE_FIRST
        self._is_fresh = True

    @property
    def elapsed(self) -> float:
        return self._clock() - self.begun

    def take_first(self) -> bool:
        """Return whether this is the first repetition; one that is sure to help need not wait."""
        is_first, self._is_fresh = self._is_fresh, False
        return is_first

    def next_pause(self, *, at_most: float = PAUSE_MAX) -> float | None:
        """Return the seconds to wait before trying again, ``None`` when it is time to give up."""
        self._is_fresh = False
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            return None
        pause = min(self._pause, at_most) * (0.5 + 0.5 * self._chance())
        self._pause = min(2 * self._pause, PAUSE_MAX)
        return min(pause, remaining)


def checked_seconds(value: float, what: str, *, positive: bool) -> float:
    """Return a number of seconds that the client itself keeps. Raises ``InvalidValue``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(f"{what} is a number of seconds, not {value!r}")
    if not 0 <= value < float("inf") or (positive and value == 0):
        raise InvalidValue(
            f"{what} of {value} s makes no sense; write {'10.0' if positive else '0'}"
        )
    return float(value)
