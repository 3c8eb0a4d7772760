"""Settings of the whole suite: reproducible examples, and figures at the end of a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from raft import counting
from support import fast, kernels, report

QUICK = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("penstock", QUICK)
settings.register_profile("thorough", QUICK, max_examples=1000)
settings.load_profile("penstock")

LONGEST = "test_every_block_of_the_readme_runs_as_typed"

# A shell starts what runs in its background with SIGINT ignored, and the commands that tests interrupt inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scenarios", metavar="FILE", default=None, help="tests/raft: also run the scripts of FILE"
    )
    parser.addoption(
        "--broker-check",
        action="store_true",
        help="heavy: start a real RabbitMQ on repaired directories",
    )
    parser.addoption(
        "--fast", action="store_true", help="only the pure packages, without what needs an extra"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast, collect nothing but the fast part (tests/support/fast.py)."""
    return True if config.getoption("fast") and not fast.is_fast(collection_path) else None


COMPILING = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Where several workers are about to start, have the kernels compiled beside them, once for all."""
    is_in_charge = bool(config.getoption("numprocesses", None)) and not hasattr(
        config, "workerinput"
    )
    needs_kernels = not (config.getoption("collectonly") or config.getoption("fast"))
    if is_in_charge and needs_kernels:
        config.stash[COMPILING] = subprocess.Popen([sys.executable, kernels.__file__])


def pytest_unconfigure(config: pytest.Config) -> None:
    if COMPILING in config.stash:
        config.stash[COMPILING].wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest test first: at the end all other workers would wait for it."""
    items.sort(key=lambda item: item.name != LONGEST)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    counting.note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = report.lines  # a worker hands its figures to the process that prints


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    report.lines.extend(getattr(node, "workeroutput", {}).get("figures", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in counting.lines():
        terminalreporter.write_line(line)
    if report.lines:
        terminalreporter.section("figures")
        for line in sorted(report.lines):
            terminalreporter.write_line(line)
