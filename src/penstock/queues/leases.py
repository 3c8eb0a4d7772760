"""Leases: which tasks are out, to whom, until when. The leader's own; nothing of it is logged.

A lease is known by its token, which no other lease ever has: an ack that carries it proves that the task
is still the bearer's. Tasks are handed out in batches with consecutive tokens and one deadline, and
a batch is kept as one thing: most are settled whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.queues.deadlines import Deadlines
from penstock.queues.queue import Queue

_TERM_SHIFT: Final = 40
_TERM_MASK: Final = 2**23 - 1
_ENDED_MIN: Final = (
    1024  # batches that have ended and are still listed, before the list is made anew
)


class Owner:
    """Who holds leases: a connection. It may be a subclass; the batches are kept here."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: dict[
            int, Batch
        ] = {}  # by first token; only those that still have open leases


class Batch:
    """Leases given at one time to one owner: the task of token ``first + i`` is ``ids[i]``."""

    __slots__ = (
        "_ended",
        "acked",
        "first",
        "ids",
        "open",
        "owner",
        "queue",
        "started",
        "subscription",
    )

    def __init__(
        self, queue: Queue, ids: Sequence[int], owner: Owner, subscription: object, first: int
    ) -> None:
        self.queue = queue
        self.ids = ids
        self.owner = owner
        self.subscription = subscription  # whose window the tasks take up; None: nobody's
        self.first = first
        self.open = len(ids)
        self._ended: set[int] = set()  # places of leases that have ended, while others have not
        # Ids of tasks that user code received; None: all of them, because they were not prefetched.
        self.started: set[int] | None = None if subscription is None else set()
        self.acked: set[int] = set()  # ids of tasks whose ack was announced and has not come yet

    def is_open(self, token: int) -> bool:
        return token - self.first not in self._ended

    def open_tokens(self) -> list[int]:
        tokens = range(self.first, self.first + len(self.ids))
        if not self._ended:
            return list(tokens)
        return [token for token in tokens if token - self.first not in self._ended]

    def pending_tokens(self) -> list[int]:
        """Return the tokens of open leases without an announced ack: those that a deadline ends."""
        if not self.acked:
            return self.open_tokens()
        ids, acked, first = self.ids, self.acked, self.first
        return [token for token in self.open_tokens() if ids[token - first] not in acked]

    def released_tokens(self) -> list[int]:
        """Return the tokens of open leases whose tasks were not started."""
        started, ids, first = self.started, self.ids, self.first
        if started is None:
            return []
        return [token for token in self.open_tokens() if ids[token - first] not in started]

    def end(self, token: int) -> int:
        """End one lease that is open, and return its task's id."""
        self._ended.add(token - self.first)
        self.open -= 1
        return self.ids[token - self.first]


class Ended(NamedTuple):
    """Tasks of one batch whose leases have ended."""

    batch: Batch
    ids: Sequence[int]

    @property
    def queue(self) -> Queue:
        return self.batch.queue

    def split(self) -> tuple[Ended, Ended, Ended]:
        """Return what is acked, what counts an attempt, and what is released, each maybe of no task."""
        batch, ids = self
        acked = batch.acked
        done = [task_id for task_id in ids if task_id in acked]
        if done:
            ids = [task_id for task_id in ids if task_id not in acked]
        started = batch.started
        if started is None:
            return Ended(batch, done), Ended(batch, ids), Ended(batch, ())
        attempted = [task_id for task_id in ids if task_id in started]
        released = [task_id for task_id in ids if task_id not in started]
        return Ended(batch, done), Ended(batch, attempted), Ended(batch, released)


