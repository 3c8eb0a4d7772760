"""The disks of simulated machines: what was synced survives a power cut, of the rest any part does.

``SimulatedFiles`` implements ``storage.files.Files`` for one machine, and lives on while its processes come and go.
``SimulatedDisk`` implements ``server.disk.Disk``: jobs take simulated time. ``penstock.testing.disk.MemoryFiles`` records
every operation and enumerates crash states; this one keeps no record and picks one state by chance, because
thousands of lives go through it.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NoReturn

from penstock.binary import Bytes
from penstock.errors import DirectoryLocked
from penstock.server.disk import Done, Job
from simulation.clock import MILLISECOND, Gate, Timeline

SECTOR: Final = 512
TORN_UNIT: Final = 64
"""Sectors are torn between two of these: no bus or controller moves less at a time."""


class MachineDown(BaseException):
    """The machine lost its power in the middle of a call. Only the simulated world catches this."""


@dataclass(slots=True)
class _Inode:
    """The contents of one file: as processes see them, and as the platters hold them."""

    written: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)  # bytes written since the last sync
    path: str = ""  # its name when it was made, to be said to people

    def write(self, offset: int, data: bytes) -> None:
        end, written = offset + len(data), self.written
        if offset > len(written):
            written.extend(bytes(offset - len(written)))
        written[offset:end] = data
        self.dirty.append((offset, end))

    def truncate(self, size: int) -> None:
        written = self.written
        if size < len(written):
            self.dirty.append((size, len(written)))
            del written[size:]
        elif size > len(written):
            self.dirty.append((len(written), size))
            written.extend(bytes(size - len(written)))

    def sync(self) -> None:
        written, synced = self.written, self.synced
        size = len(written)
        if len(synced) > size:
            del synced[size:]
        elif len(synced) < size:
            synced.extend(bytes(size - len(synced)))
        for start, end in self.dirty:
            synced[start : min(end, size)] = written[start:end]
        self.dirty.clear()

    def dirty_sectors(self) -> list[int]:
        sectors: set[int] = set()
        for start, end in self.dirty:
            sectors.update(range(start // SECTOR, -(-end // SECTOR)))
        return sorted(sectors)

    def write_back(self, sector: int) -> None:
        """Put one sector on the platters, as the system does when it likes; nobody may rely on it."""
        start = sector * SECTOR
        piece = self.written[start : start + SECTOR]
        if len(self.synced) < start:
            self.synced.extend(bytes(start - len(self.synced)))
        self.synced[start : start + len(piece)] = piece

    def cut_power(self, random: Random, survival: float) -> None:
        """Become what the platters hold: each unsynced sector survives, is lost, or is torn."""
        old, new = self.synced, self.written
        sectors = self.dirty_sectors()
        if not sectors and len(old) == len(new):
            self.written = bytearray(old)  # what a failed sync has lost differs only in here
            return
        size = len(new) if random.random() < survival else min(len(old), len(new))
        after = bytearray(old[:size])
        after.extend(bytes(size - len(after)))
        for sector in sectors:
            start, end = sector * SECTOR, min((sector + 1) * SECTOR, size)
            fate = random.random()
            if start >= end or fate >= survival:
                continue
            if fate < survival / 4:
                end = min(
                    end, random.randrange(start, end, TORN_UNIT)
                )  # only its beginning arrived
            piece = new[start:end]
            after[start : start + len(piece)] = piece
        self.synced = after
        self.written = bytearray(after)
        self.dirty.clear()


@dataclass(slots=True)
class _Change:
    """A change of a directory that is not durable yet."""

    directory: str
    kind: str  # create, remove, rename
    path: str
    inode: _Inode
    target: str = ""

    def apply(self, entries: dict[str, _Inode]) -> None:
        if self.kind == "create":
            entries[self.path] = self.inode
        else:
            entries.pop(self.path, None)
            if self.kind == "rename":
                entries[self.target] = self.inode


class SimulatedFiles:
    """The file system of one machine."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._entries: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._pending: list[_Change] = []
        self._directories: set[str] = {"/"}
        self._locked: set[str] = set()
        self.size = 0  # bytes of all files, as far as they were ever grown by writes
        self.calls = 0  # that change something or make it durable
        # The call, by number, at which ``strike`` happens; it decides what becomes of the call.
        self.strike_at = 0
        self.strike: Callable[[str, str], None] = lambda _kind, _path: None
        self._reads_left = 0  # until one strikes; 0: none does
        self.is_in_use = False  # by the process: whoever else looks at the files is never struck
        self.quota: int | None = None
        self.write_back_chance = 0.0
        self.is_down = False

    # What ``storage.files.Files`` asks for.

    def open(self, path: Path, *, write: bool, create: bool = False) -> SimulatedFile:  # noqa: ARG002
        name = str(path)
        inode = self._entries.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
            inode = self._make(name)
        return SimulatedFile(self, inode)

    def create(self, path: Path) -> SimulatedFile:
        name = str(path)
        if name in self._entries:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        return SimulatedFile(self, self._make(name))

    def _make(self, name: str) -> _Inode:
        self.call("create", name)
        inode = _Inode(path=name)
        self._change(_Change(os.path.dirname(name), "create", name, inode))  # noqa: PTH120
        return inode

    def exists(self, path: Path) -> bool:
        return str(path) in self._entries or str(path) in self._directories

    def is_directory(self, path: Path) -> bool:
        return str(path) in self._directories

    def names(self, directory: Path) -> list[str]:
        here = str(directory) + "/"
        start = len(here)
        entries = [name[start:] for name in self._entries if name.startswith(here)]
        # As the system has it, directories are among the names.
        entries += [name[start:] for name in self._directories if name.startswith(here)]
        return sorted(name for name in entries if "/" not in name)

    def make_directory(self, path: Path) -> None:
        # Directories are taken to be durable: making one is always synced before it is used.
        if str(path) not in self._directories:
            self._directories.update((str(path), *map(str, path.parents)))

    def rename(self, source: Path, target: Path) -> None:
        name = str(source)
        inode = self._find(name)
        self.call("rename", name)
        directory = os.path.dirname(name)  # noqa: PTH120
        self._change(_Change(directory, "rename", name, inode, str(target)))

    def remove(self, path: Path) -> None:
        name = str(path)
        inode = self._find(name)
        self.call("remove", name)
        self.size -= len(inode.written)
        self._change(_Change(os.path.dirname(name), "remove", name, inode))  # noqa: PTH120

    def _find(self, name: str) -> _Inode:
        if name not in self._entries:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return self._entries[name]

    def _change(self, change: _Change) -> None:
        change.apply(self._entries)
        self._pending.append(change)

    def sync_directory(self, path: Path) -> None:
        name = str(path)
        self.call("sync_directory", name)
        if not self._pending:
            return
        for change in self._pending:
            if change.directory == name:
                change.apply(self._durable)
        self._pending = [change for change in self._pending if change.directory != name]

    def lock(self, path: Path) -> SimulatedLock:
        name = str(path)
        if name in self._locked:
            raise DirectoryLocked(f"{path.parent} is open already")
        self._locked.add(name)
        return SimulatedLock(self._locked, name)

    # What open files ask for.

    def call(self, kind: str, path: str) -> None:
        """Count a call, and let it fail or end the machine if its time has come."""
        if self.is_down:
            raise MachineDown
        self.calls += 1
        if self.calls == self.strike_at:
            self.strike(kind, path)

    def note_read(self, path: str) -> None:
        """Count a read, and let it fail if its time has come."""
        if self._reads_left and self.is_in_use:
            self._reads_left -= 1
            if not self._reads_left:
                self.strike("read", path)

    def grow(self, inode: _Inode, offset: int, data: bytes) -> None:
        """Write, within the quota: beyond it a part is written and the rest is refused."""
        growth = max(0, offset + len(data) - len(inode.written))
        if self.quota is not None and growth and self.size + growth > self.quota:
            room = max(0, self.quota - self.size)
            part = data[: max(0, len(data) - growth + room)]
            if part:
                self._write(inode, offset, part)
            raise OSError(errno.ENOSPC, "No space left on device", inode.path)
        self._write(inode, offset, data)

    def _write(self, inode: _Inode, offset: int, data: bytes) -> None:
        before = len(inode.written)
        inode.write(offset, data)
        self.size += len(inode.written) - before
        if self.write_back_chance and self._random.random() < self.write_back_chance:
            inode.write_back(self._random.choice(inode.dirty_sectors()))

    # What happens to machines.

    def arm(self, calls: int, strike: Callable[[str, str], None]) -> None:
        """Let ``strike`` decide what becomes of a call, so many calls from now: it may raise."""
        self.strike_at, self.strike = self.calls + calls, strike

    def arm_reads(self, reads: int, strike: Callable[[str, str], None]) -> None:
        """Let ``strike`` decide what becomes of a read, so many from now: it may raise."""
        self._reads_left, self.strike = reads, strike

    def go_down(self) -> NoReturn:
        """Stop in the middle of a call; every further one stops as well until somebody picks up the pieces."""
        self.is_down = True
        raise MachineDown

    def kill(self) -> None:
        """End the process: its locks go, and the next one sees all that was written."""
        self._locked.clear()
        self.strike_at = self._reads_left = 0
        self.is_down = False

    def cut_power(self, *, survival: float) -> None:
        """End the machine: of what was not synced each part survives with this chance."""
        self.kill()
        entries = dict(self._durable)
        for change in self._pending:
            if self._random.random() < survival:
                change.apply(entries)
        self._pending.clear()
        inodes = {id(inode): inode for inode in entries.values()}
        for inode in inodes.values():
            inode.cut_power(self._random, survival)
        self._entries = entries
        self._durable = dict(entries)
        self.size = sum(len(inode.written) for inode in inodes.values())

    def wipe(self) -> None:
        """Put an empty disk in place of this one."""
        self.kill()
        self._entries.clear()
        self._durable.clear()
        self._pending.clear()
        self._directories = {"/"}
        self.size = 0

    def damage(self, pick: Callable[[str], bool]) -> str | None:
        """Flip a bit of what was synced, in a file that ``pick`` chooses; return which file, if there was one."""
        names = [n for n in sorted(self._entries) if self._entries[n].written and pick(n)]
        if not names:
            return None
        name = self._random.choice(names)
        inode = self._entries[name]
        place = self._random.randrange(_used_size(inode.written))
        bit = 1 << self._random.randrange(8)
        inode.written[place] ^= bit
        if place < len(inode.synced):
            inode.synced[place] ^= bit
        return f"{name} at {place}"

    # What the world wants to know.

    def is_synced(self, path: str, start: int, end: int) -> bool:
        """Return whether these bytes of a file survive a power cut for sure."""
        inode = self._durable.get(path)
        if inode is None or inode is not self._entries.get(path):
            return False
        return inode.synced[start:end] == inode.written[start:end]

    def durable_image(self) -> dict[str, bytes]:
        """Return what a power cut leaves if nothing survives that was not synced."""
        return {path: bytes(inode.synced) for path, inode in self._durable.items()}


