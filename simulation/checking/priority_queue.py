"""Whether a history of enqueues and dequeues can be that of a priority queue, in O(n log n).

Trusts nothing but the clients' clocks. Smallest key first, first in first out within a key; a dequeue takes its
task for good. An element is *surely in* the queue between the return of its enqueue and the call of its dequeue.
A dequeue can have happened only at a moment at which no element of a smaller key is surely in (*free* for its key),
an empty answer only at one at which nothing is; and at such a moment it can always be made to work. Free moments
are the same for all elements of one key, so among them first in first out is judged on windows narrowed to these.

Exact for single operations and enqueues of unknown outcome. Of a batch only its window is used, and dequeues of
unknown outcome are treated generously: both may hide a violation, and never invent one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Final

from penstock.errors import InvalidValue
from simulation.checking.history import Op, Operation, Outcome, TaskName, merged_retries
from simulation.checking.pausing import collector_paused
from simulation.checking.violations import (
    PROOF_MAX,
    VIOLATIONS_MAX,
    Findings,
    Kind,
    Violation,
)

_JUDGED: Final = frozenset({Op.ENQUEUE, Op.DEQUEUE})
_UNJUDGED: Final = frozenset({Op.NACK, Op.PURGE, Op.DELETE, Op.LEASE_END})


@collector_paused()
def check(
    history: Iterable[Operation], *, violations_max: int = VIOLATIONS_MAX
) -> tuple[Violation, ...]:
    """Return what is wrong with a history, nothing if it can be that of a priority queue.

    Each queue is judged by itself. Acks change nothing here, since a dequeue takes for good. Raises ``InvalidValue``
    for a history in which tasks come back or are removed otherwise: that is for the witness check.
    """
    findings = Findings(violations_max)
    queues: dict[str, _History] = {}
    for operation in merged_retries(history):
        if operation.op in _UNJUDGED:
            raise InvalidValue(
                f"the check of the priority queue knows enqueue and dequeue only, and found {operation}"
            )
        if operation.outcome is not Outcome.FAIL and operation.op in _JUDGED:
            queues.setdefault(operation.queue, _History()).add(operation, findings)
    for queue in queues.values():
        _judge(queue, findings)
    return findings.all()


class Cover:
    """A union of open intervals. Touching ones stay apart: their common end is free."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def add(self, start: float, end: float) -> None:
        """Cover the open interval; one that is empty covers nothing."""
        if start >= end:
            return
        first = bisect_right(self._ends, start)
        stop = bisect_left(self._starts, end)
        if first < stop:
            start = min(start, self._starts[first])
            end = max(end, self._ends[stop - 1])
        self._starts[first:stop] = [start]
        self._ends[first:stop] = [end]

    def first_free(self, time: float) -> float:
        """Return the first free moment that is not before ``time``."""
        place = bisect_left(self._starts, time) - 1
        return self._ends[place] if place >= 0 and self._ends[place] > time else time

    def last_free(self, time: float) -> float:
        """Return the last free moment that is not after ``time``."""
        place = bisect_right(self._ends, time)
        if place < len(self._starts) and self._starts[place] < time:
            return self._starts[place]
        return time


class _Element:
    """A task, its enqueue and its dequeue."""

    __slots__ = ("dequeue", "enqueue", "high", "key", "left", "low", "name", "returned")

    def __init__(self, name: TaskName, key: int, enqueue: Operation) -> None:
        self.name = name
        self.key = key
        self.enqueue = enqueue
        self.returned = enqueue.returned
        self.dequeue: Operation | None = None
        # When it can first have left the queue: it is surely in from `returned` to here.
        self.left = math.inf
        # The first and last moment of its removal at which no smaller key was surely in.
        self.low = math.inf
        self.high = math.inf


