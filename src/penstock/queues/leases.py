"""Leases: which tasks are out, to whom, until when. The leader's own; nothing of it is logged.

A lease is known by its token, which no other lease ever has: an ack that carries it proves that the task
is still the bearer's. Tasks are handed out in batches with consecutive tokens and one deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.queues.deadlines import Deadlines
from penstock.queues.queue import Queue

_TERM_SHIFT: Final = 40
_TERM_MASK: Final = 2**23 - 1


class Owner:
    """Who holds leases: a connection. It may be a subclass; the batches are kept here."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: dict[
            int, Batch
        ] = {}  # by first token; only those that still have open leases


class Batch:
    """Leases given at one time to one owner."""

    __slots__ = ("count", "deadline_ms", "first", "open", "owner", "queue", "subscription")

    def __init__(
        self,
        queue: Queue,
        owner: Owner,
        subscription: object,
        *,
        first: int,
        count: int,
        deadline_ms: int,
    ) -> None:
        self.queue = queue
        self.owner = owner
        self.subscription = subscription  # whose window the tasks take up; None: nobody's
        self.first = first
        self.count = count
        self.open = count
        self.deadline_ms = deadline_ms


class Lease(NamedTuple):
    """One task out on lease."""

    batch: Batch
    id: int


class Leases:
    """All leases that a leader has given."""

    __slots__ = ("_batches", "_by_token", "_deadlines", "_extended", "_next")

    def __init__(self, term: int) -> None:
        """Begin in a term: its number makes tokens unlike those of every leader before."""
        self._next = ((term & _TERM_MASK) << _TERM_SHIFT) + 1
        self._by_token: dict[int, Lease] = {}
        self._batches: dict[int, Batch] = {}  # by first token
        self._deadlines = Deadlines()  # of batches, by first token
        self._extended = Deadlines()  # of single leases, by token

    def __len__(self) -> int:
        return len(self._by_token)

    def grant(
        self,
        queue: Queue,
        ids: Sequence[int],
        owner: Owner,
        subscription: object,
        *,
        deadline_ms: int,
    ) -> int:
        """Lease tasks to an owner and return the first token; the rest follow without a gap."""
        first, count = self._next, len(ids)
        self._next += count
        batch = Batch(queue, owner, subscription, first=first, count=count, deadline_ms=deadline_ms)
        self._by_token.update(
            zip(range(first, first + count), map(Lease, [batch] * count, ids), strict=True)
        )
        self._batches[first] = owner.batches[first] = batch
        self._deadlines.set(first, deadline_ms)
        return first

    def settle(self, tokens: Sequence[int]) -> tuple[list[Lease], list[int]]:
        """End leases by their tokens; return them, and the tokens that name no lease any more."""
        ended: list[Lease] = []
        lost: list[int] = []
        pop = self._by_token.pop
        for token in tokens:
            lease = pop(token, None)
            if lease is None:
                lost.append(token)
                continue
            ended.append(lease)
            batch = lease.batch
            batch.open -= 1
            if not batch.open:
                self._forget(batch)
        if len(self._extended):
            for token in tokens:
                self._extended.discard(token)
        return ended, lost

    def _forget(self, batch: Batch) -> None:
        del self._batches[batch.first]
        batch.owner.batches.pop(batch.first, None)
        self._deadlines.discard(batch.first)

    def extend(self, tokens: Iterable[int], *, deadline_ms: int) -> list[int]:
        """Give leases a new deadline; return the tokens that name no lease any more."""
        lost: list[int] = []
        for token in tokens:
            if token in self._by_token:
                self._extended.set(token, deadline_ms)
            else:
                lost.append(token)
        return lost

    def get(self, token: int) -> Lease | None:
        return self._by_token.get(token)

    def end_all_of(self, owner: Owner) -> list[Lease]:
        """End the leases of an owner that is gone, and return them."""
        tokens = [
            token for batch in list(owner.batches.values()) for token in self._open_tokens(batch)
        ]
        return self.settle(tokens)[0]

    def _open_tokens(self, batch: Batch) -> list[int]:
        tokens = range(batch.first, batch.first + batch.count)
        return [token for token in tokens if token in self._by_token]

    def expire(self, now_ms: int) -> list[Lease]:
        """End the leases whose time has come, and return them."""
        tokens: list[int] = []
        for first in self._deadlines.take_due(now_ms):
            open_tokens = self._open_tokens(self._batches[first])
            tokens += [token for token in open_tokens if token not in self._extended]
        tokens += self._extended.take_due(now_ms)
        return self.settle(tokens)[0]

    def next_deadline(self) -> int | None:
        """Return when the next lease ends, or ``None`` if none is out."""
        times = [t for t in (self._deadlines.next(), self._extended.next()) if t is not None]
        return min(times, default=None)

    def drop_queue(self, queue: Queue) -> None:
        """End all leases on a queue that was deleted; their tasks are gone."""
        batches = [batch for batch in self._batches.values() if batch.queue is queue]
        self.settle([token for batch in batches for token in self._open_tokens(batch)])
