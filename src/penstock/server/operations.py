"""What entries do once they are committed: change the state, move the leader's own books, tell the caller.

The leader applies its own operations without decoding what it encoded itself; ``rebuild.Replay`` does the same
from the bytes. That both come to the same state is held by tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.model import NO_TERMS, Policy, QueueName, QueueOptions, Terms
from penstock.protocol.version2 import Answer, Enqueued, Failed, Ok, Outcome, Purged, Run, Settled
from penstock.queues.queue import Queue
from penstock.queues.state import State

if TYPE_CHECKING:
    from penstock.protocol.version2.requests import Singles
    from penstock.server.books import Books
    from penstock.server.broker import Broker
    from penstock.server.caller import Caller, SinglesCaller

OK = Ok()
SETTLED = Settled()


class Add:
    """Tasks come into a queue."""

    __slots__ = ("_answer", "_broker", "_keys", "_payloads", "_terms", "first", "queue", "waiting")

    def __init__(
        self,
        broker: Books,
        queue: Queue,
        keys: Sequence[int],
        payloads: Sequence[bytes],
        terms: Terms,
        caller: Caller | None,
        number: int,
    ) -> None:
        self._broker = broker
        self.queue = queue
        self._keys = keys
        self._payloads = payloads
        self._terms = terms
        self.first = 0
        # Whoever asked, and whoever asked again before the first answer.
        self.waiting: list[tuple[Caller, int]] = [] if caller is None else [(caller, number)]
        queue.proposed += len(keys)

    @property
    def total(self) -> int:
        """Tasks of the producer's whole request."""
        return self._terms.total

    def apply(self, state: State) -> None:
        count = len(self._keys)
        self.queue.proposed -= count
        self.first = state.add(self.queue, self._keys, self._payloads, self._terms)
        terms = self._terms
        if terms.producer is None:
            self._answer = Enqueued((Run(Outcome.ACCEPTED, count, self.first),))
        else:
            # Now: a request may be forgotten again by the end of a batch with thousands of them.
            self._answer = self._broker.finish_produced(terms.producer, terms.sequence)
        self._broker.note_added(self.queue, count, terms)

    def tell(self) -> None:
        for caller, number in self.waiting:
            caller.answer(number, self._answer)

    def lose(self, failed: Failed) -> None:
        for caller, number in self.waiting:
            caller.answer(number, failed)


class AddEach:
    """Tasks come into a queue, each by a request of its own, of whichever caller."""

    __slots__ = ("_asked", "_broker", "_first", "_keys", "_payloads", "queue")

    def __init__(self, broker: Books, queue: Queue) -> None:
        self._broker = broker
        self.queue = queue
        self._asked: list[tuple[SinglesCaller, Sequence[int]]] = []  # requests in order, by caller
        self._keys: list[int] = []
        self._payloads: list[bytes] = []
        self._first = 0

    def add(self, caller: SinglesCaller, singles: Singles) -> None:
        """Take more requests in, as long as nothing of the operation is on its way to the disk."""
        self._asked.append((caller, singles.numbers))
        self._keys += singles.keys
        self._payloads += singles.payloads
        self.queue.proposed += len(singles.keys)

    def apply(self, state: State) -> None:
        count = len(self._keys)
        self.queue.proposed -= count
        self._first = state.add(self.queue, self._keys, self._payloads)
        self._broker.note_added(self.queue, count, NO_TERMS)

    def tell(self) -> None:
        first = self._first
        for caller, numbers in self._asked:
            caller.answer_singles(numbers, first)
            first += len(numbers)

    def lose(self, failed: Failed) -> None:
        for caller, numbers in self._asked:
            for number in numbers:
                caller.answer(number, failed)


