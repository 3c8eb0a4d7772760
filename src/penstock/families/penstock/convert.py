"""Generation 4 as a directory of TaskFlux: the state as a snapshot, without what TaskFlux has no bytes for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from penstock.errors import CannotConvert, InvalidValue
from penstock.families.family import Outcome, Progress, Row, no_progress
from penstock.families.penstock.family import TITLE
from penstock.families.penstock.location import Target
from penstock.families.penstock.read import survey
from penstock.families.penstock.replay import replay
from penstock.families.taskflux.convert import write_state
from penstock.families.taskflux.family import variant_of, written
from penstock.families.taskflux.new_directory import new_directory
from penstock.model import (
    HardState,
    Implementation,
    KeyRange,
    Policy,
    QueueHead,
    TaskId,
    Term,
)
from penstock.queues.columnar.queue import Queue
from penstock.queues.columnar.state import State
from penstock.queues.columnar.task import Task, task_at
from penstock.queues.replay import Queues

_WORDS: Final = {
    "headers": "tasks with headers",
    "delays": "tasks with a delay",
    "expiries": "tasks that expire",
    "attempts": "tasks with attempts",
    "origins": "tasks that were moved",
    "principals": "tasks with a principal",
    "groups": "tasks of a group",
    "unique_keys": "tasks with a unique key",
    "deliveries": "marked deliveries",
    "producers": "producers",
    "options": "queues with options",
    "access": "access settings",
}
"""What a directory of TaskFlux cannot hold, for people."""


def convert(
    target: Target,
    to: str,
    out: Path,
    outcome: Outcome,
    *,
    drop: bool,
    progress: Progress = no_progress,
) -> Row:
    """Write the state as a directory of TaskFlux. Raises ``CannotConvert``, ``BadData`` and ``PathRefused``.

    What the other format cannot hold is refused, or left out and listed if ``drop`` is set.
    """
    variant = variant_of(to, TITLE)
    found = replay(survey(target, progress=progress))
    state, dropped = found.state, Counter[str]()
    queues = _queues(state, dropped)
    if dropped and not drop:
        listed = ", ".join(f"{count} {_WORDS[name]}" for name, count in sorted(dropped.items()))
        raise CannotConvert(f"{to} has no bytes for {listed}; --drop leaves that out")
    term = Term(max(1, state.term))
    with new_directory(out, variant, source=target.path) as new:
        new.write_metadata(HardState(term=term))
        write_state(new, queues, index=state.index, term=term)
    outcome.words += found.words
    outcome.is_damaged = found.is_damaged
    tasks = sum(map(len, queues.by_name.values()))
    row = written(variant, out, 0, state.index, len(queues.by_name), tasks)
    return row | {"left_uncommitted": 0, "dropped": dict(sorted(dropped.items()))}


def _queues(state: State, dropped: Counter[str]) -> Queues:
    """Return the queues as TaskFlux has them; count what it has no bytes for."""
    queues = Queues()
    for queue in state.queues.values():
        settings = queue.settings
        dropped["options"] += bool(settings.options or settings.other)
        head = QueueHead(
            name=settings.name,
            policy=_policy(queue),
            last_id=TaskId(queue.last_id),
            count=queue.count,
        )
        contents = queues.restore(head)
        for _, chunk, places in queue.in_order():
            for place in places:
                task = task_at(chunk, place)
                contents.restore(task.id, task.key, task.payload)
                if chunk.details is not None or chunk.principal_id:
                    _count(task, dropped)
    dropped["producers"] += state.producers.count
    dropped["access"] += state.access is not None
    for name in [name for name, count in dropped.items() if not count]:
        del dropped[name]
    return queues


def _count(task: Task, dropped: Counter[str]) -> None:
    dropped["headers"] += bool(task.headers)
    dropped["delays"] += task.not_before_ms is not None
    dropped["expiries"] += task.expires_ms is not None
    dropped["attempts"] += task.attempts > 0
    dropped["origins"] += task.born is not None or bool(task.origin)
    dropped["principals"] += task.principal_id > 0
    dropped["groups"] += bool(task.group)
    dropped["unique_keys"] += bool(task.unique_key)
    dropped["deliveries"] += task.mark is not None


def _policy(queue: Queue) -> Policy:
    """Return the limits of a queue. Raises ``CannotConvert`` for limits that TaskFlux does not know."""
    fields: dict[str, Any] = dict(queue.settings.policy)
    keys, name = fields.pop("keys", None), fields.pop("implementation", "heap")
    try:
        return Policy(
            implementation=Implementation[name.upper()],
            size_max=fields.pop("size_max", None),
            payload_size_max=fields.pop("payload_size_max", None),
            keys=None if keys is None else KeyRange(lowest=int(keys[0]), highest=int(keys[1])),
            **fields,
        )
    except (InvalidValue, KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise CannotConvert(
            f"queue {str(queue.settings.name)!r} has limits that TaskFlux does not know: {dict(queue.settings.policy)}"
        ) from None
