"""One queue: its tasks, their order, and what is known of each beyond key and payload.

Stored, and equal on every replica: tasks, attempts, delays, expiries. The leader's own, and gone with its
leadership: which tasks are out. Time is never asked for; it comes in as ``now_ms``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from penstock.errors import ReplayConflict
from penstock.model import Policy, QueueHead, QueueName, QueueOptions, TaskId
from penstock.queues.deadlines import Deadlines
from penstock.queues.order import Order
from penstock.queues.paged import PagedTasks
from penstock.queues.tasks import Tasks

_STALE_MIN: Final = 1024
"""Listed ids without a task that are always allowed; beyond, no more than there are tasks."""


class Queue:
    """The tasks of one queue."""

    __slots__ = (
        "_listed",
        "_order",
        "_released",
        "_stale",
        "_withdrawn",
        "attempts",
        "delayed",
        "expiring",
        "is_doomed",
        "name",
        "number",
        "options",
        "out",
        "policy",
        "proposed",
        "tasks",
    )

    def __init__(
        self,
        name: QueueName,
        number: int,
        policy: Policy,
        options: QueueOptions,
        tasks: Tasks | PagedTasks,
    ) -> None:
        self.name = name
        self.number = number  # counts creations; never used twice, unlike a name
        self.policy = policy
        self.options = options
        self.tasks = tasks
        self.attempts: dict[int, int] = {}  # id -> attempts, where there were any
        self.delayed = Deadlines()  # id -> not to be delivered before
        self.expiring = Deadlines()  # id -> not to be delivered from then on
        # Ids that were taken and neither removed nor put back: out on lease, or on their way out.
        self.out: set[int] = set()
        self.proposed = 0  # tasks on their way into the log: they count for the size policy
        self.is_doomed = False  # whether its deletion is on its way into the log
        self._order = Order(policy)  # lists an id once at most
        # Ids that were taken before their delay was over, with its end. The log knows nothing of that yet.
        self._withdrawn: dict[int, int] = {}
        # Ids whose delay is over, with its end: the log knows of it as long as the task is there.
        self._released: dict[int, int] = {}
        self._listed: set[int] = set()  # ids that were delayed when they were listed already
        self._stale = 0  # listed ids that are not to be delivered, or more than that
        for key, ids in tasks.by_key():
            self._order.extend(key, ids)

    def __len__(self) -> int:
        return self.tasks.count

    @property
    def ready_count(self) -> int:
        """Tasks that could be delivered now, but for those that expired and were not removed yet."""
        return self.tasks.count - len(self.out) - len(self.delayed)

    @property
    def head(self) -> QueueHead:
        return QueueHead(
            name=self.name,
            policy=self.policy,
            last_id=TaskId(self.tasks.last_id),
            count=self.tasks.count,
        )

    # Changes that the log holds.

    def add(self, keys: Sequence[int], payloads: Sequence[bytes]) -> int:
        """Add tasks, ready at once, and return the first one's id."""
        first = self.tasks.add(keys, payloads)
        count = len(keys)
        if count == 1:
            self._order.push(keys[0], first)
        elif count and keys.count(keys[0]) == count:
            self._order.extend(keys[0], range(first, first + count))
        else:
            push = self._order.push
            for task_id, key in enumerate(keys, first):
                push(key, task_id)
        return first

    def add_later(self, keys: Sequence[int], payloads: Sequence[bytes], not_before_ms: int) -> int:
        """Add tasks that are not to be delivered before a time, and return the first one's id."""
        first = self.tasks.add(keys, payloads)
        for task_id in range(first, first + len(keys)):
            self.delayed.set(task_id, not_before_ms)
        return first

    def restore(self, task_id: int, key: int, payload: bytes) -> None:
        """Put in a task that a snapshot holds. Raises ``ReplayConflict`` if its id is taken."""
        self.tasks.restore(task_id, key, payload)
        self._order.push(key, task_id)

    def delay(self, task_id: int, not_before_ms: int) -> None:
        """Let a task that is there, and not out, wait for a time."""
        is_listed = task_id not in self.delayed
        self.delayed.set(task_id, not_before_ms)
        if is_listed:
            self._listed.add(task_id)
            self._note_stale(1)

    def remove(self, task_id: int) -> None:
        """Remove a task wherever it is. Raises ``ReplayConflict`` if it is not there."""
        if not self.tasks.discard(task_id):
            raise ReplayConflict(
                f"task {task_id} is removed from queue {self.name!r} but is not there"
            )
        if task_id in self.out:
            self.out.remove(task_id)
        elif task_id not in self.delayed:
            self._note_stale(1)
        if self.attempts:
            self.attempts.pop(task_id, None)
        self.delayed.discard(task_id)
        self.expiring.discard(task_id)
        if self._listed:
            self._listed.discard(task_id)
        if self._withdrawn:
            self._withdrawn.pop(task_id, None)
        if self._released:
            self._released.pop(task_id, None)

    def remove_out(self, ids: Sequence[int]) -> None:
        """Remove tasks that are out, all of them. Raises ``ReplayConflict`` if one is not there."""
        is_bare = not (self.attempts or len(self.delayed) or len(self.expiring) or self._released)
        if not is_bare or self._listed or self._withdrawn or not self.out.issuperset(ids):
            for task_id in ids:
                self.remove(task_id)
            return
        self.tasks.remove_many(ids)
        self.out.difference_update(ids)

    def return_(self, task_id: int, *, not_before_ms: int | None) -> None:
        """Count a failed delivery and put the task back in its place. Raises ``ReplayConflict``."""
        key = self.tasks.key(task_id)
        if key is None:
            raise ReplayConflict(f"task {task_id} returns to queue {self.name!r} but is not there")
        self.attempts[task_id] = self.attempts.get(task_id, 0) + 1
        was_out = task_id in self.out
        self.out.discard(task_id)
        self._withdrawn.pop(task_id, None)
        self._released.pop(task_id, None)
        self.expiring.rearm(task_id)
        if not_before_ms is not None and was_out:
            self.delayed.set(task_id, not_before_ms)
        elif not_before_ms is not None:
            self.delay(task_id, not_before_ms)
        elif was_out or task_id in self.delayed:
            # On replay it may still wait for a time that was over when it was delivered.
            self.delayed.discard(task_id)
            self._list(key, task_id)

    def _list(self, key: int, task_id: int) -> None:
        """List an id that is ready again."""
        if task_id in self._listed:
            self._listed.remove(task_id)
            self._stale = max(0, self._stale - 1)
        else:
            self._order.push(key, task_id)

    # What the leader decides by itself; nothing of it is stored.

    def release(self, now_ms: int) -> int:
        """Make delayed tasks ready whose time has come, and return how many there were."""
        count = 0
        while (time := self.delayed.next()) is not None and time <= now_ms:
            for task_id in self.delayed.take_due(time):
                key = self.tasks.key(task_id)
                assert key is not None, "a removed task is not delayed any more"
                self._released[task_id] = time
                self._list(key, task_id)
                count += 1
        return count

    def take(self) -> tuple[int, int, bytes] | None:
        """Take the next task out and return (id, key, payload), or ``None`` if none is ready."""
        ids, keys, payloads = self.take_many(1, 0)
        return (ids[0], keys[0], payloads[0]) if ids else None

    def take_many(self, count_max: int, size_max: int) -> tuple[list[int], list[int], list[bytes]]:
        """Take the next tasks out and return their ids, keys and payloads.

        At most ``count_max``, and beyond the first none that takes the payloads over ``size_max`` bytes.
        """
        ids: list[int] = []
        keys: list[int] = []
        payloads: list[bytes] = []
        size = 0
        order, hidden = self._order, bool(self.out or len(self.delayed))
        while len(ids) < count_max:
            key, run = order.pop_run(count_max - len(ids))
            if not run:
                self._stale = 0
                break
            found = self.tasks.payloads(run)
            if None not in found and not (hidden and self._hides_any(run)):
                total = sum(map(len, cast("list[bytes]", found)))
                if size + total <= size_max:  # as it mostly is: all of them, without a look at each
                    size += total
                    ids += run
                    keys += [key] * len(run)
                    payloads += cast("list[bytes]", found)
                    continue
            for place, payload in enumerate(found):
                task_id = run[place]
                if payload is None or (hidden and self._is_hidden(task_id)):
                    self._stale = max(0, self._stale - 1)
                    self._listed.discard(task_id)
                    continue
                size += len(payload)
                if size > size_max and ids:
                    for left in run[place:]:
                        order.push(key, left)
                    self.out.update(ids)
                    return ids, keys, payloads
                ids.append(task_id)
                keys.append(key)
                payloads.append(payload)
        self.out.update(ids)
        return ids, keys, payloads

    def _hides_any(self, ids: Sequence[int]) -> bool:
        return not self.out.isdisjoint(ids) or any(map(self.delayed.__contains__, ids))

    def _is_hidden(self, task_id: int) -> bool:
        return task_id in self.out or task_id in self.delayed

    def expired(self, ids: Sequence[int], now_ms: int) -> list[int]:
        """Return those of some ids whose time is over."""
        if not len(self.expiring):
            return []
        get = self.expiring.get
        return [i for i in ids if (time := get(i)) is not None and time <= now_ms]

    def take_these(self, task_ids: Iterable[int]) -> None:
        """Take given tasks out of turn; they are there and not out."""
        for task_id in task_ids:
            time = self.delayed.get(task_id)
            self.delayed.discard(task_id)
            self.out.add(task_id)
            if time is None:
                self._note_stale(1)
            else:
                self._withdrawn[task_id] = time

    def take_delayed(self, count_max: int) -> list[int]:
        """Take delayed tasks out, whenever they were due, and return their ids."""
        ids = self.delayed.some(count_max)
        self.take_these(ids)
        return ids

    def delays(self) -> dict[int, int]:
        """Return all delays that the log knows of: also of tasks whose removal is still on its way into it."""
        return dict(self.delayed) | self._withdrawn | self._released

    def put_back(self, task_ids: Iterable[int]) -> None:
        """Undo ``take`` for tasks that are still there: the log never knew that they were out."""
        for task_id in task_ids:
            key = self.tasks.key(task_id)
            if key is not None and task_id in self.out:
                self.out.remove(task_id)
                self.expiring.rearm(task_id)
                self._order.push(key, task_id)

    def stop_leading(self) -> None:
        """Undo all that a leader decided by itself: the queue is as the log says."""
        for task_id in self.out:
            self.expiring.rearm(task_id)
        self.out.clear()
        self.proposed = 0
        self.is_doomed = False
        for task_id, time in (self._withdrawn | self._released).items():
            self.delayed.set(task_id, time)
        self._withdrawn.clear()
        self._released.clear()
        self._rebuild()

    def peek(self, count_max: int) -> list[tuple[int, int, bytes]]:
        """Return the next tasks as they would be delivered, without taking them."""
        if self._stale > _STALE_MIN:
            self._rebuild()
        found: list[tuple[int, int, bytes]] = []
        taken: list[int] = []
        while len(found) < count_max and (task := self.take()) is not None:
            found.append(task)
            taken.append(task[0])
        self.put_back(taken)
        return found

    def _note_stale(self, count: int) -> None:
        self._stale += count
        if self._stale > max(_STALE_MIN, self.tasks.count):
            self._rebuild()

    def _rebuild(self) -> None:
        """List what is ready anew; as rare as half of all tasks being removed out of turn."""
        self._order.clear()
        self._listed.clear()
        self._stale = 0
        hidden = self.out.union(number for number, _ in self.delayed)
        for key, ids in self.tasks.by_key():
            self._order.extend(key, [i for i in ids if i not in hidden] if hidden else ids)
