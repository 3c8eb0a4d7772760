"""Whether to wait a moment for more before the disk is asked: a sync for sixteen costs what one for eight does.

Callers who send one request after the other fall into two groups, one of them always behind the disk. They are
brought together by waiting, about as long as a sync takes, for those who were just answered. Whether they
come back in time is measured; if they do not, nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SHARE: Final = 2.0
"""Of what a sync takes: the most that a wait may cost."""

SECONDS_MAX: Final = 0.001
_WEIGHT: Final = 0.2
_WORTH: Final = 0.5  # the share of callers that must come back in time
_TRY_AGAIN: Final = 64  # batches after which a wait is tried once more


class Gathering:
    """Who was answered with the last batch and has not been heard from since."""

    def __init__(self) -> None:
        self._away: set[object] = set()
        self._count = 0
        self._since = 0.0
        self._returned = 1.0  # running mean of the share that came back in time
        self._idle = 0  # batches for which nobody waited

    def answer(self, callers: Iterable[object]) -> None:
        """Note who is answered with a batch."""
        self._away = set(callers)
        self._count = len(self._away)
        self._idle += 1

    def begin(self, now: float) -> None:
        """Note that the answers have left: from now on their callers may come back."""
        self._since = now

    def hear(self, caller: object) -> None:
        """Note that somebody sent something."""
        self._away.discard(caller)

    def is_worth_waiting(self, now: float, sync_seconds: float) -> bool:
        """Return whether those who are away are likely to be back soon; asked again and again."""
        if self._count < 2 or not self._is_tried():
            return False
        if self._away and now - self._since < min(SECONDS_MAX, SHARE * sync_seconds):
            return True
        self._returned += _WEIGHT * (1 - len(self._away) / self._count - self._returned)
        self._count = self._idle = 0
        return False

    def _is_tried(self) -> bool:
        return self._returned > _WORTH or self._idle >= _TRY_AGAIN
