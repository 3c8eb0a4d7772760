"""One seed, from its plan to its verdict, repeatable to the last event."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from simulation.checking.history import Operation
from simulation.clock import SECOND
from simulation.invariants import Broken
from simulation.swarm import SHORT, Fault, Scale, draw_plan
from simulation.world import World


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of a seed."""

    seed: int
    violation: str | None  # what was broken, in words
    trace_hash: str
    nodes: int
    faults: tuple[str, ...]  # kinds that could happen
    injected: Counter[str]  # events that did
    simulated_seconds: float
    seconds: float
    events: int
    operations: int
    answered: int
    crashes: int
    coverage: Counter[str]  # what it came through: elections, entries that were replaced, and so on
    fault_events: int  # the last number that was given to one
    lines: list[str] = field(default_factory=list)
    history: list[Operation] = field(default_factory=list)


def run_seed(
    seed: int,
    scale: Scale = SHORT,
    *,
    skipped: frozenset[int] = frozenset(),
    faults: frozenset[Fault] | None = None,
    keeps_trace: bool = False,
) -> Result:
    """Live through a seed. ``skipped`` are fault events to leave out, ``faults`` the only kinds to happen."""
    started = time.process_time()
    plan = draw_plan(seed, scale, faults=faults)
    world = World(plan, skipped=skipped, keeps_trace=keeps_trace)
    violation = None
    try:
        world.run()
    except Broken as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 - whatever the product raises is a finding
        violation = _words(error)
        world.lines.append("".join(traceback.format_exception(error)))
    if violation is not None:
        world.note(f"broken: {violation}")
    history = world.recorder.finish()
    return Result(
        seed=seed,
        violation=violation,
        trace_hash=world.trace_hash,
        nodes=plan.nodes,
        faults=tuple(sorted(plan.faults)),
        injected=Counter({str(fault): n for fault, n in sorted(world.nemesis.injected.items())}),
        simulated_seconds=world.timeline.now / SECOND,
        seconds=time.process_time() - started,
        events=world.timeline.events,
        operations=len(history),
        answered=sum(1 for one in history if one.outcome == "ok"),
        crashes=world.crashes,
        coverage=world.invariants.coverage,
        fault_events=world.nemesis.number,
        lines=list(world.lines),
        history=history if keeps_trace else [],
    )


FRAMES_SHOWN: Final = 6


def _words(error: Exception) -> str:
    """Return an exception in a line: what, and through which functions."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_SHOWN:]
    way = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in frames)
    return f"{type(error).__name__}: {error} ({way})"
