"""A pytest plugin that runs the collected tests with seeded bugs, one after the other, in one process.

    PYTHONPATH=tests PENSTOCK_SEEDED_BUGS=NAME,… PENSTOCK_SEEDED_OUT=FILE pytest -p seeded_bugs.plugin TESTS…

For each bug the tests run until the first fails, and that one once more without the bug. What came out is written to
FILE as JSON: by bug the test that failed, how it failed, and whether it passes without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from seeded_bugs.bugs import BY_NAME, Bug
from seeded_bugs.limits import limited

BUGS: Final = "PENSTOCK_SEEDED_BUGS"
OUT: Final = "PENSTOCK_SEEDED_OUT"
ONLY_NAMED: Final = "PENSTOCK_SEEDED_ONLY_NAMED"
"""Set to anything: only the test that the list names for a bug is run for it."""

TEST_SECONDS: Final = 60
"""A bug may let a test run for ever; one that takes this long, counted as time of the processor, has failed."""

WORDS_MAX: Final = 160


def pytest_configure(config: pytest.Config) -> None:
    # What fails here is meant to: no later run of the suite should begin with it.
    settings.register_profile("seeded", settings.default, database=None, derandomize=True)
    settings.load_profile("seeded")


def pytest_runtestloop(session: pytest.Session) -> bool:
    names = os.environ[BUGS].split(",")
    found: dict[str, dict[str, object]] = {}
    for name in names:
        found[name] = _hunt(BY_NAME[name], _candidates(BY_NAME[name], session.items))
        Path(os.environ[OUT]).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return True


def _candidates(bug: Bug, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to run, the one that the list names first, then others of its file."""
    file = bug.test.partition("::")[0]
    named = [item for item in items if _is_named(item, bug.test)]
    if os.environ.get(ONLY_NAMED):
        return named
    near = [item for item in items if _is_named(item, file) and item not in named]
    return named + near + [item for item in items if not _is_named(item, file)]


def _is_named(item: pytest.Item, test: str) -> bool:
    own = item.nodeid.removeprefix("tests/")
    return own == test or own.startswith((f"{test}[", f"{test}::"))


def _hunt(bug: Bug, items: Sequence[pytest.Item]) -> dict[str, object]:
    """Return the first test that fails with the bug and passes without it."""
    broken = None  # a test that fails anyhow
    for item in items:
        words = _run(item, bug)
        if words is None:
            continue
        if _run(item, None) is None:
            return {"test": item.nodeid.removeprefix("tests/"), "how": words, "broken": broken}
        broken = item.nodeid
    return {"test": None, "how": None, "broken": broken}


def _run(item: pytest.Item, bug: Bug | None) -> str | None:
    """Run a test; return how it failed, or ``None`` if it passed."""

    with limited(TEST_SECONDS), nullcontext() if bug is None else bug.applied():
        reports = runtestprotocol(item, log=False, nextitem=None)
    for report in reports:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            words = str(report.longrepr if crash is None else crash.message).splitlines()
            return (words or ["failed"])[0][:WORDS_MAX]
    return None
