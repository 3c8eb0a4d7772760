"""The files of a node that are not read here, copied byte for byte: metadata, quorum queues, streams."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import PathRefused
from penstock.families.damage import Damage, words_of
from penstock.families.rabbitmq.damage import UNREADABLE, damage_at
from penstock.storage.files import FILES, opened, replace_file

PIECE: Final = 2**20
"""Bytes that are copied at a time."""


def copy_tree(source: Path, target: Path, *, but: tuple[str, ...] = ()) -> Iterator[Damage]:
    """Copy a directory, without the entries ``but``, with modes and times; yield what cannot be read.

    Symbolic links are copied as links. Sockets and pipes are left out: a broker makes its own.
    """
    FILES.make_directory(target)
    try:
        names = [name for name in FILES.names(source) if name not in but]
    except OSError as error:
        yield damage_at(source, UNREADABLE, words_of(error))
        return
    for name in names:
        yield from _copy(source / name, target / name)
    shutil.copystat(source, target)
    FILES.sync_directory(target)


def _copy(source: Path, target: Path) -> Iterator[Damage]:
    mode = source.lstat().st_mode
    if stat.S_ISDIR(mode):
        yield from copy_tree(source, target)
    elif stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)  # noqa: PTH115, PTH211 - as it is, also if it leads nowhere
    elif stat.S_ISREG(mode):
        try:
            FILES.open(source, write=False).close()
        except (OSError, PathRefused) as error:
            yield damage_at(source, UNREADABLE, words_of(error))
            return
        replace_file(FILES, target, _pieces(source))
        shutil.copystat(source, target)


def _pieces(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        offset = 0
        while piece := file.read(offset, PIECE):
            yield piece
            offset += len(piece)
