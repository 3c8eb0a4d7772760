"""What a subscription holds: tasks that wait to be handed out, and acks that wait to be sent. Pure.

The faces do the waiting; locks are theirs too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.client.effects import Exchange
from penstock.client.failures import carry, failure, lease_lost
from penstock.client.values import Delivery, deliveries
from penstock.errors import LeaseLost, NotLeader, PenstockError, Unreachable
from penstock.protocol.version2 import Delivered, Failed, Ok, Start, Subscribe

ACKS_MAX: Final = 100
"""Acks that are gathered into one request; they are durable only when it is answered."""

ACK_REQUESTS_MAX: Final = 8
"""Requests of acks in flight; beyond that a subscriber is faster than the node's disk and waits."""

LOST_MAX: Final = 1000
"""Deliveries whose lost leases are remembered for ``flush`` to tell; older ones are only counted."""


class Prefetch:
    """The state of one subscription."""

    def __init__(self, request: Subscribe) -> None:
        self.request = request
        # Half a window: the node sends on while the other half is being worked on.
        self._acks_max = min(ACKS_MAX, max(1, request.prefetch // 2))
        self._tasks: deque[Delivery] = deque()  # delivered, not handed out
        self._acks: list[Delivery] = []  # given, not sent
        self._announced = 0  # how many of them the node knows of by a report of started tasks
        self._lost: deque[Delivery] = deque(maxlen=LOST_MAX)  # not yet told
        self.lost_count = 0  # acks that came too late, since the beginning
        self.waiting_count = 0  # callers that wait for a task: nobody may come by to send acks
        self.is_closed = False
        self._refusal: PenstockError | None = None  # why the node ended the subscription
        self.was_accepted = False  # whether the node took the subscription that is under way

    # --- tasks ---

    def receive(self, exchange: Exchange) -> None:
        """Take an answer to the subscription."""
        answer = exchange.answer
        if isinstance(answer, Failed):
            self._refusal = failure(answer, self.request)
        if isinstance(answer, Ok):
            self.was_accepted = True
        if isinstance(answer, Delivered):
            self._tasks.extend(
                deliveries(
                    answer,
                    queue=self.request.queue,
                    connection=exchange.connection,
                    received=exchange.received,
                )
            )

    @property
    def is_refused(self) -> bool:
        return self._refusal is not None

    @property
    def has_news(self) -> bool:
        """Whether whoever waits for a task should look."""
        return self.is_closed or self.is_refused or bool(self._tasks)

    @property
    def is_put_off(self) -> bool:
        """Whether the node is stopping, or another one leads: it will be back, or the other one is asked."""
        return isinstance(self._refusal, Unreachable | NotLeader)

    @property
    def leader(self) -> str | None:
        """Where the node that does not lead says that the leader is."""
        return self._refusal.address if isinstance(self._refusal, NotLeader) else None

    @property
    def end(self) -> PenstockError:
        """Why the subscription has to be made anew."""
        return self._refusal or Unreachable("the subscription broke")

    def check(self) -> None:
        """Raise what the node has refused the subscription with, to everybody who asks."""
        if self._refusal is not None and not self.is_put_off:
            raise carry(type(self._refusal)(*self._refusal.args), **self._refusal.__dict__)

    @property
    def has_tasks(self) -> bool:
        return bool(self._tasks)

    def hand_out(self, now: float) -> Delivery | None:
        """Return the next task, ``None`` if there is none. Those whose lease ran out meanwhile are dropped."""
        while self._tasks:
            task = self._tasks.popleft()
            if task.deadline > now:
                return task
        return None

    def report(self, task: Delivery) -> Start:
        """Return the report that a task is started, to be sent before user code receives it.

        It announces the acks that are not sent yet: if the program ends now, their tasks are done all the same.
        """
        given = self._acks[self._announced :]
        self._announced = len(self._acks)
        acked = [each.token for each in given if each.connection == task.connection]
        return Start((task.token,), acked)

    def put_back(self, task: Delivery) -> None:
        """Hand a task out later after all."""
        self._tasks.appendleft(task)

    def drop_tasks(self) -> None:
        """Forget what was not handed out: the node has released it."""
        self._tasks.clear()

    def disconnect(self) -> None:
        """Forget a broken connection: its leases are over."""
        self._tasks.clear()
        self._refusal = None
        self.was_accepted = False

    # --- acks ---

    def add_acks(self, given: Iterable[Delivery]) -> bool:
        """Keep acks and return whether it is time to send them."""
        self._acks.extend(given)
        return self.is_closed or self.waiting_count > 0 or len(self._acks) >= self._acks_max

    def take_acks(self) -> list[Delivery]:
        acks, self._acks = self._acks, []
        self._announced = 0
        return acks

    def note_lost(self, lost: Sequence[Delivery]) -> None:
        self._lost.extend(lost)
        self.lost_count += len(lost)

    def take_error(self) -> LeaseLost | None:
        """Return the exception for what was lost since it was last asked for."""
        if not self._lost:
            return None
        lost = list(self._lost)
        self._lost.clear()
        return lease_lost(lost)
