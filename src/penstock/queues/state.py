"""The state machine: all queues and producers, changed only by what the log holds.

The same changes in the same order give the same state on every node, at every restart. Whether a change
is allowed was decided before it was logged; one that contradicts the state is damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from penstock.errors import ReplayConflict
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    NO_OPTIONS,
    NO_TERMS,
    Implementation,
    Policy,
    QueueHead,
    QueueName,
    QueueOptions,
    Terms,
)
from penstock.queues.paged import PagedTasks, Pages
from penstock.queues.producers import Producers
from penstock.queues.queue import Queue
from penstock.queues.tasks import Tasks

DEFAULT_NUMBER: Final = 0


class Shelf(Protocol):
    """Where the pages of all paged queues are. A queue is known by its number, which is never used twice."""

    def open(self, number: int, name: QueueName, *, is_new: bool) -> Pages:
        """Return the pages of a queue. Raises ``BadData`` if one that is not new has none."""
        ...

    def drop(self, number: int) -> None:
        """Forget the pages of a queue that was deleted."""
        ...

    def refusal(self) -> str | None:
        """Return why there can be no paged queue here, ``None`` if there can."""
        ...


class State:
    """Everything that a node knows. A new one holds the default queue alone."""

    __slots__ = (
        "_next_number",
        "_shelf",
        "_unpaged",
        "by_name",
        "by_number",
        "group",
        "producers",
    )

    def __init__(
        self, shelf: Shelf | None = None, *, unpaged: str = "it needs files of generation 3"
    ) -> None:
        """Without a shelf there can be no paged queue, for the reason given."""
        self._shelf = shelf
        self._unpaged = unpaged
        default = self._new(DEFAULT_QUEUE, DEFAULT_NUMBER, NO_LIMITS, NO_OPTIONS)
        self.by_name: dict[QueueName, Queue] = {DEFAULT_QUEUE: default}
        self.by_number: dict[int, Queue] = {DEFAULT_NUMBER: default}
        self._next_number = DEFAULT_NUMBER + 1
        self.producers = Producers()
        self.group = b""  # the members of the group, as the log says; empty for a group of one

    def _new(
        self,
        name: QueueName,
        number: int,
        policy: Policy,
        options: QueueOptions,
        last_id: int = 0,
        *,
        is_new: bool = True,
    ) -> Queue:
        tasks: Tasks | PagedTasks = Tasks(last_id)
        if policy.implementation is Implementation.PAGED:
            if self._shelf is None:
                raise ReplayConflict(f"queue {name!r} is paged, and cannot be: {self._unpaged}")
            tasks = PagedTasks(self._shelf.open(number, name, is_new=is_new), last_id)
        return Queue(name, number, policy, options, tasks)

    def paging_refusal(self) -> str | None:
        """Return why there can be no paged queue here, ``None`` if there can."""
        return self._unpaged if self._shelf is None else self._shelf.refusal()

    @property
    def next_number(self) -> int:
        """The number that the next queue gets."""
        return self._next_number

    def find(self, name: QueueName) -> Queue:
        """Return a queue that an entry speaks of. Raises ``ReplayConflict`` if there is none."""
        queue = self.by_name.get(name)
        if queue is None:
            raise ReplayConflict(f"an entry speaks of queue {name!r}, which does not exist")
        return queue

    def find_number(self, number: int) -> Queue | None:
        """Return the queue with this number, or ``None`` if it was deleted since."""
        return self.by_number.get(number)

    # Changes that the log holds.

    def create(self, name: QueueName, policy: Policy, options: QueueOptions) -> Queue:
        if name in self.by_name:
            raise ReplayConflict(f"queue {name!r} is created but exists")
        queue = self._new(name, self._next_number, policy, options)
        self._next_number += 1
        self.by_name[name] = self.by_number[queue.number] = queue
        return queue

    def delete(self, name: QueueName) -> None:
        """Drop a queue; one that is missing is ignored, which is how logs say nothing."""
        queue = self.by_name.pop(name, None)
        if queue is None:
            return
        del self.by_number[queue.number]
        if self._shelf is not None and queue.policy.implementation is Implementation.PAGED:
            self._shelf.drop(queue.number)
        if name == DEFAULT_QUEUE:
            # It always exists; a log that deletes it can only mean its tasks.
            fresh = self._new(DEFAULT_QUEUE, DEFAULT_NUMBER, NO_LIMITS, NO_OPTIONS)
            self.by_name[name] = self.by_number[DEFAULT_NUMBER] = fresh

    def add(
        self, queue: Queue, keys: Sequence[int], payloads: Sequence[bytes], terms: Terms = NO_TERMS
    ) -> int:
        """Add tasks to a queue and return the first one's id."""
        if terms is NO_TERMS:
            return queue.add(keys, payloads)
        if terms.not_before_ms is None:
            first = queue.add(keys, payloads)
        else:
            first = queue.add_later(keys, payloads, terms.not_before_ms)
        ids = range(first, first + len(keys))
        if terms.expires_ms is not None:
            for task_id in ids:
                queue.expiring.set(task_id, terms.expires_ms)
        if terms.attempts:
            queue.attempts.update(dict.fromkeys(ids, terms.attempts))
        if terms.producer is not None:
            self.producers.note(
                terms.producer,
                terms.sequence,
                queue=queue.number,
                total=terms.total,
                first=first,
                count=len(ids),
            )
        return first

    def return_(
        self, number: int, ids: Iterable[int], *, not_before_ms: int | None
    ) -> Queue | None:
        """Count a failed delivery of some tasks; what a deleted queue held is gone with it."""
        queue = self.by_number.get(number)
        if queue is not None:
            for task_id in ids:
                queue.return_(task_id, not_before_ms=not_before_ms)
        return queue

    # Restoring a snapshot.

    def restore(self, head: QueueHead) -> Queue:
        """Begin a queue that a snapshot holds; its tasks are restored into the result."""
        number = DEFAULT_NUMBER
        if head.name != DEFAULT_QUEUE:
            number = self._next_number
            self._next_number += 1
        # The pages of a paged queue are found by its number, which only ``open_pages`` knows for sure.
        queue = Queue(head.name, number, head.policy, NO_OPTIONS, Tasks(head.last_id))
        self.by_name[head.name] = self.by_number[number] = queue
        return queue

    def renumber(self, numbers: dict[QueueName, int], next_number: int) -> None:
        """Give the queues of a snapshot the numbers they had. Raises ``ReplayConflict``."""
        if numbers.keys() != self.by_name.keys() or len(set(numbers.values())) != len(numbers):
            raise ReplayConflict("the snapshot's own notes name other queues than the snapshot")
        if numbers[DEFAULT_QUEUE] != DEFAULT_NUMBER or max(numbers.values()) >= next_number:
            raise ReplayConflict("the snapshot's own notes number its queues in an impossible way")
        self.by_number.clear()
        for name, number in numbers.items():
            queue = self.by_name[name]
            queue.number = number
            self.by_number[number] = queue
        self._next_number = next_number

    def open_pages(self) -> None:
        """Let the paged queues of a snapshot have what is on their pages; all queues have their numbers."""
        for queue in list(self.queues()):
            if queue.policy.implementation is Implementation.PAGED:
                if len(queue):
                    raise ReplayConflict(f"the snapshot holds tasks of paged queue {queue.name!r}")
                fresh = self._new(
                    queue.name,
                    queue.number,
                    queue.policy,
                    queue.options,
                    queue.tasks.last_id,
                    is_new=False,
                )
                self.by_name[queue.name] = self.by_number[queue.number] = fresh

    def stop_leading(self) -> None:
        """Undo all that a leader decided by itself."""
        for queue in self.queues():
            queue.stop_leading()

    def queues(self) -> Iterator[Queue]:
        """Yield the queues in the order of their numbers, the same on every node."""
        for number in sorted(self.by_number):
            yield self.by_number[number]
