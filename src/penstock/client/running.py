"""The tasks that a worker is at work on, and when their leases want extending. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.client.values import Delivery, lease_ms, milliseconds, whole_number

CONCURRENCY_MAX: Final = 4096
"""Tasks at work at once; more threads than that serve nobody."""

BACKOFF_MAX: Final = 3600.0
"""Seconds after which a task that keeps failing is tried again, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker works; checked when built."""

    queue: str
    concurrency: int = 1
    prefetch: int | None = (
        None  # None: as many as are worked on, so that none waits with its lease running
    )
    lease: float | None = None
    backoff: float | None = (
        None  # seconds before the second attempt; doubles with every further one
    )

    def __post_init__(self) -> None:
        whole_number(self.concurrency, "concurrency", lowest=1, highest=CONCURRENCY_MAX)
        lease_ms(self.lease)
        if self.backoff is not None:
            milliseconds(self.backoff, "backoff")

    @property
    def window(self) -> int:
        return self.concurrency if self.prefetch is None else self.prefetch

    def delay(self, attempt: int) -> float | None:
        """Return for how many seconds a task is put off after its attempt failed."""
        if self.backoff is None:
            return None
        return min(self.backoff * 2.0 ** min(attempt - 1, 32), BACKOFF_MAX)


class Running:
    """The tasks at work. ``tick`` is how often to look at them: a quarter of the lease."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self.tick = lease / 4
        self._deadlines: dict[Delivery, float] = {}

    def begin(self, delivery: Delivery) -> None:
        self._deadlines[delivery] = delivery.deadline

    def end(self, delivery: Delivery) -> None:
        self._deadlines.pop(delivery, None)

    def due(self, now: float) -> list[Delivery]:
        """Return the tasks with half of their lease over."""
        half = now + self.lease / 2
        return [each for each, deadline in list(self._deadlines.items()) if deadline <= half]

    def extended(self, given: Iterable[Delivery], now: float) -> None:
        for each in given:
            if each in self._deadlines:
                self._deadlines[each] = now + self.lease

    def lost(self, given: Iterable[Delivery]) -> None:
        """Extend these no more: somebody else may have them by now."""
        for each in given:
            self._deadlines.pop(each, None)
