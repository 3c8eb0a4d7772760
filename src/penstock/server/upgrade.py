"""Generation 1 to generation 3, in place: the new files beside the old, which stay as they are."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from penstock.errors import PathRefused
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import Variant
from penstock.storage.directory import DATA, LOCK_NAME, Layout
from penstock.storage.files import Files
from penstock.tools.convert import convert
from penstock.tools.history import read_history
from penstock.tools.target import resolve


def upgrade(files: Files, root: Path, layout: Layout | None) -> str | None:
    """Upgrade the files of generation 1 at ``layout`` and return where they are kept; ``None`` if nothing is to do.

    The new files are made in a directory of their own and put in place by one rename, so that a crash leaves
    either the old directory or the upgraded one. Raises ``StorageError`` or ``BadData``.
    """
    if layout is None or layout.generation is not Generation.ONE:
        with contextlib.suppress(
            OSError
        ):  # What a crash right behind the rename left; mostly nothing.
            (root / f"{root.name}.upgrade").rmdir()
        return None
    if files.is_directory(root / DATA) and files.names(root / DATA):
        raise PathRefused(
            f"{root / DATA}: stands where the upgraded files of {layout.home} go, and holds no tasks; move it away"
        )
    lock = files.lock(root / LOCK_NAME)
    try:
        _upgrade(files, root, layout)
    finally:
        lock.release()
    return str(layout.home)


def _upgrade(files: Files, root: Path, layout: Layout) -> None:
    # Never inside what is read: beside the files of generation 1, or beside their directory.
    parent = root if layout.home != root else root.parent
    work = parent / f"{root.name}.upgrade"
    if work.exists():  # what a crash left; nothing refers to it
        shutil.rmtree(work)
    convert(read_history(resolve(layout.home)), Variant.THREE, work)
    files.rename(work / DATA, root / DATA)
    files.sync_directory(root)
    shutil.rmtree(work)
