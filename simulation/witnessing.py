"""Where each answer took effect: the committed log, and what a leader had applied when it delivered.

With that the exact check of ``simulation.checking.witness`` judges the clients' history: every answer must be the one that a
plain queue gives at that place, and the places must agree with the clients' clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

from penstock.formats.taskflux.deltas import ADD, CREATE, REMOVE, decode_change
from penstock.formats.taskflux.extensions import decode_extension
from penstock.model import Returning
from penstock.protocol import version2 as v2
from penstock.server.broker import Broker
from penstock.server.group import Group
from penstock.server.session2 import Session2
from simulation.checking import witness
from simulation.checking.history import Op, Operation, Outcome, merged_retries
from simulation.checking.violations import Violation
from simulation.checking.witness import Effect
from simulation.network import End

Request = tuple[int, int]
"""A connection, and the number of a request on it."""

_SETTLING: Final = (Op.ACK, Op.NACK)

_NEVER: Final = 2**62
"""The return of what never returned, in microseconds."""


class NotInLog(Exception):
    """Something was answered that no committed entry tells of."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a leader had applied when it answered, as files count, in which term, and which answer of all it was."""

    index: int
    term: int
    step: int
    names: tuple[str, ...]  # of tasks that were delivered
    token: int  # of the lease of the first of them


