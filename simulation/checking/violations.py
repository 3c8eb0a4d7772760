"""What a check finds: a kind, the operations that prove it, and a sentence for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from simulation.checking.history import Operation

VIOLATIONS_MAX: Final = 20
"""One bug can break every operation behind it; nobody reads more than the first few."""

PROOF_MAX: Final = 20
"""Operations that a violation shows at most."""


class Kind(StrEnum):
    # The priority queue.
    DUPLICATE = "duplicate"
    FROM_NOWHERE = "from-nowhere"
    DELIVERED_TWICE = "delivered-twice"
    DELIVERED_BEFORE_ENQUEUED = "delivered-before-enqueued"
    PRIORITY_INVERSION = "priority-inversion"
    FIFO = "fifo"
    FALSE_EMPTY = "false-empty"
    # The witness.
    WRONG_ANSWER = "wrong-answer"
    REAL_TIME = "real-time"
    TERM_FELL = "term-fell"
    NOT_IN_LOG = "not-in-log"
    # Delivery at least once.
    LOST = "lost"
    UNEXPECTED = "unexpected"
    NOT_DRAINED = "not-drained"
    DELIVERED_AFTER_ACK = "delivered-after-ack"
    OVERLAPPING_LEASES = "overlapping-leases"
    REDELIVERED_WITHOUT_REASON = "redelivered-without-reason"
    PRODUCER_ORDER = "producer-order"
    OVER_LIMIT = "over-limit"
    FALSE_FULL = "false-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    kind: Kind
    operations: tuple[Operation, ...]  # those that prove it, the accused one first
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


class Findings:
    """Violations as they are found; behind the first few they are dropped."""

    def __init__(self, limit: int = VIOLATIONS_MAX) -> None:
        self._limit = limit
        self._found: list[Violation] = []

    @property
    def is_full(self) -> bool:
        """Whether further ones are dropped; whoever would have to search for a proof need not."""
        return len(self._found) >= self._limit

    def note(self, kind: Kind, operations: Iterable[Operation], sentence: str) -> None:
        if not self.is_full:
            shown = tuple(dict.fromkeys(operations))[:PROOF_MAX]
            self._found.append(Violation(kind=kind, operations=shown, sentence=sentence))

    def all(self) -> tuple[Violation, ...]:
        return tuple(self._found)
