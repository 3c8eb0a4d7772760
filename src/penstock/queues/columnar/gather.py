"""Gathers tasks of several chunks into one: for a merge, a compaction, a move, a snapshot.

No column is lost, and the result does not depend on how the tasks were spread over chunks: a column is there exactly if a task
has a value in it, and is one number exactly if all tasks have the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from penstock.binary import Bytes
from penstock.formats.records.columns import NONE
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.columns import (
    Column,
    Numbers,
    Places,
    alike,
    blobs_of,
    one_of,
    pick,
    pieces,
    shifted,
)
from penstock.queues.columnar.details import STRINGS, Details, Mark, earliest
from penstock.queues.columnar.directory import Slice
from penstock.queues.columnar.sources import Sources


def gather(slices: Sequence[Slice], base_ms: int) -> Chunk:
    """Return a chunk of its own of some tasks, ascending by id. Times count from ``base_ms``."""
    first = slices[0][0].id_at(slices[0][1][0])
    last_chunk, last_places = slices[-1]
    count = sum([len(places) for _, places in slices])
    ids = None
    if last_chunk.id_at(last_places[-1]) - first != count - 1:
        ids = _ids(slices)
    payloads = b"".join([piece for slice_ in slices for piece in payloads_of(*slice_)])
    new = Chunk(first, ids, count, _keys(slices), _sizes(slices), len(payloads), payloads, 0)
    new.base_ms = base_ms
    new.is_rekeyed = any(chunk.is_rekeyed for chunk, _ in slices)
    _gather_sources(new, slices)
    if any(chunk.details is not None for chunk, _ in slices):
        _gather_details(new, slices)
    return new


def payloads_of(chunk: Chunk, places: Places) -> list[Bytes]:
    """Return pieces that hold the payloads of some tasks in their order; neighbours are one piece."""
    sizes = chunk.sizes
    if not isinstance(sizes, int):
        offsets = sizes if isinstance(places, range) else sizes.tolist()
        return pieces(chunk.data, chunk.at, offsets, places)
    data, at = chunk.data, chunk.at
    if isinstance(places, range):
        return [data[at + places.start * sizes : at + places.stop * sizes]]
    return [data[start : start + sizes] for start in [at + place * sizes for place in places]]


def _ids(slices: Sequence[Slice]) -> array[int]:
    ids: array[int] = array("Q")
    for chunk, places in slices:
        if chunk.ids is None:
            ids.extend(array("Q", chunk.ids_at(places)))
        else:
            ids.extend(pick(chunk.ids, places, "Q"))
    return ids


def _keys(slices: Sequence[Slice]) -> int | array[int]:
    first = slices[0][0].keys
    if isinstance(first, int) and all(
        isinstance(chunk.keys, int) and chunk.keys == first for chunk, _ in slices
    ):
        return first
    return alike(_numbers(slices, lambda chunk: chunk.keys, "q", 0))


def _sizes(slices: Sequence[Slice]) -> int | array[int]:
    """Return the size of all payloads, or offsets from 0 on."""
    first = slices[0][0].sizes
    if isinstance(first, int) and all(
        isinstance(chunk.sizes, int) and chunk.sizes == first for chunk, _ in slices
    ):
        return first
    sizes: list[int] = []
    for chunk, places in slices:
        column = chunk.sizes
        if isinstance(column, int):
            sizes += [column] * len(places)
        else:
            offsets = column.tolist()
            sizes += [offsets[place + 1] - offsets[place] for place in places]
    if sizes.count(sizes[0]) == len(sizes):
        return sizes[0]
    return array("i", accumulate(sizes, initial=0))


def _numbers(
    slices: Sequence[Slice], column_of: Callable[[Chunk], Column | None], form: str, default: int
) -> array[int]:
    """Return one number for each task."""
    found: array[int] = array(form)
    for chunk, places in slices:
        column = column_of(chunk)
        if column is None or isinstance(column, int):
            value = default if column is None else column
            found.extend(array(form, [value]) * len(places))
        else:
            found.extend(pick(column, places, form))
    return found


def _gather_sources(new: Chunk, slices: Sequence[Slice]) -> None:
    sources = Sources()
    start = 0
    for chunk, places in slices:
        details = chunk.details
        if details is None or details.sources is None:
            sources.append(start, chunk.enqueued_ms, chunk.principal_id, chunk.entry)
        else:
            details.sources.copy_to(sources, start, places)
        start += len(places)
    if len(sources.starts) == 1:
        new.enqueued_ms = sources.enqueued[0]
        new.principal_id = sources.principals[0]
        new.entry = sources.entries[0]
    else:
        new.own_details().sources = sources


def _gather_details(new: Chunk, slices: Sequence[Slice]) -> None:
    details = new.own_details()
    base_ms = new.base_ms
    details.not_before = _times(slices, lambda found: found.not_before, base_ms)
    details.expires = _times(slices, lambda found: found.expires, base_ms)
    details.delay_ms = earliest(details.not_before, base_ms)
    details.expiry_ms = earliest(details.expires, base_ms)
    details.attempts = _filled(_detail_numbers(slices, lambda found: found.attempts, "I"))
    details.born_queues = _filled(_detail_numbers(slices, lambda found: found.born_queues, "I"))
    if details.born_queues is not None:
        details.born_ids = _detail_numbers(slices, lambda found: found.born_ids, "Q")
    for bit in STRINGS:
        strings = _strings(slices, bit)
        if any(strings):
            details.strings[bit] = blobs_of(strings)
    details.marks = _marks(slices)
    if _is_empty(details):
        new.details = None


def _times(
    slices: Sequence[Slice], column_of: Callable[[Details], Column | None], base_ms: int
) -> Column | None:
    if all(chunk.details is None or column_of(chunk.details) is None for chunk, _ in slices):
        return None
    found: array[int] = array("q")
    for chunk, places in slices:
        column = None if chunk.details is None else column_of(chunk.details)
        if column is None or isinstance(column, int):
            part = array("q", [NONE if column is None else column]) * len(places)
        else:
            part = pick(column, places, "q")
        found.extend(shifted(part, chunk.base_ms - base_ms))
    one = one_of(found)
    if one is None:
        return found
    return None if one == NONE else one


def _detail_numbers(
    slices: Sequence[Slice], column_of: Callable[[Details], Numbers | None], form: str
) -> array[int] | None:
    if all(chunk.details is None or column_of(chunk.details) is None for chunk, _ in slices):
        return None

    def column(chunk: Chunk) -> Numbers | None:
        return None if chunk.details is None else column_of(chunk.details)

    return _numbers(slices, column, form, 0)


def _filled(numbers: array[int] | None) -> array[int] | None:
    """Return a column, or None if all of it is 0."""
    return numbers if numbers is not None and any(numbers) else None


def _strings(slices: Sequence[Slice], bit: int) -> list[bytes]:
    strings: list[bytes] = []
    for chunk, places in slices:
        details = chunk.details
        if details is None or (
            bit not in details.strings and (bit != STRINGS[0] or details.new_headers is None)
        ):
            strings += [b""] * len(places)
        else:
            strings += [details.string(bit, place) for place in places]
    return strings


def _marks(slices: Sequence[Slice]) -> list[Mark | None] | None:
    if all(chunk.details is None or chunk.details.marks is None for chunk, _ in slices):
        return None
    marks: list[Mark | None] = []
    for chunk, places in slices:
        found = None if chunk.details is None else chunk.details.marks
        if found is None:
            marks += [None] * len(places)
        else:
            marks += [found[place] for place in places]
    return marks if any(marks) else None


def _is_empty(details: Details) -> bool:
    return (
        details.not_before is None
        and details.expires is None
        and details.attempts is None
        and details.sources is None
        and details.born_queues is None
        and details.marks is None
        and not details.strings
    )


def grouped(slices: Iterable[Slice], *, count_max: int, size_max: int) -> Iterator[list[Slice]]:
    """Yield tasks in groups: a group ends before the task that would exceed a number of tasks or bytes of payloads.

    How the tasks are spread over chunks makes no difference. A larger task is a group of its own.
    """
    group: list[Slice] = []
    count, size = 0, 0
    for chunk, places in slices:
        while places:
            fit = _fitting(chunk, places, count_max - count, size_max - size)
            if not fit and not group:
                fit = 1
            if fit:
                taken = places[:fit]
                group.append((chunk, taken))
                count += fit
                size += chunk.size_of(taken)
                places = places[fit:]
            if places:
                yield group
                group, count, size = [], 0, 0
    if group:
        yield group


def _fitting(chunk: Chunk, places: Places, count_max: int, size_max: int) -> int:
    """Return how many of the places fit."""
    count = min(len(places), count_max)
    if size_max < 0:
        return 0
    sizes = chunk.sizes
    if isinstance(sizes, int):
        return min(count, size_max // sizes) if sizes else count
    if isinstance(places, range):
        limit = sizes[places.start] + size_max
        return (
            bisect_right(sizes, limit, places.start + 1, places.start + count + 1)
            - places.start
            - 1
        )
    total = 0
    for number in range(count):
        total += sizes[places[number] + 1] - sizes[places[number]]
        if total > size_max:
            return number
    return count
