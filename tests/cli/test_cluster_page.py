"""The commands of docs/cluster.md run in order, its file is one that a node takes, and every flag of a group is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer.main

from penstock.cli.main import app
from support.group_processes import group_processes
from support.shell import shell

PAGE = (Path(__file__).parent.parent.parent / "docs" / "cluster.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GROUP_FLAGS = ("--node", "--peers", "--join", "--advertise", "--election-timeout", "--heartbeat")


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(PAGE) if name == language]


@pytest.mark.heavy  # four nodes, for commands that other tests run too
def test_the_commands_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with group_processes(tmp_path) as group:
        monkeypatch.setenv("PENSTOCK_NODE", group.connect)
        group.start(4, is_joining=True).wait_listening()
        lines = "".join(blocks("sh")).splitlines()
        assert len(lines) == 5
        for line in lines:
            outcome = shell(line.replace("127.0.0.1:2705", group.peer_address(4)), cwd=tmp_path)
            assert (outcome.code, outcome.out != "") == (0, True), f"{line}: {outcome.err}"


def flags_of_serve() -> set[str]:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {flag for option in command.params for flag in option.opts}


def test_every_flag_of_a_group_is_on_the_page() -> None:
    assert flags_of_serve() >= {*GROUP_FLAGS, "--config"}
    for flag in GROUP_FLAGS:
        assert f"| `{flag}" in PAGE, flag
    assert "--config" in PAGE


def test_the_file_of_the_page_has_flags_only() -> None:
    (text,) = blocks("toml")
    assert {f"--{name}" for name in tomllib.loads(text)} < flags_of_serve()
