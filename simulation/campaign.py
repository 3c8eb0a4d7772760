"""The command ``scripts/simulate``: a campaign of many seeds on several cores, or one seed again.

A seed that breaks something is kept with its trace and its history, and printed with the command that replays it. The
last line on standard output is the ledger's: what was run, in JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock import __version__
from simulation.checking.history import encode_operation
from simulation.run import Result, run_seed
from simulation.shrinking import shrink
from simulation.swarm import SCALES, Fault

FAILURES_SHOWN: Final = 20

COMMAND: Final = "scripts/simulate"

_ERRORS: Final = Console(stderr=True)


def main(arguments: Sequence[str]) -> int:
    """Run one seed if ``--seed`` is given, else a campaign. Return 1 if a check failed, else 0."""
    if any(word.partition("=")[0] == "--seed" for word in arguments):
        return replay(arguments)
    return run_campaign(arguments)


def run_campaign(arguments: Sequence[str]) -> int:
    """Run many seeds and print the ledger. Return 1 if a seed failed, else 0."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Simulate many clusters, one per seed.",
        epilog=f"To run one seed and trace or shrink it: {COMMAND} --seed N; {COMMAND} --seed N --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--seeds", type=_positive, default=100, help="how many (default: 100)")
    parser.add_argument("--first", type=_natural, default=0, help="the first one (default: 0)")
    parser.add_argument("--jobs", type=_positive, default=2, help="processes (default: 2)")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full", help="size of a seed")
    parser.add_argument("--out", type=Path, default=None, help="directory for what has failed")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    results: list[Result] = []
    try:
        for result in _show(_run_all(seeds, options.scale, options.jobs), len(seeds)):
            results.append(result)
            if result.violation is not None:
                _report(result, options.scale, options.out)
    except KeyboardInterrupt:
        _ERRORS.print("interrupted; what follows is what was done until then")
    ledger = _ledger(results, options, time.perf_counter() - started)
    print(json.dumps(ledger))  # noqa: T201 - data goes to standard output
    return 1 if ledger["violations"] else 0


def replay(arguments: Sequence[str]) -> int:
    """Run one seed and print its result. Return 1 if it failed, else 0."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Simulate one cluster from its seed.", allow_abbrev=False
    )
    parser.add_argument("--seed", type=_natural, required=True)
    parser.add_argument("--scale", choices=sorted(SCALES), default="short")
    parser.add_argument("--skip", type=_numbers, default=frozenset(), help="fault events: 1,2,5")
    parser.add_argument("--faults", type=_faults, default=None, help="only these: kill,pause")
    parser.add_argument("--shrink", action="store_true", help="leave out what it fails without")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    options = parser.parse_args(arguments)
    scale = SCALES[options.scale]
    if options.shrink:
        try:
            skipped, result = shrink(options.seed, scale)
        except ValueError as error:
            _ERRORS.print(str(error), markup=False)
            return 0
        kept = sorted(set(range(1, result.fault_events + 1)) - skipped)
        _ERRORS.print(f"fault events that it still needs: {kept}", markup=False)
    else:
        result = run_seed(
            options.seed,
            scale,
            skipped=options.skip,
            faults=options.faults,
            keeps_trace=options.trace,
        )
    if options.trace or options.shrink:
        for line in result.lines:
            print(line)  # noqa: T201
    print(json.dumps(_summary(result)))  # noqa: T201
    return 0 if result.violation is None else 1


def _positive(text: str) -> int:
    return _natural(text) or _refuse("at least 1 is needed")


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        return _refuse(f"{text!r} is no whole number from 0 on")
    return int(text)


def _numbers(text: str) -> frozenset[int]:
    return frozenset(map(_natural, filter(None, text.split(","))))


def _faults(text: str) -> frozenset[Fault]:
    try:
        return frozenset(map(Fault, filter(None, text.split(","))))
    except ValueError:
        _refuse(f"{text!r}: choose from {', '.join(Fault)}")
        return frozenset()


def _refuse(words: str) -> int:
    raise argparse.ArgumentTypeError(words)


def _run_all(seeds: range, scale: str, jobs: int) -> Iterator[Result]:
    live = partial(_live, scale)
    if jobs == 1:
        yield from map(live, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(live, seeds)


def _live(scale: str, seed: int) -> Result:
    """Live through a seed; through one that fails once more, to keep all of it."""
    result = run_seed(seed, SCALES[scale])
    if result.violation is not None:
        result = run_seed(seed, SCALES[scale], keeps_trace=True)
    else:
        result.lines.clear()
    return result


def _show(results: Iterator[Result], count: int) -> Iterator[Result]:
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[broken]} broken"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_ERRORS) as progress:
        bar = progress.add_task("seeds", total=count, broken=0)
        broken = 0
        for result in results:
            broken += result.violation is not None
            progress.update(bar, advance=1, broken=broken)
            yield result


def _report(result: Result, scale: str, out: Path | None) -> None:
    again = f"{COMMAND} --seed {result.seed} --scale {scale} --trace"
    _ERRORS.print(
        f"seed {result.seed} ({', '.join(result.faults)}): {result.violation}", markup=False
    )
    _ERRORS.print(f"  {again}", markup=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        trace = "\n".join((again, result.violation or "", *result.lines, ""))
        (out / f"seed-{result.seed}.trace").write_text(trace, encoding="utf-8")
        lines = "".join(encode_operation(operation) + "\n" for operation in result.history)
        (out / f"seed-{result.seed}.history.jsonl").write_text(lines, encoding="ascii")


def _summary(result: Result) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "violation": result.violation,
        "trace_hash": result.trace_hash,
        "nodes": result.nodes,
        "faults": result.faults,
        "injected": dict(result.injected),
        "simulated_seconds": round(result.simulated_seconds, 3),
        "seconds": round(result.seconds, 3),
        "events": result.events,
        "operations": result.operations,
        "answered": result.answered,
        "crashes": result.crashes,
        "coverage": dict(result.coverage),
    }


def _ledger(
    results: Sequence[Result], options: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    injected: Counter[str] = Counter()
    coverage: Counter[str] = Counter()
    for result in results:
        injected.update(result.injected)
        coverage.update(result.coverage)
    busy = sum(result.seconds for result in results)
    simulated = sum(result.simulated_seconds for result in results)
    failed = sorted(result.seed for result in results if result.violation is not None)
    return {
        "version": __version__,
        "commit": _commit(Path.cwd()),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "scale": options.scale,
        "first": options.first,
        "seeds": len(results),
        "violations": len(failed),
        "failed": failed[:FAILURES_SHOWN],
        "simulated_hours": round(simulated / 3600, 2),
        "simulated_seconds_a_second_and_core": round(simulated / busy, 1) if busy else 0,
        "events": sum(result.events for result in results),
        "events_a_second_and_core": round(sum(r.events for r in results) / busy) if busy else 0,
        "operations": sum(result.operations for result in results),
        "answered": sum(result.answered for result in results),
        "crashes": sum(result.crashes for result in results),
        "faults": sum(injected.values()),
        "by_fault": dict(sorted(injected.items())),
        "coverage": dict(coverage),
        "seconds": round(seconds, 1),
    }


def _commit(place: Path) -> str | None:
    """Return the commit that is checked out here, if this is a repository."""
    for directory in (place, *place.parents):
        head = directory / ".git" / "HEAD"
        if not head.is_file():
            continue
        text = head.read_text(encoding="ascii").strip()
        if not text.startswith("ref: "):
            return text
        reference = directory / ".git" / text[5:]
        return reference.read_text(encoding="ascii").strip() if reference.is_file() else None
    return None
