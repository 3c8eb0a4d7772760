"""Generation 1 to generation 3, in place: the new files beside the old, which stay as they are."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from penstock.formats.taskflux.generation import Generation
from penstock.storage.directory import DATA, LOCK_NAME, Layout, locate
from penstock.storage.files import Files
from penstock.tools.convert import convert
from penstock.tools.history import read_history
from penstock.tools.target import resolve


def upgrade(files: Files, root: Path) -> str | None:
    """Upgrade a directory of generation 1 and return where its files are kept; ``None`` if there is nothing to do.

    The new files are made in a directory of their own and put in place by one rename, so that a crash leaves
    either the old directory or the upgraded one. Raises ``StorageError`` or ``BadData``.
    """
    if not files.exists(root):
        return None
    layout = locate(files, root)
    if layout is None or layout.generation is not Generation.ONE:
        with contextlib.suppress(
            OSError
        ):  # What a crash right behind the rename left; mostly nothing.
            (root / f"{root.name}.upgrade").rmdir()
        return None
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
    convert(read_history(resolve(layout.home)), Generation.THREE, work)
    files.rename(work / DATA, root / DATA)
    files.sync_directory(root)
    shutil.rmtree(work)
