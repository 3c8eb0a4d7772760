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
    except RuntimeError:  # No directory to keep the machine code in: every process compiles anew.
        function = njit(nogil=True)(kernel)
    return function
