"""Whether a queue kept to its size limit, and said "full" only when it could be full.

Tasks on lease count. A task is *surely in* from the return of its enqueue to the first call that may have removed
it, and *possibly in* from the call of its enqueue to the return of what surely removed it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from simulation.checking.history import Op, Operation, Outcome, Refusal, TaskName
from simulation.checking.violations import Findings, Kind

_REMOVING: Final = frozenset({Op.ACK, Op.PURGE, Op.DELETE})


def judge(history: Sequence[Operation], findings: Findings) -> None:
    """Judge every queue of which the history says with what limit it was created, always the same."""
    limits = _limits(history)
    histories: dict[str, list[Operation]] = {queue: [] for queue in limits}
    for operation in history:
        if operation.queue in histories:
            histories[operation.queue].append(operation)
    for queue, own in histories.items():
        limit = limits[queue]
        stays = _stays(own)
        _judge_surely(stays, queue, limit, findings)
        _judge_full(own, stays, limit, findings)


def _limits(history: Iterable[Operation]) -> dict[str, int]:
    found: dict[str, set[int | None]] = {}
    for operation in history:
        if operation.op is Op.CREATE and operation.outcome is not Outcome.FAIL:
            limit = None if operation.policy is None else operation.policy.size_max
            found.setdefault(operation.queue, set()).add(limit)
    single = {queue: next(iter(limits)) for queue, limits in found.items() if len(limits) == 1}
    return {queue: limit for queue, limit in single.items() if limit is not None}


class _Stay:
    """One task in its queue: when it surely was there, and when it may have been."""

    __slots__ = ("enqueue", "may_leave", "must_leave")

    def __init__(self, enqueue: Operation) -> None:
        self.enqueue = enqueue
        self.may_leave = math.inf  # the first call that may have removed it
        self.must_leave = math.inf  # the return of what surely removed it


def _stays(own: Iterable[Operation]) -> list[_Stay]:
    stays: dict[TaskName, _Stay] = {}
    removals: list[Operation] = []
    for operation in own:
        if operation.outcome is Outcome.FAIL:
            continue
        if operation.op is Op.ENQUEUE:
            stays.update((name, _Stay(operation)) for name in operation.ids)
        elif operation.op in _REMOVING:
            removals.append(operation)
    for operation in removals:
        for name in operation.ids:
            if (stay := stays.get(name)) is not None:
                stay.may_leave = min(stay.may_leave, operation.t0)
                stay.must_leave = min(stay.must_leave, operation.returned)
    _clear(stays.values(), [operation for operation in removals if operation.op is not Op.ACK])
    return list(stays.values())


def _clear(stays: Iterable[_Stay], clearings: Iterable[Operation]) -> None:
    """Let purges and deletions end stays: both may remove a task, and a deletion surely does."""
    may = _Earliest((clearing.returned, clearing.t0) for clearing in clearings)
    # A purge leaves what is on lease.
    must = _Earliest((c.t0, c.returned) for c in clearings if c.op is Op.DELETE)
    for stay in stays:
        stay.may_leave = min(stay.may_leave, may.behind(stay.enqueue.t0))
        stay.must_leave = min(stay.must_leave, must.behind(stay.enqueue.returned))


class _Earliest:
    """Pairs of a time and a value: the smallest value of those that are not before a time."""

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(pairs)
        self._times = [time for time, _ in ordered]
        self._smallest = [value for _, value in ordered]
        self._smallest.append(math.inf)
        for place in range(len(ordered) - 1, -1, -1):
            self._smallest[place] = min(self._smallest[place], self._smallest[place + 1])

    def behind(self, time: float) -> float:
        return self._smallest[bisect_left(self._times, time)]


def _judge_surely(stays: Sequence[_Stay], queue: str, limit: int, findings: Findings) -> None:
    """At no moment more tasks than the limit are surely in."""
    sure = [stay for stay in stays if stay.enqueue.returned < stay.may_leave]
    comes = sorted(sure, key=lambda stay: stay.enqueue.returned)
    leaves = sorted(stay.may_leave for stay in sure)
    gone = 0
    for number, stay in enumerate(comes):
        while leaves[gone] <= stay.enqueue.returned:
            gone += 1
        if number + 1 - gone > limit:
            text = f"queue {queue!r} holds at most {limit} tasks, and had {number + 1 - gone} after {stay.enqueue}"
            proof = [s.enqueue for s in comes[: number + 1] if s.may_leave > stay.enqueue.returned]
            findings.note(Kind.OVER_LIMIT, reversed(proof), text)
            return


def _judge_full(
    own: Iterable[Operation], stays: Sequence[_Stay], limit: int, findings: Findings
) -> None:
    """An answer "full" needs a moment at which so many tasks may have been in that the batch did not fit."""
    refused = [o for o in own if o.op is Op.ENQUEUE and o.reason == Refusal.QUEUE_FULL]
    if not refused:
        return
    moments, counts = _possibly_in(stays)
    refused.sort(key=lambda operation: operation.t1)
    # Places whose count is above all later ones so far: the first of them in a window has its maximum.
    peaks: list[int] = []
    place = 0
    for operation in refused:
        stop = bisect_right(moments, operation.t1)
        while place < stop:
            while peaks and counts[peaks[-1]] <= counts[place]:
                peaks.pop()
            peaks.append(place)
            place += 1
        # The count that holds when the window begins is that of the last moment before it.
        first = max(bisect_left(moments, operation.t0) - 1, 0)
        at = bisect_left(peaks, first)
        most = counts[peaks[at]] if at < len(peaks) else 0
        if most + len(operation.ids) <= limit:
            text = (
                f"{operation} was refused as full; at most {most} of {limit} tasks can have been in"
            )
            findings.note(Kind.FALSE_FULL, (operation,), text)


def _possibly_in(stays: Sequence[_Stay]) -> tuple[list[float], list[int]]:
    """Return how many tasks may have been in, at each moment and until the next one.

    Ends are included: a moment at which one may come and another may leave counts both.
    """
    comes = sorted(stay.enqueue.t0 for stay in stays)
    leaves = sorted(stay.must_leave for stay in stays if stay.must_leave < math.inf)
    moments: list[float] = []
    counts: list[int] = []
    come = leave = 0
    for moment in sorted({*comes, *leaves}):
        while come < len(comes) and comes[come] <= moment:
            come += 1
        moments.append(moment)
        counts.append(come - leave)
        while leave < len(leaves) and leaves[leave] <= moment:
            leave += 1
        moments.append(moment)
        counts.append(come - leave)
    return moments, counts
