"""The sources of a read: the paths behind patterns, and what a family tells of each before any of it is read."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.errors import Compacted, PathMissing, PathRefused
from penstock.families.options import Operation, Values
from penstock.families.registry import NO_VALUES, open_files


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


def shown_path(source: str, path: Path) -> str:
    """Return a file's path as rows have it: under its source, or its name if it is the source.

    Of a node's directory of segments the other files are its neighbours: their paths begin with dots.
    """
    text, root = str(path), source.rstrip("/") + "/"
    if text == source:
        return path.name
    return text.removeprefix(root) if text.startswith(root) else os.path.relpath(text, source)


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


def expand(patterns: Sequence[str]) -> list[Path]:
    """Return the paths that patterns stand for, each once. Raises ``PathMissing`` for one without any."""
    found: dict[str, Path] = {}
    for pattern in patterns:
        matches = _matches(pattern)
        if not matches:
            raise PathMissing(f"{pattern}: no such file or directory; check the path")
        for match in matches:
            # The same place under two names would be read twice.
            found.setdefault(os.path.realpath(match), Path(match).absolute())
    return list(found.values())


def _matches(pattern: str) -> list[str]:
    """Return what a path or pattern stands for; a name with the signs of a pattern in it goes first."""
    for local in _local(pattern):
        matches = [local] if os.path.lexists(local) else sorted(glob.glob(local))
        if matches:
            return matches
    return []


def _local(pattern: str) -> list[str]:
    """Return the local paths that a pattern may mean. Raises ``PathRefused`` for one on another machine."""
    scheme, separator, rest = pattern.partition(":")
    if not separator or not _SCHEME.fullmatch(scheme) or os.path.lexists(pattern):
        return [pattern]
    if scheme.lower() != "file" or (rest.startswith("//") and not rest.startswith("///")):
        if not rest.startswith("/"):
            return [pattern]  # a name with a colon in it
        raise PathRefused(f"{pattern}: only local paths are read; mount or copy it first")
    path = rest.removeprefix("//")
    return [path, unquote(path)]  # Spark takes such a path as it stands, everybody else decodes it


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def refusal(path: Path, error: OSError) -> PathRefused:
    """Return what the system said about a source, as a sentence."""
    name = error.filename if isinstance(error.filename, str) else path
    return PathRefused(f"{name}: {error.strerror or error}; check that it is there and readable")
