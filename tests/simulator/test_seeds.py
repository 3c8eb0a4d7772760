"""Whole clusters by seed: a fixed set with every change, and every seed that ever found something.

`scripts/simulate` runs fresh ones by the thousand.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from simulation.run import Result, run_seed
from simulation.swarm import SCALES

FIXED: Final = 600
PORTION: Final = 20  # seeds a test, so that workers share them

SEEDS_FILE: Final = Path(__file__).with_name("seeds.txt")


def past_seeds() -> list[int]:
    lines = SEEDS_FILE.read_text(encoding="ascii").splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def judge(seed: int, scale: str = "short") -> Result:
    result = run_seed(seed, SCALES[scale])
    again = f"scripts/simulate --seed {seed} --scale {scale} --trace"
    assert result.violation is None, f"seed {seed}: {result.violation}\n{again}"
    assert result.answered, f"seed {seed} did nothing"
    return result


@pytest.mark.parametrize("first", range(0, FIXED, PORTION))
def test_clusters_keep_their_promises(first: int) -> None:
    results = [judge(seed) for seed in range(first, first + PORTION)]
    # Where leaders hardly ever change, little can be found.
    assert sum(result.coverage["elections"] for result in results) > 2 * PORTION


@pytest.mark.parametrize("seed", past_seeds())
def test_a_seed_that_once_broke_something_does_not_any_more(seed: int) -> None:
    judge(seed)


@pytest.mark.heavy
def test_fresh_clusters_keep_their_promises() -> None:
    first = int.from_bytes(os.urandom(4), "big")
    for seed in range(first, first + 300):
        judge(seed)


@pytest.mark.heavy
def test_an_hour_in_which_members_come_and_go() -> None:
    # This one had a leader without what was committed: elected by the members of two changes ago.
    result = judge(1, "deep")
    assert result.coverage["member changes"] > 1000
