"""Every shell block of docs/cli.md runs in order, as it is typed, and every flag stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from penstock.cli.main import app
from penstock.formats.taskflux.generation import Generation
from support.directories import build
from support.node_process import start
from support.rabbitmq_directories import unpacked
from support.shell import shell

PAGE = (Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "old", Generation.TWO)
    unpacked("c1_small_embedded_live", tmp_path / "rabbit")
    with start(tmp_path / "node") as node:
        monkeypatch.setenv("PENSTOCK_NODE", node.address)
        lines = "".join(BLOCKS).splitlines()
        assert len(lines) > 20
        for line in lines:
            outcome = shell(line, cwd=tmp_path)
            assert (outcome.code, outcome.out != "") == (0, True), f"{line}: {outcome.err}"


def test_every_flag_of_the_commands_over_a_node_is_on_the_page() -> None:
    root = typer.main.get_command(app)
    commands = dict(root.commands)  # type: ignore[attr-defined]
    commands |= commands.pop("queue").commands
    for name in ("inspect", "dump", "tasks", "verify", "repair", "convert", "serve"):
        del commands[name]  # those of files are in its table, those of serve on a page of their own
    for name, command in commands.items():
        flags = [flag for option in command.params for flag in option.opts if flag[:2] == "--"]
        for flag in flags:
            assert flag in PAGE or flag == "--ack", f"{name} {flag}"
