"""What a load generator knows of its tasks, and the comparison with what a node holds after a crash."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

Held = list[tuple[int, int, bytes]]
"""Tasks of a queue as they were delivered: (key, id, payload). Payloads are unlike each other."""


@dataclass(slots=True)
class Fate:
    """What is known of one task. All of it moves in one direction, but for what a crash left open."""

    queue: str
    key: int
    id: int | None = None  # known when its enqueue was answered, or when it was found
    is_kept: bool = False  # its enqueue was answered: it must not be lost
    is_leaving: bool = False  # its ack was sent: it may be gone
    is_gone: bool = False  # its ack was answered: it must not come back
    is_retried: bool = False  # its enqueue will be sent again: it may come later


@dataclass(slots=True)
class Account:
    """The tasks of a whole run by payload, and what contradicts each other already."""

    fates: dict[bytes, Fate] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    waiting_count: int = 0  # tasks that were kept and not acked, about

    def send(self, queue: str, key: int, payload: bytes, *, is_retried: bool = False) -> None:
        self.fates[payload] = Fate(queue, key, is_retried=is_retried)

    def keep(self, payload: bytes, task_id: int | None) -> None:
        """Note an answered enqueue; version 1 does not tell the id."""
        fate = self.fates[payload]
        if task_id is not None and fate.id not in (None, task_id):
            self.problems.append(f"doubled: {show(payload)} has ids {fate.id} and {task_id}")
        fate.id = task_id if fate.id is None else fate.id
        fate.is_kept = True
        fate.is_retried = False
        self.waiting_count += 1

    def deliver(self, payload: bytes, task_id: int, key: int) -> None:
        fate = self.fates.get(payload)
        if fate is None:
            self.problems.append(f"invented: {show(payload)} was delivered and never enqueued")
            return
        if fate.is_gone:
            self.problems.append(f"returned: {show(payload)} was delivered after its ack")
        if fate.key != key or fate.id not in (None, task_id):
            self.problems.append(f"changed: {show(payload)} is {key}/{task_id}, was {fate}")

    def leave(self, payload: bytes) -> None:
        self.fates[payload].is_leaving = True
        self.waiting_count -= 1

    def forget(self, payload: bytes) -> None:
        """Note an answered ack."""
        self.fates[payload].is_gone = True


def compare(account: Account, found: dict[str, Held]) -> list[str]:
    """Return what a node got wrong, and settle what a crash had left open by what was found."""
    problems = list(account.problems)
    places: dict[bytes, tuple[str, int, int]] = {}
    for queue, tasks in found.items():
        for earlier, later in pairwise(tasks):
            if earlier[:2] >= later[:2]:
                problems.append(f"order: {queue} gave {earlier[:2]} before {later[:2]}")
        for key, task_id, payload in tasks:
            if payload in places:
                problems.append(f"doubled: {show(payload)} is in {queue} and {places[payload][0]}")
            places[payload] = (queue, key, task_id)
            if payload not in account.fates:
                problems.append(f"invented: {show(payload)} in {queue}")
    for payload, fate in account.fates.items():
        problems += _judge(payload, fate, places.get(payload))
        _settle(fate, places.get(payload))
    account.waiting_count = len(places)
    return problems


def _judge(payload: bytes, fate: Fate, place: tuple[str, int, int] | None) -> list[str]:
    if place is None:
        if fate.is_kept and not fate.is_leaving:
            return [f"lost: {show(payload)}, {fate}"]
        return []
    queue, key, task_id = place
    if fate.is_gone:
        return [f"returned: {show(payload)}, {fate}"]
    if (queue, key) != (fate.queue, fate.key) or fate.id not in (None, task_id):
        return [f"changed: {show(payload)} is {place}, was {fate}"]
    return []


def _settle(fate: Fate, place: tuple[str, int, int] | None) -> None:
    if place is not None:
        fate.is_kept, fate.id, fate.is_leaving = True, place[2], False
    elif not fate.is_retried:
        fate.is_gone = True  # it may never appear again


def show(payload: bytes) -> str:
    return payload[:24].decode(errors="replace")
