"""Files of 20 GB that hold next to nothing: handled at once, in little memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.formats.taskflux.log import segment_name
from support.command import COMMAND, run
from support.damage import flipped, overwritten
from support.report import report
from support.taskflux_vectors import LOG_1, LOG_2, LOG_3

SIZE = 20 * 10**9
MEMORY_MAX_MB = 300
TIME_MAX_S = 60

# A process of its own, so that the figure is that of the command alone.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
print(done.returncode, used, done.stderr.decode().count("Traceback"))
"""

ONE = "one/consensus/raft.log"
TWO = "two/consensus/log.raft"
THREE = f"three/data/log/{segment_name(0)}"
FOUR = "four/log/00000000000000000001.log"
GOLDEN_4 = Path(__file__).parent.parent / "golden" / "penstock" / "node" / "log"
LOG_4 = (GOLDEN_4 / "00000000000000000001.log").read_bytes()


def sparse(path: Path, data: bytes) -> None:
    """Write ``data`` and a hole behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(SIZE)
    if path.stat().st_blocks * 512 > 2**20:
        pytest.skip("needs a file system with sparse files")


@pytest.mark.parametrize(
    ("name", "data", "words", "code"),
    [
        ("zeros", b"", ["verify"], 1),
        (THREE, b"", ["verify"], 1),
        # Entries of term 2, and no metadata beside them: that is reported.
        (TWO, LOG_2, ["verify"], 1),
        (TWO, LOG_2, ["tasks"], 0),
        (TWO, LOG_2, ["convert", "--to", "taskflux-3", "--out", "out"], 0),
        (THREE, LOG_3, ["verify"], 1),
        (THREE, LOG_3, ["dump"], 0),
        (THREE, LOG_3, ["repair", "--out", "out"], 0),
        # Nothing whole follows the last record: the search behind it must not read the hole.
        (THREE, flipped(LOG_3, 8 * 140), ["verify"], 1),
        (TWO, flipped(LOG_2, 8 * 130), ["repair", "--out", "out"], 1),
        # A length of 2 GiB that the file could hold.
        (THREE, overwritten(LOG_3, 24, b"\x7f\xff\xff\xff"), ["verify"], 1),
        # Small files are missing beside it: that is reported.
        (FOUR, LOG_4, ["verify"], 1),
        (FOUR, LOG_4, ["tasks"], 0),
        (FOUR, LOG_4, ["repair", "--out", "out"], 0),
        (FOUR, flipped(LOG_4, 8 * 140), ["repair", "--out", "out"], 1),
        (FOUR, overwritten(LOG_4, 72, b"\xff\xff\xff\x01"), ["verify"], 1),
        (ONE, overwritten(LOG_1, 12, b"\x7f\xff\xff\xff"), ["verify"], 1),
        (ONE, overwritten(LOG_1, 12, b"\x7f\xff\xff\xff"), ["tasks"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_sparse_file_costs_neither_time_nor_memory(
    tmp_path: Path, name: str, data: bytes, words: list[str], code: int
) -> None:
    sparse(tmp_path / name, data)
    command = [*COMMAND, words[0], name.partition("/")[0], *words[1:]]
    measured = run([sys.executable, "-c", MEASURE, *command], cwd=tmp_path, timeout_s=TIME_MAX_S)
    found, used, tracebacks = map(int, measured.out.split())
    assert (found, tracebacks) == (code, 0)
    report(f"{words[0]} of a sparse {name.partition('/')[0]}, 20 GB: {used} MB")
    assert used < MEMORY_MAX_MB
