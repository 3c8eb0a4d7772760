"""All queues, rebuilt from a snapshot and the changes after it.

Deltas are results: they are applied without asking a policy, and one that contradicts the state is
damage. Commands are requests: they are decided here anew, as the node that logged them did. A plain reader needs no
more: our extensions change no task (docs/formats/extensions.md). But in generation 2 only they tell which of several
equal tasks a removal meant, and so in which order the rest stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, assert_never

from penstock.binary import Bytes
from penstock.errors import CorruptData, ReplayConflict
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import ADD, CREATE, DELETE, REMOVE, Change, decode_change
from penstock.formats.taskflux.extensions import decode_extension, is_extension
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.snapshot import StoredTask
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    Adding,
    AddTask,
    Command,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    Creating,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    Extension,
    ListQueues,
    Policy,
    QueueHead,
    QueueName,
    RemoveTask,
    Removing,
    Returning,
    TaskId,
)
from penstock.queues.contents import QueueContents


class Decoded(NamedTuple):
    """What an entry of generation 2 or 3 says: a delta, and an extension if it is one of those."""

    change: Change
    extension: Extension | None


def decode(data: Bytes, start: int, end: int, *, by_id: bool) -> Decoded:
    """Return what ``data[start:end]`` says. Raises ``BadData``."""
    change = decode_change(data, start, end, by_id=by_id)
    if change[0] == DELETE and is_extension(data, start, end):
        return Decoded(change, decode_extension(data, start, end))
    return Decoded(change, None)


class Queues:
    """The state of all queues. A new one holds the default queue alone."""

    def __init__(self, *, by_array_heap: bool = False) -> None:
        """Begin empty. ``by_array_heap``: tasks leave in the order of variants 1a and 1b."""
        self._by_array_heap = by_array_heap
        self.by_name: dict[QueueName, QueueContents] = {}
        self._begin(DEFAULT_QUEUE, NO_LIMITS)
        self.extensions = 0  # applied so far
        self.has_missed = False  # whether a removal by value found no task
        self._is_strict = False
        self._removing: deque[int] = deque()  # what an extension says of the next removals
        self._creating: Creating | None = None
        self._numbers: dict[int, QueueName] = {0: DEFAULT_QUEUE}
        self._next_number = 1

    def _begin(self, name: QueueName, policy: Policy, last_id: int = 0) -> QueueContents:
        queue = QueueContents(name, policy, last_id, by_array_heap=self._by_array_heap)
        self.by_name[name] = queue
        return queue

    def restore(self, head: QueueHead) -> QueueContents:
        """Begin a queue that a snapshot holds; its tasks are restored into the result."""
        return self._begin(head.name, head.policy, head.last_id)

    def number(self, found: Sequence[notes.Note], *, is_strict: bool) -> None:
        """Number the queues that a snapshot holds, as its notes ``found`` say, before entries are applied.

        ``is_strict``: an extension that speaks of what is not there is a conflict, as it is to a node.
        """
        self._is_strict = is_strict
        self._numbers = numbers_of(self.by_name, found)
        self._next_number = max(self._numbers, default=0) + 1
        for note in found:
            if isinstance(note, notes.Header):
                self._next_number = note.next_number

    # Applying entries.

    def replay(self, payload: bytes, contents: Contents) -> None:
        """Apply what a record holds: a delta, or a command that is decided here. Raises ``BadData``, ``ReplayConflict``."""
        if not payload:
            return
        if contents is Contents.COMMANDS:
            self.obey(decode_command(payload))
        else:
            by_id = contents is Contents.DELTAS_BY_ID
            self.apply(decode(payload, 0, len(payload), by_id=by_id), by_id=by_id)

    def apply(self, decoded: Decoded, *, by_id: bool) -> None:
        """Apply an entry. Raises ``ReplayConflict`` if it contradicts the state."""
        if decoded.extension is not None:
            self.extensions += 1
            self._extend(decoded.extension)
        else:
            self.apply_change(decoded.change, by_id=by_id)

    def apply_change(self, change: Change, *, by_id: bool) -> None:
        """Apply a delta that is no extension. Raises ``ReplayConflict``."""
        kind, name, middle, payload = change
        if kind == ADD:
            self._find(name, "added to").add(middle, payload)
        elif kind == CREATE:
            self.create(name, middle)
        elif kind == DELETE:
            self.delete(name)
        elif by_id:
            self.remove(name, middle)
        else:
            self.has_missed |= self.remove_equal(name, middle, payload) is None
        if self._removing and (by_id or kind != REMOVE):
            self._removing.clear()
        self._creating = None

    def _find(self, name: QueueName, what: str) -> QueueContents:
        queue = self.by_name.get(name)
        if queue is None:
            raise ReplayConflict(f"a task is {what} queue {name!r}, which does not exist")
        return queue

    def create(self, name: QueueName, policy: Policy) -> None:
        """Create a queue, and give it the next number."""
        if name in self.by_name:
            raise ReplayConflict(f"queue {name!r} is created but exists")
        self._begin(name, policy)
        creating, self._creating = self._creating, None
        if creating is not None and self._is_strict and creating.dead_letter is not None:
            self._refuse_number(creating.dead_letter)
        self._numbers[self._next_number] = name
        self._next_number += 1

    def delete(self, name: QueueName) -> None:
        """Drop a queue; deleting one that is missing has no effect, which is how logs say nothing."""
        if self.by_name.pop(name, None) is None:
            return
        if name == DEFAULT_QUEUE:
            # It always exists; a log that deletes it can only mean its tasks.
            self._begin(name, NO_LIMITS)
        else:
            self._numbers = {n: other for n, other in self._numbers.items() if other != name}

    def remove(self, name: QueueName, task_id: int) -> tuple[int, bytes]:
        """Remove by id and return key and payload; the format makes a missing id an error."""
        task = self._find(name, "removed from").remove(task_id)
        if task is None:
            raise ReplayConflict(f"task {task_id} is removed from queue {name!r} but is not there")
        return task

    def remove_equal(self, name: QueueName, key: int, payload: bytes) -> int | None:
        """Remove the task that is meant, or else the oldest equal one; return its id, if there is one."""
        queue = self._find(name, "removed from")
        if self._removing:
            task_id = self._removing.popleft()
            if queue.tasks.get(task_id) == (key, payload):
                queue.remove(task_id)
                return task_id
            self._removing.clear()
        return queue.remove_equal(key, payload)

    # Extensions.

    def _refuse_number(self, number: int) -> None:
        if number not in self._numbers:
            raise ReplayConflict(
                f"an extension speaks of queue number {number}, which is not there"
            )

    def _extend(self, extension: Extension) -> None:
        self._removing.clear()
        self._creating = None
        match extension:
            case Removing():
                self._removing.extend(extension.ids)
            case Creating():
                self._creating = extension
            case Returning():
                self._check_returning(extension)
            case Adding():
                pass

    def _check_returning(self, returning: Returning) -> None:
        if not self._is_strict or returning.queue not in self._numbers:
            return  # what returns to a queue that was deleted is gone with it
        name = self._numbers[returning.queue]
        for task_id in returning.ids:
            if task_id not in self.by_name[name].tasks:
                raise ReplayConflict(f"task {task_id} returns to queue {name!r} but is not there")

    # Obeying commands.

    def obey(self, command: Command) -> Delta | None:
        """Decide a command as generation 1 does and return what changed, if anything did."""
        match command:
            case Enqueue():
                return self._enqueue(command)
            case Dequeue():
                queue = self.by_name.get(command.queue)
                taken = None if queue is None else queue.pop()
                return (
                    None if taken is None else RemoveTask(queue=command.queue, id=TaskId(taken[0]))
                )
            case CreateCommand():
                return self._create(command.queue, Policy(size_max=command.size_max))
            case CreateWithPolicy():
                return self._create(command.queue, command.policy)
            case DeleteCommand():
                # Clients of variants 1a and 1b could delete the default queue too; what they put in then was refused.
                if self.by_name.pop(command.queue, None) is None:
                    return None
                return DeleteQueue(queue=command.queue)
            case CountTasks() | ListQueues():
                return None
            case _:
                assert_never(command)

    def _create(self, name: QueueName, policy: Policy) -> CreateQueue | None:
        if name in self.by_name or name == DEFAULT_QUEUE:
            return None
        self.create(name, policy)
        return CreateQueue(queue=name, policy=policy)

    def _enqueue(self, command: Enqueue) -> AddTask | None:
        queue = self.by_name.get(command.queue)
        if queue is None or not _is_allowed(queue, command):
            return None
        queue.add(command.key, command.payload)
        return AddTask(queue=command.queue, key=command.key, payload=command.payload)


def _is_allowed(queue: QueueContents, command: Enqueue) -> bool:
    """Return whether a queue's policy lets a task in. Variants 1a and 1b know only the size limit."""
    policy = queue.policy
    if policy.size_max is not None and len(queue) >= policy.size_max:
        return False
    if policy.payload_size_max is not None and len(command.payload) > policy.payload_size_max:
        return False
    return policy.keys is None or policy.keys.lowest <= command.key <= policy.keys.highest


