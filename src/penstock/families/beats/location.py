"""What a path is: a spool's directory, one segment of it, or its ``state.dat``; known by names.

The position is read before the directory is listed: should the owner be at work meanwhile, events may be seen that
were acknowledged since, but none is passed over.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import BadData, PathMissing, PathRefused, TruncatedData
from penstock.families.beats.damage import BAD_STATE, DUPLICATE, UNREADABLE, damage_at
from penstock.families.damage import Damage, words_of
from penstock.formats.beats.segment import STATE_NAME, segment_name, segment_number
from penstock.formats.beats.state import State, decode_state
from penstock.storage.files import FILES, read_whole

STATE_SIZE_MAX: Final = 4096
"""Bytes of a state that are looked at; it has 28, and what is behind ours means nothing to anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment's file. The newest may still be written, or was when its writer died."""

    path: Path
    number: int
    is_newest: bool
    size: int  # when it was listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """What stands at a path."""

    path: Path
    kind: str  # spool, segment or state
    segments: tuple[Segment, ...] = ()  # by number
    state_path: Path | None = None
    state_size: int = 0
    state: State | None = None  # None: no position is stored, or it cannot be read
    found_damage: tuple[Damage, ...] = ()  # met on the way

    @property
    def name(self) -> str:
        """The name of the directory, which is that of the queue for events that name none."""
        place = self.path.absolute()
        return (place if self.kind == "spool" else place.parent).resolve().name

    @property
    def home(self) -> Path:
        """The directory that is read, in which nothing may be written."""
        return self.path if self.kind == "spool" else self.path.parent

    @property
    def size(self) -> int:
        """The bytes that a full reading reads."""
        return sum(segment.size for segment in self.segments)


def resolve(path: Path) -> Location:
    """Return what is at ``path``. Raises ``PathRefused``."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise PathMissing(f"{path}: no such file or directory; check the path") from None
    if stat.S_ISDIR(mode):
        return _resolve_directory(path)
    if path.name == STATE_NAME:
        state, size, damage = read_state(path)
        found_damage = () if damage is None else (damage,)
        return Location(
            path=path,
            kind="state",
            state_path=path,
            state_size=size,
            state=state,
            found_damage=found_damage,
        )
    size = path.stat().st_size
    if size == 0:
        raise PathRefused(f"{path}: the file is empty; there is nothing in it to read")
    number = segment_number(path.name) or 0
    alone = Segment(path=path, number=number, is_newest=True, size=size)
    return Location(path=path, kind="segment", segments=(alone,))


def _resolve_directory(path: Path) -> Location:
    state: State | None = None
    size = 0
    found_damage = []
    state_path = path / STATE_NAME
    if FILES.exists(state_path):
        state, size, damage = read_state(state_path)
        found_damage += [] if damage is None else [damage]
    by_number: dict[int, Path] = {}
    for name in _canonical_first(FILES.names(path)):
        number = segment_number(name)
        assert number is not None
        if number in by_number:
            found_damage.append(_duplicate(path / name, number, by_number[number]))
        else:
            by_number[number] = path / name
    newest = max(by_number, default=0)
    segments = (
        Segment(path=by_number[n], number=n, is_newest=n == newest, size=_size(by_number[n]))
        for n in sorted(by_number)
    )
    return Location(
        path=path,
        kind="spool",
        segments=tuple(segments),
        state_path=state_path if FILES.exists(state_path) else None,
        state_size=size,
        state=state,
        found_damage=tuple(found_damage),
    )


def _canonical_first(names: list[str]) -> list[str]:
    """Return the names of segments, those that Beats itself would open before others of the same number."""
    numbered = ((segment_number(name), name) for name in names)
    found = [(number, name) for number, name in numbered if number is not None]
    return [name for _, name in sorted(found, key=lambda f: (f[0], f[1] != segment_name(f[0]), f))]


def _duplicate(path: Path, number: int, other: Path) -> Damage:
    reason = (
        f"{other.name} has the same number and is read; name this file alone to see what it holds"
    )
    return damage_at(path, DUPLICATE, reason, segment=number)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # a file that went away, or may not be looked at: its reader reports that


def read_state(path: Path) -> tuple[State | None, int, Damage | None]:
    """Return the state, the file's size, and why it cannot be read; an empty file is one that was never written."""
    try:
        data = read_whole(FILES, path, size_max=STATE_SIZE_MAX) or b""
    except (OSError, PathRefused) as error:
        return None, 0, damage_at(path, UNREADABLE, words_of(error))
    if not data:
        return None, 0, None
    try:
        return decode_state(data), len(data), None
    except BadData as error:
        is_torn = isinstance(error, TruncatedData)
        reason = "the file ends inside the position" if is_torn else str(error)
        reason += "; all that is there counts as not acknowledged"
        return None, len(data), damage_at(path, BAD_STATE, reason, offset=0, size=len(data))
