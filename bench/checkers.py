"""How long each check of a history takes, at 100,000 operations. Run by ``bench/checkers``; the goal is 2 s each."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from penstock.model import Policy
from simulation.checking import delivery, priority_queue, witness
from simulation.checking.history import Op, Operation, read_history, write_history
from simulation.checking.samples import Life, filled_and_emptied, plain_history, spoiled
from simulation.checking.violations import Violation

GOAL = 2.0
SEED = 20


def limited(history: list[Operation]) -> list[Operation]:
    """Return a history whose queue has a size limit, so that bounds are judged too."""
    create = Operation(
        process=0, op=Op.CREATE, queue="limited", t0=-100, t1=-99, policy=Policy(size_max=10**6)
    )
    return [create, *[replace(operation, queue="limited") for operation in history]]


def spoiled_often(history: list[Operation], times: int) -> list[Operation]:
    """Return a wrong history: proofs have to be found too."""
    random = Random(SEED)
    for start in range(0, len(history), len(history) // times):
        history[start : start + 50] = spoiled(random, history[start : start + 50])
    return history


def checks(operations: int) -> dict[str, Callable[[], Sequence[Violation]]]:
    """Make the histories, and return what is to be measured by name. Those named wrong are."""
    unknown = 0.01
    plain = plain_history(Random(SEED), operations, keys=10, slack=30, unknown=unknown)
    many_keys = plain_history(Random(SEED), operations, keys=operations, slack=30, unknown=unknown)
    deep = filled_and_emptied(Random(SEED), operations)
    wrong = spoiled_often(plain.copy(), 100)
    life = Life(Random(SEED), operations)
    bounded = limited(life.history)
    return {
        "priority queue, 10 keys": lambda: priority_queue.check(plain),
        "priority queue, a key a task": lambda: priority_queue.check(many_keys),
        "priority queue, filled and emptied": lambda: priority_queue.check(deep),
        "priority queue, a wrong history": lambda: priority_queue.check(wrong),
        "witness": lambda: witness.check(life.history, committed=life.log),
        "delivery": lambda: delivery.check(life.history, is_drained=True).violations,
        "delivery with a size limit": lambda: delivery.check(bounded, is_drained=True).violations,
    }


def best_time(call: Callable[[], object], repeats: int) -> float:
    """Return the processor's seconds of the shortest run: what others do on the machine only ever adds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def file_times(history: list[Operation]) -> tuple[float, float]:
    """Return how long a history takes to be written and to be read."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.jsonl"
        writing = best_time(lambda: write_history(path, history), 1)
        return writing, best_time(lambda: read_history(path), 1)


def main() -> int:
    """Print the table; the exit code says whether each check keeps to its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    table = Table("check", "processor seconds", "goal", title=f"{options.operations:,} operations")
    is_good = True
    for name, call in checks(options.operations).items():
        # A check that cannot tell right from wrong may be as fast as it likes.
        assert bool(call()) is ("wrong" in name), f"the verdict on {name!r} is not the right one"
        seconds = best_time(call, options.repeats)
        is_good &= seconds < GOAL
        table.add_row(name, f"{seconds:.2f}", f"< {GOAL:g}")
    writing, reading = file_times(Life(Random(SEED), options.operations).history)
    table.add_row("history written", f"{writing:.2f}", "")
    table.add_row("history read", f"{reading:.2f}", "")
    Console().print(table)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
