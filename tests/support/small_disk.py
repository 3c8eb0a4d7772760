"""A file system with little room, for tests of a full disk; it takes root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """Mount a file system of ``size`` bytes at ``path``, or skip the test and say so."""
    path.mkdir(parents=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("NOT TESTED: a full disk; it takes root to mount a small one")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "penstock-test", str(path)]
    outcome = subprocess.run(mount, check=False, capture_output=True, text=True)
    if outcome.returncode != 0:
        pytest.skip(f"NOT TESTED: a full disk; mount says: {outcome.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def leave(disk: Path, size: int) -> Path:
    """Fill a disk up to so many bytes, and return the file that does."""
    ballast = disk / "ballast"
    with open(ballast, "wb") as file:
        while (free := shutil.disk_usage(disk).free) > size:
            file.write(bytes(min(2**20, free - size)))
            file.flush()
    return ballast
