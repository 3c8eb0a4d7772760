"""What every rig stands on: a directory, chance, a group under load, the list of what was broken, and the verdict."""

from __future__ import annotations

import math
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rigs.cluster.load import LEASE_SECONDS, Load, under_load
from rigs.cluster.processes import NODES, Cluster, Place, cluster, loopback_places
from rigs.cluster.verdict import judge
from simulation.checking.history import write_history
from support.at_rest import identified


class Skipped(Exception):
    """A rig cannot run here; its text is the exact reason."""


def must_be_shown() -> bool:
    """Whether a rig that cannot run counts as failed."""
    return os.environ.get("PENSTOCK_REQUIRE_RIGS") == "1"


@dataclass(slots=True)
class Stage:
    """One run of one rig."""

    name: str
    seed: int
    home: Path
    random: Random
    is_short: bool = False
    flags: tuple[str | float, ...] = ()  # for every node, before those of the rig
    faults: list[tuple[str, float, float]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Write a progress line."""
        sys.stderr.write(f"{self.name}: {text}\n")
        sys.stderr.flush()

    def another_than(self, node: int) -> int:
        """Draw one of the other nodes."""
        return self.random.choice([each for each in NODES if each != node])

    def note_waits(self, name: str, waits: list[float]) -> None:
        """Add how long something took: at most in half of the cases, in 99 of 100, and in all."""
        for title, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            if waits:
                nearest = sorted(waits)[math.ceil(share * len(waits)) - 1]
                self.figures[f"{name}_{title}_s"] = round(nearest, 2)

    def note_cycles(self, name: str, count: int, started: float) -> None:
        """Add how often something was done, and how long one time took with all that belongs to it."""
        self.figures[name] = count
        self.figures["seconds_a_cycle"] = round((time.monotonic() - started) / count, 2)

    @contextmanager
    def fault(self, what: str) -> Iterator[None]:
        """Note what is broken, and for how long."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.faults.append((what, started, time.monotonic()))

    @contextmanager
    def group(
        self,
        *flags: str | float,
        places: Mapping[int, Place] | None = None,
        before: str = "",
    ) -> Iterator[Cluster]:
        """Run the nodes; what they must not say counts as a problem."""
        places = loopback_places(self.random) if places is None else places
        with cluster(self.home, places, *self.flags, *flags, before=before) as made:
            try:
                yield made
            finally:
                made.keep_logs()
            self.problems += made.problems()

    @contextmanager
    def work(
        self,
        group: Cluster,
        *,
        payload_size_max: int = 200,
        workers: int = 2,
        lease_time: float = LEASE_SECONDS,
    ) -> Iterator[Load]:
        """Load the group while the body breaks it; then compare its nodes, drain it, and judge the history.

        The nodes are not compared in a short run: it takes a restart of all.
        """
        load = Load(group, self.seed, payload_size_max=payload_size_max, workers=workers)
        try:
            with under_load(load):
                yield load
            group.wait_whole()
            if not self.is_short:
                self._compare_nodes(group)
            load.drain()
        finally:
            self._keep_history(load)
        begun = time.monotonic()
        verdict = judge(load.book.operations, group.elections(), self.faults, lease_time=lease_time)
        self.figures |= verdict.figures
        self.figures["elections"] = len(group.elections())
        self.figures["judged_in_s"] = round(time.monotonic() - begun, 1)
        # Of this process so far: nodes and other rigs' histories are not in it, former rigs of the same run are.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.figures["rig_memory_mib"] = round(peak / 1024)
        self.problems += verdict.problems

    def _keep_history(self, load: Load) -> None:
        path = self.home / "history.jsonl"
        path.unlink(missing_ok=True)
        write_history(path, load.book.operations)

    def _compare_nodes(self, group: Cluster) -> None:
        """Stop all nodes when they have applied the same, and compare their tasks as the tools read them."""
        self.figures["compared_at"] = group.wait_equal()
        group.stop_all()
        held = {node: identified(group.data(node), uncommitted=True) for node in group.nodes}
        first, *others = group.nodes
        self.figures["compared_tasks"] = len(held[first])
        for node in others:
            if held[node] != held[first]:
                strange = set(held[node]) ^ set(held[first])
                self.problems.append(
                    f"nodes {first} and {node} differ by {len(strange)} tasks: {list(strange)[:3]}"
                )
        group.start_all()


@contextmanager
def stage(
    name: str,
    seed: int,
    *,
    flags: tuple[str | float, ...] = (),
    is_short: bool = False,
    is_kept: bool = False,
) -> Iterator[Stage]:
    """Make a directory for a run. It is kept, with the history, if the run finds a problem."""
    home = Path(tempfile.mkdtemp(prefix=f"penstock-rig-{name}-"))
    made = Stage(name, seed, home, Random(seed), is_short, flags)
    is_clean = False
    try:
        yield made
        is_clean = not made.problems
    except Skipped:
        is_clean = True
        raise
    finally:
        if is_clean and not is_kept:
            shutil.rmtree(home, ignore_errors=True)
        else:
            made.say(f"files and history are kept in {home}")
