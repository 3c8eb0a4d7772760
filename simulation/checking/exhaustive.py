"""The judge of the judges: tries every order that real time allows (Wing and Gong).

Exact for every operation that the model knows, and exponential: for histories of about a dozen operations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from penstock.errors import InvalidValue
from simulation.checking.history import Operation, Outcome
from simulation.checking.model import Model

OPERATIONS_MAX: Final = 24
"""Beyond this even a quiet history may take hours."""


def is_linearizable(history: Sequence[Operation], model: Model | None = None) -> bool:
    """Return whether some order explains every answer: real time kept, the model's answers given.

    An operation of unknown outcome may take effect at any time after its call, or never. Raises ``InvalidValue``
    for a history that is too long to try.
    """
    if len(history) > OPERATIONS_MAX:
        raise InvalidValue(
            f"{len(history)} operations are too many to try every order; at most {OPERATIONS_MAX}"
        )
    return _Search(history).succeeds(frozenset(range(len(history))), model or Model())


class _Search:
    """A walk over what was done so far; a state that led nowhere is not entered again."""

    def __init__(self, history: Sequence[Operation]) -> None:
        self._history = history
        self._failed: set[tuple[frozenset[int], Hashable]] = set()

    def succeeds(self, left: frozenset[int], model: Model) -> bool:
        """Return whether what is left can be done from here."""
        history = self._history
        answered = [history[i].t1 for i in left if history[i].outcome is not Outcome.UNKNOWN]
        if not answered:
            return True
        state = (left, model.state())
        if state in self._failed:
            return False
        # What was called after another one returned cannot come before it.
        end = min(answered)
        for number in left:
            if history[number].t0 <= end:
                after = model.copy()
                if after.apply(history[number]) is None and self.succeeds(left - {number}, after):
                    return True
        self._failed.add(state)
        return False
