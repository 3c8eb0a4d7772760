"""Sources: what a family tells of one directory or file before any of it is read, for those who read it in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import Compacted
from penstock.families.options import At, Operation, Values
from penstock.families.plan import expand
from penstock.families.registry import NO_VALUES, open_files
from penstock.families.tables import shown_path


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of a source that is read, and the index of its first entry if it has one."""

    shown: str
    first: int | None
    size: int


@dataclass(frozen=True, slots=True, order=True)
class SourceQueue:
    """A queue of a source, as its tables name it, and the vhost that it is in, if there are any."""

    name: str
    vhost: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One directory or file to read."""

    name: str  # its path
    family: str
    words: str  # what it is, for people
    files: tuple[File, ...]
    # The last index that its history begins behind: -1 if the log tells everything from the beginning, else that of
    # the snapshot whose state it begins with.
    begin: int = -1
    log_first: int = 0  # the index of the first entry that the log still has
    covered: int = -1  # the last index that the snapshot covers; -1 without one
    commit: int | None = (
        None  # the last index known to be committed; None: every whole entry counts
    )
    origin: int = 0  # the index of the first entry of a log from which nothing was removed
    has_ids: bool = False  # whether every row of a task has its id, and moves name both queues
    by_value: bool = False  # whether removals name a value where no extension names an id
    is_decided: bool = False  # whether only a replay in order tells what its entries did
    by_array_heap: bool = False  # whether tasks left in the order of variants 1a and 1b of TaskFlux
    # Whether an order over all its entries exists. Without one there is no history, only what is stored now: its
    # queues and tasks are those that its family lists.
    has_log: bool = True
    # Without a log: its queues, each once; None if only its rows tell them.
    queues: tuple[SourceQueue, ...] | None = ()
    notice: str | None = None  # names both sets of files, where its directory holds two
    left_out: tuple[str, ...] = ()  # queues that are not read, in words
    # Without a log: whether removals are known by a position only, and so are in the table of changes, not of entries.
    removes_by_position: bool = False
    # Without a log: the statuses of records whose payload is what was stored.
    whole_statuses: tuple[str, ...] = ("ok",)
    # Options with which a migration reads its tasks: payloads as an import makes them, the same in every run.
    migrated_with: Values = field(default_factory=dict)
    # Whether ``ingest`` sends its tasks to a node, so that every import numbers them alike.
    is_ingested: bool = False
    migration_refusal: str | None = None  # why a migration does not read it, and what does

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


def file_at(source: str, path: Path) -> File:
    """Return a file that is no part of a log; a read reports one that was removed or cannot be read."""
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    return File(shown=shown_path(source, path), first=None, size=size)


NAMED_MAX: Final = 10
"""Queues that a message names; rows name all."""


def left_out_words(names: Sequence[str], how: str = "left out") -> str:
    """Return how many queues are not read, and the first of their names."""
    shown = list(names[:NAMED_MAX])
    if len(names) > NAMED_MAX:
        shown.append(f"and {len(names) - NAMED_MAX} more")
    count = f"{len(names)} queues are" if len(names) > 1 else "1 queue is"
    return f"{count} not classic and {how}: {', '.join(shown)}"


def find_sources(
    paths: Sequence[str], *, uncommitted: bool = False, values: Values = NO_VALUES
) -> list[Source]:
    """Return the sources behind some paths. Raises ``PenstockError``."""
    return [
        open_files(path, Operation.TABLES, values).describe(uncommitted=uncommitted)
        for path in expand(paths)
    ]


def index_at(source: Source, at: At | None) -> int | None:
    """Return the entry after which the state of a source is wanted; ``None`` is the last one.

    Raises ``OutOfRange`` if the log has no such state: before its begin, or behind its end.
    """
    if at is None or not source.has_log:
        return None
    if isinstance(at, int) and at < source.begin:
        raise Compacted(
            f"entry {at} is covered by the snapshot, which holds the state after entry {source.begin};"
            f" ask for --at {source.begin} or later"
        )
    return open_files(Path(source.name), Operation.TABLES).index_at(at)
