"""Every block of docs/spool.md runs, in order, and every setting and flag stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import typer.main

from penstock.cli.main import app
from penstock.spooling.client import SpoolClient
from penstock.spooling.connecting import SpoolOptions
from support.node_process import start
from support.shell import shell

PAGE = (Path(__file__).parent.parent.parent / "docs" / "spool.md").read_text()
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_run_as_typed(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE)
    assert [kind for kind, _ in blocks] == ["python", "sh"]
    with start(tmp_path / "node") as node:
        (_, code), (_, lines) = (
            (kind, text.replace("127.0.0.1:2602", node.address)) for kind, text in blocks
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
        for line in lines.splitlines():
            outcome = shell(line, cwd=tmp_path)
            assert (outcome.code, outcome.out != "") == (0, True), f"{line}: {outcome.err}"
        with node.client() as client:
            assert client.stat("orders").count == 105


def test_every_setting_method_and_flag_is_on_the_page() -> None:
    methods = {name for name in vars(SpoolClient) if not name.startswith("_")}
    names = (set(SpoolOptions.__annotations__) | methods) - {"encode", "publish", "size_max"}
    root = typer.main.get_command(app)
    for command in root.commands["spool"].commands.values():  # type: ignore[attr-defined]
        names |= {f for option in command.params for f in option.opts if f.startswith("--")}
    for name in sorted(names):
        assert name in PAGE, f"{name} is not on the page"
