"""A rig inside a test: what cannot be shown here is skipped with the reason, or fails if everything has to be shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rigs.cluster.stage import Skipped, Stage, must_be_shown, stage


@contextmanager
def shown(name: str, seed: int) -> Iterator[Stage]:
    """Make a stage for a short run."""
    try:
        with stage(name, seed, is_short=True) as made:
            yield made
    except Skipped as error:
        if must_be_shown():
            raise
        pytest.skip(f"NOT SHOWN: {error}")
