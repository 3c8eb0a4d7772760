"""One queue: its chunks, and the changes of its tasks.

Every change is the same live and in replay. A change of an id that is not there has no effect for that id; the methods return
how many ids these were.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Final

from penstock.formats.records.columns import NONE
from penstock.formats.records.ids import DeliverReason, Strings, Times
from penstock.formats.records.settings import QueueSettings
from penstock.queues.columnar.chunk import GONE, TASK_SIZE, Chunk
from penstock.queues.columnar.columns import Column, Ids, Places, clamped, string_at
from penstock.queues.columnar.details import Mark
from penstock.queues.columnar.directory import Directory, Page, Slice
from penstock.queues.columnar.due import due, next_delay, next_expiry
from penstock.queues.columnar.listing import Listing, Position, Tasks

SMALL_TASKS: Final = 32
"""Neighbours with fewer tasks are merged once they have this many together."""

CHUNK_TASKS: Final = 1024
"""Neighbours are merged once more when they have this many tasks together, or ``CHUNK_SIZE`` bytes of payloads."""

CHUNK_SIZE: Final = 256 * 1024

DROP_COST: Final = 64
"""The cost of freeing a chunk, in tasks that are copied."""


class Tail:
    """Counts the chunks at the end of a queue that are too small to stay."""

    __slots__ = ("chunks", "count", "first", "size")

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, first: int) -> None:
        self.first = first  # id of the first task that counts
        self.chunks = 0
        self.count = 0
        self.size = 0

    def append(self, chunk: Chunk) -> None:
        if not self.chunks:
            self.first = chunk.first
        self.chunks += 1
        self.count += chunk.count
        self.size += chunk.size


class Queue:
    """The tasks of one queue, as every member has them."""

    __slots__ = (
        "_listing", "_small", "_tiny", "count", "directory", "has_marks", "id", "last_id", "merges",
        "settings", "size", "sparse",
    )  # fmt: skip

    def __init__(self, queue_id: int, settings: QueueSettings) -> None:
        self.id = queue_id
        self.settings = settings
        self.last_id = 0
        self.count = 0  # tasks
        self.size = 0  # bytes of their payloads
        self.has_marks = False  # whether a delivery may be marked
        self.directory = Directory()
        self._listing = Listing(self.directory)
        # What housekeeping has to do.
        self._small = Tail()
        self._tiny = Tail()
        self.merges: deque[tuple[int, int]] = deque()  # spans of ids whose chunks are to become one
        self.sparse: set[int] = set()  # first ids of chunks to compact

    @property
    def name(self) -> bytes:
        return self.settings.name.encode()

    @property
    def key_count(self) -> int:
        """Distinct keys that the order lists, those of tasks that are gone included until they are swept."""
        return self._listing.order.key_count

    # Reading, for the leader.

    def next_runs(self, count: int, after: Position | None = None) -> list[Tasks]:
        """Return up to ``count`` tasks in the order of delivery, from the beginning or behind a (key, id)."""
        return self._listing.next_runs(count, after)

    def in_order(self, after: Position | None = None) -> Iterator[Tasks]:
        """Yield all tasks in the order of delivery. The queue must not change meanwhile."""
        return self._listing.in_order(after)

    def next_delay_ms(self, now_ms: int) -> int | None:
        """Return when the next delay ends after ``now_ms``, or None if no task has to wait."""
        return next_delay(self.directory, now_ms)

    def next_expiry_ms(self, now_ms: int) -> int | None:
        """Return when the next task expires; a time up to ``now_ms`` means that ``expired`` returns tasks."""
        return next_expiry(self.directory, now_ms)

    def expired(self, now_ms: int, chunks_max: int) -> list[Slice]:
        """Return tasks whose life is over, of up to ``chunks_max`` chunks."""
        return due(self.directory, now_ms, chunks_max)

    def alive(self, ids: Ids) -> list[Slice]:
        """Return the tasks of ids that are there, chunk by chunk."""
        found: list[Slice] = []
        for chunk, places in self.directory.slices(ids):
            places = chunk.alive(places)
            if places:
                found.append((chunk, places))
        return found

    # Changes.

    def add(self, chunk: Chunk) -> None:
        """Add tasks whose ids are above the last one."""
        self.last_id = chunk.end - 1
        self.count += chunk.count
        self.size += chunk.size
        self.directory.append(chunk)
        self._plan_merge(chunk)

    def remove(self, ids: Ids) -> int:
        """Remove tasks."""
        missing = len(ids)
        if not isinstance(ids, range):
            return missing - self._remove_scattered(ids)
        for chunk, places in self.directory.slices(ids):
            places = chunk.alive(places)
            if places:
                missing -= len(places)
                self.remove_places(chunk, places)
        return missing

    def _remove_scattered(self, ids: Ids) -> int:
        """Remove tasks that may all be in other chunks; return how many were there.

        Spelled out, because a restart removes what was acknowledged in any order: with half of 10^6 removed it took 0.9 s instead of 1.8.
        """
        directory = self.directory
        epoch = directory.epoch
        count, size = 0, 0
        for chunk, place in directory.locate(ids):
            if chunk.epoch != epoch:
                chunk = directory.own(chunk)
            status = chunk.status
            if status[place]:
                continue
            status[place] = GONE
            count += 1
            sizes = chunk.sizes
            task_size = sizes if isinstance(sizes, int) else sizes[place + 1] - sizes[place]
            size += task_size
            chunk.live -= 1
            chunk.live_size -= task_size
            if chunk.live_size + TASK_SIZE * chunk.live < chunk.sparse_below:
                self._is_sparse(chunk)
        self.count -= count
        self.size -= size
        self._listing.stale += count
        return count

    def _is_sparse(self, chunk: Chunk) -> None:
        """Drop a chunk without tasks, and note one with few of them."""
        if chunk.live:
            self.sparse.add(chunk.first)
        else:
            self.directory.remove(chunk)

    def remove_span(self, ids: range) -> list[Page]:
        """Remove whatever there is of a span of ids. Return pages that nothing needs, to be dropped in slices."""
        pages = self.directory.cut(ids.start, ids.stop)
        for page in pages:
            for chunk in page.chunks:
                self.count -= chunk.live
                self.size -= chunk.live_size
                self._listing.stale += chunk.live
        for chunk, places in self.alive(ids):
            self.remove_places(chunk, places)
        return pages

    def remove_expired(self, ids: range, now_ms: int) -> None:
        """Remove those tasks of a span of ids whose life is over."""
        for chunk, places in self.alive(ids):
            details = chunk.details
            if details is not None and details.expiry_ms <= now_ms:
                over = details.expired(places, now_ms - chunk.base_ms)
                if over:
                    self.remove_places(chunk, over)

    def remove_places(self, chunk: Chunk, places: Places) -> None:
        """Remove tasks that are there."""
        directory = self.directory
        if chunk.epoch != directory.epoch:
            chunk = directory.own(chunk)
        self.size -= chunk.remove(places)
        count = len(places)
        self.count -= count
        self._listing.stale += count
        if chunk.live_size + TASK_SIZE * chunk.live < chunk.sparse_below:
            self._is_sparse(chunk)

    def return_(self, ids: Ids, *, is_attempt: bool) -> None:
        """End the deliveries of tasks: clear their marks, and count an attempt if it was one."""
        if not is_attempt and not self.has_marks:
            return
        for chunk, places in self.alive(ids):
            chunk = self.directory.own(chunk)
            details = chunk.own_details()
            details.mark(places, None, chunk.count)
            if is_attempt:
                details.count_attempt(places, chunk.count)

    def set(
        self,
        ids: Ids,
        *,
        now_ms: int,
        keys: Times | None = None,
        not_before: Times | None = None,
        expires: Times | None = None,
        headers: Strings | None = None,
    ) -> int:
        """Give tasks other keys, times or headers. Times count from ``now_ms``; ``NONE`` takes one away."""
        missing = len(ids)
        for chunk, places in self.alive(ids):
            missing -= len(places)
            chunk = self.directory.own(chunk)
            if keys is not None:
                chunk.set_keys(places, _of_places(keys, ids, chunk, places))
                self._listing.rekeyed(chunk, places)
            if not_before is not None:
                times = _times_of_places(not_before, ids, chunk, places, now_ms)
                chunk.own_details().set_not_before(places, times, chunk.count, chunk.base_ms)
            if expires is not None:
                times = _times_of_places(expires, ids, chunk, places, now_ms)
                chunk.own_details().set_expires(places, times, chunk.count, chunk.base_ms)
            if headers is not None:
                texts = [string_at(headers, number) for number in positions(ids, chunk, places)]
                chunk.own_details().set_headers(dict(zip(places, texts, strict=True)))
            if chunk.details is not None:
                self.directory.page_of(chunk).note_times(chunk)
        return missing

    def deliver(self, ids: Ids, mark: Mark) -> int:
        """Mark tasks as delivered or started."""
        missing = len(ids)
        for chunk, places in self.alive(ids):
            missing -= len(places)
            chunk = self.directory.own(chunk)
            chunk.own_details().mark(places, mark, chunk.count)
            self.has_marks = True
        return missing

    def begin_term(self) -> None:
        """Count an attempt for every task that is marked as started, and clear all marks."""
        if not self.has_marks:
            return
        self.has_marks = False
        for chunk in list(self.directory):
            if chunk.details is None or chunk.details.marks is None:
                continue
            chunk = self.directory.own(chunk)
            details = chunk.own_details()
            marks = details.marks or ()
            started = [
                place
                for place, mark in enumerate(marks)
                if mark is not None
                and mark.reason == DeliverReason.STARTED
                and not chunk.status[place]
            ]
            details.marks = None
            if started:
                details.count_attempt(started, chunk.count)

    # Housekeeping.

    def tidy_order(self, budget: int) -> int:
        """List new tasks and drop what is listed in vain; return the cost."""
        listed = self._listing.catch_up(budget)
        return listed or self._listing.tidy(self.count, budget)

    def list_all(self) -> None:
        """Bring the order up to date at once: for a start."""
        self._listing.catch_up()

    def drop(self, budget: int) -> bool:
        """Free a part of a queue that was deleted; return whether anything is left."""
        pages = self.directory.pages
        if pages:
            drop_chunks(pages, budget)
        else:
            self._listing.order.drop(budget)
        return bool(pages or self._listing.order.key_count)

    def _plan_merge(self, chunk: Chunk) -> None:
        """Note which chunks at the end of the queue are to become one."""
        small, tiny = self._small, self._tiny
        if chunk.count >= CHUNK_TASKS or chunk.size >= CHUNK_SIZE:
            if small.chunks > 1:
                self.merges.append((small.first, chunk.first))
            small.restart(chunk.end)
            tiny.restart(chunk.end)
            return
        small.append(chunk)
        if small.count >= CHUNK_TASKS or small.size >= CHUNK_SIZE:
            self.merges.append((small.first, chunk.end))
            small.restart(chunk.end)
            tiny.restart(chunk.end)
        elif chunk.count < SMALL_TASKS:
            tiny.append(chunk)
            if tiny.count >= SMALL_TASKS:
                self.merges.append((tiny.first, chunk.end))
                small.chunks -= tiny.chunks - 1
                tiny.restart(chunk.end)
        elif tiny.chunks:
            tiny.restart(chunk.end)


def drop_chunks(pages: list[Page], budget: int) -> None:
    """Free chunks from the end of pages that nothing needs, for about as many tasks as ``budget``."""
    while pages and budget > 0:
        chunks = pages[-1].chunks
        if chunks:
            budget -= DROP_COST + chunks.pop().count // 16
        else:
            pages.pop()


def positions(ids: Ids, chunk: Chunk, places: Places) -> list[int]:
    """Return which of the ids each place of a chunk is: its position in a column of the change."""
    if isinstance(ids, range):
        return [task_id - ids.start for task_id in chunk.ids_at(places)]
    return [bisect_left(ids, task_id) for task_id in chunk.ids_at(places)]


def _of_places(column: Times, ids: Ids, chunk: Chunk, places: Places) -> Column:
    """Return that part of a column of a change which is about some places of a chunk."""
    if isinstance(column, int):
        return column
    return array("q", [column[number] for number in positions(ids, chunk, places)])


def _times_of_places(column: Times, ids: Ids, chunk: Chunk, places: Places, now_ms: int) -> Column:
    """Return times relative to ``now_ms`` as the chunk counts them."""
    found = _of_places(column, ids, chunk, places)
    base_ms = chunk.base_ms
    if isinstance(found, int):
        return NONE if found == NONE else clamped(now_ms + found) - base_ms
    return array("q", [NONE if ms == NONE else clamped(now_ms + ms) - base_ms for ms in found])
