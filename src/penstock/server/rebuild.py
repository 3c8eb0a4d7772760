"""From files to state and back: replaying a log, restoring and writing a snapshot with its notes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import assert_never

from penstock.errors import BadData, ReplayConflict
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.deltas import ADD, CREATE, DELETE, decode_adds, decode_change
from penstock.formats.taskflux.extensions import decode_extension, is_extension
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import Patch, SnapshotLayout, encode_snapshot
from penstock.formats.taskflux.snapshot_decode import Batch, SnapshotHeader, decode_snapshot
from penstock.model import (
    NO_LIMITS,
    NO_OPTIONS,
    NO_TERMS,
    Adding,
    Creating,
    Extension,
    Implementation,
    Index,
    Policy,
    QueueHead,
    QueueName,
    QueueOptions,
    Removing,
    Returning,
    SnapshotPoint,
    TaskId,
    Terms,
)
from penstock.queues.queue import Queue
from penstock.queues.state import Shelf, State
from penstock.queues.tasks import Tasks
from penstock.raft.configuration import (
    Configuration,
    apply_change,
    decode_configuration,
    encode_configuration,
)
from penstock.raft.configuration import decode_change as decode_group_change
from penstock.server.entry_store import change_in, is_change
from penstock.storage.directory import NodeDirectory
from penstock.storage.records import Stretch


def rebuild(directory: NodeDirectory, shelf: Shelf | None = None) -> State:
    """Return the state that a directory holds. Raises ``BadData`` or ``ReplayConflict``, with the place.

    The shelf has the pages of paged queues as they were at the snapshot.
    """
    state = State(shelf)
    restore(state, directory)
    point = directory.snapshot.point
    after = Index(0 if point is None else point.index + 1)
    replay = Replay(state, is_by_id=directory.layout.generation is Generation.THREE)
    for stretch in directory.log.stretches(after):
        replay.apply(stretch)
    return state


def restore(state: State, directory: NodeDirectory) -> None:
    """Fill a new state from the snapshot, if there is one. Raises ``BadData`` or ``ReplayConflict``."""
    if directory.snapshot.point is not None:
        restore_snapshot(state, directory)


class Replay:
    """Applies entries to a state, in order, from buffers of many."""

    def __init__(
        self, state: State, *, is_by_id: bool, initial: Configuration | None = None
    ) -> None:
        """``initial``: what the group began with; ``None`` for a group of one, whose members do not change."""
        self._state = state
        self._is_by_id = is_by_id
        self._initial = initial
        # What the extension before said of the entries to come.
        self._terms: Terms = NO_TERMS
        self._terms_left = 0
        self._creating: Creating | None = None
        self._removing: deque[int] = deque()
        self._by_value: dict[int, _ByValue] = {}  # by queue number, for generation 2's removals

    @property
    def is_between(self) -> bool:
        """Whether no extension waits for entries that it speaks of: the state says all there is to say."""
        return not self._terms_left and self._creating is None and not self._removing

    def apply_payloads(self, first: Index, payloads: Sequence[bytes]) -> None:
        """Apply consecutive entries by their payloads. Raises as ``apply`` does."""
        ends = list(accumulate(map(len, payloads)))
        starts = [0, *ends[:-1]]
        self.apply(Stretch(first=first, data=b"".join(payloads), starts=starts, ends=ends))

    def apply(self, stretch: Stretch) -> None:
        """Apply consecutive entries. Raises ``BadData`` or ``ReplayConflict`` naming the entry."""
        data, starts, ends = stretch.data, stretch.starts, stretch.ends
        number, count = 0, len(starts)
        try:
            while number < count:
                start, end = starts[number], ends[number]
                if start < end and data[start] == ADD:
                    number = self._add(data, starts, ends, number)
                    continue
                if start < end:  # an empty entry keeps an index in use and is no delta
                    self._apply_one(data, start, end)
                number += 1
        except (BadData, ReplayConflict) as error:
            place = f"entry {stretch.first + number}: {error}"
            raise ReplayConflict(
                f"{place}; restore the file, or salvage with 'penstock repair'"
            ) from error

    def _add(self, data: bytes, starts: list[int], ends: list[int], number: int) -> int:
        stop = len(starts)
        if self._terms_left:
            stop = min(stop, number + self._terms_left)
        adds = decode_adds(data, starts, ends, number, stop)
        queue = self._state.find(adds.queue)
        first = self._state.add(queue, adds.keys, adds.payloads, self._terms)
        if queue.number in self._by_value:
            self._by_value[queue.number].add(first, adds.keys, adds.payloads)
        if self._terms_left:
            self._terms_left -= adds.following - number
            if not self._terms_left:
                self._terms = NO_TERMS
        self._creating = None
        self._removing.clear()
        return adds.following

    def _apply_one(self, data: bytes, start: int, end: int) -> None:
        if is_extension(data, start, end):
            if self._initial is not None and is_change(data[start:end]):
                self._change_members(data[start:end], self._initial)
                return
            extension = decode_extension(data, start, end)
            if extension is not None:
                self._extend(extension)
                return
        kind, name, middle, payload = decode_change(data, start, end, by_id=self._is_by_id)
        if kind == CREATE:
            self._create(name, middle)
        elif kind == DELETE:
            self._delete(name)
        elif self._is_by_id:
            self._state.find(name).remove(middle)
        else:
            self._remove_equal(self._state.find(name), middle, payload)
            return  # the one kind of entry that goes on with what an extension began
        self._forget_extension()

    def _change_members(self, payload: bytes, initial: Configuration) -> None:
        self._forget_extension()
        group = self._state.group
        configuration = decode_configuration(group) if group else initial
        change = decode_group_change(change_in(payload))
        self._state.group = encode_configuration(apply_change(configuration, change))

    def _forget_extension(self) -> None:
        self._terms, self._terms_left, self._creating = NO_TERMS, 0, None
        self._removing.clear()

    def _extend(self, extension: Extension) -> None:
        self._forget_extension()
        match extension:
            case Adding():
                self._terms, self._terms_left = extension.terms, extension.count
            case Creating():
                self._creating = extension
            case Removing():
                self._removing.extend(extension.ids)
            case Returning():
                self._state.return_(
                    extension.queue, extension.ids, not_before_ms=extension.not_before_ms
                )
            case _:
                assert_never(extension)

    def _create(self, name: QueueName, policy: Policy) -> None:
        options = NO_OPTIONS
        if self._creating is not None:
            options = _options(self._state, self._creating)
        self._state.create(name, policy, options)

    def _delete(self, name: QueueName) -> None:
        queue = self._state.by_name.get(name)
        if queue is not None:
            # The default queue begins anew under its old number.
            self._by_value.pop(queue.number, None)
            self._state.delete(name)

    def _remove_equal(self, queue: Queue, key: int, payload: bytes) -> None:
        self._terms, self._terms_left, self._creating = NO_TERMS, 0, None
        if self._removing:
            task_id = self._removing.popleft()
            # Another program may have gone on where ours was cut off; its removals are its own.
            if queue.tasks.get(task_id) == (key, payload):
                queue.remove(task_id)
                return
            self._removing.clear()
        by_value = self._by_value.get(queue.number)
        if by_value is None:
            by_value = self._by_value[queue.number] = _ByValue(queue)
        by_value.remove(key, payload)


def _options(state: State, creating: Creating | notes.QueueNote) -> QueueOptions:
    dead_letter: QueueName | None = None
    if creating.dead_letter is not None:
        queue = state.find_number(creating.dead_letter)
        if queue is None:
            raise ReplayConflict(
                f"queue number {creating.dead_letter} is to take dead letters but does not exist"
            )
        dead_letter = queue.name
    return QueueOptions(
        lease_ms=creating.lease_ms, attempts_max=creating.attempts_max, dead_letter=dead_letter
    )


class _ByValue:
    """A queue's tasks by key and payload, for logs that remove so and name no ids."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._ids: dict[tuple[int, bytes], deque[int]] = {}
        for task_id, key, payload in queue.tasks:
            self._ids.setdefault((key, payload), deque()).append(task_id)

    def add(self, first: int, keys: Iterable[int], payloads: Iterable[bytes]) -> None:
        for task_id, value in enumerate(zip(keys, payloads, strict=True), first):
            self._ids.setdefault(value, deque()).append(task_id)

    def remove(self, key: int, payload: bytes) -> None:
        """Remove the oldest equal task; none at all is allowed, as the format has it."""
        ids = self._ids.get((key, payload))
        while ids:
            task_id = ids.popleft()
            if not ids:
                del self._ids[key, payload]
            if self._queue.tasks.get(task_id) is not None:
                self._queue.remove(task_id)
                return


