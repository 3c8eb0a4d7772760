"""The state of generation 4, the slow and obvious way: the model that ``penstock.queues.columnar`` is held to.

Every task is an object in a dict. It shares no code with the state machine; it reads changes through their values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

from penstock.formats.records.add import (
    ATTEMPTS,
    BORN,
    ENQUEUED,
    ENTRY_EACH,
    EXPIRES_EACH,
    EXPIRES_ONE,
    GROUP,
    IDS,
    NOT_BEFORE_EACH,
    NOT_BEFORE_ONE,
    ORIGIN,
    PRINCIPAL_EACH,
    UNIQUE,
    AddBody,
)
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Deliver,
    Empty,
    Envelope,
    MoveTasks,
    RemoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    SetTasks,
    Stamp,
)
from penstock.formats.records.columns import NONE, Blobs
from penstock.formats.records.ids import DeliverReason, MoveReason, RemoveReason, ReturnReason
from penstock.formats.records.settings import AccessSettings, ClusterSettings, QueueSettings
from penstock.formats.records.task_headers import decode_headers

FAR = 2**61
ATTEMPTS_MAX = 2**32 - 1


@dataclass(kw_only=True)
class NaiveTask:
    """A task. Times are absolute; the fields have the names of ``penstock.queues.columnar.task.Task``."""

    id: int
    key: int
    payload: bytes
    not_before_ms: int | None = None
    expires_ms: int | None = None
    headers: dict[str, bytes] = field(default_factory=dict)
    group: bytes = b""
    unique_key: bytes = b""
    attempts: int = 0
    enqueued_ms: int = 0
    principal_id: int = 0
    entry: int = 0
    born: tuple[int, int] | None = None
    origin: bytes = b""
    mark: tuple[int, bytes, int] | None = None

    @property
    def fields(self) -> tuple[object, ...]:
        return tuple(vars(self).values())


@dataclass
class NaiveQueue:
    settings: QueueSettings
    last_id: int = 0
    tasks: dict[int, NaiveTask] = field(default_factory=dict)

    def in_order(self) -> list[NaiveTask]:
        return sorted(self.tasks.values(), key=lambda task: (task.key, task.id))


class Impossible(Exception):
    """A change in an envelope names a queue or a task that is missing."""


@dataclass
class NaiveState:
    """Queues by id, the last request of each producer, settings."""

    producers_max: int
    queues: dict[int, NaiveQueue] = field(default_factory=dict)
    next_queue_id: int = 1
    producers: dict[bytes, tuple[int, int, int, int, int]] = field(default_factory=dict)
    members: ClusterSettings | None = None
    access: AccessSettings | None = None
    term: int = 0
    without_effect: int = 0

    def apply(self, change: Change, stamp: Stamp) -> None:
        if stamp.term != self.term:
            self.term = stamp.term
            for queue in self.queues.values():
                for task in queue.tasks.values():
                    if task.mark is not None and task.mark[0] == DeliverReason.STARTED:
                        task.attempts = min(task.attempts + 1, ATTEMPTS_MAX)
                    task.mark = None
        if isinstance(change, Envelope):
            self._apply_all(change, stamp)
        else:
            self.without_effect += self._apply(change, stamp)

    def _apply_all(self, envelope: Envelope, stamp: Stamp) -> None:
        """Apply the parts one after the other to a copy, and keep it if none met something missing."""
        trial = deepcopy(self)
        added: dict[int, set[int]] = {}
        spans: list[tuple[int, range]] = []
        try:
            for change, principal_id, _ in envelope.parts:
                named = set() if isinstance(change, AddTasks) else ids_of(change)
                if isinstance(change, RemoveTasks) and change.is_span:
                    spans.append((change.queue_id, cast("range", change.ids)))
                else:
                    foreign = [added.get(change.queue_id, set())]
                    foreign += [set(span) for queue, span in spans if queue == change.queue_id]
                    if any(named & ids for ids in foreign):
                        raise Impossible
                before = {number: set(queue.tasks) for number, queue in trial.queues.items()}
                if trial._apply(change, stamp._replace(principal_id=principal_id)):
                    raise Impossible
                for number, queue in trial.queues.items():
                    added.setdefault(number, set()).update(set(queue.tasks) - before[number])
        except Impossible:
            self.without_effect += len(envelope.parts)
        else:
            vars(self).update(vars(trial))

    def _apply(self, change: Change, stamp: Stamp) -> int:
        match change:
            case AddTasks():
                return self._add(change, stamp)
            case RemoveTasks():
                return self._remove(change, stamp)
            case MoveTasks():
                return self._move(change, stamp)
            case ReturnTasks() | SetTasks() | Deliver():
                queue = self.queues.get(change.queue_id)
                if queue is None:
                    return len(change.ids)
                missing = 0
                for number, task_id in enumerate(change.ids):
                    if task_id in queue.tasks:
                        change_task(queue.tasks[task_id], change, number, stamp)
                    else:
                        missing += 1
                return missing
            case SetQueue():
                return self._set_queue(change)
            case DeleteQueue():
                return 0 if self.queues.pop(change.queue_id, None) else 1
            case SetMembers(settings=settings):
                if settings.cluster_id is None and self.members is not None:
                    settings = replace(settings, cluster_id=self.members.cluster_id)
                self.members = settings
            case SetAccess(settings=access):
                self.access = access
            case Empty():
                pass
            case Envelope():
                raise AssertionError("an envelope holds no envelope")
        return 0

    def _set_queue(self, change: SetQueue) -> int:
        settings = replace(change.settings, last_id=None)
        known = self.queues.get(change.queue_id)
        if known is not None:
            if known.settings.name != settings.name:
                return 1
            known.settings = settings
        else:
            names = [queue.settings.name for queue in self.queues.values()]
            if change.queue_id < self.next_queue_id or settings.name in names:
                return 1
            self.queues[change.queue_id] = NaiveQueue(settings)
            self.next_queue_id = change.queue_id + 1
        return 0

    def _add(self, change: AddTasks, stamp: Stamp) -> int:
        queue, body = self.queues.get(change.queue_id), change.body
        tasks = list(tasks_of(change, stamp))
        if queue is None or tasks[0].id <= queue.last_id:
            return body.count
        queue.tasks.update({task.id: task for task in tasks})
        queue.last_id = tasks[-1].id
        for producer, sequence, first_id, count in body.requests(change.first_id):
            self.producers.pop(producer, None)
            last = sequence + count - 1
            self.producers[producer] = (last, change.queue_id, first_id, count, stamp.time_ms)
            if len(self.producers) > self.producers_max:
                del self.producers[next(iter(self.producers))]
        return 0

    def _remove(self, change: RemoveTasks, stamp: Stamp) -> int:
        queue = self.queues.get(change.queue_id)
        if queue is None:
            return 1 if change.is_span else len(change.ids)
        if not change.is_span:
            return [queue.tasks.pop(task_id, None) for task_id in change.ids].count(None)
        for task in list(queue.tasks.values()):
            is_over = task.expires_ms is not None and task.expires_ms <= stamp.time_ms
            if task.id in change.ids and (is_over or change.reason != RemoveReason.EXPIRED):
                del queue.tasks[task.id]
        return 0

    def _move(self, change: MoveTasks, stamp: Stamp) -> int:
        source, target = self.queues.get(change.queue_id), self.queues.get(change.destination_id)
        if source is None or target is None or change.first_destination_id <= target.last_id:
            return len(change.ids)
        missing = 0
        moved = []
        for number, task_id in enumerate(change.ids):
            task = source.tasks.pop(task_id, None)
            if task is None:
                missing += 1
            else:
                moved.append(moved_task(task, change, number, stamp))
        target.tasks.update({task.id: task for task in moved})
        target.last_id = change.first_destination_id + len(change.ids) - 1
        return missing


def ids_of(change: Any) -> set[int]:
    return set() if getattr(change, "is_span", False) else set(change.ids)


def value_of(column: Any, number: int) -> Any:
    """Return the value of a column of a change for one task: one for all, or one for each."""
    if column is None or isinstance(column, int | bytes):
        return column
    return column.get(number) if isinstance(column, Blobs) else column[number]


def moment(relative: int | None, now_ms: int) -> int | None:
    if relative is None or relative == NONE:
        return None
    return max(min(now_ms + relative, FAR), -FAR)


def tasks_of(change: AddTasks, stamp: Stamp) -> Iterator[NaiveTask]:
    body = change.body
    extra: dict[int, Any] = body.extra or {}
    ids: Sequence[int] = extra.get(IDS) or range(change.first_id, change.first_id + body.count)
    for place, task_id in enumerate(ids):
        enqueued = body.number(place, ENQUEUED)
        yield NaiveTask(
            id=task_id,
            key=body.key(place),
            payload=bytes(body.payload(place)),
            not_before_ms=moment(
                body.number(place, NOT_BEFORE_EACH, NOT_BEFORE_ONE), stamp.time_ms
            ),
            expires_ms=moment(body.number(place, EXPIRES_EACH, EXPIRES_ONE), stamp.time_ms),
            headers=body.headers(place),
            group=text_of(body, GROUP, place),
            unique_key=text_of(body, UNIQUE, place),
            attempts=body.number(place, ATTEMPTS) or 0,
            enqueued_ms=stamp.time_ms if enqueued is None else moment(enqueued, stamp.time_ms) or 0,
            principal_id=stamp.principal_id
            if PRINCIPAL_EACH not in extra
            else extra[PRINCIPAL_EACH][place],
            entry=stamp.index if ENTRY_EACH not in extra else extra[ENTRY_EACH][place],
            born=body.born(place) if BORN in extra else None,
            origin=text_of(body, ORIGIN, place),
        )


def text_of(body: AddBody, bit: int, place: int) -> bytes:
    column: Blobs | None = (body.extra or {}).get(bit)
    return b"" if column is None else column.get(place)


def change_task(
    task: NaiveTask, change: ReturnTasks | SetTasks | Deliver, number: int, stamp: Stamp
) -> None:
    if isinstance(change, Deliver):
        deadline = moment(change.deadline, stamp.time_ms)
        assert deadline is not None
        task.mark = (change.reason, change.consumer, deadline)
        return
    if isinstance(change, ReturnTasks):
        task.mark = None
        if change.reason != ReturnReason.RELEASED:
            task.attempts = min(task.attempts + 1, ATTEMPTS_MAX)
    if change.keys is not None:
        task.key = value_of(change.keys, number)
    if change.not_before is not None:
        task.not_before_ms = moment(value_of(change.not_before, number), stamp.time_ms)
    if isinstance(change, SetTasks):
        if change.expires is not None:
            task.expires_ms = moment(value_of(change.expires, number), stamp.time_ms)
        if change.headers is not None:
            task.headers = decode_headers(value_of(change.headers, number))


def moved_task(task: NaiveTask, change: MoveTasks, number: int, stamp: Stamp) -> NaiveTask:
    origin = {
        "attempts": task.attempts,
        "id": task.id,
        "queue": change.queue_id,
        "reason": int(change.reason),
        "time_ms": stamp.time_ms,
    }
    error = value_of(change.errors, number)
    if error is not None:
        origin["error"] = error.decode()
    text = json.dumps(origin, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    attempts = task.attempts
    if change.reason == MoveReason.DEAD_FAILED:
        attempts = min(attempts + 1, ATTEMPTS_MAX)
    elif change.reason == MoveReason.REDRIVEN:
        attempts = 0
    return replace(
        task,
        id=change.first_destination_id + number,
        key=task.key if change.keys is None else value_of(change.keys, number),
        not_before_ms=moment(value_of(change.not_before, number), stamp.time_ms),
        expires_ms=moment(value_of(change.expires, number), stamp.time_ms),
        attempts=attempts,
        born=task.born or (change.queue_id, task.id),
        origin=text.encode(),
        mark=None,
    )
