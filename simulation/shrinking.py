"""Makes a failing seed easier to read: leaves out fault events as long as the run still breaks."""

from __future__ import annotations

from collections.abc import Callable

from simulation.run import Result, run_seed
from simulation.swarm import Scale


def shrink(seed: int, scale: Scale, *, runs_max: int = 200) -> tuple[frozenset[int], Result]:
    """Return the fault events that a failing seed can do without, and the run without them.

    Which invariant breaks may change on the way. Raises ``ValueError`` if the seed does not fail at all.
    """
    first = run_seed(seed, scale)
    if first.violation is None:
        raise ValueError(f"seed {seed} does not fail")
    kept = reduce_list(
        list(range(1, first.fault_events + 1)),
        lambda kept: run_seed(seed, scale, skipped=_others(first, kept)).violation is not None,
        runs_max,
    )
    skipped = _others(first, kept)
    return skipped, run_seed(seed, scale, skipped=skipped, keeps_trace=True)


def _others(result: Result, kept: list[int]) -> frozenset[int]:
    # Events behind the last one of the first run are left out as well: a run that lives longer would meet them.
    return frozenset(range(1, 10 * result.fault_events + 100)).difference(kept)


def reduce_list(
    items: list[int], still_fails: Callable[[list[int]], bool], runs_max: int
) -> list[int]:
    """Return a part of ``items`` that still fails, by delta debugging: none of its items can be left out alone.

    After ``runs_max`` tries it returns what it has.
    """
    size, runs = max(1, len(items) // 2), 0
    while items and runs < runs_max:
        start, is_smaller = 0, False
        while start < len(items) and runs < runs_max:
            rest = items[:start] + items[start + size :]
            runs += 1
            if still_fails(rest):
                items, is_smaller = rest, True
            else:
                start += size
        if size == 1 and not is_smaller:
            break
        size = max(1, size // 2)
    return items
