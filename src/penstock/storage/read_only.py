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
            return _NoFile()
        return _CutFile(self._files.open(path, write=False), path, self._sizes)

    def create(self, path: Path) -> File:
        del path
        return _NoFile()

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


class _CutFile:
    """A file as it would be if it were cut."""

    def __init__(self, file: File, path: Path, sizes: dict[Path, int]) -> None:
        self._file = file
        self._path = path
        self._sizes = sizes

    def size(self) -> int:
        size = self._file.size()
        return min(size, self._sizes.get(self._path, size))

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, max(0, min(size, self.size() - offset)))

    def next_data(self, offset: int) -> int | None:
        return self._file.next_data(offset)

    def write(self, offset: int, pieces: Sequence[Bytes]) -> None:
        del offset, pieces
        raise AssertionError("whoever looks does not write")

    def truncate(self, size: int) -> None:
        assert size <= self.size()
        self._sizes[self._path] = size

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class _NoFile:
    """A file that is not there, and would be made."""

    def size(self) -> int:
        return 0

    def read(self, offset: int, size: int) -> bytes:
        del offset, size
        return b""

    def next_data(self, offset: int) -> int | None:
        del offset
        return None

    def write(self, offset: int, pieces: Sequence[Bytes]) -> None:
        del offset, pieces
        raise AssertionError("whoever looks does not write")

    def truncate(self, size: int) -> None:
        assert size == 0

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass
