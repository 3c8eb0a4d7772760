"""Housekeeping of a queue in bounded steps: small neighbours become one chunk, sparse chunks are compacted.

Nothing of this is visible: ids, order and every column stay. A step copies at most about 2,048 tasks and 512 KiB of payloads; only
a task that is larger by itself takes more.
"""

from __future__ import annotations

from itertools import compress
from operator import not_, sub
from typing import Final

from penstock.formats.records.columns import Blobs
from penstock.queues.columnar.chunk import READY, Chunk
from penstock.queues.columnar.columns import NEVER, Column, Numbers
from penstock.queues.columnar.details import Details
from penstock.queues.columnar.directory import Slice
from penstock.queues.columnar.gather import gather
from penstock.queues.columnar.queue import CHUNK_SIZE, CHUNK_TASKS, Queue
from penstock.queues.columnar.sources import Sources

FEW: Final = CHUNK_TASKS // 4
"""A neighbour with fewer tasks joins a chunk that is compacted."""

STEP_COST: Final = 64
"""The cost of a step beside the tasks that it copies, in tasks."""


def merge_step(queue: Queue) -> int:
    """Do one merge or compaction that is due; return its cost in tasks, 0 if nothing was to be done."""
    if queue.merges:
        start, stop = queue.merges.popleft()
        chunks = [chunk for chunk, _ in queue.directory.slices(range(start, stop))]
        return _merge(queue, chunks) if len(chunks) > 1 else STEP_COST
    if queue.sparse:
        first = queue.sparse.pop()
        chunk = queue.directory.find(first)
        if chunk is None or chunk.first != first or not chunk.is_sparse:
            return STEP_COST
        return _compact(queue, chunk)
    return 0


def _compact(queue: Queue, chunk: Chunk) -> int:
    if chunk.count > 1 and (chunk.live > CHUNK_TASKS or chunk.live_size > CHUNK_SIZE):
        halves = [half for half in split(chunk, chunk.count // 2) if half.live]
        queue.directory.replace([chunk], halves)
        queue.sparse.update([half.first for half in halves])
        return STEP_COST + chunk.count // 8
    chunks = [chunk]
    count, size = chunk.live, chunk.live_size
    for other in queue.directory.behind(chunk):
        count += other.live
        size += other.live_size
        is_joined = other.is_sparse or other.live < FEW
        if not is_joined or count > CHUNK_TASKS or size > CHUNK_SIZE:
            break
        chunks.append(other)
    return _merge(queue, chunks)


def _merge(queue: Queue, chunks: list[Chunk]) -> int:
    """Put one chunk with the tasks that are there in the place of neighbours."""
    slices: list[Slice] = [(chunk, chunk.alive(range(chunk.count))) for chunk in chunks]
    new = gather(slices, chunks[0].base_ms)
    queue.directory.replace(chunks, [new])
    queue.sparse.difference_update([chunk.first for chunk in chunks])
    return STEP_COST + new.count


def split(chunk: Chunk, cut: int) -> tuple[Chunk, Chunk]:
    """Return the two parts of a chunk. Both refer to its bytes until they are compacted."""
    return _part(chunk, 0, cut), _part(chunk, cut, chunk.count)


def _live_size(chunk: Chunk) -> int:
    sizes = chunk.sizes
    if isinstance(sizes, int):
        return chunk.live * sizes
    return sum(compress(map(sub, sizes[1:], sizes), map(not_, chunk.status)))


def _part(chunk: Chunk, start: int, stop: int) -> Chunk:
    everything = range(start, stop)
    sizes = chunk.sizes
    new = Chunk(
        chunk.id_at(start),
        None if chunk.ids is None else chunk.ids[start:stop],
        stop - start,
        _cut(chunk.keys, start, stop),
        sizes if isinstance(sizes, int) else sizes[start : stop + 1],
        chunk.size_of(everything),
        chunk.data,
        chunk.at + start * sizes if isinstance(sizes, int) else chunk.at,
    )
    new.status = chunk.status[start:stop]
    new.live = new.status.count(READY)
    new.live_size = _live_size(new)
    new.base_ms = chunk.base_ms
    new.enqueued_ms = chunk.enqueued_ms
    new.principal_id = chunk.principal_id
    new.entry = chunk.entry
    new.is_rekeyed = chunk.is_rekeyed
    new.sparse_below = NEVER  # it keeps all bytes of the chunk in memory until it is compacted
    if chunk.details is not None:
        new.details = _part_of_details(chunk.details, start, stop)
    # The first id of a part is that of a task that may be gone; gone tasks at its front are cut off by compaction.
    return new


def _part_of_details(details: Details, start: int, stop: int) -> Details:
    new = Details()
    new.not_before = None if details.not_before is None else _cut(details.not_before, start, stop)
    new.expires = None if details.expires is None else _cut(details.expires, start, stop)
    new.delay_ms, new.expiry_ms = details.delay_ms, details.expiry_ms
    new.attempts = _cut_numbers(details.attempts, start, stop)
    new.born_queues = _cut_numbers(details.born_queues, start, stop)
    new.born_ids = _cut_numbers(details.born_ids, start, stop)
    new.marks = None if details.marks is None else details.marks[start:stop]
    if details.sources is not None:
        new.sources = Sources()
        details.sources.copy_to(new.sources, 0, range(start, stop))
    for bit, column in details.strings.items():
        offsets = column.offsets
        at = column.at + offsets[start] - offsets[0]
        new.strings[bit] = Blobs(offsets[start : stop + 1], column.data, at)
    if details.new_headers is not None:
        kept = details.new_headers.items()
        new.new_headers = {place - start: text for place, text in kept if start <= place < stop}
    return new


def _cut(column: Column, start: int, stop: int) -> Column:
    return column if isinstance(column, int) else column[start:stop]


def _cut_numbers(column: Numbers | None, start: int, stop: int) -> Numbers | None:
    return None if column is None else column[start:stop]
