"""The tasks of generation 4 files as requests to a node, numbered so that a repeated import is recognised.

A request holds the tasks of one queue whose ids share the same thousand, in the order of ids, which keeps the order of delivery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from penstock.client.batches import BATCH_COUNT_MAX
from penstock.client.producer import producer_id
from penstock.families.family import Outcome, Progress, Sending, no_progress, queue_of, refuse_queue
from penstock.families.options import Values
from penstock.families.penstock.location import Target
from penstock.families.penstock.read import survey
from penstock.families.penstock.replay import replay
from penstock.model import QueueName
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.protocol.version2 import Enqueue, Producer
from penstock.queues.columnar.queue import Queue
from penstock.queues.columnar.state import State
from penstock.queues.columnar.task import Task, task_at


@dataclass(slots=True)
class Left:
    """What is left out of what is sent."""

    too_large: int = 0  # tasks that no node takes
    details: int = 0  # tasks that had headers, a delay, an expiry or attempts, and are sent without


def ingest(
    target: Target,
    values: Values,
    outcome: Outcome,
    *,
    producer: str | None = None,
    progress: Progress = no_progress,
) -> Iterator[Sending]:
    """Return what is to be sent for each queue, or for the one that is asked for. Raises ``PenstockError``."""
    only = queue_of(values)
    found = replay(survey(target, progress=progress))
    state = found.state
    if only is not None and only.encode() not in state.by_name:
        refuse_queue(only)
    outcome.words += found.words
    outcome.is_damaged = found.is_damaged
    return _sendings(state, only, producer)


def _sendings(state: State, only: QueueName | None, producer: str | None) -> Iterator[Sending]:
    members = state.members
    cluster = b"" if members is None else members.cluster_id or b""
    for queue in sorted(state.queues.values(), key=lambda each: each.name):
        name, left = queue.settings.name, Left()
        if queue.count and only in (None, name):
            identity = producer_id(f"penstock/{cluster.hex()}/{queue.id}/{producer or ''}")
            requests = _requests(name, queue, identity, left)
            yield Sending(queue=name, requests=requests, left=left, owner=f"queue {str(name)!r}")


def _requests(name: QueueName, queue: Queue, identity: bytes, left: Left) -> Iterator[Enqueue]:
    for number, tasks in groupby(_by_id(queue), key=lambda task: task.id // BATCH_COUNT_MAX):
        keys: list[int] = []
        payloads: list[bytes] = []
        for task in tasks:
            if len(task.payload) > PAYLOAD_SIZE_MAX:
                left.too_large += 1
                continue
            keys.append(task.key)
            payloads.append(task.payload)
            left.details += _has_details(task)
        if payloads:
            yield Enqueue(queue=name, keys=keys, payloads=payloads, producer=Producer(identity, number + 1))  # fmt: skip


def _by_id(queue: Queue) -> Iterator[Task]:
    for chunk in queue.directory.freeze():
        for place in chunk.alive(range(chunk.count)):
            yield task_at(chunk, place)


def _has_details(task: Task) -> bool:
    times = (task.not_before_ms, task.expires_ms)
    return bool(task.headers or task.attempts) or times != (None, None)