class _History:
    """What happened to one queue, by element."""

    def __init__(self) -> None:
        self.enqueued: dict[TaskName, _Element] = {}
        self.dequeued: dict[TaskName, tuple[Operation, int | None]] = {}
        self.empty: list[Operation] = []
        self.unknown: list[
            Operation
        ] = []  # dequeues, each of which may have taken what it asked for

    def add(self, operation: Operation, findings: Findings) -> None:
        if operation.op is Op.ENQUEUE:
            self._add_enqueue(operation, findings)
        elif operation.outcome is Outcome.UNKNOWN:
            self.unknown.append(operation)
        elif operation.ids:
            self._add_dequeue(operation, findings)
        else:
            self.empty.append(operation)

    def _add_enqueue(self, operation: Operation, findings: Findings) -> None:
        for name, key in zip(operation.ids, operation.keys, strict=True):
            if name in self.enqueued:
                proof = (operation, self.enqueued[name].enqueue)
                findings.note(Kind.DUPLICATE, proof, f"task {name!r} was enqueued twice")
            else:
                self.enqueued[name] = _Element(name, key, operation)

    def _add_dequeue(self, operation: Operation, findings: Findings) -> None:
        keys: tuple[int | None, ...] = operation.keys or (None,) * len(operation.ids)
        for name, key in zip(operation.ids, keys, strict=True):
            if name in self.dequeued:
                proof = (operation, self.dequeued[name][0])
                findings.note(Kind.DELIVERED_TWICE, proof, f"task {name!r} was delivered twice")
            else:
                self.dequeued[name] = (operation, key)

    def elements(self, findings: Findings) -> list[_Element]:
        """Join enqueues and dequeues, and return what must have been in the queue."""
        for name, (dequeue, key) in self.dequeued.items():
            element = self.enqueued.get(name)
            if element is None:
                text = f"task {name!r} was delivered, and nobody enqueued it"
                findings.note(Kind.FROM_NOWHERE, (dequeue,), text)
            elif key is not None and key != element.key:
                text = (
                    f"task {name!r} was delivered with key {key}, and enqueued with {element.key}"
                )
                findings.note(Kind.FROM_NOWHERE, (dequeue, element.enqueue), text)
                del self.enqueued[name]
            elif dequeue.t1 < element.enqueue.t0:
                text = f"task {name!r} was delivered before its enqueue was called"
                proof = (dequeue, element.enqueue)
                findings.note(Kind.DELIVERED_BEFORE_ENQUEUED, proof, text)
                del self.enqueued[name]
            else:
                element.dequeue = dequeue
                element.left = dequeue.t0
        # An enqueue of unknown outcome whose task was never seen may not have happened.
        return [
            element
            for element in self.enqueued.values()
            if element.dequeue is not None or element.enqueue.outcome is Outcome.OK
        ]


def _judge(history: _History, findings: Findings) -> None:
    elements = history.elements(findings)
    earliest = min([operation.t0 for operation in history.unknown], default=math.inf)
    for element in elements:
        if element.dequeue is None:
            element.left = earliest  # it may have gone with an answer that was lost
    elements.sort(key=lambda element: element.key)
    cover = Cover()
    for _, group in groupby(elements, key=lambda element: element.key):
        alike = list(group)
        _narrow(alike, cover, elements, findings)
        _judge_fifo(alike, elements, findings)
        for element in alike:
            cover.add(element.returned, element.left)
    missing = _Missing(history, elements)
    for answer in history.empty:
        if cover.first_free(answer.t0) > answer.t1:
            proof = [] if findings.is_full else _covering(elements, math.inf, answer.t0, answer.t1)
            text = f"{answer}: all the time some task was in the queue: {_names(proof)}"
            findings.note(Kind.FALSE_EMPTY, (answer, *_operations(proof)), text)
        else:
            missing.judge(answer, findings)


def _narrow(
    alike: Sequence[_Element], cover: Cover, elements: Sequence[_Element], findings: Findings
) -> None:
    """Find the free moments of each removal among elements of one key."""
    first_free, last_free = cover.first_free, cover.last_free
    for element in alike:
        dequeue = element.dequeue
        if dequeue is None:
            if element.left < math.inf:
                element.low = first_free(max(element.enqueue.t0, element.left))
            continue
        element.low = first_free(max(element.enqueue.t0, dequeue.t0))
        if element.low <= dequeue.t1:
            element.high = last_free(dequeue.t1)
            continue
        element.low = -math.inf  # reported once: it accuses nobody else
        if not findings.is_full:
            # Before its own enqueue was called it was not there to be delivered.
            start = max(element.enqueue.t0, dequeue.t0)
            proof = _covering(elements, element.key, start, dequeue.t1)
            text = f"task {element.name!r} of key {element.key} was delivered while smaller keys were in: {_names(proof)}"
            operations = (dequeue, element.enqueue, *_operations(proof))
            findings.note(Kind.PRIORITY_INVERSION, operations, text)


