"""The frames of one ``enqueue_many``: those to come, and those in flight. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from penstock.client.batches import WINDOW_MAX, Batch
from penstock.client.effects import Ticket
from penstock.errors import ConnectionLost, InvalidValue, PenstockError, PolicyViolated
from penstock.protocol.version2 import Enqueue


class Batches:
    """The frames of an ``enqueue_many``, until the first problem, which is kept as ``error``.

    What was sent before it is in flight and has to be answered before the caller hears of the problem.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self.batch: Batch = ([], [])
        self.error: PenstockError | None = None

    def advance(self) -> bool:
        """Go to the next frame, if there is one."""
        if self.error is not None:
            return False
        try:
            self.batch = next(self._batches, ([], []))
        except (InvalidValue, PolicyViolated) as error:
            self.error = error
            return False
        return bool(self.batch[1])

    def end(self, error: PenstockError | None) -> None:
        self.error = self.error or error


class Window:
    """The frames of an ``enqueue_many`` that are in flight, oldest first.

    All of them on one connection: were a younger frame sent on a new connection while an older one got
    lost with the old, its tasks would overtake.
    """

    def __init__(self) -> None:
        self.requests: deque[Enqueue] = deque()
        self._tickets: deque[Ticket | None] = deque()
        # Why nobody knows whether the frame that was added last has reached the node; no other follows it.
        self.lost: ConnectionLost | None = None

    @property
    def has_room(self) -> bool:
        return not self.requests or (
            len(self.requests) < WINDOW_MAX and self._tickets[-1] is not None
        )

    @property
    def connection(self) -> int | None:
        """The only connection for the frame that was added last; ``None`` if any will do."""
        first = self._tickets[0]
        return None if first is None else first.connection

    def add(self, request: Enqueue) -> None:
        self.requests.append(request)
        self._tickets.append(None)

    def ticket(self, ticket: Ticket | None) -> None:
        """Note that the frame that was added last is on its way, or was not sent at all."""
        self._tickets[-1] = ticket

    @property
    def oldest(self) -> tuple[Enqueue, Ticket | None]:
        return self.requests[0], self._tickets[0]

    def remove_oldest(self) -> Enqueue:
        self._tickets.popleft()
        self.lost = None
        return self.requests.popleft()

    def abandon(self) -> list[Enqueue]:
        """Give up what is in flight, and return it."""
        for ticket in self._tickets:
            if ticket is not None:
                ticket.abandon()
        return list(self.requests)
