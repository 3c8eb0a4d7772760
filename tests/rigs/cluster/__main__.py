"""Runs rigs one after the other, and ends with a table of them. See docs/rigs.md.

scripts/rig-cluster NAME…|all [--rounds N] [--seed N] [--keep]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from typing import Any, Final

from rigs.cluster.stage import Skipped, stage

RIGS: Final = ("kill", "pause", "wipe", "partition", "disk", "clock")
REQUIRE: Final = "PENSTOCK_REQUIRE_RIGS"


def run_rig(name: str, seed: int, rounds: int | None, *, is_kept: bool) -> dict[str, Any]:
    """Run one rig and return its row: passed, failed or skipped, why, and its figures."""
    module = importlib.import_module(f"rigs.cluster.{name}")
    started = time.monotonic()
    row: dict[str, Any] = {"rig": name, "seed": seed, "outcome": "passed", "why": []}
    figures: dict[str, Any] = {}
    problems: list[str] = []
    skipped = ""
    try:
        with stage(name, seed, is_kept=is_kept) as made:
            figures, problems = made.figures, made.problems
            module.run(made, module.ROUNDS if rounds is None else rounds)
    except Skipped as error:
        skipped = f"NOT SHOWN: {error}"
    except Exception as error:  # noqa: BLE001 - a rig that breaks is a row too
        traceback.print_exc()
        problems.append(f"{type(error).__name__}: {error}")
    if problems:
        row["outcome"], row["why"] = "failed", problems  # also if it was skipped half-way
    elif skipped:
        row["outcome"], row["why"] = "skipped", [skipped]
    figures["load_average"] = round(os.getloadavg()[1], 1)  # others may have used the machine too
    row["figures"] = figures | {"run_seconds": round(time.monotonic() - started, 1)}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/rig-cluster", description=__doc__)
    parser.add_argument("names", nargs="+", choices=(*RIGS, "all"), metavar="NAME")
    parser.add_argument("--rounds", type=int, help="cycles of each rig, else as many as it likes")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--keep", action="store_true", help="keep files and histories of good runs too"
    )
    given = parser.parse_args()
    names = RIGS if "all" in given.names else tuple(dict.fromkeys(given.names))
    rows = []
    for name in names:
        rows.append(run_rig(name, given.seed, given.rounds, is_kept=given.keep))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    for row in rows:
        why = row["why"][0] if row["why"] else ""
        sys.stderr.write(f"{row['rig']:<10} {row['outcome']:<8} seed {row['seed']}  {why}\n")
    is_strict = os.environ.get(REQUIRE) == "1"
    bad = {"failed", "skipped"} if is_strict else {"failed"}
    return 1 if any(row["outcome"] in bad for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
