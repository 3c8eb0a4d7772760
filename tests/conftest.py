"""Settings of the whole suite: reproducible examples, and figures at the end of a run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from support import report

settings.register_profile(
    "penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("penstock")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if report.lines:
        terminalreporter.section("figures")
        for line in report.lines:
            terminalreporter.write_line(line)
