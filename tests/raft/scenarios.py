"""The conformance list, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

LIST = Path(__file__).with_name("scenarios.yaml")


@cache
def scenarios(path: Path = LIST) -> dict[str, dict[str, Any]]:
    """Return the scenarios of a file by id."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))["scenarios"]
    return {scenario["id"]: scenario for scenario in found}


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a scenario's table, each by its columns."""
    table = scenarios()[name]["table"]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
