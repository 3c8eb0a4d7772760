"""A clock that stands still until a test advances it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from penstock.client.retries import checked_seconds

START_MS: Final = 1_893_456_000_000
"""2030-01-01T00:00:00Z. Fixed, so that two runs of a test see the same times."""


class ManualClock:
    """Time as a test sets it. One clock may serve several nodes."""

    def __init__(self, now_ms: int = START_MS) -> None:
        """``now_ms``: where the clock starts, in milliseconds since 1970."""
        self._now_ms = now_ms
        self._lock = Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def now_ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return self._now_ms

    def advance(self, seconds: float) -> None:
        """Move the clock forward and let its nodes do what is due then, before this returns.

        Raises ``InvalidValue`` for a time that is negative or not a number.
        """
        passed_ms = round(checked_seconds(seconds, "seconds", positive=False) * 1000)
        with self._lock:
            self._now_ms += passed_ms
            listeners = list(self._listeners)
        for call in listeners:
            call()

    def attach(self, call: Callable[[], None]) -> None:
        """Call ``call`` after every advance. A node attaches itself while it runs."""
        with self._lock:
            self._listeners.append(call)

    def detach(self, call: Callable[[], None]) -> None:
        """Stop calling ``call``."""
        with self._lock:
            self._listeners.remove(call)
