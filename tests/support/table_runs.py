"""A process that has begun a run of the pipeline and does nothing more, without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BEGIN = """
import sys
from pathlib import Path
from penstock.spark.pipeline.store import Store
staging = Store(Path(sys.argv[1])).begin()
print(staging.home, flush=True)
sys.stdin.read()
"""


@contextmanager
def begun_elsewhere(out: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Give a process that has begun a run into ``out``, and where it writes. It is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BEGIN, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()