# --- snapshots -----------------------------------------------------------------------------------


def restore_snapshot(state: State, directory: NodeDirectory) -> None:
    """Fill a new state from the snapshot in place. Raises ``BadData`` or ``ReplayConflict``."""
    header = directory.snapshot.header
    assert header is not None
    file = directory.snapshot.open()
    found: list[notes.Note] = []
    try:
        queue: Queue | None = None
        for part in decode_snapshot(file.read, file.size(), header.layout):
            match part:
                case SnapshotHeader():
                    pass
                case QueueHead():
                    queue = None if part.name == notes.QUEUE else state.restore(part)
                case Batch():
                    if queue is None:
                        found += [notes.decode_note(key, data) for _, key, data in part.tasks]
                    else:
                        _restore_tasks(queue, part)
    except BadData as error:
        raise error.located(str(directory.layout.snapshot)) from None
    finally:
        file.close()
    if found:
        _restore_notes(state, found)
    else:
        state.open_pages()


def _restore_tasks(queue: Queue, batch: Batch) -> None:
    for task_id, key, payload in batch.tasks:
        queue.restore(task_id, key, payload)


def _restore_notes(state: State, found: list[notes.Note]) -> None:
    queues = [note for note in found if isinstance(note, notes.QueueNote)]
    header = found[0]
    if not isinstance(header, notes.Header):
        raise ReplayConflict("the snapshot's own notes do not begin with their header")
    if len({note.name for note in queues}) != len(queues):
        raise ReplayConflict("the snapshot's own notes know a queue twice")
    _restore_ids(state, queues, [note for note in found if isinstance(note, notes.Ids)])
    _restore_last_ids(state, queues)
    state.renumber({note.name: note.number for note in queues}, header.next_number)
    state.open_pages()
    for queue_note in queues:
        state.by_name[queue_note.name].options = _options(state, queue_note)
    for note in found:
        match note:
            case notes.TaskNotes():
                _restore_task_notes(state, note)
            case notes.ProducerNote():
                state.producers.restore(note.id, note.forgotten)
                for sequence, queue, total, runs in note.requests:
                    for first, count in runs:
                        state.producers.note(
                            note.id, sequence, queue=queue, total=total, first=first, count=count
                        )
            case notes.GroupNote():
                state.group = note.configuration
            case _:
                pass


