"""What a node knows of the want of room for files it can do without: whether to try again, and whether that was said.

A snapshot needs room only while it is made, and the log goes on without it, as it does without its next file until the
newest one is full. So one that finds none is given up and tried again, at a pace that leaves the disk to the log.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.errors import NoRoom

REST_SECONDS: Final = 5.0
"""Between two looks whether there is room again."""

REST_SECONDS_MAX: Final = 320.0
"""Between two attempts, in the end: where a quota is full, only an attempt tells, and each fills the rest of it."""


def free_bytes(path: Path) -> float:
    """Return how much room a disk says it has; more than anybody needs if it does not say."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return math.inf


def _unknown() -> float:
    return math.inf


class Shortage:
    """One for all snapshots of a node, its own and those that others send, and one for the log's next file."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        room: Callable[[], float] = _unknown,
        say: Callable[[str], None] = lambda _: None,
        *,
        thing: str = "snapshot",
    ) -> None:
        """``room`` tells how many bytes are free, infinity where nobody knows. ``thing``: what finds no room."""
        self._thing = thing
        self._now = now
        self._room = room
        self._say = say
        self._rest = REST_SECONDS  # after the next attempt that finds no room
        self._until = 0.0  # until when nothing is tried
        self.is_on = False  # from an attempt that found no room until one that did

    def begin(self, error: NoRoom) -> None:
        """Note that one found no room; that is said the first time."""
        if not self.is_on:
            self.is_on = True
            self._rest = REST_SECONDS
            self._say(
                f"no {self._thing}: {error}; the log keeps growing; the node retries when there is room"
            )
        self._until = self._now() + self._rest
        self._rest = min(2 * self._rest, REST_SECONDS_MAX)

    def end(self) -> None:
        """Note that one found room."""
        self.is_on = False

    @property
    def is_resting(self) -> bool:
        """Whether it is too early to try again."""
        return self.is_on and self._now() < self._until

    def allows(self, size: int) -> bool:
        """Return whether one of about so many bytes may be tried now.

        The first attempt always may: what is free says little where a disk compresses. After one that failed there must be
        room, for an attempt takes all there is, and the log may want some meanwhile.
        """
        if not self.is_on:
            return True
        if self.is_resting:
            return False
        if self._room() < size:
            self._until = self._now() + REST_SECONDS
            return False
        return True
