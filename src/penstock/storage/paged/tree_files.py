"""Many files of one tree, opened when they are needed, so many at most, and which of them need a sync.

Every change goes through here, so the first that fails poisons all that is stored in the tree. A
file that has to be closed to make room is synced first: nobody would be left to report a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from penstock.binary import Bytes
from penstock.storage.files import File, Files, Poison, read_whole, replace_file

T = TypeVar("T")

OPEN_FILES_MAX: Final = 128
"""Open files of one tree: a tenth of what systems allow a process by default, sockets need the rest."""


class Unsynced:
    """What had changed at some moment. Syncing it may run beside further changes, in another thread."""

    def __init__(
        self, files: Files, poison: Poison, paths: list[Path], directories: list[Path]
    ) -> None:
        self._files = files
        self._poison = poison
        self.paths = paths
        self.directories = directories

    def sync(self) -> None:
        """Return when all of it is on the disk. Raises ``StorageFailed``."""
        with self._poison.writing():
            for path in self.paths:
                # Opened anew: the owner may close its own file meanwhile, to make room.
                file = self._files.open(path, write=True)
                try:
                    file.sync()
                finally:
                    file.close()
            for directory in self.directories:
                self._files.sync_directory(directory)

    def replace(self, path: Path, pieces: Iterable[Bytes]) -> None:
        """Put a whole new file in place, durably. Raises ``StorageFailed``."""
        with self._poison.writing():
            replace_file(self._files, path, pieces)

    def read(self, path: Path, use: Callable[[File], T]) -> T:
        """Return what ``use`` makes of a file, which is open for so long."""
        with self._poison.writing():
            file = self._files.open(path, write=False)
            try:
                return use(file)
            finally:
                file.close()

    def write(self, path: Path, data: Bytes) -> None:
        """Make a file that nobody needs until ``sync`` has returned. Raises ``StorageFailed``."""
        with self._poison.writing():
            file = self._files.open(path, write=True, create=True)
            try:
                file.truncate(0)
                file.write(0, [data])
            finally:
                file.close()
        self.paths.append(path)
        if path.parent not in self.directories:
            self.directories.append(path.parent)


class TreeFiles:
    """The files below a directory. Raises ``StorageFailed`` after the first change that failed."""

    def __init__(self, files: Files, directory: Path, *, limit: int = OPEN_FILES_MAX) -> None:
        assert limit > 0
        self._files = files
        self._limit = limit
        self._poison = Poison(str(directory))
        self._open: dict[Path, File] = {}  # the one that was used last stands last
        self._unsynced: set[Path] = set()
        self._unsynced_names: set[Path] = set()  # directories

    def get(self, path: Path) -> File:
        """Return the open file at ``path``, which must be there."""
        self._poison.check()
        file = self._open.pop(path, None)
        if file is None:
            file = self._opened(path, create=False)
        self._open[path] = file
        return file

    def read_whole(self, path: Path, *, size_max: int) -> bytes:
        """Return a small file's bytes, at most ``size_max + 1``; none if it is not there. It is not kept open."""
        self._poison.check()
        return read_whole(self._files, path, size_max=size_max) or b""

    def create(self, path: Path) -> None:
        """Make an empty file, unless it is there."""
        if path not in self._open:
            self._open[path] = self._opened(path, create=True)
            self._unsynced_names.add(path.parent)

    def _opened(self, path: Path, *, create: bool) -> File:
        with self._poison.writing():
            if len(self._open) >= self._limit:
                oldest = next(iter(self._open))
                self._sync_file(oldest)
                self._open.pop(oldest).close()
            return self._files.open(path, write=True, create=create)

    def write(self, path: Path, offset: int, pieces: Sequence[Bytes]) -> None:
        file = self.get(path)
        self._unsynced.add(path)
        with self._poison.writing():
            file.write(offset, pieces)

    def truncate(self, path: Path, size: int) -> None:
        file = self.get(path)
        self._unsynced.add(path)
        with self._poison.writing():
            file.truncate(size)

    def distrust(self, path: Path) -> None:
        """Take a file and its name for unsynced: a process that was killed may have left them so."""
        self._unsynced.add(path)
        self._unsynced_names.add(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file; when that is durable, nobody may rely on."""
        self._forget(path)
        with self._poison.writing():
            self._files.remove(path)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what had it; ``sync`` of the target makes that durable."""
        self._forget(target)
        with self._poison.writing():
            self._files.rename(source, target)
        if source in self._open:
            self._open[target] = self._open.pop(source)
        if source in self._unsynced:
            self._unsynced.remove(source)
            self._unsynced.add(target)
        self._unsynced_names.add(target.parent)

    def replace(self, path: Path, pieces: Iterable[Bytes]) -> None:
        """Put a whole new file in place, durably."""
        with self._poison.writing():
            replace_file(self._files, path, pieces)

    def make_directory(self, path: Path) -> None:
        with self._poison.writing():
            self._files.make_directory(path)

    def sync_directory(self, path: Path) -> None:
        with self._poison.writing():
            self._files.sync_directory(path)

    def exists(self, path: Path) -> bool:
        return path in self._open or self._files.exists(path)

    def names(self, directory: Path) -> list[str]:
        self._poison.check()
        return self._files.names(directory) if self._files.is_directory(directory) else []

    def _forget(self, path: Path) -> None:
        self._unsynced.discard(path)
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    @property
    def unsynced(self) -> list[Path]:
        """The files that changed since they were last synced."""
        return sorted(self._unsynced)

    def take_unsynced(self) -> Unsynced:
        """Return what is to be synced now, and count it as synced: the caller sees to it."""
        self._poison.check()
        found = Unsynced(
            self._files, self._poison, sorted(self._unsynced), sorted(self._unsynced_names)
        )
        self._unsynced.clear()
        self._unsynced_names.clear()
        return found

    def take_back(self, unsynced: Unsynced) -> None:
        """Count as unsynced again what ``take_unsynced`` gave and is still there."""
        self._unsynced.update(path for path in unsynced.paths if self.exists(path))
        self._unsynced_names.update(unsynced.directories)

    def sync(self, paths: Iterable[Path]) -> None:
        """Return when these files and their names are on the disk."""
        self._poison.check()
        directories = set()
        for path in paths:
            self._sync_file(path)
            directories.add(path.parent)
        with self._poison.writing():
            for directory in sorted(directories & self._unsynced_names):
                self._files.sync_directory(directory)
        self._unsynced_names -= directories

    def _sync_file(self, path: Path) -> None:
        if path in self._unsynced:
            file = self.get(path)
            with self._poison.writing():
                file.sync()
            self._unsynced.discard(path)

    def check(self) -> None:
        """Raise ``StorageFailed`` if a change has failed before."""
        self._poison.check()

    @property
    def has_failed(self) -> bool:
        return self._poison.has_struck

    def close(self) -> None:
        """Let the files go as they are; nothing is synced."""
        while self._open:
            _, file = self._open.popitem()
            file.close()