def _used_size(data: bytearray) -> int:
    """Return the size without the zeros at the end, which nobody reads."""
    return max(1, len(data.rstrip(b"\0")))


class SimulatedFile:
    """An open file."""

    __slots__ = ("_files", "_inode")

    def __init__(self, files: SimulatedFiles, inode: _Inode) -> None:
        self._files = files
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.written)

    def read(self, offset: int, size: int) -> bytes:
        self._files.note_read(self._inode.path)
        return bytes(self._inode.written[offset : offset + size])

    def next_data(self, offset: int) -> int | None:
        return offset if offset < len(self._inode.written) else None

    def write(self, offset: int, pieces: Sequence[Bytes]) -> None:
        data = b"".join(pieces)
        files, inode = self._files, self._inode
        try:
            files.call("write", inode.path)
        except MachineDown:
            # The system had the bytes, or a part of them, when the power went.
            if data:
                inode.write(offset, data)
            raise
        if data:
            files.grow(inode, offset, data)

    def truncate(self, size: int) -> None:
        self._files.call("truncate", self._inode.path)
        self._inode.truncate(size)

    def sync(self) -> None:
        try:
            self._files.call("sync", self._inode.path)
        except OSError:
            # As Linux has it: the pages are clean now, and what they held never reached the platters.
            self._inode.dirty.clear()
            raise
        self._inode.sync()

    def close(self) -> None:
        pass


