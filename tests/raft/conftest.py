"""The scenarios that are run: ours, and those of any other file in the same language."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scenarios", metavar="FILE", default=None, help="also run the scripts of this file"
    )
