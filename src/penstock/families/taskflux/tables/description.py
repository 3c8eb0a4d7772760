"""What the headers of a TaskFlux source tell: where its history begins, how far it counts, what its files are."""

from __future__ import annotations

from pathlib import Path

from penstock.families.sources import File, Source
from penstock.families.tables import shown_path
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.location import Target
from penstock.families.taskflux.read import History, survey
from penstock.formats.taskflux.generation import Contents, Generation


def describe(name: str, target: Target, *, uncommitted: bool) -> Source:
    """Return what a pipeline needs to know of a source. Raises ``PenstockError``."""
    history = survey(target)
    is_decided = any(log.layout.contents is Contents.COMMANDS for log in target.logs)
    is_whole = history.first == 0 or history.is_whole_log()
    return Source(
        name=name,
        family=FAMILY,
        words=f"TaskFlux generation {int(target.generation)}, {target.kind}",
        files=tuple(_files(name, target, history)),
        begin=-1 if is_whole or history.snapshot is None else history.covered,
        log_first=history.first,
        covered=history.covered,
        commit=None if uncommitted else history.commit,
        by_value=target.generation is not Generation.THREE and not is_decided,
        is_decided=is_decided,
        notice=target.notice,
        by_array_heap=is_decided and history.is_by_array_heap(),
    )


def _files(name: str, target: Target, history: History) -> list[File]:
    logs = [
        File(
            shown=shown_path(name, log.path),
            first=history.first if log.first is None else log.first,
            size=log.size,
        )
        for log in target.logs
    ]
    others = [path for path in (target.metadata, target.snapshot) if path is not None]
    return [
        *(File(shown=shown_path(name, p), first=None, size=_size(p)) for p in others),
        *logs,
    ]


def _size(path: Path) -> int:
    return path.stat().st_size
