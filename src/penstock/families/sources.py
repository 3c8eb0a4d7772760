"""What a run reads: the sources behind some paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.errors import Compacted
from penstock.families.description import Source
from penstock.families.option import Operation, Values
from penstock.families.plan import expand
from penstock.families.registry import NO_VALUES, open_files


def find_sources(
    paths: Sequence[str], *, uncommitted: bool = False, values: Values = NO_VALUES
) -> list[Source]:
    """Return the sources behind some paths. Raises ``PenstockError``."""
    return [
        open_files(path, Operation.TABLES, values).describe(uncommitted=uncommitted)
        for path in expand(paths)
    ]


def check_moment(source: Source, at: int | None) -> None:
    """Raise ``OutOfRange`` if the log of a source has no state after entry ``at``: before its begin, or behind its end."""
    if at is None or not source.has_log:
        return
    if at < source.begin:
        raise Compacted(
            f"entry {at} is covered by the snapshot, which holds the state after entry {source.begin};"
            f" ask for --at {source.begin} or later"
        )
    open_files(Path(source.name), Operation.TABLES).check_moment(at)
