"""A disk in memory that records every operation, and the states that a power cut can leave of it.

``MemoryFiles`` implements ``storage.files.Files``. What was written is visible at once; what
survives a crash is only what was synced, plus any part of the rest: sectors of unsynced writes are kept or
lost one by one, or kept as an earlier unsynced write left them, because the system writes back when it
likes; unsynced creations, renames and removals likewise. ``crash_states`` enumerates such states for
every prefix of the recorded operations.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from penstock.binary import Bytes
from penstock.errors import DirectoryLocked, InvalidValue

SECTOR: Final = 512

Image = dict[str, bytes]
"""All files of a disk: path to contents."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded call that changed the disk or made a change durable."""

    kind: str  # write, truncate, sync, create, rename, remove, sync_directory, make_directory
    path: str = ""
    offset: int = 0
    data: bytes = b""
    target: str = ""
    file: int = -1  # the number of the file, which keeps it through renames


@dataclass(slots=True)
class _Inode:
    """The contents of one file: as they are, and as a crash would leave them."""

    written: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)  # sectors written since the last sync
    # What dirty sectors held before they were written again, oldest first.
    older: dict[int, list[bytes]] = field(default_factory=dict)
    # Bytes from here on may differ from those synced, besides the dirty sectors.
    intact: int = field(init=False)

    def __post_init__(self) -> None:
        self.intact = len(self.synced)

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        sectors = range(offset // SECTOR, -(-end // SECTOR))
        for sector in self.dirty.intersection(sectors):
            before = bytes(self.written[sector * SECTOR : (sector + 1) * SECTOR])
            self.older.setdefault(sector, []).append(before)
        if end > len(self.written):
            self.written.extend(bytes(end - len(self.written)))
        self.written[offset:end] = data
        self.dirty.update(sectors)

    def truncate(self, size: int) -> None:
        sectors = range(min(size, len(self.written)) // SECTOR, -(-max(size, 1) // SECTOR))
        self.dirty.update(sectors)
        if size < len(self.written):
            del self.written[size:]
            self.intact = min(self.intact, size)
        else:
            self.written.extend(bytes(size - len(self.written)))

    def sync(self) -> None:
        # Copies only what may have changed: a log is synced with every write, and is megabytes long.
        if self.dirty:
            start, end = min(self.dirty) * SECTOR, min(self.intact, (max(self.dirty) + 1) * SECTOR)
            if start < end:
                self.synced[start:end] = self.written[start:end]
        self.synced[self.intact :] = self.written[self.intact :]
        self.intact = len(self.synced)
        self.dirty.clear()
        self.older.clear()

    @property
    def is_dirty(self) -> bool:
        return bool(self.dirty) or len(self.written) != len(self.synced)

    def after_crash(self, keep: Callable[[int], int | None], *, keep_size: bool) -> bytes:
        """Return the contents with those dirty sectors that ``keep`` chooses.

        ``keep`` says how many writes ago a sector was written back, 0 for the last; ``None`` for never.
        """
        size = len(self.written) if keep_size else min(len(self.synced), len(self.written))
        data = bytearray(self.synced[:size])
        data.extend(bytes(size - len(data)))
        for sector in self.dirty:
            start, end = sector * SECTOR, min((sector + 1) * SECTOR, size)
            age = keep(sector) if start < end else None
            if age is not None:
                data[start:end] = self._version(sector, age)[: end - start].ljust(
                    end - start, b"\0"
                )
        return bytes(data)

    def _version(self, sector: int, age: int) -> bytes:
        versions = self.older.get(sector, [])
        if age and versions:
            return versions[-min(age, len(versions))]
        return bytes(self.written[sector * SECTOR : (sector + 1) * SECTOR])


class _State:
    """The disk after some operations, with what is durable and what is not."""

    def __init__(self, image: Image | None = None) -> None:
        self.inodes: dict[int, _Inode] = {}
        self.entries: dict[str, int] = {}  # path -> number of the file
        self.durable: dict[str, int] = {}
        # Changes of directories since they were last synced, in order: (directory, change).
        self.pending: list[tuple[str, Operation]] = []
        for number, (path, data) in enumerate((image or {}).items()):
            self.inodes[number] = _Inode(bytearray(data), bytearray(data))
            self.entries[path] = self.durable[path] = number

    def apply(self, operation: Operation) -> None:
        match operation.kind:
            case "create":
                self.inodes[operation.file] = _Inode()
                self._change(operation)
            case "rename" | "remove":
                self._change(operation)
            case "write":
                self.inodes[operation.file].write(operation.offset, operation.data)
            case "truncate":
                self.inodes[operation.file].truncate(operation.offset)
            case "sync":
                self.inodes[operation.file].sync()
            case "sync_directory":
                for directory, change in self.pending:
                    if directory == operation.path:
                        _apply_entry(self.durable, change)
                self.pending = [p for p in self.pending if p[0] != operation.path]

    def _change(self, operation: Operation) -> None:
        _apply_entry(self.entries, operation)
        self.pending.append((os.path.dirname(operation.path), operation))  # noqa: PTH120

    def image(
        self,
        *,
        keep: Callable[[int, int], int | None],
        keep_size: Callable[[int], bool],
        keep_change: Callable[[int], bool],
    ) -> Image:
        """Return what a crash leaves: of dirty sectors, sizes and directory changes what is chosen."""
        entries = dict(self.durable)
        for position, (_, change) in enumerate(self.pending):
            if keep_change(position):
                _apply_entry(entries, change)
        return {
            path: self.inodes[number].after_crash(
                lambda sector, number=number: keep(number, sector),  # type: ignore[misc]
                keep_size=keep_size(number),
            )
            for path, number in entries.items()
        }


def _apply_entry(entries: dict[str, int], change: Operation) -> None:
    if change.kind == "create":
        entries[change.path] = change.file
    elif change.kind == "remove":
        entries.pop(change.path, None)
    else:
        # The rename of a file whose creation was lost still brings the file: the name is new anyway.
        entries.pop(change.path, None)
        entries[change.target] = change.file


_WRITES: Final = ("write", "truncate", "create", "rename", "remove")
_SYNCS: Final = ("sync", "sync_directory")


class MemoryFiles:
    """A file system in memory that records what is done to it, and fails on request.

    A failure lasts until ``mend``. A node that meets one stops, because it cannot know what reached the disk.
    """

    def __init__(self, image: Image | None = None, *, is_recording: bool = True) -> None:
        """``is_recording``: whether ``operations`` grows with every operation, as ``crash_states`` needs."""
        self._is_recording = is_recording
        self._failing: dict[str, int] = {}  # kind of operation -> number of the error
        self._state = _State(image)
        self._start = dict(image or {})
        self._next_file = len(self._state.inodes)
        self._directories: set[str] = {"/"}
        for path in self._start:
            self._directories.update(str(parent) for parent in Path(path).parents)
        self._locked: set[str] = set()
        self.operations: list[Operation] = []
        # Called with each operation before it takes effect; may raise OSError in its place.
        self.fault: Callable[[Operation], None] | None = None
        self.read_fault: OSError | None = None  # what every read raises

    def do(self, operation: Operation) -> None:
        if self.fault is not None:
            self.fault(operation)
        error = self._failing.get(operation.kind)
        if error is not None:
            raise OSError(error, os.strerror(error), operation.path)
        if self._is_recording:
            self.operations.append(operation)
        self._state.apply(operation)

    def fail_writes(self, error: int = errno.EIO) -> None:
        """Make every change of a file or a directory fail with this error number, such as ``errno.ENOSPC``."""
        self._fail(_WRITES, error)

    def fail_syncs(self, error: int = errno.EIO) -> None:
        """Make every sync of a file or a directory fail with this error number. Writes still succeed."""
        self._fail(_SYNCS, error)

    def _fail(self, kinds: tuple[str, ...], error: int) -> None:
        if error not in errno.errorcode:
            raise InvalidValue(f"error is {error!r}; give an error number such as errno.EIO")
        self._failing.update(dict.fromkeys(kinds, error))

    def mend(self) -> None:
        """Let everything succeed again. A node that has stopped stays stopped until it is started again."""
        self._failing.clear()
        self.fault = self.read_fault = None

    # What ``storage.files.Files`` asks for.

    def open(self, path: Path, *, write: bool, create: bool = False) -> MemoryFile:  # noqa: ARG002
        name = str(path)
        if name not in self._state.entries:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
            self.do(Operation("create", name, file=self._next_file))
            self._next_file += 1
        return MemoryFile(self, name, self._state.entries[name])

    def create(self, path: Path) -> MemoryFile:
        if str(path) in self._state.entries:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        return self.open(path, write=True, create=True)

    def exists(self, path: Path) -> bool:
        return str(path) in self._state.entries or str(path) in self._directories

    def is_directory(self, path: Path) -> bool:
        return str(path) in self._directories

    def names(self, directory: Path) -> list[str]:
        here = str(directory)
        return sorted(
            Path(name).name for name in self._state.entries if str(Path(name).parent) == here
        )

    def make_directory(self, path: Path) -> None:
        # Directories are taken to be durable: making one is always synced before it is used.
        self._directories.update((str(path), *map(str, path.parents)))

    def rename(self, source: Path, target: Path) -> None:
        number = self._number(source)
        self.do(Operation("rename", str(source), target=str(target), file=number))

    def remove(self, path: Path) -> None:
        self.do(Operation("remove", str(path), file=self._number(path)))

    def _number(self, path: Path) -> int:
        if str(path) not in self._state.entries:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return self._state.entries[str(path)]

    def sync_directory(self, path: Path) -> None:
        self.do(Operation("sync_directory", str(path)))

    def lock(self, path: Path) -> MemoryLock:
        if str(path) in self._locked:
            raise DirectoryLocked(f"{path.parent} is open already")
        self._locked.add(str(path))
        return MemoryLock(self._locked, str(path))

    # For tests.

    def image(self) -> Image:
        """Return all files as they are, synced or not."""
        return {path: self.contents(number) for path, number in self._state.entries.items()}

    def contents(self, number: int) -> bytes:
        return bytes(self._state.inodes[number].written)

    def size(self, number: int) -> int:
        return len(self._state.inodes[number].written)

    def slice(self, number: int, offset: int, size: int) -> bytes:
        return bytes(self._state.inodes[number].written[offset : offset + size])

    def after(self, count: int) -> MemoryFiles:
        """Return the disk after the first ``count`` operations, as a process killed then leaves it.

        The next process sees all that was written, but no more of it is durable than was before.
        """
        files = MemoryFiles(self._start)
        for operation in self.operations[:count]:
            files.do(operation)
        files._next_file = self._next_file
        files._directories = set(self._directories)
        return files

    def start_image(self) -> Image:
        """Return the files that this disk began with."""
        return self._start


class MemoryFile:
    """An open file of a ``MemoryFiles``."""

    def __init__(self, files: MemoryFiles, path: str, number: int) -> None:
        self._files = files
        self._path = path
        self._number = number

    def size(self) -> int:
        return self._files.size(self._number)

    def read(self, offset: int, size: int) -> bytes:
        if self._files.read_fault is not None:
            raise self._files.read_fault
        return self._files.slice(self._number, offset, size)

    def next_data(self, offset: int) -> int | None:
        return offset if offset < self.size() else None

    def write(self, offset: int, pieces: Sequence[Bytes]) -> None:
        data = b"".join(pieces)
        self._files.do(Operation("write", self._path, offset, data, file=self._number))

    def truncate(self, size: int) -> None:
        self._files.do(Operation("truncate", self._path, size, file=self._number))

    def sync(self) -> None:
        self._files.do(Operation("sync", self._path, file=self._number))

    def close(self) -> None:
        pass


class MemoryLock:
    """A lock of a ``MemoryFiles``."""

    def __init__(self, locked: set[str], name: str) -> None:
        self._locked = locked
        self._name = name

    def release(self) -> None:
        self._locked.discard(self._name)


@dataclass(frozen=True, slots=True)
class CrashState:
    """What one power cut left: after how many operations, which part of the rest survived, the files."""

    operations: int
    survived: str
    image: Image


def crash_states(
    files: MemoryFiles, *, seed: int = 0, random_states: int = 4
) -> Iterator[CrashState]:
    """Yield what a power cut may leave after every prefix of the recorded operations.

    Where nothing is pending there is one state. Else: all of it kept, all lost, data without
    directory changes and the reverse, sizes without data, every sector as it was before it was last
    written, every other sector, the first or the last sectors only, and some chosen at random. Every unsynced write also arises as a prefix of its own,
    because each operation begins a new set of states. Equal states of one prefix are yielded once.
    """
    random = Random(seed)  # noqa: S311 - chance for tests
    state = _State(files.start_image())
    for count in range(len(files.operations) + 1):
        if count:
            state.apply(files.operations[count - 1])
        yield from _states(state, count, random, random_states)


def crash_states_now(
    files: MemoryFiles, *, seed: int = 0, random_states: int = 4
) -> Iterator[CrashState]:
    """Yield what a power cut may leave at this moment, in the ways that ``crash_states`` lists."""
    random = Random(seed)  # noqa: S311 - chance for tests
    yield from _states(files._state, len(files.operations), random, random_states)  # noqa: SLF001


def _states(state: _State, count: int, random: Random, random_states: int) -> Iterator[CrashState]:
    seen: set[int] = set()
    for name, image in _variants(state, random, random_states):
        mark = hash(tuple(sorted(image.items())))
        if mark not in seen:
            seen.add(mark)
            yield CrashState(count, name, image)


# How many writes ago a sector was last written back, in states chosen at random.
_AGES: Final = (0, 0, 0, 1, 1, 2, 5)


def _variants(state: _State, random: Random, random_states: int) -> Iterator[tuple[str, Image]]:
    def always(*_: int) -> bool:
        return True

    def never(*_: int) -> bool:
        return False

    def newest(*_: int) -> int:
        return 0

    def lost(*_: int) -> None:
        return None

    def one_older(*_: int) -> int:
        return 1

    dirty = sorted((number, s) for number, inode in state.inodes.items() for s in inode.dirty)
    is_clean = not state.pending and not any(inode.is_dirty for inode in state.inodes.values())
    yield "all kept", state.image(keep=newest, keep_size=always, keep_change=always)
    if is_clean:
        return
    yield "all lost", state.image(keep=lost, keep_size=never, keep_change=never)
    yield "data kept, names lost", state.image(keep=newest, keep_size=always, keep_change=never)
    yield "names kept, data lost", state.image(keep=lost, keep_size=never, keep_change=always)
    yield "sizes kept, data lost", state.image(keep=lost, keep_size=always, keep_change=always)
    yield "one write older", state.image(keep=one_older, keep_size=always, keep_change=always)
    for which, name in ((0, "even sectors"), (1, "odd sectors")):
        kept = {place for position, place in enumerate(dirty) if position % 2 == which}
        yield name, _image_of(state, kept)
    for cut in sorted({1, len(dirty) // 2, len(dirty) - 1} - {0}):
        if 0 < cut < len(dirty):
            yield f"first {cut} sectors", _image_of(state, set(dirty[:cut]))
            yield f"all but first {cut} sectors", _image_of(state, set(dirty[cut:]))
    for _ in range(random_states):
        share = random.random()
        ages = {place: random.choice(_AGES) for place in dirty if random.random() < share}
        changes = {p for p in range(len(state.pending)) if random.random() < 0.5}
        sizes = {number for number in state.inodes if random.random() < 0.5}
        yield (
            "a random part",
            state.image(
                keep=lambda number, sector, ages=ages: ages.get((number, sector)),  # type: ignore[misc]
                keep_size=lambda number, sizes=sizes: number in sizes,  # type: ignore[misc]
                keep_change=lambda position, changes=changes: position in changes,  # type: ignore[misc]
            ),
        )


def _image_of(state: _State, kept: set[tuple[int, int]]) -> Image:
    return state.image(
        keep=lambda number, sector: 0 if (number, sector) in kept else None,
        keep_size=lambda _: True,
        keep_change=lambda _: True,
    )
