"""The same seed is the same life, to the last event, whatever Python's hashes are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import simulation
from simulation.run import run_seed
from simulation.swarm import SHORT, Fault, draw_plan

SEEDS = (0, 7, 16)


def trace_hash(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "simulation", "--seed", str(seed)],
        cwd=Path(simulation.__file__).parent.parent,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["violation"] is None
    return str(found["trace_hash"])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_lives_the_same_life_under_any_hash_seed(seed: int) -> None:
    hashes = {trace_hash(seed, "1"), trace_hash(seed, "2"), run_seed(seed).trace_hash}
    assert len(hashes) == 1


def test_other_seeds_live_other_lives() -> None:
    hashes = {run_seed(seed, faults=frozenset((Fault.KILL,))).trace_hash for seed in range(30, 34)}
    assert len(hashes) == 4


def test_half_of_the_seeds_know_one_kind_of_fault_only() -> None:
    plans = [draw_plan(seed, SHORT) for seed in range(400)]
    single = sum(len(plan.faults) == 1 for plan in plans)
    assert 160 < single < 280
    assert {fault for plan in plans for fault in plan.faults} == set(Fault)
    assert all(len(plan.victims) <= (plan.nodes - 1) // 2 for plan in plans)
    assert {plan.nodes for plan in plans} == {1, 2, 3, 4, 5}


def test_a_fault_that_is_skipped_leaves_the_others_as_they_were() -> None:
    faults = frozenset((Fault.KILL,))
    whole = run_seed(40, faults=faults, keeps_trace=True)
    first = next(line for line in whole.lines if "fault 1:" in line)
    without = run_seed(40, faults=faults, skipped=frozenset((2,)), keeps_trace=True)
    assert first in without.lines
    assert any("fault 2:" in line for line in whole.lines)
    assert not any("fault 2:" in line for line in without.lines)
    assert any("fault 3:" in line for line in without.lines)
