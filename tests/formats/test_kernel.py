"""How kernels are compiled: once, and also where machine code cannot be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pytest

from penstock.formats.kernel import compiled, compiled_as
from penstock.formats.taskflux.log import LogLayout, walk_kernel


def test_a_kernel_is_compiled_once() -> None:
    kernel = walk_kernel(LogLayout.THREE)
    assert compiled(kernel) is compiled(kernel)
    assert compiled(kernel) is not kernel


_unpack = Struct(">BIiqQ").unpack_from
_unpack_little = Struct("<iBHIq").unpack_from


def _fields(data: Any, at: Any, numbers: Any) -> Any:
    numbers[0], numbers[1], numbers[2], numbers[3], large = _unpack(data, at)
    numbers[4], numbers[5], numbers[6], numbers[7], numbers[8] = _unpack_little(data, at)
    return large


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_fields_are_the_same_compiled_and_interpreted(byte: int) -> None:
    """Kernels unpack by ``struct``, which numba does not know: each field is put together from its bytes there."""
    data = bytes(range(3)) + bytes((byte,)) * 12 + bytes(range(100, 113))
    array = np.frombuffer(data, dtype=np.uint8)
    for at in range(4):
        plain, numbers = [0] * 9, np.zeros(9, dtype=np.int64)
        large = _fields(data, at, plain)
        assert int(compiled(_fields)(array, at, numbers)) == large
        assert numbers.tolist() == plain


def _in_kernels(x: Any) -> Any:
    return x * 2


@compiled_as(_in_kernels)
def _interpreted(x: Any) -> Any:
    return x * 3


def _call(x: Any) -> Any:
    return _interpreted(x)


def test_a_compiled_kernel_calls_what_stands_for_the_interpreted_function() -> None:
    assert _call(7) == 21
    assert compiled(_call)(7) == 14


def test_a_kernel_without_a_file_is_compiled_without_a_cache() -> None:
    """Nothing can be kept on disk for source that is in no file, as in a zip or a read-only place."""
    scope: dict[str, Any] = {}
    exec("def double(x):\n    return x + x\n", scope)
    double: Callable[[int], int] = scope["double"]
    assert compiled(double)(21) == 42


PART = "SCALE = {scale}\n\ndef scaled(x):\n    return x {sign} SCALE\n"
KERNEL = "from {part} import scaled\n\ndef kernel(x):\n    return scaled(x) + 1\n"
CALL = """
import sys
from kernels import kernel
from penstock.formats.kernel import compiled
print(compiled(kernel)(20), kernel(20), sum(compiled(kernel).stats.cache_hits.values()))
"""


def test_machine_code_on_disk_is_not_used_after_a_part_or_its_constants_changed(
    tmp_path: Path,
) -> None:
    """The file of the kernel is the same, and numba looks at no other."""
    (tmp_path / "kernels.py").write_text(KERNEL.format(part="parts"))

    def answers() -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.check_output([sys.executable, "-c", CALL], env=environment, text=True)

    (tmp_path / "parts.py").write_text(PART.format(scale=2, sign="*"))
    assert answers().split() == ["41", "41", "0"]
    assert answers().split() == ["41", "41", "1"]
    (tmp_path / "parts.py").write_text(PART.format(scale=2, sign="+"))
    assert answers().split() == ["23", "23", "0"]
    (tmp_path / "parts.py").write_text(PART.format(scale=9, sign="+"))
    assert answers().split() == ["30", "30", "0"]


def test_importing_the_formats_loads_neither_numpy_nor_numba() -> None:
    """The server and the command line must start without them."""
    code = (
        "import sys\n"
        "import penstock.formats.taskflux.entries, penstock.formats.taskflux.snapshot_frame\n"
        "assert not {'numpy', 'numba', 'pyarrow'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
