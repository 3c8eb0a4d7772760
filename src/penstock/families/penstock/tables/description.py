"""What the small files, names and heads of a source of generation 4 tell before its log is read."""

from __future__ import annotations

from penstock.families.penstock.family import NAME as FAMILY
from penstock.families.penstock.location import HARD_STATE, IDENTITY, SYNC_POINT, Target
from penstock.families.penstock.read import History, survey
from penstock.families.penstock.replay import begins_at_first, usable
from penstock.families.sources import File, Source, file_at
from penstock.families.tables import shown_path


def describe(name: str, target: Target, *, uncommitted: bool) -> Source:
    """Return what a pipeline needs to know of a source.

    A history begins with the first entry if the log has it, else with the oldest snapshot that the log continues: a log is
    kept longer than its newest snapshot needs.
    """
    history = survey(target)
    known = [] if begins_at_first(history) else usable(history)
    numbers = [file.number for file in target.segments if file.number is not None]
    return Source(
        name=name,
        family=FAMILY,
        words=f"Penstock generation 4, {target.kind}",
        files=tuple(_files(name, history)),
        begin=known[0].start.last_index if known else -1,
        log_first=min(numbers, default=history.covered + 1),
        covered=history.covered or -1,
        commit=None if uncommitted or history.synced is None else history.commit_floor,
        has_ids=True,
        origin=1,
    )


def _files(name: str, history: History) -> list[File]:
    target = history.target
    others = [file.path for file in target.snapshots]
    if target.home is not None:
        small = (target.home / each for each in (IDENTITY, HARD_STATE, SYNC_POINT))
        others += [path for path in small if path.exists()]
    logs = [
        File(shown=shown_path(name, file.path), first=file.number or 1, size=file.size)
        for file in target.segments
    ]
    return [*(file_at(name, path) for path in others), *logs]
