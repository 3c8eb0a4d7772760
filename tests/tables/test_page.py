"""Every block of docs/tables.md runs in order, as it is typed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.shell import shell

PAGE = (Path(__file__).parent.parent.parent / "docs" / "tables.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_run_in_order(tmp_path: Path) -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python"}
    for kind, text in BLOCKS:
        if kind == "python":
            done = subprocess.run(
                [sys.executable, "-c", text],
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, ""), f"{text}\n{done.stderr}"
            continue
        for line in text.splitlines():
            outcome = shell(line, cwd=tmp_path)
            assert (outcome.code, outcome.out != "", outcome.err) == (0, True, ""), line
