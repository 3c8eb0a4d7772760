"""What every rig stands on: a directory, chance, a group under load, the list of what was broken, and the verdict."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from penstock.testing.checking.history import write_history
from rigs.cluster.load import LEASE_SECONDS, Load, under_load
from rigs.cluster.processes import NODES, Cluster, Place, cluster, loopback_places
from rigs.cluster.verdict import judge
from support.at_rest import identified


class Skipped(Exception):
    """A rig cannot run here; its text is the exact reason."""


@dataclass(slots=True)
class Stage:
    """One run of one rig."""

    name: str
    seed: int
    home: Path
    random: Random
    is_short: bool = False
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
        """Add how long something took, half of the times and at most."""
        if waits:
            self.figures[f"{name}_p50_s"] = round(median(waits), 2)
            self.figures[f"{name}_max_s"] = round(max(waits), 2)

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
        """Run three nodes; what they must not say counts as a problem."""
        places = loopback_places(self.random) if places is None else places
        with cluster(self.home, places, *flags, before=before) as made:
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

        The nodes are not compared in a short run: it takes a restart of all three.
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
        verdict = judge(load.book.operations, group.elections(), self.faults, lease_time=lease_time)
        self.figures |= verdict.figures
        self.figures["elections"] = len(group.elections())
        self.problems += verdict.problems

    def _keep_history(self, load: Load) -> None:
        path = self.home / "history.jsonl"
        path.unlink(missing_ok=True)
        write_history(path, load.book.operations)

    def _compare_nodes(self, group: Cluster) -> None:
        """Stop all nodes when they have applied the same, and compare their tasks as the tools read them."""
        self.figures["compared_at"] = group.wait_equal()
        group.stop_all()
        held = {node: identified(group.data(node), uncommitted=True) for node in NODES}
        self.figures["compared_tasks"] = len(held[NODES[0]])
        for node in NODES[1:]:
            if held[node] != held[NODES[0]]:
                strange = set(held[node]) ^ set(held[NODES[0]])
                self.problems.append(
                    f"nodes {NODES[0]} and {node} differ by {len(strange)} tasks: {list(strange)[:3]}"
                )
        for node in NODES:
            group.start(node)
        for node in NODES:
            group.life(node).wait_listening()
        group.wait_whole()


@contextmanager
def stage(
    name: str, seed: int, *, is_short: bool = False, is_kept: bool = False
) -> Iterator[Stage]:
    """Make a directory for a run. It is kept, with the history, if the run finds a problem."""
    home = Path(tempfile.mkdtemp(prefix=f"penstock-rig-{name}-"))
    made = Stage(name, seed, home, Random(seed), is_short)
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
