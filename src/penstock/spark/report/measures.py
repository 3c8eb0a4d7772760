"""The numbers behind the plots of one source: depth and throughput by bucket, and which queues come first.

Queues are many and buckets may be: nothing here makes a matrix of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.spark.report.axes import Floats
from penstock.spark.report.inputs import Rows


class Depth:
    """How many tasks waited in each queue at the end of each bucket."""

    def __init__(self, rows: Rows) -> None:
        rows = rows.where(np.isfinite(rows.numbers("bucket")) & np.isfinite(rows.numbers("depth")))
        codes, self.queues = rows.codes("queue")
        self._codes = {name: code for code, name in enumerate(self.queues)}
        self.buckets, column = np.unique(rows.positions("bucket"), return_inverse=True)
        self.index = _by_column(rows.numbers("log_index"), column, len(self.buckets))
        if len(self.buckets) and not np.isfinite(self.index).any():
            self.index = self.buckets.astype(np.float64)
        self.index = _filled(self.index, np.arange(len(self.buckets), dtype=np.float64))
        time = _by_column(rows.numbers("event_time"), column, len(self.buckets))
        self.untimed = int((~np.isfinite(time)).sum())
        # A clock may be set back; the log is in order, so the plot does not turn back with it.
        self.time = (
            np.maximum.accumulate(_filled(time, self.index)) if np.isfinite(time).any() else None
        )
        self._sort(rows, codes, column)

    def _sort(self, rows: Rows, codes: NDArray[np.int64], column: NDArray[np.int64]) -> None:
        """Lay out the rows queue by queue: each with how much it changed since the queue's row before it."""
        order = np.lexsort((column, codes))
        codes, self._column = codes[order], column[order]
        depth = rows.numbers("depth")[order]
        before = depth - rows.counts("added")[order] + rows.counts("removed")[order]
        self._start = np.searchsorted(codes, np.arange(len(self.queues) + 1))
        previous = np.concatenate([[0.0], depth[:-1]]) if len(depth) else depth
        firsts = self._start[:-1]
        # Before its first row a queue held what that row began with: a snapshot's tasks, mostly none.
        self._base = np.maximum(before[firsts], 0)
        previous[firsts] = self._base
        self._change = depth - previous
        ends = self._start[1:] - 1
        self.last: Floats = depth[ends]
        self.lowest = float(depth.min(initial=0.0))
        self.peak: Floats = np.maximum(self._base, 0)
        np.maximum.at(self.peak, codes, depth)

    def series(self, names: Sequence[str]) -> Floats:
        """Return the depth of these queues together, bucket by bucket."""
        total = np.zeros(len(self.buckets))
        queues = np.array([self._codes[name] for name in names], dtype=np.int64)
        for queue in queues:
            rows = slice(self._start[queue], self._start[queue + 1])
            np.add.at(total, self._column[rows], self._change[rows])
        return np.asarray(self._base[queues].sum() + np.cumsum(total), dtype=np.float64)

    def __contains__(self, name: str) -> bool:
        return name in self._codes

    @property
    def last_us(self) -> float | None:
        """When the last bucket ended, if that is known."""
        return None if self.time is None else float(self.time[-1])

    def time_of(self, bucket: NDArray[np.int64]) -> Floats | None:
        """Return when these buckets ended, if all of them are known."""
        if self.time is None or not np.isin(bucket, self.buckets).all():
            return None
        return self.time[np.searchsorted(self.buckets, bucket)]

    def time_at(self, index: float) -> float | None:
        """Return about when an entry was written, from the buckets around it."""
        return None if self.time is None else float(np.interp(index, self.index, self.time))


