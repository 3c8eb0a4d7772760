"""Which tasks the order lists, and the reading of it: the next tasks of a queue in the order of delivery.

The order is brought up to date when it is read or tidied, not when tasks are added: tasks with ids from ``unlisted`` on are not in
it yet. So replay does not list what is removed later, and many keys are listed together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from penstock.queues.columnar.chunk import READY, Chunk
from penstock.queues.columnar.columns import Ids, Places
from penstock.queues.columnar.directory import Directory
from penstock.queues.columnar.order import LOOK_COST, Order
from penstock.queues.columnar.runs import Run, packed

Position = tuple[int, int]
"""(key, id): a place in the order of delivery."""

TOGETHER: Final = 2**20
"""Tasks of mixed keys that are listed together at a start: bounds the memory for sorting them (computed: 130 MB)."""

KEY_COST: Final = 8
"""The cost of listing one of several tasks of mixed keys, in tasks that are copied: each may have a key of its own."""

STALE_MIN: Final = 1024
"""Tasks that were removed, or got another key, before the order is swept; and at least as many as there are."""

WINDOW: Final = 16
"""Scattered ids that are looked up at a time, at least."""


class Tasks(NamedTuple):
    """Neighbours in the order of delivery: tasks of one key in one chunk. A NamedTuple, because a take reads many."""

    key: int
    chunk: Chunk
    places: Places

    @property
    def ids(self) -> Ids:
        return self.chunk.ids_at(self.places)


class Listing:
    """The order of a queue and how far it is up to date."""

    __slots__ = ("directory", "order", "stale", "sweep_from", "unlisted")

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.order = Order()
        self.unlisted = 0  # tasks with ids from here on are not listed yet
        self.stale = 0  # ids listed in vain since the last sweep
        self.sweep_from: Position | None = None  # where a sweep under way continues

    # Keeping up.

    def catch_up(self, budget: int | None = None) -> int:
        """List tasks that are not listed yet, all or as many as ``budget`` allows. Return the cost."""
        first = self.directory.find(self.unlisted)
        if first is None:
            return 0
        cost = 0
        keys: list[int] = []
        ids: list[int] = []
        for chunk in chain((first,), self.directory.behind(first)):
            if budget is not None and cost >= budget:
                break
            places = chunk.places(range(self.unlisted, chunk.end))
            each = 0 if isinstance(chunk.keys, int) else KEY_COST
            if budget is not None and each and len(places) * each > budget - cost:
                places = places[: max((budget - cost) // each, 1)]
            self.unlisted = chunk.id_at(places[-1]) + 1
            cost += len(places) * each + LOOK_COST
            self._list(chunk, chunk.alive(places), keys, ids)
        self._flush(keys, ids)
        return cost

    def _list(self, chunk: Chunk, places: Places, keys: list[int], ids: list[int]) -> None:
        """List tasks of one key; collect tasks of mixed keys, to list them together."""
        if isinstance(chunk.keys, int):
            self._flush(keys, ids)
            if places:
                self.order.append(chunk.keys, chunk.ids_at(places))
            return
        ids += chunk.ids_at(places)
        if isinstance(places, range):
            keys += chunk.keys[places.start : places.stop].tolist()
        else:
            keys += [chunk.keys[place] for place in places]
        if len(ids) >= TOGETHER:
            self._flush(keys, ids)

    def _flush(self, keys: list[int], ids: list[int]) -> None:
        if ids:
            self.order.extend(keys, ids)
            keys.clear()
            ids.clear()

    def rekeyed(self, chunk: Chunk, places: Places) -> None:
        """List tasks under the keys that they have now, unless they will be listed anyway."""
        for place in places:
            task_id = chunk.id_at(place)
            if task_id < self.unlisted:
                self.order.insert(chunk.key_at(place), task_id)
        self.stale += len(places)

    # Reading.

    def next_runs(self, count: int, after: Position | None = None) -> list[Tasks]:
        """Return up to ``count`` tasks in the order of delivery, from the beginning or behind a position."""
        self.catch_up()
        found: list[Tasks] = []
        for key, run in self.order.runs(after):
            if isinstance(run, int):
                one = self._of_id(key, run)
                if one is not None:
                    found.append(one)
                    count -= 1
            else:
                for tasks in self._of_run(key, run, count):
                    found.append(tasks)
                    count -= len(tasks.places)
            if count <= 0:
                break
        return found

    def in_order(self, after: Position | None = None) -> Iterator[Tasks]:
        """Yield all tasks in the order of delivery. The queue must not change meanwhile."""
        self.catch_up()
        for key, run in self.order.runs(after):
            yield from self._of_run(key, run, None)

    def _of_id(self, key: int, task_id: int) -> Tasks | None:
        """Return the task of an id if it is there and has a key: a key with one task is common."""
        chunk = self.directory.find(task_id)
        if chunk is None or task_id < chunk.first:
            return None
        if chunk.ids is None:
            place = task_id - chunk.first
        else:
            place = bisect_left(chunk.ids, task_id)
            if chunk.ids[place] != task_id:
                return None
        if chunk.status[place] or (chunk.is_rekeyed and chunk.key_at(place) != key):
            return None
        return Tasks(key, chunk, range(place, place + 1))

    def _of_run(self, key: int, run: Run, count: int | None) -> Iterator[Tasks]:
        """Yield the tasks of a run that are there and have its key, at most ``count`` of them."""
        if isinstance(run, int):
            one = self._of_id(key, run)
            if one is not None:
                yield one
            return
        if isinstance(run, range):
            yield from self._of_range(key, run.start, run.stop, count)
            return
        at = 0
        ids = run.tolist()
        while at < len(ids) and (count is None or count > 0):
            size = len(ids) if count is None else max(count, WINDOW)
            for chunk, places in self.directory.slices(ids[at : at + size]):
                places = _ready(chunk, places, key, count)
                if places:
                    yield Tasks(key, chunk, places)
                    if count is not None:
                        count -= len(places)
                        if count <= 0:
                            return
            at += size

    def _of_range(self, key: int, start: int, stop: int, count: int | None) -> Iterator[Tasks]:
        while start < stop and (count is None or count > 0):
            chunk = self.directory.find(start)
            if chunk is None or chunk.first >= stop:
                return
            places = _ready(chunk, chunk.places(range(start, stop)), key, count)
            if places:
                yield Tasks(key, chunk, places)
                if count is not None:
                    count -= len(places)
            start = chunk.end

    # Housekeeping: what is listed in vain.

    def tidy(self, live: int, budget: int) -> int:
        """Drop ids that are listed in vain: from the front, and everywhere once they are many. Return the cost."""
        if not self.stale:
            return 0
        cost = self.order.trim(self._kept, budget)
        if self.stale <= live + STALE_MIN and self.sweep_from is None:
            return cost
        self.sweep_from, more = self.order.sweep(self._kept, self.sweep_from, budget)
        if self.sweep_from is None:
            self.stale = 0
        return cost + more

    def _kept(self, key: int, run: Run) -> Run | None:
        """Return what is left of a run. A range is cut at its front only: what it lists in vain costs nothing."""
        if isinstance(run, range):
            return self._kept_range(key, run)
        if isinstance(run, int):
            return None if self._of_id(key, run) is None else run
        ids: list[int] = []
        for chunk, places in self.directory.slices(run):
            ids += chunk.ids_at(_ready(chunk, places, key, None))
        if len(ids) == len(run):
            return run
        return packed(array("Q", ids)) if ids else None

    def _kept_range(self, key: int, run: range) -> Run | None:
        start = run.start
        while start < run.stop:
            chunk = self.directory.find(start)
            if chunk is None or chunk.first >= run.stop:
                return None
            places = chunk.places(range(start, run.stop))
            found = _ready(chunk, places, key, 1)
            if found:
                return packed(range(chunk.id_at(found[0]), run.stop))
            start = chunk.end
            if chunk.is_rekeyed and start < run.stop:
                return range(
                    start, run.stop
                )  # looking at more than one such chunk takes too long for a step
        return None


def _ready(chunk: Chunk, places: Places, key: int, count: int | None) -> Places:
    """Return the places of up to ``count`` tasks that are there and have a key."""
    status = chunk.status
    if isinstance(places, list):
        if chunk.is_rekeyed:
            found = [place for place in places if not status[place] and chunk.key_at(place) == key]
        else:
            found = [place for place in places if not status[place]]
        return found if count is None else found[:count]
    start = status.find(READY, places.start, places.stop)
    if start < 0:
        return []
    stop = places.stop if count is None else min(start + count, places.stop)
    if not chunk.is_rekeyed and (
        chunk.live == chunk.count or status.count(READY, start, stop) == stop - start
    ):
        return range(start, stop)
    found = []
    while start >= 0 and (count is None or len(found) < count):
        if not chunk.is_rekeyed or chunk.key_at(start) == key:
            found.append(start)
        start = status.find(READY, start + 1, places.stop)
    return found
