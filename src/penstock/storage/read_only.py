"""Files that a recovery may cut and remove as it likes, while the disk stays as it is: for looking at files at rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.binary import Bytes
from penstock.storage.files import File, Files, Lock


class ReadOnlyFiles:
    """What another file system holds. Cuts and removals are remembered here; nothing can be written."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._sizes: dict[Path, int] = {}  # of files that were cut
        self._removed: set[Path] = set()

    def open(self, path: Path, *, write: bool, create: bool = False) -> File:
        del write
        if create and not self._files.exists(path):
            return self.create(path)
        return _StillFile(self._files.open(path, write=False), path, self._sizes)

    def create(self, path: Path) -> File:
        return _StillFile(None, path, {})

    def exists(self, path: Path) -> bool:
        return path not in self._removed and self._files.exists(path)

    def is_directory(self, path: Path) -> bool:
        return self._files.is_directory(path)

    def names(self, directory: Path) -> list[str]:
        names = self._files.names(directory)
        return [name for name in names if directory / name not in self._removed]

    def make_directory(self, path: Path) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        pass

    def remove(self, path: Path) -> None:
        self._removed.add(path)

    def sync_directory(self, path: Path) -> None:
        pass

    def lock(self, path: Path) -> Lock:
        del path
        return _NoLock()


class _NoLock:
    def release(self) -> None:
        pass


class _StillFile:
    """A file as it would be if it were cut; without a ``file``, one that would be made."""

    def __init__(self, file: File | None, path: Path, sizes: dict[Path, int]) -> None:
        self._file = file
        self._path = path
        self._sizes = sizes

    def size(self) -> int:
        size = 0 if self._file is None else self._file.size()
        return min(size, self._sizes.get(self._path, size))

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.size() - offset))
        return b"" if self._file is None else self._file.read(offset, size)

    def next_data(self, offset: int) -> int | None:
        return None if self._file is None else self._file.next_data(offset)

    def write(self, offset: int, pieces: Sequence[Bytes]) -> None:
        del offset, pieces
        raise AssertionError("whoever looks does not write")

    def truncate(self, size: int) -> None:
        assert size <= self.size()
        self._sizes[self._path] = size

    def sync(self) -> None:
        pass

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
