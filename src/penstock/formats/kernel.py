"""How the bulk scanners are compiled: by numba, when they are first used, and kept on disk.

A kernel is a plain function in the module that owns its byte layout. It calls no other function
of ours, so that it compiles alone and also runs interpreted, which is how tests without numba hold it
to the plain decoder. Import of the package stays light: numba and numpy load here, on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the machine code of ``kernel``. Needs numba, which the ``spark`` extra brings."""
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
