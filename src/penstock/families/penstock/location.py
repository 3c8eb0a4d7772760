"""What a path is: a directory of generation 4, its log or its snapshots, or one file of them; found by content.

A directory of a node is taken whole. A part of it is taken alone, as if nothing else were known.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import BadData, PathMissing, PathRefused
from penstock.formats.records.header import HEADER_SIZE, MARKER, Kind
from penstock.formats.records.identity import SIZE_MAX, decode_identity
from penstock.formats.records.segment import (
    FILE_HEADER_SIZE,
    LOG_SUFFIX,
    MAGIC,
    SNAPSHOT_SUFFIX,
    parse_file_name,
)

IDENTITY: Final = "identity.json"
HARD_STATE: Final = "hard-state"
SYNC_POINT: Final = "sync-point"
LOG: Final = "log"
SNAPSHOTS: Final = "snapshots"

_KIND_AT: Final = FILE_HEADER_SIZE + 12  # of the first record


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A segment of the log, or a snapshot. ``number`` is what its name says; None if its name is another one."""

    path: Path
    size: int
    number: (
        int | None
    )  # of a segment: its first index; of a snapshot: the last index that it covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is at a path."""

    path: Path
    kind: str  # directory, log, snapshots, segment or snapshot
    segments: tuple[StoredFile, ...] = ()  # in the order of their names
    snapshots: tuple[StoredFile, ...] = ()

    @property
    def home(self) -> Path | None:
        """The directory of a node; None if only a part of it was named."""
        return self.path if self.kind == "directory" else None

    @property
    def size(self) -> int:
        """The bytes that a full read reads."""
        return sum(file.size for file in (*self.segments, *self.snapshots))


def detect(path: Path) -> bool:
    """Return whether files of generation 4 are at a path."""
    try:
        if path.is_dir():
            return _detect_directory(path)
        return path.is_file() and _kind_of(path) is not None
    except OSError:
        return False


def resolve(path: Path) -> Target:
    """Return what is at a path that ``detect`` accepted. Raises ``PathRefused``."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return _resolve_file(path)
        if _is_home(path):
            return Target(
                path=path,
                kind="directory",
                segments=_stored(path / LOG, LOG_SUFFIX),
                snapshots=_stored(path / SNAPSHOTS, SNAPSHOT_SUFFIX),
            )
        segments, snapshots = _stored(path, LOG_SUFFIX), _stored(path, SNAPSHOT_SUFFIX)
    except (FileNotFoundError, NotADirectoryError):
        raise PathMissing(f"{path}: no such file or directory; check the path") from None
    except OSError as error:
        raise PathRefused(f"{path}: {error.strerror or error}; check that it is readable") from None
    kind = "log" if segments else "snapshots"
    return Target(path=path, kind=kind, segments=segments, snapshots=snapshots)


def _resolve_file(path: Path) -> Target:
    is_log = _kind_of(path) != "snapshot"
    number = parse_file_name(path.name, LOG_SUFFIX if is_log else SNAPSHOT_SUFFIX)
    stored = StoredFile(path=path, size=path.stat().st_size, number=number)
    if is_log:
        return Target(path=path, kind="segment", segments=(stored,))
    return Target(path=path, kind="snapshot", snapshots=(stored,))


def _detect_directory(path: Path) -> bool:
    if _is_identity(path / IDENTITY):
        return True
    places = (path / LOG, path / SNAPSHOTS, path)
    files = (stored.path for place in places for stored in _all_stored(place))
    return any(_kind_of(file) is not None for file in files)


def _is_home(path: Path) -> bool:
    """Return whether a directory is that of a node, and not its log or its snapshots."""
    return (path / IDENTITY).exists() or bool(
        _all_stored(path / LOG) or _all_stored(path / SNAPSHOTS)
    )


def _is_identity(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            decode_identity(file.read(SIZE_MAX + 1))
    except (OSError, BadData):
        return False
    return True


def _all_stored(directory: Path) -> tuple[StoredFile, ...]:
    return _stored(directory, LOG_SUFFIX) + _stored(directory, SNAPSHOT_SUFFIX)


def _stored(directory: Path, suffix: str) -> tuple[StoredFile, ...]:
    """Return the files of a directory that have such a name, in the order of their numbers."""
    try:
        names = {path: parse_file_name(path.name, suffix) for path in directory.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = sorted((number, path) for path, number in names.items() if number is not None)
    return tuple(
        StoredFile(path=path, size=path.stat().st_size, number=number) for number, path in found
    )


def _kind_of(path: Path) -> str | None:
    """Return what a file is by its first bytes: a segment or a snapshot, or None.

    The marker of the first record tells a file of ours whose magic is damaged.
    """
    try:
        with path.open("rb") as file:
            head = file.read(FILE_HEADER_SIZE + HEADER_SIZE)
    except OSError:
        return None
    if not head.startswith(MAGIC) and head[FILE_HEADER_SIZE:][: len(MARKER)] != MARKER:
        return None
    is_start = head[_KIND_AT : _KIND_AT + 1] == bytes((Kind.SNAPSHOT_START,))
    is_named = parse_file_name(path.name, SNAPSHOT_SUFFIX) is not None
    return "snapshot" if is_start or is_named else "segment"
