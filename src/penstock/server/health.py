"""Whether a node works, as ``/healthz`` answers: its loop turns and its disk finishes what it is given.

The loop and the disk write down when they were last seen; a thread of the metrics port reads it, so that
a node whose loop or disk hangs can still answer that it does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import PenstockError
from penstock.server.disk import ThreadDisk

STALL_SECONDS_MAX: Final = 5.0
"""A loop that has not turned, or a disk that has worked at one job, for longer than this is reported."""

BEAT_SECONDS: Final = 0.5
"""How often the loop shows that it turns."""


class Health:
    """The last signs of life of a node. Made on its loop; read from any thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: ThreadDisk,
        failure: Callable[[], PenstockError | None],
    ) -> None:
        """``failure`` returns what stopped the node, if anything did."""
        self._loop = loop
        self._disk = disk
        self._failure = failure
        self._turned = time.monotonic()
        self._beat()

    def _beat(self) -> None:
        self._turned = time.monotonic()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def problem(self) -> str | None:
        """Return why the node does not work, ``None`` if it does."""
        failure = self._failure()
        if failure is not None:
            return str(failure)
        stalled = time.monotonic() - self._turned
        if stalled > STALL_SECONDS_MAX:
            return f"the loop has not turned for {stalled:.0f} s"
        busy = self._disk.busy_seconds()
        if busy > STALL_SECONDS_MAX:
            return f"the disk has not finished a write or sync for {busy:.0f} s"
        return None

    def close(self) -> None:
        """Stop the loop's signs of life."""
        self._timer.cancel()
