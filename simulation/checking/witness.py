"""The exact check: every answer says at which entry of the log it took effect, and is judged there.

White box: it believes the places that answers carry, and then proves them. Sorted by place and replayed through the
model, every answer must be the model's; and no operation may have been called after one of a later place had
returned. A history that passes is linearizable, whatever the operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.errors import InvalidValue
from simulation.checking.history import Op, Operation, Outcome, TaskName
from simulation.checking.model import Model
from simulation.checking.pausing import collector_paused
from simulation.checking.violations import VIOLATIONS_MAX, Findings, Kind, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What the committed log says of an operation, or of the part of it that was committed."""

    index: int
    term: int
    step: int = 0
    ids: tuple[TaskName, ...]  # the tasks concerned; none for operations that name no tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One committed entry, read as an operation; ``op`` is ``None`` for an entry that changes no queue."""

    index: int
    term: int
    op: Op | None = None
    queue: str = ""
    ids: tuple[TaskName, ...] = ()


Lookup = Callable[[Operation], Sequence[Effect]]
"""Where an operation of unknown outcome took effect: nowhere, at one entry, or in parts at several."""

Committed = Sequence[LogEntry] | Lookup

_NAMING: Final = frozenset({Op.ENQUEUE, Op.DEQUEUE, Op.ACK, Op.NACK})

_COLUMNS: Final = ("keys", "sizes", "numbers", "tokens")


@collector_paused()
def check(
    history: Iterable[Operation],
    *,
    committed: Committed = (),
    model: Model | None = None,
    violations_max: int = VIOLATIONS_MAX,
) -> tuple[Violation, ...]:
    """Return what is wrong with a history whose answers carry index and term.

    ``committed`` says which operations of unknown outcome took effect: the entries of the log, or a function. With
    entries given, every answer must also name one of them by index and term. A dequeue is in no log: only a function
    can know what one of unknown outcome took. ``model`` is what there was before; it is changed. Raises
    ``InvalidValue`` if an answer has no place, or two enqueues the same task.
    """
    findings = Findings(violations_max)
    history = list(history)
    log = None if callable(committed) or not committed else _Log(committed, history)
    lookup = committed if callable(committed) else (log.find if log is not None else _nowhere)
    _refuse_duplicates(history)
    placed = _placed(history, lookup)
    placed.sort(key=_order)
    if log is not None:
        _judge_places(placed, log, findings)
    _judge_real_time(placed, findings)
    _replay(placed, model or Model(), findings)
    return findings.all()


def _nowhere(_: Operation) -> Sequence[Effect]:
    return ()


_Sought = tuple[Op, str, TaskName | None]


class _Log:
    """The committed entries: their terms, and those that may be what got no answer."""

    def __init__(self, entries: Iterable[LogEntry], history: Iterable[Operation]) -> None:
        self.terms: dict[int, int] = {}
        self._found: dict[_Sought, list[LogEntry]] = {
            sought: []
            for operation in history
            if operation.outcome is Outcome.UNKNOWN
            for sought in _sought(operation)
        }
        for entry in entries:
            if self.terms.setdefault(entry.index, entry.term) != entry.term:
                raise InvalidValue(f"the committed log has two entries of index {entry.index}")
            if entry.op is None:
                continue
            for name in entry.ids or (None,):
                if (found := self._found.get((entry.op, entry.queue, name))) is not None:
                    found.append(entry)
        # What somebody was told of is not what another, who was told nothing, did.
        self._claimed = {
            (sought, operation.index)
            for operation in history
            if operation.outcome is Outcome.OK
            for sought in _sought(operation)
            if sought in self._found
        }

    def find(self, operation: Operation) -> Sequence[Effect]:
        parts: dict[int, tuple[LogEntry, list[TaskName]]] = {}
        for name in operation.ids or (None,):
            entry = self._entry(operation, name)
            if entry is not None:
                names = parts.setdefault(entry.index, (entry, []))[1]
                if name is not None:
                    names.append(name)
        return [
            Effect(index=entry.index, term=entry.term, ids=tuple(names))
            for entry, names in parts.values()
        ]

    def _entry(self, operation: Operation, name: TaskName | None) -> LogEntry | None:
        sought = (operation.op, operation.queue, name)
        free = [e for e in self._found[sought] if (sought, e.index) not in self._claimed]
        if len(free) > 1:
            raise InvalidValue(
                f"the log has {len(free)} entries that could be {operation}; give a function in place of entries"
            )
        return free[0] if free else None


