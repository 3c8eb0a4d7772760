"""Seeded bugs against the tests and against the simulator; the command ``scripts/seeded-bugs`` (docs/seeded-bugs.md).

    scripts/seeded-bugs [NAME…] [--seeds N] [--tries N] [--scale SCALE] [--only-likely] [--tests-only | --seeds-only]

For each bug: the first of the likely tests that fails with it, then a seed of the simulator that finds it. One process at a
time; the bug is only ever in that process. Seeds that were found are kept in ``found.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from seeded_bugs.bugs import BUGS, BY_NAME, Bug
from seeded_bugs.plugin import BUGS as BUGS_VARIABLE
from seeded_bugs.plugin import ONLY_NAMED, OUT
from simulation.swarm import SCALES

ROOT: Final = Path(__file__).parents[2]
FOUND: Final = Path(__file__).parent / "found.json"

LIKELY: Final = {
    "votes": ("raft",),
    "quorum": ("raft",),
    "log": ("raft", "server/test_group.py"),
    "disk": ("raft", "storage/test_log_contract.py", "storage/test_metadata_store.py",
             "storage/test_failed_sync_more.py"),
    "snapshots": ("raft", "storage/test_received_snapshot_more.py", "server/test_group.py",
                  "server/test_group_more.py"),
    "membership": ("raft", "server/test_group.py"),
    "reads": ("raft", "server/test_group.py"),
    "queue": ("queues", "server/test_group.py", "server/test_group_more.py",
              "server/test_broker.py", "server/test_rebuild.py"),
}  # fmt: skip
"""Where a bug of an area should show first, below ``tests``; the file that the list names for it is always among them."""

LONG: Final = ("raft/test_search.py", "raft/test_i_frames.py")
"""Tests among these that take too long to run for every bug, or have nothing to do with any."""

TESTS_SECONDS_MAX: Final = 3600


def run_tests(bugs: Sequence[Bug], scratch: Path, *, only_named: bool) -> dict[str, dict[str, Any]]:
    """Return by bug which test noticed it and how, found in a process of its own."""
    out = scratch / "found.json"
    if only_named:
        tests = {bug.test for bug in bugs}
    else:
        tests = {place for bug in bugs for place in LIKELY[bug.area]}
        tests |= {bug.test.partition("::")[0] for bug in bugs}
    command = [sys.executable, "-m", "pytest", "-p", "seeded_bugs.plugin", "-p", "no:cacheprovider"]
    command += ["-q", "-p", "no:xdist", *(f"--ignore=tests/{long}" for long in LONG)]
    command += [f"tests/{test}" for test in sorted(tests)]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "tests"),
        BUGS_VARIABLE: ",".join(bug.name for bug in bugs),
        OUT: str(out),
        ONLY_NAMED: "1" if only_named else "",
    }
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(variable, None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TESTS_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    if not out.exists():
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    found: dict[str, dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def run_seeds(
    bug: Bug,
    *,
    first: int = 0,
    seeds: int,
    tries: int,
    scale: str = "full",
    only_likely: bool = False,
) -> dict[str, Any]:
    """Return a seed that finds a bug, found in a process of its own."""
    command = [sys.executable, "-m", "seeded_bugs.simulate", bug.name]
    command += ["--first", str(first), "--seeds", str(seeds), "--tries", str(tries)]
    command += ["--scale", scale, *(["--only-likely"] if only_likely else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if not done.stdout:
        raise RuntimeError(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def load_seeds() -> dict[str, dict[str, Any]]:
    """Return what is known of seeds: by bug the seed, how many were tried, and what was broken."""
    found: dict[str, dict[str, Any]] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def table(seeds: dict[str, dict[str, Any]]) -> str:
    """Return the table of the docs."""
    lines = ["| Bug | What it does | Met | Noticed by | Seed |", "|---|---|---|---|---|"]
    for bug in BUGS:
        test = bug.test.replace("::", " ").replace(".py", "")
        cells = (f"`{bug.name}`", bug.what, bug.met, f"`{test}`", _seed(seeds.get(bug.name)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _seed(known: dict[str, Any] | None) -> str:
    if known is None:
        return "not tried"
    if known["seed"] is None:
        return f"not within {known['tried']}"
    only = f", only {' and '.join(known['faults'])}" if known["faults"] is not None else ""
    return f"{known['seed']} {known['scale']}{only}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for bugs; return 1 if one survives the tests or the seeds that were tried."""
    parser = argparse.ArgumentParser(prog="scripts/seeded-bugs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs (default: all)")
    parser.add_argument("--seeds", type=int, default=2000, help="seeds to choose from, from 0 on")
    parser.add_argument("--tries", type=int, default=2000, help="seeds to live through at most")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full", help="size of a seed")
    parser.add_argument("--only-likely", action="store_true", help="no faults but the likely ones")
    parser.add_argument("--tests-only", action="store_true")
    parser.add_argument("--seeds-only", action="store_true")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - BY_NAME.keys())
    if unknown:
        parser.error(f"no such bug: {', '.join(unknown)}; choose from {', '.join(BY_NAME)}")
    bugs = [BY_NAME[name] for name in options.names] or BUGS
    survived = 0
    for bug in bugs:
        if not options.seeds_only:
            survived += not _report_test(bug)
        if not options.tests_only:
            survived += not _report_seed(bug, options)
    return 1 if survived else 0


def _report_test(bug: Bug) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        outcome = run_tests([bug], Path(scratch), only_named=False)[bug.name]
    print(f"{bug.name}: test: {outcome['test'] or 'SURVIVED'} ({outcome['how']})", flush=True)
    return outcome["test"] is not None


def _report_seed(bug: Bug, options: argparse.Namespace) -> bool:
    outcome = run_seeds(
        bug,
        seeds=options.seeds,
        tries=options.tries,
        scale=options.scale,
        only_likely=options.only_likely,
    )
    known = load_seeds()
    known[bug.name] = outcome
    FOUND.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    if outcome["seed"] is None:
        print(f"{bug.name}: SURVIVED {outcome['tried']} seeds", flush=True)
        return False
    print(f"{bug.name}: seed {outcome['seed']}: {outcome['violation']}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