# --- a snapshot's notes --------------------------------------------------------------------------


def numbers_of(names: Iterable[QueueName], found: Sequence[notes.Note]) -> dict[int, QueueName]:
    """Return the queues by number: as the notes have it, else as they stand in the file."""
    noted = {note.number: note.name for note in found if isinstance(note, notes.QueueNote)}
    if noted:
        return noted
    others = [name for name in names if name not in (DEFAULT_QUEUE, notes.QUEUE)]
    return dict(enumerate([DEFAULT_QUEUE, *others]))


def read_notes(queues: Queues, raw: Sequence[StoredTask]) -> list[notes.Note]:
    """Return a snapshot's notes, and give its tasks the ids they had.

    Raises ``BadData``, also for notes that do not belong to the snapshot.
    """
    found = [notes.decode_note(key, payload) for _, key, payload in raw]
    if found:
        _restore(queues, found)
    return found


def _restore(queues: Queues, found: Sequence[notes.Note]) -> None:
    noted = {note.number: note for note in found if isinstance(note, notes.QueueNote)}
    _check_queues(queues, found, noted)
    ids: dict[int, list[int]] = {}
    for note in found:
        if isinstance(note, notes.Ids):
            ids.setdefault(note.queue, []).extend(note.ids)
    for number, own in ids.items():
        contents = queues.by_name[_noted(noted, number).name]
        if len(own) != len(contents) or sorted(set(own)) != own or own[:1] == [0]:
            raise CorruptData(f"the snapshot's notes know other tasks of queue {contents.name!r}")
        contents.tasks = dict(zip(own, contents.tasks.values(), strict=True))
    for note in noted.values():
        contents = queues.by_name[note.name]
        if max(contents.tasks, default=0) > note.last_id:
            raise CorruptData(f"the snapshot's notes number queue {note.name!r} impossibly")
        contents.last_id = note.last_id
    for note_ in found:
        if isinstance(note_, notes.TaskNotes):
            tasks = queues.by_name[_noted(noted, note_.queue).name].tasks
            if not all(row[0] in tasks for row in note_.rows):
                raise CorruptData("the snapshot's notes know tasks that it does not hold")


def _check_queues(
    queues: Queues, found: Sequence[notes.Note], noted: dict[int, notes.QueueNote]
) -> None:
    header = found[0]
    names = [note.name for note in found if isinstance(note, notes.QueueNote)]
    if not isinstance(header, notes.Header):
        raise CorruptData("the snapshot's notes do not begin with their header")
    is_whole = len(names) == len(noted) and set(names) == queues.by_name.keys()
    if not is_whole or noted.get(0, header) == header or noted[0].name != DEFAULT_QUEUE:
        raise CorruptData("the snapshot's notes know other queues than it holds")
    if max(noted) >= header.next_number:
        raise CorruptData("the snapshot's notes number its queues impossibly")
    for note in noted.values():
        if note.dead_letter is not None:
            _noted(noted, note.dead_letter)


def _noted(noted: dict[int, notes.QueueNote], number: int) -> notes.QueueNote:
    if number not in noted:
        raise CorruptData(
            f"the snapshot's notes speak of queue number {number}, which is not there"
        )
    return noted[number]
