"""Golden directories are stored as compressed archives."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(archive: Path, directory: Path) -> Path:
    """Extract all files of an archive of ours into ``directory`` and return it."""
    with tarfile.open(archive) as tar:
        # Python before 3.11.4 has no filters.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(directory)
    return directory
