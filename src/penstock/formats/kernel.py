"""How the bulk scanners are compiled: by numba, when they are first used, and kept on disk.

A kernel is a plain function in the module that owns its byte layout. It calls no other function
of ours, so that it compiles alone and also runs interpreted, which is how tests without numba hold it
to the plain decoder. Import of the package stays light: numba and numpy load here, on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.binary import Bytes
from penstock.errors import needing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

BATCH_ROWS: Final = 16_384
"""Rows per batch of columns: large enough to spread a call's cost, small enough for the cache."""


def bulk() -> AbstractContextManager[None]:
    """Wrap the imports of numpy and numba by a bulk scan. Raises ``DependencyMissing``."""
    return needing("spark", "reading files in bulk")


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the machine code of ``kernel``. Needs numba, which the ``spark`` extra brings."""
    with bulk():
        from numba import njit

    try:
        function: Callable[..., Any] = njit(cache=True, nogil=True)(kernel)
        _check_cache(function)
    except (RuntimeError, OSError):
        # No directory to keep the machine code in: every process compiles anew.
        function = njit(nogil=True)(kernel)
    return function


def _check_cache(function: Any) -> None:
    """Raise ``OSError`` if the machine code cannot be kept where numba chose to.

    It tries a directory before it chooses it, but not the one for a module in a zip, which is how Spark ships
    packages: that one would fail when the kernel is first called.
    """
    function._cache._impl.locator.ensure_cache_path()  # noqa: SLF001 - nothing public asks for it


def scan_in_batches(
    kernel: Callable[..., Any],
    data: Bytes | NDArray[np.uint8],
    *arguments: int,
    start: int,
    stop: int | None,
    size: int | None,
    fields: int,
    make: Callable[[NDArray[np.int64]], T],
    room: Callable[[int], int],
    batch_rows: int,
    interpreted: bool,
) -> Generator[T, None, int]:
    """Yield what ``make`` makes of each batch of rows that a kernel finds from ``start`` on; return where it ended.

    The kernel takes the buffer, ``arguments``, position, stop, end, size and rows, an array for each of ``fields``,
    and returns how many rows it wrote, its position, and whether more are to come. ``room`` tells the most rows that
    so many bytes can hold.
    """
    with bulk():
        import numpy as np

    if interpreted:
        buffer: Any = bytes(data)
    else:
        buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        kernel = compiled(kernel)
    end = len(buffer)
    size = end if size is None else size
    stop = size if stop is None else stop
    position, is_full = start, True
    while is_full:
        most = max(1, min(batch_rows, room(end - position)))
        rows = np.empty((fields, most), dtype=np.int64)
        count, position, is_full = kernel(buffer, *arguments, position, stop, end, size, rows)
        if count:
            yield make(rows[:, :count])
    return int(position)
