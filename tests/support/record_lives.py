"""Histories of generation 4 as a leader could have written them, and a naive account of what became of every task."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from random import Random
from typing import Final, assert_never

from penstock.formats.records.add import EXPIRES_EACH, EXPIRES_ONE, Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Deliver,
    Empty,
    Envelope,
    MoveTasks,
    Part,
    RemoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    SetTasks,
    Stamp,
    TaskChange,
)
from penstock.formats.records.columns import NONE
from penstock.formats.records.ids import (
    DeliverReason,
    Ids,
    MoveReason,
    RemoveReason,
    ReturnReason,
    Times,
)
from penstock.formats.records.settings import QueueSettings
from penstock.model import QueueName

Entry = tuple[Stamp, Change]

BEGIN_MS: Final = 1_700_000_000_000
NAMES: Final = ("mail", "images", "dead", "late")


@dataclass
class NaiveTask:
    """A task in one queue, from its arrival to its end."""

    queue_id: int
    queue: str
    born: int  # the index of the queue's creation
    id: int
    key: int
    payload: bytes
    added_index: int
    added_ms: int
    first: tuple[int, int]
    expires_ms: int | None = None
    failed: int = 0
    is_started: bool = False
    added_key: int = 0
    ended_index: int | None = None
    ended_ms: int | None = None
    end: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        self.added_key = self.key

    def close(self, stamp: Stamp, end: str, reason: str | None) -> None:
        self.ended_index, self.ended_ms, self.end, self.reason = stamp.index, stamp.time_ms, end, reason  # fmt: skip


def word(reason: RemoveReason | ReturnReason | MoveReason | DeliverReason) -> str:
    return reason.name.lower().replace("_", "-")


@dataclass
class NaiveLives:
    """Applies changes one after the other, task by task, and forgets nothing."""

    names: dict[int, tuple[str, int]] = field(default_factory=dict)  # queues that live
    last_ids: dict[int, int] = field(default_factory=dict)
    tasks: list[NaiveTask] = field(default_factory=list)
    alive: dict[tuple[int, int], NaiveTask] = field(default_factory=dict)
    term: int = 0

    def apply(self, stamp: Stamp, change: Change) -> None:
        if stamp.term != self.term:
            self.term = stamp.term
            for task in self.alive.values():
                task.failed += task.is_started
                task.is_started = False
        match change:
            case SetQueue(queue_id, settings):
                self.names.setdefault(queue_id, (str(settings.name), stamp.index))
                self.last_ids.setdefault(queue_id, 0)
            case DeleteQueue(queue_id):
                if self.names.pop(queue_id, None) is not None:
                    for place in [place for place in self.alive if place[0] == queue_id]:
                        self.alive.pop(place).close(stamp, "deleted", None)
            case Envelope(parts):
                if all(self.is_whole(part.change) for part in parts):
                    for part in parts:
                        self.apply_tasks(stamp, part.change)
            case Empty() | SetMembers() | SetAccess():
                pass
            case _:
                self.apply_tasks(stamp, change)

    def is_whole(self, change: TaskChange) -> bool:
        if change.queue_id not in self.names:
            return False
        if isinstance(change, MoveTasks) and change.destination_id not in self.names:
            return False
        if isinstance(change, AddTasks) or (isinstance(change, RemoveTasks) and change.is_span):
            return True
        return all((change.queue_id, each) in self.alive for each in change.ids)

    def apply_tasks(self, stamp: Stamp, change: TaskChange | Deliver) -> None:
        if change.queue_id not in self.names:
            return
        match change:
            case AddTasks():
                self._add(stamp, change)
            case RemoveTasks():
                self._remove(stamp, change)
            case ReturnTasks():
                for place, task in self._found(change.queue_id, change.ids):
                    task.failed += change.reason != ReturnReason.RELEASED
                    task.is_started = False
                    task.key = _at(change.keys, place, task.key)
            case MoveTasks():
                self._move(stamp, change)
            case SetTasks():
                for place, task in self._found(change.queue_id, change.ids):
                    task.key = _at(change.keys, place, task.key)
                    if change.expires is not None:
                        task.expires_ms = _moment(change.expires, place, stamp)
            case Deliver():
                for _, task in self._found(change.queue_id, change.ids):
                    task.is_started = change.reason == DeliverReason.STARTED
            case _ as never:
                assert_never(never)

    def _found(self, queue_id: int, ids: Ids) -> list[tuple[int, NaiveTask]]:
        return [
            (place, self.alive[queue_id, each])
            for place, each in enumerate(ids)
            if (queue_id, each) in self.alive
        ]

    def _begin(self, task: NaiveTask) -> None:
        self.tasks.append(task)
        self.alive[task.queue_id, task.id] = task

    def _add(self, stamp: Stamp, change: AddTasks) -> None:
        name, born = self.names[change.queue_id]
        for place in range(change.body.count):
            task_id = change.first_id + place
            relative = change.body.number(place, EXPIRES_EACH, EXPIRES_ONE)
            task = NaiveTask(
                change.queue_id, name, born, task_id, change.body.key(place),
                bytes(change.body.payload(place)), stamp.index, stamp.time_ms,
                (change.queue_id, task_id),
            )  # fmt: skip
            if relative is not None and relative != NONE:
                task.expires_ms = stamp.time_ms + relative
            self._begin(task)
        self.last_ids[change.queue_id] = change.first_id + change.body.count - 1

    def _remove(self, stamp: Stamp, change: RemoveTasks) -> None:
        for _, task in self._found(change.queue_id, change.ids):
            is_due = task.expires_ms is not None and task.expires_ms <= stamp.time_ms
            if change.is_span and change.reason == RemoveReason.EXPIRED and not is_due:
                continue
            self.alive.pop((task.queue_id, task.id)).close(stamp, "removed", word(change.reason))

    def _move(self, stamp: Stamp, change: MoveTasks) -> None:
        if change.destination_id not in self.names:
            return
        name, born = self.names[change.destination_id]
        for place, task in self._found(change.queue_id, change.ids):
            self.alive.pop((task.queue_id, task.id)).close(stamp, "moved", word(change.reason))
            moved = NaiveTask(
                change.destination_id, name, born, change.first_destination_id + place,
                _at(change.keys, place, task.key), task.payload, stamp.index, stamp.time_ms, task.first,
            )  # fmt: skip
            moved.failed = 0 if change.reason == MoveReason.REDRIVEN else task.failed
            moved.failed += change.reason == MoveReason.DEAD_FAILED
            if change.expires is not None:
                moved.expires_ms = _moment(change.expires, place, stamp)
            self._begin(moved)
        self.last_ids[change.destination_id] = change.first_destination_id + len(change.ids) - 1


def _at(column: Times | None, place: int, otherwise: int) -> int:
    if column is None:
        return otherwise
    return column if isinstance(column, int) else column[place]


def _moment(column: Times, place: int, stamp: Stamp) -> int | None:
    relative = _at(column, place, NONE)
    return None if relative == NONE else stamp.time_ms + relative


# --- histories -----------------------------------------------------------------------------------


@dataclass
class Leader:
    """Draws changes that a leader could propose: it knows what is alive, and sometimes is too late."""

    random: Random
    known: NaiveLives = field(default_factory=NaiveLives)
    entries: list[Entry] = field(default_factory=list)
    term: int = 1
    time_ms: int = BEGIN_MS
    next_queue_id: int = 1
    names: dict[int, str] = field(default_factory=dict)  # also of queues that were deleted

    def run(self, count: int) -> list[Entry]:
        self.propose(Empty())
        for name in NAMES[:3]:
            self.create(name)
        while len(self.entries) < count:
            self.step()
        return self.entries

    def propose(self, change: Change) -> None:
        self.time_ms += self.random.choice([0, 1, 7, 1500])
        stamp = Stamp(len(self.entries) + 1, self.term, self.time_ms, self.random.choice([0, 0, 3]))
        self.known.apply(stamp, change)
        self.entries.append((stamp, change))

    def create(self, name: str) -> None:
        self.names[self.next_queue_id] = name
        self.propose(SetQueue(self.next_queue_id, QueueSettings(name=QueueName(name))))
        self.next_queue_id += 1

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.01:
            self.term += self.random.choice([1, 3])
            self.propose(Empty())
        elif draw < 0.02:
            self.replace_queue()
        elif draw < 0.1:
            changes = [self.change() for _ in range(self.random.randint(1, 3))]
            if self.is_apart(changes):
                self.propose(Envelope(tuple(Part(change) for change in changes)))
        elif draw < 0.15:
            ids = self.some_ids(queue_id := self.queue_id())
            if ids:
                reason = self.random.choice(list(DeliverReason))
                self.propose(Deliver(queue_id, ids, reason, b"worker", 30_000))
        else:
            self.propose(self.change())

    def replace_queue(self) -> None:
        queue_id = self.queue_id()
        if self.random.random() < 0.5:
            name, _ = self.known.names[queue_id]
            self.propose(SetQueue(queue_id, QueueSettings(name=QueueName(name), options={"lease_ms": 9})))  # fmt: skip
            return
        name, _ = self.known.names[queue_id]
        self.propose(DeleteQueue(queue_id))
        # Behind a deletion in flight: without effect, an envelope as a whole.
        self.propose(self.add(queue_id))
        other = self.queue_id()
        self.propose(Envelope((Part(self.add(other)), Part(self.add(queue_id)))))
        self.create(self.random.choice([name, name, NAMES[3]]) if NAMES[3] not in self.living else name)  # fmt: skip

    @property
    def living(self) -> list[str]:
        return [name for name, _ in self.known.names.values()]

    def is_apart(self, changes: list[TaskChange]) -> bool:
        """Whether the parts of an envelope name no task twice, and give out no id twice."""
        queues = [change.queue_id for change in changes]
        queues += [change.destination_id for change in changes if isinstance(change, MoveTasks)]
        return len(set(queues)) == len(queues) and all(map(self.known.is_whole, changes))

    def queue_id(self) -> int:
        return self.random.choice(sorted(self.known.names))

    def change(self) -> TaskChange:
        queue_id = self.queue_id()
        ids = self.some_ids(queue_id)
        draw = self.random.random()
        if not ids or draw < 0.4:
            return self.add(queue_id)
        if draw < 0.65:
            return RemoveTasks(queue_id, ids, self.random.choice(list(RemoveReason)))
        if draw < 0.7:
            return self.remove_span(queue_id)
        if draw < 0.82:
            reason = self.random.choice(list(ReturnReason))
            return ReturnTasks(queue_id, ids, reason, None, self.keys(len(ids)))
        if draw < 0.9:
            expires = self.random.choice([None, NONE, 0, 5000])
            return SetTasks(queue_id, ids, self.keys(len(ids)) or 3, None, expires)
        return self.move(queue_id, ids)

    def add(self, queue_id: int) -> AddTasks:
        count = self.random.choice([1, 1, 2, 5, 30])
        name = self.names[queue_id]
        body = encode_add(
            name.encode(),
            [self.random.randrange(5) for _ in range(count)] if self.random.random() < 0.5 else [4] * count,
            [self.random.choice([b"", b"x", b'{"n": 1}', b"payload" * 9]) for _ in range(count)],
            expires=self.random.choice([None, None, [self.random.choice([NONE, 1, 2000]) for _ in range(count)]]),
        )  # fmt: skip
        first_id = self.known.last_ids.get(queue_id, 0) + 1
        return AddTasks(queue_id, first_id, decode_add(body, 0, len(body), Rules.RECORD))

    def remove_span(self, queue_id: int) -> RemoveTasks:
        last = self.known.last_ids[queue_id]
        first = self.random.randint(max(1, last - 200), max(1, last))
        reason = self.random.choice(
            [RemoveReason.EXPIRED, RemoveReason.EXPIRED, RemoveReason.PURGED]
        )
        return RemoveTasks(queue_id, range(first, last + 1), reason, is_span=True)

    def move(self, queue_id: int, ids: Ids) -> MoveTasks:
        destination = self.queue_id()
        first_id = self.known.last_ids[destination] + 1
        expires = self.random.choice([None, None, 3000])
        return MoveTasks(
            queue_id, ids, self.random.choice(list(MoveReason)), destination, first_id, None,
            self.keys(len(ids)), expires, b"failed",
        )  # fmt: skip

    def keys(self, count: int) -> Times | None:
        each = memoryview(array("q", [self.random.randrange(9) for _ in range(count)]))
        return self.random.choice([None, None, 7, each])

    def some_ids(self, queue_id: int) -> Ids | None:
        """Return ids of tasks that are alive, now and then with one among them that is not."""
        alive = sorted(each for queue, each in self.known.alive if queue == queue_id)
        if not alive:
            return None
        chosen = sorted(self.random.sample(alive, min(len(alive), self.random.choice([1, 2, 9]))))
        if self.random.random() < 0.1:
            chosen = sorted({*chosen, self.random.randint(1, max(alive))})
        if chosen[-1] - chosen[0] + 1 == len(chosen):
            return range(chosen[0], chosen[-1] + 1)
        return memoryview(array("Q", chosen))