def _sought(operation: Operation) -> list[_Sought]:
    return [(operation.op, operation.queue, name) for name in operation.ids or (None,)]


def _refuse_duplicates(history: Iterable[Operation]) -> None:
    """Names must be unique, or nobody could tell two tasks apart; a producer's repetition is the same task."""
    enqueued: dict[TaskName, Operation] = {}
    for operation in history:
        if operation.op is not Op.ENQUEUE or operation.outcome is Outcome.FAIL:
            continue
        for name in operation.ids:
            first = enqueued.setdefault(name, operation)
            is_repetition = first.producer is not None and (
                (first.producer, first.sequence) == (operation.producer, operation.sequence)
            )
            if first is not operation and not is_repetition:
                raise InvalidValue(f"two tasks bear the id {name!r}: {first} and {operation}")


def _placed(history: Iterable[Operation], lookup: Lookup) -> list[Operation]:
    """Return what took effect, or was refused, at a known place."""
    placed: list[Operation] = []
    for operation in history:
        if operation.outcome is Outcome.UNKNOWN:
            placed += [
                _part(operation, effect)
                for effect in lookup(operation)
                if effect.ids or operation.op not in _NAMING
            ]
        elif operation.index is not None and operation.term is not None:
            placed.append(operation)
        elif operation.outcome is Outcome.OK:
            raise InvalidValue(f"the answer to {operation} carries no index and term")
    return placed


def _part(operation: Operation, effect: Effect) -> Operation:
    """Return the part of an operation of unknown outcome that took effect."""
    columns: dict[str, Any] = {"ids": effect.ids}
    # What a dequeue took was decided by the node; any other operation named its tasks itself.
    kept = [number for number, name in enumerate(operation.ids) if name in effect.ids]
    for name in _COLUMNS:
        column = getattr(operation, name)
        columns[name] = tuple([column[number] for number in kept]) if column else ()
    return replace(operation, index=effect.index, term=effect.term, step=effect.step, **columns)


def _order(operation: Operation) -> tuple[int, int, int, int, int, float]:
    """Order by place. Where several rest on one entry and no step tells them apart, the queue's order does.

    Between two entries tasks are only taken: by key, then by number; empty answers come last.
    """
    assert operation.index is not None
    if operation.op is not Op.DEQUEUE:
        return operation.index, operation.step, 0, 0, 0, operation.t0
    if not operation.ids:
        return operation.index, operation.step, 2, 0, 0, operation.t0
    key = operation.keys[0] if operation.keys else 0
    number = operation.numbers[0] if operation.numbers else 0
    return operation.index, operation.step, 1, key, number, operation.t0


def _judge_places(placed: Iterable[Operation], log: _Log, findings: Findings) -> None:
    for operation in placed:
        assert operation.index is not None
        term = log.terms.get(operation.index)
        if term != operation.term:
            found = "has no such entry" if term is None else f"has an entry of term {term} there"
            text = f"{operation} was answered in term {operation.term}; the committed log {found}"
            findings.note(Kind.NOT_IN_LOG, (operation,), text)


def _judge_real_time(placed: Sequence[Operation], findings: Findings) -> None:
    """Walk downward with the smallest return seen: nothing may be called after a later one returned."""
    earliest: Operation | None = None
    returned = math.inf
    for operation in reversed(placed):
        if operation.t0 > returned:
            assert earliest is not None
            text = (
                f"{operation} was called after {earliest} had returned, and took effect before it"
            )
            findings.note(Kind.REAL_TIME, (operation, earliest), text)
        if operation.returned < returned:
            earliest, returned = operation, operation.returned


def _replay(placed: Iterable[Operation], model: Model, findings: Findings) -> None:
    before: Operation | None = None
    term = 0
    for operation in placed:
        assert operation.term is not None
        if operation.term != term:
            if operation.term < term and before is not None:
                text = f"{operation} is of term {operation.term}, and {before} of term {term}"
                findings.note(Kind.TERM_FELL, (operation, before), text)
            model.end_all_leases()  # leases are the leader's own, and end with its term
            term = operation.term
        complaint = model.apply(operation)
        if complaint is not None:
            findings.note(Kind.WRONG_ANSWER, (operation,), f"{operation}: {complaint}")
            if findings.is_full:
                return
        before = operation
