"""The scenarios that are run: ours, and those of any other file in the same language; and how many of the list hold."""

from __future__ import annotations

import re

import pytest

from raft.scenarios import scenarios

_outcomes: dict[str, bool] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scenarios", metavar="FILE", default=None, help="also run the scripts of this file"
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test ended that is named by its scenario: ``test_a02_…`` or ``[A02]``."""
    found = re.search(r"tests/raft/.*(?:::test_|\[)([A-Va-v]\d\d)(?:_|\])", report.nodeid)
    if found is not None and (report.when == "call" or not report.passed):
        name = found[1].upper()
        _outcomes[name] = _outcomes.get(name, True) and report.passed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    wanted = [name for name, scenario in scenarios().items() if scenario["tier"] < 3]
    if _outcomes:
        held = sum(_outcomes.get(name, False) for name in wanted)
        terminalreporter.write_line(f"{held} of {len(wanted)} tier 1 and 2 scenarios pass")
        missing = [name for name in wanted if not _outcomes.get(name, False)]
        if missing:
            terminalreporter.write_line("without a passing test: " + " ".join(missing))
