"""Runs of ids, as the order lists them under a key.

A *run* is one id, a range of consecutive ids, or an array of scattered ids. A key with one run is listed as that run; a
list of runs stands only where there are several. So a key with one task costs one integer, and a million tasks that were
enqueued one by one under one key cost one range.

The runs of a list ascend and do not overlap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, TypeAlias

Run: TypeAlias = "int | range | array[int]"
Listed: TypeAlias = "Run | list[Run]"

ARRAY_MAX: Final = 512
"""Ids of one array. Bounds the work of an insertion and of one step of a sweep."""

RANGE_MIN: Final = 16
"""Fewer consecutive ids than this join an array: 8 bytes an id are less than a range object of 112 bytes."""


def first_of(run: Run) -> int:
    return run if isinstance(run, int) else run[0]


def last_of(run: Run) -> int:
    return run if isinstance(run, int) else run[-1]


def size_of(run: Run) -> int:
    return 1 if isinstance(run, int) else len(run)


def packed(ids: Sequence[int]) -> Run:
    """Return ascending ids as a run: one id, a range where they are consecutive, an array otherwise."""
    first = ids[0]
    count = len(ids)
    if count == 1:
        return first
    if isinstance(ids, range):
        return ids
    if ids[-1] - first == count - 1:
        return range(first, first + count)
    return array("Q", ids)


def listed_of(ids: Sequence[int]) -> Listed:
    """Return ascending ids as they are listed under a key: one run, or several if they are many and scattered."""
    count = len(ids)
    if count <= ARRAY_MAX or ids[-1] - ids[0] == count - 1:
        return packed(ids)
    return [packed(ids[start : start + ARRAY_MAX]) for start in range(0, count, ARRAY_MAX)]


def extended(listed: Listed, ids: Sequence[int]) -> Listed:
    """Return the runs with ascending ids behind them, all above the last one. May change ``listed`` in place."""
    if isinstance(listed, list):
        joined = _joined(listed[-1], ids)
        if joined is None:
            listed += runs_of(listed_of(ids))
        else:
            listed[-1] = joined
        return listed
    joined = _joined(listed, ids)
    return [listed, *runs_of(listed_of(ids))] if joined is None else joined


def _joined(run: Run, ids: Sequence[int]) -> Run | None:
    """Return one run of both, or None if they are better kept apart."""
    count = len(ids)
    first = ids[0]
    is_range = ids[-1] - first == count - 1
    if isinstance(run, array):
        if len(run) + count > ARRAY_MAX or (is_range and count >= RANGE_MIN):
            return None
        run.extend(array("Q", ids))
        return run
    start = first_of(run)
    stop = last_of(run) + 1
    if is_range and stop == first:
        return range(start, first + count)
    if stop - start >= RANGE_MIN or (is_range and count >= RANGE_MIN) or count > ARRAY_MAX:
        return None
    found = array("Q", range(start, stop))
    found.extend(array("Q", ids))
    return found


def inserted(listed: Listed, task_id: int) -> Listed:
    """Return the runs with one more id at its place; an id that is there is not listed twice."""
    runs: list[Run] = listed if isinstance(listed, list) else [listed]
    if task_id > last_of(runs[-1]):
        return extended(listed, (task_id,))
    place = bisect_right(runs, task_id, key=first_of) - 1
    if place < 0:
        return [task_id, *runs]
    run = runs[place]
    if isinstance(run, array) and run[0] < task_id < run[-1]:
        at = bisect_left(run, task_id)
        if run[at] != task_id:
            run.insert(at, task_id)
            if len(run) > ARRAY_MAX:
                runs[place : place + 1] = [run[: ARRAY_MAX // 2], run[ARRAY_MAX // 2 :]]
    elif task_id > last_of(run):
        runs.insert(place + 1, task_id)
    return runs[0] if len(runs) == 1 else runs


def runs_of(listed: Listed) -> list[Run]:
    return listed if isinstance(listed, list) else [listed]


def runs_after(listed: Listed, task_id: int) -> list[Run]:
    """Return the runs of the ids above one id."""
    runs = runs_of(listed)
    place = max(bisect_right(runs, task_id, key=first_of) - 1, 0)
    run = runs[place]
    if isinstance(run, int):
        rest: Run | None = run if run > task_id else None
    else:
        cut = run[bisect_right(run, task_id) :]
        rest = cut or None
    behind = runs[place + 1 :]
    return behind if rest is None else [rest, *behind]
