"""What a family tells of one directory or file before any of it is read, for those who read it in steps."""

from __future__ import annotations

from dataclasses import dataclass


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
