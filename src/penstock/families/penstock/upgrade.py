"""Directories of TaskFlux, generations 1 to 3, as generation 4 (docs/formats/conversion.md).

Generations 2 and 3 are converted entry by entry, so that their history stays. Generation 1 logs requests, not results: its state
is written as a snapshot. Entry i becomes entry i + 3: the members and the default queue, which no entry of TaskFlux
creates, come first. No entry has a time. Delays, expiries, attempts, producers and options of queues that our extensions
store are taken along.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock.errors import CorruptData
from penstock.families.penstock.new_directory import lone_member, new_cluster_id, new_directory
from penstock.families.taskflux.convert import Taken
from penstock.families.taskflux.read import Found, History, restore_snapshot
from penstock.families.taskflux.replay import replay
from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.canonical import INTEGER_MAX
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Empty,
    RemoveTasks,
    ReturnTasks,
    SetMembers,
    SetQueue,
    Stamp,
)
from penstock.formats.records.columns import NONE
from penstock.formats.records.ids import RemoveReason, ReturnReason
from penstock.formats.records.read import Chain
from penstock.formats.records.settings import QueueSettings
from penstock.formats.records.writer import write_log
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.deltas import ADD, CREATE, DELETE, REMOVE
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.model import (
    DEFAULT_QUEUE,
    LEASE_MS,
    NO_LIMITS,
    NO_TERMS,
    Adding,
    Creating,
    Extension,
    HardState,
    Implementation,
    Policy,
    QueueName,
    Removing,
    Returning,
    Term,
    Terms,
)
from penstock.queues.columnar.snapshot import encode_snapshot, freeze
from penstock.queues.columnar.state import State
from penstock.queues.contents import QueueContents
from penstock.queues.replay import Queues, decode, numbers_of

NODE: Final = 1
OFFSET: Final = 3
"""What an index of TaskFlux, from 0 on, grows by."""

BATCH: Final = 4096  # tasks of one add while a snapshot's state is built


@dataclass(slots=True)
class Upgraded:
    """What a conversion to generation 4 wrote."""

    entries: int = 0
    snapshot_index: int | None = None
    queues: int = 0
    tasks: int = 0
    left_uncommitted: int = 0
    words: list[str] = field(default_factory=list)
    is_damaged: bool = False


def upgrade(history: History, out: Path, *, uncommitted: bool = False) -> Upgraded:
    """Write ``history`` as generation 4 into ``out``. Raises ``BadData`` and ``PathRefused``."""
    done, book = Upgraded(), _Book(new_cluster_id())
    with new_directory(out, source=history.target.path) as new:
        if history.target.generation is Generation.ONE:
            entries = _fold(history, book, done, uncommitted=uncommitted)
        else:
            entries = _by_entry(history, book, done, uncommitted=uncommitted)
        if book.state.index:
            done.snapshot_index = book.state.index
            new.write_snapshot(
                book.state.index, encode_snapshot(freeze(book.state), last_checksum=0)
            )
        new.write_log(
            write_log(
                book.applied(entries),
                cluster_id=book.cluster_id,
                chain=Chain(0, book.state.index),
                names={queue_id: name.encode() for name, queue_id in book.ids.items()},
            )
        )
        state = book.state
        term = 1 if history.metadata is None else history.metadata.state.term
        new.finish(
            node=NODE,
            cluster_id=book.cluster_id,
            state=HardState(term=Term(max(1, term, state.term))),
            last=state.index,
            committed=state.index,
        )
    done.queues, done.tasks = len(state.queues), sum(q.count for q in state.queues.values())
    return done


def _fold(history: History, book: _Book, done: Upgraded, *, uncommitted: bool) -> Iterator[Entry]:
    """Take the state of generation 1; there are no entries."""
    replayed = replay(history, uncommitted=uncommitted)
    if replayed.damage is not None:
        raise CorruptData(replayed.damage)
    done.words += [words for words in (replayed.tail, replayed.undecided) if words]
    done.is_damaged = replayed.tail is not None
    book.restore(replayed.queues, (), index=replayed.index + OFFSET, term=max(1, replayed.term))
    return iter(())


def _by_entry(
    history: History, book: _Book, done: Upgraded, *, uncommitted: bool
) -> Iterator[Entry]:
    """Take the snapshot, and yield what each entry behind it becomes."""
    queues, point = Queues(), history.point
    found = restore_snapshot(history, queues)
    queues.number(found, is_strict=False)
    if point is not None:
        book.restore(queues, found, index=point.index + OFFSET, term=point.term)
    return _entries(Taken(history, uncommitted=uncommitted), _Translation(queues, book), done)


Entry = tuple[int, Change]
"""A term and a change."""


def _entries(taken: Taken, translation: _Translation, done: Upgraded) -> Iterator[Entry]:
    if not translation.book.state.index:
        yield 1, SetMembers(lone_member(NODE, translation.book.cluster_id))
        yield 1, translation.create(DEFAULT_QUEUE, NO_LIMITS)
    for found in taken.entries():
        with taken.applying(found):
            changes = translation.changes(found)
        for change in changes:
            yield found.term, change
    done.entries, done.left_uncommitted = taken.count, taken.left
    done.words += [words for words in (taken.tail, taken.undecided) if words]
    done.is_damaged = taken.tail is not None


class _Book:
    """The state of generation 4 that is being written, and the ids of its queues."""

    def __init__(self, cluster_id: bytes) -> None:
        self.cluster_id = cluster_id
        self.state = State()
        self.ids: dict[QueueName, int] = {}
        self.by_number: dict[int, int] = {}  # queue ids by the numbers of our extensions
        self._next_id = 1
        self._next_number = 0

    def new_id(self, name: QueueName, number: int | None = None) -> int:
        """Give a queue its id, and the next number unless it has one."""
        queue_id = self.ids[name] = self._next_id
        self._next_id += 1
        number = self._next_number if number is None else number
        self.by_number[number] = queue_id
        self._next_number = max(self._next_number, number + 1)
        return queue_id

    def applied(self, entries: Iterator[Entry]) -> Iterator[tuple[Stamp, Change]]:
        """Yield entries with their stamps, applied."""
        for term, change in entries:
            stamp = Stamp(self.state.index + 1, term, 0)
            self.state.apply(change, stamp)
            yield stamp, change

    def restore(
        self, queues: Queues, found: Sequence[notes.Note], *, index: int, term: int
    ) -> None:
        """Take the queues and tasks of a snapshot, and what its notes say."""
        stamp = Stamp(index, term, 0)
        numbers = numbers_of(queues.by_name, found)
        for number in sorted(numbers):
            if numbers[number] in queues.by_name:
                self.new_id(numbers[number], number)
        for note in found:
            if isinstance(note, notes.Header):
                self._next_number = note.next_number
        self.state.apply(SetMembers(lone_member(NODE, self.cluster_id)), stamp)
        noted = {note.name: note for note in found if isinstance(note, notes.QueueNote)}
        rows = {
            (self.by_number[note.queue], row[0]): row
            for note in found
            if isinstance(note, notes.TaskNotes)
            for row in note.rows
        }
        for name, queue_id in self.ids.items():
            contents = queues.by_name[name]
            change = set_queue(queue_id, contents.policy, name, self._options(noted.get(name)))
            self.state.apply(change, stamp)
            self._add(queue_id, contents, rows, stamp)
        self._remember(found)

    def _options(self, note: notes.QueueNote | None) -> dict[str, Any]:
        if note is None:
            return {}
        return self.options(note.lease_ms, note.attempts_max, note.dead_letter)

    def options(self, lease_ms: int, attempts_max: int | None, dead_letter: int | None) -> dict[str, Any]:  # fmt: skip
        """Return the options of a queue as generation 4 has them."""
        options: dict[str, Any] = {}
        if lease_ms != LEASE_MS:
            options["lease_ms"] = lease_ms
        if attempts_max is not None:
            options["attempts_max"] = attempts_max
        if dead_letter is not None and dead_letter in self.by_number:
            options["dead_letter"] = self.by_number[dead_letter]
        return options

    def _add(
        self,
        queue_id: int,
        contents: QueueContents,
        rows: dict[tuple[int, int], notes.TaskRow],
        stamp: Stamp,
    ) -> None:
        tasks = contents.for_snapshot(as_array=False)
        last_id = contents.last_id
        while batch := list(islice(tasks, BATCH)):
            ids, keys, payloads = zip(*batch, strict=True)
            of_ids = [rows.get((queue_id, task_id), (task_id, 0, -1, -1)) for task_id in ids]
            body = encode_add(
                contents.name.encode(),
                keys,
                payloads,
                ids=ids,
                attempts=[row[1] for row in of_ids],
                not_before=[NONE if row[2] < 0 else row[2] for row in of_ids],
                expires=[NONE if row[3] < 0 else row[3] for row in of_ids],
            )
            add = AddTasks(queue_id, ids[0], decode_add(body, 0, len(body), Rules.RECORD))
            self.state.apply(add, stamp)
            last_id = max(last_id, ids[-1])
        self.state.queues[queue_id].last_id = last_id

    def _remember(self, found: Sequence[notes.Note]) -> None:
        """Take along which requests of producers are known: the last one, and where its tasks went."""
        for note in found:
            if not isinstance(note, notes.ProducerNote):
                continue
            last = max(note.requests, key=lambda request: request[0], default=None)
            sequence, number, _, runs = last or (note.forgotten, -1, 0, [])
            first_id, count = runs[0] if len(runs) == 1 else (0, 0)
            self.state.producers.record(
                note.id,
                sequence=sequence,
                queue_id=self.by_number.get(number, 0),
                first_id=first_id,
                count=count,
                time_ms=0,
            )


def set_queue(queue_id: int, policy: Policy, name: QueueName, options: dict[str, Any]) -> SetQueue:
    """Return the creation of a queue with the limits of TaskFlux."""
    limits: dict[str, Any] = {}
    if policy.implementation is not Implementation.HEAP:
        limits["implementation"] = policy.implementation.name.lower()
    if policy.size_max is not None:
        limits["size_max"] = policy.size_max
    if policy.payload_size_max is not None:
        limits["payload_size_max"] = policy.payload_size_max
    if policy.keys is not None:
        limits["keys"] = [_number(policy.keys.lowest), _number(policy.keys.highest)]
    return SetQueue(queue_id, QueueSettings(name=name, policy=limits, options=options))


def _number(value: int) -> int | str:
    """Return a number as canonical JSON has it."""
    return value if abs(value) <= INTEGER_MAX else str(value)


class _Translation:
    """Makes changes of entries, replaying as it goes: removals by value need ids."""

    def __init__(self, queues: Queues, book: _Book) -> None:
        self.queues = queues
        self.book = book
        self._adding = (NO_TERMS, 0)  # terms, and for how many entries they hold
        self._creating: Creating | None = None

    def changes(self, found: Found) -> list[Change]:
        """Apply an entry; return what it becomes. Raises ``BadData`` and ``ReplayConflict``."""
        terms, left = self._adding
        self._adding = (terms, left - 1) if left > 1 else (NO_TERMS, 0)
        creating, self._creating = self._creating, None
        if not found.payload:
            return [Empty()]
        by_id = found.log.layout.contents is Contents.DELTAS_BY_ID
        decoded = decode(found.payload, 0, len(found.payload), by_id=by_id)
        if decoded.extension is not None:
            self.queues.apply(decoded, by_id=by_id)
            return [self._extension(decoded.extension)]
        kind, name, middle, payload = decoded.change
        if kind == REMOVE and not by_id:
            task_id = self.queues.remove_equal(name, middle, payload)
            return [Empty() if task_id is None else self._remove(name, task_id)]
        is_there = name in self.queues.by_name
        self.queues.apply_change(decoded.change, by_id=by_id)
        if kind == ADD:
            return [self._add(name, middle, payload, terms if left else NO_TERMS)]
        if kind == CREATE:
            return [self.create(name, middle, creating)]
        if kind == DELETE:
            return self._delete(name) if is_there else [Empty()]
        return [self._remove(name, middle)]

    def create(self, name: QueueName, policy: Policy, creating: Creating | None = None) -> SetQueue:
        """Return the creation of a queue."""
        options: dict[str, Any] = {}
        if creating is not None:
            fields = (creating.lease_ms, creating.attempts_max, creating.dead_letter)
            options = self.book.options(*fields)
        return set_queue(self.book.new_id(name), policy, name, options)

    def _delete(self, name: QueueName) -> list[Change]:
        deleted = DeleteQueue(self.book.ids.pop(name))
        if name != DEFAULT_QUEUE:
            return [deleted]
        # TaskFlux always has it, and begins to number its tasks again.
        queue_id = self.book.new_id(name, 0)
        return [deleted, set_queue(queue_id, NO_LIMITS, name, {})]

    def _remove(self, name: QueueName, task_id: int) -> RemoveTasks:
        ids = range(task_id, task_id + 1)
        return RemoveTasks(self.book.ids[name], ids, RemoveReason.ACKED)

    def _add(self, name: QueueName, key: int, payload: bytes, terms: Terms) -> AddTasks:
        task_id = self.queues.by_name[name].last_id
        body = encode_add(
            name.encode(),
            key,
            [payload],
            not_before=terms.not_before_ms,
            expires=terms.expires_ms,
            attempts=[terms.attempts],
            producer=None if terms.producer is None else (terms.producer, terms.sequence),
        )
        columns = decode_add(body, 0, len(body), Rules.RECORD)
        return AddTasks(self.book.ids[name], task_id, columns)

    def _extension(self, extension: Extension) -> Change:
        match extension:
            case Adding(count=count, terms=terms):
                self._adding = (terms, count)
            case Creating():
                self._creating = extension
            case Returning(queue=number, ids=ids, not_before_ms=time_ms):
                return self._return(number, sorted(set(ids)), time_ms)
            case Removing():
                pass
        return Empty()

    def _return(self, number: int, ids: Sequence[int], time_ms: int | None) -> Change:
        queue_id = self.book.by_number.get(number)
        if queue_id is None:
            return Empty()  # what returns to a queue that was deleted is gone with it
        not_before = NONE if time_ms is None else time_ms
        return ReturnTasks(queue_id, as_ids(ids), ReturnReason.FAILED, not_before)


def as_ids(ids: Sequence[int]) -> range | array[int]:
    """Return ascending ids as records have them."""
    if ids[-1] - ids[0] == len(ids) - 1:
        return range(ids[0], ids[-1] + 1)
    return array("Q", ids)
