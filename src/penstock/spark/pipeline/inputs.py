"""What a run reads: the sources behind some paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.errors import Compacted
from penstock.families.description import Source
from penstock.families.plan import expand, find
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import survey
from penstock.families.taskflux.tables.plan import refuse_beyond


def find_sources(paths: Sequence[str], *, uncommitted: bool = False) -> list[Source]:
    """Return the sources behind some paths. Raises ``PenstockError``."""
    found = []
    for path in expand(paths):
        family, thing = find(path)
        found.append(family.describe(str(path), thing, uncommitted=uncommitted))
    return found


def check_moment(source: Source, at: int | None) -> None:
    """Raise ``OutOfRange`` if the log of a source has no state after entry ``at``: before its begin, or behind its end."""
    if at is None or not source.has_log:
        return
    if at < source.begin:
        raise Compacted(
            f"entry {at} is covered by the snapshot, which holds the state after entry {source.begin};"
            f" ask for --at {source.begin} or later"
        )
    refuse_beyond(survey(resolve(Path(source.name))), at)
