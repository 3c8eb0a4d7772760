"""Many stretches of a file in few reads, and a file shown to a scanner in windows.

Stretches that lie close to each other are read together; what lies between is thrown away, because a
call to the system costs as much as some kilobytes. Memory is bounded by the largest record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import CorruptData
from penstock.storage.files import File

GAP_MAX: Final = 16 * 2**10
"""Bytes between two stretches that are read to save a call."""

RUN_MAX: Final = 4 * 2**20
"""Bytes of stretches read together."""

WINDOW: Final = 4 * 2**20
"""Bytes that a scanner is shown at a time, unless a record is longer."""

T = TypeVar("T")
Columns = NDArray[np.int64]


class Run(NamedTuple):
    """Stretches that were read together: ``rows`` says which, ``starts`` where they begin in ``data``."""

    data: bytes
    rows: Columns
    starts: Columns


def read_runs(file: File, path: object, offsets: Columns, sizes: Columns) -> Iterator[Run]:
    """Yield all stretches, in order of offset. Raises ``CorruptData`` if the file ends before one."""
    order = np.argsort(offsets, kind="stable")
    begins, ends = offsets[order], (offsets + sizes)[order]
    if not len(order):
        return
    reach = np.maximum.accumulate(ends)
    breaks = np.flatnonzero(begins[1:] > reach[:-1] + GAP_MAX) + 1
    for group in np.split(np.arange(len(order)), breaks):
        at = int(group[0])
        stop = int(group[-1]) + 1
        while at < stop:
            # As many as fit, and at least one, whatever its size.
            fitting = int(np.searchsorted(reach[at:stop], begins[at] + RUN_MAX, side="right"))
            until = min(stop, at + max(1, fitting))
            base, end = int(begins[at]), int(reach[at:until].max())
            data = file.read(base, end - base)
            if len(data) != end - base:
                raise CorruptData(
                    "the file ends before a message that it must hold",
                    path=str(path),
                    offset=base + len(data),
                    expected=f"{end - base} bytes from {base} on",
                )
            yield Run(data, order[at:until], begins[at:until] - base)
            at = until


def scan_windows(
    file: File,
    *,
    start: int,
    end: int,
    scan: Callable[[bytes, int], Generator[T, None, int]],
    window: int = WINDOW,
) -> Iterator[tuple[int, bytes, T]]:
    """Yield base, bytes and each batch that ``scan`` finds of the file from ``start`` to ``end``.

    ``scan`` takes a window and the size of what is left of the file; it returns where it stopped.
    """
    base, room = start, window
    while base < end:
        data = file.read(base, min(room, end - base))
        batches = scan(data, end - base)
        position = 0
        while True:
            try:
                batch = next(batches)
            except StopIteration as done:
                position = int(done.value)
                break
            yield base, data, batch
        room = window if position else 2 * room
        if not position and base + len(data) >= end:
            return
        base += position
