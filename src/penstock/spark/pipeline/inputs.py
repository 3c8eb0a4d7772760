"""What a run reads: the sources behind some paths, and what their headers tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.formats.taskflux.generation import Contents, Generation
from penstock.spark.families import expand, find
from penstock.spark.taskflux.planning import shown_path
from penstock.tools.history import History, survey
from penstock.tools.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of a source that is read, and the index of its first entry if it has one."""

    shown: str
    first: int | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One directory or file to read."""

    name: str  # its path
    family: str
    words: str  # what it is, for people
    files: tuple[File, ...]
    # The last index that its history begins behind: -1 if the log tells everything from the beginning, else that of
    # the snapshot whose state it begins with.
    begin: int
    log_first: int  # the index of the first entry that the log still has
    covered: int  # the last index that the snapshot covers; -1 without one
    commit: int | None  # the last index known to be committed; None: every whole entry counts
    by_value: bool  # whether removals name a value where no extension names an id
    is_decided: bool  # whether only a replay in order tells what its entries did

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def files_behind(self, index: int) -> list[str]:
        """Return the files that may hold something else than entries up to ``index``."""
        logs = [file for file in self.files if file.first is not None]
        kept = [file.shown for file in self.files if file.first is None]
        for file, following in zip(logs, [*logs[1:], None], strict=True):
            if following is None or following.first is None or following.first > index + 1:
                kept.append(file.shown)
        return kept


def find_sources(paths: Sequence[str], *, uncommitted: bool = False) -> list[Source]:
    """Return the sources behind some paths. Raises ``PenstockError``."""
    found = []
    for path in expand(paths):
        family, target = find(path)
        assert isinstance(target, Target), "the families that are to come describe themselves"
        found.append(_describe(str(path), family.name, target, uncommitted=uncommitted))
    return found


def _describe(name: str, family: str, target: Target, *, uncommitted: bool) -> Source:
    history = survey(target)
    is_decided = any(log.layout.contents is Contents.COMMANDS for log in target.logs)
    is_whole = history.first == 0 or history.is_whole_log()
    return Source(
        name=name,
        family=family,
        words=f"TaskFlux generation {int(target.generation)}, {target.kind}",
        files=tuple(_files(name, target, history)),
        begin=-1 if is_whole or history.snapshot is None else history.covered,
        log_first=history.first,
        covered=history.covered,
        commit=None if uncommitted else history.commit,
        by_value=target.generation is not Generation.THREE and not is_decided,
        is_decided=is_decided,
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
