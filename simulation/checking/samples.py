"""Histories of queues that do everything right, and ways to spoil them: for those who test a check.

The queues in here are sorted lists of their own, apart from the model that the checks use.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from simulation.checking.history import Op, Operation, Outcome, Refusal
from simulation.checking.witness import LogEntry

# --- enqueue and dequeue alone -------------------------------------------------------------------


def plain_history(
    random: Random,
    count: int,
    *,
    keys: int = 3,
    slack: int = 12,
    unknown: float = 0.0,
    lost: float = 0.0,
) -> list[Operation]:
    """Return enqueues and dequeues that take for good, in the order in which they took effect.

    Each took effect at some moment of its window, which reaches less than ``slack`` to both sides of it. ``unknown``
    and ``lost`` are the shares of enqueues and dequeues without an answer, half of which had no effect.
    """
    history: list[Operation] = []
    waiting: list[tuple[int, int]] = []
    moment = 0
    for number in range(count):
        moment += random.randrange(5)
        fields: dict[str, Any] = {"process": number}
        fields["t0"] = moment - random.randrange(slack)
        fields["t1"] = moment + random.randrange(slack)
        if random.random() < 0.55:
            key = random.randrange(keys)
            is_answered = random.random() >= unknown
            if is_answered or random.random() < 0.5:
                insort(waiting, (key, number))
            fields |= {"op": Op.ENQUEUE, "ids": (number,), "keys": (key,)}
        else:
            is_answered = random.random() >= lost
            ids: tuple[int, ...] = ()
            if waiting and (is_answered or random.random() < 0.5):
                ids = (waiting.pop(0)[1],)
            fields |= {"op": Op.DEQUEUE, "ids": ids if is_answered else ()}
        fields["outcome"] = Outcome.OK if is_answered else Outcome.UNKNOWN
        history.append(Operation(**fields))
    return history


def filled_and_emptied(random: Random, count: int, *, keys: int = 1000) -> list[Operation]:
    """Return a history in which all tasks wait at once, half of the operations long."""
    order = sorted((random.randrange(keys), number) for number in range(count // 2))
    by_name = sorted(order, key=lambda pair: pair[1])
    history = [
        Operation(process=0, op=Op.ENQUEUE, ids=(name,), keys=(key,), t0=4 * name, t1=4 * name + 9)
        for key, name in by_name
    ]
    start = 4 * len(order) + 10
    for number, (_, name) in enumerate(order):
        t0 = start + 4 * number
        history.append(Operation(process=1, op=Op.DEQUEUE, ids=(name,), t0=t0, t1=t0 + 3))
    return history


def spoiled(random: Random, history: Sequence[Operation]) -> list[Operation]:
    """Return a history with one thing changed: answers, a window, or a key. It may still be a right one."""
    changed = list(history)
    way = random.randrange(9)
    if way == 0:
        _copy_answer(random, changed)
    elif way < 3:
        _swap_answers(random, changed)
    elif way < 5:
        place = random.randrange(len(changed))
        shift = random.randrange(-30, 31)
        one = changed[place]
        changed[place] = replace(one, t0=one.t0 + shift, t1=one.t1 + shift)
    elif way < 7:
        place = random.randrange(len(changed))
        middle = (changed[place].t0 + changed[place].t1) // 2
        changed[place] = replace(changed[place], t0=middle, t1=middle)
    else:
        places = [n for n, one in enumerate(changed) if one.op is Op.ENQUEUE]
        if places:
            place = random.choice(places)
            changed[place] = replace(changed[place], keys=(random.randrange(-1, 4),))
    return changed


def _swap_answers(random: Random, history: list[Operation]) -> None:
    answered = _answered(history)
    if len(answered) > 1:
        one, other = random.sample(answered, 2)
        ids = history[one].ids
        history[one] = replace(history[one], ids=history[other].ids)
        history[other] = replace(history[other], ids=ids)


def _copy_answer(random: Random, history: list[Operation]) -> None:
    answered = _answered(history)
    if len(answered) > 1:
        one, other = random.sample(answered, 2)
        history[one] = replace(history[one], ids=history[other].ids)


def _answered(history: Sequence[Operation]) -> list[int]:
    """Return where the dequeues are that were answered."""
    return [
        number
        for number, one in enumerate(history)
        if one.op is Op.DEQUEUE and one.outcome is Outcome.OK
    ]


# --- leases, a log, and what goes wrong ----------------------------------------------------------


class Life:
    """A queue with leases in a group whose leader changes; every answer has its place in the log.

    The history is drained at its end; ``log`` has the committed entries.
    """

    def __init__(self, random: Random, count: int, *, keys: int = 5, unknown: float = 0.01) -> None:
        self.history: list[Operation] = []
        self.log: list[LogEntry] = [LogEntry(index=1, term=1)]
        self._random = random
        self._keys = keys
        self._unknown = unknown
        self._moment = 0
        self._term = 1
        self._step = 0
        self._added = 0
        self._waiting: list[tuple[int, int]] = []  # key and name; names count up
        self._held: dict[
            int, tuple[int, int, float]
        ] = {}  # name -> key, process, since when it is known
        self._lost: list[tuple[int, int]] = []  # name and process of leases that ended
        while len(self.history) < count:
            self._act()
        self._drain()

    def _act(self) -> None:
        choice = self._random.random()
        if choice < 0.31:
            self._enqueue()
        elif choice < 0.66:
            self._dequeue()
        elif choice < 0.96:
            self._settle(Op.ACK)
        elif choice < 0.985:
            self._settle(Op.NACK)
        elif choice < 0.995:
            self._refuse()
        elif choice < 0.998:
            self._end_lease()
        elif choice < 0.9995:
            self._disconnect()
        else:
            self._lead()

    def _drain(self) -> None:
        self._lead()
        self._unknown = 0.0
        while self._waiting:
            self._dequeue()
            self._moment += 20
            self._settle(Op.ACK)
        self._moment += 20
        self._dequeue()

    def _note(self, op: Op, *, is_logged: bool, since: float = 0, **fields: Any) -> Operation:
        """Note an operation that takes effect now, as an entry of its own or resting on the last one."""
        self._moment += self._random.randrange(4)
        fields.setdefault("process", self._random.randrange(8))
        t0 = max(self._moment - self._random.randrange(12), since)
        t1 = self._moment + self._random.randrange(12)
        place: dict[str, Any] = {}
        is_answered = not is_logged or self._random.random() >= self._unknown
        if is_logged:
            self._step = 0
            ids = fields.get("ids", ())
            index = self.log[-1].index + 1
            self.log.append(LogEntry(index=index, term=self._term, op=op, ids=ids))
        else:
            self._step += 1
        if is_answered:
            place = {"index": self.log[-1].index, "term": self._term, "step": self._step}
        fields.setdefault("outcome", Outcome.OK if is_answered else Outcome.UNKNOWN)
        operation = Operation(op=op, t0=t0, t1=t1, **place, **fields)
        self.history.append(operation)
        return operation

    def _enqueue(self) -> None:
        count = 1 if self._random.random() < 0.9 else self._random.randrange(2, 6)
        ids = tuple(range(self._added + 1, self._added + count + 1))
        keys = tuple([self._random.randrange(self._keys) for _ in ids])
        self._added += count
        self._note(Op.ENQUEUE, is_logged=True, ids=ids, keys=keys)
        for key, name in zip(keys, ids, strict=True):
            insort(self._waiting, (key, name))

    def _dequeue(self) -> None:
        asked = self._random.choice([1, 1, 1, 4])
        taken, self._waiting = self._waiting[:asked], self._waiting[asked:]
        ids, keys = tuple([name for _, name in taken]), tuple([key for key, _ in taken])
        operation = self._note(Op.DEQUEUE, is_logged=False, ids=ids, keys=keys, asked=asked)
        for key, name in taken:
            assert isinstance(operation.process, int)
            self._held[name] = (key, operation.process, operation.t1)

    def _ready(self) -> int | None:
        """Return a task whose holder knows that it has it."""
        for name, (_, _, since) in self._held.items():
            if since <= self._moment:
                return name
        return None

    def _settle(self, op: Op) -> None:
        name = self._ready()
        if name is None:
            return
        key, process, since = self._held.pop(name)
        self._note(op, is_logged=True, since=since, ids=(name,), process=process)
        if op is Op.NACK:
            insort(self._waiting, (key, name))

    def _refuse(self) -> None:
        """Somebody settles a lease that has ended."""
        if self._lost:
            name, process = self._lost.pop()
            if self._held.get(name, (0, -1, 0.0))[1] != process:
                refused: dict[str, Any] = {"outcome": Outcome.FAIL, "reason": Refusal.LEASE_LOST}
                self._note(Op.ACK, is_logged=False, ids=(name,), process=process, **refused)

    def _put_back(self, names: Sequence[int]) -> None:
        for name in names:
            key, process, _ = self._held.pop(name)
            self._lost.append((name, process))
            insort(self._waiting, (key, name))

    def _end_lease(self) -> None:
        name = self._ready()
        if name is not None:
            self._note(Op.LEASE_END, is_logged=False, ids=(name,), process="node")
            self._put_back([name])

    def _disconnect(self) -> None:
        process = self._random.randrange(8)
        self._note(Op.DISCONNECT, is_logged=False, process=process)
        self._put_back([name for name, held in self._held.items() if held[1] == process])

    def _lead(self) -> None:
        self._term += 1
        self._step = 0
        self.log.append(LogEntry(index=self.log[-1].index + 1, term=self._term))
        self._note(Op.LEAD, is_logged=False, process="node")
        self._put_back(list(self._held))
