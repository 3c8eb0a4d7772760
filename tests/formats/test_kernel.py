"""How kernels are compiled: once, and also where machine code cannot be kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from penstock.formats.kernel import compiled
from penstock.formats.taskflux.deltas import delta_kernel


def test_a_kernel_is_compiled_once() -> None:
    assert compiled(delta_kernel) is compiled(delta_kernel)
    assert compiled(delta_kernel) is not delta_kernel


def test_a_kernel_without_a_file_is_compiled_without_a_cache() -> None:
    """Nothing can be kept on disk for source that is in no file, as in a zip or a read-only place."""
    scope: dict[str, Any] = {}
    exec("def double(x):\n    return x + x\n", scope)
    double: Callable[[int], int] = scope["double"]
    assert compiled(double)(21) == 42


def test_importing_the_formats_loads_neither_numpy_nor_numba() -> None:
    """The server and the command line must start without them."""
    code = (
        "import sys\n"
        "import penstock.formats.taskflux.entries, penstock.formats.taskflux.snapshot_frame\n"
        "assert not {'numpy', 'numba', 'pyarrow'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
