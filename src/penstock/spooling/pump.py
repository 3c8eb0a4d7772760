"""Runs a forwarder: again after a pause when the node is away, and told in words once, not at each attempt."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.client.retries import Backoff
from penstock.errors import ConnectionFailed, SpoolFull
from penstock.spooling.forwarder import PASSING, Forwarder

IDLE_SECONDS: Final = 1.0
"""How long there must be nothing to send before the state is saved once more."""


class Pump:
    """A forwarder at work, in the thread that calls ``run``; the other methods are for other threads."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        tell: Callable[[str], None],
        stop: threading.Event | None = None,
    ) -> None:
        self._forwarder = forwarder
        self._tell = tell
        self._told: type[Exception] | None = None  # what keeps it from sending
        self._stop = threading.Event() if stop is None else stop
        self._wake = threading.Event()
        self._moved = threading.Condition()  # guards what is below
        self._turn = 0  # of the forwarder, counted from 1
        self._empty_turn = 0  # the last one that found nothing to send
        self._failure: Exception | None = None
        self._is_over = False

    def run(
        self,
        *,
        until_empty: bool = False,
        retry: float = float("inf"),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Forward until it is stopped, or there is nothing left.

        ``retry``: seconds for which the same round is tried. ``progress``: told how many tasks have arrived. Raises
        what ends it for good, and what kept a round from being sent for so long.
        """
        backoff: Backoff | None = None
        try:
            # Does not end by itself unless it is asked to.
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    count = self._take_turn()
                except PASSING as error:
                    self._tell_once(error)
                    backoff = backoff or _backoff(retry)
                    pause = backoff.next_pause()
                    if pause is None:
                        raise
                    self._stop.wait(pause)
                    continue
                backoff = None
                self._tell_recovery()
                if count and progress is not None:
                    progress(count)
                if count == 0 and until_empty:
                    return
                if count == 0:
                    self._wait()
        except Exception as error:
            self._failure = error
            raise
        finally:
            with self._moved:
                self._is_over = True
                self._moved.notify_all()

    def _take_turn(self) -> int:
        with self._moved:
            self._turn += 1
        count = self._forwarder.forward()
        with self._moved:
            if count == 0:
                self._empty_turn = self._turn
            self._moved.notify_all()
        return count

    def _wait(self) -> None:
        if not self._wake.wait(IDLE_SECONDS):
            with contextlib.suppress(SpoolFull):  # a state that is a little old does no harm
                self._forwarder.rest()
            self._wake.wait()

    def _tell_once(self, error: Exception) -> None:
        kind = ConnectionFailed if isinstance(error, ConnectionFailed) else type(error)
        if self._told is not kind:
            self._told = kind
            self._tell(f"cannot send now, retrying: {error}")

    def _tell_recovery(self) -> None:
        if self._told is not None:
            self._told = None
            self._tell("tasks are sent again")

    def wake(self) -> None:
        """Say that there is something to send."""
        self._wake.set()

    def stop(self) -> None:
        """Let ``run`` end after the round under way, or in the pause that it is in."""
        self._stop.set()
        self._wake.set()

    def check(self) -> None:
        """Raise what has ended the forwarder for good."""
        if self._failure is not None:
            raise self._failure

    def wait_arrived(self, published: int, timeout: float | None) -> bool:
        """Return whether all has arrived that was in the spool when this was called. Raises as ``check``.

        ``published``: how many tasks the spool was given since it was opened.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._moved:
            turn = self._turn  # one that began before may have looked too early
            self._wake.set()
            while not (has_arrived := self._has_arrived(published, turn)) and not self._is_over:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._moved.wait(left)
        self.check()
        return has_arrived

    def _has_arrived(self, published: int, turn: int) -> bool:
        """Return whether there was nothing left after a turn, or as many have arrived: all older ones with them."""
        return self._empty_turn > turn or 0 < published <= self._forwarder.arrived


def _backoff(retry: float) -> Backoff:
    return Backoff(retry=retry, clock=time.monotonic, chance=random.random)