def _judge_fifo(
    alike: Sequence[_Element], elements: Sequence[_Element], findings: Findings
) -> None:
    """Of two elements of which one was enqueued wholly before the other, the first must be able to leave first."""
    if len(alike) == 1:
        return
    by_return = sorted(alike, key=lambda element: element.returned)
    worst = by_return[0]
    worst_low = -math.inf
    seen = 0
    for element in sorted(alike, key=lambda element: element.enqueue.t0):
        called = element.enqueue.t0
        while by_return[seen].returned < called:
            if by_return[seen].low > worst_low:
                worst = by_return[seen]
                worst_low = worst.low
            seen += 1
        if element.high < worst_low and element.dequeue is not None:
            text = f"task {element.name!r} of key {element.key} was delivered before {worst.name!r}, which came first"
            proof = (
                [] if findings.is_full else _narrowing(elements, worst, element, element.dequeue)
            )
            operations = (element.dequeue, *_operations([element, worst, *proof]))
            findings.note(Kind.FIFO, operations, text)


class _Missing:
    """Tasks that nobody saw leave, and the lost answers with which they may have gone."""

    def __init__(self, history: _History, elements: Sequence[_Element]) -> None:
        missing = [e for e in elements if e.dequeue is None] if history.unknown else []
        self._elements = sorted(missing, key=lambda element: element.returned)
        self._returns = [element.returned for element in self._elements]
        self._lost = sorted(history.unknown, key=lambda operation: operation.t0)
        self._calls = [operation.t0 for operation in self._lost]
        self._taken = [0, *accumulate(operation.asked for operation in self._lost)]

    def judge(self, answer: Operation, findings: Findings) -> None:
        """An empty answer: each task that was surely put in before must have gone with a lost answer of its own."""
        gone = bisect_left(self._returns, answer.t0)
        taken = self._taken[bisect_right(self._calls, answer.t1)]
        if gone > taken:
            proof = self._elements[:gone]
            text = (
                f"{answer}: {gone} tasks that were put in before were never delivered, such as "
                f"{_names(proof)}; lost answers explain {taken}"
            )
            lost = [operation for operation in self._lost if operation.t0 <= answer.t1]
            findings.note(Kind.FALSE_EMPTY, (answer, *_operations(proof), *lost), text)


# --- proofs: found only when there is something to prove ------------------------------------------


def _covering(elements: Iterable[_Element], key: float, time: float, end: float) -> list[_Element]:
    """Return elements of smaller keys that are surely in one after the other, from ``time`` on without a gap."""
    near = _near(elements, key, time, end)
    found: list[_Element] = []
    while time <= end and len(found) < PROOF_MAX:
        here = [element for element in near if element.returned < time < element.left]
        if not here:
            break
        found.append(max(here, key=lambda element: element.left))
        time = found[-1].left
    return found


def _covering_back(
    elements: Iterable[_Element], key: float, start: float, time: float
) -> list[_Element]:
    """The same from ``time`` backwards."""
    near = _near(elements, key, start, time)
    found: list[_Element] = []
    while start <= time and len(found) < PROOF_MAX:
        here = [element for element in near if element.returned < time < element.left]
        if not here:
            break
        found.append(min(here, key=lambda element: element.returned))
        time = found[-1].returned
    return found


def _narrowing(
    elements: Sequence[_Element], first: _Element, second: _Element, dequeue: Operation
) -> list[_Element]:
    """Return why the first could not leave sooner, nor the second, by this dequeue, later."""
    found: list[_Element] = []
    if first.left < math.inf:
        start = max(first.enqueue.t0, first.left)
        found = _covering(elements, first.key, start, first.low)
    return found + _covering_back(elements, second.key, second.high, dequeue.t1)


def _near(elements: Iterable[_Element], key: float, start: float, end: float) -> list[_Element]:
    return [e for e in elements if e.key < key and e.returned < min(end, e.left) and e.left > start]


def _operations(elements: Iterable[_Element]) -> list[Operation]:
    found: list[Operation] = []
    for element in elements:
        found.append(element.enqueue)
        if element.dequeue is not None:
            found.append(element.dequeue)
    return found


def _names(elements: Sequence[_Element]) -> str:
    names = ", ".join(repr(element.name) for element in elements[:5])
    return names + (", …" if len(elements) > 5 else "")
