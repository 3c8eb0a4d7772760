"""The body of kind 131: what a sealed segment holds, so that readers split and prune it (docs/formats/records.md).

A footer can be made again from the segment: `FooterBuilder` notes each record, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, assert_never

from penstock.binary import Bytes, decode_queue_name
from penstock.errors import BadRecord, InvalidQueueName
from penstock.formats.records import add
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
)
from penstock.formats.records.columns import ColumnReader, encode_array, encode_blobs, padded
from penstock.formats.records.header import Header
from penstock.formats.records.ids import Ids, Times
from penstock.model import INT64_MAX, INT64_MIN, UINT64_MAX

MARK_DISTANCE: Final = 2**20
"""How many bytes of records are at least between two marks, where a split may begin."""

_FIXED: Final = Struct("<IIQ16s")  # marks, queues, entries, digest


class Mark(NamedTuple):
    """A place where a split may begin."""

    offset: int  # in the file
    index: int  # type: ignore[assignment] # hides a method of tuples that nothing calls
    previous: int  # head checksum of the record before


class QueueSummary(NamedTuple):
    """What the records of a segment say of one queue. An empty range has its first value above its last."""

    queue_id: int
    name: bytes | None  # None: no record that was read tells it
    records: int
    first_id: int = UINT64_MAX  # the ids that records name, also those of removed tasks
    last_id: int = 0
    least_key: int = INT64_MAX  # of added tasks, and keys that tasks are given
    greatest_key: int = INT64_MIN
    least_time: int = INT64_MAX
    greatest_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """A decoded footer."""

    entries: int  # records of the segment, the footer itself not counted
    marks: tuple[Mark, ...]
    queues: tuple[QueueSummary, ...]  # in the order of ids
    digest: bytes  # BLAKE2b-128 of the file before the footer


def encode_footer(footer: Footer) -> bytes:
    """Return the body of a footer."""
    queues = footer.queues
    names = [queue.name for queue in queues]
    parts = [
        _FIXED.pack(len(footer.marks), len(queues), footer.entries, footer.digest),
        encode_array("Q", [mark.offset for mark in footer.marks]),
        encode_array("Q", [mark.index for mark in footer.marks]),
        encode_array("I", [mark.previous for mark in footer.marks]),
        encode_array("I", [queue.queue_id for queue in queues]),
        padded(bytes(name is not None for name in names)),
        encode_array("Q", [queue.records for queue in queues]),
        encode_array("Q", [queue.first_id for queue in queues]),
        encode_array("Q", [queue.last_id for queue in queues]),
        encode_array("q", [queue.least_key for queue in queues]),
        encode_array("q", [queue.greatest_key for queue in queues]),
        encode_array("q", [queue.least_time for queue in queues]),
        encode_array("q", [queue.greatest_time for queue in queues]),
        encode_blobs([name or b"" for name in names]),
    ]
    return b"".join(parts)


def decode_footer(data: Bytes, start: int, end: int) -> Footer:
    """Check the body in ``data[start:end]``. Raises ``BadRecord``. The digest is for the caller to compare."""
    reader = ColumnReader(data, start, end, 0)
    at = reader.take(_FIXED.size, "a footer")
    mark_count, queue_count, entries, digest = _FIXED.unpack_from(data, at)
    reader.count = mark_count
    offsets = reader.array("Q", 8, "marks").tolist()
    indexes = reader.array("Q", 8, "marks").tolist()
    previous = reader.array("I", 4, "marks").tolist()
    if sorted(set(offsets)) != offsets or sorted(set(indexes)) != indexes:
        raise BadRecord("the marks of a footer do not ascend", offset=at)
    reader.count = queue_count
    queue_ids = reader.array("I", 4, "queues").tolist()
    if sorted(set(queue_ids)) != queue_ids:
        raise BadRecord("the queues of a footer do not ascend", offset=at)
    has_name = reader.array("B", 1, "queues").tolist()
    columns = [reader.array(form, 8, "queues").tolist() for form in "QQQqqqq"]
    names = [
        _decode_name(name, known, at)
        for name, known in zip(reader.blobs("names").values(), has_name, strict=True)
    ]
    if reader.at != end:
        raise BadRecord("bytes left over behind a footer", offset=reader.at)
    return Footer(
        entries=entries,
        marks=tuple(map(Mark, offsets, indexes, previous)),
        queues=tuple(map(QueueSummary, queue_ids, names, *columns)),
        digest=digest,
    )


def _decode_name(name: bytes, known: int, at: int) -> bytes | None:
    if known > 1 or (name and not known):
        raise BadRecord("a footer contradicts itself about a name", offset=at)
    try:
        decode_queue_name(name)
    except InvalidQueueName as error:
        raise BadRecord(str(error), offset=at) from None
    return name if known else None


# --- making one ----------------------------------------------------------------------------------


class _Named(NamedTuple):
    """What one change says of one queue."""

    queue_id: int
    first_id: int = UINT64_MAX
    last_id: int = 0
    least_key: int = INT64_MAX
    greatest_key: int = INT64_MIN
    name: bytes | None = None


class FooterBuilder:
    """Notes the records of a segment, one by one."""

    def __init__(self, names: Mapping[int, bytes] | None = None) -> None:
        """Begin a segment. ``names``: of queues, as far as they are known before it."""
        self.names: dict[int, bytes] = dict(names or {})
        self._entries = 0
        self._marks: list[Mark] = []
        self._queues: dict[int, QueueSummary] = {}

    def note(self, offset: int, header: Header, change: Change) -> None:
        """Note the record at ``offset`` of the file."""
        self._entries += 1
        if not self._marks or offset - self._marks[-1].offset >= MARK_DISTANCE:
            self._marks.append(Mark(offset, header.index, header.previous))
        noted = set()
        for named in _named(change):
            if named.name is not None:
                self.names[named.queue_id] = named.name
            self._merge(named, header.time_ms, is_new=named.queue_id not in noted)
            noted.add(named.queue_id)

    def _merge(self, named: _Named, time_ms: int, *, is_new: bool) -> None:
        queue_id = named.queue_id
        before = self._queues.get(queue_id) or QueueSummary(queue_id, None, 0)
        self._queues[queue_id] = QueueSummary(
            queue_id,
            None,
            before.records + is_new,
            min(before.first_id, named.first_id),
            max(before.last_id, named.last_id),
            min(before.least_key, named.least_key),
            max(before.greatest_key, named.greatest_key),
            min(before.least_time, time_ms),
            max(before.greatest_time, time_ms),
        )

    def footer(self, digest: bytes) -> Footer:
        """Return the footer of all that was noted."""
        queues = (self._queues[queue_id] for queue_id in sorted(self._queues))
        return Footer(
            entries=self._entries,
            marks=tuple(self._marks),
            queues=tuple(queue._replace(name=self.names.get(queue.queue_id)) for queue in queues),
            digest=digest,
        )


def _named(change: Change) -> Iterator[_Named]:
    """Yield what a change says of each queue that it names."""
    match change:
        case AddTasks(queue_id, first_id, body):
            ids = (body.extra or {}).get(add.IDS)
            last_id = first_id + body.count - 1 if ids is None else ids[-1]
            yield _Named(queue_id, first_id, last_id, *_range(body.keys), body.name)
        case RemoveTasks() | Deliver():
            yield _Named(change.queue_id, *_ends(change.ids))
        case ReturnTasks() | SetTasks():
            yield _Named(change.queue_id, *_ends(change.ids), *_range(change.keys))
        case MoveTasks():
            yield _Named(change.queue_id, *_ends(change.ids))
            first = change.first_destination_id
            last = min(first + len(change.ids) - 1, UINT64_MAX)
            yield _Named(change.destination_id, first, last, *_range(change.keys))
        case SetQueue(queue_id, settings):
            yield _Named(queue_id, name=settings.name.encode())
        case DeleteQueue(queue_id):
            yield _Named(queue_id)
        case Envelope(parts):
            for part in parts:
                yield from _named(part.change)
        case Empty() | SetMembers() | SetAccess():
            pass
        case _ as never:
            assert_never(never)


def _ends(ids: Ids) -> tuple[int, int]:
    return (ids.start, ids.stop - 1) if isinstance(ids, range) else (ids[0], ids[-1])


def _range(keys: Times | None) -> tuple[int, int]:
    if keys is None:
        return INT64_MAX, INT64_MIN
    return (keys, keys) if isinstance(keys, int) else (min(keys), max(keys))