class Remove:
    """Tasks leave their queues: acknowledged, purged, expired or moved."""

    __slots__ = ("_answer", "_broker", "_caller", "_number", "_removed", "_what")

    def __init__(
        self,
        broker: Books,
        removed: Sequence[tuple[Queue, Sequence[int]]],
        what: str,
        caller: Caller | None = None,
        number: int = 0,
        answer: Answer = SETTLED,
    ) -> None:
        self._broker = broker
        self._removed = removed
        self._what = what  # the counter that it adds to
        self._caller = caller
        self._number = number
        self._answer = answer

    def apply(self, state: State) -> None:  # noqa: ARG002
        for queue, ids in self._removed:
            queue.remove_out(ids)
            self._broker.count(queue, self._what, len(ids))

    def tell(self) -> None:
        if self._caller is not None:
            self._caller.answer(self._number, self._answer)

    def lose(self, failed: Failed) -> None:
        if self._caller is not None:
            self._caller.answer(self._number, failed)


class Return:
    """Tasks come back to their place after a delivery that failed."""

    __slots__ = ("_answer", "_broker", "_caller", "_not_before_ms", "_number", "_returned")

    def __init__(
        self,
        broker: Books,
        returned: Sequence[tuple[Queue, Sequence[int]]],
        not_before_ms: int | None,
        caller: Caller | None = None,
        number: int = 0,
        answer: Answer = SETTLED,
    ) -> None:
        self._broker = broker
        self._returned = returned
        self._not_before_ms = not_before_ms
        self._caller = caller
        self._number = number
        self._answer = answer

    def apply(self, state: State) -> None:
        for queue, ids in self._returned:
            state.return_(queue.number, ids, not_before_ms=self._not_before_ms)
            self._broker.note_returned(queue, len(ids), self._not_before_ms)

    def tell(self) -> None:
        if self._caller is not None:
            self._caller.answer(self._number, self._answer)

    def lose(self, failed: Failed) -> None:
        if self._caller is not None:
            self._caller.answer(self._number, failed)


class Create:
    """A queue begins."""

    __slots__ = ("_broker", "_caller", "_name", "_number", "_options", "_policy")

    def __init__(
        self,
        broker: Broker,
        name: QueueName,
        policy: Policy,
        options: QueueOptions,
        caller: Caller,
        number: int,
    ) -> None:
        self._broker = broker
        self._name = name
        self._policy = policy
        self._options = options
        self._caller = caller
        self._number = number

    def apply(self, state: State) -> None:
        state.create(self._name, self._policy, self._options)
        self._broker.note_created(self._name)

    def tell(self) -> None:
        self._caller.answer(self._number, OK)

    def lose(self, failed: Failed) -> None:
        self._caller.answer(self._number, failed)


class Delete:
    """A queue ends, and with it its tasks, leases and waiting consumers."""

    __slots__ = ("_broker", "_caller", "_number", "_queue")

    def __init__(self, broker: Broker, queue: Queue, caller: Caller, number: int) -> None:
        self._broker = broker
        self._queue = queue
        self._caller = caller
        self._number = number
        queue.is_doomed = True

    def apply(self, state: State) -> None:
        state.delete(self._queue.name)
        self._broker.note_deleted(self._queue)

    def tell(self) -> None:
        self._caller.answer(self._number, OK)

    def lose(self, failed: Failed) -> None:
        self._caller.answer(self._number, failed)


class Answered:
    """Nothing of its own: the last of several operations, which tells what they came to."""

    __slots__ = ("_answer", "_caller", "_number")

    def __init__(self, caller: Caller, number: int, answer: Settled | Purged) -> None:
        self._caller = caller
        self._number = number
        self._answer = answer

    def apply(self, state: State) -> None:
        pass

    def tell(self) -> None:
        self._caller.answer(self._number, self._answer)

    def lose(self, failed: Failed) -> None:
        self._caller.answer(self._number, failed)


class Later:
    """Nothing of its own: calls somebody when everything before it is applied."""

    __slots__ = ("_call", "_caller", "_number")

    def __init__(self, call: Callable[[], None], caller: Caller, number: int) -> None:
        self._call = call
        self._caller = caller
        self._number = number

    def apply(self, state: State) -> None:
        pass

    def tell(self) -> None:
        self._call()

    def lose(self, failed: Failed) -> None:
        self._caller.answer(self._number, failed)
