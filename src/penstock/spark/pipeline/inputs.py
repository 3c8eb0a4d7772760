"""What a run reads: the sources behind some paths."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.spark.families import expand, find
from penstock.spark.sources import Source


def find_sources(paths: Sequence[str], *, uncommitted: bool = False) -> list[Source]:
    """Return the sources behind some paths. Raises ``PenstockError``."""
    found = []
    for path in expand(paths):
        family, thing = find(path)
        found.append(family.describe(str(path), thing, uncommitted=uncommitted))
    return found
