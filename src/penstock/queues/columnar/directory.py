"""The chunks of a queue, ascending by id, in a directory of two levels.

A page holds up to 256 chunks, so that neither an insertion nor a removal moves more than a page, with 10^7 tasks as with ten.
A page also keeps lower bounds of the times of its tasks: when the next delay ends and the next task expires is found
without a note for each task.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.columns import NEVER, Ids, Numbers, Places

PAGE_MAX: Final = 256

ID_END: Final = 2**64

Slice = tuple[Chunk, Places]
"""Some tasks of a chunk."""


class Page:
    """Neighbouring chunks."""

    __slots__ = ("chunks", "delay_ms", "expiry_ms", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []  # first id of each chunk
        self.chunks: list[Chunk] = []
        self.delay_ms = NEVER  # lower bounds of those of the chunks
        self.expiry_ms = NEVER

    def note_times(self, chunk: Chunk) -> None:
        details = chunk.details
        if details is not None:
            self.delay_ms = min(self.delay_ms, details.delay_ms)
            self.expiry_ms = min(self.expiry_ms, details.expiry_ms)


class Directory:
    """Finds the chunk of an id. Chunks do not overlap; an id between two chunks belongs to none."""

    __slots__ = ("_firsts", "epoch", "pages")

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.epoch = 0  # rises with every frozen view; a chunk of an earlier epoch is copied before it is written
        self._firsts: list[
            int
        ] = []  # first id of each page when it was made; lower ones go to the first page

    def append(self, chunk: Chunk) -> None:
        """Add a chunk behind all others."""
        chunk.epoch = self.epoch
        pages = self.pages
        if not pages or len(pages[-1].chunks) >= PAGE_MAX:
            pages.append(Page())
            self._firsts.append(chunk.first)
        page = pages[-1]
        page.firsts.append(chunk.first)
        page.chunks.append(chunk)
        if chunk.details is not None:
            page.note_times(chunk)

    def find(self, task_id: int) -> Chunk | None:
        """Return the chunk whose span of ids has an id, or the next one behind it; None if there is none."""
        firsts = self._firsts
        if not firsts:
            return None
        number = bisect_right(firsts, task_id) - 1
        page = self.pages[max(0, number)]
        place = bisect_right(page.firsts, task_id) - 1
        chunk = page.chunks[max(0, place)]
        if task_id < chunk.end:
            return chunk
        return self._next(max(number, 0), max(place, 0))

    def slices(self, ids: Ids) -> list[Slice]:
        """Return the places of ids, chunk by chunk; the tasks may be gone. Ids that no chunk has are left out."""
        if isinstance(ids, range):
            return self._slices_of_range(ids)
        found: list[Slice] = []
        last: Chunk | None = None
        places: list[int] = []
        for chunk, place in self.locate(ids):
            if chunk is not last:
                last, places = chunk, []
                found.append((chunk, places))
            places.append(place)
        return found

    def locate(self, ids: Ids) -> list[tuple[Chunk, int]]:
        """Return chunk and place of each of many scattered ids; the tasks may be gone."""
        found: list[tuple[Chunk, int]] = []
        firsts: list[int] = []
        chunks: list[Chunk] = []
        own_ids: Numbers | None = None
        chunk: Chunk | None = None
        first = chunk_end = page_end = -1
        for task_id in ids if self._firsts else ():
            if task_id >= chunk_end:
                if task_id >= page_end:
                    number = self._number(task_id)
                    page = self.pages[number]
                    firsts, chunks = page.firsts, page.chunks
                    is_last = number + 1 == len(self.pages)
                    page_end = ID_END if is_last else self._firsts[number + 1]
                at = bisect_right(firsts, task_id) - 1
                if at < 0:
                    continue
                chunk = chunks[at]
                first, chunk_end, own_ids = chunk.first, chunk.end, chunk.ids
                if task_id >= chunk_end:
                    continue
            assert chunk is not None
            if own_ids is None:
                found.append((chunk, task_id - first))
            else:
                place = bisect_left(own_ids, task_id)
                if own_ids[place] == task_id:
                    found.append((chunk, place))
        return found

    def own(self, chunk: Chunk) -> Chunk:
        """Return a chunk that may be written to: the same, or a copy in its place if a frozen view has it."""
        if chunk.epoch == self.epoch:
            return chunk
        page, place = self._position(chunk)
        new = page.chunks[place]
        if new.epoch != self.epoch:
            new = chunk.copy()
            new.epoch = self.epoch
            page.chunks[place] = new
        return new

    def page_of(self, chunk: Chunk) -> Page:
        return self._position(chunk)[0]

    def remove(self, chunk: Chunk) -> None:
        page, place = self._position(chunk)
        del page.chunks[place], page.firsts[place]
        if not page.chunks:
            number = self.pages.index(page)
            del self.pages[number], self._firsts[number]

    def replace(self, old: list[Chunk], new: list[Chunk]) -> None:
        """Put chunks in the place of neighbours. The new ones may be fewer or more, but not none."""
        for chunk in old[1:]:
            self.remove(chunk)
        page, place = self._position(old[0])
        page.chunks[place : place + 1] = new
        page.firsts[place : place + 1] = [chunk.first for chunk in new]
        for chunk in new:
            chunk.epoch = self.epoch
            page.note_times(chunk)
        if len(page.chunks) > PAGE_MAX:
            self._split(page)

    def behind(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the chunks behind one. The directory must not change meanwhile."""
        page, place = self._position(chunk)
        number = self._number(chunk.first)
        for at in range(place + 1, len(page.chunks)):
            yield page.chunks[at]
        for at in range(number + 1, len(self.pages)):
            yield from self.pages[at].chunks

    def cut(self, first: int, stop: int) -> list[Page]:
        """Take out the pages whose ids are all from ``first`` on and below ``stop``."""
        low = bisect_right(self._firsts, first - 1)
        high = low
        while high < len(self.pages) and self.pages[high].chunks[-1].end <= stop:
            high += 1
        if low < len(self.pages) and self.pages[low].firsts[0] < first:
            low += 1
        pages = self.pages[low:high]
        if pages:
            del self.pages[low:high], self._firsts[low:high]
        return pages

    def __iter__(self) -> Iterator[Chunk]:
        for page in self.pages:
            yield from page.chunks

    def freeze(self) -> tuple[Chunk, ...]:
        """Return the chunks as they are now. A change copies a chunk before it writes to it."""
        self.epoch += 1
        chunks: list[Chunk] = []
        for page in self.pages:
            chunks += page.chunks
        return tuple(chunks)

    def _slices_of_range(self, ids: range) -> list[Slice]:
        chunk = self.find(ids.start)
        if chunk is None or chunk.first >= ids.stop:
            return []
        places = chunk.places(ids)
        if chunk.end >= ids.stop:
            return [(chunk, places)] if places else []
        found: list[Slice] = [(chunk, places)] if places else []
        for other in self.behind(chunk):
            if other.first >= ids.stop:
                break
            places = other.places(ids)
            if places:
                found.append((other, places))
        return found

    def _next(self, number: int, place: int) -> Chunk | None:
        page = self.pages[number]
        if place + 1 < len(page.chunks):
            return page.chunks[place + 1]
        return self.pages[number + 1].chunks[0] if number + 1 < len(self.pages) else None

    def _number(self, first: int) -> int:
        return max(bisect_right(self._firsts, first) - 1, 0)

    def _position(self, chunk: Chunk) -> tuple[Page, int]:
        page = self.pages[self._number(chunk.first)]
        place = bisect_right(page.firsts, chunk.first) - 1
        assert page.chunks[place].first == chunk.first
        return page, place

    def _split(self, page: Page) -> None:
        number = self.pages.index(page)
        cut = len(page.chunks) // 2
        new = Page()
        new.firsts, new.chunks = page.firsts[cut:], page.chunks[cut:]
        new.delay_ms, new.expiry_ms = page.delay_ms, page.expiry_ms
        del page.firsts[cut:], page.chunks[cut:]
        self.pages.insert(number + 1, new)
        self._firsts.insert(number + 1, new.firsts[0])
