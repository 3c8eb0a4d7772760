"""What a node counts: plain numbers on the hot path, made into Prometheus' text when somebody asks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SYNC_BOUNDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.5,
    1.0,
)
BATCH_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000)


class Histogram:
    """Counts of values up to each bound, as Prometheus wants them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Meter:
    """The counters of one node."""

    __slots__ = (
        "_proposed",
        "_under_way",
        "batch_entries",
        "bytes_received",
        "bytes_sent",
        "commit_seconds",
        "connections_accepted",
        "connections_refused",
        "protocol_errors",
        "snapshot_seconds",
        "snapshots",
        "started",
        "sync_seconds",
    )

    def __init__(self) -> None:
        self.sync_seconds = Histogram(SYNC_BOUNDS)  # write and sync of one batch
        self.commit_seconds = Histogram(
            SYNC_BOUNDS
        )  # a batch, from its first proposal to its answers
        self._proposed = 0.0  # when the first proposal came that waits for the disk; 0: none does
        self._under_way = 0.0  # the same of the batch that the disk has
        self.batch_entries = Histogram(BATCH_BOUNDS)
        self.connections_accepted = 0
        self.connections_refused = 0
        self.protocol_errors = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.snapshots = 0
        self.snapshot_seconds = 0.0
        self.started = time.time()

    def note_proposed(self) -> None:
        if not self._proposed:
            self._proposed = time.perf_counter()

    def note_handed_out(self) -> None:
        """All that waited is one batch now."""
        self._under_way, self._proposed = self._proposed, 0.0

    def note_told(self) -> None:
        """The batch is committed, applied and answered."""
        if self._under_way:
            self.commit_seconds.observe(time.perf_counter() - self._under_way)
            self._under_way = 0.0

    def note_synced(self, entries: int, seconds: float) -> None:
        """The disk has written and synced a batch."""
        self.sync_seconds.observe(seconds)
        self.batch_entries.observe(entries)