class Witness:
    """Gathers places while a world runs."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, bytes]] = {}  # committed, by index: term and payload
        self._places: dict[Request, Place] = {}
        self._requests: dict[int, Request] = {}  # of operations, by their object

    def note_answer(self, request: Request, index: int, term: int, answer: v2.Answer) -> None:
        names: tuple[str, ...] = ()
        token = 0
        if isinstance(answer, v2.Delivered):
            names = tuple(payload.rstrip(b".").decode() for payload in answer.payloads)
            token = answer.token
        self._places[request] = Place(index, term, len(self._places) + 1, names, token)

    def note_operation(self, operation: Operation, request: Request) -> None:
        """Note on which request an operation of the history went out."""
        self._requests[id(operation)] = request

    def judge(self, history: Sequence[Operation]) -> tuple[Violation, ...]:
        """Return what is wrong with a history."""
        return _Judgement(self, self._places, self._requests).judge(history)


class WatchedSession(Session2):
    """A production session whose answers are noted with what they rest on."""

    def __init__(self, broker: Broker, end: End, group: Group | None, witness: Witness) -> None:
        super().__init__(broker, end.write, group)
        self._watched = broker.replica
        self._witness = witness
        self._connection = end.number

    def answer(self, number: int, answer: v2.Answer) -> None:
        if isinstance(answer, v2.Delivered | v2.Settled):
            replica = self._watched
            request = self._connection, number
            self._witness.note_answer(request, replica.applied, replica.group.term, answer)
        super().answer(number, answer)


class _Judgement:
    """One history, with the places of its operations."""

    def __init__(
        self, witness: Witness, places: dict[Request, Place], requests: dict[int, Request]
    ) -> None:
        self._places = places
        self._requests = requests
        self._terms = {index: term for index, (term, _) in witness.entries.items()}
        self._added: dict[str, int] = {}  # where each task was added
        self._removed: dict[str, int] = {}  # and where it was removed
        self._returned: dict[str, list[int]] = {}
        self._created: dict[str, int] = {}
        self._queue_of: dict[str, str] = {}
        self._unlimited: set[str] = set()  # queues with a batch that a crash has cut in two
        self._creators: dict[
            str, Operation
        ] = {}  # who created each queue, as far as that is not known
        self._leases: dict[str, list[tuple[int, int, int]]] = {}  # index, step and token of each
        self._read(witness)
        for place in places.values():
            for token, name in enumerate(place.names, place.token):
                self._leases.setdefault(name, []).append((place.index, place.step, token))

    def _read(self, witness: Witness) -> None:
        names: dict[tuple[str, int], str] = {}
        counts: dict[str, int] = {}
        queues = [""]  # by number
        for index in sorted(witness.entries):
            payload = witness.entries[index][1]
            kind, queue, detail, task = decode_change(payload, 0, len(payload), by_id=True)
            if kind == CREATE:
                queues.append(queue)
                self._created[queue] = index
            elif kind == ADD:
                counts[queue] = counts.get(queue, 0) + 1
                name = names[queue, counts[queue]] = task.rstrip(b".").decode()
                self._added[name] = index
                self._queue_of[name] = queue
            elif kind == REMOVE:
                self._removed[names[queue, detail]] = index
            elif isinstance(extension := decode_extension(payload, 0, len(payload)), Returning):
                for number in extension.ids:
                    name = names[queues[extension.queue], number]
                    self._returned.setdefault(name, []).append(index)

    def judge(self, history: Sequence[Operation]) -> tuple[Violation, ...]:
        self._creators = self._find_creators(history)
        placed: list[Operation] = []
        claimed: set[tuple[str, int]] = set()  # returns that somebody asked for
        for operation in merged_retries(history):
            if operation.op in (Op.DISCONNECT, Op.LEAD):
                continue  # what they do to leases is in the log, or comes with the term
            if operation.op is Op.ENQUEUE and operation.outcome is not Outcome.FAIL:
                placed += self._place_enqueue(operation)
                continue
            index = self._index(operation)
            if index is None:
                if operation.outcome is not Outcome.OK:
                    placed.append(operation)
                    continue
                raise NotInLog(f"{operation} was answered, and the log has nothing of it")
            if operation.op is Op.NACK:
                claimed.add((str(operation.ids[0]), index))
            placed.append(self._put(operation, index))
        placed += self._lease_ends(claimed)
        placed = [self._without_limit(operation) for operation in placed]
        return witness.check(placed, committed=self._find)

    def _without_limit(self, operation: Operation) -> Operation:
        """Let a queue have no limit if a batch was cut in two: its rest is taken even where it does not fit."""
        if operation.op is not Op.CREATE or operation.queue not in self._unlimited:
            return operation
        changed = replace(operation, policy=None)
        if self._creators.get(operation.queue) is operation:
            self._creators[operation.queue] = changed
        return changed

    def _find_creators(self, history: Sequence[Operation]) -> dict[str, Operation]:
        """Return the first attempt to create each queue that was made and that nobody was told of."""
        creates = [one for one in history if one.op is Op.CREATE]
        told = {one.queue for one in creates if one.outcome is Outcome.OK}
        found: dict[str, Operation] = {}
        for one in sorted(creates, key=lambda one: one.t0):
            is_open = one.outcome is Outcome.UNKNOWN and one.queue not in told
            if is_open and one.queue in self._created:
                found.setdefault(one.queue, one)
        return found

    def _put(self, operation: Operation, index: int) -> Operation:
        if operation.op is Op.DEQUEUE:
            place = self._places[self._requests[id(operation)]]
            return replace(operation, index=index, term=place.term, step=place.step)
        return replace(operation, index=index, term=self._terms[index])

    def _index(self, operation: Operation) -> int | None:
        """Return where an answered operation took effect."""
        if operation.outcome is not Outcome.OK:
            return None
        if operation.op is Op.CREATE:
            return self._created.get(operation.queue)
        place = self._places.get(self._requests[id(operation)])
        if operation.op not in _SETTLING or place is None:
            return None if place is None else place.index
        name = str(operation.ids[0])
        if operation.op is Op.ACK:
            return self._removed.get(name)
        # The last return before the answer: it could be lent out again only when that was applied.
        return max((i for i in self._returned.get(name, []) if i <= place.index), default=None)

    def _place_enqueue(self, operation: Operation) -> Iterator[Operation]:
        """Yield the parts of a batch: a crash may cut one in two, and a repetition bring the rest."""
        places = [
            (self._added[name], name) for name in map(str, operation.ids) if name in self._added
        ]
        if operation.outcome is Outcome.OK and len(places) < len(operation.ids):
            raise NotInLog(f"{operation} was answered, and the log lacks some of it")
        # All attempts are one by now, and its parts are not repetitions of each other.
        whole = replace(operation, producer=None, sequence=None, outcome=Outcome.OK)
        t1 = operation.t1 if operation.outcome is Outcome.OK else _NEVER
        part: list[str] = []
        is_cut = bool(places) and max(places)[0] - min(places)[0] >= len(places)
        if is_cut:
            self._unlimited.add(operation.queue)
        for (index, name), following in zip_longest(sorted(places), sorted(places)[1:]):
            part.append(name)
            if following is None or following[0] != index + 1:
                yield replace(_only(whole, part), t1=t1, index=index, term=self._terms[index])
                part = []

    def _lease_ends(self, claimed: set[tuple[str, int]]) -> Iterable[Operation]:
        """Yield the ends of leases that nobody asked for and the log tells of."""
        for name, indexes in self._returned.items():
            for index in indexes:
                if (name, index) not in claimed:
                    yield Operation(
                        process="",
                        op=Op.LEASE_END,
                        queue=self._queue_of[name],
                        ids=(name,),
                        t0=0,
                        t1=_NEVER,
                        index=index,
                        term=self._terms[index],
                    )

    def _find(self, operation: Operation) -> Sequence[Effect]:
        """Return where an operation of unknown outcome took effect, if it did."""
        names = tuple(map(str, operation.ids))
        if operation.op is Op.CREATE and self._creators.get(operation.queue) is operation:
            return [self._effect(self._created[operation.queue], ())]
        if operation.op is Op.ACK and self._is_remover(operation):
            return [self._effect(self._removed[names[0]], names)]
        if operation.op is Op.DEQUEUE:
            place = self._places.get(self._requests.get(id(operation), (0, 0)))
            if place is not None and place.names:
                return [
                    Effect(index=place.index, term=place.term, step=place.step, ids=place.names)
                ]
        return []

    def _effect(self, index: int, names: tuple[str, ...]) -> Effect:
        return Effect(index=index, term=self._terms[index], ids=names)

    def _is_remover(self, operation: Operation) -> bool:
        """Return whether an ack without an answer is of the lease that its task was out on when it was removed."""
        name = str(operation.ids[0])
        removed = self._removed.get(name, 0)
        before = [lease for lease in self._leases.get(name, []) if lease[0] < removed]
        return bool(before) and operation.tokens == (max(before)[2],)


def _only(operation: Operation, names: Sequence[str]) -> Operation:
    """Return the part of a batch that concerns these tasks."""
    kept = [place for place, name in enumerate(operation.ids) if name in names]
    columns: dict[str, Any] = {
        column: tuple(values[place] for place in kept)
        if (values := getattr(operation, column))
        else ()
        for column in ("ids", "keys", "sizes", "numbers")
    }
    return replace(operation, **columns)
