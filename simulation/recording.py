"""What clients of a simulated world asked and were told, as ``simulation.checking`` reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from simulation.checking.history import Op, Operation, Outcome
from simulation.clock import Timeline
from simulation.witnessing import Request, Witness


@dataclass(slots=True)
class Call:
    """A request that was not answered yet."""

    process: str
    op: Op
    queue: str
    t0: int
    request: Request | None
    fields: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Gathers the history of a world."""

    def __init__(self, timeline: Timeline, witness: Witness) -> None:
        self._timeline = timeline
        self._witness = witness
        self._open: dict[int, Call] = {}
        self._next = 1
        self.operations: list[Operation] = []
        self.outcomes = dict.fromkeys(Outcome, 0)

    def call(
        self,
        process: str,
        op: Op,
        queue: str = "",
        *,
        request: Request | None = None,
        **fields: Any,
    ) -> int:
        """Note that something is asked, and on which request; return the number by which ``settle`` knows it."""
        self._open[self._next] = Call(process, op, queue, self._timeline.now, request, fields)
        self._next += 1
        return self._next - 1

    def settle(self, number: int, outcome: Outcome, **fields: Any) -> None:
        """Note how it ended. One that has ended before stays as it was."""
        call = self._open.pop(number, None)
        if call is not None:
            self._add(call, outcome, self._timeline.now, fields)

    def happen(self, process: str, op: Op, *, since: int | None = None) -> None:
        """Note something that befell a client without being asked for, at some time ``since``, by now."""
        number = self.call(process, op)
        if since is not None:
            self._open[number].t0 = since
        self.settle(number, Outcome.OK)

    def finish(self) -> list[Operation]:
        """Return the history; what is still open is of unknown outcome."""
        for call in self._open.values():
            self._add(call, Outcome.UNKNOWN, math.inf, {})
        self._open.clear()
        return self.operations

    def _add(self, call: Call, outcome: Outcome, t1: float, fields: dict[str, Any]) -> None:
        self.outcomes[outcome] += 1
        operation = Operation(
            process=call.process,
            op=call.op,
            queue=call.queue,
            t0=call.t0,
            t1=t1,
            outcome=outcome,
            **(call.fields | fields),
        )
        self.operations.append(operation)
        if call.request is not None:
            self._witness.note_operation(operation, call.request)
