"""Delivery at least once, as clients saw it: nothing lost, nothing invented, one lease of a task at a time.

Trusts nothing but the clients' clocks, and says nothing about which task was next (that is for the other checks). To
find what is lost the history must end with a full drain: every queue answered "empty" after everything else.
Windows are judged in the product's favour: a violation is one whatever happened inside them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from simulation.checking import bounds
from simulation.checking.history import (
    Op,
    Operation,
    Outcome,
    Process,
    TaskName,
    merged_retries,
)
from simulation.checking.pausing import collector_paused
from simulation.checking.violations import VIOLATIONS_MAX, Findings, Kind, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of the tasks. ``lost`` and ``unexpected`` are violations too, ``recovered`` is none."""

    lost: tuple[TaskName, ...]  # acknowledged to the producer, then never seen (again)
    unexpected: tuple[TaskName, ...]  # seen, and nobody tried to enqueue it
    recovered: tuple[TaskName, ...]  # enqueued with an unknown outcome, and seen
    duplicated: tuple[TaskName, ...]  # seen more often than it was handed back
    violations: tuple[Violation, ...]


@collector_paused()
def check(
    history: Iterable[Operation],
    *,
    is_drained: bool,
    lease_time: float = math.inf,
    notice_time: float = 0.0,
    violations_max: int = VIOLATIONS_MAX,
) -> Report:
    """Judge a history with leases.

    ``is_drained``: it ends with a full drain, which is checked; without one nothing counts as lost. ``lease_time``, in
    the history's unit of time, is after how long a lease may end without an operation in the history that says so;
    ``notice_time``, how much later than the client a node may learn of the end of a connection.
    """
    findings = Findings(violations_max)
    book = _Book(merged_retries(history), lease_time, notice_time)
    lost: list[TaskName] = []
    if is_drained and _is_proven(book, findings):
        lost = _find_lost(book, findings)
    unexpected = [name for name, task in book.tasks.items() if task.enqueue is None]
    for name in unexpected:
        deliveries = book.tasks[name].deliveries
        findings.note(
            Kind.UNEXPECTED, deliveries, f"task {name!r} was seen, and nobody enqueued it"
        )
    duplicated = [name for name, task in book.tasks.items() if _judge_task(book, task, findings)]
    _judge_producers(book, findings)
    bounds.judge(book.history, findings)
    return Report(
        lost=tuple(lost),
        unexpected=tuple(unexpected),
        recovered=tuple(name for name, task in book.tasks.items() if task.is_recovered),
        duplicated=tuple(duplicated),
        violations=findings.all(),
    )


@dataclass(slots=True, eq=False)
class _Task:
    """All that was seen of one task."""

    name: TaskName
    queue: str
    key: int = 0
    enqueue: Operation | None = None
    deliveries: list[Operation] = field(default_factory=list)
    acks: list[Operation] = field(default_factory=list)  # answered or of unknown outcome
    returns: list[Operation] = field(default_factory=list)  # nacks, likewise, and ended leases

    @property
    def is_recovered(self) -> bool:
        is_unknown = self.enqueue is not None and self.enqueue.outcome is Outcome.UNKNOWN
        return is_unknown and bool(self.deliveries)


class _Book:
    """The history by task, and what concerns many tasks at once."""

    def __init__(self, history: Sequence[Operation], lease_time: float, notice_time: float) -> None:
        self.history = history
        self.lease_time = lease_time
        self.notice_time = notice_time
        self.tasks: dict[TaskName, _Task] = {}
        self._elections = _Events()
        self._partings: dict[Process, _Events] = {}  # disconnects, by process
        self.clearings: dict[str, list[Operation]] = {}  # purges and deletions, by queue
        self.empty: dict[str, list[Operation]] = {}  # empty answers, by queue
        self.unanswered: dict[str, list[Operation]] = {}  # dequeues of unknown outcome, by queue
        for operation in history:
            if operation.outcome is not Outcome.FAIL:
                self._add(operation)
        for task in self.tasks.values():
            if len(task.deliveries) > 1:
                task.deliveries.sort(key=_called)

    def _add(self, operation: Operation) -> None:
        queue = operation.queue
        match operation.op:
            case Op.ENQUEUE:
                for name, key in zip(operation.ids, operation.keys, strict=True):
                    task = self._task(name, queue)
                    task.enqueue, task.key = operation, key
            case Op.DEQUEUE if operation.outcome is Outcome.UNKNOWN:
                self.unanswered.setdefault(queue, []).append(operation)
            case Op.DEQUEUE:
                for name in operation.ids:
                    self._task(name, queue).deliveries.append(operation)
                if not operation.ids:
                    self.empty.setdefault(queue, []).append(operation)
            case Op.ACK:
                for name in operation.ids:
                    self._task(name, queue).acks.append(operation)
            case Op.NACK | Op.LEASE_END:
                for name in operation.ids:
                    self._task(name, queue).returns.append(operation)
            case Op.DISCONNECT:
                self._partings.setdefault(operation.process, _Events()).add(operation)
            case Op.LEAD:
                self._elections.add(operation)
            case Op.PURGE | Op.DELETE:
                self.clearings.setdefault(queue, []).append(operation)
            case Op.CREATE:
                pass  # its policy is for the bounds

    def _task(self, name: TaskName, queue: str) -> _Task:
        task = self.tasks.get(name)
        if task is None:
            task = self.tasks[name] = _Task(name, queue)
        return task

    def ends(self, task: _Task, start: float, end: float) -> list[Operation]:
        """Return what may have ended a lease of a task within a time, but for its acks and the end of its time."""
        found = [each for each in task.returns if each.returned >= start and each.t0 <= end]
        for process in {delivery.process for delivery in task.deliveries}:
            if process in self._partings:
                found += self._partings[process].within(start, end)
        return found + self._elections.within(start, end)

    def parted(self, process: Process, since: float) -> float:
        """Return when a process that was there at a time was surely gone, also by what nodes knew."""
        partings = self._partings.get(process)
        later = [] if partings is None else partings.within(since, math.inf)
        gone = min((parting.t1 for parting in later if parting.t0 >= since), default=math.inf)
        return gone + self.notice_time

    def may_be_cleared(self, task: _Task) -> bool:
        """Return whether a purge or a deletion may have removed the task."""
        assert task.enqueue is not None
        called = task.enqueue.t0
        return any(clear.returned >= called for clear in self.clearings.get(task.queue, ()))