class Leases:
    """All leases that a leader has given."""

    __slots__ = ("_batches", "_count", "_deadlines", "_extended", "_firsts", "_next")

    def __init__(self, term: int) -> None:
        """Begin in a term: its number makes tokens unlike those of every leader before."""
        self._next = ((term & _TERM_MASK) << _TERM_SHIFT) + 1
        self._count = 0
        self._batches: dict[int, Batch] = {}  # by first token
        self._firsts: list[int] = []  # first tokens in growing order; ended batches may be listed
        self._deadlines = Deadlines()  # of batches, by first token
        self._extended = Deadlines()  # of single leases, by token

    def __len__(self) -> int:
        return self._count

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
        first = self._next
        self._next += len(ids)
        self._count += len(ids)
        batch = Batch(queue, ids, owner, subscription, first)
        self._batches[first] = owner.batches[first] = batch
        self._firsts.append(first)
        self._deadlines.set(first, deadline_ms)
        return first

    def find(self, token: int, owner: Owner | None = None) -> Batch | None:
        """Return the batch of a lease that is open, and the owner's if one is given, or ``None``."""
        place = bisect_right(self._firsts, token) - 1
        batch = self._batches.get(self._firsts[place]) if place >= 0 else None
        if batch is None or token >= batch.first + len(batch.ids) or not batch.is_open(token):
            return None
        return batch if owner is None or batch.owner is owner else None

    def start(self, tokens: Sequence[int], acked: Sequence[int], owner: Owner) -> None:
        """Note which tasks user code received, and which acks are announced; other tokens mean nothing."""
        for token in tokens:
            batch = self.find(token, owner)
            if batch is not None and batch.started is not None:
                batch.started.add(batch.ids[token - batch.first])
        for token in acked:
            batch = self.find(token, owner)
            if batch is not None:
                batch.acked.add(batch.ids[token - batch.first])

    def settle(
        self, tokens: Sequence[int], owner: Owner | None = None
    ) -> tuple[list[Ended], list[int]]:
        """End leases by their tokens; return them, and the tokens that name no lease any more.

        A token of somebody else's lease, where an owner is given, names none.
        """
        ended: list[Ended] = []
        lost: list[int] = []
        place, count = 0, len(tokens)
        while place < count:
            token = tokens[place]
            batch = self.find(token, owner)
            if batch is None:
                lost.append(token)
                place += 1
                continue
            size = len(batch.ids)
            whole = range(token, token + size)
            is_start = token == batch.first and batch.open == size
            if is_start and tuple(tokens[place : place + size]) == tuple(whole):
                batch.open = 0
                ended.append(Ended(batch, batch.ids))
                self._drop_extensions(whole)
                place += size
            else:
                ended.append(Ended(batch, [batch.end(token)]))
                self._drop_extensions((token,))
                place += 1
            self._count -= len(ended[-1].ids)
            if not batch.open:
                self._forget(batch)
        return ended, lost

    def _drop_extensions(self, tokens: Iterable[int]) -> None:
        if len(self._extended):
            for token in tokens:
                self._extended.discard(token)

    def _forget(self, batch: Batch) -> None:
        del self._batches[batch.first]
        batch.owner.batches.pop(batch.first, None)
        self._deadlines.discard(batch.first)
        if len(self._firsts) > 2 * len(self._batches) + _ENDED_MIN:
            self._firsts = list(self._batches)

    def extend(self, tokens: Iterable[int], *, deadline_ms: int) -> list[int]:
        """Give leases a new deadline; return the tokens that name no lease any more."""
        lost: list[int] = []
        for token in tokens:
            if self.find(token) is None:
                lost.append(token)
            else:
                self._extended.set(token, deadline_ms)
        return lost

    def end_all_of(self, owner: Owner) -> list[Ended]:
        """End the leases of an owner that is gone, and return them."""
        batches = list(owner.batches.values())
        return self.settle([token for batch in batches for token in batch.open_tokens()])[0]

    def expire(self, now_ms: int) -> list[Ended]:
        """End the leases whose time has come, and return them.

        A lease whose ack was announced does not end by its deadline: user code is done with the task.
        """
        tokens: list[int] = []
        for first in self._deadlines.take_due(now_ms):
            pending = self._batches[first].pending_tokens()
            tokens += [token for token in pending if token not in self._extended]
        for token in self._extended.take_due(now_ms):
            batch = self.find(token)
            assert batch is not None, "an extension ends with its lease"
            if batch.ids[token - batch.first] not in batch.acked:
                tokens.append(token)
        return self.settle(tokens)[0]

    def end_released_of(self, owner: Owner, subscription: object) -> list[Ended]:
        """End the leases of a subscription whose tasks were not started, and return them."""
        batches = [each for each in owner.batches.values() if each.subscription is subscription]
        return self.settle([token for batch in batches for token in batch.released_tokens()])[0]

    def next_deadline(self) -> int | None:
        """Return when the next lease ends, or ``None`` if none is out."""
        times = [t for t in (self._deadlines.next(), self._extended.next()) if t is not None]
        return min(times, default=None)

    def drop_all(self) -> None:
        """Forget every lease: another leads."""
        for batch in self._batches.values():
            batch.owner.batches.clear()
        self._batches.clear()

    def drop_queue(self, queue: Queue) -> list[Ended]:
        """End all leases on a queue that was deleted, and return them; their tasks are gone."""
        batches = [batch for batch in self._batches.values() if batch.queue is queue]
        return self.settle([token for batch in batches for token in batch.open_tokens()])[0]
