"""The few file operations that storage is built on, so that a test can stand in for the disk.

``OsFiles`` is the real one. Everything durable goes through these calls: a simulated disk that
implements ``Files`` sees every write, sync, rename and removal in order, and may fail any of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, Self

from penstock.binary import Bytes
from penstock.errors import (
    BadData,
    DirectoryLocked,
    InvalidValue,
    NoRoom,
    PathRefused,
    StorageFailed,
)

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
TEMPORARY_SUFFIX: Final = ".penstock-temporary"

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
"""What a full disk says. Nothing is lost by it, unlike by any other failure."""

# Linux takes at most 1024 pieces in one call; small pieces are cheaper to join than to list anyway.
_PIECES_MAX: Final = 64


class File(Protocol):
    """An open file."""

    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes at ``offset``, fewer only at the end of the file."""
        ...

    def next_data(self, offset: int) -> int | None:
        """Return the first place from ``offset`` on that is no hole, or ``None`` if only holes follow."""
        ...

    def write(self, offset: int, pieces: Sequence[Bytes]) -> None:
        """Write all pieces, one behind the other, as one call to the system wherever it allows."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when the file's contents are on the disk (``fdatasync``)."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def open(self, path: Path, *, write: bool, create: bool = False) -> File: ...

    def create(self, path: Path) -> File:
        """Make a file that nobody has. Raises ``FileExistsError`` if there is one."""
        ...

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def names(self, directory: Path) -> list[str]: ...

    def make_directory(self, path: Path) -> None:
        """Make a directory that only its owner may use, unless it is there; its parent is synced."""
        ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def lock(self, path: Path) -> Lock:
        """Lock the file at ``path``, made if missing. Raises ``DirectoryLocked``."""
        ...


def checked_directory(value: Any, name: str) -> Path:
    """Return the path of a directory that a caller gave as the argument ``name``. Raises ``InvalidValue``.

    An empty path would silently be the current directory.
    """
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path:
            return Path(path)
    raise InvalidValue(f'{name} is {value!r}; give the path of a directory such as "./node"')


@contextmanager
def opening_directory(path: Path) -> Iterator[None]:
    """Raise ``PathRefused`` where the system does not let us make, list or lock the directory ``path``."""
    try:
        yield
    except OSError as error:
        where = path if error.filename is None else error.filename
        if isinstance(error, FileExistsError | NotADirectoryError):
            words = f"{where}: is not a directory; give a directory, one that exists or a new one"
        else:
            words = (
                f"{where}: {error.strerror or error}; give a directory that this process may create,"
                " read and write"
            )
        raise PathRefused(words) from error


_ZEROS: Final = bytes(2**20)


def zeros(size: int) -> Iterator[Bytes]:
    """Yield ``size`` zero bytes in pieces; one large block would stay with the process for good."""
    for _ in range(size // len(_ZEROS)):
        yield _ZEROS
    if size % len(_ZEROS):
        yield _ZEROS[: size % len(_ZEROS)]


def replace_file(files: Files, path: Path, pieces: Iterable[Bytes]) -> None:
    """Put a whole new file in place of ``path``: at every moment either the old or the new one is there."""
    sibling = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = files.open(sibling, write=True, create=True)
    try:
        file.truncate(0)
        offset = 0
        for piece in pieces:
            file.write(offset, [piece])
            offset += len(piece)
        file.sync()
    finally:
        file.close()
    files.rename(sibling, path)
    files.sync_directory(path.parent)


def read_whole(files: Files, path: Path, *, size_max: int) -> bytes | None:
    """Return a small file's bytes, at most ``size_max + 1`` of them, or ``None`` if it is missing."""
    if not files.exists(path):
        return None
    file = files.open(path, write=False)
    try:
        return file.read(0, size_max + 1)
    finally:
        file.close()


