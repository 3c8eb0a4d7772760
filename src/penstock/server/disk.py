"""Who waits for the disk: the caller, or a thread while the caller goes on.

Jobs run one at a time in the order given, so that one disk has one order of completion. A thread lets
the loop work while the disk does, and costs two switches; a job on the loop costs none. Which is cheaper depends on
the disk and on who else waits, so it is measured as it runs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Final, Protocol

Job = Callable[[], None]
Done = Callable[[BaseException | None], None]

INLINE_SECONDS_MAX: Final = 0.0015
"""A small job expected to take no longer than this runs on the loop: those who sent it wait anyway."""

_WEIGHT: Final = 0.2  # of the newest measurement in the running mean
_TRY_AGAIN: Final = 32  # small jobs given to the thread after which one is tried on the loop again


class Disk(Protocol):
    """Runs jobs in order and tells when each is done."""

    def run(self, job: Job, done: Done, *, is_small: bool) -> None:
        """Run ``job``, then call ``done`` with its exception or ``None``. ``is_small``: the caller may wait for it."""
        ...

    def close(self) -> None: ...


class InlineDisk:
    """Runs each job at once, in the caller's thread."""

    def run(self, job: Job, done: Done, *, is_small: bool) -> None:  # noqa: ARG002
        done(_attempt(job))

    def close(self) -> None:
        pass


class ThreadDisk:
    """Runs jobs in a thread of its own, and small ones on the loop while the disk is quick."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """``call_soon`` hands a call from the thread to the loop."""
        self._call_soon = call_soon
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._running = 0
        # Running mean of what a small job takes on the loop. In the thread it would seem to take longer by
        # what it waits there for the interpreter, and what once seemed slow would never be tried again.
        self._seconds = 0.0
        self._passed = 0  # small jobs since the last one on the loop
        self._began: float | None = None  # when the thread began the job that it works at
        self._thread = Thread(target=self._work, name="penstock-disk", daemon=True)
        self._thread.start()

    @property
    def mean_seconds(self) -> float:
        """What a small job takes, as a running mean."""
        return self._seconds

    def busy_seconds(self) -> float:
        """Return for how long the thread has worked at its present job; may be called from any thread."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def run(self, job: Job, done: Done, *, is_small: bool) -> None:
        if is_small and not self._running and self._is_quick():
            started = time.perf_counter()
            error = _attempt(job)
            self._learn(time.perf_counter() - started)
            done(error)
            return
        self._running += 1
        self._jobs.put((job, done))

    def _is_quick(self) -> bool:
        self._passed += 1
        if self._seconds >= INLINE_SECONDS_MAX and self._passed < _TRY_AGAIN:
            return False
        self._passed = 0
        return True

    def _learn(self, seconds: float) -> None:
        self._seconds += _WEIGHT * (seconds - self._seconds)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            self._began = time.monotonic()
            error = _attempt(job)
            self._began = None
            try:
                self._call_soon(partial(self._finish, done, error))
            except RuntimeError:  # the loop is closed: nobody is left to be told
                return

    def _finish(self, done: Done, error: BaseException | None) -> None:
        self._running -= 1
        done(error)

    def close(self) -> None:
        """Wait for the jobs under way, and end the thread."""
        self._jobs.put(None)
        self._thread.join()


class LaterDisk:
    """Keeps jobs until told to run them: for tests and simulations that decide when the disk is done."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Job, Done]] = deque()

    def run(self, job: Job, done: Done, *, is_small: bool) -> None:  # noqa: ARG002
        self.waiting.append((job, done))

    def run_one(self) -> None:
        job, done = self.waiting.popleft()
        done(_attempt(job))

    def close(self) -> None:
        pass


def _attempt(job: Job) -> BaseException | None:
    try:
        job()
    except BaseException as error:  # noqa: BLE001 - handed to whoever gave the job
        return error
    return None
