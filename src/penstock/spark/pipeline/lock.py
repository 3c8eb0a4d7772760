"""The lock of a directory of tables: one run at a time writes to it (docs/spark.md, decision 0024).

Whether the holder is alive is decided by the kernel: an ``flock`` ends with the process that holds it, however that
process ends, and excludes threads of one process too. The record in the file names the holder for people. It also
covers file systems whose ``flock`` does not reach other hosts: a record that a run on another host left is believed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.errors import DirectoryLocked, PathRefused

RECORD_SIZE_MAX: Final = 4096
"""Bytes of a record that are read: a host name has at most 255, the rest is short."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a lock."""

    host: str
    boot: str  # the kernel's boot id; empty where there is none
    pid: int
    started: str  # when it took the lock, UTC

    @classmethod
    def here(cls) -> Holder:
        """Return the record of this process."""
        return cls(
            host=os.uname().nodename,
            boot=_BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "",
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def is_of_host(self, other: Holder) -> bool:
        """Return whether both ran on one machine, before or after a restart of it."""
        return self.host == other.host or (self.boot != "" and self.boot == other.boot)

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, since {self.started}"


class Lock:
    """A lock that this process holds."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def is_held(self) -> bool:
        """Return whether the file is still the one that was locked; a deleted file excludes no other run."""
        return _is_at(self.path, self._descriptor)

    def release(self) -> None:
        """Release the lock. The file stays: to delete it would let two runs lock two files of one name."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def take(path: Path) -> Lock:
    """Take the lock at ``path``. Raises ``DirectoryLocked`` if another run holds it, and ``PathRefused``."""
    while True:
        descriptor = _open(path)
        try:
            _claim(path, descriptor)
            if _is_at(path, descriptor):
                return Lock(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was deleted in between


def _claim(path: Path, descriptor: int) -> None:
    """Lock an open file and write the record of this process to it."""
    here = Holder.here()
    if not _lock(path, descriptor):
        holder = _read(descriptor)
        who = "a process that has just started" if holder is None else str(holder)
        raise _refusal(f"{path}: {who} holds the lock; wait until that run ends", holder)
    left = _read(descriptor)
    if left is not None and not left.is_of_host(here):
        raise _refusal(
            f"{path}: {left} holds the lock, and whether it still runs cannot be tested from this host;"
            " if it has ended, delete this file",
            left,
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(here)).encode(), 0)
    os.fsync(descriptor)


def is_free(path: Path) -> bool:
    """Return whether no living process holds the lock at ``path``."""
    descriptor = _open(path)
    try:
        return _lock(path, descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PathRefused(f"{path}: the lock cannot be opened ({error.strerror})") from None


def _lock(path: Path, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise PathRefused(
            f"{path}: this file system has no locks; name a directory on another one"
        ) from None
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> Holder | None:
    """Return the record in a lock file; ``None`` if it has none, or one that a crash cut off."""
    try:
        fields = json.loads(os.pread(descriptor, RECORD_SIZE_MAX, 0))
        return Holder(
            host=str(fields["host"]),
            boot=str(fields["boot"]),
            pid=int(fields["pid"]),
            started=str(fields["started"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _refusal(words: str, holder: Holder | None) -> DirectoryLocked:
    error = DirectoryLocked(words)
    error.holder = None if holder is None else asdict(holder)
    return error
