"""A chunk: tasks in the bytes of the record that added them, and the status of each.

Ids ascend. One status byte for each task says whether it is there or gone; leases and delays are beside the state. A change
writes to a chunk only through its queue, which copies a chunk first if a frozen view refers to it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

from penstock.binary import Bytes
from penstock.formats.records.add import (
    ATTEMPTS,
    BORN,
    ENQUEUED,
    ENTRY_EACH,
    EXPIRES_EACH,
    EXPIRES_ONE,
    IDS,
    NOT_BEFORE_EACH,
    NOT_BEFORE_ONE,
    PRINCIPAL_EACH,
    PRODUCER,
    AddBody,
)
from penstock.formats.records.columns import NONE
from penstock.queues.columnar.columns import (
    TIME_MAX,
    Column,
    Ids,
    Numbers,
    Places,
    clamped,
    copied,
    copied_blobs,
    own,
    pick,
)
from penstock.queues.columnar.details import STRINGS, Details, earliest
from penstock.queues.columnar.sources import UNKNOWN_MS, condensed

READY: Final = 0
GONE: Final = 1
_GONE: Final = b"\1"

TASK_SIZE: Final = 24
"""Bytes that a task takes beside its payload, in columns and order; counted when chunks are judged by their bytes."""

SPARE_MAX: Final = 4096
"""A chunk keeps the buffer that it was decoded from if no more than this and a quarter of it is foreign."""


class Chunk:
    """Neighbouring tasks of a queue, ascending by id."""

    __slots__ = (
        "at", "base_ms", "count", "data", "details", "end", "enqueued_ms", "entry", "epoch",
        "first", "ids", "is_rekeyed", "keys", "live", "live_size", "principal_id", "size", "sizes", "sparse_below", "status",
    )  # fmt: skip

    def __init__(
        self,
        first: int,
        ids: Numbers | None,
        count: int,
        keys: Column,
        sizes: Column,
        size: int,
        data: Bytes,
        at: int,
    ) -> None:
        self.first = first
        self.end = first + count if ids is None else ids[-1] + 1
        self.ids = ids  # None where they are consecutive
        self.count = count
        self.keys = keys
        self.sizes = sizes  # one for all, or count + 1 offsets into data, from ``at`` on
        self.size = size  # of all payloads, gone ones included
        self.data = data
        self.at = at
        self.status = bytearray(count)
        self.live = count
        self.live_size = size
        self.base_ms = 0
        self.enqueued_ms = UNKNOWN_MS
        self.principal_id = 0
        self.entry = 0
        self.details: Details | None = None
        self.is_rekeyed = False  # a task may be listed under a key that it no longer has
        self.sparse_below = (
            size + TASK_SIZE * count + 3
        ) // 4  # bytes; of a part of a chunk that was cut up: infinite
        self.epoch = 0  # of the directory when the chunk was made; a frozen view has those below the current one

    def copy(self) -> Chunk:
        """Return a chunk that can be written to while a frozen view reads this one."""
        keys = self.keys[:] if isinstance(self.keys, array) else self.keys
        new = Chunk(
            self.first, self.ids, self.count, keys, self.sizes, self.size, self.data, self.at
        )
        new.status = self.status[:]
        new.live = self.live
        new.live_size = self.live_size
        new.base_ms = self.base_ms
        new.enqueued_ms = self.enqueued_ms
        new.principal_id = self.principal_id
        new.entry = self.entry
        new.details = None if self.details is None else self.details.copy()
        new.is_rekeyed = self.is_rekeyed
        new.sparse_below = self.sparse_below
        return new

    # Where tasks are.

    def places(self, ids: Ids) -> Places:
        """Return the places of those of the ids that the chunk has; the tasks may be gone."""
        own_ids = self.ids
        if isinstance(ids, range):
            if own_ids is None:
                start = max(ids.start - self.first, 0)
                return range(start, max(min(ids.stop, self.end) - self.first, start))
            start = bisect_left(own_ids, ids.start)
            return range(start, bisect_left(own_ids, ids.stop, start))
        inside = ids[bisect_left(ids, self.first) : bisect_left(ids, self.end)]
        if own_ids is None:
            first = self.first
            return [task_id - first for task_id in inside]
        found = []
        place = 0
        for task_id in inside:
            place = bisect_left(own_ids, task_id, place)
            if own_ids[place] == task_id:
                found.append(place)
        return found

    def alive(self, places: Places) -> Places:
        """Return those places whose tasks are there."""
        status = self.status
        if isinstance(places, range):
            start, stop = places.start, places.stop
            if self.live == self.count or not status.count(GONE, start, stop):
                return places
            return [place for place in places if not status[place]]
        return [place for place in places if not status[place]]

    def id_at(self, place: int) -> int:
        return self.first + place if self.ids is None else self.ids[place]

    def ids_at(self, places: Places) -> Ids:
        """Return the ids of places: a range if they are consecutive."""
        if self.ids is None:
            if isinstance(places, range):
                return range(self.first + places.start, self.first + places.stop)
            first = self.first
            return [first + place for place in places]
        return pick(self.ids, places, "Q")

    # What tasks are.

    def key_at(self, place: int) -> int:
        keys = self.keys
        return keys if isinstance(keys, int) else keys[place]

    def payload_at(self, place: int) -> Bytes:
        sizes = self.sizes
        if isinstance(sizes, int):
            start = self.at + place * sizes
            return self.data[start : start + sizes]
        return self.data[self.at + sizes[place] : self.at + sizes[place + 1]]

    def size_of(self, places: Places) -> int:
        """Return the bytes of the payloads of some tasks."""
        sizes = self.sizes
        if isinstance(sizes, int):
            return len(places) * sizes
        if isinstance(places, range):
            return sizes[places.stop] - sizes[places.start]
        return sum([sizes[place + 1] - sizes[place] for place in places])

    # Changes. The places are those of tasks that are there.

    def remove(self, places: Places) -> int:
        """Mark tasks as gone; return the bytes of their payloads."""
        status = self.status
        count = len(places)
        if isinstance(places, range):
            status[places.start : places.stop] = _GONE * count
        else:
            for place in places:
                status[place] = GONE
        size = self.size_of(places)
        self.live -= count
        self.live_size -= size
        return size

    def set_keys(self, places: Places, keys: int | Sequence[int]) -> None:
        """Give tasks other keys: one for all of them, or one for each."""
        if isinstance(keys, int):
            if keys == self.keys:
                return
            keys = [keys] * len(places)
        column = own(self.keys, self.count, "q", 0)
        self.keys = column
        self.is_rekeyed = True
        for place, key in zip(places, keys, strict=True):
            column[place] = key

    def own_details(self) -> Details:
        if self.details is None:
            self.details = Details()
        return self.details

    @property
    def is_sparse(self) -> bool:
        """Whether less than a quarter of the bytes that the chunk keeps in memory belongs to tasks that are there."""
        return self.live_size + TASK_SIZE * self.live < self.sparse_below


def chunk_of(first_id: int, body: AddBody, *, entry: int, time_ms: int, principal_id: int) -> Chunk:
    """Return the tasks of an add. Its bytes are kept as they are, unless they are a small part of a large buffer."""
    data, extra = body.data, body.extra
    is_foreign = len(data) - (body.end - body.start) > (len(data) >> 2) + SPARE_MAX
    if not is_foreign and type(data) is bytes:
        keys: Column = body.keys
        sizes: Column = body.sizes
        at = body.payloads_at
    else:
        at = 0
        data = bytes(data[body.payloads_at : body.payloads_at + body.payload_size])
        keys, sizes = copied(body.keys, "q"), copied(body.sizes, "i")
        is_foreign = True
    ids: Numbers | None = None
    if extra is not None and IDS in extra:
        ids = pick(extra[IDS], range(body.count), "Q") if is_foreign else extra[IDS]
    chunk = Chunk(first_id, ids, body.count, keys, sizes, body.payload_size, data, at)
    chunk.base_ms = chunk.enqueued_ms = time_ms
    chunk.principal_id = principal_id
    chunk.entry = entry
    if extra is not None and (len(extra) > 1 or PRODUCER not in extra):
        _add_details(chunk, extra, is_foreign)
    return chunk


def _add_details(chunk: Chunk, extra: dict[int, Any], is_foreign: bool) -> None:
    details = Details()
    chunk.details = details
    for bit, column in extra.items():
        if bit in (NOT_BEFORE_ONE, NOT_BEFORE_EACH):
            details.not_before = _times(column, chunk.base_ms, is_foreign)
        elif bit in (EXPIRES_ONE, EXPIRES_EACH):
            details.expires = _times(column, chunk.base_ms, is_foreign)
        elif bit == ATTEMPTS:
            details.attempts = pick(column, range(chunk.count), "I") if is_foreign else column
        elif bit == BORN:
            details.born_queues = pick(column.queue_ids, range(chunk.count), "I")
            ids = zip(column.queue_ids, column.ids, strict=True)
            details.born_ids = array("Q", [task_id if queue else 0 for queue, task_id in ids])
        elif bit in STRINGS:
            details.strings[bit] = copied_blobs(column) if is_foreign else column
    details.delay_ms = earliest(details.not_before, chunk.base_ms)
    details.expiry_ms = earliest(details.expires, chunk.base_ms)
    if extra.keys() & {ENQUEUED, PRINCIPAL_EACH, ENTRY_EACH}:
        _add_sources(chunk, details, extra)


def _add_sources(chunk: Chunk, details: Details, extra: dict[int, Any]) -> None:
    count, base_ms = chunk.count, chunk.base_ms
    enqueued = own(extra.get(ENQUEUED), count, "q", 0)
    principals = own(extra.get(PRINCIPAL_EACH, chunk.principal_id), count, "I", 0)
    entries = own(extra.get(ENTRY_EACH, chunk.entry), count, "Q", 0)
    sources = condensed(enqueued, principals, entries)
    times = [UNKNOWN_MS if ms == NONE else clamped(base_ms + ms) for ms in sources.enqueued]
    sources.enqueued = array("q", times)
    details.sources = sources


def _times(column: Column, base_ms: int, is_foreign: bool) -> Column:
    """Return a column of relative times whose absolute times are within ``TIME_MAX``."""
    if isinstance(column, int):
        return clamped(base_ms + column) - base_ms
    if max(column) + base_ms > TIME_MAX or -TIME_MAX - base_ms > min(column):
        values = [ms if ms == NONE else clamped(base_ms + ms) - base_ms for ms in column]
        return array("q", values)
    return copied(column, "q") if is_foreign else column