class Throughput:
    """How much came and went in each bucket, all queues together."""

    def __init__(self, rows: Rows) -> None:
        rows = rows.where(np.isfinite(rows.numbers("bucket")))
        self.buckets, column = np.unique(rows.positions("bucket"), return_inverse=True)
        n = len(self.buckets)
        self.adds = sum_by(column, rows.counts("adds"), n)
        self.removes = sum_by(column, rows.counts("removes"), n)
        self.bytes_added = sum_by(column, rows.counts("bytes_added"), n)
        order = np.arange(n, dtype=np.float64)
        self.first = _filled(_by_column(rows.numbers("first_index"), column, n, np.fmin), order)
        self.end = _filled(_by_column(rows.numbers("last_index"), column, n), self.first) + 1
        seconds = _by_column(rows.numbers("seconds"), column, n)
        self.seconds = np.where(seconds > 0, seconds, np.nan)

    @property
    def has_rates(self) -> bool:
        """Whether most buckets say how long they lasted."""
        return len(self.seconds) > 0 and float(np.isfinite(self.seconds).mean()) > 0.5

    def edges(self, depth: Depth) -> tuple[Floats, bool]:
        """Return where buckets begin, and the last one ends; and whether these are times."""
        ends = depth.time_of(self.buckets)
        if ends is None:
            return np.concatenate([self.first, self.end[-1:]]), False
        length = ends[1] - ends[0] if len(ends) > 1 else 1e6
        if np.isfinite(self.seconds[0]):
            length = self.seconds[0] * 1e6
        return np.concatenate([[ends[0] - length], ends]), True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTotals:
    """What the tables say of one queue."""

    name: str
    adds: float | None
    removes: float | None
    peak: float | None
    waiting: float | None
    waiting_size: float | None
    lowest_key: int | None
    highest_key: int | None
    oldest_index: int | None

    @property
    def depth(self) -> float:
        """How many tasks wait, for ordering."""
        return self.waiting or 0.0


def queue_totals(depth: Depth, throughput: Rows | None, summary: Rows) -> list[QueueTotals]:
    """Return the queues, those first that are deep, busy or were deep. ``None`` is a throughput nobody measured."""
    adds: dict[str, float] = {}
    removes: dict[str, float] = {}
    if throughput is not None:
        codes, names = throughput.codes("queue")
        for sums, column in ((adds, "adds"), (removes, "removes")):
            found_sums = sum_by(codes, throughput.counts(column), len(names)).tolist()
            sums.update(zip(names, found_sums, strict=True))
    nothing = None if throughput is None else 0.0
    peaks = dict(zip(depth.queues, depth.peak.tolist(), strict=True))
    lasts = dict(zip(depth.queues, depth.last.tolist(), strict=True))
    tasks = {row["queue"] or "": row for row in summary.dicts()}
    found: list[QueueTotals] = []
    for name in dict.fromkeys([*peaks, *adds, *tasks]):
        row = tasks.get(name, {})
        waiting = row.get("count")
        found.append(
            QueueTotals(
                name=name,
                adds=adds.get(name, nothing),
                removes=removes.get(name, nothing),
                peak=peaks.get(name),
                waiting=lasts.get(name) if waiting is None else float(waiting),
                waiting_size=row.get("bytes"),
                lowest_key=row.get("lowest_key"),
                highest_key=row.get("highest_key"),
                oldest_index=row.get("oldest_index"),
            )
        )
    return _in_order(found)


def _in_order(found: list[QueueTotals]) -> list[QueueTotals]:
    """Order by the largest share that a queue has in any of depth, peak and adds."""
    depth = max((q.depth for q in found), default=0.0) or 1.0
    peak = max((q.peak or 0.0 for q in found), default=0.0) or 1.0
    adds = max((q.adds or 0.0 for q in found), default=0.0) or 1.0

    def share(queue: QueueTotals) -> tuple[float, float, str]:
        best = max(queue.depth / depth, (queue.peak or 0.0) / peak, (queue.adds or 0.0) / adds)
        return -best, -queue.depth, queue.name

    return sorted(found, key=share)


def sum_by(column: NDArray[np.int64], values: Floats, columns: int) -> Floats:
    """Return the sum of each column's values."""
    return np.bincount(column, values, columns).astype(np.float64)


def _by_column(
    values: Floats, column: NDArray[np.int64], columns: int, pick: np.ufunc = np.fmax
) -> Floats:
    """Return the highest (or lowest) of each column's values, NaN where all are null."""
    found = np.full(columns, np.nan)
    pick.at(found, column, values)
    return found


def _filled(values: Floats, along: Floats) -> Floats:
    """Return values with those between known ones put in, by their distance ``along``."""
    known = np.isfinite(values)
    if known.all():
        return values
    if not known.any():
        return along
    return np.asarray(np.interp(along, along[known], values[known]), dtype=np.float64)
