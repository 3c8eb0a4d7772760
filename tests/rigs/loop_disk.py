"""A file system in a file, whose power can be cut. Needs root, loop devices and ``mkfs.ext4`` or ``mkfs.xfs``.

A cut is what the file system itself offers for it: it stops at once and does not flush its journal. What was not synced
is gone, every call fails until it is unmounted, and the next mount recovers the journal. The file that holds it stays
in the cache of the machine: that a disk drops what it said to have flushed is not shown.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILE_SYSTEMS: Final = ("ext4", "xfs")
SHUTDOWN: Final = 0x8004587D  # the ioctl that ext4 and xfs share
WITHOUT_FLUSH: Final = struct.pack("I", 2)
DISK_SIZE: Final = (
    512 * 2**20
)  # xfs takes nothing below 300 MiB; the file has holes where nothing was written


class NoLoopDisk(Exception):
    """There cannot be such a file system here; its text is the exact reason."""


class LoopDisk:
    """One file system, mounted below a directory of its own."""

    def __init__(self, directory: Path, kind: str) -> None:
        """Make it in ``directory``, which is made too; it is not mounted yet."""
        self.mounted = directory / "mounted"
        self.mounted.mkdir(parents=True)
        self._image = directory / "disk.img"
        with open(self._image, "wb") as file:
            file.truncate(DISK_SIZE)
        _run(f"mkfs.{kind}", "-q", str(self._image))

    def mount(self) -> None:
        """Mount it; after a cut this recovers its journal."""
        _run("mount", "-o", "loop", str(self._image), str(self.mounted))

    def unmount(self) -> None:
        _run("umount", str(self.mounted))

    def cut_power(self) -> None:
        """Stop it without flushing anything. It stays mounted, and all calls but the end of their files fail."""
        descriptor = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(descriptor)


def _run(*command: str) -> None:
    """Run a tool. Raises ``OSError`` with what it said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def loop_disk(directory: Path, kind: str) -> Iterator[LoopDisk]:
    """Make a file system and mount it; unmount it whatever happens. Its file stays in ``directory``.

    Raises ``NoLoopDisk`` if that cannot be done here.
    """
    if os.geteuid() != 0:
        raise NoLoopDisk("needs root: loop mount")
    for tool in (f"mkfs.{kind}", "mount", "umount"):
        if shutil.which(tool) is None:
            raise NoLoopDisk(f"needs {tool}: it is not installed")
    try:
        made = LoopDisk(directory, kind)
        made.mount()
    except OSError as error:
        raise NoLoopDisk(f"needs loop devices and {kind}: {error}") from None
    try:
        yield made
    finally:
        # A failed check still has files open: the mount goes when they do.
        subprocess.run(["umount", "--lazy", str(made.mounted)], check=False, capture_output=True)