def _called(operation: Operation) -> float:
    return operation.t0


class _Events:
    """Operations by time: most tasks see few of them, and asking all for each task would be slow."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._called: list[float] = []  # empty until somebody asks
        self._latest: list[float] = []  # the largest return so far, which is in order too

    def add(self, operation: Operation) -> None:
        self._operations.append(operation)

    def within(self, start: float, end: float) -> list[Operation]:
        """Return those whose window meets the time from ``start`` to ``end``, both included."""
        if not self._called:
            self._operations.sort(key=_called)
            self._called = [operation.t0 for operation in self._operations]
            self._latest = list(accumulate((o.returned for o in self._operations), max))
        first, stop = bisect_left(self._latest, start), bisect_right(self._called, end)
        return [each for each in self._operations[first:stop] if each.returned >= start]


# --- what is lost --------------------------------------------------------------------------------


def _is_proven(book: _Book, findings: Findings) -> bool:
    """Whether each queue was found empty after all that could have put tasks into it."""
    ends: dict[str, Operation] = {}
    for task in book.tasks.values():
        last = [task.enqueue] if task.enqueue is not None else []
        last += [nack for nack in task.returns if nack.op is Op.NACK]
        for operation in last:
            if operation.outcome is Outcome.OK:
                known = ends.setdefault(task.queue, operation)
                if operation.t1 > known.t1:
                    ends[task.queue] = operation
    is_proven = True
    for queue, end in ends.items():
        if not any(answer.t0 > end.t1 for answer in book.empty.get(queue, ())):
            text = f"queue {queue!r} was not found empty after {end}: what is lost cannot be told"
            findings.note(Kind.NOT_DRAINED, (end,), text)
            is_proven = False
    return is_proven


def _find_lost(book: _Book, findings: Findings) -> list[TaskName]:
    lost: list[TaskName] = []
    for name, task in book.tasks.items():
        enqueue = task.enqueue
        if enqueue is None:
            continue
        if not task.deliveries:
            if enqueue.outcome is not Outcome.OK or book.may_be_cleared(task):
                continue
            text = f"task {name!r} was acknowledged and never seen: {enqueue}"
            proof = [enqueue]
        else:
            back = None if task.acks else _came_back(book, task)
            if back is None or book.may_be_cleared(task):
                continue
            text = f"task {name!r} was handed back and never seen again: {back}"
            proof = [enqueue, task.deliveries[-1], back]
        lost.append(name)
        findings.note(Kind.LOST, proof, text)
    return lost


def _came_back(book: _Book, task: _Task) -> Operation | None:
    """Return what surely ended the last lease of a task that was never acknowledged, before the drain ended."""
    taken = max(delivery.t1 for delivery in task.deliveries)
    last = task.deliveries[-1]
    drained = max((answer.t0 for answer in book.empty.get(task.queue, ())), default=-math.inf)
    for end in book.ends(task, taken, drained):
        is_of_another = end.op in {Op.NACK, Op.DISCONNECT} and end.process != last.process
        if end.outcome is Outcome.OK and taken <= end.t0 and end.t1 < drained and not is_of_another:
            return end
    return None


# --- one task at a time --------------------------------------------------------------------------


def _judge_task(book: _Book, task: _Task, findings: Findings) -> bool:
    """Judge the deliveries of one task; return whether it was seen more often than it was handed back."""
    if not task.deliveries:
        return False
    acked = min((ack.t1 for ack in task.acks if ack.outcome is Outcome.OK), default=math.inf)
    if task.deliveries[-1].t0 > acked:
        late = task.deliveries[-1]
        proof = [late, *[ack for ack in task.acks if ack.t1 == acked]]
        text = f"task {task.name!r} was delivered by {late}, after its ack was answered"
        findings.note(Kind.DELIVERED_AFTER_ACK, proof, text)
    if len(task.deliveries) == 1:
        return False
    _judge_overlaps(task, findings)
    return _judge_redeliveries(book, task, findings)


def _judge_overlaps(task: _Task, findings: Findings) -> None:
    """A lease that was settled with success was alive: no other one can have begun since its delivery."""
    settled = [*task.acks, *[nack for nack in task.returns if nack.op is Op.NACK]]
    for settle in settled:
        if settle.outcome is not Outcome.OK:
            continue
        own = _own_delivery(task, settle)
        if own is None:
            continue
        for other in task.deliveries:
            if other is not own and own.t1 < other.t0 and other.t1 < settle.t0:
                text = f"task {task.name!r} was delivered by {other} while {own} still had it"
                findings.note(Kind.OVERLAPPING_LEASES, (other, own, settle), text)


def _own_delivery(task: _Task, settle: Operation) -> Operation | None:
    """Return the delivery that was settled: by its token, or the latest one to the same process."""
    token = _token(task.name, settle)
    found: Operation | None = None
    for delivery in task.deliveries:
        is_right = token is None or token == _token(task.name, delivery)
        if is_right and delivery.process == settle.process and delivery.t0 <= settle.t1:
            found = delivery
    return found


def _token(name: TaskName, operation: Operation) -> TaskName | None:
    return operation.tokens[operation.ids.index(name)] if operation.tokens else None


def _judge_redeliveries(book: _Book, task: _Task, findings: Findings) -> bool:
    """Give each redelivery a reason of its own; return whether there were not enough of them.

    Gaps are looked at in the order of their beginnings, and each takes the reason that ends first: no other choice can
    explain more of them.
    """
    last = max(delivery.t1 for delivery in task.deliveries)
    reasons = book.ends(task, task.deliveries[0].t0, last)
    reasons.sort(key=lambda end: end.returned)
    is_duplicated = False
    latest = -math.inf
    for before, after in zip(task.deliveries, task.deliveries[1:], strict=False):
        latest = max(latest, before.t1, after.t1)
        if latest >= before.t0 + book.lease_time:
            continue
        for number, reason in enumerate(reasons):
            if reason.returned >= before.t0 and reason.t0 <= latest:
                del reasons[number]
                break
        else:
            is_duplicated = True
            text = f"task {task.name!r} was delivered by {after}, and nothing had ended the lease of {before}"
            findings.note(Kind.REDELIVERED_WITHOUT_REASON, (after, before), text)
    return is_duplicated


# --- order per producer --------------------------------------------------------------------------


def _judge_producers(book: _Book, findings: Findings) -> None:
    """Tasks of one producer and key are first delivered in the order in which they were enqueued."""
    groups: dict[tuple[str, int, Process], list[_Task]] = {}
    for task in book.tasks.values():
        enqueue = task.enqueue
        if enqueue is not None and task.deliveries:
            producer = enqueue.process if enqueue.producer is None else enqueue.producer
            groups.setdefault((task.queue, task.key, producer), []).append(task)
    holds = {queue: _Holds(book, found) for queue, found in book.unanswered.items()}
    for (queue, _, _), tasks in groups.items():
        if len(tasks) > 1:
            _judge_order(tasks, holds.get(queue), findings)


class _Holds:
    """When tasks may have been out with consumers who were never told: such a task is seen later than its turn."""

    def __init__(self, book: _Book, unanswered: Iterable[Operation]) -> None:
        self._windows = [(each.t0, book.parted(each.process, each.t0)) for each in unanswered]

    def meet(self, operation: Operation) -> bool:
        """Return whether a task may have been out at some moment of an operation."""
        return any(start <= operation.t1 and end >= operation.t0 for start, end in self._windows)


def _judge_order(tasks: list[_Task], holds: _Holds | None, findings: Findings) -> None:
    enqueued = [(task.enqueue, task) for task in tasks if task.enqueue is not None]
    by_return = sorted(enqueued, key=lambda pair: pair[0].returned)
    worst: _Task | None = None
    worst_called = -math.inf
    seen = 0
    for enqueue, task in sorted(enqueued, key=lambda pair: pair[0].t0):
        while by_return[seen][0].returned < enqueue.t0:
            called = by_return[seen][1].deliveries[0].t0
            if called > worst_called:
                worst, worst_called = by_return[seen][1], called
            seen += 1
        first = task.deliveries[0]
        if first.t1 < worst_called and worst is not None:
            if holds is not None and holds.meet(first):
                continue
            text = f"task {task.name!r} was delivered before {worst.name!r}, which the same producer had enqueued before"
            findings.note(Kind.PRODUCER_ORDER, (first, worst.deliveries[0], enqueue), text)
