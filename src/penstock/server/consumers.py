"""Who waits for tasks: dequeues that found none, and subscriptions with room in their window."""

from __future__ import annotations

from collections import OrderedDict

from penstock.queues.queue import Queue
from penstock.server.caller import Caller


class Consumer:
    """A dequeue that waits, or a subscription."""

    __slots__ = (
        "caller",
        "count_max",
        "is_ended",
        "is_listed",
        "is_subscription",
        "lease_ms",
        "number",
        "out",
        "queue",
        "size_max",
        "waiting",
    )

    def __init__(
        self,
        caller: Caller,
        number: int,
        queue: Queue,
        *,
        count_max: int,
        size_max: int,
        lease_ms: int,
        is_subscription: bool,
    ) -> None:
        self.caller = caller
        self.number = number
        self.queue = queue
        self.count_max = count_max  # of one delivery; of a subscription, what may be out at a time
        self.size_max = size_max
        self.lease_ms = lease_ms
        self.is_subscription = is_subscription
        self.out = 0  # tasks of this subscription that are out
        self.is_listed = False  # whether it stands in its queue's line
        self.is_ended = False
        self.waiting = 0  # the broker's number for a dequeue that waits

    @property
    def room(self) -> int:
        """How many tasks it would take now."""
        if self.is_ended or self.caller.is_gone or self.caller.is_full:
            return 0
        return self.count_max - self.out


class Line:
    """The consumers of one queue that would take tasks, first come first served, in turns."""

    __slots__ = ("_consumers",)

    def __init__(self) -> None:
        # In order, and a caller that is gone leaves thousands of places in the middle at once.
        self._consumers: OrderedDict[Consumer, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._consumers)

    def join(self, consumer: Consumer) -> None:
        """Go to the end of the line, unless it stands there already."""
        if not consumer.is_listed and not consumer.is_ended:
            consumer.is_listed = True
            self._consumers[consumer] = None

    def next(self) -> Consumer | None:
        """Take the first consumer with room out of the line; those without leave it until they have."""
        while self._consumers:
            consumer, _ = self._consumers.popitem(last=False)
            consumer.is_listed = False
            if consumer.room > 0:
                return consumer
        return None

    def leave(self, consumer: Consumer) -> None:
        """Step out of the line for good."""
        consumer.is_ended = True
        if consumer.is_listed:
            consumer.is_listed = False
            del self._consumers[consumer]
