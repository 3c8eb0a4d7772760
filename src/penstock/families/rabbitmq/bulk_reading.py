"""Many stretches of files brought into one buffer with few calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import PathRefused
from penstock.storage.files import OpenFiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GAP_MAX: Final = 4096
"""Bytes between two stretches that are read along: a call costs as much as so many bytes, or more."""


class Stretches(NamedTuple):
    """Places in files: the place of a file in a list, where a stretch begins there, and its size."""

    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]

    def take(self, rows: slice) -> Stretches:
        return Stretches(self.file[rows], self.offset[rows], self.size[rows])


def read_stretches(
    paths: Sequence[Path], wanted: Stretches, files: OpenFiles
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return a buffer, and where each stretch begins in it: -1 where it is empty or cannot be read whole.

    Files are read from front to back. What lies between stretches that are near is read along.
    """
    import numpy as np

    places = np.full(len(wanted.size), -1, dtype=np.int64)
    rows = np.flatnonzero(wanted.size > 0)
    rows = rows[np.lexsort((wanted.offset[rows], wanted.file[rows]))]
    if len(rows) == 0:
        return np.frombuffer(b"", dtype=np.uint8), places
    file, begin = wanted.file[rows], wanted.offset[rows]
    end = begin + wanted.size[rows]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (file[1:] != file[:-1]) | (begin[1:] > end[:-1] + GAP_MAX)
    firsts = np.flatnonzero(is_new)
    run = np.cumsum(is_new) - 1
    ends = np.maximum.reduceat(end, firsts)
    pieces = [
        _read(files, paths[number], start, stop - start)
        for number, start, stop in zip(
            file[firsts].tolist(), begin[firsts].tolist(), ends.tolist(), strict=True
        )
    ]
    sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
    bases = np.cumsum(sizes) - sizes
    within = begin - begin[firsts][run]
    is_whole = within + (end - begin) <= sizes[run]
    places[rows] = np.where(is_whole, bases[run] + within, -1)
    joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return np.frombuffer(joined, dtype=np.uint8), places


def _read(files: OpenFiles, path: Path, offset: int, size: int) -> bytes:
    try:
        return files.read(path, offset, size)
    except (OSError, PathRefused):
        return b""  # the reader of a single message reports why


def at_every_byte(data: NDArray[np.uint8], kind: str) -> NDArray[Any]:
    """Return the values of a type that begin at each byte of a buffer: a view, from which some are taken."""
    import numpy as np

    count = max(0, len(data) - np.dtype(kind).itemsize + 1)
    return np.ndarray((count,), dtype=kind, buffer=data, strides=(1,))
