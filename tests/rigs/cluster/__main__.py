"""Runs rigs one after the other, and ends with a table of them. See docs/rigs.md.

scripts/rig-cluster NAME…|all [--rounds N] [--seed N] [--keep] [--election-timeout MS]
    power [--file-system ext4|xfs]    partition --campaign [--seconds N]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rigs.cluster import campaign, power
from rigs.cluster.stage import Skipped, Stage, must_be_shown, stage
from rigs.loop_disk import FILE_SYSTEMS

RIGS: Final = ("kill", "pause", "wipe", "partition", "disk", "clock", "power", "strangers")
HEARTBEATS: Final = 10  # in an election timeout, as by default
TIMEOUT_MS_MIN: Final = 500
"""The leader that is killed last in ``kill`` must still lead until then."""


@dataclass(frozen=True, slots=True)
class Run:
    """One rig in one of its forms: each is a row of the table."""

    rig: str
    form: str
    work: Callable[[Stage], None]

    @property
    def title(self) -> str:
        return f"{self.rig}, {self.form}" if self.form else self.rig


def planned(name: str, given: argparse.Namespace) -> Iterator[Run]:
    """Give the runs of a rig, as the options want it."""
    module = importlib.import_module(f"rigs.cluster.{name}")
    rounds = module.ROUNDS if given.rounds is None else given.rounds
    if name == "power":
        for kind in given.file_system or FILE_SYSTEMS:
            yield Run(name, kind, partial(power.run, rounds=rounds, file_system=kind))
    elif name == "partition" and given.campaign:
        for each in campaign.CONFIGURATIONS:
            if not given.configuration or each.name in given.configuration:
                yield Run(
                    name,
                    each.name,
                    partial(campaign.run, configuration=each, seconds=given.seconds),
                )
    else:
        yield Run(name, "", partial(module.run, rounds=rounds))


def run_rig(run: Run, given: argparse.Namespace) -> dict[str, Any]:
    """Run one rig and return its row: passed, failed or skipped, why, and its figures."""
    started = time.monotonic()
    row: dict[str, Any] = {"rig": run.rig, "form": run.form, "seed": given.seed}
    figures: dict[str, Any] = {}
    problems: list[str] = []
    skipped = ""
    try:
        with stage(run.rig, given.seed, flags=_flags(given), is_kept=given.keep) as made:
            figures, problems = made.figures, made.problems
            run.work(made)
    except Skipped as error:
        skipped = f"NOT SHOWN: {error}"
    except Exception as error:  # noqa: BLE001 - a rig that breaks is a row too
        traceback.print_exc()
        problems.append(f"{type(error).__name__}: {error}")
    row |= {"outcome": "passed", "why": []}
    if problems:
        row |= {"outcome": "failed", "why": problems}  # also if it was skipped half-way
    elif skipped:
        row |= {"outcome": "skipped", "why": [skipped]}
    figures["load_average"] = round(os.getloadavg()[1], 1)  # others may have used the machine too
    row["figures"] = figures | {"run_seconds": round(time.monotonic() - started, 1)}
    return row


def _flags(given: argparse.Namespace) -> tuple[str | float, ...]:
    timeout = given.election_timeout
    if timeout is None:
        return ()
    return ("--election-timeout", timeout, "--heartbeat", timeout // HEARTBEATS)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/rig-cluster", description=__doc__)
    parser.add_argument("names", nargs="+", choices=(*RIGS, "all"), metavar="NAME")
    parser.add_argument(
        "--rounds", type=_at_least(1), help="cycles of each rig, else as many as it likes"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--keep", action="store_true", help="keep files and histories of good runs too"
    )
    parser.add_argument(
        "--election-timeout",
        type=_at_least(TIMEOUT_MS_MIN),
        metavar="MS",
        help="of the nodes, else their default",
    )
    parser.add_argument(
        "--file-system", action="append", choices=FILE_SYSTEMS, help="for power, else each in turn"
    )
    parser.add_argument("--campaign", action="store_true", help="partition in all configurations")
    parser.add_argument(
        "--configuration",
        action="append",
        choices=[each.name for each in campaign.CONFIGURATIONS],
        metavar="NAME",
        help="only this one of the campaign",
    )
    parser.add_argument(
        "--seconds", type=_at_least(1), default=campaign.SECONDS, help="of each configuration"
    )
    given = parser.parse_args()
    if given.campaign and not {"partition", "all"} & set(given.names):
        parser.error("--campaign is a form of partition")
    return given


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def main() -> int:
    given = parsed()
    names = RIGS if "all" in given.names else tuple(dict.fromkeys(given.names))
    rows = []
    for name in names:
        for run in planned(name, given):
            row = run_rig(run, given)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            rows.append((run.title, row))
    for title, row in rows:
        why = row["why"][0] if row["why"] else ""
        sys.stderr.write(f"{title:<40} {row['outcome']:<8} seed {row['seed']}  {why}\n")
    bad = {"failed", "skipped"} if must_be_shown() else {"failed"}
    return 1 if any(row["outcome"] in bad for _, row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