class SimulatedLock:
    """A held lock."""

    def __init__(self, locked: set[str], name: str) -> None:
        self._locked = locked
        self._name = name

    def release(self) -> None:
        self._locked.discard(self._name)


@dataclass(slots=True, kw_only=True)
class Pace:
    """How long a job takes: most a moment, some much longer."""

    mean: int = 1 * MILLISECOND
    slow: float = 0.0  # the chance of a slow one
    slow_max: int = 200 * MILLISECOND


class SimulatedDisk:
    """Runs the jobs of one process in order, each some time after it was given."""

    def __init__(self, timeline: Timeline, random: Random, gate: Gate, pace: Pace) -> None:
        self._timeline = timeline
        self._random = random
        self._gate = gate
        self._pace = pace
        self._jobs: deque[tuple[Job, Done]] = deque()
        self._is_ended = False
        # Hands the news of a job to the process.
        self.guard: Callable[[Callable[[], None]], None] = lambda call: call()
        self.when_down: Callable[[], None] = lambda: None  # the machine went down in a job

    def run(self, job: Job, done: Done, *, is_small: bool) -> None:  # noqa: ARG002
        self._jobs.append((job, done))
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        random, pace = self._random, self._pace
        delay = 1 + int(random.expovariate(1 / pace.mean))
        if pace.slow and random.random() < pace.slow:
            delay += random.randrange(pace.slow_max)
        # The job itself happens somewhere in between: a crash may come before it, or before its news.
        moment = random.randrange(delay)
        self._timeline.after(moment, partial(self._gate.run, partial(self._do, delay - moment)))

    def _do(self, rest: int) -> None:
        if self._is_ended:
            return
        job, done = self._jobs[0]
        error: BaseException | None = None
        try:
            job()
        except MachineDown:
            self.when_down()
            return
        except BaseException as failed:  # noqa: BLE001 - handed to whoever gave the job
            error = failed
        self._timeline.after(rest, partial(self._gate.run, partial(self._finish, done, error)))

    def _finish(self, done: Done, error: BaseException | None) -> None:
        if self._is_ended:
            return
        self._jobs.popleft()
        if self._jobs:
            self._begin()
        self.guard(lambda: done(error))

    def end(self) -> None:
        """Forget everything: the process is gone."""
        self._is_ended = True
        self._jobs.clear()

    def close(self) -> None:
        pass
