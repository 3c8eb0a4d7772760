"""What a history of a broken group proves: the checkers' verdicts, and how long clients had to wait."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from rigs.cluster.load import LEASE_SECONDS, is_lost_answer
from simulation.checking import delivery, priority_queue
from simulation.checking.history import Op, Operation, Outcome, TaskName, merged_retries

NOTICE_SECONDS: Final = 1.0
"""Within this a node that runs has noticed that a connection is gone."""

HEARD_SECONDS: Final = 2.0
"""How much later than it happened a leader's word may have been heard."""

PROBLEMS_MAX: Final = 20

Window = tuple[float, float]


@dataclass(slots=True)
class Verdict:
    figures: dict[str, Any]
    problems: list[str] = field(default_factory=list)


def judge(
    history: Sequence[Operation],
    elections: Iterable[tuple[float, int, int]],
    faults: Sequence[tuple[str, float, float]],
    *,
    lease_time: float = LEASE_SECONDS,
) -> Verdict:
    """Judge a history that ends with a drain. ``faults``: what was broken, from when to when."""
    windows = [(start, end) for _, start, end in faults]
    answers = answer_times(history)
    full = [*_with_late_partings(history, windows), *_leads(elections)]
    report = delivery.check(full, is_drained=True, lease_time=lease_time)
    ordered = ordered_part(history, storms(history, windows))
    order = priority_queue.check(ordered)
    gaps = sorted(
        (round(longest_gap(answers, (start, end)), 2), what) for what, start, end in faults
    )
    counts = Counter((o.op, o.outcome) for o in history)
    figures: dict[str, Any] = {
        "operations": len(history),
        "seconds": round(max(o.t1 for o in history) - min(o.t0 for o in history), 1),
        "enqueues": counts[Op.ENQUEUE, Outcome.OK],
        "tasks": sum(len(o.ids) for o in merged_retries(history) if o.op is Op.ENQUEUE),
        "acks": sum(_size(o) for o in history if o.op is Op.ACK),
        "nacks": sum(_size(o) for o in history if o.op is Op.NACK),
        "unknown": sum(n for (_, outcome), n in counts.items() if outcome is Outcome.UNKNOWN),
        "refused": sum(n for (_, outcome), n in counts.items() if outcome is Outcome.FAIL),
        "lost": len(report.lost),
        "unexpected": len(report.unexpected),
        "recovered": len(report.recovered),
        "duplicated": len(report.duplicated),
        "violations": len(report.violations) + len(order),
        "dequeues_judged_by_order": sum(o.op is Op.DEQUEUE for o in ordered),
        "faults": len(faults),
        "longest_gap_s": round(longest_gap(answers), 2),
    }
    if gaps:
        figures["gap_p50_s"] = round(median(gap for gap, _ in gaps), 2)
        figures["longest_gaps"] = gaps[-3:]
    found = [str(violation) for violation in (*report.violations, *order)]
    return Verdict(figures, found[:PROBLEMS_MAX])


def _size(operation: Operation) -> int:
    return len(operation.ids) if operation.outcome is Outcome.OK else 0


def _leads(elections: Iterable[tuple[float, int, int]]) -> list[Operation]:
    return [
        Operation(process=f"node-{node}", op=Op.LEAD, t0=heard - HEARD_SECONDS, t1=heard, term=term)
        for heard, node, term in elections
    ]


def _with_late_partings(history: Iterable[Operation], faults: Sequence[Window]) -> list[Operation]:
    """Let each disconnect last until a node that was paused or cut off must have noticed it."""
    broken = _Windows(faults)
    return [replace(o, t1=_settled(o.t1, broken)) if o.op is Op.DISCONNECT else o for o in history]


def _settled(time: float, broken: _Windows) -> float:
    """Return when what happened at a time has reached every node that runs."""
    return broken.end_of(time) + NOTICE_SECONDS


class _Windows:
    """Times as a union: those that meet are one. Searched by halving, since long runs have thousands of both."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start, end in sorted(windows):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def touch(self, start: float, end: float) -> bool:
        """Whether any window has a moment in common with this one."""
        place = bisect_left(self._ends, start)
        return place < len(self._starts) and self._starts[place] <= end

    def end_of(self, time: float) -> float:
        """Return the end of the window in which a time lies, or the time itself."""
        place = bisect_right(self._starts, time) - 1
        return max(time, self._ends[place]) if place >= 0 else time


# --- order ---------------------------------------------------------------------------------------


def storms(history: Iterable[Operation], faults: Sequence[Window]) -> list[Window]:
    """Return when tasks may have been out with somebody who was never told."""
    broken = _Windows(faults)
    return [(o.t0, _settled(o.t1, broken) + LEASE_SECONDS) for o in history if is_lost_answer(o)]


def ordered_part(history: Iterable[Operation], stormy: Sequence[Window]) -> list[Operation]:
    """Return what can be judged as a priority queue: tasks that were taken once, at a calm time, and for good.

    Leaving a task out of a true history leaves a true one. One that came back was out for a while, and nobody can tell
    when a lost answer's tasks were: such tasks, and what was taken meanwhile, are left out.
    """
    merged = merged_retries(history)
    storm = _Windows(stormy)
    seen: Counter[TaskName] = Counter()
    kept: set[TaskName] = set()
    returned: set[TaskName] = set()
    for operation in merged:
        if operation.outcome is Outcome.FAIL:
            continue
        if operation.op is Op.DEQUEUE:
            seen.update(operation.ids)
            if operation.outcome is Outcome.OK and not storm.touch(operation.t0, operation.t1):
                kept.update(operation.ids)
        elif operation.op is Op.NACK:
            returned.update(operation.ids)
    kept = {name for name in kept if seen[name] == 1} - returned
    return [part for o in merged if (part := _part(o, kept, storm)) is not None]


def _part(operation: Operation, kept: set[TaskName], storm: _Windows) -> Operation | None:
    if operation.op not in (Op.ENQUEUE, Op.DEQUEUE) or operation.outcome is Outcome.FAIL:
        return None
    if operation.op is Op.DEQUEUE and not operation.ids:
        is_empty = operation.outcome is Outcome.OK and not storm.touch(operation.t0, operation.t1)
        return operation if is_empty else None
    pairs = [p for p in zip(operation.ids, operation.keys, strict=True) if p[0] in kept]
    if not pairs:
        return None
    ids, keys = zip(*pairs, strict=True)
    return replace(operation, ids=ids, keys=keys, tokens=(), producer=None, sequence=None)


# --- time ----------------------------------------------------------------------------------------


def answer_times(history: Iterable[Operation]) -> list[float]:
    """Return when enqueues were answered, in order."""
    return sorted(o.t1 for o in history if o.op is Op.ENQUEUE and o.outcome is Outcome.OK)


def longest_gap(times: Sequence[float], fault: Window | None = None) -> float:
    """Return the longest time between two answers, of those that touch a fault if one is given."""
    start, end = fault or (-math.inf, math.inf)
    first = max(
        0, bisect_left(times, start) - 1
    )  # the gap that ends behind the start begins before it
    touching = times[first : bisect_right(times, end) + 1]
    return max((later - sooner for sooner, later in pairwise(touching)), default=0.0)
