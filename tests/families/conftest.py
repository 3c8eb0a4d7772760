"""What all tests of the tools share: they make thousands of directories, none of which waits for a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.at_rest import quick_writing

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture(autouse=True, scope="module")
def _writes_quickly() -> Iterator[None]:
    with quick_writing():
        yield


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory, where there is one."""
    with TemporaryDirectory(dir=MEMORY) as place:
        yield Path(place)