@contextmanager
def needing_room(path: Path) -> Iterator[None]:
    """Raise ``NoRoom`` where a full disk refuses a file that nothing rests on yet; such a refusal strikes no store.

    Not for syncs: what one covers that failed is unknown, whatever the reason.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise NoRoom(f"{path}: {error.strerror}") from error


class Poison:
    """Remembers the first failed write, sync or read, after which its owner answers nothing any more.

    A failed sync leaves the page clean but lost: a second attempt would succeed and prove nothing.
    """

    __slots__ = ("_cause", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._cause: OSError | None = None

    def writing(self) -> Poison:
        """Wrap everything that changes the disk. Raises ``StorageFailed`` now and ever after."""
        return self

    def reading(self) -> Poison:
        """Wrap reads of what the owner has promised to hold: without them it cannot go on either."""
        return self

    def __enter__(self) -> None:
        if self._cause is not None:
            self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, OSError):
            self._cause = error
            raise StorageFailed(self._words(error)) from error

    @property
    def has_struck(self) -> bool:
        """Whether a write, a sync or a read has failed."""
        return self._cause is not None

    def check(self) -> None:
        """Raise ``StorageFailed`` if a write, a sync or a read has failed before."""
        if self._cause is not None:
            raise StorageFailed(self._words(self._cause))

    def _words(self, cause: OSError) -> str:
        return (
            f"{self._what}: {cause.strerror or cause}. What reached the disk is unknown; repair the"
            " disk or free space on it, then start again: recovery reads what is there"
        )


class OsFile:
    """A real file."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        first = os.pread(self._descriptor, size, offset)
        if len(first) == size or not first:
            return first
        pieces = [first]  # Linux returns at most 2 GiB at a time, and less at the end.
        read = len(first)
        while read < size:
            piece = os.pread(self._descriptor, size - read, offset + read)
            if not piece:
                break
            pieces.append(piece)
            read += len(piece)
        return b"".join(pieces)

    def next_data(self, offset: int) -> int | None:
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return offset  # A file system that knows no holes has none.

    def write(self, offset: int, pieces: Sequence[Bytes]) -> None:
        if len(pieces) > _PIECES_MAX:
            pieces = [b"".join(pieces)]
        left = sum(map(len, pieces))
        written = os.pwritev(self._descriptor, pieces, offset)
        if written == left:
            return
        rest = memoryview(b"".join(pieces))  # Short writes are legal, so they are continued.
        while written < left:
            written += os.pwrite(self._descriptor, rest[written:], offset + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class OsLock:
    """A lock that the system lets go when the process ends, however it ends."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


class OsFiles:
    """The real file system."""

    def open(self, path: Path, *, write: bool, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_NOFOLLOW if write else os.O_RDONLY
        descriptor = _open(path, flags | (os.O_CREAT if create else 0))
        if create:
            os.fchmod(descriptor, FILE_MODE)  # whatever the umask
        return OsFile(descriptor)

    def create(self, path: Path) -> OsFile:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        os.fchmod(descriptor, FILE_MODE)  # whatever the umask
        return OsFile(descriptor)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        if path.parent != path:
            self.make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        path.chmod(DIRECTORY_MODE)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)  # noqa: PTH104 - the same call that the docs speak of

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> OsLock:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DirectoryLocked(
                f"{path.parent} is open in another process; stop that one, or use another directory"
            ) from None
        return OsLock(descriptor)


def _open(path: Path, flags: int) -> int:
    """Open a regular file; no symbolic link, where the flags forbid one. Raises ``PathRefused``.

    A link in place of a data file would let somebody else choose what we overwrite. A pipe would let us
    wait for somebody to write to it, were it not for O_NONBLOCK.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PathRefused(f"{path}: is a symbolic link; put the file itself there") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PathRefused(f"{path}: is not a file; put the file itself there")
    return descriptor


FILES: Final = OsFiles()
"""The files of the operating system, for readers of files at rest."""


@contextmanager
def opened(path: Path) -> Iterator[File]:
    """Open a file at rest to read it. A ``BadData`` raised inside the block gets the file's path."""
    file = FILES.open(path, write=False)
    try:
        yield file
    except BadData as error:
        raise error.located(str(path)) from None
    finally:
        file.close()


OPEN_MAX: Final = 64
"""Files open at a time: messages of a queue stand in few store files, and a process may have 1024."""


class OpenFiles:
    """Opens each file when it is first read, and closes the one that was not read for longest."""

    def __init__(self, *, open_max: int = OPEN_MAX) -> None:
        self._open: OrderedDict[Path, File] = OrderedDict()
        self._open_max = open_max

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Return bytes of a file, fewer at its end. Raises ``OSError`` or ``PathRefused``."""
        file = self._open.get(path)
        if file is None:
            file = FILES.open(path, write=False)
            self._open[path] = file
        self._open.move_to_end(path)
        while len(self._open) > self._open_max:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        return file.read(offset, size)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