def _restore_ids(state: State, queues: list[notes.QueueNote], columns: list[notes.Ids]) -> None:
    """Give the tasks of a generation 2 snapshot the ids they had; the file only has their order."""
    names = {note.number: note.name for note in queues}
    ids: dict[QueueName, list[int]] = {}
    for column in columns:
        if column.queue not in names:
            raise ReplayConflict("the snapshot's own notes name a queue that it does not hold")
        ids.setdefault(names[column.queue], []).extend(column.ids)
    last_ids = {note.name: note.last_id for note in queues}
    for name, own in ids.items():
        old = state.by_name.get(name)
        if old is None or len(old) != len(own):
            raise ReplayConflict(f"the snapshot's own notes know other tasks of queue {name!r}")
        if sorted(set(own)) != own or (own and not 1 <= own[0] <= own[-1] <= last_ids[name]):
            raise ReplayConflict(f"the snapshot's own notes number queue {name!r} impossibly")
        fresh = Queue(name, old.number, old.policy, old.options, Tasks(last_ids[name]))
        for task_id, (_, key, payload) in zip(own, old.tasks, strict=True):
            fresh.restore(task_id, key, payload)
        state.by_name[name] = state.by_number[old.number] = fresh


def _restore_last_ids(state: State, queues: list[notes.QueueNote]) -> None:
    """Let the ids go on where they were, also in a queue that is empty: entries behind refer to them."""
    for note in queues:
        queue = state.by_name.get(note.name)
        if queue is None or queue.tasks.last_id > note.last_id:
            raise ReplayConflict(f"the snapshot's own notes number queue {note.name!r} impossibly")
        queue.tasks.last_id = note.last_id


def _restore_task_notes(state: State, note: notes.TaskNotes) -> None:
    queue = state.find_number(note.queue)
    if queue is None:
        raise ReplayConflict("the snapshot's own notes name a queue that it does not hold")
    for task_id, attempts, not_before_ms, expires_ms in note.rows:
        if queue.tasks.get(task_id) is None:
            raise ReplayConflict(
                f"the snapshot's own notes know a task {task_id} that queue {queue.name!r} lacks"
            )
        if attempts:
            queue.attempts[task_id] = attempts
        if not_before_ms >= 0:
            queue.delay(task_id, not_before_ms)
        if expires_ms >= 0:
            queue.expiring.set(task_id, expires_ms)


