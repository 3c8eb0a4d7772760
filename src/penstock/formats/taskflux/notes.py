"""Notes: what a snapshot holds of ours beyond queues and tasks (docs/formats/extensions.md).

They stand in the snapshot itself, as the tasks of a queue whose name no queue can have: under the same
checksum, in place at the same moment. A plain reader sees one more queue; a snapshot without it is a
plain one. The key of such a task says what its payload is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct, pack, unpack_from
from typing import Final

from penstock.binary import UINT64, Reader, encode_queue_name
from penstock.errors import CannotConvert, CorruptData, UnsupportedVersion
from penstock.model import INT32_MAX, LEASE_MS_MAX, RESERVED_PREFIX, QueueName

QUEUE: Final = QueueName(RESERVED_PREFIX + "notes")

_VERSION: Final = 1
_HEADER: Final = 0
_QUEUE: Final = 1
_TASKS: Final = 2
_PRODUCER: Final = 3
_IDS: Final = 4
_GROUP: Final = 5

ROWS_MAX: Final = 2048
"""Rows in one payload: about 64 KB."""

_HEADER_FIELDS: Final = Struct(">IQ")
_QUEUE_FIELDS: Final = Struct(">QQIIQ")
_TASK_ROW: Final = Struct(">QIqq")
_PRODUCER_FIELDS: Final = Struct(">16sBQI")
_REQUEST: Final = Struct(">QQII")
_RUN: Final = Struct(">QI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    next_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNote:
    name: QueueName
    number: int
    last_id: int
    lease_ms: int
    attempts_max: int | None
    dead_letter: int | None  # the number of that queue


TaskRow = tuple[int, int, int, int]
"""(id, failed attempts, not before or -1, expires or -1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNotes:
    queue: int
    rows: list[TaskRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """The next ids of a queue's tasks, in the order of the snapshot, which generation 2 does not store."""

    queue: int
    ids: tuple[int, ...]


Request = tuple[int, int, int, list[tuple[int, int]]]
"""(sequence, queue number, total, runs of (first id, count))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerNote:
    id: bytes
    forgotten: int  # the highest sequence whose result is not known any more; -1: none
    requests: list[Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNote:
    """The members of the group at the snapshot: what they look like is the group's business."""

    configuration: bytes


Note = Header | QueueNote | TaskNotes | Ids | ProducerNote | GroupNote


def refuse_queue(names: Iterable[QueueName]) -> None:
    """Raise ``CannotConvert`` if a queue has the name of the notes.

    TaskFlux allows the name. A reader of the snapshot would take the tasks of that queue for notes, and refuse them.
    """
    if QUEUE in names:
        raise CannotConvert(
            f"a snapshot cannot hold queue {QUEUE!r}: its name is reserved for Penstock's own notes; take its tasks and"
            " delete it"
        )


def encode_notes(notes: Iterable[Note]) -> Iterator[tuple[int, bytes]]:
    """Yield the key and payload of each task that the notes become, in order."""
    for note in notes:
        match note:
            case Header():
                yield _HEADER, _HEADER_FIELDS.pack(_VERSION, note.next_number)
            case QueueNote():
                yield _QUEUE, _encode_queue(note)
            case TaskNotes():
                rows = b"".join([_TASK_ROW.pack(*row) for row in note.rows])
                yield _TASKS, UINT64.pack(note.queue) + rows
            case Ids():
                yield _IDS, pack(f">Q{len(note.ids)}Q", note.queue, *note.ids)
            case ProducerNote():
                yield _PRODUCER, _encode_producer(note)
            case GroupNote():
                yield _GROUP, note.configuration


def _encode_queue(note: QueueNote) -> bytes:
    dead_letter = 0 if note.dead_letter is None else note.dead_letter + 1
    numbers = (note.number, note.last_id, note.lease_ms, note.attempts_max or 0, dead_letter)
    return encode_queue_name(note.name) + _QUEUE_FIELDS.pack(*numbers)


def _encode_producer(note: ProducerNote) -> bytes:
    has_forgotten = note.forgotten >= 0
    forgotten = max(0, note.forgotten)
    pieces = [_PRODUCER_FIELDS.pack(note.id, has_forgotten, forgotten, len(note.requests))]
    for sequence, queue, total, runs in note.requests:
        pieces.append(_REQUEST.pack(sequence, queue, total, len(runs)))
        pieces += [_RUN.pack(*run) for run in runs]
    return b"".join(pieces)


def decode_note(key: int, payload: bytes) -> Note:
    """Return the note in a task of the notes' queue. Raises ``BadData``."""
    reader = Reader(payload)
    note = _decode(key, reader)
    reader.finish("a note")
    return note


def _decode(key: int, reader: Reader) -> Note:
    if key == _HEADER:
        version, next_number = _HEADER_FIELDS.unpack(reader.take(_HEADER_FIELDS.size, "the notes"))
        if version != _VERSION:
            raise UnsupportedVersion(
                "the snapshot's notes are of a later version; use a newer Penstock",
                expected=str(_VERSION),
                found=str(version),
            )
        return Header(next_number=next_number)
    if key == _QUEUE:
        name = reader.queue_name()
        fields = _QUEUE_FIELDS.unpack(reader.take(_QUEUE_FIELDS.size, "a queue's note"))
        if not 1 <= fields[2] <= LEASE_MS_MAX or fields[3] > INT32_MAX:
            raise CorruptData("options that no queue can have", offset=reader.offset)
        return QueueNote(
            name=name,
            number=fields[0],
            last_id=fields[1],
            lease_ms=fields[2],
            attempts_max=fields[3] or None,
            dead_letter=fields[4] - 1 if fields[4] else None,
        )
    if key == _TASKS:
        queue = reader.uint64()
        if reader.remaining % _TASK_ROW.size:
            raise CorruptData("a task's note is not whole", offset=reader.offset)
        raw = reader.take(reader.remaining, "tasks' notes")
        rows = list(_TASK_ROW.iter_unpack(raw))
        if any(min(row[2:]) < -1 for row in rows):
            raise CorruptData("a time before 1970", offset=8)
        return TaskNotes(queue=queue, rows=rows)
    if key == _IDS:
        queue = reader.uint64()
        if reader.remaining % 8:
            raise CorruptData("an id is not whole", offset=reader.offset)
        raw = reader.take(reader.remaining, "ids")
        return Ids(queue=queue, ids=unpack_from(f">{len(raw) // 8}Q", raw))
    if key == _PRODUCER:
        return _decode_producer(reader)
    if key == _GROUP:
        return GroupNote(configuration=bytes(reader.take(reader.remaining, "the group")))
    raise CorruptData("a note of an unknown kind", found=str(key))


def _decode_producer(reader: Reader) -> ProducerNote:
    fields = _PRODUCER_FIELDS.unpack(reader.take(_PRODUCER_FIELDS.size, "a producer's note"))
    producer, has_forgotten, forgotten, count = fields
    if has_forgotten > 1 or forgotten * (1 - has_forgotten):
        raise CorruptData("a producer's note that means nothing", offset=16)
    requests: list[Request] = []
    for _ in range(count):
        sequence, queue, total, run_count = _REQUEST.unpack(reader.take(_REQUEST.size, "a request"))
        runs = [_RUN.unpack(reader.take(_RUN.size, "a run")) for _ in range(run_count)]
        requests.append((sequence, queue, total, runs))
    forgotten = forgotten if has_forgotten else -1
    return ProducerNote(id=producer, forgotten=forgotten, requests=requests)
