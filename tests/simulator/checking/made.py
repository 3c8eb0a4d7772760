"""Operations in few words, for tests of the checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from simulation.checking.history import Op, Operation, Outcome, TaskName
from simulation.checking.violations import Kind, Violation


def enq(name: TaskName, key: int, t0: float, t1: float, **fields: Any) -> Operation:
    fields.setdefault("process", "p")
    return Operation(op=Op.ENQUEUE, ids=(name,), keys=(key,), t0=t0, t1=t1, **fields)


def deq(name: TaskName | None, t0: float, t1: float, **fields: Any) -> Operation:
    fields.setdefault("process", "c")
    ids = () if name is None else (name,)
    return Operation(op=Op.DEQUEUE, ids=ids, t0=t0, t1=t1, **fields)


def settle(op: Op, name: TaskName, t0: float, t1: float, **fields: Any) -> Operation:
    fields.setdefault("process", "c")
    return Operation(op=op, ids=(name,), t0=t0, t1=t1, **fields)


def event(op: Op, t0: float, t1: float, **fields: Any) -> Operation:
    fields.setdefault("process", "node")
    return Operation(op=op, t0=t0, t1=t1, **fields)


def unknown(operation: Operation) -> Operation:
    return replace(operation, outcome=Outcome.UNKNOWN)


def kinds(violations: Iterable[Violation]) -> list[Kind]:
    return [violation.kind for violation in violations]