class SnapshotWalk:
    """The state as it is now, as the pieces of a snapshot file, while the state goes on changing.

    ``pieces`` may be taken slowly; ``end`` must be called afterwards, also if they were not all taken.
    """

    def __init__(self, state: State, point: SnapshotPoint, layout: SnapshotLayout) -> None:
        queues = list(state.queues())
        has_ids = layout.form.has_ids
        is_plain = _is_plain(state, has_ids=has_ids)
        noted = [] if is_plain else list(notes.encode_notes(_notes(state, has_ids=has_ids)))
        self._queues = queues
        parts: list[tuple[QueueHead, Iterable[tuple[int, int, bytes]]]] = [
            (_head(queue), queue.tasks.walk()) for queue in queues
        ]
        if noted:
            head = QueueHead(
                name=notes.QUEUE, policy=NO_LIMITS, last_id=TaskId(len(noted)), count=len(noted)
            )
            tasks = [(number, *note) for number, note in enumerate(noted, 1)]
            parts.append((head, tasks))
        names = [queue.name for queue in queues]
        self.pieces = _encode(names, encode_snapshot(point, len(parts), parts, layout))

    def end(self) -> None:
        for queue in self._queues:
            queue.tasks.end_walk()


def _encode(
    names: list[QueueName], pieces: Generator[bytes, None, Patch | None]
) -> Generator[bytes, None, Patch | None]:
    """Yield the pieces. Raises ``CannotConvert`` with the first, where whoever takes them expects it."""
    notes.refuse_queue(names)
    return (yield from pieces)


def _head(queue: Queue) -> QueueHead:
    """Return what a snapshot says of a queue; the tasks of a paged one stay on its pages."""
    if queue.policy.implementation is Implementation.PAGED:
        return replace(queue.head, count=0)
    return queue.head


def _is_plain(state: State, *, has_ids: bool) -> bool:
    """Return whether a plain snapshot says all there is to say."""
    numbers = [queue.number for queue in state.queues()]
    if numbers != list(range(len(numbers))) or state.next_number != len(numbers):
        return False
    if len(state.producers) or state.group:
        return False
    for queue in state.queues():
        if queue.options != NO_OPTIONS or queue.attempts:
            return False
        if queue.delays() or len(queue.expiring):
            return False
        # Generation 2 numbers the tasks of a queue from 1 on when it reads them.
        if not has_ids and queue.tasks.last_id != len(queue):
            return False
    return True


def _notes(state: State, *, has_ids: bool) -> Iterator[notes.Note]:
    yield notes.Header(next_number=state.next_number)
    for queue in state.queues():
        options = queue.options
        dead_letter = None
        if options.dead_letter is not None:
            dead_letter = state.by_name[options.dead_letter].number
        yield notes.QueueNote(
            name=queue.name,
            number=queue.number,
            last_id=queue.tasks.last_id,
            lease_ms=options.lease_ms,
            attempts_max=options.attempts_max,
            dead_letter=dead_letter,
        )
        rows = _task_rows(queue)
        while part := list(islice(rows, notes.ROWS_MAX)):
            yield notes.TaskNotes(queue=queue.number, rows=part)
        if not has_ids:
            ids = (task_id for task_id, _, _ in queue.tasks)
            while some := tuple(islice(ids, notes.ROWS_MAX)):
                yield notes.Ids(queue=queue.number, ids=some)
    for producer, forgotten, requests in state.producers:
        rows_ = [
            (sequence, taken.queue, taken.total, list(taken.runs))
            for sequence, taken in requests.items()
        ]
        yield notes.ProducerNote(id=producer, forgotten=forgotten, requests=rows_)
    if state.group:
        yield notes.GroupNote(configuration=state.group)


def _task_rows(queue: Queue) -> Iterator[notes.TaskRow]:
    noted, delays = set(queue.attempts), queue.delays()
    noted.update(delays)
    noted.update(task_id for task_id, _ in queue.expiring)
    for task_id in sorted(noted):
        not_before_ms, expires_ms = delays.get(task_id), queue.expiring.get(task_id)
        yield (
            task_id,
            queue.attempts.get(task_id, 0),
            -1 if not_before_ms is None else not_before_ms,
            -1 if expires_ms is None else expires_ms,
        )
