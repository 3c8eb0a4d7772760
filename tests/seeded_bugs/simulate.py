"""Live through simulated clusters with a seeded bug, seed by seed, until one betrays it.

    PYTHONPATH=tests python -m seeded_bugs.simulate NAME [--first N] [--seeds N] [--tries N] [--only-likely]

A seed counts only if it is clean without the bug. Seeds with likely faults come first. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Final

from seeded_bugs.bugs import BY_NAME, Bug
from seeded_bugs.limits import limited
from simulation.clock import MILLISECOND, SECOND
from simulation.run import run_seed
from simulation.swarm import SCALES, Fault, Plan, draw_plan

WORDS_MAX: Final = 200

SEED_SECONDS: Final = 60
"""Twenty times and more what a seed takes of the processor's time."""


def find(bug: Bug, seeds: range, scale: str, *, tries: int, only_likely: bool) -> dict[str, object]:
    """Return a seed that is broken with the bug and clean without it, and what was broken.

    Seeds whose faults are likely to bring the bug out come first; at most ``tries`` are lived through. With
    ``only_likely`` these faults are all that happens, whatever else the seed would draw.
    """
    faults = likely_faults(bug) if only_likely else None
    outcome = {"scale": scale, "faults": None if faults is None else sorted(faults)}
    for count, seed in enumerate(by_likelihood(bug, seeds, scale, faults)[:tries], 1):
        with limited(SEED_SECONDS), bug.applied():
            violation = run_seed(seed, SCALES[scale], faults=faults).violation
        if violation and run_seed(seed, SCALES[scale], faults=faults).violation is None:
            return outcome | {"seed": seed, "tried": count, "violation": violation[:WORDS_MAX]}
    return outcome | {"seed": None, "tried": min(tries, len(seeds)), "violation": None}


def likely_faults(bug: Bug) -> frozenset[Fault]:
    """Return the faults that may bring a bug out."""
    return frozenset(Fault(word) for word in bug.likely.split() if word not in TRAITS)


TRAITS: Final[dict[str, Callable[[Plan], bool]]] = {
    "bounded": lambda plan: plan.size_max is not None,
    "far": lambda plan: plan.weather.delay_mean >= 15 * MILLISECOND,
    "lossy": lambda plan: plan.survival < 0.5,
    "no-check-quorum": lambda plan: not plan.raft.has_check_quorum,
    "no-pre-vote": lambda plan: not plan.raft.has_pre_vote,
    "no-tail": lambda plan: plan.kept_bytes < 1000,
    "slow": lambda plan: plan.pace.mean > 2000,
    "snapshots": lambda plan: plan.snapshot_bytes <= 2000,
    "tight": lambda plan: plan.raft.append_size_max <= 100,
}
"""What a plan can be, beside the faults that it knows."""


GAP_WANTED: Final = 2 * SECOND
"""Time between two faults of the wanted kinds: an election takes one to three seconds."""


def by_likelihood(bug: Bug, seeds: range, scale: str, faults: frozenset[Fault] | None) -> list[int]:
    """Return seeds with most of what brings the bug out first; among those groups of three or more, neither too calm
    nor so troubled that nobody ever leads."""
    wanted = bug.likely.split()

    def rank(seed: int) -> tuple[int, bool, float, int]:
        plan = draw_plan(seed, SCALES[scale], faults=faults)
        missing = [word for word in wanted if not _has(plan, word)]
        gap = plan.fault_gap * len(plan.faults) / max(1, len(wanted))
        return (len(missing), plan.nodes < 3, abs(gap - GAP_WANTED), seed)

    return sorted(seeds, key=rank)


def _has(plan: Plan, word: str) -> bool:
    return TRAITS[word](plan) if word in TRAITS else Fault(word) in plan.faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for one bug; return 0 if a seed finds it, 1 if none does."""
    parser = argparse.ArgumentParser(prog="seeded_bugs.simulate")
    parser.add_argument("bug", choices=sorted(BY_NAME))
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--tries", type=int, default=2000, help="seeds to live through at most")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--only-likely", action="store_true", help="no faults but the likely ones")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    result = find(
        BY_NAME[options.bug],
        seeds,
        options.scale,
        tries=options.tries,
        only_likely=options.only_likely,
    )
    print(json.dumps(result))
    return 0 if result["seed"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
