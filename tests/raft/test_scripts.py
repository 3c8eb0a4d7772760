"""The scenarios that are scripts, each in several orders of delivery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raft.scenarios import scenarios
from raft.script import run_script

SEEDS = 20


def scripted(path: Path | None = None) -> list[dict[str, Any]]:
    found = scenarios() if path is None else scenarios(path)
    return [scenario for scenario in found.values() if "script" in scenario]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scenario" in metafunc.fixturenames:
        other = metafunc.config.getoption("scenarios")
        chosen = scripted() + (scripted(Path(other)) if other else [])
        metafunc.parametrize("scenario", chosen, ids=[one["id"] for one in chosen])


def test_script(scenario: dict[str, Any]) -> None:
    for variant in scenario.get("variants", [None]):
        lines = list(scenario["script"])
        if variant is not None:
            lines.insert(1, f"option {variant}")
        for seed in range(SEEDS):
            run_script(lines, scenario.get("assert", []), seed=seed)
