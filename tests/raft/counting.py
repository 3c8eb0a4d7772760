"""How many scenarios of the conformance list hold, counted over a run."""

from __future__ import annotations

import re

import pytest

from raft.scenarios import scenarios

_outcomes: dict[str, bool] = {}


def note(outcome: pytest.TestReport) -> None:
    """Note how a test ended that is named by its scenario: ``test_a02_…`` or ``[A02]``."""
    found = re.search(r"raft/.*(?:::test_|\[)([A-Va-v]\d\d)(?:_|\])", outcome.nodeid)
    if found is not None and (outcome.when == "call" or not outcome.passed):
        name = found[1].upper()
        _outcomes[name] = _outcomes.get(name, True) and outcome.passed


def lines() -> list[str]:
    """Return what to print at the end: nothing if none was run."""
    if not _outcomes:
        return []
    wanted = [name for name, scenario in scenarios().items() if scenario["tier"] < 3]
    missing = [name for name in wanted if not _outcomes.get(name, False)]
    held = f"{len(wanted) - len(missing)} of {len(wanted)} tier 1 and 2 scenarios pass"
    return [held, *(["without a passing test: " + " ".join(missing)] if missing else [])]
