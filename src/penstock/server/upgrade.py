"""What a start does to directories of TaskFlux before it opens them.

Generation 1 becomes generation 3, in place: the new files beside the old, which stay as they are.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from penstock.errors import PathRefused
from penstock.families.taskflux.convert import convert
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history, survey
from penstock.formats.taskflux.compaction import FILE_NAME, Compaction, encode_compaction
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import Variant
from penstock.model import Index
from penstock.storage.directory import DATA, LOCK_NAME, Layout
from penstock.storage.files import Files, replace_file


def upgrade(files: Files, root: Path, layout: Layout | None) -> str | None:
    """Upgrade the files of generation 1 at ``layout`` and return where they are kept; ``None`` if nothing is to do.

    The new files are made in a directory of their own and put in place by one rename, so that a crash leaves
    either the old directory or the upgraded one. Raises ``StorageError`` or ``BadData``.
    """
    if layout is not None and layout.generation is Generation.TWO and root.is_dir():
        _finish_compaction(files, root, layout)
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


def _finish_compaction(files: Files, root: Path, layout: Layout) -> None:
    """Let recovery drop the entries that a snapshot of TaskFlux covers: a crash kept it from shortening its log.

    The file does not say at which index it begins; our sidecar does.
    """
    history = survey(resolve(layout.home, layout.generation))
    companions, point = history.target.companions, history.point
    if companions is None or point is None or history.is_ours or history.first > point.index:
        return
    lock = files.lock(root / LOCK_NAME)
    try:
        if not files.exists(companions / FILE_NAME):
            sidecar = Compaction(point=point, first=Index(history.first), count=None)
            replace_file(files, companions / FILE_NAME, [encode_compaction(sidecar)])
    finally:
        lock.release()


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
